"""NVIDIA GPUs. Nothing here imports cupy, cuda-bindings, pycuda or torch before it is used."""
