"""Parts of ``benchmarks/baselines.py``."""
