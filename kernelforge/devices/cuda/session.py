"""One build in one disposable runner, in the parent. A lost runner is replaced at the next run."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from statistics import median, quantiles
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from kernelforge.candidate.resolved import Library
from kernelforge.compile.cache import Artifact
from kernelforge.compile.cubin import read_cubin
from kernelforge.devices import replies
from kernelforge.devices.base import RunFailed, RunFailure, RunRequest, RunResult, TuningTime
from kernelforge.devices.cuda.timed_plan import RemoteTimedPlan
from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.records import Performance, Profile, SizeFacts
from kernelforge.sandbox import Child, Frame
from kernelforge.sandbox.shared_memory import Blob

if TYPE_CHECKING:
    from kernelforge.devices.cuda.device import CudaDevice

COPY_BYTES_PER_S = 200e6
"""Slower than this no tensor moves between parent and GPU; a deadline allows for it."""
RATE_SAMPLES = 40
SETTLED_SPREAD = 0.02
"""A rating is settled when half of its samples lie within this part of their median."""
TORCH_S = 300.0
"""Longest wait for torch: its CUDA build took 17 s to import from a cold disk, 3 s from a warm one."""
EVENT_RESOLUTION_US = 0.5
"""CUDA Runtime API, ``cudaEventElapsedTime``: around half a microsecond."""


class CudaSession:
    """See :class:`kernelforge.devices.base.Session`."""

    def __init__(self, device: CudaDevice, artifact: Artifact) -> None:
        self._device = device
        self._artifact = artifact
        self._child: Child | None = None
        self._armed: RemoteTimedPlan | None = None
        self._has_torch = False
        """Whether the child has imported torch."""
        self._lock = threading.RLock()

    def run(self, request: RunRequest) -> RunResult:
        """Run a plan; what goes wrong in it is in the result.

        Raises:
            DeviceError: the GPU is unhealthy.
            SandboxError: no child can be started, or it broke its channel's format.
        """
        replies.check_tensors(request)
        try:
            self._refuse_excess([request])
            order = sorted(request.tensors)
            data = {"op": "run", "tensors": order, **self.plan_of(request)}
            reply = self.ask(data, [request.tensors[b] for b in order], request)
        except RunFailed as error:
            return RunResult((), (error.fault,))
        faults = replies.faults_in(reply)
        if faults:
            return RunResult((), faults, None, replies.seconds_in(reply))
        self.check(request, reply)
        return RunResult(reply.blobs, (), None, replies.seconds_in(reply))

    def profile(self, request: RunRequest, facts: SizeFacts) -> tuple[Profile, Performance | None]:
        """Nsight Compute's metrics, or what stands in for them; this device models no time.

        Raises:
            RunFailed: a launch faulted.
        """
        from kernelforge.devices.cuda.tools.ncu import profile

        return profile(self._device, self._artifact, request, facts, self._device.counters), None

    def rate(self, request: RunRequest, effort: float) -> TuningTime:
        """Median time of a share of :data:`RATE_SAMPLES` samples, the L2 flushed before each.

        Raises:
            RunFailed: a launch faulted.
        """
        samples = max(4, round(effort * RATE_SAMPLES))
        armed = self.arm([request], flush_bytes=2 * self._device.l2_bytes)
        try:
            armed.block(1)
            times = armed.block(samples)
            flush = median(armed.flush_block(samples))
        finally:
            armed.close()
        own = [max(time - flush, EVENT_RESOLUTION_US) for time in times]
        low, middle, high = quantiles(own, n=4)
        return TuningTime(middle, settled=high - low <= SETTLED_SPREAD * middle)

    def arm(self, requests: Sequence[RunRequest], *, flush_bytes: int = 0, flush_each: bool = False) -> RemoteTimedPlan:
        """Make ready to time a plan; one request per set, all of the same plan.

        Raises:
            RunFailed: the sets do not fit into memory, or the first execution faulted.
            DeviceError: the GPU is unhealthy.
        """
        if not requests:
            raise ValueError("a plan is armed on at least one set of tensors")
        if any(request.plan != requests[0].plan for request in requests):
            raise ValueError("all sets are of one plan")
        self._refuse_armed()
        for request in requests:
            replies.check_tensors(request)
        # Each set keeps a second copy of the inputs that it writes.
        copies = sum(len(request.tensors[buffer]) for request in requests for buffer in request.mutable)
        self._refuse_excess(requests, flush_bytes + copies)
        self._device.spares.hold()
        try:
            self._armed = RemoteTimedPlan(self, requests, flush_bytes, flush_each)
        except BaseException:
            self._device.spares.release()
            raise
        return self._armed

    def disarmed(self) -> None:
        """An armed plan was closed: the session is free again, and contexts may be made."""
        if self._armed is not None:
            self._armed = None
            self._device.spares.release()

    def interrupt(self) -> None:
        """End the call of the runner that another thread waits for."""
        child = self._child
        if child is not None:
            child.interrupt()

    def close(self) -> None:
        """End the runner."""
        with self._lock:
            if self._armed is not None:
                self._armed.close()
            self._drop()

    def __enter__(self) -> CudaSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def plan_of(request: RunRequest) -> dict[str, Any]:
        """What a request says of its plan, for the channel."""
        return {"plan": request.plan.to_wire(), "poison": request.poison, "mutable": sorted(request.mutable)}

    def ask(self, data: dict[str, Any], blobs: Sequence[Blob], request: RunRequest, *, idle_s: float = 0.0) -> Frame:
        """The child's reply.

        Args:
            data: The request's frame.
            blobs: Of the frame.
            request: Whose deadline it runs under.
            idle_s: Time beside that, in which the GPU is meant to wait.

        Raises:
            RunFailed: the child ended, or did not answer in time.
            DeviceError: the GPU does not pass its probe afterwards.
        """
        moved = sum(len(blob) for blob in blobs) + sum(output.nbytes for output in request.plan.outputs)
        wait = request.deadline_s + self._device.grace_s + idle_s + moved / COPY_BYTES_PER_S
        with self._lock:
            self._device.refuse_unhealthy()
            if data["op"] in ("run", "arm"):
                self._refuse_armed()
                self._loaded(wait)
                self._with_torch(request)
            if self._child is None:
                raise RunFailed(RunFailure("crash", "the runner was lost"))
            reply = self._call(self._child, data, blobs, wait, request)
            if reply.data.get("lost"):
                self._lose()
            return reply

    def check(self, request: RunRequest, reply: Frame) -> None:
        """Refuse outputs that cannot be the plan's.

        Raises:
            SandboxError: they are not.
        """
        try:
            replies.check_outputs(request, reply.blobs)
        except SandboxError:
            self._drop()
            raise

    def _call(
        self, child: Child, data: dict[str, Any], blobs: Sequence[Blob], wait: float, request: RunRequest | None = None
    ) -> Frame:
        try:
            cap = None if request is None else replies.reply_bytes(request)
            return child.call(data, blobs, timeout_s=wait, reply_bytes=cap)
        except ChildTimeout as error:
            self._lose()
            raise RunFailed(
                RunFailure(
                    "timeout", f"the plan did not end within {wait if request is None else request.deadline_s:g} s"
                )
            ) from error
        except ChildDied as error:
            self._died(child, error)
        except (SandboxError, KeyboardInterrupt):
            self._drop()
            raise

    def _died(self, child: Child, error: ChildDied) -> NoReturn:
        """What the end of a child says about the plan that it ran."""
        death = child.death()
        cause = None if death is None else death.cause
        self._lose()
        if cause == "memory":
            raise RunFailed(RunFailure("memory", "the runner ran out of memory on the host")) from error
        if cause in ("signal", "killed", "cpu"):
            raise RunFailed(RunFailure("crash", f"the runner was ended while the plan ran: {death}")) from error
        raise SandboxError(f"the runner itself failed, which is not the candidate's doing: {error}") from error

    def _loaded(self, wait: float) -> None:
        """Have a child with the build loaded. The lock is held.

        Raises:
            RunFailed: the build cannot be loaded.
        """
        if self._child is not None:
            return
        self._child = self._device.spares.take()
        kernels = {
            kernel.expression: (
                kernel.symbol,
                kernel.registers_per_thread,
                kernel.static_shared_bytes,
                kernel.max_threads_per_block,
            )
            for kernel in self._artifact.build.kernels
        }
        unwritten = sorted(self._unwritten)
        data = {"op": "load", "kernels": kernels, "unwritten": unwritten}
        reply = self._call(self._child, data, [self._artifact.cubin], wait)
        faults = replies.faults_in(reply)
        if faults:
            self._lose()
            raise RunFailed(faults[0])

    @cached_property
    def _unwritten(self) -> frozenset[str]:
        """Module variables that the build cannot write."""
        # Imported here: the parent's side loads nothing that it may not need.
        from kernelforge.devices.cuda.worker.module_globals import unwritten_variables

        return unwritten_variables(self._artifact.ptx) if read_cubin(self._artifact.cubin).variables else frozenset()

    def _with_torch(self, request: RunRequest) -> None:
        """Have torch in the child where the plan calls its operators: no deadline of a run is for importing it. The
        lock is held.

        Raises:
            SandboxError: it cannot be had in time, which is nothing that the candidate did.
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
        faults = replies.faults_in(reply)
        if faults:
            raise RunFailed(faults[0])
        self._has_torch = True

    def _refuse_excess(self, requests: Sequence[RunRequest], more_bytes: int = 0) -> None:
        """Raise :class:`RunFailed` where a plan takes more memory than it may, or all sets more than there is."""
        request, there = requests[0], self._device.memory_bytes
        needed = sum(buffer.nbytes for buffer in request.plan.buffers)
        allowed = there if request.memory_bytes is None else min(request.memory_bytes, there)
        if needed > allowed:
            text = f"the plan needs {needed} bytes of device memory, {allowed} are allowed"
            raise RunFailed(RunFailure("memory", text))
        if len(requests) * needed + more_bytes > there:
            text = f"{len(requests)} sets of {needed} bytes and {more_bytes} more exceed the {there} of the device"
            raise RunFailed(RunFailure("memory", text))

    def _refuse_armed(self) -> None:
        if self._armed is not None:
            raise ValueError("the session is armed: close that before anything else runs in it")

    def _lose(self) -> None:
        """End the child, and see whether the GPU outlived what it ran."""
        self._drop()
        self._device.recover()

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
            self._has_torch = False
