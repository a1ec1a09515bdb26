"""Times from outside: the slope between N and 2N calls, and values that are checked while the clock stands still."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from kernelforge.errors import ChildDied, TimingError
from kernelforge.evaluation.timing.candidate_timer import OutputChangedWhileTimed
from kernelforge.modelnew.client import ModelNewChild, ModelNewFault, read_init
from kernelforge.modelnew.timer import PROTOCOL, ModelNewTimer, time_from_outside
from kernelforge.records import MeasureSettings, Performance
from kernelforge.sandbox import Zygote
from kernelforge.tasks import size_source
from tests.modelnew.modelnew_setup import HONEST, LIMITS

if TYPE_CHECKING:
    from kernelforge.modelnew.evaluator import ModelNewEvaluator

SETTINGS = MeasureSettings(precision=0.5, seconds=0.2)


class Scripted:
    """A process that takes ``fixed_s`` for each answer and ``call_s`` for each call, on a clock of its own."""

    def __init__(self, fixed_s: float, call_s: float) -> None:
        self.now = 0.0
        self.windows: list[int] = []
        self._fixed_s, self._call_s = fixed_s, call_s

    def clock(self) -> float:
        return self.now

    def window(self, calls: int, timeout_s: float) -> None:
        self.windows.append(calls)
        self.now += self._fixed_s + calls * self._call_s


def outside(child: Scripted, sets: int = 3) -> object:
    return time_from_outside(
        child, sets, SETTINGS, set_bytes=4, host_clock=child.clock, between=lambda: None, rng=random.Random(1)
    )


def test_what_an_answer_costs_is_no_part_of_the_time() -> None:
    for fixed_s in (0.0, 0.001, 0.3):
        timing = outside(Scripted(fixed_s, 0.0005))
        assert timing.candidate.median_us == pytest.approx(500.0)  # type: ignore[attr-defined]
        assert timing.protocol == PROTOCOL == "launch/1"  # type: ignore[attr-defined]
        assert not timing.candidate.captured  # type: ignore[attr-defined]
        assert timing.settled  # type: ignore[attr-defined]


def test_every_set_is_called_as_often() -> None:
    child = Scripted(0.0, 0.0001)
    outside(child, sets=7)
    assert {calls % 7 for calls in child.windows} == {0}


def test_calls_that_take_no_time_have_none() -> None:
    with pytest.raises(TimingError, match="no longer than N"):
        outside(Scripted(0.03, 0.0))


class Counted(ModelNewChild):
    """Runs the calls of a window, each of which takes as long by a clock of its own: how busy this machine is shows
    nowhere."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def window(self, calls: int, timeout_s: float) -> None:
        super().window(calls, timeout_s)
        self.now += calls * 0.0005


class Times:
    """Times a text on this machine's CPU, by a made-up clock. That there are figures, and checks, is what counts."""

    def __init__(self, evaluator: ModelNewEvaluator, zygote: Zygote) -> None:
        self._evaluator, self._zygote = evaluator, zygote

    def __call__(self, text: str) -> Performance:
        task, facts = self._evaluator.task, self._evaluator.facts.at("full")
        init = read_init(self._zygote, size_source(task, "full"))
        gpu = SimpleNamespace(
            l2_bytes=facts.compulsory_bytes, memory_bytes=1 << 30, memory_bandwidth_gbps=0.0, clocks=lambda: None
        )
        with Counted(self._zygote, "cpu", LIMITS, run_s=120.0) as child:
            child.load(text)
            stopwatch = ModelNewTimer(
                child=child,
                oracle=self._evaluator.oracle,
                facts=facts,
                gpu=gpu,
                settings=SETTINGS,
                seed=3,
                host_clock=child.clock,
            )
            return stopwatch.time(init)


@pytest.fixture
def times(evaluator: ModelNewEvaluator, modelnew_zygote: Zygote) -> Times:
    return Times(evaluator, modelnew_zygote)


@pytest.mark.slow
def test_an_honest_candidate_is_timed_on_several_sets_with_weights_of_their_own(times: Times) -> None:
    performance = times(HONEST)
    assert performance.timing is not None
    assert performance.timing.sets > 1
    assert performance.timing.flush_bytes == 0
    assert performance.protocol == "launch/1"


KEEPING = """
kept = {}
honest = ModelNew.forward

def keeping(self, x, y):
    key = KEY
    if key not in kept:
        kept[key] = honest(self, x, y)
    return kept[key]

ModelNew.forward = keeping
"""


@pytest.mark.slow
@pytest.mark.parametrize("key", ["x.data_ptr()", "(x.data_ptr(), x._version)"])
def test_results_kept_while_timed_are_found(times: Times, key: str) -> None:
    with pytest.raises(OutputChangedWhileTimed):
        times(HONEST + KEEPING.replace("KEY", key))


@pytest.mark.slow
def test_a_candidate_that_stops_working_while_timed_is_found(times: Times) -> None:
    text = HONEST.replace(
        "        return self", "        count[0] += 1\n        if count[0] > 40: return x\n        return self"
    )
    with pytest.raises(OutputChangedWhileTimed):
        times("count = [0]\n" + text)


@pytest.mark.slow
def test_a_crash_while_timed_is_a_fault(times: Times) -> None:
    text = HONEST.replace(
        "        return self", "        count[0] += 1\n        assert count[0] < 9\n        return self"
    )
    with pytest.raises(ModelNewFault) as caught:
        times("count = [0]\n" + text)
    assert caught.value.type == "AssertionError"


def test_an_oracle_that_ends_between_rounds_ends_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelNewTimer, "_check", lambda timer: None)

    def ended() -> None:
        raise ChildDied("it ended between two rounds")

    oracle = SimpleNamespace(release=lambda handle: None, require_draws=ended)
    timer = ModelNewTimer(child=None, oracle=oracle, facts=None, gpu=None, settings=SETTINGS, seed=3)  # type: ignore[arg-type]
    timer._between(1)
    with pytest.raises(ChildDied, match="between two rounds"):
        timer._between(1)
