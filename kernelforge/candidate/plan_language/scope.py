"""Name resolution of a plan: the frame slot of each name, and the routines that may be called."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kernelforge.candidate.plan_language.functions import RESERVED
from kernelforge.candidate.plan_language.interpreter import Machine
from kernelforge.candidate.plan_language.values import Fault
from kernelforge.records import Language

Frame = list[Any]
"""Values of one call by slot; slot 0 is the machine."""

Evaluate = Callable[[Frame], Any]
"""An expression as a closure over this package's functions."""

Execute = Callable[[Frame], "Returned | None"]
"""A statement as a closure; it returns the value of ``return``, or None to continue."""


class Unbound:
    """Content of a slot before its name is assigned."""


UNBOUND = Unbound()


@dataclass(slots=True, eq=False)
class Returned:
    """The value of a ``return``, on its way out of nested statements."""

    value: Any


@dataclass
class Routine:
    """``forward`` or a helper: parameters, constant defaults, and a body that runs in a frame of ``size`` slots."""

    name: str
    line: int
    parameters: tuple[str, ...]
    defaults: dict[str, Any]
    size: int = 0
    body: Execute | None = None
    calls: set[str] = field(default_factory=set)
    prepared_line: int | None = None
    """Line of the first use of ``prepared``."""

    def call(self, machine: Machine, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Bind arguments as Python does, run the body, give its return value (None without ``return``)."""
        if len(args) > len(self.parameters):
            raise Fault(f"{self.name} takes {len(self.parameters)} arguments, got {len(args)}")
        frame: Frame = [UNBOUND] * self.size
        frame[0] = machine
        frame[1 : len(args) + 1] = args
        for slot, name in enumerate(self.parameters[len(args) :], len(args) + 1):
            if name in keywords:
                frame[slot] = keywords[name]
            elif name in self.defaults:
                frame[slot] = self.defaults[name]
            else:
                raise Fault(f"{self.name} is called without its argument {name!r}")
        if len(keywords) > len(self.parameters) - len(args) or not keywords.keys() <= set(self.parameters[len(args) :]):
            extra = next(name for name in keywords if name not in self.parameters[len(args) :])
            raise Fault(f"{self.name} has no argument {extra!r}, or it is given twice")
        assert self.body is not None
        returned = self.body(frame)
        return None if returned is None else returned.value


class Scope:
    """Slots of one function, or of the top level when ``module`` is None."""

    def __init__(
        self,
        module: Scope | None,
        names: Iterable[str],
        routines: dict[str, Routine],
        owner: Routine | None,
        language: Language = "cuda",
    ) -> None:
        self.module = module
        self.language: Language = language if module is None else module.language
        self.routines = routines
        self.owner = owner
        self.slots = {name: slot for slot, name in enumerate(dict.fromkeys(names), 1)}
        self.size = len(self.slots) + 1
        self._inner: list[dict[str, int]] = []

    def find(self, name: str) -> int | None:
        for names in reversed(self._inner):
            if name in names:
                return names[name]
        return self.slots.get(name)

    def enter(self, names: Iterable[str]) -> None:
        """Open the scope of a comprehension, with its own slots."""
        fresh: dict[str, int] = {}
        for name in names:
            if name not in fresh:
                fresh[name] = self.size
                self.size += 1
        self._inner.append(fresh)

    def leave(self) -> None:
        self._inner.pop()


def check_name(name: str, line: int) -> str:
    """Check a name that a plan defines, and return it."""
    if name in RESERVED:
        raise Fault(f"{name!r} is a name of the plan language; choose another", line)
    if name.startswith("__") or not name.isascii():
        raise Fault(f"{name!r} cannot be a name in a plan", line)
    return name


def target_names(target: ast.expr) -> Iterator[str]:
    """Names that an assignment target binds."""
    if isinstance(target, ast.Name):
        yield check_name(target.id, target.lineno)
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from target_names(element)
    elif isinstance(target, ast.Starred) and isinstance(target.value, ast.Name):
        yield from target_names(target.value)
    else:
        raise Fault(
            "only names can be assigned to: tensors are written by kernels, sequences never change", target.lineno
        )


def assigned_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that the statements of one function bind, nested ones included."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from target_names(target)
        elif isinstance(statement, ast.AugAssign):
            yield from target_names(statement.target)
        elif isinstance(statement, ast.For):
            yield from target_names(statement.target)
            yield from assigned_names(statement.body)
        elif isinstance(statement, ast.If):
            yield from assigned_names(statement.body)
            yield from assigned_names(statement.orelse)
