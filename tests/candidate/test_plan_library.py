"""``library``: which operators a plan may name, what it may pass, and where results may go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernelforge.candidate import PlanLimits, ResolvedPlan, parse_plan
from kernelforge.candidate.resolved import Library, TensorView
from kernelforge.errors import PlanError
from kernelforge.records import DType, TensorSpec

X = TensorSpec.contiguous((8, 32), DType.FLOAT32)
S = TensorSpec(shape=(32, 8), dtype=DType.FLOAT32, stride=(1, 32))
WEIGHTS = {"weight": TensorSpec.contiguous((16, 32), DType.FLOAT32)}
ALLOWED = ("matmul", "linear", "topk", "_private")


def resolve(text: str, *, library: Any = ALLOWED, **options: Any) -> ResolvedPlan:
    return parse_plan(text).resolve([X, S], WEIGHTS, {}, library=library, **options)


def body(*lines: str) -> str:
    inner = "".join(f"    {line}\n" for line in lines)
    return f"def forward(x, s):\n    out = empty((8, 8))\n{inner}    k[1, 32](x, out)\n    return out\n"


def call(*lines: str) -> Library:
    (step,) = resolve(body(*lines)).libraries
    return step


def test_a_call_resolves_to_views_and_values() -> None:
    step = call('library("matmul", x, s, out=out)')
    assert step == Library(
        "matmul",
        (TensorView(0, 0, (8, 32), (32, 1), DType.FLOAT32), TensorView(1, 0, (32, 8), (1, 32), DType.FLOAT32)),
        {},
        (TensorView(2, 0, (8, 8), (8, 1), DType.FLOAT32),),
        line=3,
    )


def test_every_kind_of_value_passes_by_position_and_by_name() -> None:
    step = call(
        'name, half = "topk", x[2:, :]',
        'library(name, half, 3, 0.5, True, None, "mean", (1, -2), range(3), out=out, dim=-1, bias=None, p=[4], w=half)',
    )
    half = TensorView(0, 2 * 32 * 4, (6, 32), (32, 1), DType.FLOAT32)
    assert step.args == (half, 3, 0.5, True, None, "mean", (1, -2), (0, 1, 2))
    assert step.kwargs == {"dim": -1, "bias": None, "p": (4,), "w": half}


def test_several_results_go_into_several_tensors() -> None:
    step = call(
        "values, indices = empty((8, 4)), empty((8, 4), dtype=int64)", 'library("topk", x, 4, out=(values, indices))'
    )
    assert [(view.shape, view.dtype) for view in step.out] == [((8, 4), DType.FLOAT32), ((8, 4), DType.INT64)]


def test_results_may_be_views_of_one_tensor_that_do_not_overlap() -> None:
    step = call("both = empty((2, 8, 8))", 'library("topk", x, 4, out=(both[0], both[1]))')
    assert [view.offset_bytes for view in step.out] == [0, 256]


def test_calls_keep_their_place_among_the_steps_and_their_tensors_alive() -> None:
    plan = resolve(
        body(
            "a = empty((8, 8))",
            "k[1, 32](x, a)",
            "b = empty((8, 8))",
            "library('matmul', a, s, out=b)",
            "c = empty((8, 8))",
            "k[1, 32](b, c)",
            "library('linear', c, bias=b, out=out)",
        )
    )
    assert [type(step).__name__ for step in plan.steps] == ["Launch", "Library", "Launch", "Library", "Launch"]
    first, second = plan.libraries
    a, b = first.args[0], first.out[0]
    assert isinstance(a, TensorView)
    c = second.args[0]
    assert isinstance(c, TensorView)
    assert a.buffer == c.buffer != b.buffer
    assert second.kwargs["bias"] == b


def test_setup_may_call_operators() -> None:
    head = "def setup(w):\n    a = empty((32, 16))\n    library('matmul', w['weight'], 1, out=a)\n    return a\n"
    plan = resolve(head + body("k[1, 32](prepared, out)"))
    assert [step.operator for step in plan.libraries] == ["matmul"]
    assert plan.setup == plan.libraries
    assert [plan.buffers[view.buffer].kind for view in plan.libraries[0].out] == ["prepared"]


def test_a_plan_with_calls_survives_the_wire() -> None:
    plan = resolve(
        body(
            "values, indices = empty((8, 4)), empty((8, 4), dtype=int64)",
            'library("topk", s, 3, 0.5, True, None, "mean", (1, -2), (), out=(values, indices), dim=-1, w=x, t=(1,))',
            "library('matmul', x, inf, out=out)",
        )
    )
    back = ResolvedPlan.from_wire(json.loads(json.dumps(plan.to_wire())))
    assert back == plan
    assert hash(back.steps) == hash(plan.steps)
    assert [type(value) for value in back.libraries[0].args] == [type(value) for value in plan.libraries[0].args]


def test_by_default_no_operator_is_allowed() -> None:
    with pytest.raises(PlanError, match=r"does not allow library\('matmul'\): it allows none; write a kernel"):
        parse_plan(body('library("matmul", x, s, out=out)')).resolve([X, S], {}, {})


def test_calls_count_towards_the_limit_of_launches() -> None:
    text = body("for i in range(5):", "    library('matmul', x, s, out=out)")
    assert len(resolve(text, limits=PlanLimits(launches=6)).libraries) == 5
    with pytest.raises(PlanError, match="more than 5 launches, memsets and library calls"):
        resolve(text, limits=PlanLimits(launches=5))


REFUSED = [
    ("library('conv2d', x, out=out)", "does not allow library('conv2d'): it allows _private, linear, matmul, topk"),
    ("library('__class__', x, out=out)", "'__class__' is not an operator's name"),
    ("library('ops.aten.matmul', x, out=out)", "'ops.aten.matmul' is not an operator's name such as 'matmul'"),
    ("library('mat mul', x, out=out)", "is not an operator's name"),
    ("library('', x, out=out)", "is not an operator's name"),
    (f"library('{'a' * 65}', x, out=out)", "is not an operator's name"),
    ("library(x, s, out=out)", "library takes the operator's name first"),
    ("library(out=out)", "library takes the operator's name first"),
    ("library('matmul', x, s)", "library needs out="),
    ("library('matmul', x, s, out=None)", "out of matmul is a tensor or several, not None"),
    ("library('matmul', x, s, out=())", "out of matmul is 1 to 64 tensors, not 0"),
    ("library('matmul', x, s, out=(out, 3))", "out of matmul is a tensor or several, not an int"),
    ("library('matmul', x, s, out=(out, (out,)))", "out of matmul is a tensor or several, not a sequence"),
    ("library('matmul', x, s, out=x)", "out of matmul is x, which the plan was given; write to a new tensor"),
    ("library('matmul', x, s, out=w['weight'])", "out of matmul is w['weight'], which the plan was given"),
    ("library('matmul', x, out, out=out)", "out of matmul overlaps another of its tensors, in out"),
    ("library('matmul', x, out=out, other=out)", "out of matmul overlaps another of its tensors, in out"),
    ("library('matmul', out[0:5], out=out[4:])", "out of matmul overlaps another of its tensors, in out"),
    ("library('topk', x, out=(out, out))", "out of topk overlaps another of its tensors, in out"),
    ("library('matmul', x, i32(3), out=out)", "argument 2 of matmul is a typed scalar; library takes tensors, numbers"),
    ("library('matmul', x, float32, out=out)", "argument 2 of matmul is a dtype"),
    ("library('matmul', x, dtype=float32, out=out)", "dtype of matmul is a dtype"),
    ("library('matmul', x, w, out=out)", "argument 2 of matmul is w"),
    ("library('matmul', x, tensor_map(x, box=(8, 8)), out=out)", "argument 2 of matmul is a tensor map"),
    ("library('matmul', x, (1, 2.5), out=out)", "argument 2 of matmul is (1, 2.5); a sequence for library holds ints"),
    ("library('matmul', x, (True,), out=out)", "a sequence for library holds ints only"),
    ("library('matmul', (x, s), out=out)", "a sequence for library holds ints only"),
    ("library('matmul', x, 2 ** 62 * 2, out=out)", "argument 2 of matmul does not fit 64 bits"),
    ("library('matmul', x, (2 ** 62 * 2,), out=out)", "argument 2 of matmul does not fit 64 bits"),
    ("library('matmul', x, range(65), out=out)", "argument 2 of matmul has 65 items; the limit is 64"),
    ("library('matmul', *[x for i in range(64)], out=out)", "library takes at most 64 arguments, got 65"),
    ("library('topk', x, out=[empty(1) for i in range(65)])", "out of topk is 1 to 64 tensors, not 65"),
    ("library('matmul', **x, out=out)", "the plan language has no ** in calls"),
    ("a = library('matmul', x, s, out=out)", "library stands on a line of its own: it gives no value"),
    ("a = library", "library is a function: call it, it is not a value"),
    ("library = 3", "'library' is a name of the plan language"),
    ("library[1, 1](x)", "'library' is not a kernel"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_a_call_may_not_do_is_refused_with_its_line(line: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        resolve(body(line))
    assert message in str(caught.value)
    assert caught.value.line == 3


def test_a_plan_of_operators_alone_is_refused() -> None:
    text = "def forward(x, s):\n    out = empty((8, 8))\n    library('matmul', x, s, out=out)\n    return out\n"
    with pytest.raises(PlanError, match="the plan launches no kernel"):
        resolve(text)


def test_the_top_level_calls_nothing() -> None:
    with pytest.raises(PlanError, match="top level holds def, assert and NAME = expression only"):
        resolve("library('matmul', 1, out=2)\n" + body("pass"))
