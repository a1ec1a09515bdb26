"""Every way a candidate can be bad has its verdict and its message, and the next candidate is unaffected."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernelforge.candidate import parse_reply
from kernelforge.compile import policy_gate
from kernelforge.compile.compiler import COMPILE_LIMITS
from kernelforge.devices.base import RunRequest, RunResult
from kernelforge.devices.emulated.device import EmulatedSession
from kernelforge.errors import EvaluationCancelled
from kernelforge.evaluation import EvaluationResult, Evaluator, EvaluatorPool
from kernelforge.evaluation.stages import correctness
from kernelforge.evaluation.stages.candidate_runs import POISONS
from kernelforge.evaluation.stages.correctness import further_family
from kernelforge.records import Candidate, MeasureSettings, Origin, TaskPolicy, Verdict
from kernelforge.report.views.attempt import gates_of
from kernelforge.rewards import DEFAULT_POLICY, reward
from tests.evaluation.oracle_tasks import make_task
from tests.support.axpy import KERNEL, PLAN, axpy_task


@pytest.fixture(scope="module")
def evaluator(workshop: EvaluatorPool) -> Iterator[Evaluator]:
    made = workshop.evaluator(axpy_task())
    yield made
    made.oracle.close()


def run(evaluator: Evaluator, source: str = KERNEL, plan: str = PLAN) -> EvaluationResult:
    return evaluator.evaluate(Candidate(source=source, plan=plan), seed=11)


def refused(evaluator: Evaluator, verdict: Verdict, *words: str, source: str = KERNEL, plan: str = PLAN) -> str:
    """Evaluate, and check verdict and words of the reason; a good candidate must pass right afterwards."""
    evaluation = run(evaluator, source, plan).evaluation
    assert evaluation.verdict is verdict, evaluation.reason
    for word in words:
        assert word in evaluation.reason
    assert evaluation.performance is None
    assert run(evaluator).evaluation.verdict is Verdict.OK
    return evaluation.reason


@pytest.mark.slow
def test_a_good_candidate_passes_at_every_size_and_is_profiled(evaluator: Evaluator) -> None:
    evaluation, profile = run(evaluator)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.correctness is not None
    assert {check.size: check.status for check in evaluation.correctness.sizes} == {
        "small": "passed", "hidden_odd": "passed", "hidden_tiny": "passed", "hidden_drawn": "passed", "full": "passed",
    }  # fmt: skip
    assert evaluation.performance is not None
    assert evaluation.performance.origin is Origin.MODELLED
    assert evaluation.build is not None
    assert evaluation.build.kernels[0].registers_per_thread > 0
    assert profile is not None
    # 64 x 96 floats: two tensors read, one written.
    assert profile.value("dram__bytes_read.sum") == 2 * 64 * 96 * 4
    assert profile.value("dram__bytes_write.sum") == 64 * 96 * 4


@pytest.mark.slow
def test_same_seed_same_evaluation_but_for_times(evaluator: Evaluator) -> None:
    first, second = run(evaluator), run(evaluator)
    assert first.profile == second.profile
    assert first.evaluation.correctness == second.evaluation.correctness
    assert first.evaluation.key == second.evaluation.key


@pytest.mark.slow
def test_a_reference_of_many_operations_is_run_on_two_kinds_of_inputs_once_each(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2x + y takes two operations for each element.
    listed = {"small": 8 * 32, "hidden_odd": 7 * 33, "hidden_tiny": 5}
    runs, real = list[tuple[int, int]](), EmulatedSession.run

    def noted(session: EmulatedSession, request: RunRequest) -> RunResult:
        runs.append((sum(map(len, request.tensors.values())) // 8, request.poison))
        return real(session, request)

    monkeypatch.setattr(EmulatedSession, "run", noted)
    for most, few in ((2 * sum(listed.values()), False), (2 * sum(listed.values()) - 1, True)):
        monkeypatch.setattr(correctness, "MANY_OPERATIONS", most)
        runs.clear()
        evaluation = run(evaluator).evaluation
        assert evaluation.verdict is Verdict.OK, evaluation.reason
        assert evaluation.correctness is not None
        for name, elements in listed.items():
            check, families = evaluation.correctness.at(name), evaluator.oracle.families(name)
            assert check is not None
            assert len(families) > 2
            poisons = [poison for size, poison in runs if size == elements]
            if not few:
                assert (check.families, check.message, len(poisons)) == (families, "", 1 + len(families))
                continue
            assert check.families == ("task", *further_family(families, 11))
            left_out = ", ".join(family for family in families if family not in check.families)
            assert check.message == (
                f"inputs of each kind once, none of {left_out}: the reference takes over 983 operations in all"
            )
            assert sorted(poisons) == sorted(POISONS)
            (gate,) = (gate for gate in gates_of(evaluation) if gate.name == ("small" if name == "small" else "hidden"))
            assert check.message in gate.detail


@pytest.mark.parametrize("seed", range(8))
def test_a_kernel_that_is_wrong_on_the_further_kind_of_inputs_fails_at_many_operations_too(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(correctness, "MANY_OPERATIONS", 0)
    # The task's own inputs are normal: none reaches 40. Those of the family 'large' do.
    saturating = KERNEL.replace("2.0f * x[i] + y[i]", "fminf(2.0f * x[i] + y[i], 120.0f)")
    evaluation = evaluator.evaluate(Candidate(source=saturating, plan=PLAN), seed=seed, profile=False).evaluation
    is_large = further_family(evaluator.oracle.families("small"), seed) == ("large",)
    assert (evaluation.verdict is Verdict.WRONG, evaluation.stage) == (is_large, "small" if is_large else "done")
    if is_large:
        assert "large" in evaluation.reason


@pytest.mark.slow
def test_an_unwritten_element_is_seen_at_many_operations_too(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correctness, "MANY_OPERATIONS", 0)
    refused(evaluator, Verdict.WRONG, source=KERNEL.replace("if (i < n)", "if (i < n - 1)"))


@pytest.mark.slow
def test_to_wait_for_the_device_is_not_the_candidates_doing(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = [0.0]

    @contextmanager
    def gpu_lock() -> Iterator[None]:
        waited[0] += 10_000.0
        yield

    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + waited[0])
    for module in ("stages.candidate_runs", "evaluator"):
        monkeypatch.setattr(f"kernelforge.evaluation.{module}.time", clock)
    monkeypatch.setattr(evaluator, "gpu_lock", gpu_lock)
    evaluation = run(evaluator).evaluation
    assert evaluation.verdict is Verdict.OK, evaluation.reason


@pytest.mark.slow
def test_an_access_out_of_bounds_is_told_whole(evaluator: Evaluator) -> None:
    source = KERNEL.replace("if (i < n) ", "")
    reason = refused(evaluator, Verdict.CRASH, source=source, plan=PLAN.replace("128), 128", "128) + 1, 128"))
    # 8 x 32 floats of the small size fill two blocks; the third reads the first byte after them.
    assert re.search(r"4-byte global load at 0x[0-9a-f]+, 0 bytes after the end of '[xy]' \(1024 bytes\)", reason)
    assert "candidate.cu:3" in reason
    assert "block (2, 0, 0), thread (0, 0, 0)" in reason
    assert "'axpy' is launched in plan line 3" in reason


@pytest.mark.slow
def test_worst_errors_are_asked_of_every_run_that_is_compared(
    workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worst: set[bool] = set()
    real = EmulatedSession.run

    def noted(session: EmulatedSession, request: RunRequest) -> RunResult:
        worst.add(request.worst_errors)
        return real(session, request)

    monkeypatch.setattr(EmulatedSession, "run", noted)
    monkeypatch.setattr(workshop, "settings", MeasureSettings(approx="worst"))
    made = workshop.evaluator(axpy_task())
    try:
        run(made)
    finally:
        made.oracle.close()
    assert worst == {True}


@pytest.mark.slow
def test_reading_memory_before_writing_it_is_wrong(evaluator: Evaluator) -> None:
    # fminf ignores the NaN of the first poison, and the values of the second are too large for it.
    source = KERNEL.replace("out[i] = ", "out[i] = fminf(fmaxf(out[i], 0.0f), 1e-3f) + ")
    refused(evaluator, Verdict.WRONG, source=source)
    source = KERNEL.replace("out[i] = ", "out[i] = fminf(fmaxf(out[i], 0.0f), 2e-7f) + ")
    refused(evaluator, Verdict.WRONG, "before", source=source)


@pytest.mark.slow
def test_each_draw_has_a_variation_that_its_poisons_share(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[int, int]] = []
    real = EmulatedSession.run

    def noted(session: EmulatedSession, request: RunRequest) -> RunResult:
        requests.append((request.variation, request.poison))
        return real(session, request)

    monkeypatch.setattr(EmulatedSession, "run", noted)
    run(evaluator)
    first = list(requests)
    variations = {variation for variation, _ in first}
    assert len(variations) > 4
    assert 0 not in variations
    both = [v for v in variations if {poison for variation, poison in first if variation == v} == set(POISONS)]
    # At the full size one run is enough, and a hidden size was drawn besides the listed ones.
    assert len(both) == len(axpy_task().sizes)
    requests.clear()
    run(evaluator)
    assert requests == first
    requests.clear()
    evaluator.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=12)
    assert not variations & {variation for variation, _ in requests}


@pytest.mark.slow
def test_writing_an_input_is_refused(evaluator: Evaluator) -> None:
    source = KERNEL.replace("const float* y", "float* y").replace(
        "if (i < n) ", "if (i < n) y[i] = 0.0f;\n    if (i < n) "
    )
    refused(evaluator, Verdict.CRASH, "read-only", source=source)


@pytest.mark.slow
def test_syntax_errors_come_back_with_line_and_message(evaluator: Evaluator) -> None:
    refused(evaluator, Verdict.BUILD, "candidate.cu:3", "undefined", source=KERNEL.replace("x[i]", "nope[i]"))


@pytest.mark.slow
def test_a_kernel_name_the_source_lacks(evaluator: Evaluator) -> None:
    refused(evaluator, Verdict.BUILD, "saxpy", plan=PLAN.replace("axpy[", "saxpy["))


@pytest.mark.slow
def test_wrong_argument_count_and_type(evaluator: Evaluator) -> None:
    refused(evaluator, Verdict.BUILD, "axpy", plan=PLAN.replace(", i32(x.numel())", ""))
    refused(evaluator, Verdict.BUILD, "argument 4", plan=PLAN.replace("i32(", "i64("))


@pytest.mark.slow
def test_a_grid_of_zero(evaluator: Evaluator) -> None:
    refused(evaluator, Verdict.POLICY, "line 3", "grid", plan=PLAN.replace("ceil_div(x.numel(), 128), 128", "0, 128"))


@pytest.mark.slow
def test_two_terabytes_of_workspace(evaluator: Evaluator) -> None:
    plan = PLAN.replace("    axpy[", "    big = empty((1 << 39,))\n    axpy[".replace("1 << 39", "549755813888"))
    refused(evaluator, Verdict.POLICY, "workspace", plan=plan)


@pytest.mark.slow
def test_an_infinite_loop_is_stopped(evaluator: Evaluator) -> None:
    source = KERNEL.replace("    if (i < n)", "    volatile int stay = 1; while (stay) { }\n    if (i < n)")
    refused(evaluator, Verdict.TIMEOUT, "axpy", source=source)
    # The wait was the kernel's, not the harness's.
    seconds = run(evaluator, source).evaluation.seconds
    assert seconds["emulation"] > seconds["harness"]


@pytest.mark.slow
def test_a_plan_may_refuse_hidden_sizes_but_not_its_own(evaluator: Evaluator) -> None:
    guarded = run(evaluator, plan=PLAN.replace("    out", "    assert x.shape[1] % 4 == 0\n    out", 1)).evaluation
    assert guarded.verdict is Verdict.OK, guarded.reason
    assert guarded.correctness is not None
    assert guarded.correctness.generality == 0.5
    refused(
        evaluator, Verdict.POLICY, "assert", plan=PLAN.replace("    out", "    assert x.shape[1] == 96\n    out", 1)
    )


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ"])
def test_included_files_of_the_host_never_show(
    evaluator: Evaluator, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELFORGE_CANARY", "canary-5177")
    evaluation = run(evaluator, source=f'#include "{path}"\n{KERNEL}').evaluation
    assert evaluation.verdict is Verdict.BUILD
    text = evaluation.model_dump_json()
    assert "canary-5177" not in text
    assert "root:" not in text
    assert os.environ["KERNELFORGE_CANARY"] == "canary-5177"
    assert run(evaluator).evaluation.verdict is Verdict.OK


@pytest.mark.slow
def test_a_template_bomb_is_stopped(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a limit as in every compilation; a lower one is met sooner."""
    bomb = "template<int N, int M> struct B { static const int v = B<N-1, M*2>::v + B<N-1, M*2+1>::v; };\n"
    bomb += "template<int M> struct B<0, M> { static const int v = M; };\n"
    monkeypatch.setattr(evaluator.compiler, "limits", replace(COMPILE_LIMITS, memory_bytes=512 << 20))
    evaluation = run(evaluator, source=bomb + KERNEL.replace("2.0f", "float(B<28, 0>::v)")).evaluation
    assert evaluation.verdict in (Verdict.TIMEOUT, Verdict.LIMIT, Verdict.BUILD), evaluation.reason
    assert run(evaluator, source=f"{KERNEL}// compiled again\n").evaluation.verdict is Verdict.OK


@pytest.mark.slow
def test_reading_the_clock_is_refused(evaluator: Evaluator) -> None:
    source = KERNEL.replace("    if (i < n)", "    if (clock64() < 0) return;\n    if (i < n)")
    refused(evaluator, Verdict.POLICY, "clock", source=source)


OF_A_TEXTURE = KERNEL.replace("    if (i < n)", "    if (tex1Dfetch<float>(1ull, i) == 5.0f) return;\n    if (i < n)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [OF_A_TEXTURE, OF_A_TEXTURE.replace("    if (t", '    asm volatile("bar.warp.sync -1;");\n    if (t')]
)
def test_what_the_compiler_emits_and_the_device_lacks_is_never_a_score(
    evaluator: Evaluator, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Textures are all that is known; the gate, which refuses them for every device, lets them pass here."""
    monkeypatch.setattr(policy_gate, "OBJECT_INSTRUCTIONS", frozenset())
    evaluation = run(evaluator, source=source).evaluation
    assert evaluation.verdict is Verdict.INFRA, evaluation.reason
    assert "tex.1d" in evaluation.reason
    assert "write the kernel without it" in evaluation.reason
    assert run(evaluator).evaluation.verdict is Verdict.OK


@pytest.mark.slow
def test_textures_are_refused_before_anything_runs(evaluator: Evaluator) -> None:
    source = OF_A_TEXTURE.replace("1ull", "2ull")
    refused(evaluator, Verdict.POLICY, "no plan can make one; read the tensor itself", source=source)


RECURSIVE = """__device__ __noinline__ int f(int n) {
    volatile int a[64];
    a[n % 64] = n;
    return n <= 0 ? 0 : f(n - 1) + a[n % 64];
}
"""
CALLS_ITSELF = RECURSIVE + KERNEL.replace("    if (i < n)", "    if (f(DEPTH) == -5) return;\n    if (i < n)")


@pytest.mark.slow
def test_recursion_has_the_stack_that_it_has(evaluator: Evaluator) -> None:
    evaluation = run(evaluator, source=CALLS_ITSELF.replace("DEPTH", "100000 + i")).evaluation
    assert evaluation.verdict is Verdict.CRASH, evaluation.reason
    assert "stack" in evaluation.reason
    assert run(evaluator, source=CALLS_ITSELF.replace("DEPTH", "i % 4")).evaluation.verdict is Verdict.OK


@pytest.mark.slow
@pytest.mark.parametrize(
    "assembly",
    [
        "{ .reg .pred p; .reg .u64 v; isspacep.const p, v; }",
        r"// end inline asm\n\t{ .reg .pred p; .reg .u64 v; isspacep.const p, v; }\n\t// begin inline asm",
    ],
)
def test_assembly_of_its_own_that_the_device_lacks_is_a_score_of_zero(evaluator: Evaluator, assembly: str) -> None:
    source = KERNEL.replace("    if (i < n)", f'    asm volatile("{assembly}" ::: "memory");\n    if (i < n)')
    evaluation = run(evaluator, source=source).evaluation
    assert (evaluation.verdict, evaluation.stage) == (Verdict.POLICY, "policy"), evaluation.reason
    assert "inline assembly holds what emulated:h100 cannot check" in evaluation.reason
    assert "isspacep" in evaluation.reason
    assert "source line 3" in evaluation.reason
    assert reward(DEFAULT_POLICY, evaluation).value == 0
    assert run(evaluator).evaluation.verdict is Verdict.OK


def test_a_reply_without_code_is_a_policy_verdict(evaluator: Evaluator) -> None:
    from kernelforge.errors import CandidateError

    with pytest.raises(CandidateError) as caught:
        parse_reply("I would use shared memory here.")
    evaluation = evaluator.rejected(caught.value, "I would use shared memory here.")
    assert evaluation.verdict is Verdict.POLICY
    assert evaluation.stage == "parse"


@pytest.mark.slow
@pytest.mark.parametrize("questions", [0, 1, 5, 12])
def test_an_evaluation_that_nobody_wants_ends_before_its_next_part(evaluator: Evaluator, questions: int) -> None:
    answers = itertools.chain([False] * questions, itertools.repeat(True))
    good = Candidate(source=KERNEL, plan=PLAN)
    with pytest.raises(EvaluationCancelled):
        evaluator.evaluate(good, seed=11, stopped=lambda: next(answers))
    assert run(evaluator).evaluation.verdict is Verdict.OK


@pytest.mark.slow
def test_a_plan_returns_nothing_where_the_reference_only_changes_its_input(workshop: EvaluatorPool) -> None:
    task = make_task("[a.mul_(2.0), None][1]", "torch.randn(60)", policy=TaskPolicy(mutates=(0,)))
    kernel = "__global__ void times(float* a, int n) { int i = threadIdx.x; if (i < n) a[i] *= FACTOR; }\n"
    plan = "def forward(a):\n    times[1, 64](a, i32(60))\n"
    made = workshop.evaluator(task)
    try:
        right, wrong = (run(made, f"#define FACTOR {factor}\n{kernel}", plan).evaluation for factor in ("2.0f", "3.0f"))
        returning = run(made, f"#define FACTOR 2.0f\n{kernel}", f"{plan}    return empty((1,), float32)\n").evaluation
    finally:
        made.oracle.close()
    assert right.verdict is Verdict.OK, right.reason
    assert wrong.verdict is Verdict.WRONG
    assert (returning.verdict, returning.stage) == (Verdict.POLICY, "plan")
    assert "forward returns 1 tensors, the reference 0" in returning.reason
