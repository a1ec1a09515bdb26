"""The runner's process: answers its channel with runs and profiles of one build. Runs in a confined child."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.devices.base import RunFailure
from kernelforge.devices.emulated.errors import OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.execute import loaded_module as emulator
from kernelforge.devices.emulated.execute.plan_execution import LaunchFailed, PlanRun
from kernelforge.devices.emulated.execute.plan_runner import Kernel, Runner
from kernelforge.devices.emulated.profile.collector import warm_up_collector
from kernelforge.devices.emulated.ptx.parser import PtxSyntaxError
from kernelforge.errors import ChildDied
from kernelforge.hardware.specs import SPECS
from kernelforge.sandbox.channel import Channel
from kernelforge.sandbox.shared_memory import Blob


def warm_up(options: dict[str, Any]) -> None:
    """Load and compile everything once, before children are forked: they can load nothing themselves."""
    emulator.warm_up()
    warm_up_collector()


def serve(channel: Channel) -> None:
    """Answer ``load``, then any number of ``run``, ``part`` and ``profile`` requests, until the parent goes away."""
    runner: Runner | RunFailure | None = None
    while True:
        try:
            frame = channel.receive()
        except ChildDied:
            return
        request = frame.data
        if request["op"] == "load":
            runner = _load(request, bytes(frame.blobs[0]))
            channel.send({"loaded": True})
            continue
        if runner is None:
            raise RuntimeError("a run before a build was loaded")
        work = _work(request, frame.blobs)
        del frame
        if isinstance(runner, RunFailure):
            channel.send(_faulted([runner]))
        elif request["op"] == "run":
            ran = runner.run(work)
            reply = _faulted(ran.faults) | {"thread_instructions": ran.thread_instructions, "seconds": ran.seconds}
            reply["global_sectors"] = ran.global_sectors
            channel.send(reply, ran.outputs)
        elif request["op"] == "part":
            wanted = {int(output): indices for output, indices in request["wanted"].items()}
            part = runner.run_part(work, wanted)
            reply = _faulted(part.faults) | {"thread_instructions": part.thread_instructions, "reason": part.reason}
            reply["unwritten"] = [one.unwritten for one in part.parts]
            blobs = [blob for one in part.parts for blob in (one.elements.tobytes(), one.data)]
            channel.send(reply, blobs)
        else:
            try:
                channel.send({"faults": [], "counts": runner.profile(work, request["effort"]).to_wire()})
            except LaunchFailed as faulted:
                channel.send(_faulted(faulted.faults))


def _load(request: dict[str, Any], ptx: bytes) -> Runner | RunFailure:
    kernels = {name: Kernel(symbol, registers) for name, (symbol, registers) in request["kernels"].items()}
    try:
        return Runner(
            ptx.decode(),
            kernels,
            SPECS[request["spec"]],
            memory_bytes=request["memory_bytes"],
            threads=request["threads"],
        )
    except (UnsupportedInstruction, PtxSyntaxError) as error:
        return RunFailure("unsupported", str(error), getattr(error, "ptx_line", 0))
    except OutOfDeviceMemory as error:
        return RunFailure("memory", f"the module's variables do not fit: {error}")


def _work(request: dict[str, Any], blobs: Sequence[Blob]) -> PlanRun:
    return PlanRun(
        plan=ResolvedPlan.from_wire(request["plan"]),
        tensors=dict(zip(request["tensors"], blobs, strict=True)),
        poison=request["poison"],
        mutable=frozenset(request["mutable"]),
        deadline_s=request["deadline_s"],
        memory_bytes=request["memory_bytes"],
        max_thread_instructions=request["max_thread_instructions"],
        sample_seed=request["sample_seed"],
        variation=request["variation"],
    )


def _faulted(faults: Sequence[RunFailure]) -> dict[str, Any]:
    return {"faults": [[fault.kind, fault.message, fault.ptx_line] for fault in faults]}
