"""The version and the name under which pip knows this package, each in one place."""

__version__ = "0.1.0"

DISTRIBUTION = "judged-kernels"
"""Name of the distribution. On PyPI ``kernelforge`` and ``kernelforge-cuda`` belong to another project."""
