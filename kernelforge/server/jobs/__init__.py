"""The gateway: from accepted requests to jobs that end exactly once, free of any protocol."""
