"""Cheating candidates end as they should: here all but those that need a GPU, on a GPU all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from benchmarks.gpu_parts.cheats import HONEST, Case, Tried, cheats, is_twin, read_cheats, try_cheats
from benchmarks.gpu_parts.machine import Machine
from benchmarks.gpu_parts.report import Report
from kernelforge.devices import check_device
from kernelforge.errors import DeviceError
from tests.gpu_script.software_machine import SoftwareMachine

ALL = read_cheats()
L2_PREFETCH = "gpu-l2-prefetch"
HERE = [cheat for cheat in ALL if "software" in cheat.devices]


@pytest.fixture(scope="module")
def tried(
    request: pytest.FixtureRequest,
    machine: SoftwareMachine,
    warmly: Callable[[], AbstractContextManager[None]],
    own_leases: None,
) -> dict[str, Tried]:
    """Outcomes of the cheats that this run asks for, and of the honest kernels."""
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    cases = (call.params.get("cheat") for call in calls if call)
    names = {L2_PREFETCH, *(case.name for case in cases if isinstance(case, Case))}  # other files have texts there
    with warmly():
        trial = [cheat for cheat in HERE if is_twin(cheat) or cheat.name in names]
        return {outcome.cheat.name: outcome for outcome in try_cheats(trial, machine)}


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("cheat", HERE, ids=lambda cheat: cheat.name)
def test_a_cheat_ends_as_it_should(cheat: Case, tried: dict[str, Tried]) -> None:
    """The software clock counts instructions: its times tell work that was left out, though none is believed."""
    outcome = tried[cheat.name]
    assert outcome.evaluation.verdict.value in cheat.verdicts, outcome.evaluation.reason
    assert outcome.ratio is None or outcome.ratio >= HONEST


@pytest.mark.slow
def test_the_clock_would_tell(tried: dict[str, Tried]) -> None:
    """The honest kernels differ by their arithmetic alone: its absence would show."""
    light, heavy = (tried[f"gpu-honest-{name}"].evaluation.performance for name in ("axpy", "cosines"))
    assert light is not None
    assert heavy is not None
    assert heavy.time_us > 3 * light.time_us


def test_a_twin_stands_before_what_is_held_against_it() -> None:
    seen: set[tuple[str, str]] = set()
    for cheat in ALL:
        if is_twin(cheat):
            seen.add((cheat.language, cheat.task))
        assert (cheat.language, cheat.task) in seen, cheat.name


@pytest.mark.slow
def test_a_faster_cheat_is_reported_unless_its_time_is_not_believed(tried: dict[str, Tried]) -> None:
    outcome = tried[L2_PREFETCH]
    performance = outcome.evaluation.performance
    assert performance is not None
    believed = outcome.evaluation.model_copy(
        update={"performance": performance.model_copy(update={"quarantined": None})}
    )
    doubted = performance.model_copy(update={
        "quarantined": "too fast", "speedup": None, "speedup_lower": None, "speedup_eager": None,
    })  # fmt: skip
    assert not Tried(outcome.cheat, believed, 1.0, ratio=0.5).as_expected
    assert Tried(outcome.cheat, believed, 1.0, ratio=1.0).as_expected
    quarantined = outcome.evaluation.model_copy(update={"performance": doubted})
    assert Tried(outcome.cheat, quarantined, 1.0, ratio=0.5).as_expected


@pytest.mark.slow
def test_the_part_says_what_each_cheat_came_to(machine: SoftwareMachine) -> None:
    report = Report("cheats")
    cheats(machine, report, [cheat for cheat in HERE if cheat.name in ("gpu-globaltimer", "gpu-clock64")])
    assert [(row["got"], row["held"]) for row in report.rows] == [("POLICY", True), ("POLICY", True)]
    assert report.figures[0].value == "2 of 2"


@pytest.fixture(scope="module")
def on_gpu() -> dict[str, Tried]:
    try:
        check_device("cuda:0")
    except DeviceError as error:
        pytest.skip(str(error))
    return {outcome.cheat.name: outcome for outcome in try_cheats(ALL, Machine())}


@pytest.mark.gpu
@pytest.mark.parametrize("cheat", ALL, ids=lambda cheat: cheat.name)
def test_a_cheat_ends_as_it_should_on_a_gpu(cheat: Case, on_gpu: dict[str, Tried]) -> None:
    outcome = on_gpu[cheat.name]
    assert outcome.as_expected, (
        f"{outcome.evaluation.verdict} {outcome.evaluation.reason}, {outcome.ratio} of its twin's time"
    )
