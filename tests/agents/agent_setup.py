"""Runs what the built-in Coder writes: reply → candidate → plan at a size → NVRTC → emulated machine → values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from kernelforge.agents import TaskContext
from kernelforge.agents.builtin.codegen.render import Rendered, render
from kernelforge.agents.builtin.coder import readable
from kernelforge.agents.builtin.design import Design
from kernelforge.candidate.plan import parse_plan, signatures
from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Artifact, Compiler, LaunchSignature
from kernelforge.devices.base import RunRequest
from kernelforge.devices.emulated.worker import Kernel, Runner
from kernelforge.evaluation.oracle.worker.reference import Reference, flatten_outputs, tensor_bytes, tensor_spec
from kernelforge.evaluation.oracle.worker.tracing import trace_source
from kernelforge.hardware.specs import SPECS
from kernelforge.profiling.metrics import build_profile
from kernelforge.records import (
    Attempt,
    Build,
    Candidate,
    Correctness,
    Evaluation,
    Finding,
    Fingerprint,
    Graph,
    KernelProfile,
    Metric,
    Operator,
    Origin,
    Performance,
    Profile,
    Reward,
    Roofline,
    SizeCheck,
    SizeFacts,
    Task,
    TaskFacts,
    Verdict,
)  # fmt: skip
from kernelforge.tasks.suites import load_task


@dataclass(frozen=True)
class Bench:
    """A reference at one size, with inputs drawn."""

    reference: Reference
    inputs: tuple[object, ...]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return self.reference.weights()

    def expected(self) -> list[torch.Tensor]:
        with torch.no_grad():
            return flatten_outputs(self.reference.model(*self.inputs))


@lru_cache(maxsize=64)
def task_of(name: str) -> Task:
    """Loading reads and checks a whole suite."""
    return load_task(name)


@lru_cache(maxsize=64)
def graph_of(task: str) -> Graph:
    return trace_source(task_of(task).source, {})


@lru_cache(maxsize=64)
def bench(task: str, size: str) -> Bench:
    loaded = task_of(task)
    reference = Reference(loaded.source, loaded.size(size).constants)
    reference.redraw_weights(3)
    return Bench(reference, reference.inputs(7))


def resolve(plan: str, at: Bench) -> ResolvedPlan:
    specs = [tensor_spec(value) if isinstance(value, torch.Tensor) else value for value in at.inputs]
    weights = {name: tensor_spec(value) for name, value in at.weights.items()}
    return parse_plan(plan).resolve(specs, weights, at.reference.attributes())


def build(compiler: Compiler, source: str, resolved: ResolvedPlan) -> Artifact | Build:
    checks = [LaunchSignature(s.expression, s.args) for s in signatures(resolved)]
    return compiler.build(source, resolved.expressions, signatures=checks, constants=resolved.constants)


@lru_cache(maxsize=64)
def varying(task: str) -> dict[str, int | float | bool | str]:
    """Scalar attributes that the built-in Coder reads."""
    return readable(*(bench(task, size).reference.attributes() for size in ("full", "small")))


def tensors_of(resolved: ResolvedPlan, at: Bench) -> dict[int, bytes]:
    """Bytes of every input and weight buffer."""
    result = {}
    for buffer in resolved.buffers:
        if buffer.kind == "input":
            result[buffer.id] = tensor_bytes(at.inputs[int(buffer.source)])
        elif buffer.kind == "weight":
            result[buffer.id] = tensor_bytes(at.weights[str(buffer.source)])
    return result


def runner(artifact: Artifact) -> Runner:
    kernels = tuple((k.expression, Kernel(k.symbol, k.registers_per_thread)) for k in artifact.build.kernels)
    return _runner(artifact.ptx, kernels)


@lru_cache(maxsize=4)
def _runner(ptx: bytes, kernels: tuple[tuple[str, Kernel], ...]) -> Runner:
    """One for the sizes of a build, as in a session of the device: its PTX is parsed once."""
    return Runner(ptx.decode(), dict(kernels), SPECS["h100"], memory_bytes=1 << 30, threads=1)


def work(resolved: ResolvedPlan, at: Bench, poison: int = 0xA5) -> RunRequest:
    return RunRequest(
        plan=resolved, tensors=tensors_of(resolved, at), poison=poison, mutable=frozenset(), deadline_s=600.0,
        memory_bytes=1 << 30, max_thread_instructions=None,
    )  # fmt: skip


def run(artifact: Artifact, resolved: ResolvedPlan, at: Bench) -> list[torch.Tensor]:
    """Outputs of the plan on the emulated machine, in this process.

    Raises:
        AssertionError: a fault, with its message.
    """
    ran = runner(artifact).run(work(resolved, at))
    assert not ran.faults, ran.faults[0].message
    return [
        torch.frombuffer(bytearray(blob), dtype=getattr(torch, output.dtype.value)).reshape(output.shape)
        for blob, output in zip(ran.outputs, resolved.outputs, strict=True)
    ]


def profile(
    artifact: Artifact, resolved: ResolvedPlan, at: Bench, compulsory_bytes: int
) -> tuple[Profile, Performance]:
    counts = runner(artifact).profile(work(resolved, at, poison=0))
    registers = {k.expression: k.registers_per_thread for k in artifact.build.kernels}
    facts = SizeFacts(
        size="full",
        inputs=(),
        outputs=(),
        weights=(),
        attrs={},
        compulsory_bytes=compulsory_bytes,
        flops=0,
        eager_launches=1,
    )
    return build_profile(SPECS["h100"], "emulated:h100", counts, registers, facts)


@lru_cache(maxsize=64)
def rendered(name: str, design: Design) -> Rendered:
    """A design of a task of suite core."""
    return render(graph_of(f"core/{name}"), design, varying(f"core/{name}"))


def facts(name: str, size: str) -> SizeFacts:
    """Facts of a task of suite core; every byte of inputs, weights and outputs counts as compulsory."""
    at = bench(f"core/{name}", size)
    outputs = at.expected()
    tensors = [value for value in (*at.inputs, *at.weights.values(), *outputs) if isinstance(value, torch.Tensor)]
    return SizeFacts(
        size=size,
        inputs=tuple(tensor_spec(value) if isinstance(value, torch.Tensor) else value for value in at.inputs),
        outputs=tuple(tensor_spec(value) for value in outputs),
        weights=at.reference.weight_specs(),
        attrs=at.reference.attributes(),
        compulsory_bytes=sum(value.numel() * value.element_size() for value in tensors),
        flops=0,
        eager_launches=1,
    )


@lru_cache(maxsize=16)
def facts_of(name: str) -> TaskFacts:
    return TaskFacts(task_digest="0" * 16, sizes=(facts(name, "full"), facts(name, "small")))


def brief(name: str, graph: Graph | None = None) -> TaskContext:
    task = task_of(f"core/{name}")
    device = {"device": "H100, emulated", "architecture": "sm_90a"}
    return TaskContext(
        task, facts_of(name), {"COLS": "1..4096"}, graph or graph_of(f"core/{name}"), device, SPECS["h100"]
    )


FINGERPRINT = Fingerprint(
    device="emulated:h100", device_kind="emulated", arch="sm_90a", toolchain="nvrtc 13.0.88", kernelforge="0",
    evaluator="1", torch="2", python="3", host="test", jail="none",
)  # fmt: skip
BUILD = Build(key="k", ok=True, arch="sm_90a", toolchain="nvrtc 13.0.88", seconds=0)


def attempt(
    context: TaskContext,
    candidate: Candidate,
    *,
    number: int = 0,
    verdict: Verdict = Verdict.OK,
    reason: str = "",
    profile: Profile | None = None,
    time_us: float | None = None,
    finding: Finding | None = None,
    accepted: bool = False,
    operator: Operator = Operator.OPTIMISE,
) -> Attempt:
    """An attempt as the loop would record it."""
    performance = None
    if time_us is not None:
        performance = Performance(time_us=time_us, origin=Origin.MODELLED, protocol="emulated/7", bound="dram")
    correct = verdict is Verdict.OK
    evaluation = Evaluation(
        candidate=candidate.hash,
        task=context.task.digest,
        fingerprint=FINGERPRINT,
        verdict=verdict,
        stage="done" if correct else "small",
        reason=reason,
        build=BUILD,
        correctness=Correctness(sizes=(SizeCheck(size="small", status="passed"),)) if correct else None,
        performance=performance,
    )
    return Attempt(
        id=f"r/{context.task.name}/{number:02d}",
        run="r",
        task=context.task.name,
        number=number,
        operator=operator,
        parent=None if operator is Operator.SEED else f"r/{context.task.name}/99",
        finding=finding,
        candidate=candidate,
        evaluation=evaluation,
        profile=profile if correct else None,
        reward=Reward(policy="kernelforge/1", value=None, components={}),
        accepted=accepted,
        started="2026-01-01T00:00:00+00:00",
        seconds=1,
    )


def profile_of(
    kernel: str, *, compulsory: float = 1e6, dram: float = 1e6, bound: str = "dram", **values: float
) -> Profile:
    """A profile of one kernel with metrics by short name; see ``SHORT``."""
    metrics = tuple(
        Metric(name=SHORT[name], value=value, unit="1", origin=Origin.COUNTED) for name, value in values.items()
    )
    item = KernelProfile(kernel=kernel, launches=1, grid=(1, 1, 1), block=(256, 1, 1), sampled=1, metrics=metrics)
    roofline = Roofline(
        flops=0, dram_bytes=dram, compulsory_bytes=compulsory, arithmetic_intensity=0, ridge=1, bound=bound, time_us=1,
        time_origin=Origin.MODELLED,
    )  # fmt: skip
    return Profile(size="full", device="emulated:h100", kernels=(item,), metrics=metrics, roofline=roofline)


SHORT = {
    "launches": "kernelforge__launches",
    "dram": "dram__bytes.sum",
    "sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "instructions": "ptx__warp_inst_executed.sum",
}
