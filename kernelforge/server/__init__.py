"""The reward server: durable jobs over HTTP in front of a pool of workers."""
