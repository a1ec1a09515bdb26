"""Assign the reference's weights to a ``ModelNew``, by name, else by order and shape. Child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_copy = torch.Tensor.copy_
_TOLD = 6


class Unmatched(Exception):
    """Parameters of a ``ModelNew`` for which the reference has no values."""


@dataclass
class Match:
    """Assignment of the reference's weights to the candidate's tensors."""

    pairs: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    """A tensor of the ModelNew, and the position of the weight that it takes."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know: given by order, not used, left as constructed."""


def match_weights(model: nn.Module, weights: Sequence[Mapping[str, Any]]) -> Match:
    """Find a place for every weight. ``weights`` have ``name kind aliases shape``, in the reference's order.

    KernelBench matches weights by the random seed before each constructor alone (its README, "Correctness"); values
    that are drawn again for each test need a named destination.

    Raises:
        Unmatched: the ModelNew has parameters that none of the weights is for.
    """
    named = {name: at for at, weight in enumerate(weights) for name in (weight["name"], *weight["aliases"])}
    match = Match()
    for kind, own in (("parameter", dict(model.named_parameters())), ("buffer", dict(model.named_buffers()))):
        unmatched = _by_name(own, named, weights, match)
        taken = {at for _, at in match.pairs}
        spare = [at for at, weight in enumerate(weights) if at not in taken and weight["kind"] == kind]
        _by_order(kind, unmatched, spare, weights, match)
    _attributes(model, named, weights, match)
    taken = {at for _, at in match.pairs}
    unused = [weight["name"] for at, weight in enumerate(weights) if at not in taken]
    if unused:
        match.notes.append(f"ModelNew has no place for {_names(unused)} of the reference")
    return match


def give_weights(match: Match, values: Sequence[torch.Tensor]) -> None:
    """Put values into their places, which keep their addresses and version counters."""
    with torch.no_grad():
        for target, at in match.pairs:
            _copy(target.data, values[at])


def _by_name(
    own: Mapping[str, torch.Tensor], named: Mapping[str, int], weights: Sequence[Mapping[str, Any]], match: Match
) -> dict[str, torch.Tensor]:
    unmatched: dict[str, torch.Tensor] = {}
    for name, tensor in own.items():
        at = named.get(name)
        if at is not None and tuple(weights[at]["shape"]) == tuple(tensor.shape):
            match.pairs.append((tensor, at))
        else:
            unmatched[name] = tensor
    return unmatched


def _by_order(
    kind: str,
    unmatched: Mapping[str, torch.Tensor],
    spare: Sequence[int],
    weights: Sequence[Mapping[str, Any]],
    match: Match,
) -> None:
    if not unmatched:
        return
    if [tuple(tensor.shape) for tensor in unmatched.values()] == [tuple(weights[at]["shape"]) for at in spare]:
        match.pairs += list(zip(unmatched.values(), spare, strict=True))
        pairs = [f"{name} = {weights[at]['name']}" for name, at in zip(unmatched, spare, strict=True)]
        match.notes.append(f"{kind}s were given by order and shape, their names differ: {_names(pairs)}")
        return
    labels = _names([f"{name} {tuple(tensor.shape)}" for name, tensor in unmatched.items()])
    if kind == "parameter":
        theirs = _names([f"{weights[at]['name']} {tuple(weights[at]['shape'])}" for at in spare]) or "none left"
        raise Unmatched(
            f"parameters of ModelNew have no counterpart: {labels}; of the reference's there are: {theirs}. Give "
            "parameters the names and shapes they have in the reference, or the same shapes in the same order"
        )
    match.notes.append(f"buffers of ModelNew stay as constructed: {labels}")


def _attributes(model: nn.Module, named: Mapping[str, int], weights: Sequence[Mapping[str, Any]], match: Match) -> None:
    """Plain tensors on modules: assigned where the reference has one of that name, else only reported."""
    kept: list[str] = []
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if not isinstance(value, torch.Tensor):
                continue
            dotted = f"{prefix}.{name}" if prefix else name
            at = named.get(dotted)
            if at is not None and tuple(weights[at]["shape"]) == tuple(value.shape):
                match.pairs.append((value, at))
            else:
                kept.append(dotted)
    if kept:
        match.notes.append(
            f"plain tensors of ModelNew stay as constructed: {_names(kept)}; weights are given after construction, so "
            "what is computed from them belongs in forward"
        )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    return ", ".join(names[:_TOLD]) + more
