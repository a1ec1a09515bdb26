"""Reference tasks of the shipped suites, run in float64 at a small size for comparison with plain formulas."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from kernelforge.tasks import size_source
from tests.support.shipped_prompts import shipped

Array = np.typing.NDArray[Any]
Arrays = list[Array]


def module_of(suite: str, name: str, size: str = "hidden_tiny") -> SimpleNamespace:
    """The names that a task's file defines at a size."""
    names: dict[str, Any] = {}
    exec(compile(size_source(shipped(suite).task(name), size), f"{name}.py", "exec"), names)
    return SimpleNamespace(**names)


class ReferenceCase:
    """A task's model and inputs in float64, and its outputs, tensors as arrays. Constants of its file are attributes.

    Args:
        suite: of the task.
        name: of the task.
        inputs: in place of those that the task draws.
        seed: of the draws.
        size: of the task.
        noise: how far weights are moved off their first values, where zeros and ones would hide what they do.
    """

    def __init__(
        self,
        suite: str,
        name: str,
        *inputs: torch.Tensor,
        seed: int = 0,
        size: str = "hidden_tiny",
        noise: float = 0.0,
    ) -> None:
        self.module = module_of(suite, name, size)
        torch.manual_seed(seed)
        self.model = self.module.Model(*self.module.get_init_inputs()).double()
        with torch.no_grad():
            if noise:
                _move(self.model, noise)
            drawn = inputs or self.module.get_inputs()
            self.tensors = [_in_float64(value) for value in drawn]
            self.inputs: list[Any] = [_array(value, copy=True) for value in self.tensors]
            self.w: dict[str, Array] = {name: value.numpy().copy() for name, value in self.model.state_dict().items()}
            self.outputs = self.run(*self.tensors)
        self.after: list[Any] = [_array(value) for value in self.tensors]

    def run(self, *inputs: torch.Tensor) -> Arrays:
        """The outputs of the model; NumPy has no bfloat16, which becomes float32."""
        result = self.model(*inputs)
        return [_array(value.detach()) for value in (result if isinstance(result, tuple) else (result,))]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def _in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _array(value: Any, *, copy: bool = False) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype is torch.bfloat16:
        return value.float().numpy()
    return value.numpy().copy() if copy else value.numpy()


def _move(model: torch.nn.Module, noise: float) -> None:
    for parameter in model.parameters():
        parameter += noise * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer += 0.1 * torch.randn_like(buffer)
        elif name.endswith("running_var"):
            buffer *= torch.rand_like(buffer) + 0.5


def run(
    suite: str, name: str, *inputs: torch.Tensor, seed: int = 3, size: str = "hidden_tiny"
) -> tuple[ReferenceCase, Arrays, Arrays]:
    """A task's case with its inputs and outputs."""
    case = ReferenceCase(suite, name, *inputs, seed=seed, size=size)
    return case, case.inputs, case.outputs


def assert_close(got: Any, want: Any, tolerance: float = 1e-9) -> None:
    """Compare outputs with what a formula gives: one array, or as many as there are outputs."""
    if isinstance(got, list):
        wants = want if isinstance(want, list | tuple) else [want]
        for output, value in zip(got, wants, strict=True):
            assert_close(output, value, tolerance)
        return
    assert np.shape(got) == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance / 100)


def tasks_without_a_case(suite: str, test_file: str) -> list[str]:
    """Tasks of a suite that a file of tests makes no case of."""
    text = Path(test_file).read_text(encoding="utf-8")
    return [task.name for task in shipped(suite) if f'Case("{task.name}"' not in text]


def softmax(values: Array) -> Array:
    """Softmax of one row."""
    powers = np.exp(values - values.max())
    return powers / powers.sum()
