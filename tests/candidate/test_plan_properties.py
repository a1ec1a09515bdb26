"""Every text resolves or is refused with a message, within its steps and little memory."""

from __future__ import annotations

import builtins
import json
import math
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelforge.candidate import PlanLimits, ResolvedPlan, parse_plan
from kernelforge.candidate.plan_language.functions import FUNCTIONS
from kernelforge.candidate.resolved import Fill, Library, ScalarArg, Step, TensorArg, TensorMapArg, TensorView
from kernelforge.errors import CandidateError
from kernelforge.records import DType, TensorSpec

LIMITS = PlanLimits(steps=3_000, launches=40, workspace_bytes=1 << 20)
INPUTS: list[Any] = [
    TensorSpec.contiguous((6, 4), DType.FLOAT32),
    TensorSpec(shape=(4, 6), dtype=DType.FLOAT16, stride=(1, 4)),
]
WEIGHTS = {"a": TensorSpec.contiguous((4,), DType.FLOAT32)}
ATTRS: dict[str, int | float | bool | str] = {"n": 2, "s": "mode", "f": 0.5}

VALID = [
    """# tune: BLOCK = 128 | 256
def forward(x, y):
    n, d = x.shape
    out = empty_like(x)
    softmax[n, BLOCK](x, out, i32(n), f32(1 / sqrt(d)))
    return out
""",
    """
TILE = 16
def helper(x, out, scale=2):
    for i, row in enumerate(range(x.shape[0])):
        if i % 2 == 0:
            k[(ceil_div(row + 1, TILE), 1), (TILE, scale), 128](x[row], out[row], i64(i))
    return out
def forward(x, y):
    assert x.ndim == 2, f"rank {x.ndim}"
    parts = [helper(x, empty(x.shape, dtype=x.dtype)) for j in range(attrs["n"])]
    total = zeros((2, 6, 4), dtype=float64)
    kernel(f"add<float, {len(parts)}>")[1, 32](*parts, total.view(-1)[4:], w["a"], cluster=(1, 1), cooperative=True)
    a, *b = (1, 2, 3) + tuple(reversed(x.shape))
    bias = None if "bias" not in w else w["bias"]
    return total[0], (total[1], parts[0])
""",
    """
def packed(weight, extra=4):
    out = zeros((8, extra), dtype=float16)
    pack[1, 32](weight, tensor_map(out, box=(2, 8), swizzle=64), out)
    return out
def setup(w):
    wide = empty(64)
    library("repeat", w["a"], (2, 3), dim=-1, out=wide)
    return packed(wide, 8), (wide, wide[4:])
def forward(x, y):
    narrow, (wide, *rest) = prepared
    out = empty((2, 6, 4))
    tiles = tensor_map(x, box=(6, 4))
    k[1, 32](tiles, narrow, rest[0], tensor_map(prepared[0], box=[1, 8]))
    library("topk", x, 3, bias=None, out=(out[0], out[1]), mode="a", p=0.5)
    k[1, 32](out, wide)
    return out
""",
]
LIBRARY = ("repeat", "topk")

OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "<", "==", "in", "is", "and", "or", "|", "@"]
CALLEES = [*FUNCTIONS, "x.view", "x.flatten", "x.stride", "x.size", "helper", "open"]

names = st.sampled_from(
    [
        "x",
        "y",
        "out",
        "a",
        "b",
        "i",
        "w",
        "attrs",
        "inf",
        "float32",
        "min",
        "range",
        "k",
        "prepared",
        "library",
        "forward",
        "setup",
        "__class__",
        "open",
    ]
)
atoms = st.one_of(
    names,
    st.integers(-3, 70).map(str),
    st.sampled_from(["2 ** 62", "0.5", "1e308", "True", "None", "'a'", "'n'", "()", "x.shape", "x.dtype", "-1"]),
)


def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    # In a tuple: the branches of a bare ``inner.map`` would each count as a form of their own, hundreds in all.
    single, pair = st.tuples(inner), st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(" ".join),
        pair.map(lambda t: f"({t[0]}, {t[1]})"),
        pair.map(lambda t: f"{t[0]}[{t[1]}]"),
        pair.map(lambda t: f"{t[0]}[{t[1]}:]"),
        pair.map(lambda t: f"[{t[0]} for i in range({t[1]})]"),
        pair.map(lambda t: f"({t[0]} if {t[1]} else 1)"),
        pair.map(lambda t: f"(*({t[0]},), {t[1]})"),
        st.tuples(
            st.sampled_from(CALLEES),
            st.lists(inner, max_size=3),
        ).map(lambda t: f"{t[0]}({', '.join(t[1])})"),
        single.map(lambda t: f"({t[0]}).shape"),
        single.map(lambda t: f"f'{{{t[0]}}}'" if "'" not in t[0] else f"({t[0]})"),
        single.map(lambda t: f"(-{t[0]})"),
        single.map(lambda t: f"(not {t[0]})"),
        st.tuples(inner, inner, st.sampled_from(["0", "32", "128", "a"])).map(
            lambda t: f"tensor_map({t[0]}, box={t[1]}, swizzle={t[2]})"
        ),
        st.sampled_from(["x", "out"]).map(lambda t: f"tensor_map({t}, box=(2, 4), swizzle=32)"),
    )


expressions = st.recursive(atoms, wider, max_leaves=8)
simple = st.one_of(
    expressions.map(lambda e: f"a = {e}"),
    expressions.map(lambda e: f"a, b = {e}"),
    expressions.map(lambda e: f"a += {e}"),
    expressions.map(lambda e: f"assert {e}, 'no'"),
    expressions.map(lambda e: f"return {e}"),
    expressions.map(lambda e: f"helper({e})"),
    st.tuples(expressions, expressions, expressions).map(lambda t: f"k[{t[0]}, {t[1]}]({t[2]})"),
    expressions.map(lambda e: f"k[1, 32](x, out, {e})"),
    st.just("k[1, 32](x, out)"),
    st.tuples(expressions, expressions, expressions).map(
        lambda t: f"library('repeat', {t[0]}, dim={t[1]}, out={t[2]})"
    ),
    expressions.map(lambda e: f"library({e}, x, out=out)"),
    expressions.map(lambda e: f"library('topk', y, {e}, out=empty(3))"),
    expressions.map(lambda e: f"library('topk', out=(out, empty(3)), p={e})"),
)
statements = st.recursive(
    simple.map(lambda line: [line]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
        st.tuples(expressions, inner).map(lambda t: [f"for b in {t[0]}:"] + ["    " + line for line in t[1]]),
        st.tuples(expressions, inner).map(lambda t: [f"if {t[0]}:"] + ["    " + line for line in t[1]]),
    ),
    max_leaves=6,
)


@contextmanager
def guarded() -> Iterator[None]:
    """Fail where a plan reaches a function that it must never reach, by any route.

    ``compile`` itself is what :func:`ast.parse` uses, with a flag that stops at the syntax tree.
    """
    saved = {name: getattr(builtins, name) for name in ("eval", "exec", "open", "__import__", "compile")}

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a plan reached a builtin")

    def syntax_only(source: Any, filename: Any, mode: Any, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
        assert flags & 0x400, "a plan was compiled to code"
        return saved["compile"](source, filename, mode, flags, *args, **kwargs)

    try:
        for name in ("eval", "exec", "open"):
            setattr(builtins, name, refuse)
        builtins.compile = syntax_only  # type: ignore[assignment]
        yield
    finally:
        for name, function in saved.items():
            setattr(builtins, name, function)


def outcome(text: str) -> ResolvedPlan | CandidateError:
    with guarded():
        try:
            plan = parse_plan(text)
            inputs = INPUTS[: max(1, min(len(plan.parameters), len(INPUTS)))]
            resolved = plan.resolve(inputs, WEIGHTS, ATTRS, limits=LIMITS, library=LIBRARY)
        except CandidateError as error:
            return error
    check(resolved)
    return resolved


def check(plan: ResolvedPlan) -> None:
    """Check the properties that every device relies on."""
    assert plan.launches
    assert plan.outputs
    assert len(plan.setup) + len(plan.steps) <= LIMITS.launches
    assert [buffer.id for buffer in plan.buffers] == list(range(len(plan.buffers)))
    assert sum(buffer.nbytes for buffer in plan.buffers if not buffer.provided) <= LIMITS.workspace_bytes
    for step in plan.setup:
        check_step(plan, step, {"weight", "prepared", "workspace"}, {"prepared", "workspace"})
    for step in plan.steps:
        check_step(plan, step, {"input", "weight", "prepared", "workspace"}, {"workspace"})
    temporary = [
        {b for b in buffers_of(steps) if plan.buffers[b].kind == "workspace"} for steps in (plan.setup, plan.steps)
    ]
    assert not temporary[0] & temporary[1]
    for output in plan.outputs:
        buffer = plan.buffers[output.buffer]
        assert buffer.kind == "workspace"
        assert output.offset_bytes >= 0
        assert output.offset_bytes + output.nbytes <= buffer.nbytes
    assert ResolvedPlan.from_wire(plan.to_wire()) == plan
    restored = ResolvedPlan.from_wire(json.loads(json.dumps(plan.to_wire())))
    assert repr(restored) == repr(plan)


def buffers_of(steps: Iterable[Step]) -> set[int]:
    ids: set[int] = set()
    for step in steps:
        if isinstance(step, Fill):
            ids.add(step.buffer)
        elif isinstance(step, Library):
            ids |= {v.buffer for v in (*step.args, *step.kwargs.values(), *step.out) if isinstance(v, TensorView)}
        else:
            ids |= {arg.buffer for arg in step.args if not isinstance(arg, ScalarArg)}
    return ids


def check_step(plan: ResolvedPlan, step: Step, touched: set[str], written: set[str]) -> None:
    """Check that a step stays within its buffers, touches only buffers of some kinds, and writes only to others."""
    assert {plan.buffers[buffer].kind for buffer in buffers_of([step])} <= touched
    if isinstance(step, Fill):
        assert plan.buffers[step.buffer].kind in written
        assert step.nbytes <= plan.buffers[step.buffer].nbytes
    elif isinstance(step, Library):
        assert step.operator in LIBRARY
        assert step.out
        for view in step.out:
            assert plan.buffers[view.buffer].kind in written
        for view in (*step.out, *step.args, *step.kwargs.values()):
            if isinstance(view, TensorView):
                last = sum((extent - 1) * stride for extent, stride in zip(view.shape, view.stride, strict=True))
                end = view.offset_bytes + (last + 1) * view.dtype.itemsize if 0 not in view.shape else 0
                assert view.offset_bytes >= 0
                assert end <= plan.buffers[view.buffer].nbytes
    else:
        assert min(step.grid + step.block) >= 1
        for arg in step.args:
            if isinstance(arg, TensorMapArg):
                assert arg.offset_bytes % 16 == 0
                assert len(arg.box) == len(arg.shape)
                assert arg.offset_bytes + math.prod(arg.shape) * arg.dtype.itemsize <= plan.buffers[arg.buffer].nbytes
            elif isinstance(arg, TensorArg):
                assert 0 <= arg.offset_bytes <= plan.buffers[arg.buffer].nbytes


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(statements, statements)
def test_any_plan_from_the_grammar_resolves_or_is_refused(lines: list[str], helper: list[str]) -> None:
    text = "def helper(a):\n" + "".join(f"    {line}\n" for line in helper)
    text += "def forward(x, y):\n    out = empty_like(x)\n" + "".join(f"    {line}\n" for line in lines)
    outcome(text + "    k[1, 32](x, out)\n    return out\n")


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(statements, statements, st.sampled_from(["prepared", "*prepared", "prepared[0]"]))
def test_any_setup_from_the_grammar_resolves_or_is_refused(setup: list[str], lines: list[str], read: str) -> None:
    text = "def helper(a):\n    return a\n"
    text += "def setup(w):\n    x = w['a']\n    y = zeros(6, float16)\n    out = zeros((6, 4))\n"
    text += "".join(f"    {line}\n" for line in setup) + "    return out, (y, out[3:])\n"
    text += "def forward(x, y):\n    out = empty_like(x)\n" + "".join(f"    {line}\n" for line in lines)
    outcome(text + f"    k[1, 32](x, out, {read})\n    return out\n")


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(expressions)
def test_any_expression_from_the_grammar_resolves_or_is_refused(expression: str) -> None:
    outcome(
        f"def forward(x, y):\n    out = empty_like(x)\n    a = {expression}\n    k[1, 32](x, out)\n    return out\n"
    )


TOKENS = (
    *" \n()[]{}:,.=+-*/%<>|&^~@#'\"\\;!$`", "    ", "\t", "\r", "\0", "0", "9" * 30, "1e999", "0x", "1j", "**", "//",
    "->", ":=", "==", "x", "n", "out", "__class__", "__import__", "__globals__", "open", "eval", "lambda ", "def ",
    "return ",
    "for ", "in ", "if ", "else ", "while ", "yield ", "await ", "async ", "import ", "class ", "del ", "with ", "try:",
    "global ", "not ", "None", "True", "f'", "{", "}", "'''", "kernel", "empty", "zeros", "range", "attrs", "w", "inf",
    "# tune: A = 1 | 2", "é", "а", "\ud800", "\u2028", "\x0c",
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(st.sampled_from(VALID), st.integers(0, 2**32), st.integers(1, 6))
def test_any_mutation_of_a_valid_plan_resolves_or_is_refused(text: str, seed: int, edits: int) -> None:
    rng = random.Random(seed)
    for _ in range(edits):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice([0, 0, 1, 2, 5, 30]))
        middle = rng.choice(["", rng.choice(TOKENS), rng.choice(TOKENS), text[end : end + 20], text[:40]])
        text = text[:start] + middle + text[end:]
    outcome(text)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200) | st.lists(st.sampled_from(TOKENS), max_size=60).map("".join))
def test_any_text_resolves_or_is_refused(text: str) -> None:
    outcome(text)
    outcome("def forward(x):\n" + text)


@pytest.mark.parametrize("text", VALID)
def test_the_valid_plans_are_valid(text: str) -> None:
    assert isinstance(outcome(text), ResolvedPlan)


@pytest.mark.slow
def test_memory_stays_small_whatever_a_plan_builds() -> None:
    """The largest values a plan can hold, each made as often as its steps allow."""
    resource = pytest.importorskip("resource")
    scale = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    for line in (
        "a = [f'{s}{i}' for i in range(65000)]",
        "a = [x[0] for i in range(65000)]",
        "a = [empty(1) for i in range(40000)]",
        "a = [[i, i, i, i] for i in range(30000)]",
        "a = [range(65536) + range(i - i) for i in range(100)]",
    ):
        text = f"def forward(x):\n    s = '{'a' * 900}'\n    {line}\n    k[1, 1](x)\n    return empty(1)\n"
        try:
            parse_plan(text).resolve([INPUTS[0]], {}, {})
        except CandidateError:
            continue
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale - before < 256 << 20
