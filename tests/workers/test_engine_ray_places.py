"""Capacity of the nodes of a Ray cluster, and differences between nodes. Needs no Ray."""

from __future__ import annotations

import pytest

from kernelforge.workers.pool import kept_memory
from kernelforge.workers.ray.cluster import Node
from kernelforge.workers.ray.engine import capacity_of, differences
from kernelforge.workers.roles import Target
from tests.support.factories import make_fingerprint


@pytest.mark.parametrize(
    ("cpus", "requested", "expected"),
    [
        (0, {}, (0, 0)),
        (1, {}, (1, 0)),
        (2, {}, (1, 1)),
        (8, {}, (7, 1)),
        (8, {"compilers": 3}, (5, 3)),
        (8, {"slots": 2}, (2, 1)),
        (8, {"slots": 20}, (7, 1)),
        (8, {"threads": 3}, (2, 1)),
        (2, {"threads": 3}, (0, 1)),
    ],
)
def test_a_node_without_gpus_shares_its_cpus_out(
    cpus: int, requested: dict[str, int], expected: tuple[int, int]
) -> None:
    node = Node(id="a" * 56, host="here", cpus=cpus, gpus=0, memory_bytes=0)
    options = {"threads": 1, "slots": None, "compilers": 1, **requested}
    assert capacity_of(node, on_gpu=False, **options) == expected


@pytest.mark.parametrize(
    ("cpus", "gpus", "slots", "expected"),
    [(16, 8, None, (8, 1)), (8, 8, None, (8, 0)), (4, 8, None, (4, 0)), (16, 8, 2, (2, 1)), (16, 0, None, (0, 1))],
)
def test_a_slot_on_a_gpu_takes_the_gpu_and_a_cpu(
    cpus: int, gpus: int, slots: int | None, expected: tuple[int, int]
) -> None:
    node = Node(id="a" * 56, host="here", cpus=cpus, gpus=gpus, memory_bytes=0)
    assert capacity_of(node, on_gpu=True, threads=1, slots=slots, compilers=1) == expected


@pytest.mark.parametrize(("units", "expected"), [(0, 0), (2, 2), (9, 7)])
def test_a_node_that_a_trainer_shares_has_as_many_slots_as_units_of_the_resource(units: int, expected: int) -> None:
    node = Node(id="a" * 56, host="here", cpus=8, gpus=0, memory_bytes=0, units=units)
    assert capacity_of(node, on_gpu=False, threads=1, slots=None, compilers=1).slots == expected


def gpu(**changes: str) -> Target:
    return Target(
        fingerprint=make_fingerprint(device_kind="cuda", **{"device": "cuda:0", **changes}), description={}, spec="h100"
    )


HERE = {name: str(value) for name, value in gpu().fingerprint if name in ("kernelforge", "toolchain", "python")}


def test_gpus_of_one_kind_are_alike_whatever_their_numbers() -> None:
    assert differences(gpu(device="cuda:3", gpu_uuid="GPU-3"), HERE, gpu()) == ""


@pytest.mark.parametrize(
    "difference", [{"gpu": "NVIDIA A100"}, {"driver": "1.2.3"}, {"torch": "2.9.0"}, {"jail": "none"}]
)
def test_a_slot_that_would_give_other_numbers_is_told_apart(difference: dict[str, str]) -> None:
    (name, value), *_ = difference.items()
    explanation = differences(gpu(**difference), HERE, gpu())
    assert f"{name} {value} (others: {getattr(gpu().fingerprint, name)})" == explanation


def test_a_compiler_is_told_apart_by_what_its_node_has() -> None:
    assert "toolchain nvrtc 12.0.1" in differences(gpu(), {**HERE, "toolchain": "nvrtc 12.0.1"}, gpu())


@pytest.mark.parametrize(("slots", "on_gpu"), [(0, False), (3, False), (3, True)])
def test_the_oracles_of_a_machine_hold_a_third_of_its_memory_at_most(slots: int, on_gpu: bool) -> None:
    shared, of_each = kept_memory(72 << 30, slots, on_gpu=on_gpu)
    if on_gpu:
        assert shared + slots * of_each == 24 << 30
    else:  # each slot holds nothing: its oracles are the shared ones
        assert shared == 24 << 30
