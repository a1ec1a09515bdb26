"""The runner over a driver: what it runs, what it refuses, and what it notices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from devices.cuda.software import SoftwareDriver, with_ptx
from emulated_plans import ADD, ADD_PLAN, Array, given, randoms, resolve

from kernelforge.candidate.plan import signatures
from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices.cuda.limits import Kernel
from kernelforge.devices.cuda.runner import Ran, Runner, Work


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with Compiler(None) as made:
        yield made


def build(compiler: Compiler, source: str, plan: ResolvedPlan) -> Artifact:
    built = compiler.build(source, plan.expressions, signatures=signatures(plan))
    assert isinstance(built, Artifact), built
    return with_ptx(built)


def runner(artifact: Artifact, driver: SoftwareDriver | None = None) -> Runner:
    made = driver or SoftwareDriver()
    kernels = {
        k.expression: Kernel(k.symbol, k.registers_per_thread, k.static_shared_bytes, k.max_threads_per_block)
        for k in artifact.build.kernels
    }
    return Runner(made, artifact.cubin, kernels, made.tensor)


def work(plan: ResolvedPlan, *arrays: Array, **changes: Any) -> Work:
    return Work(**({"plan": plan, "tensors": given(plan, arrays), "poison": 0xA5, "mutable": frozenset()} | changes))


def run(compiler: Compiler, source: str, text: str, *arrays: Array, **changes: Any) -> Ran:
    plan = resolve(text, arrays)
    return runner(build(compiler, source, plan)).run(work(plan, *arrays, **changes))


def test_a_plan_runs_and_leaves_nothing_behind(compiler: Compiler) -> None:
    a, b = randoms(5000), randoms(5000, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    driver = SoftwareDriver()
    made = runner(build(compiler, ADD, plan), driver)
    before = driver.memory()
    for poison in (0xA5, 0x5A):
        ran = made.run(work(plan, a, b, poison=poison))
        assert ran.faults == ()
        np.testing.assert_array_equal(np.frombuffer(ran.outputs[0], np.float32), a + b)
    assert driver.memory() == before
