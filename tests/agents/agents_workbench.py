"""Runs what the built-in Coder writes: reply → candidate → plan at a size → NVRTC → emulated machine → values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from kernelforge.candidate.plan import parse_plan, signatures
from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Artifact, Compiler, LaunchSignature
from kernelforge.evaluate.reference import Reference, flatten_outputs, tensor_spec
from kernelforge.evaluate.tracing import trace_source
from kernelforge.records import Build, Graph
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
