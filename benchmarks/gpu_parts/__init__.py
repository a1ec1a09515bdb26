"""Parts of ``benchmarks/gpu.py``: each proves one thing on a GPU, in bounded time, and knows nothing of the others."""
