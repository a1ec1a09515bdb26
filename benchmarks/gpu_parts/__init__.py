"""Parts of ``benchmarks/gpu.py``: each proves one thing on a GPU, in bounded time, independently of the others."""
