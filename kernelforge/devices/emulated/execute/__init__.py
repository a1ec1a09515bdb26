"""Execution of launches: device memory, the CTAs of a grid, and whole plans."""
