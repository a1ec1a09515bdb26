"""``setup``: what it may do, what ``forward`` finds in ``prepared``, and that ``forward`` can run without it again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernelforge.candidate import LaunchSignature, PlanLimits, ResolvedPlan, parse_plan, signatures
from kernelforge.candidate.resolved import Buffer, Fill, Launch, TensorArg
from kernelforge.errors import CandidateError, PlanGuard
from kernelforge.records import DType, TensorSpec

X = TensorSpec.contiguous((8, 32), DType.FLOAT32)
WEIGHTS = {
    "weight": TensorSpec.contiguous((16, 32), DType.FLOAT32),
    "running_mean": TensorSpec.contiguous((32,), DType.FLOAT32),
}
ATTRS: dict[str, Any] = {"groups": 2}
FORWARD = """
def forward(x):
    out = empty_like(x)
    use[1, 32](x, prepared, out)
    return out
"""
PLAN = """
TILE = 16

def transposed(weight, dtype):
    packed = empty((weight.shape[1], weight.shape[0]), dtype=dtype)
    transpose[ceil_div(weight.shape[0], TILE), 32](weight, packed)
    return packed

def setup(w):
    wide = transposed(w["weight"], float32)
    packed = empty(wide.shape, dtype=float16)
    halve[1, 32](wide, packed, i32(attrs["groups"]))
    scales = zeros((16,))
    measure[1, 32](wide, scales)
    return packed, scales

def forward(x):
    packed, scales = prepared
    hidden = empty_like(x)
    first[1, 32](x, packed, hidden)
    out = empty_like(x)
    second[1, 32](hidden, scales, w["weight"], out)
    return out
"""


def resolve(text: str, **options: Any) -> ResolvedPlan:
    return parse_plan(text).resolve([X], WEIGHTS, ATTRS, **options)


def buffers(plan: ResolvedPlan, kind: str) -> list[Buffer]:
    return [buffer for buffer in plan.buffers if buffer.kind == kind]


def touched(plan: ResolvedPlan, *, setup: bool) -> set[int]:
    ids: set[int] = set()
    for step in plan.setup if setup else plan.steps:
        if isinstance(step, Fill):
            ids.add(step.buffer)
        elif isinstance(step, Launch):
            ids |= {arg.buffer for arg in step.args if isinstance(arg, TensorArg)}
    return ids


def test_setup_makes_buffers_that_forward_reads() -> None:
    plan = resolve(PLAN)
    assert [type(step).__name__ for step in plan.setup] == ["Launch", "Launch", "Fill", "Launch"]
    assert [launch.expression for launch in plan.launches] == ["first", "second"]
    assert plan.expressions == ("transpose", "halve", "measure", "first", "second")
    packed, scales = buffers(plan, "prepared")
    assert (packed.label, packed.nbytes) == ("packed", 32 * 16 * 2)
    assert (scales.label, scales.nbytes) == ("scales", 64)
    assert plan.launches[0].args[1] == TensorArg(packed.id, 0, DType.FLOAT16)
    assert plan.launches[1].args[1] == TensorArg(scales.id, 0, DType.FLOAT32)
    assert [buffer.label for buffer in buffers(plan, "weight")] == ["w['weight']"]
    assert all(buffer.provided == (buffer.kind in ("input", "weight")) for buffer in plan.buffers)


def test_setup_and_forward_share_no_memory_but_what_was_prepared() -> None:
    plan = resolve(PLAN)
    both = touched(plan, setup=True) & touched(plan, setup=False)
    assert {plan.buffers[buffer].kind for buffer in both} == {"prepared", "weight"}
    inputs = {buffer.id for buffer in buffers(plan, "input")}
    assert not touched(plan, setup=True) & inputs


@pytest.mark.parametrize("limit", [1 << 30, 8_300])
def test_prepared_tensors_share_with_nothing(limit: int) -> None:
    """All tensors are of one size; the second limit makes workspace share as much as it can."""
    plan = resolve(
        """
def setup(w):
    first = empty((256,))
    fill[1, 32](first)
    second = empty((255,))
    fill[1, 32](first, second)
    third = empty((255,))
    fill[1, 32](second, third)
    fourth = empty((256,))
    fill[1, 32](third, fourth)
    return fourth

def forward(x):
    before = empty((256,))
    one[1, 32](x, before)
    after = empty((255,))
    two[1, 32](before, after)
    third = empty((256,))
    three[1, 32](after, third)
    out = empty_like(x)
    last[1, 32](third, prepared, out)
    return out
""",
        limits=PlanLimits(workspace_bytes=limit),
    )
    (kept,) = buffers(plan, "prepared")
    users = [step.line for step in plan.setup if any(arg.buffer == kept.id for arg in step.args)]
    assert users == [10]
    assert [launch.line for launch in plan.launches if any(arg.buffer == kept.id for arg in launch.args)] == [21]
    assert sum(buffer.nbytes for buffer in plan.buffers if not buffer.provided) <= limit


def test_one_tensor_is_prepared_as_itself_and_sequences_keep_their_shape() -> None:
    nested = "def setup(w):\n    a = zeros(4)\n    return a, (a[2:], zeros(8))\n"
    plan = resolve(nested + FORWARD.replace("prepared", "prepared[0], prepared[1][0], prepared[1][1]"))
    launch = plan.launches[0]
    assert [(arg.buffer, arg.offset_bytes) for arg in launch.args if isinstance(arg, TensorArg)][1:4] == [
        (launch.args[1].buffer, 0),
        (launch.args[1].buffer, 8),
        (launch.args[3].buffer, 0),
    ]
    single = resolve("def setup(w):\n    a = zeros(4)\n    return a\n" + FORWARD)
    assert single.launches[0].args[1] == TensorArg(buffers(single, "prepared")[0].id, 0, DType.FLOAT32)


def test_buffers_and_plain_tensors_may_be_read_in_setup() -> None:
    text = "def setup(w):\n    a = empty(32)\n    k[1, 32](w['running_mean'], a)\n    return a\n"
    assert [buffer.source for buffer in buffers(resolve(text + FORWARD), "weight")] == ["running_mean"]


def test_helpers_of_forward_see_what_was_prepared() -> None:
    helper = "def layer(x, out):\n    use[1, 32](x, prepared, out)\n    return out\n"
    text = "def setup(w):\n    return zeros(4)\ndef forward(x):\n    return layer(x, empty_like(x))\n"
    assert len(buffers(resolve(helper + text), "prepared")) == 1


def test_choices_and_guards_reach_setup() -> None:
    text = "# tune: N = 4 | 8\ndef setup(w):\n    assert N < 8, 'too wide'\n    return zeros(N)\n" + FORWARD
    plan = parse_plan(text)
    assert buffers(plan.resolve([X], {}, {}), "prepared")[0].nbytes == 16
    with pytest.raises(PlanGuard, match="line 3: too wide"):
        plan.resolve([X], {}, {}, {"N": 8})


def test_signatures_include_the_launches_of_setup() -> None:
    assert signatures(resolve(PLAN))[0] == LaunchSignature("transpose", ("tensor:float32", "tensor:float32"))


def test_a_plan_with_setup_survives_the_wire() -> None:
    plan = resolve(PLAN)
    assert plan.setup
    assert ResolvedPlan.from_wire(json.loads(json.dumps(plan.to_wire()))) == plan


def test_setup_counts_towards_launches_steps_and_workspace() -> None:
    text = "def setup(w):\n    a = zeros(1000)\n    for i in range(N):\n        k[1, 1](a)\n    return a\n" + FORWARD
    few = text.replace("N", "6")
    assert resolve(few, limits=PlanLimits(launches=8)).launches
    with pytest.raises(CandidateError, match="more than 7 launches, memsets and library calls"):
        resolve(few, limits=PlanLimits(launches=7))
    with pytest.raises(CandidateError, match="more than 500 steps"):
        resolve(text.replace("N", "100"), limits=PlanLimits(steps=500))
    with pytest.raises(CandidateError, match=r"asks for 5\.0 KB of workspace; the limit is 5\.0 KB"):
        resolve(few, limits=PlanLimits(workspace_bytes=5000))


REFUSED = [
    (
        "def setup(w):\n    return w['weight']\n",
        "setup returns w['weight'], which it was given; forward reads it from w",
    ),
    ("def setup(w):\n    return w['weight'][1:]\n", "setup returns w['weight'], which it was given"),
    ("def setup(w):\n    return w\n", "setup returns tensors, not w"),
    ("def setup(w):\n    return zeros(3), 3\n", "setup returns tensors, not an int"),
    ("def setup(w):\n    a = zeros(3)\n", "setup returned nothing"),
    ("def setup(w):\n    return ()\n", "setup returned no tensor"),
    ("def setup(w):\n    a = empty(3)\n    return a\n", "setup returns a, which none of its steps writes"),
    ("def setup(w):\n    return x\n", "unknown name 'x'"),
    ("def setup(w):\n    return prepared\n", "prepared is what setup returns; setup itself cannot read it"),
    ("def f():\n    return prepared\ndef setup(w):\n    return f()\n", "setup itself cannot read it"),
    ("def setup(w):\n    return forward(zeros(3))\n", "forward cannot be called"),
    ("def setup(x):\n    return zeros(3)\n", "setup takes the weights alone: def setup(w)"),
    ("def setup(w, attrs):\n    return zeros(3)\n", "setup takes the weights alone: def setup(w)"),
    ("def setup(w=1):\n    return zeros(3)\n", "setup takes the weights alone: def setup(w)"),
    ("def setup():\n    return zeros(3)\n", "setup takes the weights alone: def setup(w)"),
    ("setup = 1\n", "the plan has no 'def setup(w)'"),
    ("", "prepared is what setup returns; the plan has no 'def setup(w)'"),
    ("prepared = 1\n", "'prepared' is a name of the plan language"),
    ("A = prepared\n", "prepared is known inside forward and helpers only"),
]


@pytest.mark.parametrize(("head", "message"), REFUSED)
def test_what_setup_may_not_do_is_refused(head: str, message: str) -> None:
    with pytest.raises(CandidateError) as caught:
        resolve(head + FORWARD)
    assert message in str(caught.value)
    assert caught.value.line is not None


BODIES = [
    ("return prepared", "forward returns a, which setup returned; write the result to a new tensor"),
    ("a, b = prepared", "unpacking needs a sequence; walk a tensor by index"),
    ("prepared += 1", "'prepared' is a name of the plan language"),
    ("prepared[1, 1](out)", "'prepared' is not a kernel"),
    ("a = setup(w)", "setup cannot be called"),
    ("library('abs', x, out=prepared)", "out of abs is a, which setup returned; write to a new tensor"),
]


@pytest.mark.parametrize(("line", "message"), BODIES)
def test_forward_only_reads_what_was_prepared(line: str, message: str) -> None:
    text = "def setup(w):\n    a = zeros(4)\n    return a\n" + FORWARD.replace("    return", f"    {line}\n    return")
    with pytest.raises(CandidateError) as caught:
        resolve(text, library=("abs",))
    assert message in str(caught.value)


def test_a_setup_that_forward_does_not_use_is_refused() -> None:
    unused = "def helper():\n    return prepared\ndef setup(w):\n    return zeros(4)\n"
    with pytest.raises(CandidateError, match="setup is not used: forward does not read prepared") as caught:
        resolve(unused + FORWARD.replace("prepared, ", ""))
    assert caught.value.line == 3


def test_what_setup_returns_is_no_parameter_of_forward() -> None:
    text = "def setup(w):\n    return zeros(4)\ndef forward(x, prepared):\n    return prepared\n"
    with pytest.raises(CandidateError, match="prepared can be used without a parameter") as caught:
        resolve(text)
    assert caught.value.line == 3


def test_a_forward_that_only_prepares_is_refused() -> None:
    with pytest.raises(CandidateError, match="the plan launches no kernel"):
        resolve(
            "def setup(w):\n    a = empty(4)\n    k[1, 1](a)\n    return a\n"
            "def forward(x):\n    a = prepared\n    return zeros(4)\n"
        )
