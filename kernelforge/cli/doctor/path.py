"""``kernelforge doctor``: take one fixed kernel through every evaluation stage, and name the first that fails.

The stages use the parts of the evaluator: the jailed processes, the oracle with the installed torch, the compiler, the
checks, and on a GPU the graphs, the baselines and the profiler. A machine where they all work for this kernel can
evaluate candidates; a package that can be imported does not prove that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from kernelforge.cli.doctor.checks import Check, Stage
from kernelforge.errors import BaselineError, KernelForgeError

if TYPE_CHECKING:
    from kernelforge.devices.base import Session
    from kernelforge.evaluation.evaluator import Evaluator
    from kernelforge.evaluation.oracle.client import DrawHandle
    from kernelforge.evaluation.pool import EvaluatorPool
    from kernelforge.evaluation.stages.candidate_runs import CandidateRuns, EvaluationState
    from kernelforge.evaluation.timing import SamplePlan
    from kernelforge.evaluation.timing.candidate_timer import CandidateTimer
    from kernelforge.records import Profile, Task

REFERENCE = """
import torch
import torch.nn as nn

ROWS = 64
COLS = 96


class Model(nn.Module):
    def forward(self, x, y):
        return x * 2 + y


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
KERNEL = """__global__ void scaled_sum(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
"""
PLAN = """def forward(x, y):
    out = empty_like(x)
    scaled_sum[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
"""

SEED = 0
"""Seed of the inputs; no score depends on it."""
SETS = 2
"""Timed sets of tensors."""
SAMPLES = 2
AT_ONCE = 4
"""GPUs tried at a time: each needs two processes with torch."""

_PAGE = "docs/gpus.md explains the setup"
_EMULATED = "--device emulated runs without a GPU"
_REPORT = "see 'jail' above; if that is ok, report this, with `kernelforge doctor --json`"


class _Lacking(Exception):
    """A stage ran without its expected result."""


def check_paths() -> list[Check]:
    """One check for each usable GPU, or one for the emulated device."""
    from kernelforge.devices import best_device, device_names

    names = [best_device()]
    if names[0].startswith("cuda:"):
        names = [name for name in device_names() if name.startswith("cuda:")]
    with ThreadPoolExecutor(max_workers=min(len(names), AT_ONCE)) as pool:
        return [summary(name, stages) for name, stages in zip(names, pool.map(try_device, names), strict=True)]


def try_device(name: str) -> list[Stage]:
    """Stages on a device of this machine, with an empty build cache, so that the compiler runs."""
    from kernelforge.evaluation.pool import EvaluatorPool

    def say(message: str) -> None:
        typer.echo(f"doctor: {message}", err=True)

    with tempfile.TemporaryDirectory(prefix="kernelforge-doctor-") as folder:
        return try_stages(lambda: EvaluatorPool(name, cache=Path(folder), tell=say), measures=name.startswith("cuda:"))


def try_stages(open_pool: Callable[[], EvaluatorPool], *, measures: bool) -> list[Stage]:
    """Take the kernel through every stage.

    Args:
        open_pool: Opens the device and its evaluators; part of the first stage.
        measures: Whether the device is a GPU, which has more stages than an emulated device.
    """
    stages: list[Stage] = []
    with ExitStack() as stack:
        path = _Path(open_pool, stack)
        failed = False
        for name, action, optional, advice in path.stages(measures):
            if failed:
                stages.append(Stage(name, "not tried"))
                continue
            began = time.perf_counter()
            why = _failure(action)
            seconds = round(time.perf_counter() - began, 6)
            if why is None:
                stages.append(Stage(name, "ok", seconds=seconds))
            else:
                failed = not optional
                stages.append(Stage(name, "note" if optional else "problem", why, advice, seconds))
    return stages


def _failure(action: Callable[[], None]) -> str | None:
    """Reason for the failure of a stage, in one line; None if it passed."""
    from kernelforge.devices.base import RunFailed
    from kernelforge.evaluation.stages.compile_stage import StageFailed
    from kernelforge.evaluation.timing.candidate_timer import OutputChangedWhileTimed

    try:
        action()
    except StageFailed as failure:
        return _one_line(f"{failure.verdict.value} at stage {failure.stage}: {failure.reason}")
    except (KernelForgeError, RunFailed, OutputChangedWhileTimed, _Lacking, OSError, ImportError) as error:
        return _one_line(str(error) or type(error).__name__)
    return None


def _one_line(text: str) -> str:
    """First and last line of a message: of a traceback, its header and the exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else ""


def fixed_task() -> Task:
    """Task of the kernel: ``2x + y``."""
    from kernelforge.records import Size, Task

    sizes = (Size(name="full"), Size(name="small", constants={"ROWS": 7, "COLS": 33}))
    return Task(name="doctor", suite="doctor", title="2x + y", level=1, source=REFERENCE, sizes=sizes)


class _Path:
    """Stages of one device, in order; later stages use the results of earlier ones."""

    def __init__(self, open_pool: Callable[[], EvaluatorPool], stack: ExitStack) -> None:
        self._open_pool = open_pool
        self._stack = stack
        self._pool: EvaluatorPool
        self._evaluator: Evaluator
        self._work: EvaluationState
        self._runs: CandidateRuns
        self._session: Session
        self._stopwatch: CandidateTimer
        self._shape: SamplePlan
        self._draws: list[DrawHandle]
        self._profiled: Profile

    def stages(self, measures: bool) -> Sequence[tuple[str, Callable[[], None], bool, str]]:
        """Name, action, whether runs work without it, and advice for a failure."""
        from kernelforge.compile import installed_toolchain

        first = [
            ("runner", self.runner, False, f"see 'gpu', 'jail' above; {_PAGE}; {_EMULATED}" if measures else _REPORT),
            ("oracle", self.oracle, False, self._torch_advice(measures)),
            ("build", self.build, False, f"reinstall the compiler: {installed_toolchain().install} --force-reinstall"),
            ("check", self.check, False, "the kernel is right, so report this, with `kernelforge doctor --json`"),
        ]
        if not measures:
            return [*first, ("profile", self.profile, False, "report this, with `kernelforge doctor --json`")]
        return [
            *first,
            ("graph", self.graph, False, f"{_PAGE}; {_EMULATED}"),
            ("eager graph", lambda: self.baseline("eager-graph"), False, f"install a newer torch; {_EMULATED}"),
            (
                "compile", lambda: self.baseline("compile"), True,
                "runs go on without this baseline, and speedups are against a weaker one: torch.compile needs a C "
                f"compiler and Python's headers; {_PAGE}",
            ),
            ("replay", self.profile_on_gpu, True, f"runs go on without times of single kernels; {_PAGE}"),
            ("counters", self.counters, True, f"runs go on with the emulator's counts, each marked; {_PAGE}"),
        ]  # fmt: skip

    @staticmethod
    def _torch_advice(measures: bool) -> str:
        if measures:
            return f"install a torch that is built for this GPU and this driver: pytorch.org/get-started; {_EMULATED}"
        return "reinstall torch: pip install --force-reinstall 'torch>=2.9,<2.14'"

    def runner(self) -> None:
        """Start a jailed process on the device; test the memory of a GPU."""
        from kernelforge.devices.cuda.device import CudaDevice

        self._pool = self._stack.enter_context(self._open_pool())
        device = self._pool.device
        device.start()
        if isinstance(device, CudaDevice):
            device.runners.recover()

    def oracle(self) -> None:
        """Run the reference with the installed torch, on the GPU if there is one."""
        self._evaluator = self._pool.evaluator(fixed_task())
        self._stack.callback(self._evaluator.close)
        self._evaluator.oracle.families("full")

    def build(self) -> None:
        """Compile the kernel for the device."""
        from kernelforge.evaluation.stages.candidate_runs import EvaluationState
        from kernelforge.records import Candidate

        self._work = EvaluationState(seed=SEED)
        self._candidate = Candidate(source=KERNEL, plan=PLAN)
        self._evaluator.prepare(self._candidate, self._work)

    def check(self) -> None:
        """Run the kernel and compare its values with the oracle's; for a GPU also on the emulated device."""
        from kernelforge.evaluation.stages.correctness import CorrectnessStage

        evaluator, work = self._evaluator, self._work
        if evaluator.screen is not None:
            evaluator.screen.check(self._candidate, evaluator.facts, (), work)
            if work.screening is not None and not work.screening.ran:
                raise _Lacking(f"{work.screening.device} does not run it: {work.screening.message}")
        self._stack.enter_context(evaluator.gpu_lock())
        self._runs = self._stack.enter_context(evaluator.runs(work))
        for name in ("small", "full"):
            CorrectnessStage(self._runs).check_size(fixed_task().size(name))

    def profile(self) -> None:
        """Profile on the emulated device, which counts events and models the time."""
        from kernelforge.evaluation.stages.full_size import ModelledFullSize

        result = ModelledFullSize(self._runs).check(profile=True)
        if result is None or result.profile is None:
            raise _Lacking("the emulated device gave no profile")

    def graph(self) -> None:
        """Capture the plan in a CUDA graph, compare and time its replays, and read the clocks."""
        from kernelforge.evaluation.stages.candidate_runs import POISONS
        from kernelforge.evaluation.timing import SamplePlan
        from kernelforge.evaluation.timing.candidate_timer import CandidateTimer

        evaluator, plan = self._evaluator, self._work.plans["full"]
        device = evaluator.device
        self._stopwatch = CandidateTimer(
            device=device,
            oracle=evaluator.oracle,
            facts=evaluator.facts.at("full"),
            settings=evaluator.settings,
            seed=SEED,
            request=lambda draw: self._runs.request(plan, draw, POISONS[0]),
        )
        self._shape = SamplePlan(sets=SETS, flush_bytes=2 * device.l2_bytes, flush_each=True)
        self._draws = [self._stopwatch.draw() for _ in range(SETS)]
        self._session = self._runs.on_device(self._work.artifacts["full"])
        with self._armed() as captured:
            device.clocks()
        if not captured:
            raise _Lacking("the plan cannot be captured in a CUDA graph")

    @contextmanager
    def _armed(self) -> Iterator[bool]:
        """Time two samples of the candidate and compare its outputs; yields whether it was captured."""
        requests = [self._stopwatch.request(draw) for draw in self._draws]
        armed = self._session.arm(requests, flush_bytes=self._shape.flush_bytes, flush_each=self._shape.flush_each)
        try:
            armed.block(SAMPLES)
            armed.flush_block(SAMPLES)
            for draw, outputs in zip(self._draws, armed.outputs(), strict=True):
                self._stopwatch.compare(draw, outputs)
            yield armed.captured
        finally:
            armed.close()

    def baseline(self, name: str) -> None:
        """Build and time a baseline."""
        handles = [draw.handle for draw in self._draws]
        oracle = self._evaluator.oracle
        side = oracle.arm(name, handles, flush_bytes=self._shape.flush_bytes, flush_each=self._shape.flush_each)
        try:
            side.block(SAMPLES)
            side.flush_block(SAMPLES)
        finally:
            side.close()
        if name == "eager-graph" and not side.captured:
            raise BaselineError(side.note or "it was not captured in a CUDA graph")

    def profile_on_gpu(self) -> None:
        """Replay the plan in the program that NVIDIA's tools run; gives at least times of single kernels."""
        request = self._stopwatch.request(self._draws[0])
        self._profiled = self._session.profile(request, self._stopwatch.facts)[0]
        if not self._measured():
            raise _Lacking(" ".join(self._profiled.notes[:2]))

    def counters(self) -> None:
        """Read hardware counters with Nsight Compute."""
        from kernelforge.devices.cuda.tools.fallback_profile import TIME

        if not hasattr(self, "_profiled"):
            raise _Lacking("the plan was not profiled")
        if not self._measured() - {TIME}:
            raise _Lacking(self._profiled.notes[0])

    def _measured(self) -> set[str]:
        """Names of the metrics read from the GPU."""
        from kernelforge.records import Origin

        kernels = (metric for kernel in self._profiled.kernels for metric in kernel.metrics)
        metrics = (*self._profiled.metrics, *kernels)
        return {metric.name for metric in metrics if metric.origin is Origin.MEASURED}


def summary(name: str, stages: Sequence[Stage]) -> Check:
    """Combine the stages of a device into one check."""
    problem = next((stage for stage in stages if stage.status == "problem"), None)
    notes = [stage for stage in stages if stage.status == "note"]
    parts = []
    if works := [stage.name for stage in stages if stage.status == "ok"]:
        parts.append(f"{', '.join(works)}: ok in {sum(stage.seconds for stage in stages):.1f} s")
    parts += [f"{stage.name}: {stage.detail}" for stage in notes]
    if problem is not None:
        parts.insert(0, f"{problem.name} fails: {problem.detail}")
    if untried := [stage.name for stage in stages if stage.status == "not tried"]:
        parts.append(f"not tried: {', '.join(untried)}")
    status: Literal["ok", "note", "problem"] = "problem" if problem else "note" if notes else "ok"
    advice = [problem.advice] if problem else [f"{stage.name}: {stage.advice}" for stage in notes]
    return Check(f"path {name}", status, "; ".join(parts), "; ".join(advice), stages=tuple(stages))
