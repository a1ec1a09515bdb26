"""A confined child that tries constants, replaced when it hangs, dies or runs out of memory."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from kernelforge.errors import ChildTimeout, SandboxError
from kernelforge.evaluation.oracle.client import ChildZygote
from kernelforge.evaluation.size_search.search import Bounds, Cost, TrialOutcome
from kernelforge.records import first_fault
from kernelforge.sandbox import Child, Zygote
from kernelforge.sandbox.policy import Limits, role_policy
from kernelforge.tasks.constants import Scalar
from kernelforge.utils.closing import Closing

_MODULE = "kernelforge.evaluation.size_search.worker"
_CPU_S = 3600.0
_MOST_HANGS = 2


def prober_zygote(*, allow_unconfined: bool = False) -> Zygote:
    """A warm process whose children are probers or oracles: the oracle's jail with a program that can be both."""
    return Zygote("oracle", allow_unconfined=allow_unconfined, policy=replace(role_policy("oracle"), module=_MODULE))


class SizeSearchClient(Closing):
    """Tries one task file. Not for use by two threads at once."""

    def __init__(self, zygote: ChildZygote, source: str, bounds: Bounds) -> None:
        self._zygote = zygote
        self._source = source
        self._bounds = bounds
        self._child: Child | None = None
        self.hangs = 0
        """How often no answer came in time."""

    def abstract(self) -> TrialOutcome:
        """Cost of the file's own constants, on shapes alone; neither cost nor error where shapes do not suffice."""
        return self._outcome({}, "abstract")

    def run(self, constants: Mapping[str, Scalar], *, near: bool = False) -> TrialOutcome:
        """Memory and operations of the reference at ``constants``; see :class:`~.search.ReferenceTrial`."""
        return self._outcome(constants, "real" if near else "both")

    def _outcome(self, constants: Mapping[str, Scalar], how: str) -> TrialOutcome:
        if self.hangs >= _MOST_HANGS:
            return TrialOutcome(None, self._hang())
        request = {
            "constants": dict(constants),
            "most_elements": self._bounds.most_elements,
            "most_flops": self._bounds.most_flops,
            "how": how,
        }
        child = self._ready()
        try:
            return _read(child.call(request, timeout_s=self._bounds.answer_s).data)
        except ChildTimeout:
            self.close()
            self.hangs += 1
            return TrialOutcome(None, self._hang())
        except SandboxError as error:
            self.close()
            return TrialOutcome(None, (str(error).strip().splitlines() or ["the oracle child is gone"])[-1][:300])

    def _hang(self) -> str:
        return f"it hangs: no answer in {self._bounds.answer_s:g} s"

    def _ready(self) -> Child:
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


def _read(reply: Mapping[str, Any]) -> TrialOutcome:
    """A reply of a child that runs third-party code: what cannot be read is its failure."""
    if "error" in reply or "unknown" in reply:
        return TrialOutcome(None, str(reply.get("error", ""))[:500])
    try:
        return TrialOutcome(Cost.model_validate(reply))
    except ValidationError as error:
        raise SandboxError(f"the oracle child sent a cost that cannot be read: {first_fault(error)}") from error
