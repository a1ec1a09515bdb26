"""Small and hidden sizes for tasks that have none: chosen by search, validated by the oracle, cached."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from platformdirs import user_cache_path
from pydantic import ValidationError

from kernelforge.errors import ChildTimeout, SandboxError, TaskError
from kernelforge.evaluation.oracle import GPU_SHARE
from kernelforge.evaluation.oracle.client import (
    MEMORY_BYTES,
    AdmissionIssue,
    ChildZygote,
    Oracle,
    OracleChild,
)
from kernelforge.evaluation.size_search.choice import SizeChoice, as_task, checked_choice, sizes_of
from kernelforge.evaluation.size_search.client import SizeSearchClient, is_of_the_machine, prober_zygote
from kernelforge.evaluation.size_search.extents import Extent, movable_extents
from kernelforge.evaluation.size_search.search import Bounds, Chosen, Cost, ExtentSearch, TooLarge
from kernelforge.evaluation.size_search.shipped import Entry, shipped_choice
from kernelforge.hardware.specs import SPECS
from kernelforge.records import Task, content_hash, first_fault
from kernelforge.sandbox.policy import Limits
from kernelforge.tasks import module_constants
from kernelforge.tasks.constants import parse_python
from kernelforge.tasks.files import read_plain_file
from kernelforge.tasks.loaders.base import ExternalTask
from kernelforge.utils.atomic_files import atomic_write
from kernelforge.utils.closing import Closing

VERSION = 8
"""Of the choice itself: raised whenever the same task would get other sizes."""

OTHER_BOUNDS = (8, 1 / 8, 64)
"""Of the bounds, where the oracle cannot judge the task at the small size within them."""

FILLED_BOUNDS = 128
"""Of the bounds, where it cannot within the others; axes are as long as these allow. The last batch norm of MobileNetV2
(KernelBench 3/20) has 80 values per channel there. Torch's error is half of what may be judged; at 32 values it is 1.2
times that."""

_UNJUDGED = "it cannot be judged: "

_CASTS = "task-precision"
"""What the oracle advises where a reference fails in float64."""

_MOST_KEPT_BYTES = 1 << 20
"""Of a choice in the cache."""

_BYTES_PER_OUTPUT = 59
"""GPU memory that the oracle takes for each output element while a candidate is timed, besides two sets of tensors:
75 bytes in all for an elementwise float32 task of two operators (``docs/baselines.md``, Memory)."""

_USUAL_GPU_BYTES = 80 * 10**9
"""Memory of the GPUs that kernels are mostly optimised on (A100, H100); a task that needs more says so."""


class _Gate:
    """A zygote that starts no child, and so is not itself started again, once it was shut."""

    def __init__(self, zygote: ChildZygote) -> None:
        self._zygote = zygote
        self.shut = False

    def spawn(self, limits: Limits | None = None) -> OracleChild:
        if self.shut:
            raise SandboxError("the search for sizes was stopped")
        return self._zygote.spawn(limits)


@dataclass
class SizeChooser(Closing):
    """Chooses sizes for tasks that come with one. Safe to use from several threads; close it when done.

    Args:
        cache: folder where choices are kept; None for the user's cache folder.
        bounds: what a size may cost.
        refresh: search again, though sizes ship with the package or were found before.
        shipped: the sizes that ship; those of the package if left out.
        allow_unconfined: run references without a jail where none works.
    """

    cache: Path | None = None
    bounds: Bounds = field(default_factory=Bounds)
    allow_unconfined: bool = False
    refresh: bool = False
    shipped: Mapping[str, Entry] | None = None

    def __post_init__(self) -> None:
        self._folder = self.cache or user_cache_path("kernelforge") / "sizes"
        self._warm = prober_zygote(allow_unconfined=self.allow_unconfined)
        self._zygote = _Gate(self._warm)
        self._heavy = threading.Lock()
        """Held while a network far above the bounds is judged, which takes the memory of several others."""

    def choose(self, task: ExternalTask) -> SizeChoice:
        """Sizes of one task: those that ship, else from the cache where it was seen before, else by search. A task that
        has none says why."""
        path = self._folder / f"{self._key(task)}.json"
        cached = None if self.refresh else shipped_choice(task, self.shipped) or _read(path, task)
        if cached is not None:
            return cached
        choice, lasting = self._find(task)
        if lasting and not self._zygote.shut:
            _write(path, choice)
        return choice

    def is_settled(self, task: ExternalTask) -> bool:
        """Whether the choice for a task is in the cache: another search would give the same."""
        return _read(self._folder / f"{self._key(task)}.json", task) is not None

    def close(self) -> None:
        """End the helper process and its children; what another thread was at is not kept."""
        self._zygote.shut = True
        self._warm.close()

    def _key(self, task: ExternalTask) -> str:
        policy = task.policy.content()
        named = {name: dict(constants) for name, constants in task.sizes.items()}
        return content_hash("sizes", VERSION, task.source, policy, sorted(task.fixed), named, self.bounds.key())

    def _find(self, task: ExternalTask) -> tuple[SizeChoice, bool]:
        """The choice, and whether another search would give the same: one after a timeout may not."""
        judged: list[Mapping[str, Mapping[str, int]]] = []
        prober = SizeSearchClient(self._zygote, task.source, self.bounds)
        choice, lasting = self._within(self.bounds, task, prober, judged)
        # A deep network may be too narrow for its precision only because it is small, and a sum may saturate what
        # follows only because it is long.
        others = (*map(self.bounds.times, OTHER_BOUNDS), self.bounds.times(FILLED_BOUNDS, filled=True))
        for bounds in others:
            if choice.refused.startswith(_UNJUDGED):
                other, other_lasting = self._within(bounds, task, prober, judged)
                choice, lasting = other if other.admitted else choice, lasting and other_lasting
        return choice, lasting

    def _within(
        self,
        bounds: Bounds,
        task: ExternalTask,
        prober: SizeSearchClient,
        judged: list[Mapping[str, Mapping[str, int]]],
    ) -> tuple[SizeChoice, bool]:
        """The choice within some bounds; ``judged`` has the sizes that were refused within others."""
        try:
            with prober:
                selected, notes = self._search(task, prober, bounds)
        except TaskError as error:
            return SizeChoice(refused=str(error)), prober.settled
        if selected.sizes in judged:
            return SizeChoice(refused=f"{_UNJUDGED}these sizes were refused before"), prober.settled
        judged.append(selected.sizes)
        # A network may be far above the task's bounds, though it is not above these.
        selected = replace(selected, heavy=selected.heavy or bounds != self.bounds)
        choice, lasting = self._judged(task, selected, notes)
        return choice, lasting and prober.settled

    def _search(self, task: ExternalTask, prober: SizeSearchClient, bounds: Bounds) -> tuple[Chosen, list[str]]:
        full = prober.abstract()
        room = max(spec.dram_bytes for spec in SPECS.values())
        if full.cost is not None and full.cost.bytes > room:
            raise TaskError(
                f"inputs, weights and outputs take {full.cost.bytes / 1e9:,.0f} GB at its own sizes; the largest GPU "
                f"known here has {room / 1e9:,.0f} GB"
            )
        notes = [] if full.cost is None else _memory_notes(full.cost)
        weights = prober.weights({})
        extents = [
            replace(extent, is_count=_is_count(extent, weights, prober))
            for extent in movable_extents(task.source, task.fixed)
        ]
        others = [
            value
            for value in module_constants(parse_python(task.source, "the task file")).values()
            if type(value) is int and 1 < value < 64
        ]
        try:
            selected = ExtentSearch(extents, prober.run, bounds, others).choose()
        except TooLarge:
            raise
        except TaskError as error:
            # At its own sizes it says best what is wrong: small ones may be refused for being small.
            raise TaskError(full.error or str(error)) from error
        return selected, [*notes, *self._named(task, prober)]

    def _named(self, task: ExternalTask, prober: SizeSearchClient) -> list[str]:
        """Notes on sizes that the benchmark names itself: those within the bounds are taken as they are."""
        notes = []
        for name, constants in task.sizes.items():
            outcome = prober.run(constants)
            if outcome.cost is None or not outcome.cost.ran:
                notes.append(f"{name} of the benchmark itself is left out: {outcome.error or 'too large'}")
        return notes

    def _judged(self, task: ExternalTask, selected: Chosen, notes: list[str]) -> tuple[SizeChoice, bool]:
        notes = [*notes, *selected.notes]
        left_out = {note.split(" ")[0] for note in notes if " of the benchmark itself " in note}
        named = {name: dict(constants) for name, constants in task.sizes.items() if name not in left_out}
        sizes = sizes_of({**selected.sizes, **named})
        unjudged = SizeChoice(sizes=sizes, notes=tuple(notes))
        # The memory that the oracle of an evaluation has.
        memory_bytes = MEMORY_BYTES if selected.heavy else self.bounds.memory_bytes
        try:
            with self._heavy if selected.heavy else contextlib.nullcontext():
                choice = self._admitted(task, unjudged, memory_bytes)
                if choice.refused and task.policy.oracle == "float64" and _CASTS in choice.refused:
                    choice = self._admitted(task, unjudged.model_copy(update={"task_precision": True}), memory_bytes)
        except ChildTimeout:
            return unjudged.model_copy(
                update={"unchecked": f"the oracle gave no answer in {self.bounds.judge_s:g} s"}
            ), False
        except TaskError as error:
            return SizeChoice(refused=str(error)), not is_of_the_machine(str(error))
        except SandboxError as error:
            if selected.heavy:
                return unjudged.model_copy(update={"unchecked": f"the oracle may need more memory: {error}"}), False
            return SizeChoice(refused=str(error)), False
        except ValidationError as error:
            # Of what the key does not name, such as the level.
            return SizeChoice(refused=first_fault(error)), False
        return choice, not any(is_of_the_machine(text) for text in (choice.refused, *choice.notes))

    def _admitted(self, task: ExternalTask, choice: SizeChoice, memory_bytes: int) -> SizeChoice:
        """The sizes at which the oracle admits the task, or its reason where ``small`` is not one of them."""
        sized = as_task(choice.applied_to(task), choice.sizes)
        refused = rejected_sizes(self._zygote, sized, reply_s=self.bounds.judge_s, memory_bytes=memory_bytes)
        if "small" in refused:
            return SizeChoice(refused=_UNJUDGED + refused["small"])
        notes = [*choice.notes, *(f"no {name}: {why}" for name, why in refused.items())]
        if choice.task_precision:
            notes.append("the reference casts: it is judged at its own precision")
        kept = tuple(size for size in choice.sizes if size.name not in refused)
        return choice.model_copy(update={"sizes": kept, "notes": tuple(notes), "admitted": True})


def _is_count(extent: Extent, weights: int | None, prober: SizeSearchClient) -> bool:
    """Whether the model, which has so many weights, has another number of them where the extent has another value."""
    if weights is None:
        return False
    others = (prober.weights(dict.fromkeys(extent.names, value)) for value in (extent.full // 2, 2 * extent.full))
    return any(other not in (None, weights) for other in others)


def _memory_notes(cost: Cost) -> list[str]:
    """A note where the values of the full size can only be checked on a GPU larger than the usual ones."""
    needed = (2 * cost.bytes + _BYTES_PER_OUTPUT * cost.outputs) / GPU_SHARE
    if needed <= _USUAL_GPU_BYTES:
        return []
    return [
        f"to check its full size takes a GPU with about {needed / 1e9:,.0f} GB; on a smaller one, give it a smaller "
        "`full` size"
    ]


def _read(path: Path, task: ExternalTask) -> SizeChoice | None:
    """A cached choice, if it is one for this task; else None."""
    try:
        return checked_choice(task, SizeChoice.model_validate_json(read_plain_file(path, _MOST_KEPT_BYTES)))
    except (FileNotFoundError, TaskError, ValidationError):
        return None


def _write(path: Path, choice: SizeChoice) -> None:
    """Keep a choice, whole or not at all; a disk that takes no more costs a later import time and nothing else."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as part:
            part.write_text(choice.model_dump_json(), encoding="utf-8")
            part.replace(path)


def choose_all(
    shrinker: SizeChooser, tasks: Sequence[ExternalTask], jobs: int
) -> Iterator[tuple[ExternalTask, SizeChoice]]:
    """Sizes of every task, each yielded as soon as it is known, ``jobs`` at a time.

    Leaving early drops what has not begun; what is done stays in the shrinker's cache.
    """
    pool = ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(shrinker.choose, task): task for task in tasks}
        for done in as_completed(running):
            yield running[done], done.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        # Threads that wait for a child go on as soon as it is gone.
        shrinker.close()
        raise
    pool.shutdown()


_LONGEST = 500
"""Characters of a reason."""


def rejected_sizes(zygote: ChildZygote, task: Task, *, reply_s: float, memory_bytes: int) -> dict[str, str]:
    """Sizes of a task, other than ``full``, at which it cannot be judged, each with the reason; ``small`` alone where
    it is one of them.

    Args:
        reply_s: Longest wait for each answer of the oracle.
        memory_bytes: What the oracle may take.

    Raises:
        TaskError: the reference cannot be judged at all, such as one that draws random numbers in ``forward``.
        SandboxError: the oracle gave no answer in time, or died; nothing is known then.
    """
    refused: dict[str, str] = {}
    prefix = f"task '{task.name}': "
    try:
        with Oracle(zygote, task, reply_s=reply_s, memory_bytes=memory_bytes) as oracle:
            for size in task.sizes:
                if size.name == "full":
                    continue
                if "small" in refused:
                    break
                try:
                    oracle.facts([size.name])
                    findings = oracle.admit([size.name]).findings
                except TaskError as error:
                    refused[size.name] = _line(error, prefix)
                    continue
                fault = next((finding for finding in findings if not finding.ok), None)
                if fault is not None:
                    refused[size.name] = _sentence(fault)
    except TaskError as error:
        raise TaskError(_line(error, prefix)) from error
    return refused


def _sentence(fault: AdmissionIssue) -> str:
    """Reason why a size cannot be judged on inputs of one family."""
    reason = fault.text.split("; ", 1)[-1].removesuffix(" on the task's own inputs")
    if reason.startswith("torch itself fails"):
        reason = "torch at the task's precision is too far from float64"
    where = "the task's own inputs" if fault.family == "task" else f"inputs of the family '{fault.family}'"
    return f"on {where} {reason}"[:_LONGEST]


def _line(error: Exception, prefix: str) -> str:
    return str(error).strip().split("\n")[0].removeprefix(prefix)[:_LONGEST]
