"""Nsight Compute and Compute Sanitizer, run on a program that replays a plan."""
