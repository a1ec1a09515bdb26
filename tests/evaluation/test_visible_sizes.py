"""A failure at a hidden size, shown at a visible one: with other hidden sizes the same is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelforge.evaluation import Evaluator, EvaluatorPool
from kernelforge.evaluation.stages.compile_stage import BuildState
from kernelforge.evaluation.visible_sizes import MOST_ELEMENTS, reproduce, visible_sizes, with_visible_sizes
from kernelforge.records import VISIBLE_SIZE, Candidate, Size, Verdict
from kernelforge.tasks import parse_task_file
from tests.support.axpy import KERNEL, PLAN, REFERENCE, axpy_task
from tests.support.shipped_prompts import shipped

VISIBLE = (Size(name="full"), Size(name="small", constants={"ROWS": 8, "COLS": 32}))
HIDDEN = (
    (Size(name="hidden_odd", constants={"ROWS": 7, "COLS": 45}), Size(name="hidden_tiny", constants={"ROWS": 2})),
    (Size(name="hidden_odd", constants={"ROWS": 13, "COLS": 51}), Size(name="hidden_tiny", constants={"ROWS": 3})),
)
WHOLE_WARPS = KERNEL.replace("if (i < n)", "if (i < n / 32 * 32)")
SEED = 11


@pytest.fixture(scope="module", params=HIDDEN, ids=["these hidden sizes", "other hidden sizes"])
def evaluator(request: pytest.FixtureRequest, workshop: EvaluatorPool) -> Iterator[Evaluator]:
    made = workshop.evaluator(axpy_task(REFERENCE, (*VISIBLE, *request.param)))
    yield made
    made.oracle.close()


@pytest.mark.parametrize("suite", ["core", "level1", "level2", "llm", "low-precision"])
def test_visible_sizes_follow_from_what_authors_see(suite: str) -> None:
    for task in shipped(suite):
        public = tuple(size for size in task.sizes if not size.is_hidden)
        sizes = list(visible_sizes(task.model_copy(update={"sizes": public})))
        assert sizes == list(visible_sizes(task))
        assert {size.name for size in sizes} <= {VISIBLE_SIZE}
        own, small = parse_task_file(task.source, task.name).constants, task.size("small").constants
        for size in sizes:
            assert size.constants.keys() == small.keys()
            assert all(value <= own[name] for name, value in size.constants.items() if value != small[name])
        assert len(sizes) >= 4, task.name


def test_no_visible_size_is_larger_than_a_check_may_be() -> None:
    task = axpy_task(REFERENCE, (*VISIBLE, *HIDDEN[0]))
    sizes = list(visible_sizes(task))
    assert max(int(size.constants["ROWS"]) * int(size.constants["COLS"]) for size in sizes) <= MOST_ELEMENTS
    assert len({str(size.constants) for size in sizes}) == len(sizes)


@pytest.mark.slow
def test_a_kernel_that_leaves_out_the_tail_is_shown_a_small_size_where_it_does(evaluator: Evaluator) -> None:
    candidate = Candidate(source=WHOLE_WARPS, plan=PLAN)
    judged = evaluator.evaluate(candidate, seed=SEED, profile=False).evaluation
    assert (judged.verdict, judged.stage) == (Verdict.WRONG, "hidden")
    reproduction = reproduce(evaluator, candidate, Verdict.WRONG, seed=SEED)
    assert reproduction is not None
    assert (reproduction.verdict, reproduction.constants) == (Verdict.WRONG, {"ROWS": 8, "COLS": 3})
    assert reproduction.reason.startswith("at the visible size, task inputs: ")
    assert reproduce(evaluator, candidate, Verdict.CRASH, seed=SEED) is None


@pytest.mark.slow
def test_a_failure_where_one_extent_is_odd_leaves_the_others_as_they_are(evaluator: Evaluator) -> None:
    plan = PLAN.replace("i32(x.numel())", "i32(x.numel() if x.shape[1] % 4 == 0 else x.numel() - 1)")
    assert plan != PLAN
    reproduction = reproduce(evaluator, Candidate(source=KERNEL, plan=plan), None, seed=SEED)
    assert reproduction is not None
    assert (reproduction.verdict, reproduction.constants) == (Verdict.WRONG, {"ROWS": 8, "COLS": 3})


def test_what_does_not_compile_at_other_extents_is_shown_the_compilers_words(evaluator: Evaluator) -> None:
    plan = PLAN.replace("axpy[", 'kernel(f"axpy<{x.shape[1]}>")[')
    source = "template <int COLS> " + KERNEL.replace('extern "C" ', "").replace(
        "{", '{ static_assert(COLS % 32 == 0, "no tail");', 1
    )
    reproduction = reproduce(evaluator, Candidate(source=source, plan=plan), Verdict.BUILD, seed=SEED)
    assert reproduction is not None
    assert reproduction.verdict is Verdict.BUILD
    assert "no tail" in reproduction.reason


@pytest.mark.slow
@pytest.mark.parametrize("change", ["", "    assert x.shape[1] % 32 == 0\n"])
def test_what_is_right_or_refused_by_the_plan_there_is_no_failure(evaluator: Evaluator, change: str) -> None:
    plan = PLAN.replace("    out", f"{change}    out", 1)
    assert reproduce(evaluator, Candidate(source=KERNEL, plan=plan), None, seed=SEED) is None


def test_without_hidden_sizes_nothing_is_prepared_for_them(evaluator: Evaluator) -> None:
    state = BuildState()
    with_visible_sizes(evaluator).prepare(Candidate(source=KERNEL, plan=PLAN), state)
    assert state.plans.keys() == state.artifacts.keys() == {"full", "small"}
    assert any(size.is_hidden for size in evaluator.task.sizes)
