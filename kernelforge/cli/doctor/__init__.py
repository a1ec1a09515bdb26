"""``kernelforge doctor``: whether KernelForge works on this machine, and what to do where it does not."""
