"""Write the class ``ModelNew`` of a C++ file that has kernels and the host function of a ``load_inline`` extension."""

from __future__ import annotations

import ast
import keyword

from kernelforge.errors import CandidateError
from kernelforge.modelnew.convert.cpp_units import HostFunction, Unit, read_unit


def launcher_class(source: str) -> tuple[str, str]:
    """Name of the host function of an extension, and a module whose ``ModelNew`` gives it every argument of forward.

    The source is the module's first line, so that a line of the source has the same number in a problem of the
    conversion.

    Raises:
        CandidateError: the source has no such function, or several that no other one calls.
    """
    unit = Unit()
    try:
        read_unit(source, 1, unit)
    except (LookupError, StopIteration):
        # Source that a compiler would refuse as well: a name or a bracket is missing.
        raise CandidateError("its host code is cut short or malformed") from None
    takers = [function for function in unit.hosts.values() if _takes_and_returns_tensors(function)]
    called = {token.text for function in unit.hosts.values() for token in function.body}
    launchers = [function for function in takers if function.name not in called] or takers
    if not launchers and unit.problems and "Tensor" in source:
        raise CandidateError(f"its host code cannot be read ({unit.problems[0]})")
    if not launchers:
        raise CandidateError("it has no host function that takes and returns torch::Tensor")
    if len(launchers) > 1:
        names = ", ".join(function.name for function in launchers)
        raise CandidateError(f"several of its host functions take and return torch::Tensor ({names})")
    launcher = launchers[0]
    names = ", ".join(_python_name(parameter.name) for parameter in launcher.parameters)
    text = f"""\
cuda_source = {source!r}
import torch
from torch.utils.cpp_extension import load_inline

load_inline_extension = load_inline("extension", "", cuda_source, functions=["{launcher.name}"])


class ModelNew(torch.nn.Module):
    def forward(self, {names}):
        return load_inline_extension.{launcher.name}({names})
"""
    return launcher.name, text


def with_weights_after_inputs(plan: str, inputs: int, weights: tuple[str, ...]) -> str:
    """The plan of a converted host function, whose last parameters are weights where the task has as many.

    Args:
        plan: its ``forward`` passes all its parameters on.
        inputs: how many arguments the task gives ``forward``.
        weights: names of the reference's weights, in order.
    """
    forward = next(
        node for node in ast.parse(plan).body if isinstance(node, ast.FunctionDef) and node.name == "forward"
    )
    names = [argument.arg for argument in forward.args.args]
    if not weights or len(names) != inputs + len(weights):
        return plan
    lines = plan.split("\n")
    lines[forward.lineno - 1 : forward.body[0].lineno - 1] = [
        f"def forward({', '.join(names[:inputs])}):",
        *(f'    {name} = w["{weight}"]' for name, weight in zip(names[inputs:], weights, strict=True)),
    ]
    return "\n".join(lines)


def _takes_and_returns_tensors(function: HostFunction) -> bool:
    return "Tensor" in function.returns and any("Tensor" in parameter.type for parameter in function.parameters)


def _python_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name == "self" else name
