"""A plan prepared for timing, in the parent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kernelforge.devices import replies
from kernelforge.devices.base import RunFailed, RunRequest, SampleWork, TimedPlan
from kernelforge.errors import DeviceError, SandboxError
from kernelforge.sandbox import Frame
from kernelforge.sandbox.shared_memory import Blob

if TYPE_CHECKING:
    from kernelforge.devices.cuda.session import CudaSession


class RemoteTimedPlan(TimedPlan):
    """See :class:`kernelforge.devices.base.TimedPlan`.

    Raises:
        RunFailed: the sets do not fit into memory, or the first execution faulted.
    """

    name = "candidate"

    def __init__(
        self, session: CudaSession, requests: Sequence[RunRequest], flush_bytes: int, flush_each: bool
    ) -> None:
        self._session = session
        self._requests = tuple(requests)
        self._open = True
        self._samples = 0
        self._ask({"op": "arm", "flush_bytes": flush_bytes, "flush_each": flush_each, **session.plan_of(requests[0])})
        for request in requests:
            self._send("add", request)
        started = self._ask({"op": "start"})
        self._captured = started.data.get("captured") is True
        self.setup_us: float | None = _setup_in(started)

    @property
    def captured(self) -> bool:
        """Whether samples are replays of a graph."""
        return self._captured

    def run(self, samples: int, work: SampleWork = "sample", *, gaps_us: Sequence[float] = ()) -> None:
        """Run ``samples`` samples, each of K executions, and wait for them."""
        if samples < 1 or (gaps_us and len(gaps_us) != samples):
            raise ValueError(f"{samples} samples with {len(gaps_us)} gaps: at least one, and a gap for each or none")
        self._samples = samples
        data = {"op": "block", "work": work, "samples": samples, "gaps_us": list(gaps_us)}
        self._ask(data, idle_s=sum(gaps_us) / 1e6)

    def times(self) -> tuple[float, ...]:
        """Time of each sample that ran last, in µs."""
        return _times_in(self._ask({"op": "times"}), self._samples)

    def refresh(self, requests: Sequence[RunRequest]) -> None:
        """Put new values into every set, and run its setup again."""
        if len(requests) != len(self._requests):
            raise ValueError(f"{len(requests)} requests for {len(self._requests)} sets")
        for request in requests:
            replies.check_tensors(request)
            self._send("stage", request)
        self.setup_us = _setup_in(self._ask({"op": "refresh"}))

    def outputs(self) -> tuple[tuple[Blob, ...], ...]:
        """What an execution left in each set; after a block without executions one more sample is run for it."""
        found = []
        for number, request in enumerate(self._requests):
            reply = self._ask({"op": "outputs", "set": number})
            self._session.check(request, reply)
            found.append(reply.blobs)
        return tuple(found)

    def coverage(self) -> float:
        """Share of device time in the candidate's own kernels."""
        share = replies.time_in(self._ask({"op": "coverage"}).data.get("coverage"))
        if share > 1:
            raise SandboxError(f"the runner sent {share!r} for a share")
        return share

    def close(self) -> None:
        """Free the sets; the session may run other plans again."""
        if not self._open:
            return
        try:
            # Where the runner or its GPU is gone, the sets are too.
            with suppress(RunFailed, DeviceError):
                self._ask({"op": "disarm"})
        finally:
            self._open = False
            self._session.disarmed()

    def __enter__(self) -> RemoteTimedPlan:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _send(self, op: str, request: RunRequest) -> None:
        order = sorted(request.tensors)
        self._ask({"op": op, "tensors": order}, [request.tensors[b] for b in order])

    def _ask(self, data: dict[str, Any], blobs: Sequence[Blob] = (), *, idle_s: float = 0.0) -> Frame:
        if not self._open:
            raise ValueError("this armed plan was closed")
        reply = self._session.ask(data, blobs, self._requests[0], idle_s=idle_s)
        faults = replies.faults_in(reply)
        if faults:
            raise RunFailed(faults[0])
        return reply


def _times_in(reply: Frame, count: int) -> tuple[float, ...]:
    raw = reply.data.get("times_us")
    if not isinstance(raw, list) or len(raw) != count:
        raise SandboxError(f"the runner sent other times than those of {count} samples")
    return tuple(replies.time_in(value) for value in raw)


def _setup_in(reply: Frame) -> float | None:
    value = reply.data.get("setup_us")
    return None if value is None else replies.time_in(value)
