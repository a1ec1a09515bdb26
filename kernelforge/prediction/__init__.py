"""Times of PyTorch on a GPU that is not at hand: published ones, or predicted from a reference's operators."""

from kernelforge.prediction.baseline import BaselineKind, BaselineTime, OperatorTime, predict_baseline
from kernelforge.prediction.operators import Operator, OperatorTrace
from kernelforge.prediction.published import baseline_time, published_baseline
from kernelforge.prediction.speedup import idle_share, modelled_interval_us, predict_speedup

__all__ = [
    "BaselineKind",
    "BaselineTime",
    "Operator",
    "OperatorTime",
    "OperatorTrace",
    "baseline_time",
    "idle_share",
    "modelled_interval_us",
    "predict_baseline",
    "predict_speedup",
    "published_baseline",
]
