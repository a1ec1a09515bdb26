"""Rank what limits a candidate, from its profile alone; pure functions over records.

Works on the candidates of any Coder: nothing is read from their text. Each diagnosis names a bottleneck, the kernel,
the numbers that show it, and the metrics that a cure moves. They are ranked by what they cost: the part of the time,
under all hardware limits together, that the fault accounts for. Limits are summed rather than the largest taken,
because one that hides behind another today binds once that one is cured.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from kernelforge.agents.diagnosis import metrics as ev
from kernelforge.agents.diagnosis.metrics import KernelMetrics, PlanMetrics
from kernelforge.agents.diagnosis.rules import BOUNDS, PLAN_RULES, RULES, Bottleneck, RuleHit
from kernelforge.hardware.specs import DeviceSpec, nearest_spec
from kernelforge.profiling.metrics import HOST_SECTORS, MATRIX_INSTRUCTIONS, MATRIX_OPERATIONS
from kernelforge.records import Build, DType, LaunchQueue, Profile, SizeFacts
from kernelforge.tasks.suites import data_path

LEAST_SHARE = 0.02
"""A fault that costs less of the plan's time is not worth a round."""


@dataclass(frozen=True)
class Diagnosis:
    """One thing that holds a candidate back."""

    bottleneck: Bottleneck
    kernel: str
    """The kernel that it costs most in; empty where it is about the whole plan."""
    evidence: str
    """Values, and the thresholds they crossed."""
    metrics: tuple[str, ...]
    """What a cure lowers, or with a leading ``+`` raises; the telling one first."""
    share: float
    """Part of the plan's modelled time, under all limits together, that it accounts for."""
    curable: bool
    """False where it names a hardware limit at which nothing is wasted that the profile could show."""


def diagnose(
    profile: Profile,
    build: Build | None = None,
    facts: SizeFacts | None = None,
    spec: DeviceSpec | None = None,
    eager: LaunchQueue | None = None,
) -> tuple[Diagnosis, ...]:
    """Everything that holds a candidate back, the most costly first; each bottleneck once, in its worst kernel.

    Args:
        profile: the candidate's profile. Counters of the emulated device tell most; a measured profile has them in
            addition to its own, and its time and traffic then decide. Of Nsight Compute's metrics alone those of the
            same names, or of the nearest meaning, are used.
        build: what ptxas reported, for spills.
        facts: what is known of the task at the profile's size, for intermediates, dtypes and flops.
        spec: the device; by default the one that the profile names. The profile of a GPU does not name its model:
            callers that know it say so.
        eager: launch and queue time of eager PyTorch, for the evidence of a candidate that launches cost most.

    Returns:
        At least one diagnosis for a profile with kernels; the last ones name hardware limits and are not ``curable``.
    """
    spec = spec or nearest_spec(profile.device).spec
    compiled = {item.expression: item for item in build.kernels} if build is not None else {}
    kernels = tuple(KernelMetrics(item, spec, compiled.get(item.kernel)) for item in profile.kernels)
    plan = PlanMetrics(profile, spec, facts, kernels, eager)
    worst: dict[Bottleneck, Diagnosis] = {}
    for kernel, fault in _faults(plan):
        item = _diagnosis(plan, kernel, fault)
        before = worst.get(item.bottleneck)
        if item.share >= LEAST_SHARE and (before is None or before.share < item.share):
            worst[item.bottleneck] = item
    faults = sorted(worst.values(), key=lambda item: -item.share)
    return (*faults, *(item for item in _bounds(plan) if item.bottleneck not in worst))


def _faults(plan: PlanMetrics) -> list[tuple[str, RuleHit]]:
    hits = [(kernel.name, rule(kernel, plan)) for kernel in plan.kernels for rule in RULES]
    hits += [("", plan_rule(plan)) for plan_rule in PLAN_RULES]
    return [(name, fault) for name, fault in hits if fault is not None]


def _diagnosis(plan: PlanMetrics, kernel: str, fault: RuleHit) -> Diagnosis:
    return Diagnosis(
        bottleneck=fault.bottleneck,
        kernel=kernel,
        evidence=fault.evidence,
        metrics=fault.metrics,
        share=min(fault.cost_us / plan.busy_us, 1.0),
        curable=True,
    )


def _bounds(plan: PlanMetrics) -> list[Diagnosis]:
    """The hardware limit of each kernel, the largest first."""
    limits: dict[Bottleneck, Diagnosis] = {}
    for kernel in sorted(plan.kernels, key=lambda metrics: -metrics.busy_us):
        name = max(kernel.limits, key=lambda limit: kernel.limits[limit])
        bottleneck, metrics = _named(kernel, name)
        floor = ""
        if bottleneck is Bottleneck.DRAM_BOUND:
            ratio = plan.profile.roofline.dram_bytes / plan.compulsory_bytes
            floor = f"; the plan's DRAM traffic is {ratio:.2f}x the compulsory bytes"
        evidence = (
            f"of {kernel.busy_us:,.3g} us under all limits together, "
            f"{kernel.limits[name]:,.3g} us are under {name}{floor}"
        )
        share = kernel.limits[name] / plan.busy_us
        limits.setdefault(bottleneck, Diagnosis(bottleneck, kernel.name, evidence, metrics, share, curable=False))
    return sorted(limits.values(), key=lambda metrics: -metrics.share)


def _named(kernel: KernelMetrics, limit: str) -> tuple[Bottleneck, tuple[str, ...]]:
    """The bottleneck that a limit stands for, and its metrics."""
    if limit == "tensor":
        return Bottleneck.TENSOR_BOUND, (MATRIX_OPERATIONS,)
    if kernel.value(MATRIX_INSTRUCTIONS) and limit in ("issue", "arithmetic", "latency"):
        return Bottleneck.TENSOR_BOUND, (ev.INSTRUCTIONS,)
    if limit == "data path":
        if kernel.data_path("shared") >= kernel.data_path("global"):
            return Bottleneck.SHARED_BOUND, (ev.WAVEFRONTS,)
        return Bottleneck.L2_BOUND, (ev.SECTORS,)
    if limit in ("issue", "arithmetic"):
        special = kernel.value("ptx__inst_special.sum") / kernel.spec.special_lanes_per_sm
        ordinary = kernel.value("ptx__inst_fp32.sum") / kernel.spec.fp32_lanes_per_sm
        if special > ordinary and limit == "arithmetic":
            return Bottleneck.SFU_BOUND, ("ptx__inst_special.sum",)
        if kernel.share("fp32", "fp16", "fp64") >= 0.4 or limit == "arithmetic":
            return Bottleneck.FP32_BOUND, (ev.INSTRUCTIONS, "ptx__inst_fp32.sum")
    metrics = {"dram": (ev.DRAM,), "l2": (ev.L2_SECTORS,), "host": (HOST_SECTORS,)}
    return BOUNDS[limit], metrics.get(limit, (ev.INSTRUCTIONS,))


NOTES_SHOWN = 6
"""Notes in one prompt."""
NOTES_EACH = 2
"""Of those, how many may be about one bottleneck before the next has its turn."""


class Note(BaseModel):
    """One piece of advice, with where the fact behind it can be checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str = Field(min_length=1, max_length=80)
    text: str = Field(min_length=1)
    bottlenecks: tuple[Bottleneck, ...] = Field(min_length=1)
    """What it is about, the most telling first."""
    families: tuple[str, ...] = ()
    """Operator families that it is about; empty: any."""
    capabilities: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (99, 0))
    """First and last compute capability of the GPUs that have what it speaks of."""
    dtypes: tuple[DType, ...] = ()
    """Element types of the tensors that it is about; empty: any."""
    source: str = Field(min_length=1)
    """Document and section, or paper."""


@lru_cache(maxsize=1)
def all_notes() -> tuple[Note, ...]:
    """Every note, in the file's order.

    Raises:
        UsageError: the installation lacks the folder of prompts.
    """
    with (data_path("prompts") / "notes.toml").open("rb") as file:
        return TypeAdapter(tuple[Note, ...]).validate_python(tomllib.load(file)["note"])


def notes_about(
    bottleneck: Bottleneck | None, families: Collection[str] | None, capability: tuple[int, int] | None
) -> list[Note]:
    """Notes about a bottleneck, or about any: those of which it is the first come first.

    Notes about other operators than those of ``families``, and about what a GPU of the compute capability lacks, are
    left out; None leaves none out.
    """
    about = [
        note
        for note in all_notes()
        if (bottleneck is None or bottleneck in note.bottlenecks)
        and (families is None or not note.families or not set(note.families).isdisjoint(families))
        and (capability is None or note.capabilities[0] <= capability <= note.capabilities[1])
    ]
    if bottleneck is not None:
        about.sort(key=lambda note: note.bottlenecks.index(bottleneck))
    return about


def search_notes(
    words: Sequence[str],
    bottleneck: Bottleneck | None = None,
    operator: str | None = None,
    capability: tuple[int, int] | None = None,
) -> list[Note]:
    """Notes that have every word, the best match first.

    A word in the title counts 3, in the names of bottlenecks and operators 2, elsewhere 1. Notes of equal sums are in
    the order of :func:`notes_about`, those that name the operator before those about any.

    Args:
        words: Words, or their beginnings, in any case, and in British or American spelling; a plural finds the
            singular too.
        bottleneck: A bottleneck that the notes have to be about.
        operator: An operator family that they have to suit.
        capability: Compute capability of the GPU that they have to suit.
    """
    patterns = [_beginning(_folded(word)) for several in words for word in several.split()]
    notes = notes_about(bottleneck, None if operator is None else (operator,), capability)
    notes.sort(key=lambda note: operator is not None and operator not in note.families)
    ranks = [(note, [_rank(note, pattern) for pattern in patterns]) for note in notes]
    return [note for note, ranked in sorted(ranks, key=lambda item: -sum(item[1])) if all(ranked)]


def _beginning(word: str) -> re.Pattern[str]:
    """A pattern of words that begin so, and of the word itself where this is its plural."""
    start = r"(?<![a-z0-9])"
    singular = rf"|{start}{re.escape(word[:-1])}(?![a-z0-9])" if word.endswith("s") and len(word) > 3 else ""
    return re.compile(f"{start}{re.escape(word)}{singular}")


def _rank(note: Note, pattern: re.Pattern[str]) -> int:
    """Rank of the best part of a note that a pattern is in; 0 if it is in none."""
    parts = (note.title, " ".join((*note.bottlenecks, *note.families)), f"{note.id} {note.text} {note.source}")
    return next((3 - position for position, part in enumerate(parts) if pattern.search(_folded(part))), 0)


def _folded(text: str) -> str:
    """Text in lower case, with one spelling for ``normalisation`` and ``normalization``."""
    return text.lower().replace("z", "s")


def notes_for(
    bottlenecks: Sequence[Bottleneck],
    families: Sequence[str],
    spec: DeviceSpec,
    dtypes: Collection[DType],
    limit: int = NOTES_SHOWN,
) -> tuple[Note, ...]:
    """At most ``limit`` notes about ``bottlenecks``, which are ranked: at most two for each, the first's first.

    The first of the two names an operator of ``families``, where one of those that :func:`notes_about` selects does;
    the other is the most telling of those left. Notes about element types that ``dtypes`` lacks are left out.
    """
    selected: list[Note] = []
    for bottleneck in bottlenecks:
        about = [
            note
            for note in notes_about(bottleneck, families, spec.compute_capability)
            if note not in selected and (not note.dtypes or not set(note.dtypes).isdisjoint(dtypes))
        ]
        named = [note for note in about if note.families][:1]
        selected += [*named, *(note for note in about if note not in named)][:NOTES_EACH]
    return tuple(selected[:limit])
