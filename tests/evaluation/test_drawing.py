"""The hidden size that each evaluation draws: within what the listed ones are, and none of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kernelforge.errors import TaskError
from kernelforge.evaluation import Evaluator, EvaluatorPool
from kernelforge.evaluation.oracle.task_context import keeps_shared, shape_invariants
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at, shape_facts
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.stages.compile_stage import HIDDEN_FAILURES, HIDDEN_REASONS, redact_hidden_failures
from kernelforge.evaluation.stages.correctness import TILES, drawn_sizes
from kernelforge.records import (
    DRAWN_SIZE,
    Candidate,
    DType,
    Evaluation,
    Size,
    SizeFacts,
    Task,
    TaskFacts,
    TensorSpec,
    Verdict,
)
from kernelforge.run.task_loop import TaskLoop
from kernelforge.tasks import parse_task_file
from tests.support.axpy import KERNEL, PLAN, REFERENCE, SIZES, axpy_task
from tests.support.shipped_prompts import shipped


def task_of(full: dict[str, int], *listed: dict[str, float]) -> Task:
    """A task with a small size and hidden ones, from their constants."""
    head = "".join(f"{name} = {value}\n" for name, value in full.items())
    names = ("small", "hidden_odd", "hidden_quad", "hidden_tiny")
    sizes = tuple(Size(name=name, constants=constants) for name, constants in zip(names, listed, strict=False))
    source = head + REFERENCE.replace("ROWS = 64\nCOLS = 96\n", "")
    return axpy_task(source, (Size(name="full"), *sizes))


def drawn(task: Task, seeds: int = 200) -> list[dict[str, int]]:
    return [dict(size.constants) for seed in range(seeds) for size in drawn_sizes(task, seed)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "suite", ["core", "backward", "hpc", "level1", "level2", "level3", "llm", "low-precision", "papers"]
)
def test_every_shipped_task_has_many(suite: str) -> None:
    for task in shipped(suite):
        rows = drawn(task, 10)
        assert len({str(row) for row in rows}) >= 10, task.name
        listed = [size.constants for size in task.sizes if size.name != "full"]
        own = parse_task_file(task.source, task.name).constants
        for row in rows:
            assert row not in listed
            for name, value in row.items():
                values = [size.get(name) for size in listed]
                if all(isinstance(value, int) for value in values):
                    assert min(values) <= value <= max(*values, own[name]), (task.name, name)


def test_no_drawn_size_has_more_elements_than_the_largest_listed_one() -> None:
    task = task_of({"M": 512, "K": 512}, {"M": 64, "K": 64}, {"M": 131, "K": 7}, {"M": 5, "K": 3000})
    rows = drawn(task)
    assert all(row["M"] * row["K"] <= 5 * 3000 for row in rows)
    assert {row["M"] > 64 for row in rows} == {row["K"] > 1000 for row in rows} == {True, False}


@pytest.mark.slow
def test_drawn_sizes_cross_the_boundaries_of_tiles_on_every_axis() -> None:
    listed = {"M": 31, "N": 90, "K": 7}, {"M": 80, "N": 9, "K": 12}, {"M": 8, "N": 16, "K": 9}
    task = task_of({"M": 4096, "N": 4096, "K": 64}, *listed)
    rows = drawn(task, 400)
    for axis, most in {"M": 511, "N": 511, "K": 64}.items():
        for tile in (tile for tile in TILES if tile < most):
            crossing = sum(tile < row[axis] < 2 * tile for row in rows)
            assert crossing > len(rows) / 50, (axis, tile)
    assert max(row["K"] for row in rows) <= 64


def test_what_divides_a_constant_at_every_size_divides_it_here() -> None:
    rows = {"A": 16, "B": 3, "C": 8}, {"A": 24, "B": 5, "C": 32}, {"A": 56, "B": 7, "C": 2}
    drawn_rows = drawn(task_of({"A": 64, "B": 9, "C": 128}, *rows))
    assert {math.gcd(row["A"], 8) for row in drawn_rows} == {8}
    assert {row["B"] % 2 for row in drawn_rows} == {1}
    assert {row["C"] for row in drawn_rows} == {2, 4, 8, 16, 32, 64}


@pytest.mark.slow
def test_what_holds_between_constants_holds_here() -> None:
    full = {"N": 64, "SAME": 64, "TWICE": 128, "MORE": 67, "PART": 16, "LESS": 63}
    rows = (
        {"N": 12, "SAME": 12, "TWICE": 24, "MORE": 15, "PART": 3, "LESS": 2},
        {"N": 35, "SAME": 35, "TWICE": 70, "MORE": 38, "PART": 7, "LESS": 30},
        {"N": 50, "SAME": 50, "TWICE": 100, "MORE": 53, "PART": 10, "LESS": 1},
    )
    drawn_rows = drawn(task_of(full, *rows))
    assert len({row["N"] for row in drawn_rows}) > 5
    for row in drawn_rows:
        assert row["SAME"] == row["N"]
        assert row["TWICE"] == 2 * row["N"]
        assert row["MORE"] == row["N"] + 3
        assert row["N"] % row["PART"] == 0
        assert row["LESS"] <= row["N"]


def test_a_secret_draws_the_same_again_and_another_another() -> None:
    task = axpy_task()
    assert list(drawn_sizes(task, 7)) == list(drawn_sizes(task, 7))
    assert len({str(next(drawn_sizes(task, seed)).constants) for seed in range(30)}) > 20
    assert {size.name for size in drawn_sizes(task, 7)} == {DRAWN_SIZE}


@pytest.mark.parametrize(
    "listed",
    [
        ({"ROWS": 8},),
        ({"ROWS": 8}, {"ROWS": 8}),
        ({"ROWS": 8, "P": 0.5}, {"ROWS": 8, "P": 0.25}, {"ROWS": 8, "P": 0.75}),
    ],
)
def test_where_nothing_varies_nothing_is_drawn(listed: tuple[dict[str, float], ...]) -> None:
    assert drawn(task_of({"ROWS": 64, "COLS": 96}, *listed), 5) == []


def test_constants_that_are_no_whole_numbers_stay_as_a_listed_size_has_them() -> None:
    listed = {"ROWS": 8, "P": 0.5}, {"ROWS": 17, "P": 0.25}, {"ROWS": 3, "P": 0.25}
    rows = drawn(task_of({"ROWS": 64, "COLS": 96}, *listed), 20)
    assert rows
    assert {row["P"] for row in rows} == {0.25}


def facts(size: str, *extents: int) -> SizeFacts:
    spec = TensorSpec.contiguous(extents, DType.FLOAT32)
    return SizeFacts(
        size=size, inputs=(spec,), outputs=(spec,), weights=(), attrs={}, compulsory_bytes=0, flops=0, eager_launches=0
    )


def test_what_agents_are_told_of_every_size_is_true_of_a_drawn_one() -> None:
    task = axpy_task()
    listed = TaskFacts(task_digest=task.digest, sizes=(facts("full", 64, 8), facts("small", 12, 8)))
    assert shape_invariants(task, listed)["x.shape[0]"] == "varies; a multiple of 4 at every size"
    assert keeps_shared(task, listed, facts(DRAWN_SIZE, 20, 8))
    assert not keeps_shared(task, listed, facts(DRAWN_SIZE, 21, 8))
    assert not keeps_shared(task, listed, facts(DRAWN_SIZE, 20, 9))


def test_an_oracle_takes_one_further_size_after_another() -> None:
    task = axpy_task()
    reckoner = ReferenceRunner(task)
    for rows in (3, 6):
        reckoner.take_size(Size(name=DRAWN_SIZE, constants={"ROWS": rows}))
        shapes = shape_facts(reckoner.described(DRAWN_SIZE), DRAWN_SIZE, ())
        assert [output.shape for output in shapes.outputs] == [(rows, 96)]
        (output,) = reckoner.draw(DRAWN_SIZE, "task", 1).expected or ()
        assert output.reference.shape == (rows, 96)
        assert (
            shapes.flops
            == facts_at(reckoner.described(DRAWN_SIZE), DRAWN_SIZE, (), (), fake=True).flops
            == 2 * rows * 96
        )
        assert shapes.compulsory_bytes == 3 * rows * 96 * 4
    reckoner.take_size(Size(name=DRAWN_SIZE, constants={"ROWS": -1}))
    with pytest.raises(TaskError):
        shape_facts(reckoner.described(DRAWN_SIZE), DRAWN_SIZE, ())


@pytest.fixture(scope="module")
def evaluator(workshop: EvaluatorPool) -> Iterator[Evaluator]:
    made = workshop.evaluator(axpy_task())
    yield made
    made.oracle.close()


def statuses(evaluation: Evaluation) -> dict[str, str]:
    assert evaluation.correctness is not None
    return {check.size: check.status for check in evaluation.correctness.sizes}


ONLY_LISTED = " || ".join(f"n == {size.constants.get('ROWS', 64) * size.constants.get('COLS', 96)}" for size in SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_kernel_that_knows_every_listed_size_fails_at_the_drawn_one(evaluator: Evaluator, seed: int) -> None:
    source = KERNEL.replace("if (i < n)", f"if (i < n && ({ONLY_LISTED}))")
    evaluation = evaluator.evaluate(Candidate(source=source, plan=PLAN), seed=seed, profile=False).evaluation
    assert (evaluation.verdict, evaluation.stage) == (Verdict.WRONG, "hidden")
    assert evaluation.reason == HIDDEN_REASONS[Verdict.WRONG]
    assert statuses(evaluation)[DRAWN_SIZE] == "failed"
    assert evaluation.failed_at_hidden
    honest = evaluator.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=seed, profile=False).evaluation
    assert honest.verdict is Verdict.OK, honest.reason
    assert statuses(honest)[DRAWN_SIZE] == "passed"
    assert honest.task == evaluator.task.digest == axpy_task().digest


@pytest.mark.slow
def test_a_plan_may_refuse_the_drawn_size_as_any_hidden_one(evaluator: Evaluator) -> None:
    plan = PLAN.replace("    out", "    assert x.shape[0] in (64, 8, 7, 1)\n    out", 1)
    for seed in range(20):
        rows = next(drawn_sizes(evaluator.task, seed)).constants["ROWS"]
        if rows in (64, 8, 7, 1):
            continue
        evaluation = evaluator.evaluate(Candidate(source=KERNEL, plan=plan), seed=seed, profile=False).evaluation
        assert evaluation.verdict is Verdict.OK, evaluation.reason
        assert statuses(evaluation)[DRAWN_SIZE] == "guarded"
        assert evaluation.correctness is not None
        assert evaluation.correctness.generality == 1.0
        break


@pytest.mark.slow
def test_a_reference_that_runs_at_no_drawn_size_leaves_it_out(workshop: EvaluatorPool) -> None:
    source = REFERENCE.replace("return x * 2 + y", "return x * 2 + y if ROWS in (64, 8, 7, 1) else x.view(-5)")
    evaluator = workshop.evaluator(axpy_task(source, SIZES))
    try:
        seed = next(
            seed
            for seed in range(100)
            if all(size.constants["ROWS"] not in (64, 8, 7, 1) for size in drawn_sizes(evaluator.task, seed))
        )
        evaluation = evaluator.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=seed, profile=False).evaluation
    finally:
        evaluator.oracle.close()
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert statuses(evaluation)[DRAWN_SIZE] == "skipped"


@pytest.mark.slow
def test_a_drawn_size_that_takes_many_times_the_work_of_the_listed_ones_is_left_out(workshop: EvaluatorPool) -> None:
    source = REFERENCE.replace("return x * 2 + y", "return x * 2 + y + 0 * (x @ ((x.T @ x) @ (x.T @ x)))")
    evaluator = workshop.evaluator(axpy_task(source))
    firsts = ((seed, next(drawn_sizes(evaluator.task, seed)).constants) for seed in range(500))
    seed, large = next(pair for pair in firsts if pair[1]["COLS"] > 80)
    trap = f'    if (n == {large["ROWS"] * large["COLS"]}) {{ asm volatile("trap;"); }}\n    if (i < n)'
    try:
        candidate = Candidate(source=KERNEL.replace("    if (i < n)", trap), plan=PLAN)
        evaluation = evaluator.evaluate(candidate, seed=seed, profile=False).evaluation
    finally:
        evaluator.oracle.close()
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert statuses(evaluation)[DRAWN_SIZE] == "passed"


@pytest.mark.slow
def test_after_so_many_failures_at_hidden_sizes_not_even_how_is_told(evaluator: Evaluator) -> None:
    def failing(body: str) -> Evaluation:
        source = KERNEL.replace("    if (i < n)", f"    if (n == 5) {body}\n    if (i < n)")
        return evaluator.evaluate(Candidate(source=source, plan=PLAN), seed=1, profile=False).evaluation

    crash, wrong = failing('{ asm volatile("trap;"); }'), failing("return;")
    good = evaluator.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=1, profile=False).evaluation
    public_failure = evaluator.evaluate(Candidate(source=KERNEL.replace("2.0f", "3.0f"), plan=PLAN), seed=1).evaluation
    assert (crash.verdict, wrong.verdict, public_failure.stage) == (Verdict.CRASH, Verdict.WRONG, "small")
    few = [crash] * (HIDDEN_FAILURES - 1) + [good, public_failure]
    assert redact_hidden_failures(crash, few) == crash
    many = [*few, wrong]
    redacted = [redact_hidden_failures(evaluation, many) for evaluation in (crash, wrong)]
    assert [(evaluation.verdict, evaluation.stage) for evaluation in redacted] == [(Verdict.WRONG, "hidden")] * 2
    assert redacted[0].reason == redacted[1].reason
    assert "not even how" in redacted[0].reason
    assert all(evaluation.failed_at_hidden for evaluation in redacted)
    assert redact_hidden_failures(good, many) == good
    assert redact_hidden_failures(public_failure, many) == public_failure
    assert not public_failure.failed_at_hidden


@pytest.mark.slow
def test_a_run_counts_failures_at_hidden_sizes_task_by_task(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = KERNEL.replace("    if (i < n)", '    if (n == 5) { asm volatile("trap;"); }\n    if (i < n)')
    candidate = Candidate(source=source, plan=PLAN)
    crash = evaluator.evaluate(candidate, seed=1, profile=False)
    loop = TaskLoop.__new__(TaskLoop)
    monkeypatch.setattr(loop, "_evaluate_with_retry", lambda *_: crash)
    before = SimpleNamespace(evaluation=crash.evaluation)
    for count, verdict in ((0, Verdict.CRASH), (HIDDEN_FAILURES - 1, Verdict.CRASH), (HIDDEN_FAILURES, Verdict.WRONG)):
        loop.attempts = [before] * count
        assert loop._evaluate_candidate(candidate).evaluation.verdict is verdict


@pytest.mark.parametrize(
    ("source", "plan"),
    [
        (KERNEL, PLAN.replace("    out", "    t = empty((x.shape[0] - 2, 4))\n    out", 1)),
        (KERNEL, PLAN.replace("    axpy[", "    n = 100 // (x.shape[0] - 1)\n    axpy[", 1)),
    ],
)
def test_a_plan_that_fails_at_a_hidden_size_counts_as_such_a_failure(
    evaluator: Evaluator, source: str, plan: str
) -> None:
    evaluation = evaluator.evaluate(Candidate(source=source, plan=plan), seed=1, profile=False).evaluation
    assert (evaluation.verdict, evaluation.stage) == (Verdict.POLICY, "plan"), evaluation.reason
    assert evaluation.reason == HIDDEN_REASONS[Verdict.POLICY]
    assert evaluation.failed_at_hidden
