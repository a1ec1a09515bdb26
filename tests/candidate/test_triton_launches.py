"""Launches of Triton kernels in a plan, and replies that hold such kernels."""

import json

import pytest

from kernelforge.candidate import ResolvedPlan, format_reply, parse_plan, parse_reply, signatures
from kernelforge.candidate.resolved import Launch, ScalarArg, TensorArg
from kernelforge.errors import CandidateError, PlanError
from kernelforge.records import Build, Candidate, CompiledLaunch, DType, KernelFacts, TensorSpec

SOURCE = """import triton
import triton.language as tl

@triton.jit
def rows(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)
"""
REPLY = "{open}\n{source}```\n\n```python\n{plan}```\n"
PLAN = """# tune: BLOCK = 128 | 256
def forward(x):
    out = empty_like(x)
    rows[ceil_div(x.numel(), BLOCK)](x, out, i32(x.numel()), BLOCK=BLOCK, num_warps=2)
    return out
"""


def resolve(body: str, shape: tuple[int, ...] = (64, 1024)) -> ResolvedPlan:
    plan = f"def forward(x):\n    n, d = x.shape\n    out = empty_like(x)\n    {body}\n    return out\n"
    spec = TensorSpec(shape=shape, stride=(shape[1], 1), dtype=DType.FLOAT32)
    return parse_plan(plan, "triton").resolve([spec], {}, {})


def launch(body: str) -> Launch:
    (step,) = resolve(body).launches
    return step


def test_a_launch_has_a_grid_of_programs_and_a_block_of_its_warps():
    made = launch("rows[n, 2](x, out, i32(d), BLOCK=next_pow2(d), num_warps=8)")
    assert (made.grid, made.block) == ((64, 2, 1), (256, 1, 1))
    assert launch("rows[(n, 2, 3)](x, out)").grid == (64, 2, 3)
    assert made.expression == "rows<*fp32:16, *fp32:16, i32:16, BLOCK=1024, num_warps=8, num_stages=3>"


@pytest.mark.parametrize(
    ("argument", "kind", "passed"),
    [
        ("x", "*fp32:16", True),
        ("x[1:].view(-1)[1:]", "*fp32", True),
        ("i32(32)", "i32:16", True),
        ("i32(33)", "i32", True),
        ("i64(0)", "i64:16", True),
        ("i64(1)", "1", False),
        ("f32(1)", "fp32", True),
        ("bf16(2)", "bf16", True),
        ("None", "None", False),
    ],
)
def test_arguments_have_the_types_that_tritons_own_launcher_would_find(argument, kind, passed):
    made = launch(f"out2 = zeros((4,))\n    rows[1](out, {argument.replace('x', 'out2.view(2, 2)')})")
    assert made.specialisation is not None
    assert made.specialisation.arguments == ("*fp32:16", kind)
    assert len(made.args) == 1 + passed


def test_constants_that_differ_in_type_alone_make_different_kernels():
    values = ["1", "True", "1.0", "'1'", "float16", "'float16'", "None"]
    names = {launch(f"rows[1](x, out, K={value})").expression for value in values}
    assert len(names) == len(values)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "rows[n](x, out, n)",
            "argument 3 of rows is an int; say its type, i32(64), or pass a tl.constexpr by its name",
        ),
        ("rows[n](x, out, n=i32(n))", "n of rows is a typed scalar: arguments go by position"),
        ("rows[n](x, out=out)", "out of rows is a tensor: arguments go by position"),
        ("rows[n](x, out, num_warps=3)", "num_warps of rows is 3; it is 1, 2, 4, 8, 16 or 32"),
        ("rows[n](x, out, num_stages=0)", "num_stages of rows is 0; it is 1 to 10"),
        ("rows[0](x, out)", "x must be at least 1"),
        ("rows[n, 1, 1, 1](x, out)", "the grid of rows has 4 dimensions"),
        ("rows[n](tensor_map(x, box=(8, 8)), out)", "pass the tensor, a kernel uses tl.make_tensor_descriptor"),
        ("rows[n](x, out, K=inf)", "K of rows is inf"),
        ("rows[n](x, out, K=(1, 2))", "a tl.constexpr is an int"),
        ("kernel('rows<float>')[n](x, out)", "is not the name of a Triton function"),
    ],
)
def test_a_malformed_launch_is_refused_with_its_line(body, message):
    with pytest.raises(PlanError) as caught:
        resolve(body)
    assert message in str(caught.value)
    assert caught.value.line == 4


def test_a_plan_for_cuda_has_no_named_constants():
    with pytest.raises(PlanError, match="a launch has no option 'BLOCK'"):
        parse_plan("def forward(x):\n    rows[1, 32](x, BLOCK=2)\n    return x\n")


@pytest.mark.parametrize("label", ["triton", "python", "Triton", ""])
def test_a_reply_may_hold_a_triton_block(label):
    candidate = parse_reply(REPLY.format(open=f"```{label}", source=SOURCE, plan=PLAN))
    assert candidate.language == "triton"
    assert candidate == Candidate(source=SOURCE.rstrip("\n"), plan=PLAN.rstrip("\n"))
    assert parse_reply(format_reply(candidate)) == candidate


def test_the_last_block_of_either_language_is_the_source():
    cuda = "```cuda\n__global__ void k() {}\n```\n"
    triton = REPLY.format(open="```triton", source=SOURCE, plan=PLAN)
    assert parse_reply(cuda + triton).language == "triton"
    assert parse_reply(triton + cuda).language == "cuda"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("```triton\nx = 1\n```\n```python\ndef forward(x): pass\n```", "defines no function under @triton.jit"),
        (f"```triton\n{SOURCE}```", "the reply has no ```python block with the launch plan"),
    ],
)
def test_what_a_triton_reply_lacks_is_named(reply, message):
    with pytest.raises(CandidateError, match=message):
        parse_reply(reply)


def test_a_plan_is_bound_to_what_the_compiler_decided():
    plan = parse_plan(PLAN, "triton").resolve([TensorSpec(shape=(300,), stride=(1,), dtype=DType.FLOAT32)], {}, {})
    facts = CompiledLaunch(
        threads_per_block=96, dynamic_shared_bytes=512, scratch_bytes_per_block=128, hidden_parameters=2
    )
    kernel = KernelFacts(
        expression=plan.expressions[0],
        symbol="rows",
        registers_per_thread=8,
        static_shared_bytes=0,
        spill_store_bytes=0,
        spill_load_bytes=0,
        stack_frame_bytes=0,
        launch=facts,
    )
    bound = plan.bound_to(Build(key="k", ok=True, arch="sm_80", toolchain="triton", kernels=(kernel,), seconds=0))
    (step,) = bound.launches
    assert (step.block, step.dynamic_shared_bytes) == ((96, 1, 1), 512)
    scratch = bound.buffers[-1]
    assert scratch.nbytes == 3 * 128
    assert step.args[-2:] == (TensorArg(scratch.id, 0, DType.UINT8), ScalarArg("i64", 0))
    assert len(signatures(plan)) == 1
    wire = json.loads(json.dumps(bound.to_wire()))
    assert ResolvedPlan.from_wire(wire).launches[0].args == step.args
