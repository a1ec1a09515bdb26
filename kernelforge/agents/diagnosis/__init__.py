"""Diagnosis of a profiled kernel: what limits it, which rule says so, and what may help."""
