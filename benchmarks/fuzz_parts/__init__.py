"""The parts of ``benchmarks/fuzz.py``: what each makes of a random generator, and what it holds its subject to."""
