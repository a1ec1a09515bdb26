"""Torch operators of a session's plans, seen from the parent: called in a confined child other than the runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kernelforge.candidate.resolved import Library, step_to_wire
from kernelforge.devices import wire
from kernelforge.devices.base import FaultKind, RunFailure
from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.hardware.specs import GIB
from kernelforge.sandbox import Child, Frame, Limits, Zygote
from kernelforge.sandbox.shared_memory import Blob

CPU_S = 3600.0
"""CPU time of all calls of one session."""


class OperatorCalls:
    """Calls for one session, in a child that starts at the first one. The child gets the plan's operator and the bytes
    of its operands, and nothing else.

    Args:
        zygote: Forks the child.
        memory_bytes: Device memory of one run.
    """

    def __init__(self, zygote: Zygote, memory_bytes: int) -> None:
        self._zygote = zygote
        self._memory_bytes = memory_bytes
        self._child: Child | None = None

    def answer(
        self, request: Frame, calls: Iterator[tuple[int, Library]], *, timeout_s: float
    ) -> tuple[dict[str, Any], Sequence[Blob]]:
        """The frame that answers a runner which asks for an operator's results.

        Args:
            request: The runner's request. It is hostile: only the position of a call that the plan has, and which the
                run has not reached before, is believed, with operands of that call's lengths.
            calls: The plan's calls with their positions, from the first that may be asked for.
            timeout_s: Longest that the call may take.

        Raises:
            SandboxError: the runner asked for a call that the plan does not have, or no child can be started.
        """
        step = next((call for number, call in calls if number == request.data["library"]), None)
        if step is None or [len(blob) for blob in request.blobs] != [view.span_bytes for view in step.operands]:
            raise SandboxError("the runner asked for a torch operator that the plan does not call")
        results = self._call(step, request.blobs, timeout_s)
        if isinstance(results, RunFailure):
            return {"faults": [[results.kind, results.message]]}, ()
        return {"faults": []}, results

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _call(self, step: Library, operands: Sequence[Blob], timeout_s: float) -> Sequence[Blob] | RunFailure:
        lengths = [view.span_bytes for view in step.out]
        if self._child is None:
            limits = Limits(
                wall_s=60.0,
                cpu_s=CPU_S,
                # Operands and results, and as much again for what an operator needs in between.
                memory_bytes=2 * self._memory_bytes + GIB,
                processes=4,
                reply_bytes=self._memory_bytes,
            )
            try:
                self._child = self._zygote.spawn(limits)
            except (ChildDied, ChildTimeout) as error:  # to the session these would mean the runner
                raise SandboxError(f"the process that calls torch operators does not start: {error}") from error
        try:
            reply = self._child.call({"step": step_to_wire(step)}, operands, timeout_s=timeout_s)
            faults = wire.read_faults(reply)
            if not faults and [len(blob) for blob in reply.blobs] != lengths:
                raise SandboxError("the child with torch sent results of other lengths than the plan's")
        except ChildTimeout:
            self.close()
            return _failure(step, "timeout", f"it did not end within {timeout_s:g} s")
        except ChildDied as error:
            death = self._child.death()
            self.close()
            memory = death is not None and death.cause == "memory"
            return _failure(step, "memory" if memory else "crash", f"it ended its process: {death or error}")
        except (SandboxError, KeyboardInterrupt):
            self.close()
            raise
        return faults[0] if faults else reply.blobs


def _failure(step: Library, kind: FaultKind, text: str) -> RunFailure:
    return RunFailure(kind, f"library({step.operator!r}) in plan line {step.line}: {text}")
