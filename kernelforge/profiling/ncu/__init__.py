"""Nsight Compute: what to ask of it, how to ask, and what its answers mean. Pure functions over text and files."""
