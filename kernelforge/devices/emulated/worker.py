"""The runner's process: runs and profiles plans of one build, as its channel requests. Runs in a confined child."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from kernelforge.candidate.resolved import Fill, Launch, Library, ResolvedPlan
from kernelforge.devices.base import OutputPart, PartResult, RunFailure, RunRequest, RunResult
from kernelforge.devices.emulated.codegen import llvm_jit
from kernelforge.devices.emulated.errors import OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.execute import loaded_module
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory
from kernelforge.devices.emulated.execute.partial_execution import NotPartial, PartialRun
from kernelforge.devices.emulated.execute.plan_execution import (
    CallOperator,
    Execution,
    Kernel,
    LaunchFailed,
    LoadedBuild,
    no_operators,
)
from kernelforge.devices.emulated.profile.collector import Collector, warm_up_collector
from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.devices.emulated.ptx.parser import PtxSyntaxError
from kernelforge.errors import ChildDied
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import CountedText, PlanCounts
from kernelforge.sandbox.channel import Channel
from kernelforge.sandbox.shared_memory import Blob


class Runner:
    """Runs plans of one build: completely for outputs, on sampled blocks for profiles. Every run gets new buffers.

    Args:
        ptx: The build's PTX.
        kernels: By the expression that plans launch.
        spec: The GPU that is emulated.
        memory_bytes: Device memory; host pages are taken as they are used.
        threads: Threads that one launch may use.
        call_operator: Calls the torch operators of plans.

    Raises:
        PtxSyntaxError: the PTX cannot be parsed.
        OutOfDeviceMemory: the module's variables do not fit.
    """

    def __init__(
        self,
        ptx: str,
        kernels: Mapping[str, Kernel],
        spec: DeviceSpec,
        *,
        memory_bytes: int,
        threads: int = 1,
        call_operator: CallOperator = no_operators,
    ) -> None:
        memory = Memory(memory_bytes)
        self.build = LoadedBuild(LoadedModule(ptx, memory, threads), memory, kernels, spec, call_operator)

    def run(self, request: RunRequest) -> RunResult:
        """Run ``setup``, then every step of ``forward``, in order. The first fault ends the run, without outputs.

        A step that this device does not support is a fault before anything runs.
        """
        start = time.perf_counter()
        outputs: tuple[Blob, ...] = ()
        faults: tuple[RunFailure, ...] = ()
        executed = sectors = before = sectors_before = 0
        try:
            with closing(Execution(self.build, request)) as execution:
                try:
                    execution.set_up()
                    before, sectors_before = execution.thread_instructions, execution.global_sectors
                    for step in request.plan.steps:
                        execution.step(step)
                    outputs = execution.outputs()
                finally:
                    executed, sectors = execution.thread_instructions, execution.global_sectors
        except LaunchFailed as error:
            faults = error.faults
        seconds = time.perf_counter() - start
        return RunResult(outputs, faults, executed, seconds, executed - before, sectors - sectors_before)

    def run_part(self, request: RunRequest, elements: Mapping[int, Sequence[int]]) -> PartResult:
        """Run only the blocks that some elements of the outputs need; ``elements``: flat indices by output."""
        if request.mutable:
            return PartResult((), "it changes an input in place", thread_instructions=0)
        if request.plan.libraries:
            return PartResult((), "it calls torch operators, which compute whole tensors", thread_instructions=0)
        parts: tuple[OutputPart, ...] = ()
        faults: tuple[RunFailure, ...] = ()
        reason = ""
        executed = 0
        try:
            with closing(Execution(self.build, request)) as execution:
                try:
                    parts = PartialRun(execution, elements).run()
                finally:
                    executed = execution.thread_instructions
        except NotPartial as error:
            reason = str(error)
        except LaunchFailed as error:
            faults = error.faults
        return PartResult(parts, reason, faults, executed)

    def profile(
        self,
        request: RunRequest,
        effort: float = 1.0,
        budget: Budget | None = None,
        lines: CountedText | None = None,
    ) -> PlanCounts:
        """Counters of ``forward``, on sampled blocks where complete grids exceed the budget.

        Workspace should start as zeros, which a block reads in place of the results of blocks that are left out.
        ``setup`` runs first, on some of its blocks where it would take long, and is not counted. Torch operators are
        not counted either; they are called as long as every grid ran completely, for their operands to be right.

        Args:
            request: The run.
            effort: Share of the usual budgets, above 0 and at most 1.
            budget: Thread instructions for ``forward``, in place of a share of the usual ones.
            lines: Text whose lines are counted too.

        Raises:
            LaunchFailed: a launch faulted while every grid so far had run completely, or nothing could be run.
        """
        launches = [step for step in request.plan.setup if isinstance(step, Launch)]
        with closing(Execution(self.build, request)) as execution:
            complete = execution.set_up(Budget.of_setup(len(launches), effort))
            budget = budget or Budget.share(len(request.plan.launches), effort)
            collector = Collector(execution, budget, strict=complete, lines=lines)
            for step in request.plan.steps:
                if isinstance(step, Launch):
                    execution.check(step)
                    collector.launch(step)
                elif isinstance(step, Fill):
                    execution.step(step)
                    collector.memset(step)
                elif isinstance(step, Library) and collector.complete:
                    execution.step(step)
            return collector.finish()


def warm_up(options: dict[str, Any]) -> None:
    """Load and compile everything once, before children are forked: they can load nothing themselves."""
    loaded_module.warm_up()
    if options.get("tensor_memory"):
        llvm_jit.load_tensor_memory()
    warm_up_collector()


def serve(channel: Channel) -> None:
    """Answer ``load``, then any number of ``run``, ``part`` and ``profile`` requests, until the parent disconnects."""
    runner: Runner | RunFailure | None = None
    while True:
        try:
            frame = channel.receive()
        except ChildDied:
            return
        data = frame.data
        if data["op"] == "load":
            runner = _load(data, bytes(frame.blobs[0]), _parent_calls(channel))
            channel.send({"loaded": True})
            continue
        if runner is None:
            raise RuntimeError("a run before a build was loaded")
        request = _request(data, frame.blobs)
        del frame
        if isinstance(runner, RunFailure):
            channel.send(_faults([runner]))
        elif data["op"] == "run":
            result = runner.run(request)
            names = ("thread_instructions", "seconds", "forward_instructions", "global_sectors")
            channel.send(_faults(result.faults) | {name: getattr(result, name) for name in names}, result.outputs)
        elif data["op"] == "part":
            part = runner.run_part(request, {int(output): indices for output, indices in data["wanted"].items()})
            reply = _faults(part.faults) | {"thread_instructions": part.thread_instructions, "reason": part.reason}
            reply["unwritten"] = [output.unwritten for output in part.parts]
            channel.send(reply, [blob for output in part.parts for blob in (output.elements, output.data)])
        else:
            try:
                counts = runner.profile(request, data["effort"], lines=data["lines"])
                channel.send({"faults": [], "counts": counts.to_wire()})
            except LaunchFailed as error:
                channel.send(_faults(error.faults))


def _parent_calls(channel: Channel) -> CallOperator:
    """Asks the parent for a torch operator's results: it has another child, with torch, for that."""

    def call(number: int, operands: Sequence[bytes]) -> Sequence[Blob]:
        channel.send({"library": number}, operands)
        reply = channel.receive()
        if reply.data["faults"]:
            raise LaunchFailed(*(RunFailure(kind, message) for kind, message in reply.data["faults"]))
        return reply.blobs

    return call


def _load(data: dict[str, Any], ptx: bytes, call_operator: CallOperator) -> Runner | RunFailure:
    kernels = {name: Kernel(symbol, registers) for name, (symbol, registers) in data["kernels"].items()}
    spec, memory_bytes, threads = DeviceSpec.from_wire(data["spec"]), data["memory_bytes"], data["threads"]
    try:
        return Runner(
            ptx.decode(), kernels, spec, memory_bytes=memory_bytes, threads=threads, call_operator=call_operator
        )
    except (UnsupportedInstruction, PtxSyntaxError) as error:
        return RunFailure("unsupported", str(error), getattr(error, "ptx_line", 0))
    except OutOfDeviceMemory as error:
        return RunFailure("memory", f"the module's variables do not fit: {error}")


def _request(data: dict[str, Any], blobs: Sequence[Blob]) -> RunRequest:
    return RunRequest(
        plan=ResolvedPlan.from_wire(data["plan"]),
        tensors=dict(zip(data["tensors"], blobs, strict=True)),
        tiled=dict(data["tiled"]),
        poison=data["poison"],
        mutable=frozenset(data["mutable"]),
        mapped=frozenset(data["mapped"]),
        deadline_s=data["deadline_s"],
        deadline_binds=data["deadline_binds"],
        memory_bytes=data["memory_bytes"],
        max_thread_instructions=data["max_thread_instructions"],
        sample_seed=data["sample_seed"],
        variation=data["variation"],
        sanitize=data["sanitize"],
        worst_errors=data["worst_errors"],
        nearby=data["nearby"],
    )


def _faults(faults: Sequence[RunFailure]) -> dict[str, Any]:
    return {"faults": [[fault.kind, fault.message, fault.ptx_line] for fault in faults]}
