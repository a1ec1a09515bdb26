"""A small run by hand that covers every verdict, for the tests of the store, the reports and the CLI."""

from __future__ import annotations

from typing import Any

from kernelforge.records import (
    Attempt,
    Budget,
    Build,
    Candidate,
    Correctness,
    Diagnostic,
    DType,
    Evaluation,
    Finding,
    Fingerprint,
    Graph,
    KernelProfile,
    MemoryHotSpot,
    Message,
    Metric,
    Node,
    Operator,
    Origin,
    Performance,
    Profile,
    Reward,
    Roofline,
    Run,
    RunConfig,
    RunState,
    Size,
    SizeCheck,
    SizeFacts,
    Task,
    TaskFacts,
    TensorSpec,
    Verdict,
    WeightSpec,
)
from tests.support import factories
from tests.support.factories import make_timing

TASKS = ("softmax", "matmul", "argmax")
HOSTILE = "\x1b[31mred\x1b[0m </script> | `tick` [link](x) \u202e \x07 =1+1 [bold]x[/bold]\r\nnext"


def make_run(run_id: str = "r1", *, device: str = "emulated:h100", **changes: Any) -> Run:
    config = {
        "suite": "core",
        "suite_digest": "5d1e5d1e5d1e5d1e",
        "tasks": TASKS,
        "device": device,
        "strategy": "refine",
        "coder": "builtin",
        "judge": "builtin",
        "reward": "kernelforge/1",
        "budget": Budget(rounds=6),
        "seed": 7,
        "jobs": 2,
        "stop_after": 3,
    }
    state = changes.pop("state", RunState.RUNNING)
    started = changes.pop("started", "2026-11-21T06:00:00+00:00")
    return Run(id=run_id, config=RunConfig(**(config | changes)), state=state, started=started, kernelforge="0.1.0")


def make_task(name: str = "softmax") -> Task:
    return Task(
        name=name,
        suite="core",
        title=f"{name} over rows",
        level=1,
        tags=("reduction",),
        source=f"# {name}\nN = 1024\nclass Model: ...\n",
        sizes=(
            Size(name="full"),
            Size(name="small", constants={"N": 64}),
            Size(name="hidden_odd", constants={"N": 33, "EPS": 1e-5, "FLAG": True}),
        ),
    )


def make_facts(task: Task) -> TaskFacts:
    spec = TensorSpec.contiguous((1024, 1024), DType.FLOAT32)

    def at(size: str) -> SizeFacts:
        return SizeFacts(
            size=size,
            inputs=(spec, 3, 0.5, True, None),
            outputs=(spec,),
            weights=(WeightSpec(name="fc.weight", spec=spec, kind="parameter", aliases=("tied.weight",)),),
            attrs={"eps": 1e-5, "mode": "mean"},
            compulsory_bytes=2 * spec.nbytes,
            flops=5 * spec.numel,
            eager_launches=1,
        )

    return TaskFacts(task_digest=task.digest, sizes=tuple(at(size.name) for size in task.sizes))


def make_graph() -> Graph:
    return Graph(
        size="full", nodes=(Node(name="x", kind="input", op="0"), Node(name="y", kind="op", op="aten.softmax"))
    )


def make_candidate(number: int) -> Candidate:
    return Candidate(
        source=f'extern "C" __global__ void k(const float* x, float* out, int n) {{\n  // version {number}\n}}\n',
        plan="# tune: BLOCK = 128 | 256\ndef forward(x):\n    out = empty_like(x)\n"
        f"    k[{number + 1}, BLOCK](x, out, i32(1))\n    return out\n",
        choices={"BLOCK": 256},
    )


def make_fingerprint(device: str = "emulated:h100") -> Fingerprint:
    if device.startswith("emulated"):
        return factories.make_fingerprint(device=device, host="x86_64")
    return factories.make_fingerprint(device=device, device_kind="cuda", gpu_uuid="GPU-1", host="x86_64")


def make_build(ok: bool = True, refused: str | None = None) -> Build:
    kernel = factories.make_kernel(symbol="k", registers_per_thread=32)
    error = Diagnostic(file="candidate.cu", line=2, severity="error", message='identifier "nope" is undefined')
    return factories.make_build(
        ok=ok, refused=refused, key="b" * 16, kernels=(kernel,) if ok else (),
        diagnostics=() if ok or refused else (error,),
    )  # fmt: skip


def make_profile(dram_bytes: float, *, time_us: float = 9.5, device: str = "emulated:h100") -> Profile:
    measured = not device.startswith("emulated")
    time_origin = Origin.MEASURED if measured else Origin.MODELLED
    metrics = (
        Metric(name="dram__bytes.sum", value=dram_bytes, unit="byte", origin=Origin.MODELLED),
        Metric(
            name="l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
            value=4.0 * dram_bytes / 8388608,
            unit="sector/request",
            origin=Origin.COUNTED,
        ),
        Metric(
            name="l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
            value=dram_bytes / 32,
            unit="sector",
            origin=Origin.COUNTED,
        ),
        Metric(
            name="l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", value=65536, unit="request", origin=Origin.COUNTED
        ),
        Metric(name="ptx__warp_inst_executed.sum", value=1e6, unit="inst", origin=Origin.COUNTED),
    )
    kernel = KernelProfile(
        kernel="k",
        launches=1,
        grid=(1024, 1, 1),
        block=(256, 1, 1),
        sampled=0.25,
        metrics=metrics[:2],
        hot_spots=(
            MemoryHotSpot(
                source_line=3, opcode="ld.global.f32", space="global", access="load", requests=10, transactions=40,
                ideal_transactions=40,
            ),
        ),
    )  # fmt: skip
    return Profile(
        size="full",
        device=device,
        kernels=(kernel,),
        metrics=metrics,
        roofline=Roofline(
            flops=5e6, dram_bytes=dram_bytes, compulsory_bytes=8388608.0, arithmetic_intensity=0.6, ridge=20.0,
            bound="dram", time_us=time_us, time_origin=time_origin,
        ),
    )  # fmt: skip


_STAGES = {
    Verdict.OK: "done", Verdict.WRONG: "hidden", Verdict.POLICY: "policy", Verdict.BUILD: "compile",
    Verdict.CRASH: "small", Verdict.TIMEOUT: "full", Verdict.LIMIT: "plan", Verdict.INFRA: "full",
}  # fmt: skip


def make_evaluation(
    task: Task, candidate: Candidate | None, verdict: Verdict, *, device: str = "emulated:h100",
    time_us: float = 9.5, speedup: float | None = None,
) -> Evaluation:  # fmt: skip
    ok = verdict is Verdict.OK
    performance = None
    if ok and device.startswith("emulated"):
        performance = Performance(time_us=time_us, origin=Origin.MODELLED, protocol="emulated/7", bound="dram")
    elif ok:
        performance = Performance(
            time_us=time_us, origin=Origin.MEASURED, protocol="graph/1", bound="dram", interval_us=(9.4, 9.6),
            samples=40, timing=make_timing(time_us, speedup or 1.5),
            speedup=speedup, speedup_lower=speedup and speedup * 0.99, speedup_eager=speedup and speedup * 1.5,
        )  # fmt: skip
    build = None
    if verdict not in (Verdict.LIMIT,) and candidate is not None:
        refused = "the kernel reads %clock" if verdict is Verdict.POLICY else None
        build = make_build(ok=verdict not in (Verdict.BUILD, Verdict.POLICY), refused=refused)
    correctness = None
    if verdict in (Verdict.OK, Verdict.WRONG):
        hidden = (
            SizeCheck(size="hidden_odd", status="guarded", message="assert d % 4 == 0")
            if ok
            else SizeCheck(size="hidden_odd", status="failed", message="output 0 differs at (3, 4)", error=float("inf"))
        )
        correctness = Correctness(
            sizes=(
                SizeCheck(size="full", status="passed", families=("own",), error=0.25, launches=1),
                SizeCheck(size="small", status="passed", families=("own", "normal", "large"), error=0.5, launches=1),
                hidden,
            )
        )
    reasons = {Verdict.BUILD: 'candidate.cu:2: error: identifier "nope" is undefined', Verdict.CRASH: HOSTILE}
    return Evaluation(
        candidate="none" if candidate is None else candidate.hash,
        task=task.digest,
        fingerprint=make_fingerprint(device),
        verdict=verdict,
        stage=_STAGES[verdict],
        reason="" if ok else reasons.get(verdict, f"why it is {verdict}"),
        build=build,
        correctness=correctness,
        performance=performance,
        seconds={"build": 0.04, "oracle": 0.1, "emulation": 0.5, "harness": 0.01},
    )


def make_attempt(
    run: Run, task: Task, number: int, verdict: Verdict, *, parent: int | None = None, accepted: bool = False,
    dram_bytes: float = 8388608.0, move: str | None = None, speedup: float | None = None, time_us: float = 9.5,
) -> Attempt:  # fmt: skip
    device = run.config.device
    candidate = None if verdict is Verdict.LIMIT else make_candidate(number)
    finding = None
    if parent is not None:
        finding = Finding(
            kind="optimise" if move else "repair",
            headline="DRAM traffic above compulsory",
            why=f"dram__bytes.sum is twice what must move {HOSTILE}",
            action="load four elements at a time",
            move=move,
            metrics=("dram__bytes.sum",),
        )
    operator = Operator.SEED if parent is None else Operator.OPTIMISE if move else Operator.REPAIR
    ok = verdict is Verdict.OK
    return Attempt(
        id=f"{run.id}/{task.name}/{number:02d}",
        run=run.id,
        task=task.name,
        number=number,
        operator=operator,
        parent=None if parent is None else f"{run.id}/{task.name}/{parent:02d}",
        finding=finding,
        messages=(
            Message(agent="judge", role="reply", provider="builtin", content=f"finding {number} {HOSTILE}"),
            Message(agent="coder", role="prompt", provider="builtin", content="write a kernel"),
            Message(agent="coder", role="reply", provider="builtin", content="```cuda\n...\n```\n" + HOSTILE),
        ),
        candidate=candidate,
        evaluation=make_evaluation(task, candidate, verdict, device=device, time_us=time_us, speedup=speedup),
        profile=make_profile(dram_bytes, time_us=time_us, device=device) if ok else None,
        reward=Reward(
            policy="kernelforge/1",
            value=None if verdict is Verdict.INFRA else 0.3 if ok else 0.0,
            components={"correct": 1.0 if ok else 0.0, "speed": None, "odd": float("inf")},
        ),
        accepted=accepted,
        note="first correct" if accepted and parent is None else "cut dram__bytes.sum" if accepted else "not better",
        started="2026-11-21T06:00:01+00:00",
        seconds=0.8,
    )


def golden_attempts(run: Run) -> list[Attempt]:
    """Eleven attempts at three tasks: softmax improves, matmul is repaired, argmax never works."""
    softmax, matmul, argmax = (make_task(name) for name in TASKS)
    measured = not run.config.device.startswith("emulated")

    def speed(value: float) -> float | None:
        return value if measured else None

    ok = Verdict.OK
    return [
        make_attempt(run, softmax, 0, ok, accepted=True, dram_bytes=16e6, speedup=speed(0.8), time_us=19.0),
        make_attempt(run, softmax, 1, ok, parent=0, accepted=True, move="vectorise", speedup=speed(1.5)),
        make_attempt(run, softmax, 2, Verdict.CRASH, parent=1, move="shared_tiles"),
        make_attempt(
            run, softmax, 3, ok, parent=1, move="block_shape", dram_bytes=9e6, speedup=speed(1.4), time_us=10.2
        ),
        make_attempt(run, matmul, 0, Verdict.BUILD),
        make_attempt(run, matmul, 1, Verdict.WRONG, parent=0),
        make_attempt(run, matmul, 2, ok, parent=1, accepted=True, speedup=speed(1.1)),
        make_attempt(run, argmax, 0, Verdict.POLICY),
        make_attempt(run, argmax, 1, Verdict.TIMEOUT, parent=0),
        make_attempt(run, argmax, 2, Verdict.LIMIT, parent=1),
        make_attempt(run, argmax, 3, Verdict.INFRA, parent=1),
    ]


def fill(store: Any, run: Run) -> list[Attempt]:
    """Journal the golden run into a store and return its attempts."""
    store.start_run(run)
    for name in run.config.tasks:
        task = make_task(name)
        store.put_task(run.id, task, make_facts(task), make_graph())
    attempts = golden_attempts(run)
    for attempt in attempts:
        store.add_attempt(attempt)
    return attempts
