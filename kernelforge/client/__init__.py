"""Talking to a reward server: what goes over the wire, and the clients that send it."""
