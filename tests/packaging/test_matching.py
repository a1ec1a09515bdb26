"""Packages and the groups of a model that they are for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.capture.records import CapturedGroup
from kernelforge.errors import UsageError
from kernelforge.packaging.manifest import read_manifest
from kernelforge.packaging.matching import match_packages
from kernelforge.records import TensorSpec
from tests.packaging.two_blocks import TWO_BLOCKS, groups_of_model, norm_package

__all__ = ["norm_package"]


@pytest.fixture(scope="module")
def groups() -> list[CapturedGroup]:
    return list(groups_of_model(TWO_BLOCKS).values())


@pytest.mark.slow
def test_a_package_is_matched_by_digest(groups: list[CapturedGroup], norm_package: Callable[..., Path]) -> None:
    (match,) = match_packages(groups, [norm_package()])
    assert (match.group.operators, match.order, match.restored, match.reason) == (("layer_norm",), (0, 1), (None,), "")
    assert match.size is not None


@pytest.mark.slow
def test_what_is_no_package_of_this_model_is_refused(
    groups: list[CapturedGroup], norm_package: Callable[..., Path], tmp_path: Path
) -> None:
    norm = norm_package()
    other = groups_of_model(TWO_BLOCKS.replace("torch.randn(4, 16, 32)", "torch.randn(4, 17, 32)"))
    for folders, among, reason in (
        ([norm], list(other.values()), "computes layer_norm, which is no group of this model"),
        ([norm, norm_package(name="again")], groups, r"both compute .*; name one of them"),
        ([norm_package(name="core", group="")], groups, "is of task g01-norm, which is no group of a captured model"),
        ([tmp_path], groups, "is no package"),
    ):
        with pytest.raises(UsageError, match=reason):
            match_packages(among, folders)


@pytest.mark.slow
def test_a_package_that_was_evaluated_at_other_strides_replaces_nothing(
    groups: list[CapturedGroup], norm_package: Callable[..., Path]
) -> None:
    size = read_manifest(norm_package()).sizes[0]
    (spec,) = size.inputs
    assert isinstance(spec, TensorSpec)
    sliced = size.model_copy(update={"inputs": (spec.model_copy(update={"stride": (1024, 64, 1)}),)})
    (match,) = match_packages(groups, [norm_package(name="sliced", sizes=(sliced,))])
    assert match.size is None
    assert match.reason == (
        "it would fall back to the reference: input 0 is float32 [4, 16, 32], and it was evaluated with float32 "
        "[4, 16, 32], strides [1024, 64, 1]"
    )
