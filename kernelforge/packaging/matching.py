"""Groups of a captured model that packages stand for, by digest, and which of their calls operators can replace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelforge.capture.records import CapturedGroup, GroupWeight
from kernelforge.capture.task_text import memory_order
from kernelforge.errors import UsageError
from kernelforge.packaging.manifest import Manifest, PackagedSize, read_manifest
from kernelforge.records import TensorSpec

_WEIGHT = re.compile(r"p(\d{1,4})")


@dataclass(frozen=True)
class Match:
    """A package, and the group of a model that its operator computes."""

    folder: Path
    manifest: Manifest
    group: CapturedGroup
    size: PackagedSize | None
    """The size at which the package was evaluated at the group's shapes; None if there is none."""
    order: tuple[int, ...]
    """Positions of a call's weights, in the order in which the operator takes them."""
    restored: tuple[tuple[int, ...] | None, ...]
    """Axes of each output in the order of the model's memory; None where that is C order, as the operator's is."""
    reason: str = ""
    """Why the operator replaces no call; empty where it replaces all."""


def match_packages(groups: Sequence[CapturedGroup], folders: Sequence[Path]) -> list[Match]:
    """The group of each package.

    Args:
        groups: Groups of the captured model.
        folders: Packages, as ``kernelforge package`` writes them.

    Raises:
        UsageError: A folder is no package, a package is of no group of this model, or two are of one group.
    """
    by_digest = {group.digest: group for group in groups}
    matches: list[Match] = []
    for folder in folders:
        manifest = read_manifest(folder)
        if not manifest.group:
            raise UsageError(
                f"{folder} is of task {manifest.task.name}, which is no group of a captured model; package an attempt "
                "on a task that `kernelforge capture --output` wrote"
            )
        group = by_digest.get(manifest.group)
        if group is None:
            raise UsageError(
                f"{folder} computes {manifest.task.title or manifest.task.name}, which is no group of this model: its "
                f"operators, shapes, strides or dtypes are others (digest {manifest.group})"
            )
        other = next((match for match in matches if match.group.digest == group.digest), None)
        if other is not None:
            raise UsageError(f"{folder} and {other.folder} both compute {group.name}; name one of them")
        matches.append(_matched(folder, manifest, group))
    return matches


def _matched(folder: Path, manifest: Manifest, group: CapturedGroup) -> Match:
    order = _order(folder, manifest, group)
    match = Match(folder, manifest, group, None, order, ())
    weights = [group.weights[position] for position in order]
    reasons = [_missing(size, group, weights) for size in manifest.sizes]
    if "" not in reasons:
        return replace(match, reason=f"it would fall back to the reference: {reasons[0]}")
    restored: list[tuple[int, ...] | None] = []
    for number, spec in enumerate(group.output_specs):
        axes = None if spec.is_contiguous else memory_order(spec)
        if axes is None and not spec.is_contiguous:
            return replace(match, reason=f"output {number} has strides with gaps in the model: {list(spec.stride)}")
        restored.append(None if axes is None else tuple(axes))
    return replace(match, size=manifest.sizes[reasons.index("")], restored=tuple(restored))


def _order(folder: Path, manifest: Manifest, group: CapturedGroup) -> tuple[int, ...]:
    """Positions of the weights that the operator takes: the task calls them p0, p1, ... in the order of the group."""
    names = [weight.name for weight in manifest.sizes[0].weights]
    numbers = [int(part[1]) if (part := _WEIGHT.fullmatch(name)) else -1 for name in names]
    if sorted(numbers) != list(range(len(group.weights))):
        raise UsageError(f"{folder} does not take the weights of {group.name}: {', '.join(names) or 'none'}")
    return tuple(numbers)


def _missing(size: PackagedSize, group: CapturedGroup, weights: Sequence[GroupWeight]) -> str:
    """Difference of a group's tensors from those of a size; empty where there is none."""
    for number, (spec, tested) in enumerate(zip(group.input_specs, size.inputs, strict=False)):
        if not isinstance(tested, TensorSpec) or not _alike(spec, tested):
            return f"input {number} is {_text(spec)}, and it was evaluated with {_text(tested)}"
    for weight, packaged in zip(weights, size.weights, strict=False):
        if (weight.spec.shape, weight.spec.dtype) != (packaged.spec.shape, packaged.spec.dtype):
            return f"weight {weight.name} is {_text(weight.spec)}, and it was evaluated with {_text(packaged.spec)}"
    if len(group.input_specs) != len(size.inputs):
        return f"it takes {len(size.inputs)} inputs, and the group has {len(group.input_specs)}"
    if [(spec.shape, spec.dtype) for spec in group.output_specs] != [(s.shape, s.dtype) for s in size.outputs]:
        return "its outputs have other shapes or dtypes"
    return ""


def _alike(spec: TensorSpec, tested: TensorSpec) -> bool:
    """Whether shape, dtype and the strides of every axis with several elements are equal."""
    if (spec.shape, spec.dtype) != (tested.shape, tested.dtype):
        return False
    strides = zip(spec.shape, spec.stride, tested.stride, strict=True)
    return all(own == other for extent, own, other in strides if extent > 1)


def _text(value: object) -> str:
    if not isinstance(value, TensorSpec):
        return repr(value)
    strides = "" if value.is_contiguous else f", strides {list(value.stride)}"
    return f"{value.dtype.value} {list(value.shape)}{strides}"
