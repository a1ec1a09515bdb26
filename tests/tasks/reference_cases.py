"""Reference tasks of the shipped suites, run in float64 at a small size for comparison with plain formulas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from kernelforge.tasks import size_source
from tests.support.shipped_prompts import shipped

Arrays = list[Any]


def module_of(suite: str, name: str, size: str = "hidden_tiny") -> SimpleNamespace:
    """The names that a task's file defines at a size."""
    names: dict[str, Any] = {}
    exec(compile(size_source(shipped(suite).task(name), size), f"{name}.py", "exec"), names)
    return SimpleNamespace(**names)


def in_double(values: tuple[Any, ...] | list[Any]) -> list[Any]:
    """The tensors, floating ones as float64."""
    return [value.double() if value.is_floating_point() else value for value in values]


def arrays_of(result: torch.Tensor | tuple[torch.Tensor, ...]) -> Arrays:
    """The outputs of a model as arrays."""
    return [value.numpy() for value in (result if isinstance(result, tuple) else (result,))]


def run(
    suite: str, name: str, *inputs: torch.Tensor, seed: int = 3, size: str = "hidden_tiny"
) -> tuple[SimpleNamespace, Arrays, Arrays]:
    """The task's module, its inputs (or those given) and the outputs: arrays, floating ones in float64."""
    task = module_of(suite, name, size)
    torch.manual_seed(seed)
    drawn = in_double(inputs or task.get_inputs())
    model = task.Model(*task.get_init_inputs()).double()
    task.parameters = {key: value.detach().numpy() for key, value in model.named_parameters()}
    with torch.no_grad():
        outputs = arrays_of(model(*drawn))
    return task, [value.numpy() for value in drawn], outputs


class ReferenceCase:
    """A task's model and inputs in float64, and its outputs. Constants of its file are attributes."""

    def __init__(self, suite: str, name: str, seed: int = 0) -> None:
        self.module = module_of(suite, name)
        torch.manual_seed(seed)
        self.model = self.module.Model(*self.module.get_init_inputs()).double()
        with torch.no_grad():
            self.prepare()
            drawn = in_double(self.module.get_inputs())
            self.inputs = [value.numpy().copy() for value in drawn]
            self.w = {name: value.detach().numpy() for name, value in self.model.state_dict().items()}
            self.outputs = arrays_of(self.model(*drawn))
        self.after = [value.numpy() for value in drawn]

    def prepare(self) -> None:
        """Change the model before its inputs are drawn; does nothing by default."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def softmax(values: np.ndarray) -> np.ndarray:
    """Softmax of one row."""
    powers = np.exp(values - values.max())
    return powers / powers.sum()
