"""A candidate's file at another size: module constants that it copied from the task follow the task's."""

from __future__ import annotations

import ast

from kernelforge.errors import TaskError
from kernelforge.records import Size
from kernelforge.tasks.constants import Scalar, module_constants, substitute


def at_size(source: str, size: Size) -> tuple[str, tuple[str, ...]]:
    """The file with the size's constants where it has numbers of the same names, and what could not be replaced.

    A ``ModelNew`` gets its extents from its constructor and its inputs; a copy of the task's constants is used only if
    the author meant it. The text must parse.
    """
    known = module_constants(ast.parse(source))
    chosen: dict[str, Scalar] = {name: value for name, value in size.constants.items() if name in known}
    try:
        return substitute(source, chosen), ()
    except TaskError:
        pass  # one of them cannot be set: find out which
    left: list[str] = []
    for name in list(chosen):
        try:
            substitute(source, {name: chosen[name]})
        except TaskError as error:
            del chosen[name]
            left.append(f"the candidate's own {name} stays as it is: {error}")
    return substitute(source, chosen), tuple(left)
