"""Profiles of emulated launches: which blocks are run, what their memory accesses cost, what is counted."""
