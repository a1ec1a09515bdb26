"""The runner's process: one GPU context, created after the fork, and the requests of one session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.devices.base import RunFailure, RunRequest
from kernelforge.devices.cuda.worker.driver import Driver, DriverError
from kernelforge.devices.cuda.worker.errors import PlanFailed, plan_failure
from kernelforge.devices.cuda.worker.graph_timed_plan import GraphTimedPlan
from kernelforge.devices.cuda.worker.launch_binding import KernelLimits
from kernelforge.devices.cuda.worker.runner import Runner
from kernelforge.devices.library_calls import cuda_tensor
from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.shared_memory import Blob

_Reply = tuple[dict[str, Any], Sequence[Blob]]

_options: dict[str, Any] = {}
"""Options of this role, kept from the warm-up for the children."""

_PROBE_BYTES = 1 << 20
_PATTERN = bytes(range(256)) * 16


def warm_up(options: dict[str, Any]) -> None:
    """Import all that a child needs, before children are forked. No context is made: it would not survive a fork.

    Args:
        options: ``driver``: the factory, as ``package.module:factory``; ``ordinal``: number of the GPU. The module's
            own ``warm_up`` is called if it has one.
    """
    _options.update(options)
    module = import_module(options["driver"].partition(":")[0])
    prepare: Callable[[], None] | None = getattr(module, "warm_up", None)
    if prepare is not None:
        prepare()


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel, or until an error destroys the context."""
    session = _Session()
    for frame in channel.requests():
        data, blobs = session.answer(frame)
        del frame
        channel.send(data, blobs)
        if session.lost:
            return


def open_driver(options: dict[str, Any]) -> Driver:
    """The driver that the options name, with a context."""
    module, _, factory = options["driver"].partition(":")
    driver: Driver = getattr(import_module(module), factory)(options["ordinal"])
    return driver


class _Session:
    """State of one child: a context, then a build, then perhaps a timed plan."""

    def __init__(self) -> None:
        self.lost = False
        self._driver: Driver | None = None
        self._runner: Runner | None = None
        self._armed: GraphTimedPlan | None = None
        self._staged: list[dict[int, Blob]] = []

    def answer(self, frame: Frame) -> _Reply:
        """Reply to one request; it holds the plan's faults, other errors are raised."""
        name = frame.data["op"]
        operation: Callable[[dict[str, Any], Sequence[Blob]], _Reply] = getattr(self, f"_op_{name}")
        try:
            data, blobs = operation(frame.data, frame.blobs)
            return {"faults": []} | data, blobs
        except PlanFailed as error:
            plan = error
        except DriverError as error:
            if name in ("open", "probe"):
                raise
            plan = plan_failure(error, f"in {name}")
        self.lost = self.lost or plan.lost
        if self._runner is not None:
            self._runner.lost = self.lost
        if name in ("arm", "add", "start"):
            self._drop()
        return self._faulted(plan.faults), ()

    def _faulted(self, faults: Sequence[RunFailure]) -> dict[str, Any]:
        return {"faults": [[fault.kind, fault.message] for fault in faults], "lost": self.lost}

    @property
    def driver(self) -> Driver:
        """The driver, with its context; made by the first request."""
        if self._driver is None:
            self._driver = open_driver(_options)
        return self._driver

    @property
    def runner(self) -> Runner:
        if self._runner is None:
            raise RuntimeError("a run before a build was loaded")
        return self._runner

    @property
    def armed(self) -> GraphTimedPlan:
        if self._armed is None:
            raise RuntimeError("nothing is armed")
        return self._armed

    def _op_open(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        driver = self.driver
        return {"facts": asdict(driver.facts), "lacks": sorted(driver.lacks)}, ()

    def _op_probe(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        return {"healthy": _memory_works(self.driver)}, ()

    def _op_load(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        kernels = {name: KernelLimits(*facts) for name, facts in data["kernels"].items()}
        # A driver without GPU memory, as in tests, makes its own torch tensors.
        wrap = getattr(self.driver, "tensor", cuda_tensor)
        self._runner = Runner(self.driver, bytes(blobs[0]), kernels, wrap, data["unwritten"])
        return {"loaded": True}, ()

    def _op_torch(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """Import torch and start its CUDA, before a plan that calls its operators runs under a deadline."""
        if "torch" not in self.driver.lacks:
            import_module("torch")
            with self.driver.torch_stream():
                pass  # entering the context starts CUDA in torch
        return {}, ()

    def _op_run(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        tensors = dict(zip(data["tensors"], blobs, strict=True))
        plan = ResolvedPlan.from_wire(data["plan"])
        mutable, mapped = frozenset(data["mutable"]), frozenset(data["mapped"])
        result = self.runner.run(RunRequest(plan, tensors, data["poison"], mutable, mapped))
        self.lost = self.runner.lost
        return self._faulted(result.faults) | {"seconds": result.seconds}, result.outputs

    def _op_arm(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """Take a plan to time; requests ``add`` with its sets follow, then ``start``."""
        self._drop()
        self._armed = GraphTimedPlan(
            self.runner,
            ResolvedPlan.from_wire(data["plan"]),
            mutable=frozenset(data["mutable"]),
            mapped=frozenset(data["mapped"]),
            poison=data["poison"],
            flush_bytes=data["flush_bytes"],
            flush_each=data["flush_each"],
        )
        return {}, ()

    def _op_add(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        self.armed.add(dict(zip(data["tensors"], blobs, strict=True)))
        return {}, ()

    def _op_start(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        self.armed.start()
        return {"captured": self.armed.captured, "setup_us": self.armed.setup_us}, ()

    def _op_block(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        self.armed.run(data["samples"], data["work"], data["gaps_us"])
        return {}, ()

    def _op_times(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """Times of the last block, in µs."""
        return {"times_us": self.armed.times()}, ()

    def _op_stage(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """Keep new values of one set for ``refresh``."""
        self._staged.append(dict(zip(data["tensors"], blobs, strict=True)))
        return {}, ()

    def _op_refresh(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        staged, self._staged = self._staged, []
        self.armed.refresh(staged)
        return {"setup_us": self.armed.setup_us}, ()

    def _op_outputs(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        return {}, self.armed.outputs(data["set"])

    def _op_coverage(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        return {"coverage": self.armed.coverage()}, ()

    def _op_disarm(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        self._drop()
        return {}, ()

    def _drop(self) -> None:
        armed, self._armed, self._staged = self._armed, None, []
        if armed is not None:
            armed.close()


def _memory_works(driver: Driver) -> bool:
    """Write, fill and copy some memory, and compare it with what is read back.

    Raises:
        DriverError: CUDA fails.
    """
    source, target = driver.allocate(_PROBE_BYTES), driver.allocate(_PROBE_BYTES)
    try:
        driver.fill(source, 0xC3, _PROBE_BYTES)
        driver.write(source, _PATTERN)
        driver.copy(target, source, _PROBE_BYTES)
        driver.synchronize()
        content = driver.read(target, _PROBE_BYTES)
        return content == _PATTERN + b"\xc3" * (_PROBE_BYTES - len(_PATTERN))
    finally:
        driver.free(source)
        driver.free(target)
