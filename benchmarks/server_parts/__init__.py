"""Parts of ``benchmarks/server.py``."""
