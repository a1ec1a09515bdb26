"""Calibration: microbenchmarks of a GPU, and the parameter file of an emulated device with their figures."""

from kernelforge.calibration.figures import CalibratedFigure, Calibration, calibrate
from kernelforge.calibration.parameter_file import parameter_file

__all__ = ["CalibratedFigure", "Calibration", "calibrate", "parameter_file"]
