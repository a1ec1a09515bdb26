"""The records of one run, loaded for its views, and the summary of each of its tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from kernelforge.records import (
    Attempt,
    InputGenerator,
    Lesson,
    Message,
    Operator,
    Origin,
    Performance,
    PredictedSpeedup,
    Profile,
    Run,
    RunState,
    Task,
    TaskFacts,
    Verdict,
    forecast_outcome,
    outcome_words,
)
from kernelforge.records.timing import COMPILED
from kernelforge.report.formatting import choices
from kernelforge.report.views import View
from kernelforge.report.views.roofline import TENSOR_METRICS, floor_us, spec_of_fingerprint
from kernelforge.store import Store
from kernelforge.utils.shell_hints import results_option


class TaskSummary(View):
    """One task of one run."""

    run: str
    task: str
    verdict: Verdict | None
    """OK when an attempt was accepted, else that of the latest attempt; None when the run did not start the task."""
    rounds: int
    """Attempts made."""
    best: str | None
    """Id of the best attempt: the last one accepted."""
    moves: tuple[str, ...]
    """Steps from the seed to the best: move or operator of each ancestor and itself."""
    generality: float | None
    """Share of sizes that the best attempt supports."""
    reward: float | None
    dram_bytes: float | None
    compulsory_bytes: float | None
    dram_ratio: float | None
    """DRAM bytes over compulsory bytes: 1 is the least there can be."""
    sectors_per_request: float | None
    """32-byte sectors per global memory request, over loads and stores."""
    launches: int | None
    bound: str | None
    """Limit of the best attempt, measured or modelled: see ``origin``."""
    time_us: float | None
    origin: Origin | None
    """Whether ``time_us`` and ``bound`` are measured or modelled."""
    speedup: float | None
    speedup_lower: float | None
    speedup_upper: float | None
    speedup_eager: float | None
    predicted: PredictedSpeedup | None
    """Over eager PyTorch, where times are modelled."""
    energy_ratio: float | None = None
    """Energy of the fastest baseline over that of the best; None unless both were measured."""
    baselines: tuple[str, ...] = ()
    """Baselines of the best attempt; without ``compile`` the fastest of them may be far slower than PyTorch's
    fastest."""
    floor_us: float | None
    """Compulsory bytes at the peak bandwidth of the GPU that measured: the memory side of the roofline (Williams,
    Waterman & Patterson, CACM 2009). None for a modelled run, and for an unknown GPU."""
    floor_share: float | None
    """``floor_us`` over ``time_us``: 1 is as fast as memory allows. None where the time is quarantined."""
    expected_us: float | None = None
    """Time that was predicted for the best attempt before it was measured; None without a prediction."""
    finished: str | None
    """Reason for the end of work on the task; None while it goes on."""
    uncompared: bool = False
    """Whether the verdict is OK without a value compared at the full size: then the task is not correct."""

    @property
    def correct(self) -> bool:
        """Whether the task counts as correct: it has a best attempt, with values compared at the full size."""
        return self.best is not None and not self.uncompared

    @property
    def outcome(self) -> str | None:
        """The verdict in words; None when the run did not start the task."""
        return None if self.verdict is None else outcome_words(self.verdict, self.uncompared)


def is_uncompiled(task: TaskSummary) -> bool:
    """Whether a task has a speedup without torch.compile among its baselines."""
    return task.speedup is not None and COMPILED not in task.baselines


def best_of(attempts: Sequence[Attempt]) -> Attempt | None:
    """The last accepted attempt of one task."""
    return next((attempt for attempt in reversed(attempts) if attempt.accepted), None)


def originals(attempts: Sequence[Attempt]) -> dict[str, Attempt]:
    """The attempts of one task whose evaluations others share, by the ids of those others."""
    if all(attempt.evaluation.equals is None for attempt in attempts):
        return {}
    by_key: dict[str | None, Attempt] = {}
    for attempt in attempts:
        if attempt.evaluation.equals is None:
            by_key.setdefault(attempt.evaluation.key, attempt)
    return {other.id: by_key[other.evaluation.equals] for other in attempts if other.evaluation.equals in by_key}


def steps_to(attempt: Attempt, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Move or operator of every step from the seed to ``attempt``."""
    by_id = {other.id: other for other in attempts}
    chain: list[str] = []
    current: Attempt | None = attempt
    while current is not None and len(chain) <= len(attempts):
        chain.append(step_name(current))
        current = by_id.get(current.parent or "")
    return tuple(reversed(chain))


def step_name(attempt: Attempt) -> str:
    """The built-in move of an attempt, else its operator; for a tuned attempt also its values."""
    if attempt.operator is Operator.TUNE and attempt.candidate is not None:
        return f"{attempt.operator.value} {choices(attempt.candidate.choices)}".rstrip()
    move = attempt.finding.move if attempt.finding is not None else None
    return move or attempt.operator.value


SECTORS = tuple(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{access}.sum" for access in ("ld", "st"))
REQUESTS = tuple(f"l1tex__t_requests_pipe_lsu_mem_global_op_{access}.sum" for access in ("ld", "st"))
"""For global loads and for global stores."""


def sectors_per_request(profile: Profile) -> float | None:
    """Sectors over requests, for global loads and stores together; None without requests."""
    sectors, requests = (sum(profile.value(name) or 0.0 for name in names) for names in (SECTORS, REQUESTS))
    return sectors / requests if requests else None


def launches_of(attempt: Attempt) -> int | None:
    """Kernel launches at the full size."""
    if attempt.profile is not None:
        return sum(kernel.launches for kernel in attempt.profile.kernels)
    if attempt.evaluation.correctness is not None:
        for check in attempt.evaluation.correctness.sizes:
            if check.size == "full":
                return check.launches
    return None


def dram_ratio(attempt: Attempt) -> float | None:
    """DRAM bytes over compulsory bytes: 1 is the least there can be."""
    roofline = attempt.profile.roofline if attempt.profile else None
    return roofline.dram_bytes / roofline.compulsory_bytes if roofline and roofline.compulsory_bytes else None


def speedup_upper(speed: Performance) -> float | None:
    """Upper end of the interval of the speedup over the fastest baseline; at least the speedup."""
    timing = speed.timing
    ratio = timing.ratio(timing.fastest) if timing is not None and timing.fastest is not None else None
    return None if ratio is None or speed.speedup is None else max(ratio.interval[1], speed.speedup)


def measured_floor_us(attempt: Attempt, compulsory_bytes: float | None = None) -> float | None:
    """Least time in µs to move the compulsory bytes on the GPU that measured the attempt, and those of host memory that
    its profile names; None where nothing was measured, or the GPU or the bytes are unknown.

    Args:
        compulsory_bytes: used where the attempt has no profile.
    """
    fingerprint = attempt.evaluation.fingerprint
    least = attempt.profile.roofline.compulsory_bytes if attempt.profile else compulsory_bytes
    host_bytes = attempt.profile.roofline.host_bytes if attempt.profile else 0.0
    return floor_us(least or None, spec_of_fingerprint(fingerprint), host_bytes) if fingerprint.gpu else None


def summarise(
    run: str,
    task: str,
    attempts: Sequence[Attempt],
    finished: str | None = None,
    compulsory_bytes: float | None = None,
) -> TaskSummary:
    """Summarise one task.

    Args:
        attempts: all attempts of the run at the task, in order.
        finished: reason for the end of work on it, if it ended.
        compulsory_bytes: of the task at full size, from the oracle.
    """
    best = best_of(attempts)
    latest = best or (attempts[-1] if attempts else None)
    profile = best.profile if best else None
    speed = best.evaluation.performance if best else None
    correctness = best.evaluation.correctness if best else None
    roofline = profile.roofline if profile else None
    floor = measured_floor_us(best, compulsory_bytes) if best else None
    outcome = forecast_outcome(best.evaluation, task) if best else None
    return TaskSummary.of(
        speed,
        roofline,
        correctness,
        run=run,
        task=task,
        verdict=latest.evaluation.verdict if latest else None,
        rounds=len(attempts),
        best=best.id if best else None,
        moves=steps_to(best, attempts) if best else (),
        reward=latest.reward.value if latest else None,
        dram_ratio=dram_ratio(best) if best else None,
        sectors_per_request=sectors_per_request(profile) if profile else None,
        launches=launches_of(best) if best else None,
        time_us=speed.time_us if speed else None,
        speedup_upper=speedup_upper(speed) if speed else None,
        expected_us=outcome.forecast.expected_us if outcome else None,
        energy_ratio=speed.timing.energy_ratio if speed and speed.timing and speed.quarantined is None else None,
        baselines=tuple(side.name for side in speed.timing.baselines) if speed and speed.timing else (),
        floor_us=floor,
        floor_share=floor / speed.time_us if floor and speed and speed.quarantined is None else None,
        finished=finished,
        uncompared=latest is not None and latest.evaluation.uncompared,
    )


RUN_METRICS = (*SECTORS, *REQUESTS, *TENSOR_METRICS)
"""Names of all metrics in views of a complete run. A view that needs another one adds it here."""

DisplayedState = Literal["running", "interrupted", "stopped", "finished"]
"""``interrupted``: journalled as running, but no process works on it."""


@dataclass(frozen=True)
class RunRecords:
    """A run with its journal. It is immutable, so groups and summaries are cached."""

    run: Run
    attempts: tuple[Attempt, ...]
    """By task and then number."""
    finished: Mapping[str, str] = field(default_factory=dict)
    """Reason for the end of each finished task."""
    live: bool = False
    """Whether a process works on it now."""
    messages: Mapping[str, tuple[Message, ...]] = field(default_factory=dict)
    """Messages about a task outside its attempts, by task."""
    generators: Mapping[str, tuple[InputGenerator, ...]] = field(default_factory=dict)
    """Input generators by task, including refused ones."""
    lessons: Mapping[str, tuple[Lesson, ...]] = field(default_factory=dict)
    """Lessons by task."""
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """Tasks that the run has started, by name."""
    facts: Mapping[str, TaskFacts] = field(default_factory=dict)
    """Facts from the oracle, by task."""
    compulsory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Compulsory bytes of the full size, by task."""

    results: str = ""
    """Value of ``--results`` for commands; empty for the default folder."""
    texts: bool = True
    """False: without texts, as :meth:`Store.attempts` describes, only with :data:`RUN_METRICS`, and without facts. That
    is enough for views of a complete run, not for those of a task or an attempt."""

    @classmethod
    def load(cls, store: Store, run: Run, *, texts: bool = True) -> RunRecords:
        """Load a run.

        Args:
            texts: load all texts; without them a large run takes a fraction of the memory. See :attr:`texts` and
                :meth:`full`.
        """
        run, live = store.refresh(run)
        names = run.config.tasks
        return cls(
            run,
            tuple(store.attempts(run.id, texts=texts, metrics=None if texts else RUN_METRICS)),
            store.finished_tasks(run.id),
            live,
            {task: store.task_messages(run.id, task, texts=texts) for task in names},
            {task: store.generators(run.id, task) for task in names},
            {task: store.lessons_of(run.id, task) for task in names},
            {task.name: task for task in store.tasks(run.id)},
            store.all_facts(run.id) if texts else {},
            store.compulsory_bytes(run.id),
            results_option(store.path.parent),
            texts,
        )

    def full(self, store: Store, task: str) -> RunRecords:
        """The same run with one task in full and no attempts at the others, for that task's pages."""
        if self.texts:
            return replace(self, attempts=self.of_task(task))
        facts = store.facts(self.run.id, task)
        return replace(
            self,
            attempts=tuple(store.attempts(self.run.id, task)),
            messages={task: store.task_messages(self.run.id, task)},
            facts={} if facts is None else {task: facts},
            texts=True,
        )

    @property
    def state(self) -> DisplayedState:
        """The run's state; ``interrupted`` when its process died."""
        if self.run.state is RunState.RUNNING and not self.live:
            return "interrupted"
        return self.run.state.value

    @cached_property
    def origin(self) -> Origin | None:
        """Whether the devices of its evaluations measure or model time; None where they do neither."""
        evaluations = [attempt.evaluation for attempt in self.attempts if not attempt.evaluation.passed_over]
        kinds: set[str] = {evaluation.fingerprint.device_kind for evaluation in evaluations}
        if not kinds:
            kinds = {self.run.config.device.partition(":")[0]}
        if "emulated" in kinds:
            return Origin.MODELLED
        return Origin.MEASURED if "cuda" in kinds else None

    @property
    def measured(self) -> bool:
        """Whether times are measured, so that there may be speedups."""
        return self.origin is Origin.MEASURED

    @cached_property
    def _by_task(self) -> Mapping[str, tuple[Attempt, ...]]:
        groups: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            groups[attempt.task].append(attempt)
        return {task: tuple(attempts) for task, attempts in groups.items()}

    def of_task(self, task: str) -> tuple[Attempt, ...]:
        """All attempts at a task, by number."""
        return self._by_task.get(task, ())

    def bests(self) -> tuple[Attempt | None, ...]:
        """Every task's best attempt, in the run's order; None where nothing was accepted."""
        return tuple(best_of(self.of_task(task)) for task in self.run.config.tasks)

    def all_messages(self) -> Iterator[Message]:
        """All messages of the run."""
        for attempt in self.attempts:
            yield from attempt.messages
        for messages in self.messages.values():
            yield from messages

    def task_messages(self, task: str) -> Iterator[Message]:
        """The same of one task."""
        for attempt in self.of_task(task):
            yield from attempt.messages
        yield from self.messages.get(task, ())

    @cached_property
    def summaries(self) -> tuple[TaskSummary, ...]:
        """One summary per task of the run, in the run's order."""
        return tuple(
            summarise(self.run.id, task, self.of_task(task), self.finished.get(task), self.compulsory_bytes.get(task))
            for task in self.run.config.tasks
        )
