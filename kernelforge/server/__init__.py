"""The reward server: durable jobs over HTTP in front of an engine."""
