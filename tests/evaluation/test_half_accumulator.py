"""Tasks that allow a float16 accumulator: sums in order in float16, and the tolerance that follows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernelforge.evaluation.oracle.worker.inputs import draw_inputs, families_of
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.oracle.worker.sequential_sums import SequentialSums
from kernelforge.evaluation.oracle.worker.tolerance import FLOOR, HALF_CAP, Expected, expected_output
from kernelforge.records import TaskPolicy
from tests.evaluation.oracle_tasks import judge, make_task, tensors

HALF = TaskPolicy(accumulator="float16")


def half_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum of each row of a float32 tensor, one term after the other in float16."""
    return torch.from_numpy(np.add.accumulate(x.numpy().astype(np.float16), axis=1, dtype=np.float16)[:, -1])


def test_sums_in_order_are_those_of_numpy() -> None:
    x = torch.randn(8, 500)
    with SequentialSums(torch.float16) as sums:
        total, running = x.sum(1), x.cumsum(1)
        product = x.half() @ torch.ones(500, 1, dtype=torch.float16)
    assert sums.replaced == 3
    assert torch.equal(total.half(), half_sum(x))
    assert torch.equal(running[:, -1].half(), half_sum(x))
    assert torch.equal(product[:, 0], half_sum(x))


def test_float64_inputs_are_never_summed_in_less() -> None:
    assert SequentialSums(torch.float16).dtype_for(torch.zeros(1, dtype=torch.float64)) == torch.float64


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_only_a_task_that_says_so_takes_a_float16_sum(seed: int) -> None:
    for policy, taken in ((HALF, True), (TaskPolicy(), False)):
        reckoner = ReferenceRunner(make_task("a.sum(1)", "torch.randn(64, 2048)", policy=policy))
        drawn = reckoner.draw("small", "task", seed)
        (x,) = tensors(drawn)
        assert judge(reckoner, drawn, x.sum(1)).ok
        assert judge(reckoner, drawn, half_sum(x).float()).ok == taken
        assert judge(reckoner, drawn, half_sum(x.flip(1)).float()).ok == taken
        assert not judge(reckoner, drawn, torch.zeros(64)).ok
        assert not judge(reckoner, drawn, x[:, :1024].sum(1)).ok


def expected(sequential: torch.Tensor, terms: float = 0.0, accumulator: torch.dtype = torch.float16) -> Expected:
    exact = torch.linspace(-1, 1, 64, dtype=torch.float64)
    return expected_output(exact.float(), exact, sequential, terms, accumulator=accumulator)


def test_the_bound_follows_the_sums_in_order_up_to_a_cap() -> None:
    exact = torch.linspace(-1, 1, 64)
    tight, loose, cut = (expected(exact * (1 + error)) for error in (0.0, 2.0**-6, 0.5))
    assert tight.factor == FLOOR[torch.float32]
    assert 2.0**-6 < loose.factor * 2.0**-24 < HALF_CAP
    assert cut.factor * 2.0**-24 == pytest.approx(HALF_CAP)
    assert (tight.capped, loose.capped, cut.capped) == (False, False, True)
    assert expected(exact * (1 + 2.0**-6), accumulator=torch.float32).capped


def test_a_declared_length_counts_in_roundings_of_the_accumulator() -> None:
    exact = torch.linspace(-1, 1, 64)
    assert expected(exact, 1024.0).factor * 2.0**-24 == pytest.approx(2 * math.sqrt(1024) * 2.0**-11)
    assert expected(exact, 1024.0, torch.float32).factor == 64.0


def test_inputs_on_which_a_sum_in_order_overflows_are_not_used() -> None:
    sequential = torch.linspace(-1, 1, 64)
    sequential[3] = math.inf
    assert not expected(sequential).admitted
    reckoner = ReferenceRunner(make_task("a.sum(1)", "torch.randn(8, 512)", policy=HALF))
    # 512 normal values times 1,000 add up to 20,000 and more; float16 ends at 65,504.
    assert reckoner.scales("small")["large"] < 1e4


LONG = make_task("torch.mm(a, b)", "torch.randn(12, 8196).half(), torch.randn(8196, 20).half()", policy=HALF)
"""As long as the longest hidden size of suite ``hgemm-f16``."""


def half_product(a: torch.Tensor, b: torch.Tensor, step: int = 1) -> torch.Tensor:
    """A product that a float16 accumulator takes ``step`` terms at a time, as a tensor core does with 16."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    a, b = a.float(), b.float()
    for k in range(0, a.shape[1], step):
        total = (total.float() + a[:, k : k + step] @ b[k : k + step]).half()
    return total


def split_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    parts = [half_product(*part) for part in zip(a.chunk(8, 1), b.chunk(8, 0), strict=True)]
    return torch.stack(parts).sum(0, dtype=torch.float16)


def rounded_terms(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Each product is rounded before it is added."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total


def eight_bits(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Rounded to int8 by the largest of each row or column."""
    scale = x.double().abs().amax(dim, keepdim=True).clamp_min(1e-9) / 127
    return (x.double() / scale).round() * scale


def e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.float().to(torch.float8_e4m3fn).double()


HONEST = {
    "in order": half_product,
    "reversed": lambda a, b: half_product(a.flip(1), b.flip(0)),
    "16 at a time": lambda a, b: half_product(a, b, 16),
    "split": split_product,
    "each product rounded": rounded_terms,
    "in float32": lambda a, b: (a.float() @ b.float()).half(),
}
ROUNDED = {
    "e4m3": lambda a, b: (e4m3(a) @ e4m3(b)).half(),
    "int8": lambda a, b: (eight_bits(a, 1) @ eight_bits(b, 0)).half(),
    "int8, float16 sums": lambda a, b: half_product(eight_bits(a, 1).half(), eight_bits(b, 0).half(), 16),
    "int8 of the left": lambda a, b: (eight_bits(a, 1) @ b.double()).half(),
    "int8 of the right": lambda a, b: (a.double() @ eight_bits(b, 0)).half(),
}


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_float16_accumulator_excuses_no_rounded_operands(seed: int) -> None:
    reckoner = ReferenceRunner(LONG)
    passed: dict[str, list[str]] = {name: [] for name in (*HONEST, *ROUNDED)}
    families = tuple(reckoner.scales("small"))
    assert "sparse" in families
    for family in families:
        drawn = reckoner.draw("small", family, seed)
        a, b = tensors(drawn)
        for name, product in {**HONEST, **ROUNDED}.items():
            if judge(reckoner, drawn, product(a, b)).ok:
                passed[name].append(family)
    for name in HONEST:
        assert passed[name] == list(families), name
    for name in ROUNDED:
        assert "sparse" not in passed[name], name
    assert not {"task", "normal"} & set(passed["e4m3"])


@pytest.mark.slow
def test_errors_that_are_each_allowed_may_be_too_many() -> None:
    reckoner = ReferenceRunner(LONG)
    drawn = reckoner.draw("small", "task", 1)
    a, b = tensors(drawn)
    (want,) = drawn.expected or ()
    assert want.exact is not None
    assert want.tolerance is not None
    single, all_of_them = want.exact.clone(), want.exact + 0.9 * want.tolerance
    single[3, 4] += 0.9 * want.tolerance[3, 4]
    assert judge(reckoner, drawn, single.half()).ok
    comparison = judge(reckoner, drawn, all_of_them.half())
    assert not comparison.ok
    assert "are operands rounded?" in comparison.message
    assert judge(reckoner, drawn, half_product(a, b)).ok


def test_only_a_float16_accumulator_is_checked_on_sparse_inputs() -> None:
    assert "sparse" in families_of("float16")
    assert "sparse" not in families_of("float32")
    assert "sparse" not in ReferenceRunner(make_task("a @ b", "torch.randn(8, 8), torch.randn(8, 8)")).scales("small")


@pytest.mark.parametrize("shape", [(40, 8), (8, 40), (2, 16, 16)])
def test_sparse_inputs_leave_few_terms_to_a_sum(shape: tuple[int, ...]) -> None:
    own = (torch.randn(*shape), torch.randn(*shape[:-2], shape[-1], 9), torch.randn(5), torch.arange(4))
    for seed in range(8):
        first, second, line, numbers = draw_inputs(own, "sparse", seed)
        thin = [operand for operand in (first, second) if float((operand == 0).float().mean()) > 0.3]
        assert len(thin) == 1  # the other keeps every term, so that its rounding shows
        for dim in (-1, -2):
            assert 1 <= int((thin[0] != 0).sum(dim).max()) <= 3
        assert bool((line != 0).all())
        assert torch.equal(numbers, torch.arange(4))


def test_a_result_near_the_end_of_float16_is_not_used() -> None:
    """Another honest order could overflow on the way to it."""
    exact = torch.linspace(-1, 1, 64) * 60_000
    assert not expected_output(exact.half(), exact.double(), exact.half(), accumulator=torch.float16).admitted
    near = exact / 8
    assert expected_output(near.half(), near.double(), near.half(), accumulator=torch.float16).admitted
