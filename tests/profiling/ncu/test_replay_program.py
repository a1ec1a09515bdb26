"""The replay program on the software driver, in this process: what is profiled, what is timed, what is renewed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Compiler
from kernelforge.devices.cuda.tools.replay import Replay
from kernelforge.devices.cuda.worker.driver import DriverError
from kernelforge.devices.cuda.worker.errors import PlanFailed
from tests.devices.cuda.plans import ADD, ADD_PLAN, Array, buffer_contents, build, randoms, resolve
from tests.devices.cuda.software import SoftwareDriver, with_ptx

FIVE_PLAN = """
def forward(a, b):
    n = a.numel()
    out = zeros(n, dtype=float32)
    for i in range(5):
        add[ceil_div(n, 256), 256](a, b, out, i32(n))
    return out
"""
INTO_ITSELF = """
extern "C" __global__ void grow(float* a) { a[threadIdx.x] += 1.0f; }
"""


class Watched(SoftwareDriver):
    """Notes which launches fall into a region."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.regions = 0
        self.launched: list[bool] = []

    @contextlib.contextmanager
    def profiler_region(self) -> Iterator[None]:
        assert not self.inside
        self.inside, self.regions = True, self.regions + 1
        yield
        self.inside = False

    def launch(self, *arguments: Any) -> None:
        self.launched.append(self.inside)
        super().launch(*arguments)


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with Compiler(None) as made:
        yield made


def replay(
    compiler: Compiler,
    source: str,
    plan: ResolvedPlan,
    driver: SoftwareDriver,
    *arrays: Array,
    mutable: tuple[int, ...] = (),
    mapped: tuple[int, ...] = (),
) -> Replay:
    artifact = with_ptx(build(compiler, source, plan))
    kernels = {
        kernel.expression: (
            kernel.symbol,
            kernel.registers_per_thread,
            kernel.static_shared_bytes,
            kernel.max_threads_per_block,
        )
        for kernel in artifact.build.kernels
    }
    request = {"plan": plan.to_wire(), "kernels": kernels, "mutable": list(mutable), "mapped": list(mapped)}
    return Replay(driver, request, artifact.cubin, buffer_contents(plan, arrays))


@pytest.mark.parametrize(
    ("ordinals", "inside", "regions"),
    [([0, 1, 2, 3, 4], "yyyyy", 1), ([0], "ynnnn", 1), ([1, 2, 4], "nyyny", 2), ([], "nnnnn", 0)],
)
def test_only_chosen_launches_are_inside_a_region(
    compiler: Compiler, ordinals: list[int], inside: str, regions: int
) -> None:
    arrays = [randoms(300), randoms(300, seed=1)]
    driver = Watched()
    made = replay(compiler, ADD, resolve(FIVE_PLAN, arrays), driver, *arrays)
    made.once()
    assert driver.launched == [False] * 5
    driver.launched.clear()
    assert made.profiled(ordinals) == len(ordinals)
    assert "".join("ny"[inside_region] for inside_region in driver.launched) == inside
    assert driver.regions == regions
    assert not driver.inside


def test_every_launch_has_a_time_for_every_repeat(compiler: Compiler) -> None:
    arrays = [randoms(300), randoms(300, seed=1)]
    made = replay(compiler, ADD, resolve(FIVE_PLAN, arrays), SoftwareDriver(), *arrays)
    times = made.timed(3)
    assert [len(repeats) for repeats in times] == [3] * 5
    assert all(time > 0 for repeats in times for time in repeats)


def test_buffers_are_exactly_as_large_as_the_plan_says_and_unwritten(compiler: Compiler) -> None:
    arrays = [randoms(300), randoms(300, seed=1)]
    driver = SoftwareDriver()
    written: list[int] = []
    driver.fill = lambda pointer, byte, nbytes: written.append(nbytes)  # type: ignore[method-assign]
    sizes: list[int] = []
    allocate = driver.allocate
    driver.allocate = lambda nbytes: (sizes.append(nbytes), allocate(nbytes))[1]  # type: ignore[method-assign,func-returns-value]
    replay(compiler, ADD, resolve(ADD_PLAN, arrays), driver, *arrays)
    assert sizes == [1200, 1200, 1200]
    assert written == []
    replay(compiler, ADD, resolve(ADD_PLAN, arrays), driver, *arrays, mapped=(1,))
    assert sizes[3:] == [1200, 1200]
    assert list(driver.host_blocks.values()) == [1200]


def test_inputs_that_a_plan_may_write_are_given_anew(compiler: Compiler) -> None:
    a = np.zeros(32, np.float32)
    plan = resolve("def forward(a):\n    out = zeros(1, dtype=float32)\n    grow[1, 32](a)\n    return out\n", [a])
    driver = SoftwareDriver()
    number = next(buffer.id for buffer in plan.buffers if buffer.kind == "input")
    made = replay(compiler, INTO_ITSELF, plan, driver, a, mutable=(number,))
    made.once()
    made.profiled([0])
    assert np.frombuffer(driver.read(made._tensors.address(number), 128), np.float32).tolist() == [1.0] * 32


def test_a_plan_that_cuda_would_refuse_is_a_fault(compiler: Compiler) -> None:
    arrays = [randoms(300), randoms(300, seed=1)]
    plan = resolve(ADD_PLAN, arrays)
    (launch,) = plan.launches
    wide = replace(plan, steps=(replace(launch, block=(2048, 1, 1)),))
    with pytest.raises(PlanFailed, match=r"block .* is outside"):
        replay(compiler, ADD, wide, SoftwareDriver(), *arrays)


def test_a_host_without_memory_to_pin_is_no_fault_of_the_plan(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(driver: SoftwareDriver, nbytes: int) -> int:
        raise DriverError("CUDA_ERROR_OUT_OF_MEMORY", "allocating")

    monkeypatch.setattr(SoftwareDriver, "allocate_host", refuse)
    arrays = (randoms(300), randoms(300))
    with pytest.raises(DriverError, match="PINNED_MEMORY"):
        replay(compiler, ADD, resolve(ADD_PLAN, arrays), SoftwareDriver(), *arrays, mapped=(1,))
