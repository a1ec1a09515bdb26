"""Small, valid records for tests that need some; every keyword overrides a field of the record it makes."""

from __future__ import annotations

from typing import Any

from kernelforge.records import (
    Attempt,
    Build,
    Candidate,
    Correctness,
    Diagnostic,
    DType,
    Evaluation,
    Fingerprint,
    Forecast,
    KernelFacts,
    KernelProfile,
    Metric,
    Operator,
    Origin,
    Performance,
    Profile,
    Rank,
    Ratio,
    Reward,
    Roofline,
    Screening,
    SideTimes,
    Size,
    SizeCheck,
    SizeFacts,
    Task,
    TensorSpec,
    Timing,
    Verdict,
)

RUN = "20260101-000000-abcd"
TASK = "softmax"


def make_task(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "name": TASK,
        "suite": "core",
        "title": "Softmax over rows",
        "level": 1,
        "source": "ROWS = 64\n",
        "sizes": (Size(name="full"), Size(name="small", constants={"ROWS": 4})),
    }
    return Task(**(fields | changes))


def make_candidate(text: str = "v0", **changes: Any) -> Candidate:
    fields: dict[str, Any] = {
        "source": f"// {text}\n__global__ void k(float* out) {{}}\n",
        "plan": "def forward(x):\n    out = empty_like(x)\n    k[1, 32](out)\n    return out\n",
    }
    return Candidate(**(fields | changes))


def make_fingerprint(**changes: Any) -> Fingerprint:
    fields: dict[str, Any] = {
        "device": "emulated:h100",
        "device_kind": "emulated",
        "arch": "sm_90a",
        "toolchain": "nvrtc 13.0.88",
        "kernelforge": "0.1.0",
        "evaluator": "1",
        "torch": "2.13.0",
        "python": "3.11.7",
        "host": "linux-x86_64",
        "jail": "namespaces",
    }
    if changes.get("device_kind") == "cuda":
        gpu = "NVIDIA H200"
        fields |= {"gpu": gpu, "gpu_uuid": "GPU-0", "driver": "580.159.04", "runtime": "cupy 14.2.0"}
    return Fingerprint(**(fields | changes))


def sum_facts(elements: int) -> SizeFacts:
    """Facts of the sum of two vectors."""
    spec = TensorSpec.contiguous((elements,), DType.FLOAT32)
    return SizeFacts(
        size="full", inputs=(spec, spec), outputs=(spec,), weights=(), attrs={}, compulsory_bytes=12 * elements,
        flops=elements, eager_launches=1,
    )  # fmt: skip


def make_kernel(**changes: Any) -> KernelFacts:
    fields: dict[str, Any] = {
        "expression": "k",
        "symbol": "_Z1kPf",
        "registers_per_thread": 16,
        "static_shared_bytes": 0,
        "spill_store_bytes": 0,
        "spill_load_bytes": 0,
        "stack_frame_bytes": 0,
    }
    return KernelFacts(**(fields | changes))


def make_build(*, ok: bool = True, **changes: Any) -> Build:
    """A good build, or one that failed with a compiler error."""
    error = Diagnostic(file="candidate.cu", line=2, severity="error", message="expected a ';'")
    fields: dict[str, Any] = {
        "key": "0123456789abcdef",
        "ok": ok,
        "arch": "sm_90a",
        "toolchain": "nvrtc 13.0.88",
        "kernels": (make_kernel(),) if ok else (),
        "diagnostics": () if ok else (error,),
        "seconds": 0.04,
    }
    return Build(**(fields | changes))


def make_forecast(time_us: float = 10.0, **changes: Any) -> Forecast:
    """A forecast of the emulated H100, with an interval from 1/1.6 to 1.6 times what is expected."""
    factor = changes.pop("factor", 1.0)
    expected_us = time_us * factor
    fields: dict[str, Any] = {
        "expected_us": expected_us, "low_us": expected_us / 1.6, "high_us": expected_us * 1.6, "modelled_us": time_us,
        "protocol": "emulated/7", "gpu": "NVIDIA H100 SXM5 80 GB", "exact": True, "figures": "0123456789abcdef",
        "median": factor if changes.get("measured") else None,
    }  # fmt: skip
    return Forecast(**(fields | changes))


def modelled(time_us: float = 10.0, **changes: Any) -> Performance:
    fields: dict[str, Any] = {
        "time_us": time_us,
        "origin": Origin.MODELLED,
        "protocol": "emulated/7",
        "bound": "dram",
    }
    return Performance(**(fields | changes))


def make_profile(
    *,
    dram: float = 1200.0,
    loads: float = 30.0,
    stores: float = 7.5,
    requests: float = 10.0,
    floor_us: float | None = 5.0,
    least: float = 1200.0,
) -> Profile:
    """A profile of one kernel: DRAM bytes, sectors of loads and of stores, their requests, against the least bytes."""

    def metric(name: str, value: float, origin: Origin = Origin.COUNTED) -> Metric:
        return Metric(name=name, value=value, unit="1", origin=origin)

    accesses = "pipe_lsu_mem_global_op"
    metrics = (
        metric("dram__bytes.sum", dram, Origin.MODELLED),
        metric(f"l1tex__t_sectors_{accesses}_ld.sum", loads),
        metric(f"l1tex__t_sectors_{accesses}_st.sum", stores),
        metric(f"l1tex__t_requests_{accesses}_ld.sum", requests),
    )
    roofline = Roofline(
        flops=100.0, dram_bytes=dram, compulsory_bytes=least, arithmetic_intensity=0.1, ridge=20.0, bound="dram",
        time_us=10.0, time_origin=Origin.MODELLED, floor_us=floor_us,
    )  # fmt: skip
    kernel = KernelProfile(kernel="k", launches=1, grid=(1, 1, 1), block=(32, 1, 1), sampled=1.0, metrics=metrics)
    return Profile(size="full", device="emulated:h100", kernels=(kernel,), metrics=metrics, roofline=roofline)


def make_timing(time_us: float = 10.0, speedup: float = 2.0, **changes: Any) -> Timing:
    """A candidate timed against eager alone; three samples each."""

    def side(name: str, median: float) -> SideTimes:
        samples = (0.99 * median, median, 1.01 * median)
        interval = (0.99 * median, 1.01 * median)
        return SideTimes(name=name, samples_us=samples, median_us=median, interval_us=interval, captured=True)

    fields: dict[str, Any] = {
        "protocol": "graph/1",
        "sets": 2,
        "set_bytes": 1 << 27,
        "flush_bytes": 0,
        "candidate": side("candidate", time_us),
        "baselines": (side("eager", speedup * time_us),),
        "ratios": (Ratio(baseline="eager", speedup=speedup, interval=(0.99 * speedup, 1.01 * speedup), blocks=4),),
        "fastest": "eager",
        "settled": True,
        "budget_s": 10.0,
    }
    return Timing(**(fields | changes))


def measured(time_us: float = 10.0, **changes: Any) -> Performance:
    fields: dict[str, Any] = {
        "time_us": time_us,
        "origin": Origin.MEASURED,
        "interval_us": (0.9 * time_us, 1.1 * time_us),
        "samples": 100,
        "protocol": "graph/1",
        "bound": "dram",
    }
    return Performance(**(fields | changes))


def make_evaluation(verdict: Verdict = Verdict.OK, **changes: Any) -> Evaluation:
    """An evaluation on the emulated device: OK with a modelled time, anything else with a reason."""
    ok = verdict is Verdict.OK
    checks = (SizeCheck(size="small", status="passed"), SizeCheck(size="full", status="passed"))
    fields: dict[str, Any] = {
        "candidate": make_candidate().hash,
        "task": make_task().digest,
        "fingerprint": make_fingerprint(),
        "verdict": verdict,
        "stage": "done" if ok else "small",
        "reason": "" if ok else f"it was {verdict}",
        "build": make_build(ok=verdict is not Verdict.BUILD),
        "correctness": Correctness(sizes=checks) if ok else None,
        "performance": modelled() if ok else None,
    }
    return Evaluation(**(fields | changes))


def uncompared_evaluation(**changes: Any) -> Evaluation:
    """An OK evaluation of which no value was compared at the full size."""
    skipped = SizeCheck(size="full", status="skipped", message="values not compared: too large")
    checks = (SizeCheck(size="small", status="passed"), skipped)
    return make_evaluation(**({"correctness": Correctness(sizes=checks)} | changes))


def not_compared(attempt: Attempt, why: str = "too large") -> Attempt:
    """An OK attempt, had no value been compared at its full size."""
    correctness = attempt.evaluation.correctness
    assert correctness is not None
    skipped = SizeCheck(size="full", status="skipped", message=f"values not compared: {why}")
    others = [check for check in correctness.sizes if check.size != "full"]
    sizes = (skipped, *(others or [SizeCheck(size="small", status="passed")]))
    evaluation = attempt.evaluation.model_copy(update={"correctness": Correctness(sizes=sizes)})
    return attempt.model_copy(update={"evaluation": evaluation})


def measured_evaluation(speedup: float | None = None, **changes: Any) -> Evaluation:
    """An OK evaluation on a GPU; ``speedup`` is also its lower bound."""
    fingerprint = make_fingerprint(device="cuda:0", device_kind="cuda")
    performance = measured(speedup=speedup, speedup_lower=speedup)
    return make_evaluation(**({"fingerprint": fingerprint, "performance": performance} | changes))


def make_passed_over(**changes: Any) -> Evaluation:
    """A candidate that the emulated device ran and no GPU measured."""
    skipped = SizeCheck(size="full", status="skipped", message="values not compared: not measured")
    rank = Rank(position=3, of=4, measured=2)
    fields: dict[str, Any] = {
        "correctness": Correctness(sizes=(SizeCheck(size="small", status="passed"), skipped)),
        "screening": Screening(device="emulated:h100", outcome="passed", forecast=make_forecast(), rank=rank),
    }
    return make_evaluation(**(fields | changes))


def make_attempt(
    number: int,
    verdict: Verdict = Verdict.OK,
    *,
    operator: Operator = Operator.SEED,
    parent: int | None = None,
    accepted: bool = False,
    **changes: Any,
) -> Attempt:
    """An attempt at the one task of the one run here; ``parent`` is an attempt number."""
    candidate = make_candidate(f"v{number}")
    fields: dict[str, Any] = {
        "id": f"{RUN}/{TASK}/{number:02d}",
        "run": RUN,
        "task": TASK,
        "number": number,
        "operator": operator,
        "parent": None if parent is None else f"{RUN}/{TASK}/{parent:02d}",
        "candidate": candidate,
        "evaluation": make_evaluation(verdict, candidate=candidate.hash),
        "reward": Reward(policy="test/1", value=None if verdict is Verdict.INFRA else 0.0, components={}),
        "accepted": accepted,
        "started": "2026-01-01T00:00:00.000+00:00",
        "seconds": 1.0,
    }
    return Attempt(**(fields | changes))
