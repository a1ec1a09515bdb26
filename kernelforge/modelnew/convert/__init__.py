"""Convert a ``ModelNew`` with plain launches to device code and a launch plan, or say precisely why not."""

from kernelforge.modelnew.convert.converter import Conversion, convert
from kernelforge.modelnew.convert.cpp_tokens import Problem

__all__ = ["Conversion", "Problem", "convert"]
