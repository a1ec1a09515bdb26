"""The program that ncu and compute-sanitizer start: one plan, run from a folder of files.

``python -m kernelforge.devices.cuda.tools.replay FOLDER`` reads ``request.json``, ``cubin`` and ``<buffer>.bin`` from
the folder and leaves ``result.json`` there. Its modes:

- ``profile``: setup and forward once as a warm-up, then forward once, with the launches that were chosen inside the
  driver's profiler region;
- ``check``: setup and forward once, on allocations of exactly the plan's sizes, with nothing written beforehand but
  inputs and weights: a guard would hide an access out of bounds, a poison one of memory never written;
- ``time``: as ``profile``, with events around every launch instead of a region.

No code of the candidate runs on the host: what is loaded is its cubin. The program is started with an environment
made for it and no inherited descriptor. In mode ``time``, where no tool shares the process, it also gives up root and,
through Landlock, writing to any file but its folder's and driving any device but the GPU's. Under ncu and
compute-sanitizer it cannot: the tool's library in this process talks to the tool over its own descriptors and
sockets, and a driver that restricts counters to administrators asks for root in this process.
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
from kernelforge.devices.cuda.worker.errors import PlanFailed, faulted, placed
from kernelforge.devices.cuda.worker.launch_binding import BoundStep, StepBinder
from kernelforge.devices.cuda.worker.launch_checks import KernelLimits, launch_error
from kernelforge.devices.cuda.worker.main import open_driver, warm_up
from kernelforge.devices.library_calls import cuda_tensor
from kernelforge.sandbox import gpu_access, landlock, procfs, syscalls
from kernelforge.sandbox.jail import others_can_read
from kernelforge.sandbox.shared_memory import Blob

Mode = Literal["profile", "check", "time"]
REQUEST, CUBIN, RESULT = "request.json", "cubin", "result.json"
_NOBODY = 65534


class ExactTensors:
    """Buffers of a plan, each an allocation of exactly its size; only inputs and weights hold anything."""

    def __init__(self, driver: Driver, plan: ResolvedPlan, contents: Mapping[int, Blob]) -> None:
        self._driver = driver
        self._pointers: dict[int, Pointer] = {}
        for buffer in plan.buffers:
            self._pointers[buffer.id] = driver.allocate(buffer.nbytes)
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
    """One plan on one GPU, run again as it is asked for.

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
            self._tensors = ExactTensors(driver, self._plan, contents)
        except DriverError as error:
            needed = sum(buffer.nbytes for buffer in self._plan.buffers)
            raise faulted(error, f"loading the build and {needed} bytes of tensors") from error
        self._mutable = {number: contents[number] for number in request["mutable"]}
        binder = StepBinder(driver, module, kernels, getattr(driver, "tensor", cuda_tensor))
        self._setup = binder.bind(self._plan.setup, self._tensors)
        self._steps = binder.bind(self._plan.steps, self._tensors)

    def once(self) -> None:
        """Setup and forward, waiting after every step so that a fault has a name."""
        for bound in (*self._setup, *self._steps):
            bound.run()
            self._wait(bound)

    def profiled(self, chosen: Sequence[int]) -> int:
        """Forward, with the launches of these ordinals inside profiler regions; how many those were.

        Launches that follow each other share a region.
        """
        wanted, seen, regions = set(chosen), 0, 0
        self._tensors.renew(self._mutable)
        with contextlib.ExitStack() as region:
            inside = False
            for bound in self._steps:
                if isinstance(bound.step, Launch):
                    if (seen in wanted) != inside:
                        region.close()
                        inside = not inside
                        if inside:
                            region.enter_context(self._region(bound))
                    regions += seen in wanted
                    seen += 1
                bound.run()
            if self._steps:
                self._wait(self._steps[-1])
        return regions

    def timed(self, repeats: int) -> list[list[float]]:
        """Time of every launch of forward in µs, by events around it; one list per launch, one number per repeat."""
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
            for one, (start, end) in zip(times, events, strict=True):
                one.append(self._driver.elapsed_us(start, end))
        return times

    @contextlib.contextmanager
    def _region(self, bound: BoundStep) -> Iterator[None]:
        try:
            with self._driver.profiler_region():
                yield
        except DriverError as error:
            raise faulted(error, placed(bound.step)) from error

    def _wait(self, bound: BoundStep) -> None:
        try:
            self._driver.synchronize()
        except DriverError as error:
            raise faulted(error, placed(bound.step)) from error


def confine(folder: Path, readable: Sequence[str]) -> list[str]:
    """Give up root, reading anything but what is granted, and writing to anything but this folder and the GPU's nodes.

    CUDA names its threads through ``/proc/self/task`` and does not start where it may not (drivers 570 and newer).

    Args:
        folder: The request's.
        readable: Paths that a runner is granted.

    Returns:
        The layers in force.
    """
    layers, kept = [], None
    if os.geteuid() == 0:
        try:
            kept = None if others_can_read(readable) else syscalls.reading_capability()
            for path in (folder, *folder.iterdir()):
                os.chown(path, _NOBODY, _NOBODY)
            os.setgroups([])
            if kept is not None:
                syscalls.prctl("prctl(KEEPCAPS)", syscalls.PR_SET_KEEPCAPS, 1)
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            layers.append("no root")
        except PermissionError:
            layers.append("root without the right to change its user")
    syscalls.prctl("prctl(NO_NEW_PRIVS)", syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.drop_capabilities(but=kept)
    nodes = [f"/dev/{name}" for name in (*gpu_access.device_nodes(), "null", "zero", "urandom")]
    nodes = [node for node in nodes if os.path.exists(node)]
    shared = [path for path in ("/dev/shm",) if os.path.isdir(path)]
    version = landlock.restrict(
        readable=[*(path for path in readable if os.path.exists(path)), *procfs.readable_paths()],
        writable=[str(folder), *shared, "/proc/self/task"],
        drivable=nodes,
    )
    return [*layers, f"landlock {version}"] if version else layers


def run(folder: Path) -> dict[str, Any]:
    """Carry out a folder's request; what the plan did wrong is in the result."""
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
    """Leave the result in the folder; 0 where the plan ran to its end, 3 where it faulted."""
    folder = Path(arguments[0])
    result = run(folder)
    # Whole or not at all: this process may be killed at its deadline while it writes.
    part = folder / f"{RESULT}.part"
    part.write_text(json.dumps(result))
    part.replace(folder / RESULT)
    return 3 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
