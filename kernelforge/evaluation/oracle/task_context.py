"""Check that a task is admitted, and select the facts that agents may see."""

from __future__ import annotations

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.records import TaskFacts

_TOLD_SIZES = ("full", "small")


def require_admitted(oracle: Oracle) -> None:
    """
    Raises:
        TaskError: wrong answers to the task could earn a reward.
    """
    if oracle.known.admitted:
        return
    admission = oracle.admit(("small",))
    if not admission.ok:
        trouble = admission.error or "; ".join(one.text for one in admission.findings if not one.ok)
        raise TaskError(
            f"task {oracle.task.name!r} is not admitted, for wrong answers could earn a reward: {trouble}. "
            f"`kernelforge tasks check` shows every finding"
        )
    oracle.known.admitted = True


def public_facts(facts: TaskFacts) -> TaskFacts:
    """Facts without those of hidden sizes."""
    told = tuple(one for one in facts.sizes if one.size in _TOLD_SIZES)
    return TaskFacts(task_digest=facts.task_digest, sizes=told)
