"""Values that the tolerance accepts and rejects: candidates made with numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.oracle.worker.tolerance import expected_output
from kernelforge.records import TaskPolicy
from tests.evaluation.oracle_tasks import judge, make_task, tensors

SEEDS = (1, 2)


def sequential_sum(x: np.ndarray, dtype: type) -> np.ndarray:
    return np.add.accumulate(x.astype(dtype), axis=-1, dtype=dtype)[..., -1]


@pytest.mark.parametrize("draw", ["torch.rand(16, 4096)", "torch.randn(16, 4096)", "torch.rand(4, 16384)"])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_honest_in_order_f32_sum_passes(draw: str, seed: int) -> None:
    reckoner = ReferenceRunner(make_task("a.sum(1)", draw))
    for family in reckoner.scales("small"):
        drawn = reckoner.draw("small", family, seed)
        x = tensors(drawn)[0].numpy()
        assert judge(reckoner, drawn, sequential_sum(x, np.float32)).ok
        backwards = sequential_sum(x[:, ::-1], np.float32)
        assert judge(reckoner, drawn, backwards).ok
        strided = sum(sequential_sum(x[:, i::32], np.float32) for i in range(32))
        assert judge(reckoner, drawn, np.asarray(strided, np.float32)).ok


def test_an_in_order_sum_errs_several_times_more_than_torch() -> None:
    """The reason why torch's own error alone would be an unfair bound."""
    reckoner = ReferenceRunner(make_task("a.sum(1)", "torch.rand(64, 4096)"))
    drawn = reckoner.draw("small", "task", 1)
    assert drawn.expected is not None
    x = tensors(drawn)[0]
    exact = x.double().sum(1)
    torch_error = (x.sum(1).double() - exact).abs().max()
    ordered_error = (torch.from_numpy(sequential_sum(x.numpy(), np.float32)).double() - exact).abs().max()
    assert ordered_error > 7 * torch_error


@pytest.mark.parametrize("seed", SEEDS)
def test_an_f16_accumulator_in_an_f32_sum_fails(seed: int) -> None:
    reckoner = ReferenceRunner(make_task("a.sum(1)", "torch.rand(64, 512)"))
    drawn = reckoner.draw("small", "task", seed)
    half = sequential_sum(tensors(drawn)[0].numpy(), np.float16).astype(np.float32)
    assert not judge(reckoner, drawn, half).ok


@pytest.mark.parametrize("depth", [64, 1024, 2048])
@pytest.mark.parametrize("seed", SEEDS)
def test_narrow_matmuls_fail_and_in_order_ones_pass(depth: int, seed: int) -> None:
    reckoner = ReferenceRunner(make_task("a @ b", f"torch.randn(32, {depth}), torch.randn({depth}, 32)"))
    drawn = reckoner.draw("small", "task", seed)
    a, b = tensors(drawn)
    ordered, halved = torch.zeros(32, 32), torch.zeros(32, 32, dtype=torch.float16)
    for k in range(depth):
        ordered += a[:, k : k + 1] * b[k : k + 1]
        halved += (a[:, k : k + 1] * b[k : k + 1]).half()
    assert judge(reckoner, drawn, ordered).ok
    assert not judge(reckoner, drawn, halved.float()).ok
    assert not judge(reckoner, drawn, (a.half() @ b.half()).float()).ok
    assert not judge(reckoner, drawn, (a.bfloat16().float() @ b.bfloat16().float())).ok
    assert not judge(reckoner, drawn, as_tf32(a) @ as_tf32(b)).ok


@pytest.mark.parametrize("seed", SEEDS)
def test_tf32_on_positive_inputs_fails(seed: int) -> None:
    reckoner = ReferenceRunner(make_task("a @ b", "torch.rand(64, 1024), torch.rand(1024, 64)"))
    drawn = reckoner.draw("small", "normal", seed)
    a, b = tensors(drawn)
    assert not judge(reckoner, drawn, as_tf32(a) @ as_tf32(b)).ok


def as_tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to 10 bits of mantissa, as tensor cores read f32 operands."""
    bits = x.view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.slow
def test_zeros_fail_a_softmax_over_16384() -> None:
    reckoner = ReferenceRunner(make_task("torch.softmax(a, 1)", "torch.randn(4, 16384)"))
    for family in reckoner.scales("small"):
        drawn = reckoner.draw("small", family, 5)
        x = tensors(drawn)[0]
        comparison = judge(reckoner, drawn, torch.zeros_like(x))
        assert not comparison.ok
        assert "every differing element is zero" in comparison.message


def test_an_in_order_softmax_with_fast_exponentials_passes() -> None:
    reckoner = ReferenceRunner(make_task("torch.softmax(a, 1)", "torch.randn(4, 4096)"))
    for family in reckoner.scales("small"):
        drawn = reckoner.draw("small", family, 5)
        x = tensors(drawn)[0]
        # exp2(x * log2 e), the product rounded, as a kernel does with ex2.approx
        powers = torch.exp2((x - x.amax(1, keepdim=True)) * np.float32(1.4426950408889634))
        total = torch.from_numpy(np.add.accumulate(powers.numpy(), axis=1, dtype=np.float32))[:, -1:]
        assert judge(reckoner, drawn, powers * (1.0 / total)).ok


def test_a_softmax_without_its_maximum_fails_at_large_magnitude() -> None:
    reckoner = ReferenceRunner(make_task("torch.softmax(a, 1)", "torch.randn(16, 512)"))
    drawn = reckoner.draw("small", "large", 5)
    powers = tensors(drawn)[0].exp()
    comparison = judge(reckoner, drawn, powers / powers.sum(1, keepdim=True))
    assert not comparison.ok
    assert "NaN" in comparison.message


@pytest.mark.parametrize("seed", SEEDS)
def test_layernorm_in_one_pass_passes_and_without_epsilon_fails(seed: int) -> None:
    reckoner = ReferenceRunner(make_task("self.n(a)", "torch.randn(16, 1000)", init="self.n = nn.LayerNorm(1000)"))
    weights = reckoner.reference("small").weights
    drawn = reckoner.draw("small", "task", seed)
    x, w = tensors(drawn)[0], weights()
    mean = x.mean(1, keepdim=True)
    variance = (x * x).mean(1, keepdim=True) - mean * mean
    scaled = (x - mean) * torch.rsqrt(variance + 1e-5) * w["n.weight"] + w["n.bias"]
    assert judge(reckoner, drawn, scaled).ok
    assert not judge(reckoner, drawn, (x - mean) * torch.rsqrt(variance + 1e-5)).ok
    drawn = reckoner.draw("small", "edge", seed)
    x, w = tensors(drawn)[0], weights()
    mean = x.mean(1, keepdim=True)
    bare = (x - mean) * torch.rsqrt((x - mean).square().mean(1, keepdim=True)) * w["n.weight"] + w["n.bias"]
    assert not judge(reckoner, drawn, bare).ok


@pytest.mark.slow
@pytest.mark.parametrize("features", [1033, 512])
def test_honest_layernorms_pass_every_family(features: int) -> None:
    init = f"self.n = nn.LayerNorm({features})"
    reckoner = ReferenceRunner(make_task("self.n(a)", f"torch.randn(64, {features})", init=init))
    inverse = np.float32(1 / features)
    assert "edge" in reckoner.scales("small")
    for family in reckoner.scales("small"):
        for seed in SEEDS:
            drawn = reckoner.draw("small", family, seed)
            x, w = tensors(drawn)[0], reckoner.reference("small").weights()
            total = torch.from_numpy(np.add.accumulate(x.numpy(), axis=1, dtype=np.float32))[:, -1:]
            for mean in (total * inverse, total / features):
                variance = (x - mean).square().sum(1, keepdim=True) * inverse
                value = (x - mean) * torch.rsqrt(variance + 1e-5) * w["n.weight"] + w["n.bias"]
                assert judge(reckoner, drawn, value).ok, (family, seed)


def test_gelu_tail_keeps_a_relative_scale() -> None:
    """A gelu that is right to 1e-3 only is wrong, although far tails lose all their digits in f32."""
    reckoner = ReferenceRunner(make_task("F.gelu(a, approximate='tanh')", "torch.randn(64, 256)"))
    drawn = reckoner.draw("small", "task", 3)
    x = tensors(drawn)[0]
    inner = 0.7978845608 * (x + 0.044715 * x * x * x)
    assert judge(reckoner, drawn, x / (1 + torch.exp(-2 * inner))).ok
    assert not judge(reckoner, drawn, torch.nn.functional.gelu(x)).ok
    assert not judge(reckoner, drawn, (0.5 * x * (1 + torch.tanh(inner.half()).float()))).ok


def test_cumsum_in_order_passes_although_torch_on_the_cpu_is_better() -> None:
    reckoner = ReferenceRunner(make_task("torch.cumsum(a, 1)", "torch.rand(8, 4096)"))
    drawn = reckoner.draw("small", "task", 1)
    x = tensors(drawn)[0].numpy()
    ordered = np.add.accumulate(x, axis=1, dtype=np.float32)
    assert judge(reckoner, drawn, ordered).ok
    assert not judge(reckoner, drawn, np.add.accumulate(x, axis=1, dtype=np.float16).astype(np.float32)).ok


@pytest.mark.slow
def test_a_declared_f64_accumulator_is_held_to() -> None:
    loose = ReferenceRunner(make_task("a.sum(1)", "torch.rand(4, 32768)"))
    strict = ReferenceRunner(
        make_task("a.double().sum(1).float()", "torch.rand(4, 32768)", policy=TaskPolicy(accumulator="float64"))
    )
    for reckoner, passes in ((loose, True), (strict, False)):
        drawn = reckoner.draw("small", "task", 1)
        assert judge(reckoner, drawn, sequential_sum(tensors(drawn)[0].numpy(), np.float32)).ok is passes


def test_a_declared_reduction_length_widens_the_bound() -> None:
    def factor(policy: TaskPolicy) -> float:
        reckoner = ReferenceRunner(
            make_task("torch.sigmoid(a)", "torch.randn(8, LENGTH)", head="LENGTH = 4096", policy=policy)
        )
        drawn = reckoner.draw("small", "task", 1)
        assert drawn.expected is not None
        return drawn.expected[0].factor

    assert factor(TaskPolicy()) == 16
    assert factor(TaskPolicy(reduction_length="LENGTH * 4")) == 2 * 128


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_tasks_accept_f32_accumulation(dtype: str) -> None:
    inputs = f"torch.randn(32, 256).to(torch.{dtype}), torch.randn(256, 32).to(torch.{dtype})"
    reckoner = ReferenceRunner(make_task("a @ b", inputs))
    drawn = reckoner.draw("small", "task", 1)
    a, b = tensors(drawn)
    assert judge(reckoner, drawn, (a.float() @ b.float()).to(a.dtype)).ok
    assert not judge(reckoner, drawn, torch.zeros(32, 32, dtype=a.dtype)).ok


def test_exact_values_pass_with_no_error_and_signed_zeros_are_equal() -> None:
    reckoner = ReferenceRunner(make_task("a.t().contiguous()", "torch.randn(8, 24)"))
    drawn = reckoner.draw("small", "edge", 1)
    comparison = judge(reckoner, drawn, tensors(drawn)[0].t() * 1.0 + 0.0)
    assert comparison.ok
    assert comparison.error == 0.0


class LargestTensors(TorchDispatchMode):
    """Names operators that make a tensor of at least so many bytes."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.made: list[str] = []
        self._nbytes = nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        arguments = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, torch.Tensor)}
        large = isinstance(result, torch.Tensor) and result.numel() * result.itemsize >= self._nbytes
        if large and result.untyped_storage().data_ptr() not in arguments:
            self.made.append(str(func))
        return result


def test_a_large_output_is_worked_on_in_pieces_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tolerance itself is the one tensor of its size that is made, and where every element ended is as before."""
    reference = torch.randn(40, 1000)
    exact = reference.double() * (1 + 1e-7)
    condition = torch.rand(40, 1000, dtype=torch.float64) * 1e3
    complete = expected_output(reference, exact, reference.clone(), condition=condition.clone())
    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.tolerance.PIECE", 1 << 10)
    sequential = reference.clone()
    with LargestTensors(exact.nbytes) as large:
        in_pieces = expected_output(reference, exact, sequential, condition=condition)
    assert large.made == ["aten.abs.default"]
    assert in_pieces.tolerance is not None
    assert complete.tolerance is not None
    assert torch.equal(in_pieces.tolerance, complete.tolerance)
    assert (in_pieces.factor, in_pieces.torch_error, in_pieces.ill_conditioned) == (
        complete.factor, complete.torch_error, complete.ill_conditioned,
    )  # fmt: skip


@pytest.mark.parametrize("forward", ["a * 2 + b.t()", "(lambda y: (y, y.view(-1)))(a * 2)", "a.mul_(3.0) + b.t()", "a"])
def test_pieces_change_nothing_of_what_is_expected(monkeypatch: pytest.MonkeyPatch, forward: str) -> None:
    task = make_task(forward, "torch.randn(30, 50), torch.randn(50, 30).double().float()")
    complete = ReferenceRunner(task).draw("small", "task", 7).expected
    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.tolerance.PIECE", 64)
    in_pieces = ReferenceRunner(task).draw("small", "task", 7).expected
    assert complete is not None
    assert in_pieces is not None
    for piecewise, other in zip(in_pieces, complete, strict=True):
        assert piecewise.tolerance is not None
        assert other.tolerance is not None
        assert torch.equal(piecewise.tolerance, other.tolerance)
        assert piecewise.factor == other.factor


def test_a_reference_that_writes_to_a_float64_input_writes_to_a_copy() -> None:
    reckoner = ReferenceRunner(make_task("a.mul_(3.0)", "torch.ones(4, dtype=torch.float64)"))
    drawn = reckoner.draw("small", "task", 1)
    assert torch.equal(tensors(drawn)[0], torch.ones(4, dtype=torch.float64))
