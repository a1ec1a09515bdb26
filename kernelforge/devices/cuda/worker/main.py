"""The runner's process: one GPU context, created after the fork, and the requests of one session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda.health import memory_test
from kernelforge.devices.cuda.worker.driver import Driver, DriverError
from kernelforge.devices.cuda.worker.errors import PlanFailed, faulted
from kernelforge.devices.cuda.worker.graph_timed_plan import GraphTimedPlan
from kernelforge.devices.cuda.worker.launch_checks import KernelLimits
from kernelforge.devices.cuda.worker.runner import PlanRun, Runner
from kernelforge.devices.library_calls import cuda_tensor
from kernelforge.errors import ChildDied
from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.shared_memory import Blob

_Reply = tuple[dict[str, Any], Sequence[Blob]]

_options: dict[str, Any] = {}
"""Of this role, kept from the warm-up for the children."""


def warm_up(options: dict[str, Any]) -> None:
    """Import all that a child needs, before children are forked. No context is made: it would not survive a fork.

    Args:
        options: ``driver``: where its factory is, ``package.module:factory``; ``ordinal``: which GPU. A module that
            has a ``warm_up`` of its own has it called.
    """
    _options.update(options)
    module = import_module(options["driver"].partition(":")[0])
    prepare: Callable[[], None] | None = getattr(module, "warm_up", None)
    if prepare is not None:
        prepare()


def serve(channel: Channel) -> None:
    """Answer requests until the parent goes away, or until an error takes the context with it."""
    session = _Session()
    while not session.lost:
        try:
            frame = channel.receive()
        except ChildDied:
            return
        data, blobs = session.answer(frame)
        del frame
        channel.send(data, blobs)


def open_driver(options: dict[str, Any]) -> Driver:
    """The driver that the options name, with a context."""
    module, _, factory = options["driver"].partition(":")
    driver: Driver = getattr(import_module(module), factory)(options["ordinal"])
    return driver


class _Session:
    """One child's state: a context, then a build, then perhaps an armed plan."""

    def __init__(self) -> None:
        self.lost = False
        self._driver: Driver | None = None
        self._runner: Runner | None = None
        self._armed: GraphTimedPlan | None = None
        self._staged: list[dict[int, Blob]] = []

    def answer(self, frame: Frame) -> _Reply:
        """The reply to one request; what a plan did wrong is in it, all else is raised."""
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
            plan = faulted(error, f"in {name}")
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
        """The context; made by the first request."""
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
        return {"healthy": memory_test(self.driver)}, ()

    def _op_load(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        kernels = {name: KernelLimits(*facts) for name, facts in data["kernels"].items()}
        # A stand-in whose memory is not a GPU's says itself how torch sees it.
        wrap = getattr(self.driver, "tensor", cuda_tensor)
        self._runner = Runner(self.driver, bytes(blobs[0]), kernels, wrap, data["unwritten"])
        return {"loaded": True}, ()

    def _op_torch(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """Import torch and have it start CUDA, before a plan that calls its operators runs under a deadline."""
        if "torch" not in self.driver.lacks:
            import_module("torch")
            with self.driver.torch_stream():
                pass  # entering it starts torch's side of CUDA
        return {}, ()

    def _op_run(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        tensors = dict(zip(data["tensors"], blobs, strict=True))
        plan = ResolvedPlan.from_wire(data["plan"])
        ran = self.runner.run(PlanRun(plan, tensors, data["poison"], frozenset(data["mutable"])))
        self.lost = self.runner.lost
        return self._faulted(ran.faults) | {"seconds": ran.seconds}, ran.outputs

    def _op_arm(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """A plan, for which sets follow one by one, and ``start``."""
        self._drop()
        self._armed = GraphTimedPlan(
            self.runner,
            ResolvedPlan.from_wire(data["plan"]),
            mutable=frozenset(data["mutable"]),
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
        """Of the last block, in µs."""
        return {"times_us": self.armed.times()}, ()

    def _op_stage(self, data: dict[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """New values of one set, kept for ``refresh``."""
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
