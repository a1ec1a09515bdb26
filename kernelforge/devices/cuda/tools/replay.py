"""The program that ncu and compute-sanitizer start: runs one plan from a folder of files.

``python -m kernelforge.devices.cuda.tools.replay FOLDER`` reads ``request.json``, ``cubin`` and ``<buffer>.bin`` from
the folder and writes ``result.json``. Its modes:

- ``profile``: setup and forward once as a warm-up, then forward once, with the selected launches inside the driver's
  profiler region;
- ``check``: setup and forward once, on allocations of exactly the plan's sizes that hold nothing but inputs and
  weights: a guard would hide an access out of bounds, poison a read of memory that was never written;
- ``time``: as ``profile``, with events around every launch instead of a region.

No code of the candidate runs on the host: only its cubin is loaded. The program gets its own environment and no
inherited descriptor. In mode ``time``, where no tool shares the process, it also gives up root and, through Landlock,
access to files outside its folder and to devices other than the GPU's. Under ncu and compute-sanitizer it cannot: the
tool's library in this process needs descriptors and sockets, and a driver that restricts counters to administrators
requires root in this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from kernelforge.candidate.resolved import Launch, ResolvedPlan
from kernelforge.devices.cuda.worker.driver import Driver, DriverError, Pointer
from kernelforge.devices.cuda.worker.errors import PlanFailed, describe_step, plan_failure
from kernelforge.devices.cuda.worker.launch_binding import BoundStep, KernelLimits, StepBinder, launch_error
from kernelforge.devices.cuda.worker.main import open_driver, warm_up
from kernelforge.devices.cuda.worker.tensors import allocate
from kernelforge.devices.library_calls import cuda_tensor
from kernelforge.sandbox import gpu_access, landlock, syscalls
from kernelforge.sandbox.jail import others_can_read, readable_proc_paths
from kernelforge.sandbox.shared_memory import Blob

Mode = Literal["profile", "check", "time"]
REQUEST, CUBIN, RESULT = "request.json", "cubin", "result.json"
_NOBODY = 65534


class ExactTensors:
    """Buffers of a plan, each an allocation of exactly its size; only inputs and weights are initialised. Those of
    ``mapped`` are in pinned host memory."""

    def __init__(
        self, driver: Driver, plan: ResolvedPlan, contents: Mapping[int, Blob], mapped: frozenset[int]
    ) -> None:
        self._driver = driver
        self._pointers: dict[int, Pointer] = {}
        for buffer in plan.buffers:
            self._pointers[buffer.id] = allocate(driver, buffer, buffer.nbytes, mapped)
            content = contents.get(buffer.id)
            if content is not None:
                driver.write(self._pointers[buffer.id], content)

    def address(self, buffer: int, offset_bytes: int = 0) -> Pointer:
        """Device address of a byte of a buffer."""
        return self._pointers[buffer] + offset_bytes

    def renew(self, contents: Mapping[int, Blob]) -> None:
        """Write these buffers again."""
        for number, content in contents.items():
            self._driver.write(self._pointers[number], content)


class Replay:
    """One plan on one GPU, for repeated runs.

    Raises:
        PlanFailed: CUDA refuses the build or the plan, or its tensors do not fit.
    """

    def __init__(self, driver: Driver, request: Mapping[str, Any], cubin: bytes, contents: Mapping[int, Blob]) -> None:
        self._driver = driver
        self._plan = ResolvedPlan.from_wire(request["plan"])
        kernels = {name: KernelLimits(*facts) for name, facts in request["kernels"].items()}
        fault = launch_error(self._plan, kernels, driver.facts, driver.lacks)
        if fault is not None:
            raise PlanFailed(fault)
        try:
            module = driver.load(cubin)
            self._tensors = ExactTensors(driver, self._plan, contents, frozenset(request["mapped"]))
        except DriverError as error:
            needed = sum(buffer.nbytes for buffer in self._plan.buffers)
            raise plan_failure(error, f"loading the build and {needed} bytes of tensors") from error
        self._mutable = {number: contents[number] for number in request["mutable"]}
        binder = StepBinder(driver, module, kernels, getattr(driver, "tensor", cuda_tensor))
        self._setup = binder.bind(self._plan.setup, self._tensors)
        self._steps = binder.bind(self._plan.steps, self._tensors)

    def once(self) -> None:
        """Run setup and forward, and wait after every step, so that a fault can be attributed to it."""
        for bound in (*self._setup, *self._steps):
            bound.run()
            self._wait(bound)

    def profiled(self, ordinals: Sequence[int]) -> int:
        """Run forward, with the launches of these ordinals inside profiler regions; returns the number profiled.

        Consecutive launches share a region.
        """
        selected, seen, profiled = set(ordinals), 0, 0
        self._tensors.renew(self._mutable)
        with contextlib.ExitStack() as region:
            inside = False
            for bound in self._steps:
                if isinstance(bound.step, Launch):
                    if (seen in selected) != inside:
                        region.close()
                        inside = not inside
                        if inside:
                            region.enter_context(self._region(bound))
                    profiled += seen in selected
                    seen += 1
                bound.run()
            if self._steps:
                self._wait(self._steps[-1])
        return profiled

    def timed(self, repeats: int) -> list[list[float]]:
        """Time of every launch of forward in µs, by events around it: [launch][repeat]."""
        times: list[list[float]] = [[] for bound in self._steps if isinstance(bound.step, Launch)]
        for _ in range(repeats):
            self._tensors.renew(self._mutable)
            events = []
            for bound in self._steps:
                if isinstance(bound.step, Launch):
                    start = self._driver.event()
                    bound.run()
                    events.append((start, self._driver.event()))
                else:
                    bound.run()
            if self._steps:
                self._wait(self._steps[-1])
            for launch_times, (start, end) in zip(times, events, strict=True):
                launch_times.append(self._driver.elapsed_us(start, end))
        return times

    @contextlib.contextmanager
    def _region(self, bound: BoundStep) -> Iterator[None]:
        try:
            with self._driver.profiler_region():
                yield
        except DriverError as error:
            raise plan_failure(error, describe_step(bound.step)) from error

    def _wait(self, bound: BoundStep) -> None:
        try:
            self._driver.synchronize()
        except DriverError as error:
            raise plan_failure(error, describe_step(bound.step)) from error


def confine(folder: Path, readable: Sequence[str]) -> list[str]:
    """Give up root, reading except granted paths, and writing except to this folder and the GPU's nodes.

    CUDA names its threads through ``/proc/self/task``, and drivers from 570 on do not start without it.

    Args:
        folder: The request's folder.
        readable: Paths that a runner may read.

    Returns:
        The layers in force.
    """
    layers, capability = [], None
    if os.geteuid() == 0:
        try:
            capability = None if others_can_read(readable) else syscalls.reading_capability()
            for path in (folder, *folder.iterdir()):
                os.chown(path, _NOBODY, _NOBODY)
            os.setgroups([])
            if capability is not None:
                syscalls.prctl("prctl(KEEPCAPS)", syscalls.PR_SET_KEEPCAPS, 1)
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            layers.append("no root")
        except PermissionError:
            layers.append("root without the right to change its user")
    syscalls.prctl("prctl(NO_NEW_PRIVS)", syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.drop_capabilities(but=capability)
    nodes = [f"/dev/{name}" for name in (*gpu_access.device_nodes(), "null", "zero", "urandom")]
    nodes = [node for node in nodes if os.path.exists(node)]
    shared = [path for path in ("/dev/shm",) if os.path.isdir(path)]
    version = landlock.restrict(
        readable=[*(path for path in readable if os.path.exists(path)), *readable_proc_paths()],
        writable=[str(folder), *shared, "/proc/self/task"],
        drivable=nodes,
    )
    return [*layers, f"landlock {version}"] if version else layers


def run(folder: Path) -> dict[str, Any]:
    """Carry out a folder's request; the plan's faults are in the result."""
    request = json.loads((folder / REQUEST).read_text())
    contents = {number: (folder / f"{number}.bin").read_bytes() for number in request["tensors"]}
    cubin = (folder / CUBIN).read_bytes()
    mode: Mode = request["mode"]
    warm_up(request["driver"])  # before files are given up
    result: dict[str, Any] = {"layers": confine(folder, request["readable"]) if mode == "time" else []}
    driver = open_driver(request["driver"])
    try:
        replay = Replay(driver, request, cubin, contents)
        replay.once()
        if mode == "profile":
            result["profiled"] = replay.profiled(request["chosen"])
        elif mode == "time":
            result["times_us"] = replay.timed(request["repeats"])
        return {**result, "faults": []}
    except PlanFailed as plan:
        return {**result, "faults": [[fault.kind, fault.message] for fault in plan.faults]}


def main(arguments: Sequence[str]) -> int:
    """Write the result into the folder; 0 if the plan ran to its end, 3 if it faulted."""
    folder = Path(arguments[0])
    result = run(folder)
    # Written atomically: this process may be killed at its deadline.
    part = folder / f"{RESULT}.part"
    part.write_text(json.dumps(result))
    part.replace(folder / RESULT)
    return 3 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
