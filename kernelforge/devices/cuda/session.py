"""One build in one disposable runner, in the parent. A lost runner is replaced at the next run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from statistics import median, quantiles
from typing import Any, NoReturn

from kernelforge.candidate.resolved import Library
from kernelforge.compile.cache import Artifact
from kernelforge.compile.cubin import read_cubin
from kernelforge.devices import wire
from kernelforge.devices.base import (
    RunFailed,
    RunFailure,
    RunRequest,
    RunResult,
    SampleWork,
    TimedPlan,
    TuningTime,
)
from kernelforge.devices.cuda.runner_pool import RunnerPool
from kernelforge.devices.cuda.target import GpuTarget
from kernelforge.errors import ChildDied, ChildTimeout, DeviceError, SandboxError
from kernelforge.records import Performance, Profile, SizeFacts
from kernelforge.sandbox import Child, Frame
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.utils.closing import Closing
from kernelforge.utils.machine import installed_memory_bytes

COPY_BYTES_PER_S = 200e6
"""Lowest rate at which tensors move between parent and GPU; deadlines allow for it."""
RATE_SAMPLES = 40
SETTLED_SPREAD = 0.02
"""A rating is settled when half of its samples lie within this part of their median."""
TORCH_S = 300.0
"""Longest wait for torch: its CUDA build took 17 s to import from a cold disk, 3 s from a warm one."""
EVENT_RESOLUTION_US = 0.5
"""CUDA Runtime API, ``cudaEventElapsedTime``: around half a microsecond."""


class CudaSession(Closing):
    """See :class:`kernelforge.devices.base.Session`."""

    def __init__(self, target: GpuTarget, runners: RunnerPool, artifact: Artifact) -> None:
        self._target = target
        self._runners = runners
        self._artifact = artifact
        self._child: Child | None = None
        self._timed: RemoteTimedPlan | None = None
        self._has_torch = False
        """Whether the child has imported torch."""
        self._lock = threading.RLock()

    def run(self, request: RunRequest) -> RunResult:
        """Run a plan; its faults are in the result.

        Raises:
            DeviceError: the GPU is unhealthy.
            SandboxError: no child can be started, or it broke its channel's format.
        """
        wire.check_tensors(request)
        try:
            self._check_memory([request])
            order = sorted(request.tensors)
            data = {"op": "run", "tensors": order, **_plan_data(request)}
            reply = self._ask(data, [request.tensors[b] for b in order], request)
        except RunFailed as error:
            return RunResult((), (error.fault,))
        faults = wire.read_faults(reply)
        if faults:
            return RunResult((), faults, None, wire.read_seconds(reply))
        self._check_outputs(request, reply)
        return RunResult(reply.blobs, (), None, wire.read_seconds(reply))

    def profile(self, request: RunRequest, facts: SizeFacts) -> tuple[Profile, Performance | None]:
        """Profile by Nsight Compute, or by the fallback; this device models no time.

        Raises:
            RunFailed: a launch faulted.
        """
        from kernelforge.devices.cuda.tools.ncu import profile

        return profile(self._target, self._runners, self._artifact, request, facts), None

    def rate(self, request: RunRequest, effort: float) -> TuningTime:
        """Median time of a share of :data:`RATE_SAMPLES` samples, the L2 flushed before each.

        Raises:
            RunFailed: a launch faulted.
        """
        samples = max(4, round(effort * RATE_SAMPLES))
        timed = self.arm([request], flush_bytes=2 * self._target.facts.l2_bytes)
        try:
            timed.block(1)
            times = timed.block(samples)
            flush = median(timed.flush_block(samples))
        finally:
            timed.close()
        own = [max(time - flush, EVENT_RESOLUTION_US) for time in times]
        low, middle, high = quantiles(own, n=4)
        return TuningTime(middle, settled=high - low <= SETTLED_SPREAD * middle)

    def arm(self, requests: Sequence[RunRequest], *, flush_bytes: int = 0, flush_each: bool = False) -> RemoteTimedPlan:
        """Prepare a plan for timing; one request per set, all of the same plan.

        Raises:
            RunFailed: the sets do not fit into memory, or the first execution faulted.
            DeviceError: the GPU is unhealthy.
        """
        if not requests:
            raise ValueError("a plan is armed on at least one set of tensors")
        if any(request.plan != requests[0].plan for request in requests):
            raise ValueError("all sets are of one plan")
        self._require_unarmed()
        for request in requests:
            wire.check_tensors(request)
        # Each set keeps a second copy of the inputs that it writes.
        copies = sum(len(request.tensors[buffer]) for request in requests for buffer in request.mutable)
        self._check_memory(requests, flush_bytes + copies)
        self._runners.hold()
        try:
            self._timed = RemoteTimedPlan(
                self._ask, self._check_outputs, self._disarmed, requests, flush_bytes, flush_each
            )
        except BaseException:
            self._runners.release()
            raise
        return self._timed

    def _disarmed(self) -> None:
        """Free the session after its timed plan was closed; the pool may make contexts again."""
        if self._timed is not None:
            self._timed = None
            self._runners.release()

    def interrupt(self) -> None:
        """End the call of the runner that another thread waits for."""
        child = self._child
        if child is not None:
            child.interrupt()

    def close(self) -> None:
        """End the runner."""
        with self._lock:
            if self._timed is not None:
                self._timed.close()
            self._drop()

    def _ask(self, data: dict[str, Any], blobs: Sequence[Blob], request: RunRequest, idle_s: float = 0.0) -> Frame:
        """The child's reply.

        Args:
            data: The request's frame.
            blobs: Blobs of the frame.
            request: The run whose deadline applies.
            idle_s: Time added to the deadline, in which the GPU is idle on purpose.

        Raises:
            RunFailed: the child ended, or did not answer in time.
            DeviceError: the GPU does not pass its probe afterwards.
        """
        moved = sum(len(blob) for blob in blobs) + sum(output.nbytes for output in request.plan.outputs)
        wait = request.deadline_s + self._target.grace_s + idle_s + moved / COPY_BYTES_PER_S
        with self._lock:
            self._runners.require_healthy()
            if data["op"] in ("run", "arm"):
                self._require_unarmed()
                self._load(wait)
                self._import_torch(request)
            if self._child is None:
                raise RunFailed(RunFailure("crash", "the runner was lost"))
            reply = self._call(self._child, data, blobs, wait, request)
            if reply.data.get("lost"):
                self._lose()
            return reply

    def _check_outputs(self, request: RunRequest, reply: Frame) -> None:
        """Refuse outputs that cannot be the plan's.

        Raises:
            SandboxError: their lengths differ from the plan's.
        """
        try:
            wire.check_outputs(request, reply.blobs)
        except SandboxError:
            self._drop()
            raise

    def _call(
        self, child: Child, data: dict[str, Any], blobs: Sequence[Blob], wait: float, request: RunRequest | None = None
    ) -> Frame:
        try:
            cap = None if request is None else wire.reply_bytes(request)
            return child.call(data, blobs, timeout_s=wait, reply_bytes=cap)
        except ChildTimeout as error:
            self._lose()
            limit = wait if request is None else request.deadline_s
            raise RunFailed(RunFailure("timeout", f"the plan did not end within {limit:g} s")) from error
        except ChildDied as error:
            self._raise_for_death(child, error)
        except (SandboxError, KeyboardInterrupt):
            self._drop()
            raise

    def _raise_for_death(self, child: Child, error: ChildDied) -> NoReturn:
        """Raise the failure of the plan that a child's end stands for."""
        death = child.death()
        cause = None if death is None else death.cause
        self._lose()
        if cause == "memory":
            raise RunFailed(RunFailure("memory", "the runner ran out of memory on the host")) from error
        if cause in ("signal", "killed", "cpu"):
            raise RunFailed(RunFailure("crash", f"the runner was ended while the plan ran: {death}")) from error
        raise SandboxError(f"the runner itself failed, which is not the candidate's doing: {error}") from error

    def _load(self, wait: float) -> None:
        """Take a child and load the build into it. The lock is held.

        Raises:
            RunFailed: the build cannot be loaded.
        """
        if self._child is not None:
            return
        self._child = self._runners.take()
        data = {
            "op": "load",
            "kernels": wire.kernel_limits(self._artifact),
            "unwritten": sorted(self._unwritten),
        }
        reply = self._call(self._child, data, [self._artifact.cubin], wait)
        faults = wire.read_faults(reply)
        if faults:
            self._lose()
            raise RunFailed(faults[0])

    @cached_property
    def _unwritten(self) -> frozenset[str]:
        """Module variables that the build cannot write."""
        # Imported here: most builds have no variables, and the parent then needs no PTX parser.
        from kernelforge.devices.cuda.worker.module_globals import unwritten_variables

        return unwritten_variables(self._artifact.ptx) if read_cubin(self._artifact.cubin).variables else frozenset()

    def _import_torch(self, request: RunRequest) -> None:
        """Import torch in the child if the plan calls its operators: no run's deadline is for importing it. The lock is
        held.

        Raises:
            SandboxError: the import did not end in time, for which no candidate is to blame.
            RunFailed: torch has no GPU.
        """
        plan = request.plan
        if (
            self._has_torch
            or self._child is None
            or not any(isinstance(step, Library) for step in (*plan.setup, *plan.steps))
        ):
            return
        try:
            reply = self._child.call({"op": "torch"}, timeout_s=TORCH_S)
        except (SandboxError, KeyboardInterrupt) as error:
            self._drop()
            if isinstance(error, ChildTimeout):
                raise SandboxError(f"the runner did not import torch within {TORCH_S:g} s: a slow disk?") from error
            raise
        if reply.data.get("lost"):
            self._lose()
        faults = wire.read_faults(reply)
        if faults:
            raise RunFailed(faults[0])
        self._has_torch = True

    def _check_memory(self, requests: Sequence[RunRequest], more_bytes: int = 0) -> None:
        """Compare what a plan and its sets take with the memory that there is.

        Raises:
            RunFailed: the plan takes more of the device than it may, or all sets more than the device has.
            SandboxError: the inputs in pinned memory, which no plan chooses, are more than this machine has.
        """
        request, available = requests[0], self._target.memory_bytes
        needed = request.device_bytes
        allowed = available if request.memory_bytes is None else min(request.memory_bytes, available)
        if needed > allowed:
            text = f"the plan needs {needed} bytes of device memory, {allowed} are allowed"
            raise RunFailed(RunFailure("memory", text))
        if len(requests) * needed + more_bytes > available:
            text = f"{len(requests)} sets of {needed} bytes and {more_bytes} more exceed the {available} of the device"
            raise RunFailed(RunFailure("memory", text))
        pinned, installed = len(requests) * request.host_bytes, installed_memory_bytes()
        if pinned > installed:
            raise SandboxError(
                f"the task's inputs take {pinned} bytes of pinned host memory, the machine has {installed}"
            )

    def _require_unarmed(self) -> None:
        if self._timed is not None:
            raise ValueError("the session is armed: close that before anything else runs in it")

    def _lose(self) -> None:
        """End the child, and probe the GPU."""
        self._drop()
        self._runners.recover()

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
            self._has_torch = False


class RemoteTimedPlan(TimedPlan):
    """A plan prepared for timing in a session's runner.

    Args:
        ask: Sends a frame to the runner, with the run whose deadline applies and idle seconds to add to it.
        check_outputs: Refuses outputs that cannot be the plan's.
        closed: Called once the sets are freed.
        requests: Tensors of each set.
        flush_bytes: Bytes read in every sample, to empty the L2; 0 for none.
        flush_each: Flush before each execution rather than once before all.

    Raises:
        RunFailed: the sets do not fit into memory, or the first execution faulted.
    """

    name = "candidate"

    def __init__(
        self,
        ask: Callable[[dict[str, Any], Sequence[Blob], RunRequest, float], Frame],
        check_outputs: Callable[[RunRequest, Frame], None],
        closed: Callable[[], None],
        requests: Sequence[RunRequest],
        flush_bytes: int,
        flush_each: bool,
    ) -> None:
        self._send = ask
        self._check_outputs = check_outputs
        self._closed = closed
        self._requests = tuple(requests)
        self._open = True
        self._samples = 0
        self._ask({"op": "arm", "flush_bytes": flush_bytes, "flush_each": flush_each, **_plan_data(requests[0])})
        for request in requests:
            self._send_tensors("add", request)
        started = self._ask({"op": "start"})
        self._captured = started.data.get("captured") is True
        self.setup_us: float | None = _read_setup(started)

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
        """Time of each sample of the last block, in µs."""
        raw = self._ask({"op": "times"}).data.get("times_us")
        if not isinstance(raw, list) or len(raw) != self._samples:
            raise SandboxError(f"the runner sent other times than those of {self._samples} samples")
        return tuple(wire.read_time(value) for value in raw)

    def refresh(self, requests: Sequence[RunRequest]) -> None:
        """Put new values into every set, and run its setup again."""
        if len(requests) != len(self._requests):
            raise ValueError(f"{len(requests)} requests for {len(self._requests)} sets")
        for request in requests:
            wire.check_tensors(request)
            self._send_tensors("stage", request)
        self.setup_us = _read_setup(self._ask({"op": "refresh"}))

    def outputs(self) -> tuple[tuple[Blob, ...], ...]:
        """Outputs of one execution on each set; after a block without executions one more sample is run."""
        outputs = []
        for number, request in enumerate(self._requests):
            reply = self._ask({"op": "outputs", "set": number})
            self._check_outputs(request, reply)
            outputs.append(reply.blobs)
        return tuple(outputs)

    def coverage(self) -> float:
        """Share of device time in the candidate's own kernels."""
        share = wire.read_time(self._ask({"op": "coverage"}).data.get("coverage"))
        if share > 1:
            raise SandboxError(f"the runner sent {share!r} for a share")
        return share

    def close(self) -> None:
        """Free the sets; the session may run other plans again."""
        if not self._open:
            return
        try:
            # A lost runner or GPU has no sets to free.
            with suppress(RunFailed, DeviceError):
                self._ask({"op": "disarm"})
        finally:
            self._open = False
            self._closed()

    def __enter__(self) -> RemoteTimedPlan:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _send_tensors(self, op: str, request: RunRequest) -> None:
        order = sorted(request.tensors)
        self._ask({"op": op, "tensors": order}, [request.tensors[b] for b in order])

    def _ask(self, data: dict[str, Any], blobs: Sequence[Blob] = (), *, idle_s: float = 0.0) -> Frame:
        if not self._open:
            raise ValueError("this armed plan was closed")
        reply = self._send(data, blobs, self._requests[0], idle_s)
        faults = wire.read_faults(reply)
        if faults:
            raise RunFailed(faults[0])
        return reply


def _plan_data(request: RunRequest) -> dict[str, Any]:
    """A request's plan as frames hold it."""
    buffers = {"mutable": sorted(request.mutable), "mapped": sorted(request.mapped)}
    return {"plan": request.plan.to_wire(), "poison": request.poison, **buffers}


def _read_setup(reply: Frame) -> float | None:
    value = reply.data.get("setup_us")
    return None if value is None else wire.read_time(value)
