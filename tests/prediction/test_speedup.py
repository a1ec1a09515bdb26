"""Predicted speedups: two times and their spreads, and where an evaluation carries one."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from kernelforge import evaluate
from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.hardware.specs import SPECS
from kernelforge.prediction import BaselineTime, Operator, OperatorTrace, idle_share, predict_baseline, predict_speedup
from kernelforge.prediction.operators import Operand
from kernelforge.prediction.speedup import IDLE_SPREAD, KERNEL_SPREAD
from kernelforge.records import Candidate, KernelProfile, Metric, Origin, PredictedSpeedup
from kernelforge.rewards import reward
from tests.support.factories import measured, modelled

SWISH = Candidate(
    source="""__global__ void swish(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] / (1.0f + expf(-x[i]));
}""",
    plan="""def forward(x):
    out = empty_like(x)
    swish[ceil_div(x.numel(), 256), 256](x, out, i32(x.numel()))
    return out""",
)


def eager(time_us: float = 40.0, factor: float = 1.5) -> BaselineTime:
    return BaselineTime(
        kind="eager", gpu="h100", time_us=time_us, low_us=time_us / factor, high_us=time_us * factor,
        origin="predicted", source="a fit", tf32=False,
    )  # fmt: skip


def kernel_profile(time_us: float, grid: int, block: int) -> KernelProfile:
    metric = Metric(name="kernelforge__time_us", value=time_us, unit="us", origin=Origin.MODELLED)
    return KernelProfile(
        kernel="k", launches=1, grid=(grid, 1, 1), block=(block, 1, 1), sampled=1.0, metrics=(metric,), hot_spots=()
    )


def test_a_speedup_is_the_ratio_and_its_interval_has_both_spreads() -> None:
    predicted = predict_speedup(SPECS["h100"], 10.0, eager())
    assert predicted.speedup == pytest.approx(4.0)
    width = math.exp(math.hypot(1.6449 * KERNEL_SPREAD, math.log(1.5)))
    assert (predicted.low, predicted.high) == (pytest.approx(4.0 / width), pytest.approx(4.0 * width))
    assert (predicted.gpu, predicted.eager_us, predicted.eager_origin) == (SPECS["h100"].title, 40.0, "predicted")


def test_a_published_time_narrows_the_interval_to_that_of_the_kernel() -> None:
    published = eager(factor=1.0).model_copy(update={"origin": "published"})
    predicted = predict_speedup(SPECS["h100"], 10.0, published)
    assert predicted.high / predicted.speedup == pytest.approx(math.exp(1.6449 * KERNEL_SPREAD))
    assert predicted.eager_origin == "published"


def test_kernels_that_leave_schedulers_idle_widen_the_interval_by_their_share_of_the_time() -> None:
    h100 = SPECS["h100"]
    busy = kernel_profile(30.0, grid=h100.sm_count, block=128)
    idle = kernel_profile(10.0, grid=h100.sm_count, block=96)
    assert idle_share(h100, [busy]) == 0
    assert idle_share(h100, [busy, idle]) == pytest.approx(0.25)
    assert idle_share(h100, []) == 0
    published = eager(factor=1.0)
    width = math.exp(1.6449 * math.hypot(KERNEL_SPREAD, 0.25 * IDLE_SPREAD))
    predicted = predict_speedup(h100, 10.0, published, idle_share(h100, [busy, idle]))
    assert predicted.high / predicted.speedup == pytest.approx(width)


def test_only_a_modelled_time_has_a_prediction() -> None:
    predicted = predict_speedup(SPECS["h100"], 10.0, eager())
    assert type(modelled()).model_validate(modelled().model_dump() | {"predicted": predicted}).predicted == predicted
    with pytest.raises(ValidationError, match="a measured time has no predicted speedup"):
        type(measured()).model_validate(measured().model_dump() | {"predicted": predicted})
    with pytest.raises(ValidationError, match="lies outside of its interval"):
        PredictedSpeedup.model_validate(predicted.model_dump() | {"low": 5.0})


@pytest.mark.slow
@pytest.mark.usefixtures("warm_zygotes")
def test_an_evaluation_on_an_emulated_device_predicts_a_speedup() -> None:
    result = evaluate("core/swish", SWISH, device="emulated:h100", seed=1)
    performance = result.evaluation.performance
    assert performance is not None, result.evaluation.reason
    predicted = performance.predicted
    assert predicted is not None
    assert predicted.speedup == pytest.approx(predicted.eager_us / performance.time_us)
    assert 0.5 < predicted.speedup < 4, "PyTorch runs two kernels of this kind"
    assert reward("kernelforge/2", result.evaluation).components["log_predicted"] == pytest.approx(
        0.25 * math.log(8 * predicted.low)
    )


def test_a_speedup_is_that_of_its_times() -> None:
    predicted = predict_speedup(SPECS["h100"], 10.0, eager())
    with pytest.raises(ValidationError, match="is the time of eager PyTorch over the modelled one"):
        type(modelled()).model_validate(modelled(20.0).model_dump() | {"predicted": predicted})


@pytest.mark.parametrize("gpu", ["gtx-1650", "gtx-1660-super", "h100"])
def test_a_product_of_halves_takes_a_time_on_every_gpu(gpu: str) -> None:
    product = Operator(
        name="mm", kind="matmul", dtype="float16", reads=(Operand(bytes=8192), Operand(bytes=8192)), write_bytes=8192,
        flops=2 * 64**3, geometry={"batch": 1, "m": 64, "n": 64, "k": 64},
    )  # fmt: skip
    assert predict_baseline(OperatorTrace(size="full", operators=(product,)), SPECS[gpu]).time_us > 0
    for geometry in ({}, {"batch": 1, "m": 0, "n": 64, "k": 64}):
        odd = OperatorTrace(size="full", operators=(product.model_copy(update={"geometry": geometry}),))
        with pytest.raises(ValueError, match="no time follows from these operators"):
            predict_baseline(odd, SPECS[gpu])


@pytest.mark.slow
@pytest.mark.usefixtures("warm_zygotes")
def test_an_evaluation_whose_operators_cannot_be_told_has_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(oracle: Oracle, size: str = "full", *, run: bool = True) -> None:
        raise TaskError("no tensors without values here")

    monkeypatch.setattr(Oracle, "operators", refuse)
    performance = evaluate("core/swish", SWISH, device="emulated:h100", seed=1).evaluation.performance
    assert performance is not None
    assert performance.predicted is None
