"""The job service: from accepted requests to jobs that end exactly once, independent of any protocol."""
