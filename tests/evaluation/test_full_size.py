"""The full size on an emulated device: compared whole, in part, or visibly left out where it is too large."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from kernelforge.devices.base import PartResult, RunFailed, RunFailure, RunRequest, RunResult
from kernelforge.devices.emulated.device import EmulatedSession
from kernelforge.errors import ChildDied, SandboxError, TaskError
from kernelforge.evaluation import EvaluationResult, Evaluator, EvaluatorPool
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.stages.candidate_runs import (
    FULL_SIZE_INSTRUCTIONS,
    PADDING,
    SMALL_SIZE_INSTRUCTIONS,
    EvaluationState,
)
from kernelforge.records import Candidate, SizeCheck, SizeFacts, Task, TaskFacts, Verdict
from kernelforge.sandbox import Child
from kernelforge.tasks import substitute
from tests.support.axpy import KERNEL, PLAN, REFERENCE, axpy_task


@pytest.fixture(scope="module")
def evaluators(workshop: EvaluatorPool) -> Iterator[list[Evaluator]]:
    made: list[Evaluator] = []
    yield made
    for evaluator in made:
        evaluator.oracle.close()


def at_full(task: Task, rows: int, columns: int) -> Task:
    """The task with another size ``full``."""
    return task.model_copy(update={"source": substitute(task.source, {"ROWS": rows, "COLS": columns})})


def evaluate(evaluators: list[Evaluator], workshop: EvaluatorPool, task: Task) -> tuple[EvaluationResult, SizeCheck]:
    evaluators.append(workshop.evaluator(task))
    result = evaluators[-1].evaluate(Candidate(source=KERNEL, plan=PLAN), seed=11)
    assert result.evaluation.correctness is not None
    return result, next(check for check in result.evaluation.correctness.sizes if check.size == "full")


DOUBLING_PLAN = """def forward(x, y):
    double = empty_like(x)
    library("add", x, x, out=double)
    out = empty_like(x)
    add[ceil_div(x.numel(), 128), 128](double, y, out, i32(x.numel()))
    return out
"""


@pytest.mark.slow
@pytest.mark.parametrize("dear", [False, True])
def test_a_plan_that_calls_torch_is_compared_whole_and_has_no_time(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch, dear: bool
) -> None:
    if dear:
        monkeypatch.setattr("kernelforge.evaluation.stages.full_size.DEAR_FLOPS", 10)
    task = axpy_task()
    policy = task.policy.model_copy(update={"library": ("add",)})
    evaluators.append(workshop.evaluator(task.model_copy(update={"policy": policy})))
    source = KERNEL.replace("axpy", "add").replace("2.0f * ", "")
    right = Candidate(source=source, plan=DOUBLING_PLAN)
    evaluation, profile = evaluators[-1].evaluate(right, seed=11)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.correctness is not None
    full = evaluation.correctness.sizes[-1]
    assert (full.size, full.status) == ("full", "passed")
    assert "torch operators (add) have no counters and no modelled time" in full.message
    assert (profile, evaluation.performance) == (None, None)
    wrong = Candidate(source=source, plan=DOUBLING_PLAN.replace("x, x,", "x, y,"))
    assert evaluators[-1].evaluate(wrong, seed=11).evaluation.verdict is Verdict.WRONG


SHIFTED_KERNEL = """
extern "C" __global__ void shift(const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int j = 0; j < 200; ++j) sum += b[i < n ? (i + j) % n : 0] * (j == 0);
    if (i < n) out[i] = sum;
}
extern "C" __global__ void add(const float* x, const float* b, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + b[i % columns];
}
"""
SHIFTED_PLAN = """def setup(w):
    ready = empty_like(w["shift"])
    shift[1, 128](w["shift"], ready, i32(ready.numel()))
    return ready

def forward(x):
    out = empty_like(x)
    add[ceil_div(x.numel(), 128), 128](x, prepared, out, i32(x.shape[1]), i32(x.numel()))
    return out
"""
SHIFTED = """
import torch


class Model(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.randn(columns))

    def forward(self, x):
        return x + self.shift


ROWS, COLS = 5, 100


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
"""


@pytest.mark.slow
def test_what_setup_executes_is_no_part_of_a_profile(evaluators: list[Evaluator], workshop: EvaluatorPool) -> None:
    task = axpy_task().model_copy(update={"source": SHIFTED})
    evaluators.append(workshop.evaluator(task))
    result = evaluators[-1].evaluate(Candidate(source=SHIFTED_KERNEL, plan=SHIFTED_PLAN), seed=11)
    assert result.evaluation.verdict is Verdict.OK, result.evaluation.reason
    assert result.evaluation.performance is not None
    assert result.profile is not None
    assert (result.profile.value("ptx__thread_inst_executed.sum") or 0) < 100 * 5 * 100


@pytest.mark.slow
def test_tensors_that_the_device_cannot_hold_are_no_fault_of_the_candidate(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluators.append(workshop.evaluator(axpy_task()))
    monkeypatch.setattr(evaluators[-1].device, "memory_bytes", 10**10)
    (evaluation, profile), full = evaluate(evaluators, workshop, at_full(axpy_task(), 1 << 16, 1 << 14))
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert full.status == "skipped"
    assert "its own tensors take 12.9 GB, of 10 GB" in full.message
    assert profile is None


BEYOND_32_BITS = at_full(axpy_task(), 1 << 16, (1 << 14) + 64)
"""Tensors of a little over 2^32 bytes."""


@pytest.mark.slow
def test_tensors_that_the_host_cannot_hold_are_compared_in_part_and_profiled(
    evaluators: list[Evaluator], workshop: EvaluatorPool
) -> None:
    (evaluation, profile), full = evaluate(evaluators, workshop, BEYOND_32_BITS)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert (full.status, full.families) == ("passed", ("task",))
    assert "compared in part" in full.message
    assert profile is not None
    nbytes = 4 * (1 << 16) * ((1 << 14) + 64)
    assert profile.value("dram__bytes.sum") == pytest.approx(3 * nbytes, rel=0.01)
    assert evaluation.performance is not None
    assert evaluation.performance.time_us > 3 * nbytes / 3.35e6  # bytes at 3.35 TB/s


OVERFLOWS = {
    "a load": ("2.0f * x[i]", "2.0f * *(const float*)((const char*)x + 4u * i)", "in the part that was compared"),
    "a store": ("out[i]", "*(float*)((char*)out + 4u * i)", "nothing in the plan writes"),
}


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("access", OVERFLOWS)
def test_an_offset_of_32_bits_that_overflows_at_the_full_size_alone_is_wrong(
    evaluators: list[Evaluator], workshop: EvaluatorPool, access: str
) -> None:
    before, after, words = OVERFLOWS[access]
    evaluators.append(workshop.evaluator(BEYOND_32_BITS))
    candidate = Candidate(source=KERNEL.replace(before, after), plan=PLAN)
    evaluation = evaluators[-1].evaluate(candidate, seed=11).evaluation
    assert (evaluation.verdict, evaluation.stage) == (Verdict.WRONG, "full")
    assert words in evaluation.reason


@pytest.mark.slow
@pytest.mark.parametrize("dear", [False, True])
def test_a_profile_over_its_budget_is_skipped_with_the_budget(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch, dear: bool
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.PROFILE_INSTRUCTIONS", 10**6)
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.DECIDING_INSTRUCTIONS", 10**6)
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.DEAR_FLOPS", 10 if dear else 10**9)
    slow = "if (n == 6144) for (volatile int k = 0; k < 10000; k++) {}"
    source = KERNEL.replace("    if (i < n)", f"    {slow}\n    if (i < n)")
    evaluators.append(workshop.evaluator(axpy_task()))
    evaluation, profile = evaluators[-1].evaluate(Candidate(source=source, plan=PLAN), seed=11)
    assert evaluation.correctness is not None
    full = evaluation.correctness.sizes[-1]
    assert (evaluation.verdict, full.status) == (Verdict.OK, "passed"), evaluation.reason
    assert "no profile: a few blocks take over 1e+06 thread instructions, the budget of a profile (" in full.message
    facts = evaluators[-1].facts.at("full")
    assert f"({256 * (facts.flops + facts.compulsory_bytes):.2g} would be TIMEOUT)" in full.message
    assert "compared in part" in full.message
    assert (profile, evaluation.performance) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False])
def test_a_whole_run_over_its_budget_is_no_timeout(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """Though its profile counted fewer: what ends is compared in part, or skipped."""
    monkeypatch.setattr("kernelforge.evaluation.stages.candidate_runs.FULL_SIZE_INSTRUCTIONS", 10**4)
    source = KERNEL
    if not apart:  # a block that waits for another cannot be run by itself
        wait = (
            "if (i == 0) atomicExch(flag, 1); if (threadIdx.x == 0) while (atomicAdd(flag, 0) == 0) {} __syncthreads();"
        )
        source = KERNEL.replace("float* out,", "float* out, int* flag,").replace(
            "    if (i < n)", f"    {wait}\n    if (i < n)"
        )
    plan = PLAN if apart else PLAN.replace("out, i32", "out, zeros((1,), int32), i32")
    evaluators.append(workshop.evaluator(axpy_task()))
    evaluation, profile = evaluators[-1].evaluate(Candidate(source=source, plan=plan), seed=11)
    assert evaluation.correctness is not None
    full = evaluation.correctness.sizes[-1]
    assert (evaluation.verdict, full.status) == (Verdict.OK, "passed" if apart else "skipped"), evaluation.reason
    assert "to run it whole takes over 4e+04 thread instructions, the budget" in full.message
    assert ("compared in part" in full.message) == apart
    assert (profile, evaluation.performance) == (None, None)


@pytest.mark.slow
def test_a_profile_goes_on_until_its_count_tells_that_a_kernel_does_not_end(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget of a profile alone, 10**6, would leave it open."""
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.PROFILE_INSTRUCTIONS", 10**6)
    source = KERNEL.replace("    if (i < n)", "    if (n == 6144) while (x[0] == x[0]) {}\n    if (i < n)")
    evaluators.append(workshop.evaluator(axpy_task()))
    evaluation = evaluators[-1].evaluate(Candidate(source=source, plan=PLAN), seed=11).evaluation
    assert (evaluation.verdict, evaluation.stage) == (Verdict.TIMEOUT, "full")
    assert "over 256 for each" in evaluation.reason


@pytest.mark.slow
def test_a_kernel_that_does_not_end_for_so_small_a_task_is_too_slow(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.PROFILE_INSTRUCTIONS", 10**8)
    source = KERNEL.replace("    if (i < n)", "    if (n == 6144) while (x[0] == x[0]) {}\n    if (i < n)")
    evaluators.append(workshop.evaluator(axpy_task()))
    evaluation = evaluators[-1].evaluate(Candidate(source=source, plan=PLAN), seed=11).evaluation
    assert (evaluation.verdict, evaluation.stage) == (Verdict.TIMEOUT, "full")


@pytest.mark.slow
def test_a_slow_machine_changes_no_verdict_of_an_emulated_device(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.candidate_runs.EVALUATION_SECONDS", 0.0)
    monkeypatch.setattr("kernelforge.evaluation.stages.candidate_runs.RUN_LIMIT_S", 0.0)
    (evaluation, profile), full = evaluate(evaluators, workshop, axpy_task())
    assert (evaluation.verdict, full.status) == (Verdict.OK, "passed")
    assert profile is not None


@pytest.mark.parametrize("method", ["run", "profile"])
def test_a_machine_that_is_too_slow_is_infrastructure(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fault = RunFailure("late", "600 s went by, in which 3e+09 thread instructions were counted")

    def failing(session: EmulatedSession, request: RunRequest, *_: object) -> RunResult:
        assert not request.deadline_binds
        assert request.max_thread_instructions is not None
        if method == "profile":
            raise RunFailed(fault)
        return RunResult((), (fault,))

    monkeypatch.setattr(EmulatedSession, method, failing)
    evaluators.append(workshop.evaluator(axpy_task()))
    evaluation = evaluators[-1].evaluate(Candidate(source=KERNEL, plan=PLAN), seed=11).evaluation
    assert (evaluation.verdict, evaluation.stage) == (Verdict.INFRA, "small" if method == "run" else "full")
    assert "600 s went by" in evaluation.reason
    assert "no score" in evaluation.reason


def test_the_work_of_a_small_size_may_be_that_of_a_slow_kernel_for_its_reference(
    evaluators: list[Evaluator], workshop: EvaluatorPool
) -> None:
    evaluators.append(workshop.evaluator(axpy_task()))
    evaluator = evaluators[-1]
    work = EvaluationState(seed=0)
    with evaluator.runs(work) as runs:
        small = evaluator.task.size("small")
        assert runs.most_work(small) == SMALL_SIZE_INSTRUCTIONS
        facts = evaluator.facts.at("small").model_copy(update={"flops": 10**8})
        runs.facts = TaskFacts(task_digest="0" * 16, sizes=(facts,))
        assert runs.most_work(small) == PADDING * (10**8 + facts.compulsory_bytes) > SMALL_SIZE_INSTRUCTIONS
        assert runs.most_work(evaluator.task.size("full")) == 4 * FULL_SIZE_INSTRUCTIONS


@pytest.mark.slow
def test_a_machine_without_memory_for_a_part_is_no_fault_of_the_candidate(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.REFERENCE_BYTES", 10)
    fault = RunFailure("memory", "the emulated device ran out of memory on this machine")
    monkeypatch.setattr(EmulatedSession, "run_part", lambda *_: PartResult((), faults=(fault,)))
    (evaluation, profile), full = evaluate(evaluators, workshop, axpy_task())
    assert (evaluation.verdict, full.status) == (Verdict.OK, "skipped")
    assert fault.message in full.message
    assert profile is not None


@pytest.mark.slow
def test_a_reference_too_large_for_its_process_is_compared_in_part(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.REFERENCE_BYTES", 1 << 20)
    (evaluation, profile), full = evaluate(evaluators, workshop, at_full(axpy_task(), 1024, 1024))
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert full.status == "passed"
    assert "compared in part" in full.message
    assert profile is not None
    assert profile.size == "full"
    assert profile.value("dram__bytes_write.sum") == 4 << 20


@pytest.mark.slow
@pytest.mark.parametrize("dear", ["task", "candidate"])
def test_a_dear_size_is_compared_in_part(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch, dear: str
) -> None:
    """For a dear task the whole reference never runs; a slow candidate is compared all the same."""
    draws: list[bool] = []
    draw = Oracle.draw

    def recorded(
        self: Oracle, size: str, family: str, seed: int, *, expected: bool = True, tiled: bool = False
    ) -> DrawHandle:
        if size == "full":
            draws.append(expected)
        return draw(self, size, family, seed, expected=expected, tiled=tiled)

    monkeypatch.setattr(Oracle, "draw", recorded)
    name, limit = ("DEAR_FLOPS", 10) if dear == "task" else ("FULL_SIZE_INSTRUCTIONS", 10)
    monkeypatch.setattr(f"kernelforge.evaluation.stages.full_size.{name}", limit)
    (evaluation, profile), full = evaluate(evaluators, workshop, axpy_task())
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert profile is not None
    assert draws == ([False, False] if dear == "task" else [True, False])
    assert (full.status, full.families) == ("passed", ("task", "normal"))
    assert "at places drawn from the secret seed" in full.message


LAZY = {
    "one block": ("if (n == 6144 && blockIdx.x != 3) return;", "nothing in the plan writes"),
    "not the last": ("if (n == 6144 && blockIdx.x == gridDim.x - 1) return;", "nothing in the plan writes 128 of"),
    "half the value": ("if (n == 6144) { if (i < n) out[i] = x[i] + 0.5f * y[i]; return; }", "in the part"),
}


@pytest.mark.slow
@pytest.mark.parametrize("lazy", LAZY)
def test_a_kernel_that_is_lazy_at_a_dear_size_is_wrong(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch, lazy: str
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.DEAR_FLOPS", 10)
    code, words = LAZY[lazy]
    evaluators.append(workshop.evaluator(axpy_task()))
    source = KERNEL.replace("    if (i < n)", f"    {code}\n    if (i < n)")
    evaluation = evaluators[-1].evaluate(Candidate(source=source, plan=PLAN), seed=11).evaluation
    assert evaluation.verdict is Verdict.WRONG
    assert words in evaluation.reason


@pytest.mark.slow
def test_what_cannot_be_run_in_part_is_left_out_where_it_is_dear_to_run_whole(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that wait for one another cannot be run alone."""
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.DEAR_FLOPS", 10)
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.FULL_SIZE_INSTRUCTIONS", 10)
    wait = "if (i == 0) atomicExch(flag, 1); if (threadIdx.x == 0) while (atomicAdd(flag, 0) == 0) {} __syncthreads();"
    source = KERNEL.replace("float* out,", "float* out, int* flag,").replace(
        "    if (i < n)", f"    {wait}\n    if (i < n)"
    )
    plan = PLAN.replace("out, i32", "out, zeros((1,), int32), i32")
    evaluators.append(workshop.evaluator(axpy_task()))
    evaluation = evaluators[-1].evaluate(Candidate(source=source, plan=plan), seed=11).evaluation
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.correctness is not None
    check = evaluation.correctness.sizes[-1]
    assert check.status == "skipped"
    assert "wait for one another" in check.message


MEAN_KERNEL = """__global__ void mean(const float* x, const float* y, float* out, int n) {
    __shared__ float part[256];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 256) sum += 2.0f * x[i] + y[i];
    part[threadIdx.x] = sum;
    for (int width = 128; width; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
    }
    if (threadIdx.x == 0) out[0] = part[0] / n;
}
"""
MEAN_PLAN = """def forward(x, y):
    out = empty((), float32)
    mean[1, 256](x, y, out, i32(x.numel()))
    return out
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "status"),
    [("none", "passed"), ("full_size.WRITTEN_BYTES", "skipped"), ("candidate_runs.FULL_SIZE_INSTRUCTIONS", "skipped")],
)
def test_a_loss_over_inputs_too_large_for_the_reference_is_compared(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch, limit: str, status: str
) -> None:
    """Every element goes into its one number: no block can be run by itself."""
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.REFERENCE_BYTES", 10)
    if limit != "none":
        monkeypatch.setattr(f"kernelforge.evaluation.stages.{limit}", 1)

    def refuses(*_: object) -> None:
        raise TaskError("the reference has no axis whose slices can be worked out by themselves")

    monkeypatch.setattr(Oracle, "choose", refuses)
    evaluators.append(workshop.evaluator(axpy_task(REFERENCE.replace("x * 2 + y", "(x * 2 + y).mean()"))))
    candidate = Candidate(source=MEAN_KERNEL, plan=MEAN_PLAN)
    evaluation, profile = evaluators[-1].evaluate(candidate, seed=11)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.correctness is not None
    full = evaluation.correctness.sizes[-1]
    assert (full.size, full.status) == ("full", status)
    if status == "passed":
        assert full.message == "compared with the reference on parts of the inputs, one after another"
        assert profile is not None
        lazy = Candidate(source=MEAN_KERNEL.replace("i < n;", "i < (n > 6000 ? n - 600 : n);"), plan=MEAN_PLAN)
        assert evaluators[-1].evaluate(lazy, seed=11).evaluation.verdict is Verdict.WRONG


@pytest.mark.slow
def test_a_reference_that_cannot_be_run_at_the_full_size_alone_is_told(
    evaluators: list[Evaluator], workshop: EvaluatorPool
) -> None:
    greedy = "x * 2 + y + 0 * x.new_ones((1 << 35) if ROWS == 2048 else 1)[0]"
    task = at_full(axpy_task(REFERENCE.replace("x * 2 + y", greedy)), 2048, 1024)
    (evaluation, profile), full = evaluate(evaluators, workshop, task)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert full.status == "skipped"
    assert "needs more memory" in full.message
    assert profile is not None


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 2])
def test_an_oracle_that_was_killed_at_the_full_size_is_asked_once_more(
    evaluators: list[Evaluator], workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    remaining, draw = [kills], Oracle.draw

    def drawn_and_killed(oracle: Oracle, size: str, *rest: Any, **options: Any) -> DrawHandle:
        drawn = draw(oracle, size, *rest, **options)
        if size == "full" and remaining[0]:
            remaining[0] -= 1
            assert isinstance(oracle._child, Child)
            os.kill(oracle._child.pid, signal.SIGKILL)  # its monitor: the child itself may live a moment longer
            oracle._child._await_exit()
        return drawn

    monkeypatch.setattr(Oracle, "draw", drawn_and_killed)
    (evaluation, profile), full = evaluate(evaluators, workshop, axpy_task())
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert full.status == ("passed" if kills == 1 else "skipped")
    assert ("cannot be run at this size here" in full.message) == (kills == 2)
    assert profile is not None


@pytest.mark.slow
@pytest.mark.parametrize(("error", "failures"), [(ChildDied, 1), (ChildDied, 3), (SandboxError, 1), (SandboxError, 2)])
def test_a_profile_that_the_machine_fails_takes_no_comparison_back(
    evaluators: list[Evaluator],
    workshop: EvaluatorPool,
    monkeypatch: pytest.MonkeyPatch,
    error: type[SandboxError],
    failures: int,
) -> None:
    remaining, profile_of = [failures], EmulatedSession.profile

    def failing(session: EmulatedSession, request: RunRequest, facts: SizeFacts) -> Any:
        if remaining[0]:
            remaining[0] -= 1
            raise error("the emulated device had not loaded the build after 600 s")
        return profile_of(session, request, facts)

    monkeypatch.setattr(EmulatedSession, "profile", failing)
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.DEAR_FLOPS", 10)
    (evaluation, profile), full = evaluate(evaluators, workshop, axpy_task())
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert full.status == "passed"
    assert "compared in part" in full.message
    assert (profile is not None) == (failures == 1)
    assert ("no profile: the emulated device had not loaded" in full.message) == (failures > 1)
