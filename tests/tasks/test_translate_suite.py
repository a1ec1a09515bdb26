"""``translate``: every C function and its torch oracle compute the same function, and a Coder is shown the C."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from kernelforge.candidate import parse_reply
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.stages.candidate_runs import EvaluationState
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.records import Task
from kernelforge.tasks import parse_task_file, size_source
from tests.support.shipped_prompts import shipped

TRANSLATE = shipped("translate")
SIZES = ("small", "hidden_odd", "hidden_tiny")

ELEMENTS = {
    "float": torch.float32, "int": torch.int32, "long long": torch.int64, "unsigned char": torch.uint8,
    "signed char": torch.int8,
}  # fmt: skip

each_task = pytest.mark.parametrize("task", TRANSLATE.tasks, ids=lambda task: task.name)
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler `cc`")


class Parameter(NamedTuple):
    type: str
    name: str
    pointer: bool
    const: bool


def parameters(task: Task) -> list[Parameter]:
    """Parameters of the C function that has the task's name."""
    (inside,) = re.findall(rf"^void {task.name}\((.*?)\)$", task.c_source, re.MULTILINE | re.DOTALL)
    result = [re.fullmatch(r"(const )?([\w ]+?) (\*)?(\w+)", part.strip()) for part in inside.split(",")]
    return [Parameter(item[2], item[4], bool(item[3]), bool(item[1])) for item in result if item is not None]


def test_every_task_has_a_plain_c_function() -> None:
    for task in TRANSLATE:
        assert 8 <= len(task.c_source.splitlines()) <= 60, task.name
        assert set(re.findall(r"#include <(\w+)\.h>", task.c_source)) <= {"math"}, task.name
        assert "translate" in task.tags


@each_task
def test_the_inputs_have_the_names_of_the_c_parameters(task: Task) -> None:
    """Parameters that ``forward`` does not take are extents of the file or outputs of the function."""
    taken = parse_task_file(task.source, task.name).parameters
    extents = {name.lower() for name in parse_task_file(task.source, task.name).constants}
    seen = {item.name: item for item in parameters(task)}
    assert set(taken) <= set(seen)
    for name, item in seen.items():
        if item.pointer:
            assert item.const == (name in taken), name
        else:
            assert name in taken or name in extents, name


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every C file compiled, with warnings as errors, as it stands."""
    folder = tmp_path_factory.mktemp("translate")
    running = []
    for task in TRANSLATE:
        (folder / f"{task.name}.c").write_text(task.c_source)
        command = ["cc", "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
        command += ["-o", str(folder / f"{task.name}.so"), str(folder / f"{task.name}.c"), "-lm"]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    for item in running:
        _, errors = item.communicate()
        assert item.returncode == 0, errors
    return folder


COMPILERS = {
    "cpp": ["g++", "-std=c++17", "-fno-exceptions"],
    "fortran": ["gfortran", "-std=f2008", "-fcheck=bounds", "-Wno-compare-reals"],
}
in_another_language = pytest.mark.parametrize(
    "task", [*shipped("translate-cpp"), *shipped("translate-fortran")], ids=lambda task: f"{task.suite}/{task.name}"
)


def run_c(
    task: Task, library: Path, extents: dict[str, Any], inputs: dict[str, Any], outputs: list[torch.Tensor]
) -> None:
    """Call the C function; it writes ``outputs``."""
    arguments: list[Any] = []
    room = iter(outputs)
    for item in parameters(task):
        if item.pointer:
            tensor = inputs[item.name] if item.name in inputs else next(room)
            assert tensor.dtype == ELEMENTS[item.type], item.name
            assert tensor.is_contiguous()
            arguments.append(ctypes.c_void_p(tensor.data_ptr()))
        else:
            value = inputs.get(item.name, extents.get(item.name.upper()))
            arguments.append(ctypes.c_float(value) if item.type == "float" else ctypes.c_int(value))
    assert next(room, None) is None, "forward returns more than the C function writes"
    ctypes.CDLL(str(library))[task.name](*arguments)


@needs_cc
@each_task
@pytest.mark.parametrize("size", SIZES)
def test_the_oracle_computes_what_the_c_function_does(task: Task, size: str, libraries: Path) -> None:
    compare_with_oracle(task, size, libraries / f"{task.name}.so")


def compare_with_oracle(task: Task, size: str, library: Path) -> None:
    """See that the function in a library writes what the reference returns."""
    source = size_source(task, size)
    space: dict[str, Any] = {}
    exec(source, space)
    torch.manual_seed(sum(map(ord, task.name + size)))
    drawn = space["get_inputs"]()
    expected = space["Model"]()(*drawn)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    made = [torch.empty_like(item, memory_format=torch.contiguous_format) for item in expected]
    parsed = parse_task_file(source, task.name)
    run_c(task, library, parsed.constants, dict(zip(parsed.parameters, drawn, strict=True)), made)
    for got, want in zip(made, expected, strict=True):
        if not want.is_floating_point():
            assert torch.equal(got, want)
        else:
            scale = want.abs() + want.square().mean().sqrt()
            assert float(((got - want).abs() / scale).max()) < 2**-18


@in_another_language
def test_the_same_function_in_another_language_computes_the_same(task: Task, tmp_path: Path) -> None:
    compiler, *flags = COMPILERS[task.c_language]
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no compiler `{compiler}` for {task.suite}")
    file = tmp_path / f"{task.name}.{'cpp' if task.c_language == 'cpp' else 'f90'}"
    file.write_text(task.c_source)
    common = ["-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
    command = [compiler, *flags, *common, "-o", str(tmp_path / "function.so"), str(file)]
    built = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    in_c = TRANSLATE.task(task.name)
    assert (task.sizes, task.translation, task.source) == (in_c.sizes, in_c.translation, in_c.source)
    assert task.digest != in_c.digest
    for size in SIZES:
        compare_with_oracle(in_c, size, tmp_path / "function.so")


@pytest.mark.slow
@pytest.mark.one_in(4)
@each_task
def test_the_known_translation_is_right(task: Task, workshop: EvaluatorPool) -> None:
    """At the small and two hidden sizes, by all input families, on the emulated device."""
    sizes = tuple(size for size in task.sizes if size.name in ("full", *SIZES))
    candidate = parse_reply(task.translation)
    evaluator = workshop.evaluator(task.model_copy(update={"sizes": sizes}))
    work = EvaluationState(seed=7, source=candidate.source)
    try:
        evaluator.prepare(candidate, work)
        with evaluator.runs(work) as runs:
            CorrectnessStage(runs, ()).check_all(candidate, evaluator.compiler)
    finally:
        evaluator.close()
    assert {check.size: check.status for check in work.checks}.items() >= dict.fromkeys(SIZES, "passed").items()
