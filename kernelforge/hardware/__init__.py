"""Specifications of GPUs, each figure with its source, and what follows from them."""
