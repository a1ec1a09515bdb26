"""Compile calls of functions, methods and helpers to closures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelforge.candidate.plan_language.functions import FUNCTIONS
from kernelforge.candidate.plan_language.scope import Evaluate, Frame, Scope
from kernelforge.candidate.plan_language.tensors import METHODS
from kernelforge.candidate.plan_language.values import Fault, Tensor, kind_of

Arguments = Callable[[Frame], list[Any]]
"""Positional arguments as one closure."""


def function_call(name: str, args: Arguments, keywords: dict[str, Evaluate], line: int) -> Evaluate:
    """A function of the language."""
    function = FUNCTIONS[name]
    if extra := keywords.keys() - function.keywords:
        raise Fault(f"{name} has no argument {min(extra)!r}", line)

    def run(frame: Frame) -> Any:
        given = args(frame)
        named = {key: value(frame) for key, value in keywords.items()}
        if not function.least <= len(given) <= function.most:
            raise Fault(f"{name} takes {_count(function.least, function.most)}, got {len(given)}")
        if "start" in named and len(given) > 1:
            raise Fault(f"the start of {name} is given twice")
        frame[0].line = line
        return function.call(frame[0], *given, **named)

    return run


def _count(least: int, most: int) -> str:
    if least == most:
        return f"{least} argument{'s' * (least != 1)}"
    return f"at least {least}" if most > 100 else f"{least} to {most} arguments"


def method_call(receiver: Evaluate, name: str, args: Arguments) -> Evaluate:
    """``tensor.name(...)``, of a method that there is."""
    function, least, most = METHODS[name]

    def run(frame: Frame) -> Any:
        tensor = receiver(frame)
        given = args(frame)
        if type(tensor) is not Tensor:
            raise Fault(f"{kind_of(tensor)} has no method {name!r}")
        if not least <= len(given) <= most:
            raise Fault(f"{name} takes {_count(least, most)}, got {len(given)}")
        return function(tensor, *given)

    return run


def helper_call(name: str, args: Arguments, keywords: dict[str, Evaluate], scope: Scope, line: int) -> Evaluate:
    if scope.owner is None:
        raise Fault("helpers are called inside forward and helpers only", line)
    if name in ("forward", "setup"):
        raise Fault(f"{name} cannot be called", line)
    scope.owner.calls.add(name)
    routine = scope.routines[name]
    return lambda frame: routine.call(frame[0], args(frame), {key: value(frame) for key, value in keywords.items()})
