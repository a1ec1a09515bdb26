"""The input distributions."""

from __future__ import annotations

import pytest
import torch

from kernelforge.evaluation.oracle.worker import reference_runner
from kernelforge.evaluation.oracle.worker.inputs import FAMILIES, derived_seed, draw_inputs, families_of
from kernelforge.evaluation.oracle.worker.reference import Value
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.records import TaskPolicy
from tests.evaluation.oracle_tasks import make_task, tensors


@pytest.mark.parametrize("accumulator", ["float16", "float32", "float64"])
def test_a_well_behaved_task_admits_every_family_with_its_own_first(accumulator: str) -> None:
    task = make_task("a * 2", "torch.rand(32, 32)", policy=TaskPolicy(accumulator=accumulator))
    assert tuple(ReferenceRunner(task).scales("small")) == families_of(accumulator)


def test_draws_differ_by_seed_and_repeat_with_it() -> None:
    assert families_of("float16") == FAMILIES
    reckoner = ReferenceRunner(make_task("a * 2", "torch.rand(32, 32)", policy=TaskPolicy(accumulator="float16")))
    for family in FAMILIES:
        first, repeated, other = (tensors(reckoner.draw("small", family, seed))[0] for seed in (1, 1, 2))
        assert torch.equal(first, repeated)
        assert not torch.equal(first, other)


def test_integers_keep_their_own_range() -> None:
    reckoner = ReferenceRunner(make_task("F.cross_entropy(a, b)", "torch.randn(16, 10), torch.randint(0, 10, (16,))"))
    for family in reckoner.scales("small"):
        target = tensors(reckoner.draw("small", family, 4))[1]
        assert target.dtype == torch.int64
        assert 0 <= int(target.min()) <= int(target.max()) < 10


def test_families_are_what_they_say() -> None:
    own = (torch.rand(64, 64), 3)
    normal, large, edge = (
        draw_inputs(own, family, 9, scale) for family, scale in (("normal", 1), ("large", 1e3), ("edge", 1))
    )
    assert [values[1] for values in (normal, large, edge)] == [3, 3, 3]
    assert float(normal[0].min()) < -2
    assert float(large[0].abs().max()) > 1e3
    subnormal = (edge[0] != 0) & (edge[0].abs() < torch.finfo(torch.float32).tiny)
    assert bool(subnormal.any())
    assert bool((torch.signbit(edge[0]) & (edge[0] == 0)).any())
    assert int((edge[0] == edge[0].max()).sum()) > 1
    assert bool((edge[0] == 0).all(1).any())


def test_extremes_of_large_inputs_are_often_last_along_every_axis() -> None:
    """A maximum that misses the tail must show in long lines too, where chance would put it there hardly ever."""
    (large,) = draw_inputs((torch.rand(64, 96),), "large", 3, 1e3)
    assert isinstance(large, torch.Tensor)
    for axis in (0, 1):
        last = large.shape[axis] - 1
        assert int((large.argmax(axis) == last).sum()) > 8
        assert int((large.argmin(axis) == last).sum()) > 8


def test_edge_inputs_have_rows_next_to_an_epsilon_and_far_below_it() -> None:
    (edge,) = draw_inputs((torch.rand(512, 16),), "edge", 3)
    assert isinstance(edge, torch.Tensor)
    largest = edge.abs().amax(1)
    assert bool(((largest > 1e-4) & (largest < 0.1)).any())
    assert bool(((largest > 0) & (largest < 1e-15)).any())
    but_last = edge[:, :-1].abs().amax(1)
    assert bool(((but_last < 1e-15) & (edge[:, -1] == 8)).any())


def test_a_family_that_torch_does_not_survive_is_not_admitted() -> None:
    assert tuple(ReferenceRunner(make_task("a.log()", "torch.rand(64) + 0.1")).scales("small")) == ("task",)


def test_a_family_on_which_all_results_underflow_is_not_admitted() -> None:
    """A product of 2048 normal numbers is below float32's range, so zeros would be right."""
    scales = ReferenceRunner(make_task("torch.prod(a, 1)", "torch.exp(0.02 * torch.randn(8, 2048))")).scales("small")
    assert "task" in scales
    assert "normal" not in scales


def test_large_inputs_are_scaled_down_to_what_torch_passes() -> None:
    scales = ReferenceRunner(make_task("torch.exp(a)", "torch.rand(64, 64)")).scales("small")
    assert scales["large"] < 100


def test_only_integers_leave_only_the_own_family() -> None:
    assert tuple(ReferenceRunner(make_task("a + 1", "torch.randint(0, 9, (8,))")).scales("small")) == ("task",)


def test_seeds_of_one_draw_are_independent() -> None:
    assert derived_seed(1, "weights") != derived_seed(1, "inputs") != derived_seed(2, "inputs")
    assert 0 <= derived_seed(2**64, "x") < 2**63


def test_an_unlucky_edge_draw_gives_way_to_another() -> None:
    reckoner = ReferenceRunner(make_task("1.0 / a", "torch.randn(1)"))
    own = reckoner.reference("small").inputs(0)
    unlucky = [seed for seed in range(40) if not _finite(draw_inputs(own, "edge", derived_seed(seed, "edge")))]
    drawn = [reckoner.draw("small", "edge", seed) for seed in unlucky[:4]]
    assert len(drawn) == 4
    assert all(_finite(draw.inputs) for draw in drawn)


def _finite(inputs: tuple[Value, ...]) -> bool:
    """Whether torch's reciprocal of the only input is."""
    (x,) = inputs
    assert isinstance(x, torch.Tensor)
    return bool(torch.isfinite(1.0 / x).all())


def test_a_family_is_scaled_down_until_the_outputs_are_no_longer_saturated() -> None:
    scales = ReferenceRunner(make_task("torch.tanh(a / 50).amin(1)", "torch.randn(64, 64)")).scales("small")
    assert scales["normal"] == 1
    assert scales["large"] == 100


@pytest.mark.slow
def test_a_family_that_saturates_the_outputs_at_every_scale_is_left_out() -> None:
    scales = ReferenceRunner(make_task("torch.relu(a.amin(1, keepdim=True)) + 1", "torch.rand(64, 64)")).scales("small")
    assert tuple(scales) == ("task", "edge")


@pytest.mark.slow
def test_families_are_not_tried_at_a_full_size_of_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    reckoner = ReferenceRunner(make_task("a @ a", "torch.randn(32, 32)"))
    tried = set(reckoner.scales("hidden_same"))
    monkeypatch.setattr(reference_runner, "PROBE_OPERATIONS", 2 * 32**3 - 1)
    ran: list[str] = []
    monkeypatch.setattr(reckoner, "_admitted_scale", lambda size, *_: ran.append(size))
    reckoner.know({"small": dict.fromkeys(tried, 1.0)})
    assert tuple(reckoner.scales("full")) == ("task", "normal")
    assert not ran
    monkeypatch.setattr(reference_runner, "PROBE_OPERATIONS", 2 * 32**3)
    assert set(ReferenceRunner(reckoner.task).scales("full")) == tried
