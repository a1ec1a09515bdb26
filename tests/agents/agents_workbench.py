"""Runs what the built-in Coder writes: reply → candidate → plan at a size → NVRTC → emulated machine → values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from kernelforge.candidate.plan import parse_plan, signatures
from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Artifact, Compiler, LaunchSignature
from kernelforge.devices.emulated.worker import Kernel, Runner, Work
from kernelforge.devices.specs import SPECS
from kernelforge.evaluate.reference import Reference, flatten_outputs, tensor_bytes, tensor_spec
from kernelforge.evaluate.tracing import trace_source
from kernelforge.profiling.metrics import build_profile
from kernelforge.records import Build, Graph, Performance, Profile, SizeFacts
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
def graph_of(task: str) -> Graph:
    return trace_source(load_task(task).source, {})


@lru_cache(maxsize=64)
def bench(task: str, size: str) -> Bench:
    loaded = load_task(task)
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
    """Scalar attributes that differ between the sizes that an agent may see."""
    full, small = (bench(task, size).reference.attributes() for size in ("full", "small"))
    return {name: value for name, value in full.items() if small.get(name) != value}


def tensors_of(resolved: ResolvedPlan, at: Bench) -> dict[int, bytes]:
    """Bytes of every input and weight buffer."""
    found = {}
    for buffer in resolved.buffers:
        if buffer.kind == "input":
            found[buffer.id] = tensor_bytes(at.inputs[int(buffer.source)])
        elif buffer.kind == "weight":
            found[buffer.id] = tensor_bytes(at.weights[str(buffer.source)])
    return found


def runner(artifact: Artifact) -> Runner:
    kernels = {k.expression: Kernel(k.symbol, k.registers_per_thread) for k in artifact.build.kernels}
    return Runner(artifact.ptx.decode(), kernels, SPECS["h100"], memory_bytes=1 << 30, threads=1)


def work(resolved: ResolvedPlan, at: Bench, poison: int = 0xA5) -> Work:
    return Work(
        plan=resolved, tensors=tensors_of(resolved, at), poison=poison, mutable=frozenset(), deadline_s=60.0,
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
