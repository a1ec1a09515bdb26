"""Verification: what a forger does, and where it shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernelforge.evaluation.evaluator import EvaluationResult
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.leaderboard.entry import Best, EntryError, EntryFile, entry_text, parse_entry
from kernelforge.leaderboard.verify import (
    _far,
    _LocalResult,
    _problems,
    _task_check,
    drawn,
    incomparable,
    measure_of,
    rerun,
    static_checks,
    suite_of,
    verify,
)
from kernelforge.profiling.model import PROTOCOL as MODEL
from kernelforge.records import Correctness, Evaluation, SizeCheck, Verdict
from kernelforge.tasks import load_suite
from kernelforge.tasks.suites import Suite

Forge = Callable[..., EntryFile]


def never() -> EvaluatorPool:
    raise AssertionError("nothing is to be run")


def row_of(data: dict[str, Any], task: str) -> dict[str, Any]:
    return next(row for row in data["tasks"] if row["task"] == task)


def best_of(entry: EntryFile) -> Best:
    """The best of the task softmax."""
    best = next(row.best for row in entry.tasks if row.task == "softmax")
    assert best is not None
    return best


def at_best(forgery: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """A change of an entry that makes a forgery of the best of softmax."""
    return lambda data: forgery(row_of(data, "softmax")["best"])


def at_time(forgery: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """A change of an entry that makes a forgery of the time of that best."""
    return at_best(lambda best: forgery(best["evaluation"]["performance"]))


@cache
def core() -> Suite:
    return load_suite("core")


def failed(entry: EntryFile) -> dict[str, str]:
    """Checks of the file that do not hold, with what they say."""
    suite = core() if entry.suite == "core" else None
    return {check.name: check.detail for check in static_checks(entry, suite) if not check.ok}


def test_the_reference_entry_holds_without_running_anything(reference: EntryFile):
    assert failed(reference) == {}


def test_a_changed_source_is_refused_when_the_file_is_read(reference: EntryFile):
    data = json.loads(entry_text(reference))
    data["tasks"][0]["best"]["candidate"]["source"] += " "
    with pytest.raises(EntryError, match=r"tasks\.0\.best: .*candidate_hash"):
        parse_entry(data, "x.json")


def _other_suite(data: dict[str, Any]) -> None:
    data["suite_digest"] = data["key"]["suite_digest"] = "0123456789abcdef"


def _other_task(data: dict[str, Any]) -> None:
    row = row_of(data, "softmax")
    row["task_digest"] = row["best"]["evaluation"]["task"] = "0123456789abcdef"


def _no_hidden_size(best: dict[str, Any]) -> None:
    correctness = best["evaluation"]["correctness"]
    correctness["sizes"] = [check for check in correctness["sizes"] if not check["size"].startswith("hidden")]


@pytest.mark.parametrize(
    ("forgery", "check", "message"),
    [
        (at_time(lambda performance: performance.update(time_us=0.5, predicted=None)), "times", "softmax: 0.5 us"),
        (_other_suite, "suite", "0123456789abcdef in the entry"),
        (_other_task, "tasks", "softmax"),
        (at_best(_no_hidden_size), "sizes", "softmax was not checked at hidden"),
    ],
)
def test_what_contradicts_the_suite_or_the_roofline_fails_the_check_of_that_name(
    reference: EntryFile, forged: Forge, forgery: Callable, check: str, message: str
):
    problem = failed(forged(reference, forgery))
    assert set(problem) == {check}
    assert message in problem[check]


def test_a_suite_that_is_not_here_is_said(reference: EntryFile, forged: Forge):
    def rename(data: dict[str, Any]) -> None:
        data["suite"] = data["key"]["suite"] = "nowhere"

    entry = forged(reference, rename)
    assert suite_of(entry) is None
    assert suite_of(reference) == core()
    assert "--suite" in failed(entry)["suite"]
    record = verify(entry, None, sample=None, seed=0, open_pool=never)
    assert (record.agrees, record.rerun, record.fingerprint) == (False, 0, None)


def _speedup(performance: dict[str, Any]) -> None:
    performance["speedup"] *= 2


def _median(performance: dict[str, Any]) -> None:
    performance["time_us"] /= 2
    performance["interval_us"] = [end / 2 for end in performance["interval_us"]]


def _ratio(performance: dict[str, Any]) -> None:
    _speedup(performance)
    performance["speedup_lower"] *= 2
    ratio = next(
        candidate
        for candidate in performance["timing"]["ratios"]
        if candidate["baseline"] == performance["timing"]["fastest"]
    )
    ratio["speedup"] *= 2
    ratio["interval"] = [end * 2 for end in ratio["interval"]]


def _side(performance: dict[str, Any]) -> None:
    _median(performance)
    side = performance["timing"]["candidate"]
    side["median_us"] /= 2
    side["interval_us"] = [end / 2 for end in side["interval_us"]]


def _slow_baseline(performance: dict[str, Any]) -> None:
    """Another baseline, three times as fast, is kept and not compared with."""
    timing = performance["timing"]
    slow = next(side for side in timing["baselines"] if side["name"] == timing["fastest"])
    quick = {name: [value / 3 for value in slow[name]] for name in ("samples_us", "interval_us")}
    timing["baselines"].append(slow | quick | {"name": "quick", "median_us": slow["median_us"] / 3})


def _scaled(performance: dict[str, Any], scale: float, sides: list[dict[str, Any]]) -> None:
    """Times of some sides, with all that is made of them."""
    for side in sides:
        side["samples_us"] = [sample * scale for sample in side["samples_us"]]
        side["interval_us"] = [end * scale for end in side["interval_us"]]
        side["median_us"] *= scale
    candidate = performance["timing"]["candidate"]
    performance |= {"time_us": candidate["median_us"], "interval_us": candidate["interval_us"]}


def _all_times(performance: dict[str, Any], scale: float = 1e-4) -> None:
    """The speedup stays what it was."""
    timing = performance["timing"]
    _scaled(performance, scale, [timing["candidate"], *timing["baselines"]])


@pytest.mark.parametrize("forgery", [_speedup, _median, _ratio, _side, _slow_baseline])
def test_a_measured_time_has_to_fit_its_samples(made: Callable[..., EntryFile], forged: Forge, forgery: Callable):
    honest = made("measured-c")
    assert "times" not in failed(honest)
    assert "softmax: " in failed(forged(honest, at_time(forgery)))["times"]


@pytest.mark.parametrize(("nbytes", "holds"), [(4e7, True), (1e9, False)])
def test_no_gpu_moves_bytes_faster_than_it_can(
    made: Callable[..., EntryFile], forged: Forge, nbytes: float, holds: bool
):
    """Bytes that fit in the L2 need not be moved."""

    def change(best: dict[str, Any]) -> None:
        best["compulsory_bytes"] = best["profile"]["roofline"]["compulsory_bytes"] = nbytes
        _all_times(best["evaluation"]["performance"])

    problem = failed(forged(made("measured-c"), at_best(change))).get("times", "")
    assert ("cannot move the bytes" in problem) != holds


def repeated(evaluation: Evaluation, scale: float) -> Evaluation:
    """The same evaluation with a speedup that was measured ``scale`` times as high."""
    data = json.loads(evaluation.model_dump_json())
    performance = data["performance"]
    for name in ("speedup", "speedup_lower", "speedup_eager"):
        performance[name] *= scale
    for ratio in performance["timing"]["ratios"]:
        ratio["speedup"] *= scale
        ratio["interval"] = [end * scale for end in ratio["interval"]]
    return Evaluation.model_validate(data)


@pytest.mark.parametrize(("scale", "agrees"), [(1.0, True), (1.001, True), (0.5, False), (2.0, False)])
def test_two_measured_speedups_agree_where_their_intervals_overlap(made, scale: float, agrees: bool):
    best = best_of(made("measured-c"))
    problems = list(_problems(best, EvaluationResult(repeated(best.evaluation, scale), best.profile)))
    assert (problems == []) == agrees
    assert agrees or "the entry says" in problems[0]


def _wide(performance: dict[str, Any]) -> None:
    """Slow baselines, and an interval that reaches down to the truth."""
    timing = performance["timing"]
    _scaled(performance, 3.0, timing["baselines"])
    for ratio in timing["ratios"]:
        ratio["speedup"] *= 3
        ratio["interval"] = [ratio["interval"][0] * 0.9, ratio["interval"][1] * 3]
    performance["speedup"] *= 3
    performance["speedup_eager"] *= 3
    performance["speedup_lower"] *= 0.9


def _no_speedup(performance: dict[str, Any]) -> None:
    _all_times(performance, 0.5)
    performance |= dict.fromkeys(("speedup", "speedup_lower", "speedup_eager"))
    performance["timing"] |= {"fastest": None, "ratios": [], "baselines": []}


@pytest.mark.parametrize(
    ("forgery", "message"),
    [
        (_wide, "a speedup of"),
        (lambda performance: _all_times(performance, 0.5), "us here, the entry says"),
        (_no_speedup, "us here, the entry says"),
    ],
)
def test_no_claim_agrees_because_it_is_wide_or_has_no_speedup(made, forged: Forge, forgery: Callable, message: str):
    """The file agrees with itself; a board would take these numbers."""
    honest = made("measured-c")
    entry = forged(honest, at_time(forgery))
    assert "times" not in failed(entry)
    true, best = best_of(honest), best_of(entry)
    (problem,) = _problems(best, EvaluationResult(true.evaluation, true.profile))
    assert message in problem


def _fewer_bytes(best: dict[str, Any]) -> None:
    next(metric for metric in best["profile"]["metrics"] if metric["name"] == "dram__bytes.sum")["value"] -= 32


def _half_the_time(best: dict[str, Any]) -> None:
    best["profile"]["roofline"]["time_us"] /= 2
    best["evaluation"]["performance"]["time_us"] /= 2
    best["evaluation"]["performance"]["predicted"] = None


def _one_kernel(best: dict[str, Any]) -> None:
    best["profile"]["kernels"][0]["launches"] += 1


@pytest.mark.parametrize(
    ("forgery", "message"),
    [(_fewer_bytes, "dram__bytes.sum"), (_half_the_time, "modelled time"), (_one_kernel, "kernel's counters")],
)
def test_modelled_numbers_agree_to_the_last_bit(reference: EntryFile, forged: Forge, forgery: Callable, message: str):
    """Nothing in the file contradicts the forgery; what was found here does."""
    entry = forged(reference, at_best(forgery))
    assert failed(entry) == {}
    honest, best = best_of(reference), best_of(entry)
    result = EvaluationResult(honest.evaluation, honest.profile)
    assert list(_problems(honest, result)) == []
    assert any(message in problem for problem in _problems(best, result))


def test_a_full_size_that_is_compared_in_neither_is_said_to_be(reference: EntryFile):
    (row, *_) = reference.tasks
    assert row.best is not None
    correctness = row.best.evaluation.correctness
    assert correctness is not None
    skipped = SizeCheck(size="full", status="skipped", message="values not compared: too large")
    sizes = tuple(skipped if check.size == "full" else check for check in correctness.sizes)
    marked = row.best.evaluation.model_copy(update={"correctness": Correctness(sizes=sizes)})
    both = row.model_copy(update={"best": row.best.model_copy(update={"evaluation": marked})})
    here = EvaluationResult(marked, row.best.profile)
    assert _task_check(both, _LocalResult(here, ()), 1.0).reason.endswith("the full size is compared in neither")
    (claimed,) = _problems(row.best, here)
    assert "sizes came to" in claimed


def test_counters_that_only_the_runs_own_samples_show_do_not_agree(reference: EntryFile, forged: Forge) -> None:
    """A kernel made for the blocks that one seed looks at has other counters with every other seed."""

    def change(best: dict[str, Any]) -> None:
        next(metric for metric in best["profile"]["metrics"] if metric["name"] == "dram__bytes.sum")["value"] *= 0.8

    entry = forged(reference, at_best(change))
    honest, best = best_of(reference), best_of(entry)
    fresh = EvaluationResult(honest.evaluation, honest.profile)
    assert list(_far(honest, fresh)) == []
    (problem,) = _far(best, fresh)
    assert problem.startswith("dram__bytes.sum is")


def test_numbers_of_another_device_or_evaluator_are_not_compared(reference: EntryFile, made: Callable[..., EntryFile]):
    here, claimed = reference.fingerprints[0], best_of(reference).evaluation

    def why(evaluation: Evaluation = claimed, **changed: str) -> str | None:
        fingerprint = evaluation.fingerprint.model_copy(update=changed)
        return incomparable(evaluation.model_copy(update={"fingerprint": fingerprint}), here)

    assert why() is None
    assert why(evaluator=f"{here.evaluator}+tests.0123") is None
    assert "evaluator 1" in why(evaluator="1")
    assert "counters would differ" in why(toolchain="nvrtc 1.0")
    assert "emulated:a100" in why(device="emulated:a100")
    assert "H200" in why(best_of(made("measured-c")).evaluation, evaluator=here.evaluator)


def test_times_of_another_model_are_not_compared(reference: EntryFile, forged: Forge):
    """Every time of an older version would differ, with no fault of its submitter."""

    def older(data: dict[str, Any]) -> None:
        for row in data["tasks"]:
            row["best"]["evaluation"]["performance"]["protocol"] = "emulated/1"
        data["key"]["protocol"] = "emulated/1"

    here = reference.fingerprints[0]
    reason = incomparable(best_of(forged(reference, older)).evaluation, here)
    assert reason == f"its time was modelled by protocol emulated/1, here is {MODEL}"
    assert incomparable(best_of(reference).evaluation, here) is None


def test_a_sample_is_the_same_for_the_same_seed(reference: EntryFile):
    names = [row.task for row in drawn(reference.tasks, 5, 1)]
    assert len(names) == 5
    assert names == [row.task for row in drawn(reference.tasks, 5, 1)]
    assert names != [row.task for row in drawn(reference.tasks, 5, 2)]
    assert drawn(reference.tasks, None, 1) == drawn(reference.tasks, 99, 1) == reference.tasks
    assert drawn(reference.tasks, 0, 1) == ()


def test_an_entry_decides_neither_on_a_path_nor_on_how_long_its_timing_takes(made, forged: Forge, tmp_path: Path):
    def greedy(data: dict[str, Any]) -> None:
        data["run"]["measure"]["seconds"] = 1e9

    entry = forged(made("measured-c"), greedy)
    assert measure_of(entry).seconds < 100
    folder = tmp_path / "core"
    folder.mkdir()
    (folder / "suite.toml").write_text("this is no manifest")
    assert suite_of(entry) == core()


@pytest.mark.slow
def test_a_sample_is_evaluated_again_and_a_wrong_kernel_that_claims_ok_is_found(
    workshop: EvaluatorPool, reference: EntryFile, forged: Forge
):
    """Every hash of the forgery is right; only running it tells."""

    def wrong(data: dict[str, Any]) -> None:
        candidate = row_of(data, "transpose")["best"]["candidate"]
        assert candidate["source"].count("= pack.v[k];") > 0
        candidate["source"] = candidate["source"].replace("= pack.v[k];", "= 2.0f * pack.v[k];")

    suite = core()
    text = {}
    for name, entry in (("honest", reference), ("wrong", forged(reference, wrong))):
        rows = [row for row in entry.tasks if row.task == "transpose"]
        assert failed(entry) == {}
        (text[name],) = rerun(entry, rows, suite, workshop)
    assert (text["honest"].status, text["honest"].verdict) == ("agrees", Verdict.OK)
    assert (text["wrong"].status, text["wrong"].verdict) == ("differs", Verdict.WRONG)
