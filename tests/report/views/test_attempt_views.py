"""The Attempt page: gates, samples, shares of what the device allows, and commands that exist."""

from __future__ import annotations

import shlex
from itertools import chain

import pytest
import typer

from kernelforge.profiling.metrics import MATRIX_INSTRUCTIONS
from kernelforge.profiling.ncu.catalogue import TENSOR_PIPE
from kernelforge.records import Attempt, Correctness, Metric, Origin, SizeCheck, Verdict
from kernelforge.report import attempt_view
from kernelforge.report.formatting import number
from kernelforge.report.terminal import attempt_lines
from kernelforge.report.views.attempt import AttemptView, gates_of
from kernelforge.report.views.roofline import roofline_point
from kernelforge.report.views.run_records import best_of
from tests.report.golden.golden_runs import golden_records
from tests.support.factories import make_attempt, make_evaluation, make_fingerprint, make_task, measured_evaluation
from tests.support.terminal import drawn

GATES = ["parse", "plan", "compile", "policy", "small", "hidden", "full", "sanitizer", "timing"]


def viewed(run: str, task: str, number: int) -> AttemptView:
    records = golden_records(run)
    attempts = records.of_task(task)
    attempt = attempts[number]
    parent = next((other for other in attempts if other.id == attempt.parent), None)
    best = best_of(attempts)
    return attempt_view(attempt, parent, best=best, task=records.tasks[task], facts=records.facts.get(task))


def states(attempt: Attempt) -> dict[str, str]:
    return {gate.name: gate.status for gate in gates_of(attempt.evaluation)}


@pytest.mark.parametrize("run", ["modelled", "measured-a"])
def test_one_gate_failed_where_the_cascade_ended_and_none_behind_it_was_reached(run: str) -> None:
    for attempt in golden_records(run).attempts:
        evaluation, result = attempt.evaluation, states(attempt)
        assert list(result) == GATES
        failed = [name for name, status in result.items() if status == "failed"]
        if evaluation.verdict is Verdict.OK:
            doubted = evaluation.performance is not None and evaluation.performance.quarantined is not None
            assert failed == (["timing"] if doubted else [])
            assert "not reached" not in result.values()
        elif evaluation.verdict is Verdict.INFRA:
            assert failed == []
            assert result[evaluation.stage] == "not reached"
        else:
            assert failed == [evaluation.stage]
            behind = GATES[GATES.index(evaluation.stage) + 1 :]
            assert {result[name] for name in behind} <= {"not reached", "not applicable"}


def test_a_failed_gate_says_why_and_by_how_much() -> None:
    checks = (
        SizeCheck(size="small", status="passed", error=0.25),
        SizeCheck(size="hidden_a", status="passed", error=0.5),
        SizeCheck(size="hidden_b", status="failed", error=3.5, message="element 7 differs"),
    )
    evaluation = make_evaluation(
        Verdict.WRONG, stage="hidden", reason="at a hidden size", correctness=Correctness(sizes=checks)
    )
    gates = {gate.name: gate for gate in gates_of(evaluation)}
    assert (gates["small"].status, gates["small"].error) == ("passed", 0.25)
    assert (gates["hidden"].status, gates["hidden"].error, gates["hidden"].detail) == (
        "failed",
        3.5,
        "at a hidden size",
    )
    assert gates["hidden"].checks == checks[1:]
    assert gates["full"].status == "not reached"


def test_hidden_sizes_that_passed_before_a_further_test_failed_the_small_one_have_passed() -> None:
    checks = (
        SizeCheck(size="small", status="failed", families=("test:ties",), message="ties"),
        SizeCheck(size="hidden_a", status="passed"),
    )
    evaluation = make_evaluation(Verdict.WRONG, stage="small", correctness=Correctness(sizes=checks))
    result = {gate.name: gate.status for gate in gates_of(evaluation)}
    assert (result["small"], result["hidden"], result["full"]) == ("failed", "passed", "not reached")


def test_gates_that_a_device_or_a_lane_does_not_have_do_not_apply() -> None:
    emulated = states(make_attempt(0))
    assert (emulated["timing"], emulated["sanitizer"], emulated["hidden"]) == ("not applicable",) * 3
    on_gpu = make_attempt(0)
    timed = measured_evaluation(2.0, candidate=on_gpu.candidate.hash, seconds={"sanitizer": 1.0})
    result = states(on_gpu.model_copy(update={"evaluation": timed}))
    assert (result["timing"], result["sanitizer"]) == ("passed", "passed")
    host = make_evaluation(
        lane="modelnew", build=None, performance=None, fingerprint=make_fingerprint(device="cpu", device_kind="cpu")
    )
    kind = {gate.name: gate.status for gate in gates_of(host)}
    assert [kind[name] for name in ("plan", "compile", "policy", "timing")] == ["not applicable"] * 4


def test_sides_hold_each_baseline_with_the_speedup_against_it() -> None:
    view = viewed("measured-a", "softmax", 1)
    assert view.performance is not None
    timing = view.performance.timing
    assert timing is not None
    assert [side.name for side in view.sides] == ["candidate", *(side.name for side in timing.baselines)]
    assert view.sides[0].speedup is None
    for side in view.sides[1:]:
        ratio = timing.ratio(side.name)
        assert ratio is not None
        assert (side.speedup, side.low, side.high) == (ratio.speedup, *ratio.interval)
    assert [side.name for side in view.sides if side.fastest] == [timing.fastest]


def test_shares_are_of_the_floor_and_of_the_roof_above_the_candidate() -> None:
    view = viewed("measured-a", "softmax", 1)
    assert view.floor_us is not None
    assert view.place is not None
    assert view.floor_share == pytest.approx(view.floor_us / 10.0)
    roofs = view.place.roofs
    assert roofs is not None
    by_memory = view.place.dram_bytes / (roofs.dram_bandwidth_gbps * 1e3)
    by_arithmetic = view.place.flops / roofs.fp32_flops_per_s * 1e6
    assert view.place.ceiling_us == pytest.approx(max(by_memory, by_arithmetic))
    assert view.ceiling_share == pytest.approx(view.place.ceiling_us / 10.0)
    assert view.parent_place is not None
    assert view.parent_place.attempt == view.parent


@pytest.mark.parametrize("counter", [MATRIX_INSTRUCTIONS, TENSOR_PIPE])
def test_with_tensor_cores_the_ceiling_is_that_of_their_fastest_type(counter: str) -> None:
    attempt = golden_records("measured-a").of_task("softmax")[1]
    assert attempt.profile is not None
    used = Metric(name=counter, value=40.0, unit="%", origin=Origin.MEASURED)
    many = attempt.profile.roofline.model_copy(update={"flops": 1e12})
    profile = attempt.profile.model_copy(update={"metrics": (*attempt.profile.metrics, used), "roofline": many})
    point = roofline_point(attempt.model_copy(update={"profile": profile}))
    assert point is not None
    assert point.roofs is not None
    assert point.tensor_cores
    assert point.ceiling_us == pytest.approx(1e12 / point.roofs.fp16_tensor_flops_per_s * 1e6)
    idle = used.model_copy(update={"value": 0.0})
    profile = profile.model_copy(update={"metrics": (*attempt.profile.metrics, idle)})
    point = roofline_point(attempt.model_copy(update={"profile": profile}))
    assert point is not None
    assert point.roofs is not None
    assert not point.tensor_cores
    assert point.ceiling_us == pytest.approx(1e12 / point.roofs.fp32_flops_per_s * 1e6)


def test_a_modelled_time_has_no_share_of_the_floor_and_a_quarantined_one_has_no_share_at_all() -> None:
    modelled = viewed("modelled", "softmax", 1)
    assert modelled.floor_us is not None
    assert modelled.floor_share is None
    doubted = viewed("measured-a", "attention", 0)
    assert (doubted.floor_share, doubted.ceiling_share) == (None, None)


def test_an_estimated_energy_says_so_with_its_range_its_parts_and_what_it_leaves_out() -> None:
    view = viewed("modelled", "softmax", 1)
    assert view.energy is not None
    total = view.energy.millijoules
    assert view.energy.interval_mj == pytest.approx((total / 2, 3 * total))
    text = " ".join(drawn(attempt_lines(view), width=400).split())
    energy = f"{number(total)} mJ estimated, not measured, {number(total / 2)} to {number(3 * total)} by the published"
    assert f"energy {energy} extremes: dram 80" in text
    assert "without instructions, leakage, clocks, special" in text
    assert viewed("measured-a", "attention", 0).energy is None


def test_an_attempt_is_compared_with_the_best_where_that_is_neither_itself_nor_its_parent() -> None:
    best = viewed("modelled", "softmax", 5)
    assert best.best == best.id
    assert {diff.beside for diff in best.diffs} == {"parent"}
    after = viewed("modelled", "softmax", 6)  # its parent is the best
    assert {diff.beside for diff in after.diffs} == {"parent"}
    other = viewed("modelled", "softmax", 7)
    assert [(diff.name, diff.beside) for diff in other.diffs] == [
        ("source", "parent"), ("plan", "parent"), ("source", "best"), ("plan", "best"),
    ]  # fmt: skip
    result = other.diff("source", "best")
    assert result is not None
    assert result.against == best.id


def test_every_command_that_is_told_exists_with_its_options() -> None:
    from kernelforge.cli.main import app

    commands = typer.main.get_command(app).commands
    attempt = make_attempt(0)
    shipped = attempt_view(attempt, None, task=make_task())
    assert len(shipped.replay) == 3
    assert "--task core/softmax" in shipped.replay[2]
    for line in chain(shipped.replay, viewed("modelled", "level1/argmax", 0).replay):
        name, verb, *words = shlex.split(line.partition(" > ")[0])
        assert name == "kernelforge"
        options = {option for parameter in commands[verb].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
    folder = attempt_view(attempt, None, task=make_task(suite="somewhere-else"))
    assert len(folder.replay) == 2
    assert len(attempt_view(attempt.model_copy(update={"task": "a b; rm x"}), None).replay) == 2
    odd = attempt_view(attempt.model_copy(update={"task": "a b; rm x"}), None).replay[1]
    assert shlex.split(odd)[-1] == "a b; rm x-00.md"


def test_an_attempt_without_a_candidate_has_nothing_to_evaluate_or_to_compare() -> None:
    records = golden_records("modelled")
    attempt = next(attempt for attempt in records.attempts if attempt.candidate is None)
    view = attempt_view(attempt, None, task=records.tasks[attempt.task])
    assert view.diffs == ()
    assert len(view.replay) == 1
