"""Predicted times of PyTorch on a GPU that is not at hand, from what a reference reads, writes and computes."""

from kernelforge.prediction.baseline import BaselineKind, BaselineTime, OperatorTime, predict_baseline
from kernelforge.prediction.operators import Operator, OperatorTrace

__all__ = ["BaselineKind", "BaselineTime", "Operator", "OperatorTime", "OperatorTrace", "predict_baseline"]
