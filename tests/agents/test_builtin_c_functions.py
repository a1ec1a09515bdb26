"""C functions of lowered references give PyTorch's values at another size than the traced ones."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernelforge.agents.builtin.codegen.c_functions import is_c_name, write_c_function
from kernelforge.agents.builtin.ir.operators import lower
from kernelforge.errors import UnsupportedError
from kernelforge.evaluation.oracle.worker.reference import Reference
from kernelforge.evaluation.oracle.worker.tracing import trace_source

SOURCE = """
import torch
import torch.nn as nn
import torch.nn.functional as F
N, D = 12, 10
class Model(nn.Module):
    def forward(self, x, y):
        return {body}
def get_inputs():
    return [torch.randn(N, D), torch.randn(N, D)]
def get_init_inputs():
    return []
"""
CASES = {
    "elementwise": "F.gelu(x) - F.mish(y) * torch.rsqrt(x * x + 1) / torch.sigmoid(y), torch.maximum(x, y.abs())",
    "reductions": "x.sum(1) + y.mean(1) * x.prod(1), x.amax(0), y.amin((0, 1)), torch.logsumexp(x, 0)",
    "places": "x.argmax(1), y.argmin(0), torch.max(x, 0)[1], (x > y).sum(1)",
    "softmaxes": "F.log_softmax(F.relu(x) @ y.t(), dim=0) + torch.softmax(x @ x.t(), -1)",
    "scans": "x.cumsum(0) + y.cumsum(1), torch.logcumsumexp(x, 1), torch.cummax(y, 0)[0]",
    "views": "torch.cat([x, y.flip(0)], 1)[:, 1:-1:2], F.pad(x, (1, 2)), torch.where(x > 0, x, y).t(), x.roll(2, 1)",
    "windows": "F.conv2d(x[None, None], y[None, None, :3, :2], padding=1, stride=2), F.max_pool1d(x, 3, 2, 1), "
    "F.avg_pool1d(y, 3, 1, 1, count_include_pad=False)",
    "indices": "x[y.argmax(0)[:, None], x.argmax(1)]",
    "transposed": "F.conv_transpose1d(x[None, :4], y[:4, None, :3], stride=2, padding=1)",
}
EXTENTS = {f"{name}_{axis}": extent for name in "xy" for axis, extent in enumerate(("n", "d"))}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, dict[str, list[str]]]:
    """All functions, and the names of their parameters."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler `cc`")
    folder: Path = tmp_path_factory.mktemp("c")
    parameters = {}
    for name, body in CASES.items():
        source = SOURCE.format(body=body)
        program = lower(trace_source(source, {}), None, trace_source(source, {"N": 7, "D": 6}))
        text = write_c_function(name, program, EXTENTS, {})
        match = re.search(rf"^void {name}\((.*)\)$", text, re.MULTILINE)
        assert match is not None
        parameters[name] = [part.split()[-1].strip("*") for part in match[1].split(",")]
        (folder / f"{name}.c").write_text(text)
    flags = ["-std=gnu11", "-O1", "-fopenmp", "-fPIC", "-shared", "-Wall", "-Werror", "-o", "all.so"]
    subprocess.run(["cc", *flags, *(f"{name}.c" for name in CASES), "-lm"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "all.so")), parameters


@pytest.mark.parametrize("name", CASES)
def test_values_are_torchs(library: tuple[ctypes.CDLL, dict[str, list[str]]], name: str) -> None:
    functions, parameters = library
    sizes = {"N": 9, "D": 11}
    reference = Reference(SOURCE.format(body=CASES[name]), sizes)
    x, y = (value for value in reference.inputs(3) if isinstance(value, torch.Tensor))
    expected = reference.model(x, y)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    outputs = [torch.full_like(value, 7, memory_format=torch.contiguous_format) for value in expected]
    values_of = {"x": x, "y": y, "n": sizes["N"], "d": sizes["D"], "out": outputs[0]}
    values_of |= {f"out_{number}": value for number, value in enumerate(outputs)}
    values = [values_of[parameter] for parameter in parameters[name]]
    function = getattr(functions, name)
    function(*(ctypes.c_void_p(v.data_ptr()) if isinstance(v, torch.Tensor) else ctypes.c_int(v) for v in values))
    for output, value in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, value, rtol=2e-5, atol=2e-5)


def test_an_index_has_no_array_that_repeats_it_for_every_place() -> None:
    program = lower(trace_source(SOURCE.format(body=CASES["indices"]), {}))
    text = write_c_function("f", program, EXTENTS, {})
    assert sorted(re.findall(r"malloc\((.*)\);", text)) == ["sizeof(long long) * d", "sizeof(long long) * n"]


def test_what_has_no_c_says_so() -> None:
    for body, words in (("x.half() + y.half()", "float16"), ("torch.special.i0(x) + y", "cyl_bessel_i0")):
        source = SOURCE.format(body=body)
        with pytest.raises(UnsupportedError, match=words):
            write_c_function("f", lower(trace_source(source, {})), EXTENTS, {})


def test_names_of_c_and_of_the_lowering_are_not_given_to_inputs() -> None:
    names = ("x", "k", "exp", "int", "out_2", "out_gradient")
    assert [name for name in names if is_c_name(name)] == ["x", "out_gradient"]
