"""Times of PyTorch on a GPU that is not at hand: published ones, or predicted from a reference's operators."""

from kernelforge.prediction.baseline import (
    BaselineKind,
    BaselineTime,
    OperatorTime,
    kernel_us,
    near_bytes,
    predict_baseline,
)
from kernelforge.prediction.launch_queue import gpu_bound_batch, measured_launch_queue, predict_launch_queue
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
    "gpu_bound_batch",
    "idle_share",
    "kernel_us",
    "measured_launch_queue",
    "modelled_interval_us",
    "near_bytes",
    "predict_baseline",
    "predict_launch_queue",
    "predict_speedup",
    "published_baseline",
]
