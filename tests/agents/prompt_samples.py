"""One made-up task and its attempts, and every prompt rendered with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kernelforge.agents import CoderRequest, JudgeRequest, TaskContext
from kernelforge.agents.prompts import coder_prompt, judge_prompt, reflexion_prompt, tester_prompt
from kernelforge.hardware.specs import H100, H200
from kernelforge.llm.base import Prompt
from kernelforge.records import (
    Attempt,
    Candidate,
    DType,
    Evaluation,
    Finding,
    Graph,
    KernelProfile,
    MemoryHotSpot,
    Metric,
    Node,
    Operator,
    Origin,
    Performance,
    PredictedSpeedup,
    Profile,
    Reward,
    Roofline,
    SizeFacts,
    TaskFacts,
    TensorSpec,
    Verdict,
    WeightSpec,
)
from kernelforge.search.base import DEFAULT_VISIBILITY, ProfileVisibility
from tests.support.factories import (
    make_build,
    make_evaluation,
    make_fingerprint,
    make_task,
    make_timing,
    measured,
    modelled,
)

GOLDEN = Path(__file__).parent / "golden"
SUBSET = ProfileVisibility("subset")
BLIND = ProfileVisibility("none", latency=False)

SOURCE = '''"""Softmax over rows, scaled."""
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x * self.scale, dim=1)
'''
TASK = make_task(source=SOURCE)
PLAN = """def forward(x):
    n, d = x.shape
    out = empty_like(x)
    rows[n, 256](x, out, i32(n), i32(d))
    return out
"""


def _size(size: str, rows: int, columns: int) -> SizeFacts:
    spec = TensorSpec.contiguous((rows, columns), DType.FLOAT32)
    scale = WeightSpec(name="scale", spec=TensorSpec.contiguous((1,), DType.FLOAT32), kind="parameter")
    return SizeFacts(
        size=size, inputs=(spec,), outputs=(spec,), weights=(scale,), attrs={"dim": 1, "columns": columns},
        compulsory_bytes=8 * rows * columns, flops=5 * rows * columns, eager_launches=2,
    )  # fmt: skip


def _graph() -> Graph:
    spec = TensorSpec.contiguous((1024, 4096), DType.FLOAT32)
    nodes = (
        Node(name="x", kind="input", op="0", spec=spec),
        Node(name="softmax", kind="op", op="aten.softmax", args=({"ref": "x"}, 1), spec=spec),
        Node(name="output", kind="output", op="output", args=({"ref": "softmax"},)),
    )
    return Graph(size="full", nodes=nodes)


BRIEF = TaskContext(
    task=TASK,
    facts=TaskFacts(task_digest=TASK.digest, sizes=(_size("full", 1024, 4096), _size("small", 32, 512))),
    shared={
        "x.shape[0]": "varies; a multiple of 4 at some sizes only",
        "x.shape[1]": "varies; a multiple of 4 at every size",
        "w['scale'].shape[0]": "1 at every size",
        "output 0 shape[0]": "equal to x.shape[0] at every size",
        "output 0 shape[1]": "equal to x.shape[1] at every size",
    },
    graph=_graph(),
    device={
        "device": "NVIDIA H100 SXM5 80 GB, emulated on the CPU from its PTX (emulated:h100)",
        "architecture": "sm_90a",
        "memory bandwidth": "3350 GB/s",
    },
    spec=H100,
    lessons=("softmax: keep the row in registers where it fits; DRAM reads halved",),
)
GPU_BRIEF = replace(
    BRIEF,
    device={"device": "NVIDIA H200 (cuda:0)", "architecture": "sm_90a", "memory bandwidth": "4800 GB/s"},
    spec=H200,
    lessons=(),
)


def profile(sectors: float, registers: float = 32, device: str = "emulated:h100") -> Profile:
    """A profile in which the loaded sectors are what differs."""
    origin = Origin.COUNTED if device.startswith("emulated") else Origin.MEASURED
    metrics = (
        Metric(name="dram__bytes_read.sum", value=16_777_216, unit="byte", origin=Origin.MODELLED),
        Metric(name="launch__registers_per_thread", value=registers, unit="register/thread", origin=Origin.COMPILER),
        Metric(name="l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", value=sectors, unit="sector", origin=origin),
        Metric(name="gpu__time_duration.sum", value=15_000, unit="ns", origin=Origin.MODELLED),
    )
    spot = MemoryHotSpot(
        source_line=3, opcode="ld.global.f32", space="global", access="load", requests=131_072,
        transactions=round(sectors), ideal_transactions=524_288,
    )  # fmt: skip
    limits = tuple(
        Metric(name=f"kernelforge__limit_{name}_us", value=value, unit="us", origin=Origin.MODELLED)
        for name, value in (("dram", 11.6), ("l2", sectors / 250_000), ("issue", 3.2), ("blocks", 0.1))
    )
    kernel = KernelProfile(
        kernel="rows<256>", launches=1, grid=(1024, 1, 1), block=(256, 1, 1), sampled=1.0, metrics=metrics + limits,
        hot_spots=(spot,),
    )  # fmt: skip
    roofline = Roofline(
        flops=2e7, dram_bytes=50_331_648, compulsory_bytes=33_554_432, arithmetic_intensity=0.4, ridge=20.0,
        bound="dram", time_us=15.0, time_origin=Origin.MODELLED,
    )  # fmt: skip
    return Profile(size="full", device=device, kernels=(kernel,), metrics=metrics, roofline=roofline)


def predicted(time_us: float, eager_us: float = 42.0) -> PredictedSpeedup:
    """The speedup over PyTorch that a modelled time stands for."""
    speedup = eager_us / time_us
    return PredictedSpeedup(
        gpu="NVIDIA H100 SXM5 80 GB", speedup=speedup, low=0.6 * speedup, high=1.7 * speedup, eager_us=eager_us,
        eager_origin="predicted", eager_source="operator model",
    )  # fmt: skip


def attempt(
    number: int,
    *,
    verdict: Verdict = Verdict.OK,
    parent: int | None = None,
    time_us: float = 20.0,
    finding: Finding | None = None,
    seen: Profile | None = None,
    accepted: bool = False,
    note: str = "",
    source: str | None = None,
    operator: Operator | None = None,
    evaluation: Evaluation | None = None,
) -> Attempt:
    """An attempt at the task of this module."""
    candidate = Candidate(
        source=source or f"// version {number}\n__global__ void rows(const float* x, float* out, int n, int d) {{}}\n",
        plan=PLAN,
    )
    correct = verdict is Verdict.OK
    evaluation = evaluation or make_evaluation(
        verdict,
        reason="" if correct else "output 0: 17 of 16,384 elements differ; worst at (3, 511): expected 0.25, got 0.5",
        performance=modelled(time_us, predicted=predicted(time_us)) if correct else None,
        build=make_build(),
    )
    return Attempt(
        id=f"run/softmax/{number:02d}",
        run="run",
        task="softmax",
        number=number,
        operator=operator or (Operator.SEED if parent is None else Operator.OPTIMISE),
        parent=None if parent is None else f"run/softmax/{parent:02d}",
        finding=finding,
        candidate=candidate,
        evaluation=evaluation.model_copy(update={"candidate": candidate.hash}),
        profile=(seen or profile(1_572_864)) if correct else None,
        reward=Reward(policy="test/1", value=0.0, components={}),
        accepted=accepted,
        note=note,
        started="2026-01-01T00:00:00.000+00:00",
        seconds=1.0,
    )


FINDING = Finding(
    kind="optimise",
    headline="uncoalesced loads: 24 sectors per request",
    why="neighbouring threads read rows, not columns",
    action="let a block walk one row together",
    metrics=("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
)
MENDING = Finding(
    kind="repair",
    headline="the last column is left out",
    why="every odd row length fails",
    action="let the loop run to d",
)
SLOW = attempt(0, time_us=120.0, seen=profile(12_582_912), accepted=True, note="first correct attempt")
FAST = attempt(1, parent=0, time_us=18.5, finding=FINDING, accepted=True, note="accepted: sectors fell")
FAILED = attempt(2, parent=1, verdict=Verdict.WRONG, finding=FINDING, note="not accepted: WRONG")
HISTORY = (SLOW, FAST, FAILED)


def on_gpu(number: int, time_us: float, speedup: float, **more: object) -> Attempt:
    """An attempt whose time was measured."""
    timing = make_timing(time_us, speedup, coverage=0.9, setup_us=12.5)
    performance = measured(
        time_us, samples=30, speedup=speedup, speedup_lower=0.95 * speedup, speedup_eager=2 * speedup, timing=timing
    )
    return _attempt_on_gpu(number, performance, **more)


def quarantined_on_gpu(number: int, time_us: float, **more: object) -> Attempt:
    """An attempt that is right, and faster than it can be."""
    doubt = "14 us is below 80 % of 33.6 us, the time of its compulsory bytes at peak bandwidth"
    performance = measured(time_us, samples=30, timing=make_timing(time_us), quarantined=doubt)
    return _attempt_on_gpu(number, performance, **more)


def _attempt_on_gpu(number: int, performance: Performance, **more: object) -> Attempt:
    fingerprint = make_fingerprint(device="cuda:0", device_kind="cuda")
    evaluation = make_evaluation(performance=performance, fingerprint=fingerprint)
    noted = profile(1_572_864, device="cuda:0").model_copy(
        update={"notes": ("Metrics that are not 'measured' are the emulator's.",)}
    )
    return attempt(number, evaluation=evaluation, seen=noted, **more)  # type: ignore[arg-type]


def coder(operator: Operator, parent: Attempt | None, **more: object) -> Prompt:
    """The Coder's prompt for this module's task."""
    fields: dict[str, object] = {"finding": None, "history": HISTORY, "best": FAST}
    return coder_prompt(CoderRequest(BRIEF, operator, parent, **(fields | more)))  # type: ignore[arg-type]


def judge(parent: Attempt, sight: ProfileVisibility = DEFAULT_VISIBILITY, rank: int = 1) -> Prompt:
    return judge_prompt(JudgeRequest(BRIEF, parent, HISTORY, FAST, rank, sight))


GPU_SLOW = on_gpu(0, 120.0, 1.2, accepted=True, note="first correct attempt")
GPU_FAST = on_gpu(1, 40.0, 3.6, parent=0, finding=FINDING, accepted=True, note="accepted: lower bound 1.14x -> 3.42x")
GPU_DOUBTED = quarantined_on_gpu(2, 14.0, parent=1, note="not accepted: its time is quarantined")
GPU_HISTORY = (GPU_SLOW, GPU_FAST, GPU_DOUBTED)


def coder_on_gpu(parent: Attempt) -> Prompt:
    return coder_prompt(CoderRequest(GPU_BRIEF, Operator.OPTIMISE, parent, FINDING, GPU_HISTORY, GPU_FAST))


def judge_on_gpu(parent: Attempt) -> Prompt:
    return judge_prompt(JudgeRequest(GPU_BRIEF, parent, GPU_HISTORY, GPU_FAST, 1))


SAMPLES: dict[str, Callable[[], Prompt]] = {
    "seed": lambda: coder(Operator.SEED, None, history=(), best=None),
    "repair": lambda: coder(Operator.REPAIR, FAILED, finding=MENDING),
    "optimise": lambda: coder(Operator.OPTIMISE, FAST, finding=FINDING),
    "optimise-subset": lambda: coder(Operator.OPTIMISE, FAST, finding=FINDING, sight=SUBSET),
    "optimise-blind": lambda: coder(Operator.OPTIMISE, FAST, finding=FINDING, sight=BLIND),
    "contrast": lambda: coder(Operator.CONTRAST, SLOW, inspirations=(SLOW, FAST), sight=ProfileVisibility("none")),
    "contrast-subset": lambda: coder(Operator.CONTRAST, SLOW, inspirations=(SLOW, FAST), sight=SUBSET),
    "fsr": lambda: coder(Operator.FSR, FAST, technique="vectorised loads", sample=2),
    "fsr-failed": lambda: coder(Operator.FSR, FAILED, history=(FAILED,), best=None),
    "crossover": lambda: coder(Operator.CROSSOVER, SLOW, inspirations=(FAST,)),
    "judge-repair": lambda: judge(FAILED),
    "judge-optimise": lambda: judge(FAST),
    "judge-optimise-third": lambda: judge(SLOW, rank=3),
    "optimise-gpu": lambda: coder_on_gpu(GPU_FAST),
    "optimise-gpu-quarantined": lambda: coder_on_gpu(GPU_DOUBTED),
    "judge-optimise-gpu": lambda: judge_on_gpu(GPU_FAST),
    "reflexion": lambda: reflexion_prompt(BRIEF, HISTORY, ("softmax", "reduction")),
    "triton": lambda: coder_prompt(CoderRequest(replace(BRIEF, language="triton"), Operator.SEED, None, None, ())),
    "triton-judge": lambda: judge_prompt(JudgeRequest(replace(BRIEF, language="any"), SLOW, HISTORY, FAST)),
    "tester": lambda: tester_prompt(BRIEF, "(the page of the generator language)"),
}
"""Every prompt, and some in more than one form."""


def golden_text(prompt: Prompt) -> str:
    """A prompt as its golden file has it: the boundary marked."""
    return f"{prompt.text[: prompt.stable]}<<< what varies begins here >>>\n\n{prompt.text[prompt.stable :]}"
