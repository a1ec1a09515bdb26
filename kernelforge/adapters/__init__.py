"""Thin adapters between trainers and the reward server, one module per framework."""
