"""Published times of PyTorch: measured on a real GPU by others, or by this project, and used as they are.

``published_times.json`` holds them with where and when they were measured; ``benchmarks/baselines.py`` writes it. A
time is that of a task if the task's name, the shapes of inputs and outputs and the bytes of its weights are those that
were timed. KernelBench's times are means of 100 calls that the host launches, convolutions in TF32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.prediction.baseline import BaselineKind, BaselineTime, predict_baseline
from kernelforge.prediction.operator_time import CONVOLUTIONS
from kernelforge.prediction.operators import OperatorTrace
from kernelforge.records import SizeFacts, Task, TensorSpec
from kernelforge.records.base import Record, content_hash

KERNELBENCH = "kernelbench"
"""Tag of tasks that were imported from KernelBench, and the name of their group here."""


class Source(Record):
    """One measurement campaign."""

    text: str
    """Who measured, when, and at which commit of which repository it stands."""
    tf32: bool
    """Whether convolutions could use TF32."""


_Time = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PublishedTime(NamedTuple):
    """One time of one task: in the file, a list in this order."""

    gpu: str
    kind: BaselineKind
    source: str
    """Key of a :class:`Source`."""
    time_us: _Time
    low_us: _Time
    high_us: _Time


class PublishedTask(Record):
    """Times of one task, and what tells that a task is this one."""

    signature: str
    times: tuple[PublishedTime, ...]


class PublishedTimes(Record):
    """The whole file."""

    sources: Mapping[str, Source]
    tasks: Mapping[str, PublishedTask]
    """By suite and name; of KernelBench's by ``kernelbench`` and the name that an import gives."""


@cache
def published_times() -> PublishedTimes:
    """The times that ship with the package."""
    text = Path(__file__).with_name("published_times.json").read_text(encoding="utf-8")
    return PublishedTimes.model_validate_json(text)


def task_key(task: Task) -> str:
    """The name of a task among published times."""
    return f"{KERNELBENCH if KERNELBENCH in task.tags else task.suite}/{task.name}"


def signature(facts: SizeFacts) -> str:
    """Hash of the shapes of inputs and outputs and of the bytes of weights, at one size."""
    tensors = [
        [list(spec.shape), str(spec.dtype)] if isinstance(spec, TensorSpec) else None
        for spec in (*facts.inputs, *facts.outputs)
    ]
    return content_hash(tensors, sum(weight.spec.nbytes for weight in facts.weights))


def published_baseline(
    task: Task, facts: SizeFacts, spec: DeviceSpec, kind: BaselineKind = "eager", *, tf32: bool | None = None
) -> BaselineTime | None:
    """The published time of a task on a GPU, or None.

    Args:
        task: The task.
        facts: Its facts at the full size.
        spec: The GPU.
        kind: What ran it.
        tf32: Only times where convolutions could use TF32, or could not; either if None.
    """
    published = published_times()
    entry = published.tasks.get(task_key(task))
    if facts.size != "full" or entry is None or entry.signature != signature(facts):
        return None
    for time in entry.times:
        source = published.sources[time.source]
        if (time.gpu, time.kind) == (spec.key, kind) and tf32 in (None, source.tf32):
            return BaselineTime(
                kind=kind,
                gpu=spec.key,
                time_us=time.time_us,
                low_us=time.low_us,
                high_us=time.high_us,
                origin="published",
                source=source.text,
                tf32=source.tf32,
            )
    return None


def baseline_time(
    task: Task,
    facts: SizeFacts,
    trace: OperatorTrace,
    spec: DeviceSpec,
    kind: BaselineKind = "eager",
    *,
    tf32: bool = False,
) -> BaselineTime:
    """The published time of a task on a GPU where there is one by the same arithmetic, else the predicted one."""
    convolves = any(operator.kind in CONVOLUTIONS for operator in trace.operators)
    published = published_baseline(task, facts, spec, kind, tf32=tf32 if convolves else None)
    return published or predict_baseline(trace, spec, kind, tf32=tf32)
