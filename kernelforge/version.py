"""The version, and the distribution's name for pip."""

__version__ = "0.1.0"

DISTRIBUTION = "judged-kernels"
"""Name of the distribution. On PyPI ``kernelforge`` and ``kernelforge-cuda`` belong to another project."""
