"""Validation of chosen sizes by the oracle, each within its own time limit."""

from __future__ import annotations

from kernelforge.errors import ChildTimeout, SandboxError, TaskError
from kernelforge.evaluation.oracle.client import Oracle, OracleZygote
from kernelforge.records import Task

_LONGEST = 500
"""Characters of a reason."""


def rejected_sizes(zygote: OracleZygote, task: Task, *, reply_s: float, memory_bytes: int) -> dict[str, str]:
    """Sizes of a task, other than ``full``, at which it cannot be judged, each with the reason.

    Args:
        reply_s: Longest wait for each answer of the oracle.
        memory_bytes: What the oracle may take.

    Raises:
        TaskError: the reference cannot be judged at all, such as one that draws random numbers in ``forward``.
        ChildTimeout: the oracle gave no answer in time.
    """
    refused: dict[str, str] = {}
    prefix = f"task '{task.name}': "
    try:
        with Oracle(zygote, task, reply_s=reply_s, memory_bytes=memory_bytes) as oracle:
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
