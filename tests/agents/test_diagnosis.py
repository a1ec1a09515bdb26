"""A diagnosis names the fault that was planted, from counters of the real compiler and the emulated device."""

from __future__ import annotations

import numpy as np
import pytest
from faulty_kernels import FAULTY, SOUND, Faulty

from kernelforge.agents.diagnosis import Diagnosis, diagnose
from kernelforge.candidate.plan import parse_plan, signatures
from kernelforge.compile import Artifact, Compiler, LaunchSignature
from kernelforge.devices.emulated.worker import Kernel, Runner, Work
from kernelforge.hardware.specs import H100
from kernelforge.profiling.metrics import build_profile
from kernelforge.records import Build, Profile, SizeFacts, TensorSpec


def profiled(case: Faulty, compiler: Compiler) -> tuple[Profile, Build, SizeFacts]:
    """Build and profile a kernel as a candidate is."""
    specs = [TensorSpec.contiguous(shape, case.dtype) for shape in case.inputs]
    resolved = parse_plan(case.plan).resolve(specs, {}, {})
    checks = [LaunchSignature(one.expression, one.args) for one in signatures(resolved)]
    artifact = compiler.build(case.source, resolved.expressions, signatures=checks, constants=resolved.constants)
    assert isinstance(artifact, Artifact), (artifact.errors, artifact.refused)
    rng = np.random.default_rng(0)
    tensors = {
        buffer.id: rng.standard_normal(specs[int(buffer.source)].shape).astype(case.dtype.value).tobytes()
        for buffer in resolved.buffers
        if buffer.kind == "input" and buffer.source is not None
    }
    kernels = {one.expression: Kernel(one.symbol, one.registers_per_thread) for one in artifact.build.kernels}
    runner = Runner(artifact.ptx.decode(), kernels, H100, memory_bytes=1 << 30, threads=1)
    counts = runner.profile(
        Work(plan=resolved, tensors=tensors, poison=0, mutable=frozenset(), deadline_s=60.0, memory_bytes=1 << 30,
             max_thread_instructions=None)
    )  # fmt: skip
    outputs = tuple(TensorSpec.contiguous(one.shape, one.dtype) for one in resolved.outputs)
    facts = SizeFacts(
        size="full", inputs=tuple(specs), outputs=outputs, weights=(), attrs={},
        compulsory_bytes=sum(one.nbytes for one in (*specs, *outputs)), flops=case.flops, eager_launches=1,
    )  # fmt: skip
    registers = {one.expression: one.registers_per_thread for one in artifact.build.kernels}
    return build_profile(H100, "emulated:h100", counts, registers, facts)[0], artifact.build, facts


def diagnosed(case: Faulty, compiler: Compiler) -> tuple[Diagnosis, ...]:
    profile, build, facts = profiled(case, compiler)
    return diagnose(profile, build, facts)


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_the_planted_fault_is_named_first(case: Faulty, compiler: Compiler) -> None:
    found = diagnosed(case, compiler)
    assert found[0].bottleneck is case.expected, [(one.bottleneck.value, round(one.share, 3)) for one in found]
    assert found[0].curable
    assert any(character.isdigit() for character in found[0].evidence)


def test_a_kernel_at_the_floor_has_no_fault(compiler: Compiler) -> None:
    found = diagnosed(SOUND, compiler)
    assert not any(one.curable for one in found)
    assert found[0].bottleneck is SOUND.expected
    assert "1.00x the compulsory bytes" in found[0].evidence
