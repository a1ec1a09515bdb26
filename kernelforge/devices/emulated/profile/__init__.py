"""Profiles of emulated launches: which blocks run, the cost of their memory accesses, the counters."""
