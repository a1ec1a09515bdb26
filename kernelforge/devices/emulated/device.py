"""The emulated device in the parent: opens sessions, each a confined child that runs one build."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from kernelforge.candidate.resolved import Library
from kernelforge.compile.cache import Artifact
from kernelforge.compile.machine_code import read_machine_code
from kernelforge.devices import wire
from kernelforge.devices.base import (
    Capabilities,
    PartResult,
    RunFailed,
    RunFailure,
    RunRequest,
    RunResult,
    TimedPlan,
    TuningTime,
)
from kernelforge.devices.emulated.operator_calls import OperatorCalls
from kernelforge.errors import ChildDied, ChildTimeout, SandboxError, UnsupportedError
from kernelforge.hardware.specs import GIB, KIB, MIB, DeviceSpec
from kernelforge.profiling.counts import CountedText, PlanCounts
from kernelforge.profiling.metrics import build_profile
from kernelforge.profiling.model import plan_time
from kernelforge.profiling.sass import PlanWork, plan_work
from kernelforge.records import Clocks, Performance, Profile, SizeFacts
from kernelforge.sandbox import Child, ExitReport, Frame, Limits, Zygote
from kernelforge.sandbox.policy import PATIENCE

HOST_BYTES = 9 * GIB
"""Memory of the host that one run may take: device memory is as large as the GPU's, and sparse."""
TILES_BYTES = GIB
"""Content of large tensors that the host holds once and device memory shows again and again."""
GRACE_S = 15.0
"""Time after its deadline in which a child may still answer: it compiles kernels to native code and copies tensors."""
LOAD_S = 600.0
"""Longest wait for a child that loads a build. A late one is no fault of the candidate, which does not run yet."""
SESSION_CPU_S = 3600.0
"""CPU time of a child, in all of its runs; another child goes on."""

_REPORT_IT = "write the kernel in another way, and if it is a correct one, report it with its source as a bug"


class EmulatedDevice:
    """A GPU emulated on the CPU: real PTX, every access checked, events counted, time modelled.

    Args:
        spec: The GPU that is emulated.
        threads: Threads that one run may use.
        memory_bytes: Device memory of one run, that of the GPU if left out; more is a fault of kind ``memory``.
        allow_unconfined: Run children without a jail where none works.
    """

    kind: Literal["cuda", "emulated"] = "emulated"

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        threads: int = 1,
        memory_bytes: int | None = None,
        allow_unconfined: bool = False,
    ) -> None:
        self.spec = spec
        self.capabilities = Capabilities(
            measures_time=False,
            checks_accesses=True,
            cooperative=True,
            clusters=spec.compute_capability >= (9, 0),
            tensor_maps=spec.compute_capability >= (9, 0),
            library=True,
        )
        self.name = f"emulated:{spec.key}"
        self.arch = spec.arch
        self.threads = threads
        self.environment: Mapping[str, str] = {}
        self.memory_bytes = memory_bytes or spec.dram_bytes
        self.l2_bytes = spec.l2_bytes
        self.memory_bandwidth_gbps = spec.dram_bandwidth_gbps
        tensor_memory = spec.compute_capability[0] == 10
        self._zygote = Zygote("runner", options={"tensor_memory": tensor_memory}, allow_unconfined=allow_unconfined)
        self._operators = Zygote("operators", allow_unconfined=allow_unconfined)

    def describe(self) -> Mapping[str, str]:
        """Facts for a Coder, of the GPU that is emulated."""
        spec, capabilities = self.spec, self.capabilities
        features = {"thread block clusters": capabilities.clusters, "tensor maps": capabilities.tensor_maps}
        lacking = ", ".join(name for name, there in features.items() if not there)
        return {
            "device": f"{spec.title}, emulated on the CPU from its PTX ({self.name})",
            "architecture": spec.arch,
            "multiprocessors": str(spec.sm_count),
            "clock": f"{spec.max_clock_mhz} MHz",
            "fp32": f"{spec.fp32_flops_per_s / 1e12:.1f} TFLOPS",
            "tensor cores": spec.tensor_peaks_text,
            "memory": f"{self.memory_bytes / 1e9:g} GB",
            "memory bandwidth": f"{spec.dram_bandwidth_gbps:g} GB/s",
            "L2 cache": f"{spec.l2_bytes // MIB} MiB",
            "L1 and shared memory per multiprocessor": f"{spec.unified_l1_bytes_per_sm // KIB} KiB",
            "shared memory per multiprocessor": f"{spec.shared_bytes_per_sm // KIB} KiB",
            "shared memory per block": f"{spec.shared_bytes_per_block // KIB} KiB",
            "registers per multiprocessor": str(spec.registers_per_sm),
            "registers per thread": f"{spec.registers_per_thread} at most",
            "warps per multiprocessor": f"{spec.warps_per_sm} of {spec.warp_size} threads",
            "blocks per multiprocessor": str(spec.blocks_per_sm),
            "threads per block": f"{spec.threads_per_block} at most",
        } | ({"not supported here": lacking} if lacking else {})

    def identity(self) -> Mapping[str, str]:
        """Empty: there is no hardware."""
        return {}

    def clocks(self) -> Clocks | None:
        """None: there is no clock."""
        return None

    def energy_j(self) -> float | None:
        """None: nothing draws power."""
        return None

    def start(self) -> None:
        """Start the helper process that runners are forked from; that of torch operators starts at the first call."""
        self._zygote.start()

    def open(self, artifact: Artifact) -> EmulatedSession:
        """A session for one build; its child starts at the first run."""
        return EmulatedSession(self, self._zygote, self._operators, artifact)

    def sanitize(self, artifact: Artifact, request: RunRequest) -> tuple[RunFailure, ...]:
        """No faults: every run checks every access anyway."""
        return ()

    def interrupt(self) -> None:
        """End every run that another thread waits for."""
        self._zygote.interrupt()
        self._operators.interrupt()

    def close(self) -> None:
        """End the helper processes, and every session's children with them."""
        self._zygote.close()
        self._operators.close()

    def __enter__(self) -> EmulatedDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EmulatedSession:
    """One build in one confined child. A child that was killed is replaced at the next run."""

    def __init__(self, device: EmulatedDevice, zygote: Zygote, operators: Zygote, artifact: Artifact) -> None:
        self._device = device
        self._zygote = zygote
        self._operators = OperatorCalls(operators, device.memory_bytes)
        self._artifact = artifact
        self._child: Child | None = None
        self._lock = threading.Lock()

    def run(self, request: RunRequest) -> RunResult:
        """Run a plan; its faults are in the result.

        Raises:
            SandboxError: no child can be started, or it broke its channel's format.
        """
        reply = self._ask("run", request)
        if isinstance(reply, RunFailure):
            return RunResult(outputs=(), faults=(reply,))
        faults, outputs = wire.read_faults(reply), reply.blobs
        if faults:
            outputs = ()
        else:
            try:
                wire.check_outputs(request, outputs)
            except SandboxError:
                self.close()
                raise
        executed, forward, sectors = (
            wire.read_count(reply, name) for name in ("thread_instructions", "forward_instructions", "global_sectors")
        )
        return RunResult(outputs, faults, executed, wire.read_seconds(reply), forward, sectors)

    def run_part(self, request: RunRequest, elements: Mapping[int, Sequence[int]]) -> PartResult:
        """Run only the blocks that some elements of the outputs need; faults are in the result.

        Raises:
            SandboxError: no child can be started, or it broke its channel's format.
        """
        requested = {str(output): list(indices) for output, indices in elements.items()}
        reply = self._ask("part", request, elements=requested)
        if isinstance(reply, RunFailure):
            return PartResult((), faults=(reply,))
        try:
            return wire.read_part(request, reply)
        except SandboxError:
            self.close()
            raise

    def profile(self, request: RunRequest, facts: SizeFacts) -> tuple[Profile, Performance | None]:
        """Counters of a plan's kernels, and its modelled time; without a time where it calls torch operators.

        Raises:
            RunFailed: a launch faulted.
            SandboxError: no child can be started, or it broke its channel's format.
        """
        counts = self.count(request)
        work = self.machine_work(counts)
        profile, performance = build_profile(self._device.spec, self._device.name, counts, self.registers, facts, work)
        calls = sum(isinstance(step, Library) for step in request.plan.steps)
        if not calls:
            return profile, performance
        notes = (*profile.notes, f"{calls} library calls are in no number.")
        return profile.model_copy(update={"notes": notes}), None

    def rate(self, request: RunRequest, effort: float) -> TuningTime:
        """Modelled time of a plan from a share of the blocks that a profile samples.

        Raises:
            RunFailed: a launch faulted, or the plan calls torch operators, of which no time is modelled.
            SandboxError: no child can be started, or it broke its channel's format.
        """
        called = [step for step in request.plan.steps if isinstance(step, Library)]
        if called:
            text = f"no time is modelled of library({called[0].operator!r}) in plan line {called[0].line}"
            raise RunFailed(RunFailure("unsupported", text))
        counts = self.count(request, effort)
        time_us = plan_time(self._device.spec, counts, self.registers, self.machine_work(counts)).time_us
        return TuningTime(time_us, settled=all(kernel.sampled == 1 for kernel in counts.kernels))

    def arm(self, requests: Sequence[RunRequest], *, flush_bytes: int = 0, flush_each: bool = False) -> TimedPlan:
        """Always refused: an emulated device models time.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"{self._device.name} models time; it cannot measure any")

    @property
    def registers(self) -> dict[str, int]:
        """Registers per thread of each kernel, by expression."""
        return {kernel.expression: kernel.registers_per_thread for kernel in self._artifact.build.kernels}

    def machine_work(self, counts: PlanCounts) -> PlanWork:
        """Estimated work of the machine code of the build, from counts of a run."""
        code = read_machine_code(self._artifact.cubin)
        symbols = {kernel.expression: kernel.symbol for kernel in self._artifact.build.kernels}
        return plan_work(code, symbols, self._artifact.ptx.decode(), counts)

    def count(self, request: RunRequest, effort: float = 1.0, lines: CountedText | None = None) -> PlanCounts:
        """Counters of a plan's launches.

        Args:
            request: The run.
            effort: Blocks to run, over those of a profile, above 0; 1 for a profile.
            lines: Text whose lines are counted too: the ``source`` that was compiled, or the ``ptx``.

        Raises:
            RunFailed: a launch faulted.
            SandboxError: no child can be started, or it broke its channel's format.
        """
        reply = self._ask("profile", request, effort, lines=lines)
        if isinstance(reply, RunFailure):
            raise RunFailed(reply)
        faults = wire.read_faults(reply)
        if faults:
            raise RunFailed(faults[0])
        counts = PlanCounts.from_wire(reply.data.get("counts"))
        launched = {kernel.expression for kernel in counts.kernels}
        if launched != {launch.expression for launch in request.plan.launches}:
            raise self._broken("counters of other kernels than the plan's")
        return counts

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._drop()
            self._operators.close()

    def __enter__(self) -> EmulatedSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(
        self,
        op: Literal["run", "part", "profile"],
        request: RunRequest,
        effort: float = 1.0,
        elements: Mapping[str, Sequence[int]] | None = None,
        lines: CountedText | None = None,
    ) -> Frame | RunFailure:
        """The child's reply, or the fault that ended it."""
        available = self._device.memory_bytes
        memory = available if request.memory_bytes is None else min(request.memory_bytes, available)
        needed = request.device_bytes
        if needed > memory:
            return RunFailure("memory", f"the plan needs {needed} bytes of device memory, {memory} are allowed")
        wire.check_tensors(request)
        order = sorted(request.tensors)
        data: dict[str, Any] = {
            "op": op,
            "plan": request.plan.to_wire(),
            "tensors": order,
            "tiled": list(request.tiled.items()),
            # A profile leaves blocks out: memory that they would have written must read as harmless values.
            "poison": 0 if op == "profile" else request.poison,
            "effort": effort,
            "lines": lines,
            "wanted": elements,
            "mutable": sorted(request.mutable),
            "mapped": sorted(request.mapped),
            "deadline_s": request.deadline_s,
            "deadline_binds": request.deadline_binds,
            "memory_bytes": memory,
            "max_thread_instructions": request.max_thread_instructions,
            "sample_seed": request.sample_seed,
            "variation": request.variation,
            "sanitize": request.sanitize,
            "worst_errors": request.worst_errors,
            "nearby": request.nearby,
        }
        wait = PATIENCE * request.deadline_s + GRACE_S
        operands = max((sum(view.span_bytes for view in call.operands) for call in request.plan.libraries), default=0)
        cap = wire.reply_bytes(request) + operands
        tensors = [request.tensors[b] for b in order]
        failures: list[ChildDied] = []
        late: list[RunFailure] = []
        with self._lock:
            # A new child shows whether this machine failed or the emulator fails on this candidate.
            while len(failures) + len(late) < 2:
                try:
                    child = self._loaded()
                    reply = child.call(data, tensors, timeout_s=wait, reply_bytes=cap)
                    calls = iter(enumerate(request.plan.libraries))
                    while "library" in reply.data:
                        results = self._operators.answer(reply, calls, timeout_s=wait)
                        reply = child.call(*results, timeout_s=wait, reply_bytes=cap)
                    slow = [fault for fault in wire.read_faults(reply) if fault.kind == "late"]
                    if not slow:
                        return reply
                    late.append(slow[0])
                    self._drop()
                except ChildTimeout:
                    self._drop()
                    text = f"the plan did not end within {request.deadline_s:g} s"
                    if request.deadline_binds:
                        return RunFailure("timeout", text)
                    late.append(RunFailure("late", text))
                except ChildDied as error:
                    if self._child is None:  # no child started: the candidate did not run
                        raise
                    death = self._child.death()
                    self._drop()
                    fault = _fault_of(death)
                    if fault is not None and fault.kind == "late":
                        late.append(fault)
                        continue
                    if fault is not None and not (death and death.may_be_foreign and not failures):
                        return fault
                    failures.append(error)
                except (SandboxError, KeyboardInterrupt):
                    self._drop()
                    raise
        if late:
            return late[-1]
        return RunFailure("crash", f"the emulator failed twice on this candidate ({_gist(failures[-1])}); {_REPORT_IT}")

    def _loaded(self) -> Child:
        """The child, with the build loaded. The lock is held."""
        if self._child is None:
            device = self._device
            limits = Limits(
                wall_s=60.0,
                cpu_s=SESSION_CPU_S,
                memory_bytes=HOST_BYTES,
                reserved_bytes=device.memory_bytes,
                tmp_bytes=TILES_BYTES,
                file_bytes=TILES_BYTES,
                processes=device.threads + 4,
            )
            self._child = self._zygote.spawn(limits)
            load = {
                "op": "load",
                "spec": device.spec.to_wire(),
                "threads": device.threads,
                "memory_bytes": device.memory_bytes,
                "kernels": {
                    kernel.expression: (kernel.symbol, kernel.registers_per_thread)
                    for kernel in self._artifact.build.kernels
                },
            }
            try:
                self._child.call(load, [self._artifact.ptx], timeout_s=LOAD_S)
            except ChildTimeout as error:
                self._drop()
                raise SandboxError(f"the emulated device had not loaded the build after {LOAD_S:g} s") from error
        return self._child

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _broken(self, what: str) -> SandboxError:
        self.close()
        return SandboxError(f"the runner sent {what}")


def _fault_of(death: ExitReport | None) -> RunFailure | None:
    """The plan's fault behind the end of a child; None where the runner's own code failed."""
    cause = None if death is None else death.cause
    if cause == "memory":
        return RunFailure("memory", "the emulated device ran out of memory on this machine")
    if cause == "cpu":
        return RunFailure("late", f"the session used more than {SESSION_CPU_S:g} s of CPU time")
    if cause in ("signal", "killed"):
        return RunFailure("crash", f"the runner was ended while the plan ran: {death}")
    return None


def _gist(error: ChildDied) -> str:
    """The last line of a failure's text: of a traceback, the exception."""
    return str(error).strip().split("\n")[-1][:200]
