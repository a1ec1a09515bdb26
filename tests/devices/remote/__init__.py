"""Devices of other machines, over SSH."""
