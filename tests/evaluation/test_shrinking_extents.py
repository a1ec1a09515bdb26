"""Constants of a task file that a size may change, judged by the text alone."""

from __future__ import annotations

from kernelforge.evaluation.size_search.extents import movable_extents
from tests.support import kernelbench_files as files


def names(source: str, fixed: frozenset[str] = frozenset()) -> dict[str, int]:
    return {name: extent.full for extent in movable_extents(source, fixed) for name in extent.names}


def test_whole_numbers_and_arithmetic_over_them_may_change() -> None:
    assert names(files.RELU) == {"batch_size": 4096, "dim": 393216}


def test_what_is_computed_from_another_constant_follows_by_itself() -> None:
    assert names("A = 64\nB = A * 2\nprint(A, B)") == {"A": 64}


def test_small_numbers_meanings_and_fixed_constants_stay() -> None:
    text = "channels = 3\nkernel_size = 11\neps = 64\nheads = 12\nwidth = 96\nratio = 0.5\nflag = True\n"
    text += "print(channels, kernel_size, eps, heads, width, ratio, flag)"
    assert names(text) == {"heads": 12, "width": 96}
    assert names(text, frozenset({"heads"})) == {"width": 96}


def test_constants_that_nothing_reads_or_that_are_bound_twice_stay() -> None:
    assert names("A = 64\nB = 32\nB = 16\nprint(B)") == {}


def test_a_local_variable_of_the_same_name_is_another() -> None:
    text = files.SOFTMAX.replace("return torch", "batch_size, dim = x.shape\n        return torch")
    assert names(text) == {"batch_size": 16, "dim": 16384}


def test_names_of_one_assignment_are_one_extent() -> None:
    (first, second) = movable_extents("A = B = 64\nC, D = 32, 2\nprint(A, B, C, D)")
    assert first.names == ("A", "B")
    assert second.names == ("C",)


def test_an_index_bound_is_known_by_randint() -> None:
    bounds = {extent.names[0]: extent.is_index_bound for extent in movable_extents(files.CROSS_ENTROPY)}
    assert bounds == {"batch_size": False, "num_classes": True}
