"""Time of a model with operators: arithmetic by hand, and intervals."""

from __future__ import annotations

import math

import pytest

from kernelforge.hardware.specs import spec_by_key
from kernelforge.packaging.end_to_end import Exchange, Gain, Kernels, predicted_gain
from kernelforge.prediction.baseline import fitted

H100 = spec_by_key("h100")
MODEL = Kernels({"matmul": 6000.0, "softmax": 4000.0}, operators=10)
"""Ten long operators: launches hide behind them."""


def gain(operator_us: float, *, graph: bool = True, draws: int = 500, spread: float = 0.0) -> Gain:
    """Of 4,000 us of softmax in four calls."""
    exchange = Exchange(Kernels({"softmax": 4000.0}, operators=4), calls=4, operator_us=operator_us, spread=spread)
    return predicted_gain(MODEL, [exchange], H100, graph=graph, draws=draws)


def test_a_part_twice_as_fast_gives_what_amdahl_says() -> None:
    launch = fitted().parameters["graph_us"]
    result = gain(500.0)
    assert result.before_us.value == pytest.approx(10000 + launch)
    assert result.after_us.value == pytest.approx(8000 + launch)
    assert result.gain.value == pytest.approx(1 / (1 - 0.4 + 0.4 / 2), rel=1e-4)


def test_in_eager_pytorch_the_host_launches_what_is_left() -> None:
    parameters = fitted().parameters
    short = Kernels({"pointwise": 20.0}, operators=20)
    exchange = Exchange(Kernels({"pointwise": 12.0}, operators=12), calls=2, operator_us=1.0, spread=0.0)
    result = predicted_gain(short, [exchange], H100, draws=10)
    # The host binds on both sides: 20 operators before, 8 and two calls after.
    host = parameters["host_us"]
    busy = 10.0 + parameters["eager.call_us"] + 10 * parameters["eager.gap_us"]
    assert result.after_us.value == pytest.approx((busy**4 + (10 * host) ** 4) ** 0.25)
    assert 1.9 < result.gain.value < 2.0


def test_nothing_replaced_gains_nothing_and_the_interval_says_so() -> None:
    assert predicted_gain(MODEL, [], H100, draws=50).gain == (1.0, 1.0, 1.0)


def test_the_interval_of_a_gain_is_narrower_than_that_of_its_kernel() -> None:
    """With all of the model in the group it is the kernel's; with 40 % of it, its ends are those of Amdahl's law."""
    spread = 0.3
    kernel = math.exp(1.645 * spread)
    everything = Kernels({"matmul": 4000.0}, operators=4)  # a kind that has hardly a spread of its own
    of_all = predicted_gain(everything, [Exchange(everything, 4, 500.0, spread)], H100, graph=True).gain
    own = math.exp(1.645 * math.hypot(spread, fitted().spread["any"]))
    assert of_all.low == pytest.approx(2 / own, rel=0.05)
    assert of_all.high == pytest.approx(2 * own, rel=0.05)
    part = gain(500.0, spread=spread, draws=4000).gain
    assert part.low < 1 / (0.6 + 0.2 * kernel)
    assert 1 / (0.6 + 0.2 / kernel) < part.high < 1.6
    assert part.high / part.low < of_all.high / of_all.low
