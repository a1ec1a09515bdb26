"""Put packaged operators into a model of this process: :func:`splice`, and the graph with its calls replaced.

The model is the caller's own code and runs here, as do the packages' references, by the caller's choice. The command
``kernelforge splice`` runs third-party models in a jail instead (:mod:`kernelforge.packaging.splice_check`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from kernelforge.capture.client import equal_groups, read_graph
from kernelforge.capture.worker import Made, Tensors, attributes_of, captured, exported
from kernelforge.errors import TaskError, UsageError
from kernelforge.hardware.specs import find_spec
from kernelforge.packaging.graph_rewrite import Replacement, replaced_graph
from kernelforge.packaging.matching import Match, match_packages
from kernelforge.packaging.operator import load


class SplicedModel(nn.Module):
    """A model whose calls of packaged groups go to operators. Its weights are those of the model that it was made of.

    It takes the same arguments and gives the same results. Arguments of other shapes, dtypes or devices than the
    example's, and other plain values, go to the model itself, as do calls that need a gradient of a group's operator;
    ``others`` counts the former, ``fallbacks`` of each operator the latter.
    """

    def __init__(
        self, model: nn.Module, graph: fx.GraphModule, made: Made, result: _Result, matches: Sequence[Match]
    ) -> None:
        super().__init__()
        self.graph = graph
        self.matches = tuple(matches)
        """Packages with their groups, in the order given."""
        self.others: Counter[str] = Counter()
        """Calls of the model itself, by reason."""
        self._model = (model,)  # a tuple: its weights are already those of the graph
        self._result = result
        self._names = tuple(made.keywords)
        example, self._structure = tree_flatten((tuple(made.args), dict(made.keywords)))
        self._example = tuple(map(_signature, example))
        self.train(result.training)

    def forward(self, *args: Any, **keywords: Any) -> Any:
        if self.training != self._result.training:
            return self._by_model("training", args, keywords)
        if keywords.keys() != set(self._names):
            return self._by_model("arguments", args, keywords)
        leaves, structure = tree_flatten((args, {name: keywords[name] for name in self._names}))
        if structure != self._structure or tuple(map(_signature, leaves)) != self._example:
            return self._by_model("arguments", args, keywords)
        tensors = iter(self.graph(*leaves))
        parts = [next(tensors) if constant is _TENSOR else constant for constant in self._result.leaves]
        return tree_unflatten(parts, self._result.structure)

    def _by_model(self, reason: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        if not torch.compiler.is_compiling():
            self.others[reason] += 1
        return self._model[0](*args, **keywords)


def splice(
    model: nn.Module, example_inputs: Sequence[Any] | Mapping[str, Any], packages: Sequence[Path | str]
) -> SplicedModel:
    """Replace every call of the packages' groups in a model by their operators.

    Args:
        model: In the mode, dtype and on the device that it is used in; its code runs in this process.
        example_inputs: Arguments of ``forward``: a list of positional ones or a dict of keyword arguments. The result
            is for these shapes.
        packages: Folders that ``kernelforge package`` wrote, or folders of installed ones.

    Returns:
        The model with operators, for calls of its own or under ``torch.compile``. It shares the weights.

    Raises:
        TaskError: The model has no graph; the message says why and what to do.
        UsageError: A package is of no group of this model, or is none.
    """
    named = isinstance(example_inputs, Mapping)
    made = Made(model, () if named else tuple(example_inputs), dict(example_inputs) if named else {})
    wrapped = _Structured(model)
    with torch.no_grad():
        program = exported(made, wrapped)
    folders = [Path(folder) for folder in packages]
    operators = [load(folder) for folder in folders]
    spec = find_spec(operators[0].manifest.emulated) if operators else None
    if spec is None:
        raise UsageError("name at least one package of an emulated device that this version has")
    graph = read_graph(captured(program) | {"training": model.training})
    matches = match_packages(equal_groups(graph, {}, spec), folders)
    replacements = [
        Replacement(call, _Operator(operator), match.order, match.restored)
        for match, operator in zip(matches, operators, strict=True)
        if not match.reason
        for call in match.group.calls
    ]
    result = _Result(wrapped.seen.leaves, wrapped.seen.structure, model.training)
    return SplicedModel(model, replaced_graph(program, wrapped, replacements), made, result, matches)


class _Operator(nn.Module):
    """An operator as a module, which a graph can call."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs: tuple[torch.Tensor, ...] = self.operator(*values)
        return outputs


_TENSOR = "a tensor"
"""Stands for a tensor among the leaves of a result."""


class _Result(NamedTuple):
    """Arrangement of what a model returns."""

    leaves: list[Any]
    structure: Any
    training: bool


class _Seen:
    """Result of a model, without its tensors."""

    leaves: list[Any]
    structure: Any


class _Structured(Tensors):
    """Notes how a model arranges the tensors that it returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.seen = _Seen()

    def forward(self, *args: Any, **keywords: Any) -> list[torch.Tensor]:
        leaves, self.seen.structure = tree_flatten(self.model(*args, **keywords))
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) and any(isinstance(x, torch.Tensor) for x in attributes_of(leaf)):
                raise TaskError(
                    f"the model returns a {type(leaf).__name__}, which torch does not open: register the class by "
                    "torch.utils._pytree.register_pytree_node, or return tensors, lists and dicts"
                )
        self.seen.leaves = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.device.type
    return value
