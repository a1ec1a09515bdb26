"""Suites and tasks before any run, for ``kernelforge tasks``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from kernelforge.datasets.curation import Difficulty, difficulty
from kernelforge.hardware.specs import SPECS, DeviceSpec
from kernelforge.llm.rate_limits import reasoning_tokens
from kernelforge.prediction import (
    BaselineKind,
    BaselineTime,
    OperatorTrace,
    baseline_time,
    gpu_bound_batch,
    predict_launch_queue,
)
from kernelforge.records import LaunchQueue, SizeFacts, Task, TaskFacts, TensorSpec, Usage
from kernelforge.report.formatting import ABSENT
from kernelforge.report.views import View
from kernelforge.report.views.roofline import floor_us
from kernelforge.tasks import Suite

FLOOR_GPUS = ("h100", "h200", "a100", "b200", "l40s", "a10", "t4", "rtx-5090", "rtx-4090", "rtx-3090")
"""GPUs whose floors are shown for a task: the data centre's, and the largest GeForce of each generation."""


class TaskRow(View):
    """One task of a suite."""

    name: str
    title: str
    level: int
    tags: tuple[str, ...]
    sizes: tuple[str, ...]
    digest: str


class SuiteView(View):
    """A suite."""

    name: str
    title: str
    description: str
    digest: str
    tasks: tuple[TaskRow, ...]


class SuiteRow(View):
    """One suite among others."""

    name: str
    title: str
    description: str
    tasks: int
    levels: tuple[int, ...]
    digest: str


class SuitesView(View):
    """The suites that ship with KernelForge."""

    suites: tuple[SuiteRow, ...]


class FloorRow(View):
    """The least time that one GPU needs for a task at its full size."""

    device: str
    """Key of its figures: ``h100``."""
    title: str
    dram_bandwidth_gbps: float
    """Peak, as on the datasheet."""
    floor_us: float
    """Compulsory bytes at that bandwidth, or those of host memory on the host link; without computation."""
    arithmetic_us: float
    """The reference's operations at the peak of FP32 without tensor cores. Not a floor: there may be a shorter way."""


class BaselineRow(View):
    """Times of PyTorch for a task at its full size on one GPU, published or predicted."""

    title: str
    eager: BaselineTime
    graph: BaselineTime
    compile: BaselineTime


class LaunchRow(View):
    """Launches of eager PyTorch on one GPU: their waits at the full size, and from which batch on it is the GPU's."""

    title: str
    """Of the GPU."""
    queue: LaunchQueue
    gpu_bound_batch: int | None = None
    """The least batch of the sweep from which on the GPU is slower than the host; None without one."""
    largest_batch: int | None = None
    """Of the sweep; None for a task without a batch, or where there was none."""
    batch_label: str = "batch"
    """What the sweep calls a batch: the name of a constant of the task's file, such as ``TOKENS``, or ``batch``."""

    @property
    def batch_text(self) -> str:
        """``batch 8`` or ``TOKENS 8``, ``> 4096`` where the host is slower at every batch; a dash without a sweep."""
        if self.largest_batch is None:
            return ABSENT
        if self.gpu_bound_batch:
            return f"{self.batch_label} {self.gpu_bound_batch}"
        return (
            f"> {self.largest_batch}" if self.batch_label == "batch" else f"{self.batch_label} > {self.largest_batch}"
        )


class BatchRow(View):
    """Predicted launches of eager PyTorch on one GPU at one batch."""

    batch: int
    device: str
    """Key of the GPU."""
    queue: LaunchQueue


class TaskDetail(View):
    """One task, with the facts from the oracle."""

    digest: str
    task: Task
    facts: TaskFacts | None
    """None when the reference was not run."""
    floors: tuple[FloorRow, ...] = ()
    """For each GPU with known figures; empty when the reference was not run."""
    baselines: tuple[BaselineRow, ...] = ()
    """For the same GPUs."""
    launches: tuple[LaunchRow, ...] = ()
    """Measured ones from the results folder first, then predicted ones for the same GPUs."""
    batches: tuple[BatchRow, ...] = ()
    """The sweep that ``gpu_bound_batch`` is from, by batch and GPU."""
    difficulty: Difficulty | None = None
    """By the reasoning of replies in the results folder; None where none was kept."""


class AdmissionRow(View):
    """Result of admission for one task at one size with one input family."""

    task: str
    size: str | None
    """None where the reference cannot be run."""
    family: str | None
    ok: bool
    admitted: bool
    """Whether candidates are checked on this family at this size."""
    text: str


class AdmissionView(View):
    """Whether the tasks of a suite can be judged."""

    suite: str
    tasks: int
    ok: bool
    refused: tuple[str, ...]
    """Tasks that are not admitted."""
    findings: tuple[AdmissionRow, ...]


def suite_view(name: str, title: str, description: str, digest: str, tasks: Iterable[Task]) -> SuiteView:
    rows = tuple(TaskRow.of(task, sizes=tuple(size.name for size in task.sizes)) for task in tasks)
    return SuiteView(name=name, title=title, description=description, digest=digest, tasks=rows)


def suites_view(suites: Iterable[Suite]) -> SuitesView:
    rows = tuple(
        SuiteRow.of(suite, tasks=len(suite), levels=tuple(sorted({task.level for task in suite}))) for suite in suites
    )
    return SuitesView(suites=rows)


def task_detail(
    task: Task,
    facts: TaskFacts | None,
    trace: OperatorTrace | None = None,
    reasoning: Iterable[tuple[str, Usage | None]] = (),
    sweep: Iterable[tuple[int, OperatorTrace]] = (),
    measured: Iterable[tuple[str, LaunchQueue]] = (),
    batch_label: str | None = None,
) -> TaskDetail:
    """One task with what is known of it.

    Args:
        task: The task.
        facts: From the oracle.
        trace: Operators of the reference at the full size.
        reasoning: Of earlier replies, with their usage.
        sweep: Operators at other batches.
        measured: Launches of eager PyTorch that were traced on a GPU, with its name.
        batch_label: What the sweep calls a batch; None without one.
    """
    floors = _floors(facts.at("full")) if facts else ()
    baselines = _baselines(task, facts.at("full"), trace) if facts and trace else ()
    batches = tuple(_batches(sweep))
    launches = (
        *(LaunchRow(title=gpu, queue=queue) for gpu, queue in measured),
        *(_launches(trace, batches, batch_label or "batch") if trace else ()),
    )
    average = difficulty([reasoning_tokens(text, usage).tokens for text, usage in reasoning])
    return TaskDetail(
        digest=task.digest, task=task, facts=facts, floors=floors, baselines=baselines, launches=launches,
        batches=batches, difficulty=average,
    )  # fmt: skip


def is_gpu_bound(trace: OperatorTrace) -> bool:
    """Whether eager PyTorch is predicted to wait for the GPU on every GPU that is shown; so is what has no time."""
    return all(queue is None or queue.bound == "GPU" for _, queue in _queues(trace))


def _queues(trace: OperatorTrace) -> Iterator[tuple[DeviceSpec, LaunchQueue | None]]:
    for spec in map(SPECS.__getitem__, FLOOR_GPUS):
        queue = None
        with suppress(ValueError):  # of operators that no time follows from
            queue = predict_launch_queue(trace, spec)
        yield spec, queue


def _batches(sweep: Iterable[tuple[int, OperatorTrace]]) -> Iterator[BatchRow]:
    for batch, trace in sweep:
        for spec, queue in _queues(trace):
            if queue is not None:
                yield BatchRow(batch=batch, device=spec.key, queue=queue)


def _launches(trace: OperatorTrace, batches: Sequence[BatchRow], label: str) -> Iterator[LaunchRow]:
    largest = max((row.batch for row in batches), default=None)
    for spec, queue in _queues(trace):
        if queue is not None:
            turning = gpu_bound_batch((row.batch, row.queue) for row in batches if row.device == spec.key)
            yield LaunchRow(
                title=spec.title, queue=queue, gpu_bound_batch=turning, largest_batch=largest, batch_label=label
            )


def _baselines(task: Task, full: SizeFacts, trace: OperatorTrace) -> tuple[BaselineRow, ...]:
    kinds: tuple[BaselineKind, ...] = ("eager", "graph", "compile")
    rows = []
    for spec in map(SPECS.__getitem__, FLOOR_GPUS):
        try:
            times = {kind: baseline_time(task, full, trace, spec, kind) for kind in kinds}
        except ValueError:
            continue  # of operators that no time follows from
        # Of a fused network the operators would be most of the output.
        plain = {kind: time.model_copy(update={"per_operator": ()}) for kind, time in times.items()}
        rows.append(BaselineRow(title=spec.title, **plain))
    return tuple(rows)


def _floors(full: SizeFacts) -> tuple[FloorRow, ...]:
    return tuple(
        FloorRow.of(
            spec,
            device=spec.key,
            floor_us=floor_us(full.compulsory_bytes, spec, full.host_bytes),
            arithmetic_us=full.flops / spec.fp32_flops_per_s * 1e6,
        )
        for spec in map(SPECS.__getitem__, FLOOR_GPUS)
    )


def admission_view(suite: str, tasks: Sequence[str], findings: Iterable[AdmissionRow]) -> AdmissionView:
    rows = tuple(findings)
    failed = {row.task for row in rows if not row.ok}
    refused = tuple(name for name in tasks if name in failed)
    return AdmissionView(suite=suite, tasks=len(tasks), ok=not refused, refused=refused, findings=rows)


def spec_text(spec: object) -> str:
    """``float32[64, 128]``, with strides where they are not C order; an input that is no tensor as it prints."""
    if not isinstance(spec, TensorSpec):
        return str(spec)
    strides = "" if spec.is_contiguous else f" strides {list(spec.stride)}"
    return f"{spec.dtype.value}{list(spec.shape)}{strides}"
