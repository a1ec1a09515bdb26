"""The CUDA device with a software driver in real jailed children: sessions, their deaths, and who comes after."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelforge.compile import Artifact, Compiler
from kernelforge.devices.base import RunFailed
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.devices.cuda.session import TORCH_S, CudaSession
from kernelforge.devices.cuda.target import USABLE_SHARE, GpuTarget, description
from kernelforge.devices.cuda.worker import main
from kernelforge.devices.cuda.worker.driver import DriverError
from kernelforge.errors import ChildTimeout, DeviceError, SandboxError
from kernelforge.sandbox import Frame, select_tier
from tests.devices.cuda import plans
from tests.devices.cuda.plans import ADD, ADD_PLAN, build, floats, randoms, request, resolve
from tests.devices.cuda.software import FACTS, DeviceOf, SoftwareDevice

pytestmark = pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine")


def a_good_candidate_passes(compiler: Compiler, device: SoftwareDevice) -> None:
    a, b = randoms(100), randoms(100, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        ran = session.run(request(plan, a, b))
        assert ran.faults == ()
        np.testing.assert_array_equal(floats(ran.outputs[0]), a + b)


@pytest.mark.slow
def test_a_build_runs_in_a_confined_child(compiler: Compiler, device: SoftwareDevice) -> None:
    a, b = randoms(5000), randoms(5000, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        for poison in (0xA5, 0x5A):
            ran = session.run(request(plan, a, b, poison=poison))
            assert ran.faults == ()
            np.testing.assert_array_equal(floats(ran.outputs[0]), a + b)
            assert ran.seconds > 0
        assert session._child is not None
        assert "limits" in session._child.layers


def test_an_input_in_host_memory_takes_none_of_the_device(
    compiler: Compiler, device: SoftwareDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = randoms(5000), randoms(5000, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    two_thirds = replace(request(plan, a, b), memory_bytes=40_000)
    with device.open(build(compiler, ADD, plan)) as session:
        assert [fault.kind for fault in session.run(two_thirds).faults] == ["memory"]
        ran = session.run(replace(two_thirds, mapped=frozenset({0})))
        np.testing.assert_array_equal(floats(ran.outputs[0]), a + b)
        with session.arm([replace(two_thirds, mapped=frozenset({0}))] * 2) as timed:
            timed.run(1)
            np.testing.assert_array_equal(floats(timed.outputs()[1][0]), a + b)
        monkeypatch.setattr("kernelforge.devices.cuda.session.installed_memory_bytes", lambda: 30_000)
        assert not session.run(replace(two_thirds, mapped=frozenset({0}))).faults
        with pytest.raises(SandboxError, match="40000 bytes of pinned host memory, the machine has 30000"):
            session.arm([replace(two_thirds, mapped=frozenset({0}))] * 2)


@pytest.mark.parametrize(
    ("name", "capability", "sms", "key"),
    [
        ("NVIDIA H200", (9, 0), 132, "h200"),
        ("NVIDIA A30", (8, 0), 56, "a100"),
        ("NVIDIA RTX A1000", (8, 6), 18, "rtx-3060"),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, "rtx-4090"),
        ("NVIDIA H100 PCIe", (9, 0), 114, "h100-pcie"),
    ],
)
def test_figures_are_those_of_the_gpu_or_of_the_nearest(
    name: str, capability: tuple[int, int], sms: int, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = replace(FACTS, name=name, compute_capability=capability, sm_count=sms)
    monkeypatch.setattr(CudaDevice, "facts", reported)
    device = CudaDevice(0)
    assert device.spec.key == key
    device.close()


def test_the_device_is_what_its_driver_says(device: SoftwareDevice) -> None:
    facts = device.describe()
    assert device.name == "cuda:0"
    assert device.kind == "cuda"
    assert device.arch == "sm_90a"
    assert facts["device"] == "Software GPU (cuda:0)"
    assert facts["memory bandwidth"] == "128 GB/s"
    assert facts["fp32"] == "1.0 TFLOPS"
    assert facts["shared memory per block"] == "227 KiB"
    assert facts["not supported here"] == "thread block clusters, cooperative launches, tensor maps"
    assert device.identity() == {
        "gpu": "Software GPU",
        "gpu_uuid": FACTS.uuid,
        "driver": "13.0",
        "runtime": "software",
    }
    assert device.memory_bytes == int(0.9 * (1 << 30))
    assert device.l2_bytes == 1 << 20
    assert device.capabilities.measures_time
    assert device.capabilities.library
    assert not device.capabilities.clusters
    # A driver may not tell its clocks: what hangs on them is left out.
    unclocked = description("cuda:0", replace(FACTS, max_clock_mhz=0, memory_clock_mhz=0), 1 << 29, device.capabilities)
    assert facts.keys() - unclocked.keys() == {"clock", "fp32", "memory bandwidth"}


@pytest.mark.slow
def test_a_gpu_that_nothing_can_be_compiled_for_is_refused_when_it_is_opened(device_of: DeviceOf) -> None:
    with device_of("create_unknown") as device:
        for use in (device.start, device.identity, lambda: device.arch):
            with pytest.raises(
                DeviceError, match=r"^cuda:0 cannot be used: this GPU is sm_990, nvrtc \S+ builds for sm_"
            ):
                use()


@pytest.mark.slow
def test_a_lost_context_is_a_crash_and_the_next_candidate_is_unaffected(
    compiler: Compiler, device: SoftwareDevice
) -> None:
    x = randoms(4)
    plan = resolve(plans.WILD_PLAN, [x])
    with device.open(build(compiler, plans.WILD, plan)) as session:
        for _ in range(2):
            ran = session.run(request(plan, x))
            assert ran.faults[0].kind == "crash"
            assert "'wild', launched in plan line 3" in ran.faults[0].message
            assert session._child is None
    a_good_candidate_passes(compiler, device)


@pytest.mark.slow
def test_a_hang_is_a_timeout_and_the_next_candidate_is_unaffected(compiler: Compiler, device: SoftwareDevice) -> None:
    x = randoms(4)
    plan = resolve(plans.SPIN_PLAN, [x])
    with device.open(build(compiler, plans.SPIN, plan)) as session:
        ran = session.run(request(plan, x, deadline_s=0.3))
    assert ran.faults[0].kind == "timeout"
    assert ran.faults[0].message == "the plan did not end within 0.3 s"
    a_good_candidate_passes(compiler, device)


@pytest.mark.slow
def test_a_runner_that_dies_is_a_crash_and_is_replaced(compiler: Compiler, device_of: DeviceOf) -> None:
    x = randoms(4)
    plan = resolve(plans.TRAP_PLAN, [x])
    with device_of("create_mortal") as device, device.open(build(compiler, plans.TRAP, plan)) as session:
        ran = session.run(request(plan, x))
        assert ran.faults[0].kind == "crash"
        assert "the runner was ended while the plan ran" in ran.faults[0].message
        a_good_candidate_passes(compiler, device)


@pytest.mark.slow
def test_out_of_device_memory_is_a_verdict_and_the_next_candidate_is_unaffected(
    compiler: Compiler, device_of: DeviceOf
) -> None:
    a, b = randoms(5_000_000), randoms(5_000_000)
    plan = resolve(ADD_PLAN, [a, b])
    with device_of("create_small") as device, device.open(build(compiler, ADD, plan)) as session:
        ran = session.run(request(plan, a, b))
        assert ran.faults[0].kind == "memory"
        assert "60000000 bytes of device memory" in ran.faults[0].message
        half = resolve(ADD_PLAN, [a[:2_000_000], b[:2_000_000]])
        with pytest.raises(RunFailed, match="2 sets of 24000000 bytes") as caught:
            session.arm([request(half, a[:2_000_000], b[:2_000_000])] * 2)
        assert caught.value.fault.kind == "memory"
        a_good_candidate_passes(compiler, device)


@pytest.mark.slow
def test_memory_that_only_the_driver_misses_is_a_verdict_too(compiler: Compiler, device_of: DeviceOf) -> None:
    a, b = randoms(500_000), randoms(500_000)
    plan = resolve(ADD_PLAN, [a, b])
    with device_of("create_crowded") as device, device.open(build(compiler, ADD, plan)) as session:
        assert session.run(request(plan, a, b)).faults == ()
        with pytest.raises(RunFailed, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
            session.arm([request(plan, a, b)] * 3)
        assert caught.value.fault.kind == "memory"
        assert session._child is None
        a_good_candidate_passes(compiler, device)


def test_a_gpu_that_fails_its_probe_is_quarantined(compiler: Compiler, device_of: DeviceOf) -> None:
    x, a = randoms(4), randoms(100)
    wild, good = resolve(plans.WILD_PLAN, [x]), resolve(ADD_PLAN, [a, a])
    with device_of("create_ailing") as device:
        artifact = build(compiler, ADD, good)
        with device.open(artifact) as session:
            assert session.run(request(good, a, a)).faults == ()
            with device.open(build(compiler, plans.WILD, wild)) as bad, pytest.raises(DeviceError, match="unhealthy"):
                bad.run(request(wild, x))
            with pytest.raises(DeviceError, match="memory does not hold what was written"):
                session.run(request(good, a, a))
        with pytest.raises(DeviceError, match="cuda:0 is unhealthy"):
            device.open(artifact)


def test_a_gpu_that_does_not_start_says_why(device_of: DeviceOf) -> None:
    with device_of("create_nothing") as device, pytest.raises(DeviceError) as caught:
        _ = device.arch
    assert str(caught.value).startswith("cuda:0 cannot be used: CUDA_ERROR_NO_DEVICE while opening GPU 0.")
    assert "`--device emulated` needs no GPU" in str(caught.value)


def test_no_context_is_made_before_the_fork() -> None:
    main.warm_up({"driver": "tests.devices.cuda.software:create_nothing", "ordinal": 0})
    with pytest.raises(DriverError, match="CUDA_ERROR_NO_DEVICE while opening GPU 3"):
        main.open_driver({"driver": "tests.devices.cuda.software:create_nothing", "ordinal": 3})


@pytest.mark.usefixtures("warm_zygotes")
def test_a_session_takes_a_warm_spare_and_another_is_made(compiler: Compiler) -> None:
    with SoftwareDevice() as device:
        assert device.arch == "sm_90a"
        device.runners.hold()
        spare = device.runners._ready[0].pid
        device.runners.release()
        a = randoms(10)
        plan = resolve(ADD_PLAN, [a, a])
        with device.open(build(compiler, ADD, plan)) as session:
            session.run(request(plan, a, a))
            assert session._child is not None
            assert session._child.pid == spare
            device.runners.hold()
            assert [child.pid for child in device.runners._ready] != [spare]
            assert len(device.runners._ready) == 1
            device.runners.release()


@pytest.mark.slow
@pytest.mark.usefixtures("warm_zygotes")
def test_no_context_is_made_while_the_gpu_is_timed(compiler: Compiler) -> None:
    with SoftwareDevice() as device:
        a = randoms(10)
        plan = resolve(ADD_PLAN, [a, a])
        artifact = build(compiler, ADD, plan)
        with device.open(artifact) as session:
            armed = session.arm([request(plan, a, a)])
            device.runners.take().close()
            assert device.runners._filling is None
            assert device.runners._ready == []
            armed.close()
            device.runners.hold()
            assert len(device.runners._ready) == 1
            device.runners.release()


@pytest.mark.slow
def test_sessions_run_side_by_side(compiler: Compiler, device: SoftwareDevice) -> None:
    a, b = randoms(1000), randoms(1000, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    artifact = build(compiler, ADD, plan)
    outputs = []

    def run_once() -> None:
        with device.open(artifact) as session:
            outputs.append(session.run(request(plan, a, b)).outputs)

    threads = [threading.Thread(target=run_once) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == [outputs[0]] * 3


def test_an_error_of_the_runner_is_never_the_candidates(compiler: Compiler, device: SoftwareDevice) -> None:
    a = randoms(10)
    plan = resolve(ADD_PLAN, [a, a])
    with device.open(build(compiler, ADD, plan)) as session:
        with pytest.raises(SandboxError, match="not the candidate's doing"):
            session.run(request(plan, a, a, poison=4096))
        assert session.run(request(plan, a, a)).faults == ()


class LyingChild:
    """Answers every call with a frame of its own."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def call(self, *_: object, **__: object) -> Frame:
        return self.frame

    def close(self) -> None: ...


def answer_with(session: CudaSession, frame: Frame) -> None:
    session._child = LyingChild(frame)  # type: ignore[assignment]


@pytest.mark.parametrize(
    "frame",
    [
        Frame({"faults": []}, (b"123",)),
        Frame({"faults": []}, ()),
        Frame({"faults": [["kind", "text"]]}, ()),
        Frame({"faults": [["crash", 1]]}, ()),
        Frame({"faults": 3}, ()),
    ],
)
def test_a_reply_that_does_not_fit_the_plan_is_refused(
    compiler: Compiler, device: SoftwareDevice, frame: Frame
) -> None:
    a = randoms(10)
    plan = resolve(ADD_PLAN, [a, a])
    with device.open(build(compiler, ADD, plan)) as session:
        answer_with(session, frame)
        with pytest.raises(SandboxError):
            session.run(request(plan, a, a))


@pytest.mark.parametrize("times", [None, [1.0], [1.0, -1.0], [1.0, float("inf")], [1.0, "2"], [True, True]])
def test_times_that_cannot_be_are_refused(compiler: Compiler, device: SoftwareDevice, times: object) -> None:
    a = randoms(10)
    plan = resolve(ADD_PLAN, [a, a])
    with device.open(build(compiler, ADD, plan)) as session:
        armed = session.arm([request(plan, a, a)])
        armed.block(1)
        assert session._child is not None
        session._child.close()
        answer_with(session, Frame({"faults": [], "times_us": times}))
        with pytest.raises(SandboxError):
            armed.block(2)


class Recording:
    """A child that answers everything, and keeps what it was asked and how long it had for that."""

    def __init__(self, slow: str = "") -> None:
        self.asked: list[tuple[str, float]] = []
        self._slow = slow

    def call(self, data: dict[str, Any], blobs: Sequence[Any] = (), *, timeout_s: float, **limits: Any) -> Frame:
        self.asked.append((data["op"], timeout_s))
        if data["op"] == self._slow:
            raise ChildTimeout("no answer")
        return Frame({"faults": [["crash", "ran"]]} if data["op"] == "run" else {"faults": []})

    def close(self) -> None:
        """Nothing to end."""


class PreparedRunners:
    """A pool of these runners on a healthy GPU."""

    def __init__(self, *children: Recording) -> None:
        self._children = list(children)

    def take(self) -> Recording:
        return self._children.pop(0)

    def require_healthy(self) -> None:
        """Healthy."""

    def recover(self) -> None:
        """Healthy."""


def session_on(*children: Recording, artifact: Artifact, usable_bytes: int = 1 << 40) -> CudaSession:
    """A session on a GPU whose runs may use so much memory."""
    facts = replace(FACTS, memory_bytes=math.ceil(usable_bytes / USABLE_SHARE))
    target = GpuTarget("cuda:0", facts, frozenset(), "sm_90a", {}, {}, "default", 5.0, allow_unconfined=False)
    assert target.memory_bytes == usable_bytes
    return CudaSession(target, PreparedRunners(*children), artifact)  # type: ignore[arg-type]


def test_torch_is_imported_before_the_deadline_of_a_run_begins(compiler: Compiler) -> None:
    a, b = randoms(12, 12), randoms(12, 12, seed=1)
    plan = resolve(plans.LIBRARY_PLAN, [a, b], library=["matmul"])
    child = Recording()
    session = session_on(child, artifact=build(compiler, ADD, plan))
    for _ in range(2):
        session.run(request(plan, a, b, deadline_s=0.5))
    assert [op for op, _ in child.asked] == ["load", "torch", "run", "run"]
    limits = dict(child.asked)
    assert limits["torch"] == TORCH_S > 60 > limits["run"]
    alone, plain = Recording(), resolve(ADD_PLAN, [a, b])
    session_on(alone, artifact=build(compiler, ADD, plain)).run(request(plain, a, b))
    assert [op for op, _ in alone.asked] == ["load", "run"], "who calls no operator of torch does not wait for it"


def test_torch_that_does_not_come_in_time_is_not_the_candidates_doing(compiler: Compiler) -> None:
    a, b = randoms(12, 12), randoms(12, 12, seed=1)
    plan = resolve(plans.LIBRARY_PLAN, [a, b], library=["matmul"])
    session = session_on(Recording("torch"), artifact=build(compiler, ADD, plan))
    with pytest.raises(SandboxError, match="did not import torch within"):
        session.run(request(plan, a, b))


def test_a_plan_may_take_all_memory_that_the_device_gives(compiler: Compiler) -> None:
    """12 GB of inputs and outputs on a GPU of a terabyte; a request may allow less."""
    x = randoms(4)
    plan = resolve(plans.SPIN_PLAN, [x])
    large = replace(plan, buffers=tuple(replace(buffer, nbytes=6 << 30) for buffer in plan.buffers))
    artifact = build(compiler, plans.SPIN, plan)
    session = session_on(artifact=artifact)
    run_request = replace(request(plan, x), plan=large)
    session._check_memory([run_request])
    with pytest.raises(RunFailed, match="8589934592 are allowed"):
        session._check_memory([replace(run_request, memory_bytes=8 << 30)])
    with pytest.raises(RunFailed, match="12884901888 bytes of device memory, 11811160064 are allowed"):
        session_on(artifact=artifact, usable_bytes=11 << 30)._check_memory([run_request])
