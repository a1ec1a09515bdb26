"""Regions of OpenMP's target and OpenACC have a memory of their own, in the jail of C functions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelforge.records import Task, Verdict
from kernelforge.translation.evaluator import CEvaluator, c_candidate
from kernelforge.translation.offload import Offload
from tests.translation.test_c_jail import HEAD, reaching

ROWS = "for (int i = 0; i < rows; i++) {"
CLAUSES: dict[Offload, str] = {
    "openmp": "#pragma omp target teams distribute parallel for map(to: u[0:rows*cols]) map(from: next[0:rows*cols])",
    "openacc": "#pragma acc parallel loop copyin(u[0:rows*cols]) copyout(next[0:rows*cols])",
}


def verdict_of(evaluator: CEvaluator, text: str, offload: Offload) -> tuple[Verdict, str]:
    evaluation = evaluator.evaluate(c_candidate(text), seed=11, offload=offload).evaluation
    return evaluation.verdict, evaluation.reason


def with_directive(task: Task, directive: str) -> str:
    assert ROWS in task.c_source
    return task.c_source.replace(ROWS, f"\n{directive}\n{ROWS}", 1)


@pytest.mark.slow
@pytest.mark.parametrize("offload", ["openmp", "openacc"])
def test_clauses_decide_what_a_region_sees(c_evaluator: CEvaluator, heat_step: Task, offload: Offload) -> None:
    right = with_directive(heat_step, CLAUSES[offload])
    assert verdict_of(c_evaluator, right, offload) == (Verdict.OK, "")
    for word, other in (("from", "alloc"), ("copyout", "create")):
        if word in CLAUSES[offload]:
            wrong = with_directive(heat_step, CLAUSES[offload].replace(word, other))
            assert verdict_of(c_evaluator, wrong, offload)[0] is Verdict.WRONG
    bare = with_directive(heat_step, CLAUSES[offload].split(" map")[0].split(" copyin")[0])
    verdict, reason = verdict_of(c_evaluator, bare, offload)
    assert verdict is Verdict.CRASH
    assert "uses memory of the host" in reason


@pytest.mark.slow
def test_a_write_to_an_input_by_its_copy_ends_the_call(c_evaluator: CEvaluator, heat_step: Task) -> None:
    clauses = CLAUSES["openmp"].replace("map(to: u", "map(tofrom: u")
    assert verdict_of(c_evaluator, with_directive(heat_step, clauses), "openmp") == (Verdict.OK, "")
    body = heat_step.c_source.partition(HEAD)[2].partition("{")[2]
    change = "float *v = (float *)u;\n#pragma omp target map(tofrom: v[0:rows])\nv[0] += 1;\n"
    assert verdict_of(c_evaluator, f"{HEAD}{{ {change}{body}", "openmp")[0] is Verdict.CRASH


@pytest.mark.slow
def test_a_region_runs_on_a_device_and_copies_name_their_sides(c_evaluator: CEvaluator, heat_step: Task) -> None:
    body = heat_step.c_source.partition(HEAD)[2].partition("{")[2]
    change = """
        float *copy = (float *)omp_target_alloc(4, 0), value = 2.0f;
        int inside = 0;
        omp_target_memcpy(copy, &value, 4, 0, 0, 0, omp_get_initial_device());
        #pragma omp target map(from: inside)
        inside = !omp_is_initial_device();
        omp_target_free(copy, 0);
        if (!inside || !omp_is_initial_device()) abort();
    """
    right = f"#include <omp.h>\n#include <stdlib.h>\n{HEAD}{{ {change}{body}"
    assert verdict_of(c_evaluator, right, "openmp") == (Verdict.OK, "")
    swapped = right.replace("0, omp_get_initial_device()", "omp_get_initial_device(), 0")
    verdict, reason = verdict_of(c_evaluator, swapped, "openmp")
    assert verdict is Verdict.CRASH
    assert "memory of the other side" in reason


def test_the_runtime_opens_no_door(
    c_evaluator: CEvaluator, heat_step: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELFORGE_CANARY", "canary")
    database = tmp_path / "kernelforge.db"
    database.write_text("canary")
    database.chmod(0o666)
    descriptor = os.open(database, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    doors = f"""
        for (char **at = environ; *at; at++) if (strstr(*at, "CANARY")) return 1;
        if (open("{database}", O_RDONLY) >= 0 || open("/proc/{os.getpid()}/environ", O_RDONLY) >= 0) return 1;
        int descriptors = 0;
        for (int fd = 3; fd < 256; fd++) descriptors += fcntl(fd, F_GETFD) >= 0;
        return descriptors != 1 || kill({os.getpid()}, 0) == 0;
    """
    try:
        assert verdict_of(c_evaluator, reaching(heat_step, doors), "openmp") == (Verdict.OK, "")
        opened = reaching(heat_step, 'return open("/usr/bin", O_RDONLY) >= 0;')
        assert verdict_of(c_evaluator, opened, "openmp")[0] is Verdict.WRONG
    finally:
        os.close(descriptor)
