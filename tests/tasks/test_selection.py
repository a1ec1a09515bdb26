"""Tasks are selected by the words of KernelBench's users, and a word that fits none is answered by the nearest."""

from __future__ import annotations

import pytest

from kernelforge.errors import UsageError
from kernelforge.tasks import load_suite
from kernelforge.tasks.selection import CUDAFORGE_SUBSET, selected_in_suites, selected_names

NAMES = (
    "level1_2_matmul",
    "level1_23_softmax",
    "level1_24_logsoftmax",
    "level2_3_conv_sum",
    "level2_23_conv_norm",
    "level3_5_alexnet",
    "level10_1_other",
)


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        (["level1_23_softmax"], ["level1_23_softmax"]),
        (["1/23"], ["level1_23_softmax"]),
        (["2/3"], ["level2_3_conv_sum"]),
        (["level1"], ["level1_2_matmul", "level1_23_softmax", "level1_24_logsoftmax"]),
        (["Level_2"], ["level2_3_conv_sum", "level2_23_conv_norm"]),
        (["D*"], ["level2_3_conv_sum", "level3_5_alexnet"]),
        (["*softmax"], ["level1_23_softmax", "level1_24_logsoftmax"]),
        (["level?_23_*"], ["level1_23_softmax", "level2_23_conv_norm"]),
        (["2/3", "level2"], ["level2_3_conv_sum", "level2_23_conv_norm"]),
    ],
)
def test_a_pattern_selects(patterns: list[str], selected: list[str]) -> None:
    assert list(selected_names(patterns, NAMES, "SOURCE")) == selected


def test_a_name_is_itself_though_it_looks_like_a_pattern() -> None:
    assert selected_names(["level1"], ["level1", "level1_2_matmul"], "SOURCE") == ("level1",)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("level1_23_sofmax", "did you mean level1_23_softmax"),
        ("softmax", "did you mean level1_23_softmax or level1_24_logsoftmax"),
        ("1/99", "SOURCE has no task '1/99'; it has: level1_2_matmul, "),
        ("level7", "has no task 'level7'"),
        ("x*", "has no task 'x*'"),
    ],
)
def test_what_fits_none_is_an_error_with_the_nearest(pattern: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        selected_names([pattern], NAMES, "SOURCE")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        ("core/softmax", ["core/softmax"]),
        ("relu", ["core/relu"]),
        ("core/*", ["core/softmax", "core/relu"]),
        ("soft*", ["core/softmax", "hpc/softmax"]),
        ("2/3", ["kb/level2_3_conv"]),
    ],
)
def test_a_task_of_several_suites_is_selected_with_or_without_its_suite(pattern: str, selected: list[str]) -> None:
    names = ["core/softmax", "core/relu", "hpc/softmax", "kb/level2_3_conv"]
    assert list(selected_in_suites([pattern], names, "SOURCE")) == selected
    with pytest.raises(UsageError, match="SOURCE has several tasks 'softmax'; name one: core/softmax, hpc/softmax"):
        selected_in_suites(["softmax"], names, "SOURCE")
    with pytest.raises(UsageError, match="SOURCE has no task 'gelu'; it has: core/softmax, core/relu"):
        selected_in_suites([pattern, "gelu"], names, "SOURCE")


def test_cudaforges_subset_has_25_tasks() -> None:
    assert sum(len(problems) for problems in CUDAFORGE_SUBSET.values()) == 25


def test_a_suite_selects_by_pattern() -> None:
    names = [task.name for task in load_suite("core").select(["*softmax*", "gelu"])]
    assert "softmax" in names
    assert names[-1] == "gelu"
