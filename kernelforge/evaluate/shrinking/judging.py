"""Parent side: what the oracle says of chosen sizes, each within a time limit of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernelforge.errors import ChildTimeout, SandboxError, TaskError
from kernelforge.evaluate.oracle import Oracle, OracleChild, OracleZygote
from kernelforge.records import Task
from kernelforge.sandbox.channel import Frame
from kernelforge.sandbox.limits import Limits
from kernelforge.sandbox.memory import Blob

_LONGEST = 500
"""Characters of a reason."""


class _HurriedChild:
    """A child that is given less time for each answer than the oracle would give it."""

    def __init__(self, child: OracleChild, answer_s: float) -> None:
        self._child = child
        self._answer_s = answer_s

    def call(self, data: dict[str, Any], blobs: Sequence[Blob] = (), *, timeout_s: float | None = None) -> Frame:
        wait = self._answer_s if timeout_s is None else min(timeout_s, self._answer_s)
        return self._child.call(data, blobs, timeout_s=wait)

    def memory_bytes(self) -> int:
        return self._child.memory_bytes()

    def close(self) -> None:
        self._child.close()


class HurriedZygote:
    """The oracle's zygote, whose children have to answer within ``answer_s``."""

    def __init__(self, zygote: OracleZygote, answer_s: float, memory_bytes: int) -> None:
        self._zygote = zygote
        self._answer_s = answer_s
        self._memory_bytes = memory_bytes

    def spawn(self, limits: Limits | None = None) -> OracleChild:
        limits = replace(limits or Limits(), memory_bytes=self._memory_bytes)
        return _HurriedChild(self._zygote.spawn(limits), self._answer_s)


def refused_sizes(zygote: OracleZygote, task: Task) -> dict[str, str]:
    """Sizes of a task, other than ``full``, at which it cannot be judged, each with the reason.

    Raises:
        TaskError: the reference cannot be judged at all, such as one that draws random numbers in ``forward``.
        ChildTimeout: the oracle gave no answer in time.
    """
    refused: dict[str, str] = {}
    prefix = f"task '{task.name}': "
    try:
        with Oracle(zygote, task) as oracle:
            for size in task.sizes:
                if size.name == "full":
                    continue
                try:
                    oracle.facts([size.name])
                    findings = oracle.admit([size.name]).findings
                except ChildTimeout:
                    if size.name == "small":
                        raise
                    refused[size.name] = "the oracle gave no answer in time"
                    continue
                except (TaskError, SandboxError) as error:
                    refused[size.name] = _line(error, prefix)
                    continue
                fault = next((one for one in findings if not one.ok), None)
                if fault is not None:
                    refused[size.name] = f"on inputs of the family '{fault.family}', {fault.text}"[:_LONGEST]
    except TaskError as error:
        raise TaskError(_line(error, prefix)) from error
    return refused


def _line(error: Exception, prefix: str) -> str:
    return str(error).strip().split("\n")[0].removeprefix(prefix)[:_LONGEST]
