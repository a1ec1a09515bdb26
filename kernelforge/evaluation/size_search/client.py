"""A confined child that tries constants, replaced when it hangs, dies or runs out of memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from kernelforge.errors import ChildTimeout, SandboxError, TaskError
from kernelforge.evaluation.oracle.client import ChildZygote, OracleChild
from kernelforge.evaluation.size_search.search import Bounds, Ceiling, Cost, TrialOutcome
from kernelforge.records import first_fault
from kernelforge.sandbox import Zygote
from kernelforge.sandbox.policy import Limits, role_policy
from kernelforge.tasks.constants import Scalar
from kernelforge.utils.closing import Closing

_MODULE = "kernelforge.evaluation.size_search.worker"
_CPU_S = 3600.0
_OF_THE_MACHINE = re.compile(
    r"No module named|ModuleNotFoundError|ImportError|cannot import name|MemoryError|allocate memory"
)
"""What a package, or a machine with more memory, would cure."""


def prober_zygote(*, allow_unconfined: bool = False) -> Zygote:
    """A warm process whose children are probers or oracles: the oracle's jail with a program that can be both."""
    return Zygote("oracle", allow_unconfined=allow_unconfined, policy=replace(role_policy("oracle"), module=_MODULE))


class SizeSearchClient(Closing):
    """Tries one task file. Not for use by two threads at once. Once closed, it takes a new child for what is new."""

    def __init__(self, zygote: ChildZygote, source: str, bounds: Bounds) -> None:
        self._zygote = zygote
        self._source = source
        self._bounds = bounds
        self._child: OracleChild | None = None
        self._replies: dict[tuple[str, frozenset[tuple[str, Scalar]]], Mapping[str, Any]] = {}
        """Replies of children that ended well: what was tried within some bounds is not tried again within others."""
        self.settled = True
        """Whether every outcome so far is a property of the task; else another machine may have another one."""

    def abstract(self, constants: Mapping[str, Scalar] | None = None) -> TrialOutcome:
        """Cost at ``constants``, on shapes alone; neither cost nor error where shapes do not suffice."""
        return self._outcome(constants or {}, "abstract")

    def weights(self, constants: Mapping[str, Scalar]) -> int | None:
        """Number of weights of the model at ``constants``; None where it cannot be constructed on shapes alone.

        Raises:
            TaskError: it does not end.
        """
        try:
            count = self._reply(constants, "weights").get("weights")
        except SandboxError:
            return None
        return count if type(count) is int else None

    def run(
        self, constants: Mapping[str, Scalar], *, ceiling: Ceiling | None = None, near: bool = False
    ) -> TrialOutcome:
        """Memory and operations of the reference at ``constants``; see :class:`~.search.ReferenceTrial`.

        Raises:
            TaskError: it does not end.
        """
        if not near:
            outcome = self.abstract(constants)
            is_above = outcome.cost is not None and not (ceiling or self._bounds.most).holds(outcome.cost)
            if outcome.error or is_above:
                return outcome
        return self._outcome(constants, "real")

    def _outcome(self, constants: Mapping[str, Scalar], how: str) -> TrialOutcome:
        try:
            outcome = _read(self._reply(constants, how))
        except SandboxError as error:
            self.close()
            self.settled = False
            return TrialOutcome(None, (str(error).strip().splitlines() or ["the oracle child is gone"])[-1][:300])
        self.settled = self.settled and not is_of_the_machine(outcome.error)
        return outcome

    def _reply(self, constants: Mapping[str, Scalar], how: str) -> Mapping[str, Any]:
        key = how, frozenset(constants.items())
        if key not in self._replies:
            self._replies[key] = self._child_reply({"constants": dict(constants), "how": how})
        return self._replies[key]

    def _child_reply(self, request: dict[str, Any]) -> Mapping[str, Any]:
        child = self._ready()
        try:
            return child.call(request, timeout_s=self._bounds.answer_s).data
        except ChildTimeout:
            # What this try would have said is not known, so a choice without it would be another one.
            self.close()
            self.settled = False
            raise TaskError(f"it does not end: no answer in {self._bounds.answer_s:g} s") from None
        except SandboxError:
            self.close()
            self.settled = False
            raise

    def _ready(self) -> OracleChild:
        if self._child is None:
            limits = Limits(wall_s=self._bounds.answer_s, cpu_s=_CPU_S, memory_bytes=self._bounds.memory_bytes)
            child = self._zygote.spawn(limits)
            try:
                child.call({"op": "probe", "source": self._source})
            except BaseException:
                child.close()
                raise
            self._child = child
        return self._child

    def close(self) -> None:
        """End the child; safe to call twice."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(SandboxError):
                child.close()


def is_of_the_machine(error: str) -> bool:
    """Whether a failure may be the machine's: a package that is not installed, or no memory."""
    return bool(_OF_THE_MACHINE.search(error))


def _read(reply: Mapping[str, Any]) -> TrialOutcome:
    """A reply of a child that runs third-party code: what cannot be read is its failure."""
    if "error" in reply or "unknown" in reply:
        return TrialOutcome(None, str(reply.get("error", ""))[:500])
    try:
        return TrialOutcome(Cost.model_validate(reply))
    except ValidationError as error:
        raise SandboxError(f"the oracle child sent a cost that cannot be read: {first_fault(error)}") from error
