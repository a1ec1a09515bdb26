"""C candidates get the verdicts of kernels: what does not compile, is wrong, reaches outside its arrays, or hangs."""

from __future__ import annotations

import pytest

from kernelforge.records import Task, Verdict
from kernelforge.rewards import POLICIES, reward
from kernelforge.rewards.base import Context
from tests.translation.conftest import Judge

HEAD = "void heat_step(int rows, int cols, float r, const float *u, float *next)\n"
COPY = "for (long i = 0; i < (long)rows * cols; i++) next[i] = u[i];"


@pytest.mark.slow
def test_the_known_c_is_right_at_every_size(judge: Judge, heat_step: Task) -> None:
    evaluation = judge(heat_step.c_source)
    assert evaluation.correctness is not None
    assert {check.size: check.status for check in evaluation.correctness.sizes} == dict.fromkeys(
        ("small", "hidden_odd", "full"), "passed"
    )
    assert evaluation.performance is None


@pytest.mark.slow
def test_openmp_is_compiled_in(judge: Judge, heat_step: Task) -> None:
    loop = "    for (int i = 0; i < rows; i++) {"
    assert loop in heat_step.c_source
    parallel = heat_step.c_source.replace(loop, f"#ifndef _OPENMP\n#error\n#endif\n#pragma omp parallel for\n{loop}", 1)
    judge(f"#include <omp.h>\n{parallel}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEAD}{{ next[0] = missing; }}", ("candidate.c:2", "'missing' undeclared")),
        ("void heat_step(int rows, int cols, const float *u, float *next) {}", ("conflicting types",)),
        ("void other(void) {}", ("defines no function `heat_step`",)),
        (f'#include "/etc/passwd"\n{HEAD}{{}}', ("No such file",)),
    ],
    ids=["undeclared", "another type", "another name", "a file of the machine"],
)
def test_what_does_not_compile_or_fit_is_a_build_error(judge: Judge, text: str, words: tuple[str, ...]) -> None:
    assert judge(text, Verdict.BUILD, *words).stage == "compile"


@pytest.mark.slow
def test_a_wrong_result_is_wrong_and_hidden_sizes_stay_secret(judge: Judge, heat_step: Task) -> None:
    assert judge(f"{HEAD}{{ {COPY} }}", Verdict.WRONG).stage == "small"
    body = heat_step.c_source.partition(HEAD)[2]
    odd = judge(f"{HEAD}{{ if (cols % 2) {{ {COPY} return; }}\n{body.partition('{')[2]}", Verdict.WRONG)
    assert odd.stage == "hidden"
    assert "1031" not in odd.reason
    assert odd.failed_at_hidden


@pytest.mark.parametrize(
    "access",
    ["next[(long)rows * cols] = 1;", "next[0] = u[(long)rows * cols];", "next[-1] = 1;", "((float *)u)[0] = 1;"],
    ids=["write behind", "read behind", "write before", "write to an input"],
)
def test_an_access_outside_the_arrays_ends_it(judge: Judge, heat_step: Task, access: str) -> None:
    body = heat_step.c_source.partition(HEAD)[2]
    judge(f"{HEAD}{{ volatile float sink = 0; (void)sink; {access}\n{body.partition('{')[2]}", Verdict.CRASH, "outside")


def test_an_output_that_is_not_written_is_not_right_by_luck(judge: Judge, heat_step: Task) -> None:
    judge(heat_step.c_source.replace("next[at] = u[at];", ""), Verdict.WRONG)


@pytest.mark.slow
def test_a_call_that_never_ends_is_a_timeout(judge: Judge) -> None:
    judge(f"{HEAD}{{ for (volatile int i = 0; ; i++) ; }}", Verdict.TIMEOUT)


@pytest.mark.slow
def test_no_policy_rewards_a_c_function(judge: Judge, heat_step: Task) -> None:
    evaluation = judge(heat_step.c_source)
    assert all(reward(name, evaluation, Context()).value is None for name in POLICIES)
