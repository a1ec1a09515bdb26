"""Meaning of the plan language: each construct, by its launches."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernelforge.candidate import LaunchSignature, Plan, PlanLimits, ResolvedPlan, parse_plan, signatures
from kernelforge.candidate.resolved import Buffer, Fill, Launch, Output, ScalarArg, TensorArg
from kernelforge.errors import PlanError, PlanGuard
from kernelforge.records import DType, TensorSpec

X = TensorSpec.contiguous((6, 4), DType.FLOAT32)


def resolve(text: str, *inputs: Any, **options: Any) -> ResolvedPlan:
    options = {"weights": {}, "attrs": {}, **options}
    return parse_plan(text).resolve(inputs or (X,), **options)


def value(expression: str, before: str = "", **options: Any) -> int | float:
    """An expression's value, seen through the argument of a launch."""
    plan = f"def forward(x):\n    out = empty_like(x)\n{before}    k[1, 1](out, f64({expression}))\n    return out\n"
    scalar = resolve(plan, **options).launches[0].args[1]
    assert isinstance(scalar, ScalarArg)
    return scalar.value


def views(expression: str, spec: TensorSpec = X) -> TensorArg:
    plan = f"def forward(x):\n    out = empty_like(x)\n    k[1, 1](out, {expression})\n    return out\n"
    argument = resolve(plan, spec).launches[0].args[1]
    assert isinstance(argument, TensorArg)
    return argument


def test_a_plan_resolves_to_buffers_launches_and_outputs() -> None:
    plan = resolve(
        "# tune: BLOCK = 128 | 256\ndef forward(x):\n    n, d = x.shape\n    out = empty_like(x)\n"
        "    softmax[n, BLOCK, 4 * d](x, out, i32(n), f32(0.5))\n    return out\n"
    )
    assert plan.buffers == (Buffer(0, "input", 96, "x", 0), Buffer(1, "workspace", 96, "out"))
    assert plan.steps == (
        Launch(
            expression="softmax", grid=(6, 1, 1), block=(128, 1, 1), dynamic_shared_bytes=16,
            args=(
                TensorArg(0, 0, DType.FLOAT32), TensorArg(1, 0, DType.FLOAT32),
                ScalarArg("i32", 6), ScalarArg("f32", 0.5),
            ),
            line=5,
        ),
    )  # fmt: skip
    assert plan.outputs == (Output(1, 0, (6, 4), DType.FLOAT32),)
    assert plan.constants == {"BLOCK": 128}
    assert ResolvedPlan.from_wire(plan.to_wire()) == plan


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("2 + 3 * 4 - 1", 13), ("7 // 2", 3), ("-7 // 2", -4), ("7 / 2", 3.5), ("7 % 4", 3), ("2 ** 10", 1024),
        ("2 ** -1", 0.5), ("-x.shape[0]", -6), ("+3", 3), ("True + True", 2), ("ceil_div(7, 2)", 4),
        ("ceil_div(8, 2)", 4), ("ceil_div(-7, 2)", -3),
        ("min(3, 1, 2)", 1), ("max((3, 1.5))", 3), ("sqrt(16)", 4), ("log2(8)", 3), ("inf", math.inf),
        ("-inf", -math.inf),
        ("abs(-3)", 3), ("prod(x.shape)", 24), ("sum(x.shape)", 10), ("prod(())", 1), ("next_pow2(33)", 64),
        ("next_pow2(1)", 1), ("len(x.shape)", 2), ("int(2.9)", 2), ("float(3)", 3), ("bool(())", 0), ("x.numel()", 24),
        ("x.size(-1)", 4), ("x.size()[0]", 6), ("x.stride(0)", 4), ("x.stride()[1]", 1), ("x.ndim", 2), ("x.dim()", 2),
        ("x.is_contiguous()", 1), ("1 if x.dtype == float32 else 0", 1), ("x.dtype != float16", 1), ("1 < 2 < 3", 1),
        ("1 < 3 < 2", 0), ("3 in x.shape", 0), ("6 in x.shape", 1), ("5 not in (1, 2)", 1), ("(1, 2) == [1, 2]", 1),
        ("(1, 2) + (3,) == (1, 2, 3)", 1), ("not ()", 1), ("0 or 5", 5), ("3 and 5", 5), ("None is None", 1),
        ("x is None", 0), ("x is not None", 1), ("x == None", 0), ("(1, 2, 3)[-1]", 3), ("(1, 2, 3)[1:][0]", 2),
        ("range(10)[3]", 3), ("range(10)[2:4][1]", 3), ("len(range(0, 10, 3))", 4), ("len(range(5, 0, -2))", 3),
        ("len(range(5, 0))", 0), ("sum([i * i for i in range(4) if i != 2])", 10), ("sum(i for i in range(4))", 6),
        ("sum([i * j for i in range(3) for j in range(i)])", 2), ("prod(tuple(reversed((2, 3))))", 6),
        ("enumerate((5, 6))[1][0]", 1), ("enumerate((5, 6), 3)[1][0]", 4), ("enumerate((5,), start=2)[0][0]", 2),
        ("zip((1, 2), (3, 4))[1][1]", 4), ("max(*x.shape, 9)", 9), ("(*x.shape, 1)[2]", 1), ("1e3", 1000),
        ('"a" + "b" == "ab"', 1), ('f"{1}x" == "1x"', 1), ("list((1, 2))[1]", 2), ("0x10", 16), ("1_000", 1000),
    ],
)  # fmt: skip
def test_expressions_have_pythons_values(expression: str, expected: float) -> None:
    assert value(expression) == expected


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ("a, b = x.shape\na = b", 4), ("a, *b = (1, 2, 3)\na = b[1]", 3), ("*a, b = (1, 2, 3)\na = len(a)", 2),
        ("a = b = 3\na += b", 6), ("(a, (b, c)) = (1, (2, 3))\na = c", 3), ("[a, b] = (1, 2)", 1),
        ("a = 0\nfor i in range(5):\n    a += i", 10),
        ("a = 0\nfor i, (p, q) in enumerate([(1, 2), (3, 4)]):\n    a += i * q", 4),
        ("if x.shape[0] > 5:\n    a = 1\nelif x.shape[0] > 3:\n    a = 2\nelse:\n    a = 3", 1),
        ("if x.shape[0] > 9:\n    a = 1\nelif x.shape[0] > 3:\n    a = 2\nelse:\n    a = 3", 2),
        ("a = ()\nfor i in range(3):\n    a += [i]\na = len(a)", 3), ("'a docstring'\npass\na = 1", 1),
        ("i = 7\na = [i for i in range(3)]\na = i", 7),
    ],
)  # fmt: skip
def test_statements_mean_what_they_mean_in_python(statements: str, expected: float) -> None:
    before = "".join(f"    {line}\n" for line in statements.split("\n"))
    assert value("a", before) == expected


def test_helpers_take_positions_keywords_and_constant_defaults() -> None:
    plan = resolve("""
SCALE = 10

def inner(a, b=2, c=-1):
    if a > 100:
        return SCALE
    return a + b + c * SCALE

def send(out, v):
    k[1, 1](out, i32(v))

def forward(x):
    out = empty_like(x)
    send(out, inner(1))
    send(out, inner(1, 3))
    send(out, inner(1, c=1))
    send(v=inner(a=101), out=out)
    return out
""")
    assert [launch.args[1] for launch in plan.launches] == [ScalarArg("i32", v) for v in (-7, -6, 13, 10)]


def test_forward_may_have_defaults_and_non_tensor_inputs() -> None:
    text = "def forward(x, dim=1, scale=None):\n    out = empty_like(x)\n    k[1, 1](out, i32(dim))\n    return out\n"
    assert resolve(text, X).launches[0].args[1] == ScalarArg("i32", 1)
    assert resolve(text, X, 0, None).launches[0].args[1] == ScalarArg("i32", 0)
    assert resolve(text, X, True).launches[0].args[1] == ScalarArg("i32", 1)


@pytest.mark.parametrize(
    ("expression", "offset"),
    [
        ("x", 0), ("x[2]", 32), ("x[-1]", 80), ("x[2:]", 32), ("x[2, 1:3]", 36), ("x[1][2]", 24),
        ("x.view(24)[5:]", 20),
        ("x.view(-1, 2)[3]", 24), ("x.reshape((2, 3, 4))[1, 2]", 80), ("x.flatten()[7]", 28), ("x[2:, :]", 32),
        ("x[0:1, 2:3]", 8), ("x.view(2, 3, 4).flatten(0, 1)[4]", 64), ("x.view(3, 2, 4).flatten(1)[1]", 32),
        ("x[10:]", 80), ("x[3:1]", 48),
    ],
)  # fmt: skip
def test_views_are_offsets(expression: str, offset: int) -> None:
    assert views(expression) == TensorArg(0, offset, DType.FLOAT32)


def test_views_have_the_shape_torch_gives_them() -> None:
    assert value("prod(x[1:3].shape) + 100 * x.view(-1, 8).shape[0] + 1000 * x[0].ndim") == 8 + 300 + 1000


def test_offsets_count_bytes_of_the_dtype() -> None:
    assert views("x[1]", TensorSpec.contiguous((2, 3), DType.FLOAT16)).offset_bytes == 6


def test_a_strided_input_shows_its_strides_and_spans_its_storage() -> None:
    spec = TensorSpec(shape=(4, 3), dtype=DType.FLOAT32, stride=(1, 8))
    text = "def forward(x):\n    out = empty_like(x)\n    k[1, 1](x, out, i32(x.stride(1)))\n    return out\n"
    plan = resolve(text, spec)
    assert plan.launches[0].args[2] == ScalarArg("i32", 8)
    assert plan.buffers[0].nbytes == (3 + 2 * 8 + 1) * 4
    assert plan.buffers[1].nbytes == 48


@pytest.mark.parametrize(
    ("call", "shape", "dtype"),
    [
        ("empty((2, 3))", (2, 3), DType.FLOAT32), ("empty(2, 3, dtype=float16)", (2, 3), DType.FLOAT16),
        ("empty((2, 3), bfloat16)", (2, 3), DType.BFLOAT16), ("empty(5)", (5,), DType.FLOAT32),
        ("empty(*x.shape, dtype=x.dtype)", (6, 4), DType.FLOAT32), ("empty_like(x, dtype=bool)", (6, 4), DType.BOOL),
        ("zeros((2,), dtype=int64)", (2,), DType.INT64), ("zeros_like(x)", (6, 4), DType.FLOAT32),
        ("empty(())", (), DType.FLOAT32), ("empty((0, 3))", (0, 3), DType.FLOAT32),
    ],
)  # fmt: skip
def test_allocations_have_shape_and_dtype(call: str, shape: tuple[int, ...], dtype: DType) -> None:
    plan = resolve(f"def forward(x):\n    out = {call}\n    k[1, 1](x, out)\n    return out\n")
    assert (plan.outputs[0].shape, plan.outputs[0].dtype) == (shape, dtype)
    assert any(isinstance(step, Fill) for step in plan.steps) == call.startswith("zeros")


def test_weights_become_buffers_when_used_in_order_of_use() -> None:
    weights = {name: TensorSpec.contiguous((4,), DType.FLOAT32) for name in ("a", "b.weight", "c")}
    plan = resolve(
        "def forward(x):\n    out = empty_like(x)\n    k[1, 1](out, w['c'], w['b.weight'], w['c'])\n    return out\n",
        weights=weights,
    )
    assert plan.buffers[1:3] == (
        Buffer(1, "weight", 16, "w['c']", "c"),
        Buffer(2, "weight", 16, "w['b.weight']", "b.weight"),
    )
    assert [arg.buffer for arg in plan.launches[0].args] == [3, 1, 2, 1]


def test_attributes_are_values_and_membership_can_be_asked() -> None:
    attrs = {"n": 3, "mode": "same", "eps": 0.5}
    assert value("attrs['n'] + attrs['eps']", attrs=attrs) == 3.5
    assert value("1 if attrs['mode'] == 'same' else 0", attrs=attrs) == 1
    assert value("('n' in attrs) + ('m' in attrs) + ('n' in w)", attrs=attrs) == 1


def test_launch_options_follow_the_arguments() -> None:
    launch = resolve(
        "def forward(x):\n    out = empty_like(x)\n"
        "    k[(4, 2), (8, 4), 1024](x, out, cluster=(2, 2), cooperative=True)\n    return out\n"
    ).launches[0]
    assert (launch.grid, launch.block) == ((4, 2, 1), (8, 4, 1))
    assert (launch.dynamic_shared_bytes, launch.cluster, launch.cooperative) == (1024, (2, 2, 1), True)


def test_template_kernels_are_named_by_expression() -> None:
    plan = resolve("""
def forward(x):
    out = empty_like(x)
    kernel(f"ns::f<float, {x.shape[1] * 2}, {x.ndim == 2}>")[1, 1](x, out)
    chosen = kernel("g<(1+2), int*>") if x.ndim == 2 else kernel("h")
    chosen[1, 1](out)
    k[1, 1](out)
    return out
""")
    assert plan.expressions == ("ns::f<float, 8, true>", "g<(1+2), int*>", "k")


def test_signatures_give_each_kernel_with_each_set_of_types_once() -> None:
    plan = resolve("""
def forward(x):
    out = empty_like(x, dtype=float16)
    for i in range(3):
        a[1, 1](x, out, i32(i))
    a[1, 1](x, out, i64(1))
    b[1, 1](f32(1), f64(1), f16(1), bf16(1))
    return out
""")
    assert signatures(plan) == [
        LaunchSignature("a", ("tensor:float32", "tensor:float16", "i32")),
        LaunchSignature("a", ("tensor:float32", "tensor:float16", "i64")),
        LaunchSignature("b", ("f32", "f64", "f16", "bf16")),
    ]


def test_several_outputs_are_flattened() -> None:
    plan = resolve(
        "def forward(x):\n    a, b = empty((2,)), empty((3,))\n    c = empty((8,))\n    k[1, 1](a, b, c)\n"
        "    return a, [b, (c[0:4], c[4:8])]\n"
    )
    assert [output.shape for output in plan.outputs] == [(2,), (3,), (4,), (4,)]
    assert [output.offset_bytes for output in plan.outputs] == [0, 0, 0, 16]


TUNED = """
# tune: BLOCK = 128 | 256 | 512
#tune:ITEMS=4|-1
TILE = BLOCK * ITEMS
HALF, EPS = TILE // 2, 1e-5
SHAPE = (16, 16)
def forward(x):
    out = empty_like(x)
    k[1, BLOCK](x, out, i32(HALF), f32(EPS), i32(SHAPE[0]))
    return out
"""


def test_tunables_and_top_level_integers_are_constants() -> None:
    plan = parse_plan(TUNED)
    assert plan.tunables == {"BLOCK": (128, 256, 512), "ITEMS": (4, -1)}
    assert len(plan.combinations) == 6
    assert plan.constants == {"BLOCK": 128, "ITEMS": 4, "TILE": 512, "HALF": 256}
    assert plan.constants_at({"BLOCK": 512})["TILE"] == 2048


def test_choices_reach_the_plan_and_the_constants() -> None:
    plan = resolve(TUNED, choices={"BLOCK": 256})
    assert plan.launches[0].block == (256, 1, 1)
    assert plan.launches[0].args[2] == ScalarArg("i32", 512)
    assert plan.constants == {"BLOCK": 256, "ITEMS": 4, "TILE": 1024, "HALF": 512}


@pytest.mark.parametrize(
    ("choices", "message"),
    [({"BLOCK": 64}, "BLOCK = 64 is not one of 128 | 256 | 512"), ({"WIDTH": 1}, "no '# tune: WIDTH = ...' line")],
)
def test_choices_that_the_plan_does_not_offer_are_refused(choices: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message.replace("|", r"\|")):
        resolve(TUNED, choices=choices)


def test_top_level_asserts_remove_combinations_before_they_are_counted() -> None:
    lines = "# tune: BM = 16 | 32 | 64 | 128 | 256\n# tune: BN = 16 | 32 | 64 | 128 | 256\n"
    constraint = "BYTES = (BM + BN) * 64\nassert BYTES <= 12288 and BM <= BN\nassert BN % (2 * BM) == 0\n"
    rest = "def forward(x):\n    out = empty_like(x)\n    k[1, BM](x, out)\n    return out\n"
    plan = parse_plan(lines.replace("BN = 16 | 32", "BN = 32 | 16") + constraint + rest)
    pairs = [(choices["BM"], choices["BN"]) for choices in plan.combinations]
    assert pairs == [(16, 32), (16, 64), (16, 128), (32, 64), (32, 128), (64, 128)]
    assert plan.constants == {"BM": 16, "BN": 32, "BYTES": 3072}
    with pytest.raises(PlanGuard, match="line 4: BYTES <= 12288 and BM <= BN"):
        plan.constants_at({"BM": 256})


def test_top_level_asserts_remove_combinations_whose_constants_fault() -> None:
    rest = "def forward(x):\n    out = empty_like(x)\n    k[1, 32](x, out)\n    return out\n"
    divided = parse_plan("# tune: A = 2 | 0 | 4\nassert 64 % A == 0\n" + rest)
    assert [choices["A"] for choices in divided.combinations] == [2, 4]
    squared = parse_plan("# tune: A = 1 | 65536\nB = A * A\nassert B > 0\n" + rest)
    assert [choices["A"] for choices in squared.combinations] == [1]


def test_a_tune_line_inside_a_string_is_text() -> None:
    text = 'def forward(x):\n    """\n    # tune: A = 1 | 2\n    """\n    k[1, 1](x)\n    return empty(1)\n'
    assert parse_plan(text).tunables == {}


def test_a_guard_refuses_a_size_with_its_message_and_line() -> None:
    text = """def forward(x):
    assert x.shape[1] % 8 == 0, f'rows of {x.shape[1]}'
    k[1, 1](x)
    return empty(1)
"""
    with pytest.raises(PlanGuard, match="line 2: rows of 4") as caught:
        resolve(text)
    assert caught.value.line == 2
    assert resolve(text, TensorSpec.contiguous((1, 8), DType.FLOAT32)).launches


def test_a_guard_without_a_message_shows_its_condition() -> None:
    with pytest.raises(PlanGuard, match=r"x\.ndim > 2"):
        resolve("def forward(x):\n    assert x.ndim > 2\n    k[1, 1](x)\n    return empty(1)\n")


def test_a_plan_resolves_to_the_same_launches_every_time() -> None:
    plan = parse_plan(TUNED)
    assert plan.resolve([X], {}, {}) == plan.resolve([X], {}, {})


def test_a_plan_is_resolved_anew_for_each_size() -> None:
    plan: Plan = parse_plan("def forward(x):\n    out = empty_like(x)\n    k[x.shape[0], 32](x, out)\n    return out\n")
    for rows in (1, 7, 65_536):
        assert plan.resolve([TensorSpec.contiguous((rows, 2), DType.FLOAT32)], {}, {}).launches[0].grid[0] == rows


@pytest.mark.slow
def test_a_recurrent_network_fits_the_limits() -> None:
    """A GRU of 2 layers over 512 steps: 3,074 launches, a few hundred thousand steps, two scratch buffers."""
    text = """
def cell(x, h, wi, wh, out, batch, hidden, width):
    gi = empty((batch, 3 * hidden), dtype=float32)
    gh = empty((batch, 3 * hidden), dtype=float32)
    gemm[(ceil_div(3 * hidden, 64), ceil_div(batch, 64)), 256](x, wi, gi, i32(batch), i32(3 * hidden), i32(width))
    gemm[(ceil_div(3 * hidden, 64), ceil_div(batch, 64)), 256](h, wh, gh, i32(batch), i32(3 * hidden), i32(hidden))
    gate[ceil_div(batch * hidden, 256), 256](gi, gh, h, out, i32(batch), i32(hidden))
    return out

def forward(x, h0):
    length, batch, width = x.shape
    hidden = h0.shape[2]
    final = empty_like(h0)
    for layer in range(attrs["layers"]):
        outs = empty((length, batch, hidden), dtype=x.dtype)
        h = h0[layer]
        for t in range(length):
            h = cell(x[t], h, w[f"wi{layer}"], w[f"wh{layer}"], outs[t], batch, hidden, width)
        copy[ceil_div(batch * hidden, 256), 256](h, final[layer], i32(batch * hidden))
        x = outs
    return x, final
"""
    weights = {
        f"{kind}{layer}": TensorSpec.contiguous((768, 256), DType.FLOAT32) for kind in ("wi", "wh") for layer in (0, 1)
    }
    inputs = [TensorSpec.contiguous(shape, DType.FLOAT32) for shape in ((512, 10, 256), (2, 10, 256))]
    plan = parse_plan(text).resolve(inputs, weights, {"layers": 2})
    assert len(plan.launches) == 3074
    assert sum(buffer.label in ("gi", "gh") for buffer in plan.buffers) == 2


def test_limits_can_be_set_by_the_caller() -> None:
    with pytest.raises(PlanError, match="more than 2 launches"):
        resolve(
            "def forward(x):\n    for i in range(3):\n        k[1, 1](x)\n    return empty(1)\n",
            limits=PlanLimits(launches=2),
        )
