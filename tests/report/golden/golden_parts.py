"""What the golden runs are made of. Every number here is constructed: no GPU has run any of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kernelforge.evaluation.timing.candidate_timer import performance
from kernelforge.records import (
    Attempt,
    Build,
    Candidate,
    Clocks,
    Correctness,
    Diagnostic,
    EnergyEstimate,
    EnergyPart,
    Evaluation,
    Finding,
    HostClock,
    InputGenerator,
    KernelProfile,
    Lesson,
    MemoryHotSpot,
    Message,
    Metric,
    Operator,
    Origin,
    Performance,
    PredictedSpeedup,
    Profile,
    Ratio,
    Reward,
    Roofline,
    Run,
    Screening,
    SideTimes,
    Size,
    SizeCheck,
    Stage,
    Task,
    Timing,
    TuneTrial,
    Usage,
    Verdict,
)
from kernelforge.report import RunRecords
from kernelforge.store import Store
from tests.support import factories as builders
from tests.support.recorded_run import make_facts, make_fingerprint, make_graph

START = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
BASELINES = ("eager", "eager-graph", "compile", "compile-max-autotune")


@dataclass
class Golden:
    """One run with all that a journal keeps of it, in the order in which it came about."""

    run: Run
    tasks: list[Task] = field(default_factory=list)
    """Tasks that the run has come to."""
    attempts: list[Attempt] = field(default_factory=list)
    finished: dict[str, str] = field(default_factory=dict)
    last_words: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    """What was said as each task was finished."""
    proposed: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    """What was said of each task's input generators."""
    generators: dict[str, tuple[InputGenerator, ...]] = field(default_factory=dict)
    lessons: dict[str, tuple[Lesson, ...]] = field(default_factory=dict)

    def journal(self, store: Store) -> None:
        """Write everything into a store, as a run would have."""
        store.start_run(self.run)
        for task in self.tasks:
            store.put_task(self.run.id, task, make_facts(task), make_graph())
            if task.name in self.generators:
                store.put_generators(
                    self.run.id, task.name, self.generators[task.name], self.proposed.get(task.name, ())
                )
        for attempt in self.attempts:
            store.add_attempt(attempt)
        for name, reason in self.finished.items():
            store.finish_task(self.run.id, name, reason, self.last_words.get(name, ()), self.lessons.get(name, ()))

    def records(self) -> RunRecords:
        """The same without a store, as a store gives it."""
        names = self.run.config.tasks
        facts = {task.name: make_facts(task) for task in self.tasks}
        return RunRecords(
            self.run,
            tuple(sorted(self.attempts, key=lambda attempt: (attempt.task, attempt.number))),
            self.finished,
            messages={name: (*self.proposed.get(name, ()), *self.last_words.get(name, ())) for name in names},
            generators={name: self.generators.get(name, ()) for name in names},
            lessons={name: self.lessons.get(name, ()) for name in names},
            tasks={task.name: task for task in self.tasks},
            facts=facts,
            compulsory_bytes={name: result.at("full").compulsory_bytes for name, result in facts.items()},
        )

    def add(self, task: Task, verdict: Verdict, stage: Stage = "done", **how: Any) -> Attempt:
        """Append the task's next attempt; see :func:`make_attempt`."""
        number = sum(attempt.task == task.name for attempt in self.attempts)
        made = make_attempt(self.run, task, number, verdict, stage, at=len(self.attempts), **how)
        self.attempts.append(made)
        return made


def make_task(name: str, *, level: int = 1, tags: tuple[str, ...] = ("reduction",), **changes: Any) -> Task:
    """A task of a page of Python, with four sizes."""
    source = (
        f'"""{name}: a constructed task."""\n\nimport torch\nfrom torch import nn\n\nN = 1024\n\n\n'
        "class Model(nn.Module):\n    def forward(self, x: torch.Tensor) -> torch.Tensor:\n"
        "        return torch.softmax(x, dim=-1)\n\n\ndef get_inputs() -> list[torch.Tensor]:\n"
        "    return [torch.randn(N, N)]\n\n\ndef get_init_inputs() -> list[object]:\n    return []\n"
    )
    fields: dict[str, Any] = {
        "name": name, "suite": "core", "title": f"{name.replace('_', ' ').capitalize()} over rows", "level": level,
        "tags": tags, "source": source,
        "sizes": (
            Size(name="full"), Size(name="small", constants={"N": 64}), Size(name="hidden_odd", constants={"N": 33}),
            Size(name="hidden_wide", constants={"N": 257}),
        ),
    }  # fmt: skip
    return Task(**(fields | changes))


def make_candidate(task: str, version: int, **changes: Any) -> Candidate:
    """A kernel that differs from its neighbours in a few lines, and a plan with a value to choose."""
    width = (1, 2, 4)[version % 3]
    source = (
        f"// {task}, version {version}\n#include <cuda_bf16.h>\n\n"
        'extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {\n'
        f"  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * {width};\n"
        f"#pragma unroll\n  for (int i = 0; i < {width}; ++i) {{\n"
        f"    if (first + i < n) out[first + i] = x[first + i] * {version + 1}.0f;\n  }}\n}}\n"
    )
    plan = (
        "# tune: BLOCK = 128 | 256 | 512\ndef forward(x):\n    out = empty_like(x)\n    n = numel(x)\n"
        f"    k[cdiv(n, BLOCK * {width}), BLOCK](x, out, i32(n))\n    return out\n"
    )
    fields: dict[str, Any] = {"source": source, "plan": plan, "choices": {"BLOCK": 256}}
    return Candidate(**(fields | changes))


_METRICS = (
    ("dram__bytes.sum", "byte", 1.0),
    ("dram__bytes_read.sum", "byte", 0.5),
    ("dram__bytes_write.sum", "byte", 0.5),
    ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", 5e-6),
    ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", "sector/request", 5e-7),
    ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio", "sector/request", 5e-7),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "1", 1e-3),
    ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "request", 1 / 256),
    ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "request", 1 / 256),
    ("l1tex__t_sector_hit_rate.pct", "%", 3e-6),
    ("l1tex__t_sectors.sum", "sector", 1 / 32),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", 1 / 64),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "sector", 1 / 64),
    ("launch__block_size", "thread", 3e-5),
    ("launch__grid_size", "block", 1e-4),
    ("launch__occupancy_limit_blocks", "block", 4e-6),
    ("launch__occupancy_limit_registers", "block", 1e-6),
    ("launch__occupancy_limit_shared_mem", "block", 2e-6),
    ("launch__occupancy_limit_warps", "block", 1e-6),
    ("launch__registers_per_thread", "register/thread", 4e-6),
    ("launch__waves_per_multiprocessor", "1", 1e-7),
    ("lts__t_sector_hit_rate.pct", "%", 6e-6),
    ("lts__t_sectors.sum", "sector", 1 / 30),
    ("ptx__block_barriers.sum", "inst", 0.0),
    ("ptx__branch_uniform.pct", "%", 1.1e-5),
    ("ptx__inst_fp32.sum", "inst", 1e-2),
    ("ptx__inst_int.sum", "inst", 2e-2),
    ("ptx__thread_inst_executed.sum", "inst", 1.5),
    ("ptx__warp_inst_executed.sum", "inst", 1.5 / 32),
)
"""Name, unit, and value per byte of DRAM traffic: constructed, so that all of them move with the traffic."""


def make_profile(device: str, dram_bytes: float, time_us: float, *, compulsory: float = 8_388_608.0) -> Profile:
    """Thirty metrics and two hot spots."""
    gpu = not device.startswith("emulated")
    counted = Origin.MEASURED if gpu else Origin.COUNTED
    metrics = tuple(
        Metric(
            name=name, value=factor * dram_bytes, unit=unit,
            origin=Origin.COMPILER if "registers_per" in name
            else Origin.MODELLED if name.startswith("dram") and not gpu else counted,
        )
        for name, unit, factor in _METRICS
    )  # fmt: skip
    spots = tuple(
        MemoryHotSpot(
            source_line=line, opcode=opcode, space="global", access=access, requests=65_536,
            transactions=int(dram_bytes / 64), ideal_transactions=131_072,
        )
        for line, opcode, access in ((8, "ld.global.f32", "load"), (8, "st.global.f32", "store"))
    )  # fmt: skip
    limits = () if gpu else make_limits(time_us)
    kernel = KernelProfile(
        kernel="k", launches=1, grid=(1024, 1, 1), block=(256, 1, 1), sampled=1.0 if gpu else 0.25,
        metrics=(*metrics[:12], *limits), hot_spots=spots,
    )  # fmt: skip
    flops = 5.0 * 1024 * 1024
    return Profile(
        size="full", device=device, kernels=(kernel,), metrics=metrics,
        roofline=Roofline(
            flops=flops, dram_bytes=dram_bytes, compulsory_bytes=compulsory, arithmetic_intensity=flops / dram_bytes,
            ridge=20.0, bound="dram" if dram_bytes > compulsory else "latency", time_us=time_us,
            time_origin=Origin.MEASURED if gpu else Origin.MODELLED,
        ),
        notes=("lts__t_sector_hit_rate.pct covers one pass of four",) if gpu else (),
        energy=None if gpu else make_energy(dram_bytes),
    )  # fmt: skip


def make_energy(dram_bytes: float) -> EnergyEstimate:
    """The estimate of an emulated device, in two parts, with arithmetic that it leaves out."""
    parts = tuple(
        EnergyPart(
            name=name, millijoules=millijoules, low_mj=millijoules / 2, high_mj=3 * millijoules, source="a paper"
        )
        for name, millijoules in (("fp32", 1e-9 * dram_bytes), ("dram", 4e-9 * dram_bytes))
    )
    return EnergyEstimate(parts=parts, omitted=("special",))


def make_limits(time_us: float) -> tuple[Metric, ...]:
    """A kernel's modelled time, in all and under each limit alone."""
    parts = {"limit_dram": 0.8, "limit_l2": 0.3, "limit_l1": 0.2, "limit_fp32": 0.05, "limit_issue": 0.1,
             "limit_latency": 0.4, "limit_blocks": 0.15, "limit_launch": 0.1, "time": 1.0}  # fmt: skip
    return tuple(
        Metric(name=f"kernelforge__{name}_us", value=share * time_us, unit="us", origin=Origin.MODELLED)
        for name, share in parts.items()
    )


def make_prediction(time_us: float, eager_us: float = 24.0) -> PredictedSpeedup:
    """Of a kernel with that modelled time, over a published time of PyTorch."""
    speedup = eager_us / time_us
    return PredictedSpeedup(
        gpu="NVIDIA H100 SXM5 80 GB", speedup=speedup, low=speedup / 1.6, high=speedup * 1.6, eager_us=eager_us,
        eager_origin="published", eager_source="someone, on an H100",
    )  # fmt: skip


def make_timing(
    time_us: float,
    speedups: Mapping[str, float],
    *,
    spread: float = 0.004,
    seed: int = 0,
    settled: bool = True,
    coverage: float = 1.0,
    agrees: bool = True,
    throttled: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Timing:
    """A candidate timed against each baseline of ``speedups``; ``spread`` is the relative half-width of intervals."""
    rng = random.Random(seed)

    def side(name: str, median: float) -> SideTimes:
        samples = tuple(median * (1 + rng.uniform(-3, 3) * spread) for _ in range(40))
        interval = (median * (1 - spread), median * (1 + spread))
        return SideTimes(
            name=name, samples_us=samples, median_us=median, interval_us=interval, captured=name != "eager"
        )

    slowest_first = sorted(speedups, key=lambda name: -speedups[name])
    return Timing(
        protocol="graph/1", sets=4, set_bytes=1 << 26, flush_bytes=0, candidate=side("candidate", time_us),
        baselines=tuple(side(name, time_us * speedups[name]) for name in speedups),
        ratios=tuple(
            Ratio(baseline=name, speedup=value, interval=(value * (1 - spread), value * (1 + spread)), blocks=12)
            for name, value in speedups.items()
        ),
        fastest=slowest_first[-1] if speedups else None, settled=settled, budget_s=10.0,
        host=HostClock(events_us=time_us, slope_us=time_us * (1.002 if agrees else 1.6), agrees=agrees),
        clocks=Clocks(
            sm_mhz=(1200, 1980) if throttled else (1965, 1980), memory_mhz=(3201, 3201), temperature_c=(41, 63),
            power_w=(180.0, 690.0), throttled=throttled,
        ),
        setup_us=12.5, coverage=coverage, notes=notes,
    )  # fmt: skip


def make_usage(*, dollars: float | None, tokens: int = 6_000, seconds: float = 12.0, model: str = "model-x") -> Usage:
    return Usage(
        model=model, input_tokens=tokens, cached_tokens=tokens // 2, output_tokens=tokens // 4,
        reasoning_tokens=tokens // 8, dollars=dollars, seconds=seconds,
    )  # fmt: skip


def conversation(
    task: str, number: int, candidate: Candidate | None, *, finding: Finding | None, dollars: float | None
) -> tuple[Message, ...]:
    """What Judge and Coder were asked and said; the Judge is built in and costs nothing."""
    coder = "openai:model-x"
    reply = "I cannot help with that." if candidate is None else (
        f"One element per thread wastes requests.\n\n```cuda\n{candidate.source}```\n\n```python\n{candidate.plan}```\n"
    )  # fmt: skip
    messages = [
        Message(agent="coder", role="prompt", provider=coder, content=f"Write a kernel for {task}.\nAttempt {number}."),
        Message(agent="coder", role="reply", provider=coder, content=reply, usage=make_usage(dollars=dollars)),
    ]
    if finding is not None:
        messages.insert(0, Message(agent="judge", role="reply", provider="builtin", content=finding.headline))
    return tuple(messages)


_REASONS = {
    "parse": "the reply holds no block of CUDA", "plan": "line 3: 'import' is not part of the plan language",
    "compile": 'candidate.cu:8: error: identifier "blockSize" is undefined', "policy": "the kernel reads %clock64",
    "small": "output 0 differs at (0, 3): expected 0.25, got 0.5 (128 of 4,096 elements)",
    "hidden": "size hidden_odd: output 0 differs at (32, 32): expected 1.0, got nan",
    "full": "an access at 8 bytes past the end of 'out' (block 1023, thread 255)",
    "sanitizer": "memcheck: invalid __global__ write of size 4", "timing": "the values changed while it was timed",
}  # fmt: skip


def make_evaluation(
    run: Run, task: Task, candidate: Candidate | None, verdict: Verdict, stage: Stage, speed: Performance | None,
    *, reason: str | None = None,
) -> Evaluation:  # fmt: skip
    """An evaluation that ended where it is said, with the parts that a cascade has by then."""
    past = ("parse", "plan", "compile", "policy", "small", "hidden", "full", "sanitizer", "timing", "done").index(stage)
    ok = verdict is Verdict.OK
    build: Build | None = None
    if past >= 2 and candidate is not None:
        error = Diagnostic(file="candidate.cu", line=8, severity="error", message='identifier "blockSize" is undefined')
        warning = Diagnostic(file="candidate.cu", line=5, severity="warning", message='variable "n" was declared')
        build = builders.make_build(
            ok=past > 3, key=candidate.hash, refused=_REASONS["policy"] if stage == "policy" else None,
            diagnostics=(error,) if stage == "compile" else (warning,), limit=None,
        )  # fmt: skip
    return Evaluation(
        candidate="none" if candidate is None else candidate.hash, task=task.digest,
        fingerprint=make_fingerprint(run.config.device), verdict=verdict, stage=stage,
        reason="" if ok else reason or _REASONS[stage], build=build,
        correctness=_correctness(stage, past, failed=verdict is Verdict.WRONG), performance=speed,
        screening=_screening(stage, speed) if run.config.device.startswith("cuda") and past >= 4 else None,
        seconds={"build": 0.31, "oracle": 0.12, "emulation": 0.9, "harness": 0.02} if past >= 2 else {"harness": 0.01},
    )  # fmt: skip


def _screening(stage: Stage, speed: Performance | None) -> Screening:
    """Outcome on the emulated device in front of the GPU, which predicts four fifths of the measured time."""
    if stage in ("small", "hidden"):
        return Screening(device="emulated:h200", outcome="failed")
    forecast = None if speed is None else builders.make_forecast(0.8 * speed.time_us, exact=False)
    message = "" if forecast else "no time is modelled of torch operators"
    return Screening(device="emulated:h200", outcome="passed", message=message, forecast=forecast)


def _correctness(stage: Stage, past: int, *, failed: bool) -> Correctness | None:
    if past < 4 or (past == 4 and not failed):
        return None
    message = _REASONS[stage] if failed else ""

    def check(size: str, at: str, error: float, **how: Any) -> SizeCheck:
        bad = failed and at == stage
        return SizeCheck(
            size=size, status="failed" if bad else "passed", error=float("inf") if bad else error,
            message=message if bad else "", families=("own", "normal", "large"), launches=1, **how,
        )  # fmt: skip

    sizes = [check("small", "small", 0.031)]
    if past >= 5:
        sizes += [
            check("hidden_odd", "hidden", 0.42),
            SizeCheck(size="hidden_wide", status="guarded", message="assert n % 4 == 0"),
        ]
    if past >= 6:
        sizes.append(check("full", "full", 0.875))
    return Correctness(sizes=tuple(sizes))


def make_attempt(
    run: Run,
    task: Task,
    number: int,
    verdict: Verdict,
    stage: Stage = "done",
    *,
    at: int = 0,
    parent: int | None = None,
    move: str | None = None,
    operator: Operator | None = None,
    accepted: bool = False,
    dram_bytes: float = 8_388_608.0,
    time_us: float = 9.5,
    timing: Timing | None = None,
    untimed: bool = False,
    quarantined: str | None = None,
    candidate: Candidate | None = None,
    dollars: float | None = 0.02,
    trials: Sequence[TuneTrial] = (),
    reason: str | None = None,
    **changes: Any,
) -> Attempt:
    """One attempt, consistent in all its parts.

    Args:
        at: how many attempts the run made before; sets its time.
        parent: number of the attempt that it came from; None for a seed.
        timing: on a GPU, how it was timed; ``untimed`` leaves an attempt that is right without a time.
        changes: fields of the attempt, last of all.
    """
    device, ok = run.config.device, verdict is Verdict.OK
    candidate = None if stage == "parse" else candidate or make_candidate(task.name, number)
    profile = make_profile(device, dram_bytes, time_us) if ok and not untimed else None
    speed = None
    if ok and not untimed:
        speed = (
            Performance(
                time_us=time_us,
                origin=Origin.MODELLED,
                protocol="emulated/7",
                bound=profile.roofline.bound,
                predicted=make_prediction(time_us),
            )
            if timing is None
            else performance(timing, quarantined, profile)
        )
    finding = None
    operator = operator or (Operator.SEED if parent is None else Operator.OPTIMISE if move else Operator.REPAIR)
    if operator in (Operator.OPTIMISE, Operator.REPAIR):
        finding = Finding(
            kind="optimise" if move else "repair", headline="DRAM traffic above the least" if move else "It is wrong",
            why="dram__bytes.sum is twice what must move", action="load four elements at a time", move=move,
            metrics=("dram__bytes.sum", "+l1tex__t_sector_hit_rate.pct"), bottleneck="dram" if move else None,
        )  # fmt: skip
    tuned = operator is Operator.TUNE
    fields: dict[str, Any] = {
        "id": f"{run.id}/{task.name}/{number:02d}", "run": run.id, "task": task.name, "number": number,
        "operator": operator, "parent": None if parent is None else f"{run.id}/{task.name}/{parent:02d}",
        "coder": "" if tuned else run.config.coder, "finding": finding,
        "messages": () if tuned else conversation(task.name, number, candidate, finding=finding, dollars=dollars),
        "candidate": candidate,
        "evaluation": make_evaluation(run, task, candidate, verdict, stage, speed, reason=reason),
        "profile": profile, "trials": tuple(trials),
        "reward": Reward(
            policy="kernelforge/1", value=None if verdict is Verdict.INFRA else 0.3 if ok else 0.0,
            components={"correct": float(ok), "speed": None},
        ),
        "accepted": accepted, "note": "a new best" if accepted else "" if not ok else "not better",
        "started": (START + timedelta(seconds=20 * at)).isoformat(), "seconds": 14.5,
    }  # fmt: skip
    return Attempt(**(fields | changes))
