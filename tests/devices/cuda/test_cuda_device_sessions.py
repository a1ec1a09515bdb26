"""The CUDA device with a software driver in real jailed children: sessions, their deaths, and who comes after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from devices.cuda.software import SoftwareDevice
from emulated_plans import ADD, ADD_PLAN, Array, given, randoms, resolve

from kernelforge.candidate.plan import signatures
from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices.base import RunFaulted, RunRequest
from kernelforge.errors import DeviceError, SandboxError
from kernelforge.sandbox import Frame, probe

pytestmark = pytest.mark.skipif(probe().tier == "none", reason="no jail tier works on this machine")


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with Compiler(None) as made:
        yield made


@pytest.fixture(scope="module")
def device() -> Iterator[SoftwareDevice]:
    with SoftwareDevice() as made:
        yield made


def build(compiler: Compiler, source: str, plan: ResolvedPlan) -> Artifact:
    built = compiler.build(source, plan.expressions, signatures=signatures(plan), scored=False)
    assert isinstance(built, Artifact), built
    return built


def request(plan: ResolvedPlan, *arrays: Array, **changes: Any) -> RunRequest:
    return RunRequest(plan, given(plan, arrays), **changes)


def test_a_build_runs_in_a_confined_child(compiler: Compiler, device: SoftwareDevice) -> None:
    a, b = randoms(5000), randoms(5000, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        for poison in (0xA5, 0x5A):
            ran = session.run(request(plan, a, b, poison=poison))
            assert ran.faults == ()
            np.testing.assert_array_equal(np.frombuffer(ran.outputs[0], np.float32), a + b)
        assert session._child is not None
        assert "limits" in session._child.layers
