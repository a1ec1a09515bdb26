"""The error of the time model on one GPU: its median, its spread, and the factor that follows."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernelforge.prediction.correction import PRIOR, CardKey, ModelErrors, card_error, card_errors, key_of
from kernelforge.prediction.speedup import kernel_spread
from kernelforge.records import ForecastOutcome, Screening, forecast_outcome
from tests.support.factories import make_evaluation, make_forecast, make_passed_over, measured, measured_evaluation

GPU = "NVIDIA H200"


def outcome(ratio: float, number: int = 0, task: str = "softmax", **changes: Any) -> ForecastOutcome:
    """A candidate that took ``ratio`` times as long as modelled."""
    fields: dict[str, Any] = {
        "task": task, "candidate": f"{number}", "gpu": GPU, "measured_us": 10.0 * ratio,
        "forecast": make_forecast(10.0),
    }  # fmt: skip
    return ForecastOutcome(**(fields | changes))


def test_nothing_measured_corrects_nothing() -> None:
    assert card_error([]) is None
    assert ModelErrors().of(CardKey(GPU, "f", "emulated/7")) is None


def test_one_measured_candidate_moves_the_factor_a_little_and_many_all_the_way() -> None:
    factors = []
    for count in (1, PRIOR, 400):
        error = card_error(outcome(2.0, number) for number in range(count))
        assert error is not None
        assert (error.measured, error.tasks, error.median) == (count, 1, pytest.approx(2.0))
        assert error.factor == pytest.approx(2.0 ** (count / (count + PRIOR)))
        factors.append(error.factor)
    assert factors == sorted(factors)
    assert factors[1] == pytest.approx(math.sqrt(2.0))
    assert factors[2] == pytest.approx(2.0, rel=0.01)


def test_a_median_does_not_follow_one_candidate_that_is_far_off() -> None:
    error = card_error(outcome(ratio, number) for number, ratio in enumerate((1.1, 1.2, 1.3, 50.0, 1.2)))
    assert error is not None
    assert (error.median, error.low, error.high) == pytest.approx((1.2, 1.1, 50.0))


def test_the_spread_is_the_models_own_until_measurements_say_otherwise() -> None:
    alike = card_error(outcome(1.0, number) for number in range(100))
    apart = card_error(outcome(math.exp((-1) ** number), number) for number in range(100))
    assert alike is not None
    assert apart is not None
    assert alike.scatter == pytest.approx(math.sqrt(PRIOR / (100 + PRIOR)))
    assert apart.scatter == pytest.approx(1.0 / kernel_spread(0.0), rel=0.05)


def test_kernels_that_leave_schedulers_idle_count_their_scatter_once() -> None:
    """Measured times that scatter as those of published kernels do leave the interval as wide as it was."""
    for idle in (0.0, 0.5, 1.0):
        spread, forecast = kernel_spread(idle), make_forecast(10.0, idle=idle)
        error = card_error(
            outcome(math.exp(spread * (-1) ** number), number, forecast=forecast) for number in range(100)
        )
        assert error is not None
        assert error.scatter == pytest.approx(1.0, rel=0.01)


def test_a_candidate_that_was_measured_again_counts_once_as_the_last_time() -> None:
    error = card_error([outcome(9.0), outcome(1.5), outcome(1.5, task="gelu")])
    assert error is not None
    assert (error.measured, error.tasks, error.median) == (2, 2, pytest.approx(1.5))


def test_another_gpu_other_figures_and_another_model_have_factors_of_their_own() -> None:
    others = [
        outcome(3.0, gpu="NVIDIA L4"),
        outcome(3.0, forecast=make_forecast(10.0, figures="fedcba9876543210")),
        outcome(3.0, forecast=make_forecast(10.0, protocol="emulated/6")),
    ]
    errors = ModelErrors([outcome(1.5), *others])
    own = errors.of(key_of(outcome(1.0)))
    assert own is not None
    assert own.median == pytest.approx(1.5)
    assert len(card_errors([outcome(1.5), *others, outcome(2.5, 1)])) == 4
    errors.add(outcome(2.5, 1))
    later = errors.of(key_of(outcome(1.0)))
    assert later is not None
    assert (later.measured, later.median) == (2, pytest.approx(math.sqrt(1.5 * 2.5)))


def test_only_a_believed_time_of_replayed_graphs_says_how_far_the_model_was_right() -> None:
    screening = Screening(device="emulated:h100", outcome="passed", forecast=make_forecast(10.0))
    seen = forecast_outcome(measured_evaluation(screening=screening), "softmax")
    assert seen is not None
    assert (seen.gpu, seen.forecast, seen.task) == (GPU, screening.forecast, "softmax")
    for protocol in ("launch/1", "graph/1+server", "kernelbench/1"):
        evaluation = measured_evaluation(performance=measured(protocol=protocol), screening=screening)
        assert forecast_outcome(evaluation, "softmax") is None
    doubted = measured_evaluation(performance=measured(quarantined="below the floor"), screening=screening)
    assert forecast_outcome(doubted, "softmax") is None
    for evaluation in (measured_evaluation(), make_evaluation(), make_passed_over()):
        assert forecast_outcome(evaluation, "softmax") is None
