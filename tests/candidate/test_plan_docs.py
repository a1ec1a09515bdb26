"""docs/launch-plan.md is true: every example resolves, every refusal is refused in the words it gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kernelforge.candidate import PlanLimits, ResolvedPlan, parse_plan
from kernelforge.candidate.plan import MAX_COMBINATIONS, MAX_CONSTRAINED
from kernelforge.candidate.plan_language import lexer
from kernelforge.candidate.plan_language.functions import CONSTANTS, FUNCTIONS
from kernelforge.candidate.plan_language.tensors import METHODS, PROPERTIES
from kernelforge.candidate.plan_language.values import bytes_text
from kernelforge.errors import CandidateError
from kernelforge.records import DType, TensorSpec
from kernelforge.records.task import MAX_PLAN_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "launch-plan.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
REFUSALS = [
    tuple(part.strip() for part in line.split("#", 1))
    for block in re.findall(r"^```python refused\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]

INPUTS: dict[str, Any] = {
    "x": TensorSpec.contiguous((64, 1024), DType.FLOAT32),
    "y": TensorSpec.contiguous((64, 1024), DType.FLOAT32),
    "h": TensorSpec.contiguous((64, 1024), DType.FLOAT16),
    "s": TensorSpec(shape=(1024, 64), dtype=DType.FLOAT32, stride=(1, 1024)),
    "bias": None,
}
WEIGHTS = {
    "weight": TensorSpec.contiguous((1024,), DType.FLOAT32),
    "fc.weight": TensorSpec.contiguous((256, 1024), DType.FLOAT32),
}
ATTRS = {"eps": 1e-5, "layers": 2}
LIBRARY = ("matmul", "linear")


def resolve(plan_text: str) -> list[ResolvedPlan]:
    plan = parse_plan(plan_text)
    inputs = [INPUTS[name] for name in plan.parameters]
    return [plan.resolve(inputs, WEIGHTS, ATTRS, choices, library=LIBRARY) for choices in plan.combinations]


def test_the_page_has_examples_and_refusals() -> None:
    assert len(EXAMPLES) >= 8
    assert len(REFUSALS) >= 20


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_resolves_for_every_choice(example: str) -> None:
    for resolved in resolve(example):
        assert resolved.launches
        assert resolved.outputs


@pytest.mark.parametrize(("line", "message"), REFUSALS, ids=[line for line, _ in REFUSALS])
def test_every_refusal_is_refused_with_the_message_it_shows(line: str, message: str) -> None:
    body = "".join(f"    {part.strip()}\n" for part in line.split(";"))
    head = "def forward(x, s):\n    n, d = x.shape\n    out = empty_like(x)\n"
    plan_text = f"{head}{body}    k[n, 256](out)\n    return out\n"
    if line.startswith("return"):
        plan_text = plan_text.replace(body, "    k[n, 256](out)\n" + body)
    with pytest.raises(CandidateError) as caught:
        resolve(plan_text)
    assert message in str(caught.value)


def test_the_page_names_every_function_dtype_and_tensor_member() -> None:
    words = set(re.findall(r"\w+", PAGE))
    assert {*FUNCTIONS, *CONSTANTS, *METHODS, *PROPERTIES} <= words


def test_the_limits_table_states_the_limits() -> None:
    limits = PlanLimits()
    table = PAGE.split("## Limits")[1]
    figures = (
        MAX_PLAN_BYTES, lexer.MAX_LINE_CHARS, lexer.MAX_STATEMENT_TOKENS, limits.steps, limits.launches,
        limits.sequence_length, limits.string_length, *limits.grid, *limits.block, limits.threads_per_block,
        limits.dynamic_shared_bytes, limits.cluster_blocks, limits.parameter_bytes, MAX_COMBINATIONS, MAX_CONSTRAINED,
    )  # fmt: skip
    for figure in figures:
        assert re.search(rf"(?<![\d,]){figure:,}(?!,?\d)", table), figure
    assert bytes_text(limits.workspace_bytes) in table
    assert f"at most {MAX_COMBINATIONS:,}" in re.sub(r"\s+", " ", PAGE)
