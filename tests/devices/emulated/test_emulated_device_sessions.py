"""The emulated device through its jail: real builds, confined runs, and children that misbehave."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kernelforge.candidate.plan import signatures
from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices import make_device
from kernelforge.devices.base import RunFailed, RunRequest
from kernelforge.devices.emulated.device import EmulatedDevice, EmulatedSession
from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.hardware.specs import H100
from kernelforge.profiling.model import plan_time
from kernelforge.records import Origin
from kernelforge.sandbox import Child, Frame, Limits, select_tier
from tests.devices.emulated.emulated_plans import ADD, ADD_PLAN, Array, facts, input_bytes, randoms, resolve
from tests.workers.engine_orders import family_of

pytestmark = pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine")


@pytest.fixture(scope="module")
def device(open_warm: Callable[..., Any]) -> Iterator[EmulatedDevice]:
    with open_warm(make_device, "emulated:h100", threads=2) as made:
        yield made


def build(compiler: Compiler, source: str, plan: ResolvedPlan, arch: str = "sm_90a") -> Artifact:
    built = compiler.build(source, plan.expressions, signatures=signatures(plan), arch=arch)
    assert isinstance(built, Artifact), built
    return built


def request(plan: ResolvedPlan, *arrays: Array, **changes: Any) -> RunRequest:
    return RunRequest(plan, input_bytes(plan, arrays), **changes)


def test_a_build_runs_and_is_profiled_in_one_session(compiler: Compiler, device: EmulatedDevice) -> None:
    a, b = randoms(5000), randoms(5000, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        for poison in (0xA5, 0x5A):
            ran = session.run(request(plan, a, b, poison=poison))
            assert ran.faults == ()
            np.testing.assert_array_equal(np.frombuffer(ran.outputs[0], np.float32), a + b)
        profile, performance = session.profile(request(plan, a, b), facts(plan, [a, b], 60_000))
    assert profile.device == "emulated:h100"
    assert profile.value("dram__bytes.sum") == pytest.approx(60_000, rel=0.01)
    assert performance.origin is Origin.MODELLED
    registers = profile.metric("launch__registers_per_thread")
    assert registers is not None
    assert registers.value > 8


def test_a_profile_tells_of_the_machine_code_beside_the_ptx(compiler: Compiler, device: EmulatedDevice) -> None:
    a, b = randoms(5120), randoms(5120, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        profile, _ = session.profile(request(plan, a, b), facts(plan, [a, b], 60_000))
    (kernel,) = profile.kernels
    assert kernel.sass is not None
    assert kernel.sass.origin is Origin.ESTIMATED
    executed = {row.opcode: row.warp_instructions for row in kernel.sass.opcodes}
    assert executed["LDG"] == 2 * executed["STG"] == 2 * 5120 // 32
    assert sum(executed.values()) == pytest.approx(kernel.sass.warp_instructions, abs=len(executed))
    assert kernel.sass.lines[0].warp_instructions >= executed["LDG"]
    total = profile.metric("sass__warp_inst_executed.sum")
    assert total is not None
    assert (total.value, total.origin) == (kernel.sass.warp_instructions, Origin.ESTIMATED)
    by_pipe = sum(metric.value for metric in profile.metrics if metric.name.startswith("sass__inst_"))
    assert by_pipe == pytest.approx(total.value, abs=9)


def test_a_profile_tells_of_shared_memory_as_the_machine_accesses_it(
    compiler: Compiler, device: EmulatedDevice
) -> None:
    """ptxas joins four loads of neighbouring words, which the PTX makes one by one."""
    source = """
    extern "C" __global__ void fours(const float* x, float* y) {
        __shared__ float words[4 * 256];
        for (int k = 0; k < 4; ++k) words[k * 256 + threadIdx.x] = x[k * 256 + threadIdx.x];
        __syncthreads();
        const float* mine = words + 4 * threadIdx.x;
        y[threadIdx.x] = mine[0] + mine[1] * mine[2] - mine[3];
    }
    """
    call = """
    def forward(x):
        y = empty(256)
        fours[1, 256](x, y)
        return y
    """
    x = randoms(1024)
    plan = resolve(textwrap.dedent(call), [x])
    with device.open(build(compiler, source, plan)) as session:
        profile, _ = session.profile(request(plan, x), facts(plan, [x], 0))
    counted, machine = (profile.metric(name) for name in ("memory_l1_wavefronts_shared", "sass__shared_wavefronts.sum"))
    assert counted is not None
    assert machine is not None
    assert machine.origin is Origin.ESTIMATED
    # Four stores without conflicts, and a load of 16 bytes by quarters of each of eight warps.
    assert machine.value == 8 * (4 + 4)
    assert counted.value == 8 * (4 + 4 * 4)


@pytest.mark.slow
def test_the_time_is_that_of_the_machine_code(compiler: Compiler, device: EmulatedDevice) -> None:
    """ptxas makes one instruction of three logical ones of the PTX."""
    source = """
    extern "C" __global__ void logic(const int* x, int* y, int rounds) {
        int value = x[threadIdx.x], other = x[threadIdx.x + 256];
        for (int k = 0; k < rounds; ++k) {
            value = (value ^ other) & k | other & ~value;
            other = (other & value) ^ k ^ value;
        }
        y[threadIdx.x] = value + other;
    }
    """
    x = np.arange(512, dtype=np.int32)
    plan = resolve(
        "def forward(x):\n    y = empty(256, dtype=int32)\n    logic[132, 256](x, y, i32(4096))\n    return y\n", [x]
    )
    with device.open(build(compiler, source, plan)) as session:
        profile, performance = session.profile(request(plan, x), facts(plan, [x], 3072))
        tuned = session.rate(request(plan, x), 1.0)
        counts = session.count(request(plan, x))
        guessed = plan_time(H100, counts, session.registers)
    assert performance.time_us == tuned.time_us < guessed.time_us / 1.3
    assert max(profile.kernels[0].limits_us.values()) <= performance.time_us


def test_without_machine_code_the_time_is_guessed_from_the_ptx(compiler: Compiler, device: EmulatedDevice) -> None:
    a, b = randoms(512), randoms(512, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    built = build(compiler, ADD, plan)
    bare = Artifact(built.build, built.ptx, b"")
    with device.open(bare) as session:
        profile, performance = session.profile(request(plan, a, b), facts(plan, [a, b], 6_000))
        guessed = plan_time(H100, session.count(request(plan, a, b)), session.registers)
    assert performance.time_us == guessed.time_us
    assert profile.notes == ("no machine code is shown: nothing was assembled",)
    assert all(kernel.sass is None for kernel in profile.kernels)
    assert profile.metric("sass__warp_inst_executed.sum") is None


def test_a_big_grid_is_sampled_in_the_jail(compiler: Compiler, device: EmulatedDevice) -> None:
    n = 1 << 20
    a, b = randoms(n), randoms(n, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        profile, performance = session.profile(request(plan, a, b), facts(plan, [a, b], 12 * n))
    assert profile.kernels[0].sampled < 1
    assert profile.roofline.dram_bytes == pytest.approx(12 * n, rel=0.01)
    assert performance.bound == "dram"


def test_setup_runs_in_the_jail_and_is_no_part_of_the_profile(compiler: Compiler, device: EmulatedDevice) -> None:
    """The kernel of ``setup`` is launched in no other place; a runner that profiled it would be taken for broken."""
    source = ADD + 'extern "C" __global__ void ones(float* out) { out[threadIdx.x] = 1; }\n'
    text = "def setup(w):\n    one = empty(64)\n    ones[1, 64](one)\n    return one\n"
    text += ADD_PLAN.replace("def forward(a, b)", "def forward(a)").replace("(a, b,", "(a, prepared,")
    a = randoms(64)
    plan = resolve(text, [a])
    with device.open(build(compiler, source, plan)) as session:
        for _ in range(2):
            ran = session.run(request(plan, a))
            assert ran.faults == ()
            np.testing.assert_array_equal(np.frombuffer(ran.outputs[0], np.float32), a + 1)
        profile, performance = session.profile(request(plan, a), facts(plan, [a], 512))
    assert [kernel.kernel for kernel in profile.kernels] == ["add"]
    assert performance.origin is Origin.MODELLED


def test_a_rating_spends_a_share_and_the_full_one_is_the_profiles_time(
    compiler: Compiler, device: EmulatedDevice
) -> None:
    n = 1 << 17
    a, b = randoms(n), randoms(n, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        full = session.rate(request(plan, a, b), 1.0)
        _, performance = session.profile(request(plan, a, b), facts(plan, [a, b], 12 * n))
        assert full.time_us == performance.time_us
        assert full.settled
        assert session.rate(request(plan, a, b), 0.75) == full
        cheap = session.rate(request(plan, a, b), 0.125)
        assert not cheap.settled
        assert cheap.time_us == pytest.approx(full.time_us, rel=0.2)


def test_a_rating_of_a_kernel_that_faults_has_no_time(compiler: Compiler, device: EmulatedDevice) -> None:
    a = randoms(100)
    plan = resolve(ADD_PLAN, [a, a[:50]])
    with (
        device.open(build(compiler, ADD, plan)) as session,
        pytest.raises(RunFailed, match="out-of-bounds"),
    ):
        session.rate(request(plan, a, a[:50]), 0.5)


def test_a_templated_kernel_is_launched_by_its_expression(compiler: Compiler, device: EmulatedDevice) -> None:
    source = """
template <typename T, int F> __global__ void scale(const T* x, T* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * T(F);
}
"""
    text = """
def forward(x):
    out = empty_like(x)
    kernel("scale<float, 3>")[1, 128](x, out, i32(x.numel()))
    return out
"""
    x = randoms(100)
    plan = resolve(text, [x])
    with device.open(build(compiler, source, plan)) as session:
        ran = session.run(request(plan, x))
    np.testing.assert_array_equal(np.frombuffer(ran.outputs[0], np.float32), 3 * x)


@pytest.mark.usefixtures("warm_zygotes")
def test_an_a100_runs_code_for_its_architecture(compiler: Compiler) -> None:
    a, b = randoms(64), randoms(64)
    plan = resolve(ADD_PLAN, [a, b])
    with make_device("emulated:a100") as device:
        with device.open(build(compiler, ADD, plan, device.arch)) as session:
            assert session.run(request(plan, a, b)).faults == ()


def test_faults_cross_the_channel_and_the_session_goes_on(compiler: Compiler, device: EmulatedDevice) -> None:
    a, b = randoms(100), randoms(100)
    bad = resolve(ADD_PLAN.replace("i32(n)", "i32(n + 9)"), [a, b])
    good = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, good)) as session:
        ran = session.run(request(bad, a, b))
        assert ran.outputs == ()
        assert ran.faults[0].kind == "sanitizer"
        assert "(400 bytes) at candidate.cu:4 (block" in ran.faults[0].message
        with pytest.raises(RunFailed, match="out-of-bounds"):
            session.profile(request(bad, a, b), facts(bad, [a, b], 1200))
        assert session.run(request(good, a, b)).faults == ()


SPIN = """
extern "C" __global__ void spin(const volatile float* x, float* out) { while (x[0] == x[0]) {} out[0] = 1; }
"""
SPIN_PLAN = "def forward(x):\n    out = empty_like(x)\n    spin[1, 32](x, out)\n    return out\n"


@pytest.mark.slow
def test_an_endless_kernel_is_a_timeout(compiler: Compiler, device: EmulatedDevice) -> None:
    x = randoms(4)
    plan = resolve(SPIN_PLAN, [x])
    with device.open(build(compiler, SPIN, plan)) as session:
        assert session.run(request(plan, x, deadline_s=0.5)).faults[0].kind == "timeout"
        with pytest.raises(RunFailed) as caught:
            session.profile(request(plan, x, deadline_s=0.5), facts(plan, [x], 1))
        assert caught.value.fault.kind == "timeout"


@pytest.mark.parametrize("kills", [1, 2])
def test_a_child_that_was_killed_is_replaced_once(
    compiler: Compiler, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """The machine may have killed the first child; the candidate is what ends two of them."""
    a, b = randoms(100), randoms(100)
    plan = resolve(ADD_PLAN, [a, b])
    loaded = EmulatedSession._loaded
    remaining = [kills]

    def loaded_and_killed(session: EmulatedSession) -> Child:
        child = loaded(session)
        if remaining[0]:
            remaining[0] -= 1
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)  # its monitor: the child itself may live a moment longer
            child._await_exit()
        return child

    with device.open(build(compiler, ADD, plan)) as session:
        monkeypatch.setattr(EmulatedSession, "_loaded", loaded_and_killed)
        faults = session.run(request(plan, a, b)).faults
        assert [fault.kind for fault in faults] == (["crash"] if kills == 2 else [])
        assert session.run(request(plan, a, b)).faults == ()


@pytest.mark.slow
def test_a_machine_that_is_too_slow_is_tried_again_and_no_timeout(
    compiler: Compiler, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = randoms(4)
    plan = resolve(SPIN_PLAN, [x])
    children = []
    loaded = EmulatedSession._loaded

    def counted(session: EmulatedSession) -> Child:
        children.append(loaded(session))
        return children[-1]

    monkeypatch.setattr(EmulatedSession, "_loaded", counted)
    with device.open(build(compiler, SPIN, plan)) as session:
        late = session.run(request(plan, x, deadline_s=0.5, deadline_binds=False))
        assert [fault.kind for fault in late.faults] == ["late"]
    assert len({id(child) for child in children}) == 2


@pytest.mark.parametrize("binds", [True, False])
def test_a_child_that_does_not_answer_once_is_replaced_unless_its_deadline_binds(
    compiler: Compiler, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, binds: bool
) -> None:
    a, b = randoms(100), randoms(100)
    plan = resolve(ADD_PLAN, [a, b])
    call, silent = Child.call, [True]

    def once(child: Child, data: dict[str, Any], *arguments: Any, **options: Any) -> Frame:
        frame = call(child, data, *arguments, **options)
        if data.get("op") == "run" and silent:
            silent.clear()
            raise ChildTimeout("no answer")
        return frame

    monkeypatch.setattr(Child, "call", once)
    with device.open(build(compiler, ADD, plan)) as session:
        faults = session.run(request(plan, a, b, deadline_binds=binds)).faults
        assert [fault.kind for fault in faults] == (["timeout"] if binds else [])
        assert session.run(request(plan, a, b)).faults == ()


@pytest.mark.slow
def test_a_child_that_used_up_its_processor_time_is_replaced(
    compiler: Compiler, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of many sizes may take long on a slow machine: no kernel is at fault."""
    x = randoms(4)
    plan = resolve(SPIN_PLAN, [x])
    monkeypatch.setattr("kernelforge.devices.emulated.device.SESSION_CPU_S", 2.0)
    with device.open(build(compiler, SPIN, plan)) as session:
        faults = session.run(request(plan, x, deadline_s=60.0)).faults
    assert [(fault.kind, "2 s of CPU time" in fault.message) for fault in faults] == [("late", True)]


def test_more_memory_than_the_request_allows_is_a_fault(compiler: Compiler, device: EmulatedDevice) -> None:
    a, b = randoms(100), randoms(100)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        ran = session.run(request(plan, a, b, memory_bytes=1000))
        assert ran.faults[0].kind == "memory"
        assert "1200 bytes of device memory, 1000 are allowed" in ran.faults[0].message


def test_a_candidate_that_the_emulator_fails_on_twice_has_crashed(compiler: Compiler, device: EmulatedDevice) -> None:
    a, b = randoms(10), randoms(10)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        # No byte is 4096: our own code raises.
        (fault,) = session.run(request(plan, a, b, poison=4096)).faults
        assert fault.kind == "crash"
        assert "failed twice on this candidate" in fault.message
        assert "report it" in fault.message
        assert "\n" not in fault.message
        assert session.run(request(plan, a, b)).faults == ()


def test_a_mishap_of_the_emulator_is_tried_again(
    compiler: Compiler, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = randoms(10), randoms(10)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        assert session.run(request(plan, a, b)).faults == ()
        monkeypatch.setattr("kernelforge.devices.emulated.device._fault_of", lambda death: None)
        assert session._child is not None
        session._child.kill()
        assert session.run(request(plan, a, b)).faults == ()
        session._child.kill()
        session.profile(request(plan, a, b), facts(plan, [a, b], 120))


def test_a_child_that_cannot_be_started_says_nothing_of_the_candidate(
    compiler: Compiler, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = randoms(10), randoms(10)
    plan = resolve(ADD_PLAN, [a, b])

    def spawn(limits: object) -> None:
        raise ChildDied("the zygote is gone")

    with device.open(build(compiler, ADD, plan)) as session:
        monkeypatch.setattr(device._zygote, "spawn", spawn)
        with pytest.raises(SandboxError, match="the zygote is gone"):
            session.run(request(plan, a, b))


def test_a_child_that_loads_slowly_says_nothing_of_the_candidate(
    compiler: Compiler, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = randoms(100), randoms(100, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    spawn = device._zygote.spawn

    def spawn_stopped(limits: Limits) -> Child:
        child = spawn(limits)
        for pid in family_of(child.pid):  # the child and its monitor, else it may have loaded before the parent waits
            os.kill(pid, signal.SIGSTOP)
        return child

    with device.open(build(compiler, ADD, plan)) as session:
        monkeypatch.setattr(device._zygote, "spawn", spawn_stopped)
        monkeypatch.setattr("kernelforge.devices.emulated.device.LOAD_S", 0.0)
        with pytest.raises(SandboxError, match="had not loaded the build"):
            session.run(request(plan, a, b))
        monkeypatch.undo()
        assert session.run(request(plan, a, b)).faults == ()


def test_a_request_without_its_tensors_is_an_error_of_the_caller(compiler: Compiler, device: EmulatedDevice) -> None:
    a, b = randoms(10), randoms(10)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        with pytest.raises(ValueError, match="'a' takes 40 bytes"):
            session.run(RunRequest(plan, {}))


UNSUPPORTED = """
extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {
  unsigned r;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(r));
  asm volatile("{ .reg .pred p; .reg .u64 v; mov.u64 v, 0; isspacep.const p, v; }");
  out[0] = r;
}
"""


def test_an_unsupported_instruction_is_named(compiler: Compiler, device: EmulatedDevice) -> None:
    a, b = randoms(10), randoms(10)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, UNSUPPORTED, plan)) as session:
        ran = session.run(request(plan, a, b))
    assert ran.faults[0].kind == "unsupported"
    assert "isspacep" in ran.faults[0].message


class LyingChild:
    """Answers every call with a frame of its own."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def call(self, *_: object, **__: object) -> Frame:
        return self.frame

    def close(self) -> None: ...


@pytest.mark.parametrize(
    "frame",
    [
        Frame({"faults": []}, (b"123",)),
        Frame({"faults": []}, ()),
        Frame({"faults": [["kind", "text"]]}, ()),
        Frame({"faults": [["crash", 1]]}, ()),
        Frame({"faults": 3}, ()),
        Frame({"faults": [["crash"]]}, ()),
    ],
)
def test_a_reply_that_does_not_fit_the_plan_is_refused(
    compiler: Compiler, device: EmulatedDevice, frame: Frame
) -> None:
    a, b = randoms(10), randoms(10)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        session._child = LyingChild(frame)  # type: ignore[assignment]
        with pytest.raises(SandboxError):
            session.run(request(plan, a, b))


def test_counters_of_other_kernels_are_refused(compiler: Compiler, device: EmulatedDevice) -> None:
    a, b = randoms(10), randoms(10)
    plan = resolve(ADD_PLAN, [a, b])
    counts = {"kernels": [], "memsets": 0, "memset_bytes": 0}
    with device.open(build(compiler, ADD, plan)) as session:
        session._child = LyingChild(Frame({"faults": [], "counts": counts}))  # type: ignore[assignment]
        with pytest.raises(SandboxError, match="other kernels"):
            session.profile(request(plan, a, b), facts(plan, [a, b], 120))
