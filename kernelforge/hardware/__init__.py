"""Figures of the GPUs that are emulated or measured, each with its source, and what follows from them."""
