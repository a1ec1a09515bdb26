"""From a ``ModelNew`` whose host part is a plain launch to device code and a launch plan, or a precise no."""

from kernelforge.modelnew.convert.converter import Conversion, convert
from kernelforge.modelnew.convert.problems import Problem

__all__ = ["Conversion", "Problem", "convert"]
