"""One confined oracle for one task. Expected outputs stay in the child, which also compares."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, get_args

from pydantic import AfterValidator, StrictBool

from kernelforge.errors import BaselineError, ChildDied, ChildTimeout, SandboxError, TaskError, UsageError
from kernelforge.evaluation.audit.results import TaskAudit, TestedMutant
from kernelforge.evaluation.generators.recipe import Recipe
from kernelforge.evaluation.oracle.remote_baseline import RemoteBaseline
from kernelforge.evaluation.oracle.shared import Batch, SharedOracles
from kernelforge.prediction.operators import OperatorTrace
from kernelforge.records import Comparison, DType, Graph, Size, SizeFacts, Task, TaskFacts
from kernelforge.records.base import Record
from kernelforge.sandbox.channel import Frame
from kernelforge.sandbox.policy import Limits
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.utils.closing import Closing

KNOWN_TASKS = 4096
"""Tasks whose facts are kept: some ten kilobytes each, or some hundred for the operators of a whole network."""


@dataclass
class OracleFacts:
    """Holds for every later oracle of the same task on the same device, which then need not find it out again."""

    facts: TaskFacts | None = None
    """At every size."""
    scales: dict[str, dict[str, float]] = field(default_factory=dict)
    """By size: input families that torch itself passes, each with the factor at which it does; the task's own first."""
    operators: OperatorTrace | None = None
    """At the full size."""
    has_slices: dict[str, bool] = field(default_factory=dict)
    """By input family: whether the reference has an axis whose slices can be computed by themselves."""
    is_mean: bool | None = None
    """Whether the reference gives the mean or the sum of what it gives for parts of its inputs; None: not known."""
    admitted: bool = False
    """Whether it was proved at the small size that wrong answers earn nothing."""


class KnownTasks:
    """Facts about tasks by digest; the least recently used are dropped first. Safe to use from several threads."""

    def __init__(self, most: int = KNOWN_TASKS) -> None:
        self._most = most
        self._known: OrderedDict[str, OracleFacts] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, task: Task) -> OracleFacts:
        """The facts known of a task; the caller may add to them."""
        with self._lock:
            facts = self._known.setdefault(task.digest, OracleFacts())
            self._known.move_to_end(task.digest)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return facts


REPLY_S = 900.0
"""Longest wait for one answer: a full-size reference in float64 takes minutes on a core that others use too."""

IDLE_S = 60.0
"""Longest time without work on an answer, where the reference runs on the CPU: it waits for nothing but a processor, of
which a busy machine too gives it a hundredth of a second in that time."""

_CPU_S = 24 * 3600.0
"""An oracle lives as long as its task is worked on; single answers are bounded by the wait."""

_COMPILE_S = 900.0
"""Longest wait for a baseline: ``torch.compile`` with autotuning of a whole network, cold."""

_AUDIT_S = 600.0
"""Longest wait for the audit of one task: some hundred runs of a slow reference."""

MEMORY_BYTES: Final = 8 << 30
"""Host memory of the child that judges candidates, where the reference runs on the CPU."""

_HOST_BYTES = 24 << 30
"""Host memory of the child where the reference runs on a GPU; the oracle worker's ``torch_device`` module limits the
GPU's."""

_GPU_TMP_BYTES, _GPU_FILE_BYTES = 2 << 30, 512 << 20
"""The private ``/tmp`` and its largest file, where compiled baselines are kept."""

_ERRORS: dict[str, type[UsageError] | type[TaskError]] = {"UsageError": UsageError, "BaselineError": BaselineError}
"""What a child may call a mistake; anything else it says is one of the task."""

_LONGEST_TEXT = 10_000
"""Characters of what a child says of one finding."""

Family = Literal["task", "normal", "large", "edge", "sparse"]
"""Input families by name; :mod:`kernelforge.evaluation.oracle.worker.inputs` draws them, in the child."""


@contextlib.contextmanager
def _read_as_hostile() -> Iterator[None]:
    """The child runs third-party code: a reply that cannot be read is its failure, never an error of ours."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        text = str(error).split("\n")[0][:300]
        raise SandboxError(
            f"the oracle child sent a reply that cannot be read: {type(error).__name__}: {text}"
        ) from error


class OracleChild(Protocol):
    """A confined child: a :class:`kernelforge.sandbox.Child`, or a connection to some that are shared."""

    def call(self, data: dict[str, Any], blobs: Sequence[Blob] = (), *, timeout_s: float | None = None) -> Frame: ...

    @property
    def ended(self) -> bool: ...

    def memory_bytes(self) -> int: ...

    def close(self) -> None: ...


class ChildZygote(Protocol):
    """Forks confined children: a :class:`kernelforge.sandbox.Zygote`, or an object that limits the use of one."""

    def spawn(self, limits: Limits | None = None) -> OracleChild: ...


@dataclass(frozen=True)
class DrawHandle:
    """One draw of inputs and weights, as bytes for a device. ``handle`` names it towards the oracle."""

    handle: int
    size: str
    family: str
    tensors: Mapping[int, Blob]
    """Input tensors by position: the elements in C order, or the storage span of a non-contiguous one."""
    weights: Mapping[str, Blob]
    """Weights by dotted name, aliases included."""
    tiled: Mapping[int | str, int] = field(default_factory=dict)
    """Bytes of inputs, by position, and of weights, by name, of which there is only a tile here: see
    :attr:`kernelforge.devices.base.RunRequest.tiled`."""
    scalars: Mapping[int, int | float | bool | None] = field(default_factory=dict)
    """Inputs that are no tensors, by position."""


class GeneratorFinding(Record):
    """Whether inputs may be used at one size, and why not."""

    size: str
    ok: StrictBool
    text: Annotated[str, AfterValidator(lambda text: text[:_LONGEST_TEXT])]


class MutantTest(NamedTuple):
    """Inputs that mutants are tried on."""

    name: str
    recipe: Recipe
    sizes: Sequence[str]
    """Names of the sizes where it was admitted."""


class AdmissionIssue(GeneratorFinding):
    """Result of admission for one size and input family."""

    family: Family
    admitted: StrictBool
    """Whether candidates are checked on this family at this size."""


@dataclass(frozen=True)
class AdmissionResult:
    """Whether a task can be judged, with every finding."""

    task: str
    findings: tuple[AdmissionIssue, ...]
    error: str = ""
    """Why the reference cannot be run at all; empty otherwise."""

    @property
    def ok(self) -> bool:
        return not self.error and all(finding.ok for finding in self.findings)


class Oracle(Closing):
    """One per task and worker. Not for use by two threads at once.

    Args:
        zygote: forks the confined child that runs the task file.
        task: the task; its source never runs in this process.
        threads: torch threads of the child.
        device: where the reference runs: ``cpu``, or ``cuda:0`` in a zygote of role ``gpu-oracle``. Torch's own error
            is then measured there, and baselines can be timed.
        reply_s: longest wait for one answer, in seconds; a reference that hangs is ended then.
        answer_cpu_s: most CPU time of one answer, in seconds, where the reference runs on ``cpu``.
        memory_bytes: what the child may take of the host, where the reference runs on ``cpu``.
        cached: what earlier oracles of the task found out on this device; it takes in what this one finds.

    Raises:
        TaskError: the reference does not run, or cannot be judged (active dropout, random results); or there is no such
            device.
    """

    def __init__(
        self,
        zygote: ChildZygote,
        task: Task,
        *,
        threads: int = 1,
        device: str = "cpu",
        reply_s: float = REPLY_S,
        answer_cpu_s: float | None = None,
        memory_bytes: int = MEMORY_BYTES,
        cached: OracleFacts | None = None,
    ) -> None:
        self.task = task
        self.cached = cached or OracleFacts()
        self.device = device
        self._zygote = zygote
        self._threads = threads
        self.reply_s = reply_s
        """Longest wait for one answer, in seconds; for the next answers it may be changed."""
        self._answer_cpu_s = answer_cpu_s
        self._memory_bytes = memory_bytes
        self._fatal: dict[str, str] = {}
        """Baselines that ended the child, and how: not tried again."""
        self._child: OracleChild | None = None
        self._batch = Batch()
        """Of an oracle that is not shared; those that are have one for all evaluators."""
        self._started = 0
        self._closed = False
        self._further = ""
        """Name of the size that its child was given last."""
        self._handles = itertools.count(1)
        self._sides = itertools.count(1)
        self._tests: dict[str, Recipe] = {}
        self._start()

    @_read_as_hostile()
    def facts(self, sizes: Sequence[str] | None = None) -> TaskFacts:
        """Specs, compulsory bytes, operations and eager launches, at ``sizes`` or at every size of the task."""
        if sizes is None and self.cached.facts is not None:
            return self.cached.facts
        names = [size.name for size in self.task.sizes] if sizes is None else list(sizes)
        frame = self._call({"op": "facts", "sizes": [self._checked_size(name) for name in names]})
        size_facts = tuple(SizeFacts.model_validate(facts) for facts in frame.data["sizes"])
        facts = TaskFacts(task_digest=self.task.digest, sizes=size_facts)
        if sizes is None:
            self.cached.facts = facts
        return facts

    @_read_as_hostile()
    def take_size(self, size: Size) -> SizeFacts:
        """Let the task have one further size, until another is taken or the child ends; gives what a plan needs of it.

        Raises:
            TaskError: the reference does not run there.
        """
        self._further = ""
        facts = SizeFacts.model_validate(self._call({"op": "size", "size": size.model_dump(mode="json")}).data["facts"])
        if facts.size != size.name:
            raise SandboxError(f"the oracle of task '{self.task.name}' sent facts of another size than asked")
        self._further = size.name
        return facts

    @_read_as_hostile()
    def trace(self, size: str = "full") -> Graph:
        """The reference as a graph of ATen operators.

        Raises:
            TaskError: its control flow or its shapes depend on tensor values.
        """
        return Graph.model_validate(self._call({"op": "trace", "size": self._checked_size(size)}).data["graph"])

    @_read_as_hostile()
    def operators(self, size: str = "full", *, run: bool = True) -> OperatorTrace:
        """The operators that eager PyTorch runs for the reference, with bytes and operations.

        Args:
            size: name of a size.
            run: run the reference where its operators do not follow from shapes alone.

        Raises:
            TaskError: the reference does not run.
        """
        if size == "full" and self.cached.operators is not None:
            return self.cached.operators
        request = {"op": "operators", "size": self._checked_size(size), "run": run}
        trace = OperatorTrace.model_validate(self._call(request).data["trace"])
        if trace.size != size:
            raise SandboxError(f"the oracle of task '{self.task.name}' sent operators of another size than asked")
        if size == "full":
            self.cached.operators = trace
        return trace

    @_read_as_hostile()
    def families(self, size: str) -> tuple[str, ...]:
        """Input distributions that torch itself passes at this size; the task's own first."""
        if size not in self.cached.scales:
            scales = self._call({"op": "families", "size": self._checked_size(size)}).data["scales"]
            if not scales or not scales.keys() <= set(get_args(Family)):
                raise SandboxError(f"the oracle of task '{self.task.name}' sent no list of input families")
            self.cached.scales[size] = {family: float(scale) for family, scale in scales.items()}
        return tuple(self.cached.scales[size])

    @_read_as_hostile()
    def try_generator(self, name: str, recipe: Recipe, sizes: Sequence[str]) -> tuple[GeneratorFinding, ...]:
        """Whether inputs drawn by a recipe may be used, size by size: torch must pass on them as on our own families.

        Raises:
            SandboxError: the reference did not survive them; the next request starts a new child.
        """
        request = {"op": "try", "name": name, "recipe": recipe.model_dump(mode="json")}
        frame = self._call({**request, "sizes": [self._checked_size(size) for size in sizes]})
        return tuple(GeneratorFinding(**finding) for finding in frame.data["findings"])

    def use_generators(self, recipes: Mapping[str, Recipe]) -> None:
        """From now on :meth:`draw` also knows the families ``tester:<name>``; those known before are forgotten."""
        self._tests = dict(recipes)
        self._call(self._generators_request())

    @_read_as_hostile()
    def draw(
        self, size: str, family: str, seed: int, *, expected: bool = True, tiled: bool = False, kept: bool = False
    ) -> DrawHandle:
        """Draw inputs and weights. ``seed`` is secret and fresh for each draw.

        Where oracles are shared, those that draw the same with ``kept`` get one draw, which is made once.

        With ``expected=False`` only inputs are made (for a profile), and :meth:`check` refuses the handle. With
        ``tiled`` too, of a large input of the task's own family, or a large weight, only as much is drawn as shows its
        values.

        Raises:
            TaskError: the family is not admitted at this size, or an input can only be drawn whole.
        """
        handle = next(self._handles)
        request = {"op": "draw", "handle": handle, "size": self._checked_size(size), "family": family}
        frame = self._call({**request, "seed": str(seed), "expected": expected, "tiled": tiled, "kept": kept})
        data, positions, names = frame.data, frame.data["positions"], frame.data["weights"]
        if len(frame.blobs) != len(positions) + len(names):
            raise SandboxError("the oracle child sent a draw whose parts do not add up")
        weights = dict(zip(names, frame.blobs[len(positions) :], strict=True))
        tiles = {key if isinstance(key, str) else int(key): int(nbytes) for key, nbytes in data["tiled"]}
        for name, aliases in data["aliases"].items():
            weights.update(dict.fromkeys(aliases, weights[name]))
            tiles.update(dict.fromkeys(aliases, tiles[name]) if name in tiles else {})
        return DrawHandle(
            handle=handle,
            size=size,
            family=family,
            tensors=dict(zip(positions, frame.blobs[: len(positions)], strict=True)),
            weights=weights,
            tiled=tiles,
            scalars={int(position): value for position, value in data["scalars"].items()},
        )

    @_read_as_hostile()
    def check(
        self,
        handle: int,
        outputs: Sequence[Blob],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[DType],
    ) -> Comparison:
        """Compare a candidate's outputs (then its mutated inputs) with what the draw must give."""
        request = {
            "op": "check",
            "handle": handle,
            "shapes": [list(shape) for shape in shapes],
            "dtypes": [str(dtype) for dtype in dtypes],
        }
        return Comparison.model_validate(self._call(request, outputs).data["comparison"])

    def has_slices(self, family: str = "task") -> bool:
        """Whether the reference has an axis whose slices can be worked out by themselves, on inputs of a family."""
        if family not in self.cached.has_slices:
            reply = self._call({"op": "has_slices", "family": family})
            self.cached.has_slices[family] = bool(reply.data.get("has_slices"))
        return self.cached.has_slices[family]

    def is_mean(self) -> bool:
        """Whether the reference gives one number, the mean or the sum of those of parts of its inputs."""
        if self.cached.is_mean is None:
            self.cached.is_mean = bool(self._call({"op": "is_mean"}).data.get("is_mean"))
        return self.cached.is_mean

    @_read_as_hostile()
    def choose(self, size: str, seed: int, count: int) -> dict[int, list[int]]:
        """Flat indices of about ``count`` elements of each output whose values the oracle can tell without the rest.

        Raises:
            TaskError: it can tell none.
        """
        request = {"op": "choose", "size": self._checked_size(size), "seed": str(seed), "count": count}
        elements = self._call(request).data["elements"]
        return {int(output): [int(index) for index in indices] for output, indices in elements.items()}

    @_read_as_hostile()
    def check_part(
        self,
        handle: int,
        elements: Mapping[int, Sequence[int]],
        parts: Sequence[tuple[Blob | None, Blob]],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[DType],
    ) -> Comparison:
        """Compare some elements of a candidate's outputs, those near the ``wanted`` ones.

        Args:
            handle: A draw; it needs no expected outputs.
            wanted: What :meth:`choose` gave.
            parts: For each output flat indices (int64, ascending) and the elements there; all without indices where
                the outputs are whole, of which some slices are compared then, or the one number of :meth:`is_mean`.
            shapes: Of the outputs.
            dtypes: Of the outputs.

        Raises:
            TaskError: the reference cannot be run on a part.
        """
        request = {
            "op": "check_part",
            "handle": handle,
            "wanted": {str(output): list(indices) for output, indices in elements.items()},
            "shapes": [list(shape) for shape in shapes],
            "dtypes": [str(dtype) for dtype in dtypes],
            "whole": all(indices is None for indices, _ in parts),
        }
        blobs = [blob for part in parts for blob in part if blob is not None]
        return Comparison.model_validate(self._call(request, blobs).data["comparison"])

    def begin_batch(self, seed: int) -> int:
        """Begin an evaluation that shares draws; gives the secret seed of its batch."""
        if isinstance(self._zygote, SharedOracles):
            return int(self._call({"op": "begin", "seed": str(seed)}).data["seed"])
        return self._batch.begin(seed)

    def end_batch(self) -> None:
        """End the batch of evaluations that share draws."""
        if isinstance(self._zygote, SharedOracles):
            self._call({"op": "end"})
        else:
            self._batch.end()

    def renew(self) -> None:
        """Begin an evaluation: a child that has ended since the last one, alone or with its host, is replaced at the
        next request, and does not make it fail. Draws that it had are gone."""
        if self._child is not None and self._child.ended:
            self._drop()

    def release(self, handle: int) -> None:
        """Forget a draw; the child frees its memory. One that died, or dies now, took its draws with it: its failure
        shows at the next request, and replaces no error that the draw's user is about to raise."""
        if self._child is not None:
            with contextlib.suppress(SandboxError, TaskError):
                self._call({"op": "release", "handle": handle})

    @_read_as_hostile()
    def baselines(self, size: str = "full") -> tuple[str, ...]:
        """Names of the baselines that can be tried for this task on this device; nothing is built to say so."""
        names = self._call({"op": "baselines", "size": self._checked_size(size)}).data["names"]
        return tuple(str(name) for name in names if name not in self._fatal)

    @_read_as_hostile()
    def arm(
        self, baseline: str, handles: Sequence[int], *, flush_bytes: int = 0, flush_each: bool = False
    ) -> RemoteBaseline:
        """Build a baseline on the sets of some draws, and check what it computes; what is dear is kept for the next.

        Args:
            baseline: One of :meth:`baselines`.
            handles: The draws, all of one size, with their expected outputs. They may be released afterwards.
            flush_bytes: Read in every sample, to empty the L2; 0 for nothing.
            flush_each: Before each execution, and not only once.

        Raises:
            BaselineError: it cannot be had here, and why: a note for the record, no failure of the evaluation.
            ChildDied: building it ended the child, whose draws are gone. It is not tried again.
            ChildTimeout: the same, for it took too long.
        """
        if baseline in self._fatal:
            raise BaselineError(self._fatal[baseline])
        number = next(self._sides)
        request = {"op": "arm", "name": baseline, "handles": list(handles), "side": number}
        request |= {"flush_bytes": flush_bytes, "flush_each": flush_each}
        try:
            data = self._call(request, timeout_s=_COMPILE_S).data
        except (ChildDied, ChildTimeout) as error:
            self._fatal[baseline] = f"building it ended the oracle's process: {str(error).splitlines()[0]}"
            raise
        except TaskError as error:
            if self._child is not None:
                raise BaselineError(str(error)) from error
            self._fatal[baseline] = f"building it spoilt the GPU's context: {error}"
            raise ChildDied(self._fatal[baseline]) from error
        return RemoteBaseline(
            baseline, bool(data["captured"]), str(data["note"]), number, lambda request: self._ask_side(request)
        )

    @property
    def children(self) -> int:
        """Number of the child that is next asked; draws of another are gone."""
        return self._started + (self._child is None)

    @property
    def holds_draws(self) -> bool:
        """Whether its child lives; one that ended took its draws with it."""
        return self._child is not None

    def require_draws(self) -> None:
        """Check between two rounds of a timing that its child lives: :meth:`release` does not say so.

        Raises:
            ChildDied: it does not.
        """
        if not self.holds_draws:
            raise ChildDied("the oracle's process, which also holds the baselines, ended between two rounds")

    def give_up(self, baseline: str, reason: str) -> None:
        """Not to try a baseline again, since it ended the child while it was timed."""
        self._fatal[baseline] = reason

    @_read_as_hostile()
    def memory(self) -> int:
        """Bytes that the reference could still take on its device."""
        return int(self._call({"op": "memory"}).data["free_bytes"])

    def held_bytes(self) -> int:
        """Resident memory of its process on the host, where tensors of earlier draws may be kept for the next."""
        return 0 if self._child is None else self._child.memory_bytes()

    @_read_as_hostile()
    def admit(self, sizes: Sequence[str] | None = None) -> AdmissionResult:
        """Prove that torch passes and trivial answers fail, at ``sizes`` or at every size but ``full``.

        The full size is left out by default: it differs in nothing but cost.
        """
        names = [size.name for size in self.task.sizes if size.name != "full"] if sizes is None else list(sizes)
        frame = self._call({"op": "admit", "sizes": [self._checked_size(name) for name in names]})
        findings = tuple(AdmissionIssue(**finding) for finding in frame.data["findings"])
        if {finding.size for finding in findings} != set(names):
            raise SandboxError(f"the oracle of task '{self.task.name}' sent findings of other sizes than asked")
        return AdmissionResult(task=self.task.name, findings=findings)

    def require_admitted(self) -> None:
        """Check once that the task is admitted at the small size.

        Raises:
            TaskError: wrong answers to the task could earn a reward.
        """
        if self.cached.admitted:
            return
        admission = self.admit(("small",))
        if not admission.ok:
            problems = admission.error or "; ".join(finding.text for finding in admission.findings if not finding.ok)
            raise TaskError(
                f"task {self.task.name!r} is not admitted, for wrong answers could earn a reward: {problems}. "
                f"`kernelforge tasks check` shows every finding"
            )
        self.cached.admitted = True

    @_read_as_hostile()
    def audit(self, most: int, also: Sequence[str] = ()) -> TaskAudit:
        """Put faults into the reference, one at a time: what became of each.

        Args:
            most: How many mutants are run, spread over the kinds of faults.
            also: Names of mutants that are run in any case, as far as they exist.

        Raises:
            TaskError: the reference cannot be run or judged.
        """
        request = {"op": "audit", "most": most, "also": list(also)}
        audit = TaskAudit.model_validate(self._call(request, timeout_s=_AUDIT_S).data["audit"])
        if (audit.task, audit.same_as, audit.error) != (self.task.name, "", "") or len(audit.mutants) > most + len(
            also
        ):
            raise SandboxError(f"the oracle of task '{self.task.name}' sent the audit of something else")
        return audit

    @_read_as_hostile()
    def tested_mutants(self, most: int, tests: Sequence[MutantTest]) -> tuple[TestedMutant, ...]:
        """Put faults into the reference, one at a time: which inputs reject each.

        Args:
            most: How many mutants are run, spread over the kinds of faults.
            tests: Inputs besides the check's own. They need not be in force, and are not afterwards.

        Raises:
            TaskError: the reference cannot be run or judged.
        """
        sent = [
            {"name": name, "recipe": recipe.model_dump(mode="json"), "sizes": [self._checked_size(at) for at in sizes]}
            for name, recipe, sizes in tests
        ]
        reply = self._call({"op": "tested", "most": most, "tests": sent}, timeout_s=_AUDIT_S).data["mutants"]
        mutants = tuple(TestedMutant.model_validate(mutant) for mutant in reply)
        names = {test.name for test in tests}
        if len(mutants) > most or not all(names.issuperset(mutant.by_tests) for mutant in mutants):
            raise SandboxError(f"the oracle of task '{self.task.name}' sent mutants or tests that are not those sent")
        return mutants

    def close(self) -> None:
        """End the child; safe to call twice."""
        self._closed = True
        self._drop()

    def _checked_size(self, size: str) -> str:
        if size not in {known_size.name for known_size in self.task.sizes} | {self._further}:
            raise UsageError(f"task '{self.task.name}' has no size '{size}'")
        return size

    def _call(self, data: dict[str, Any], blobs: Sequence[Blob] = (), *, timeout_s: float | None = None) -> Frame:
        """Ask the child. One that died is replaced at the next request; its draws are gone with it."""
        if self._closed:
            raise SandboxError(f"the oracle of task '{self.task.name}' is closed")
        child = self._child or self._start()
        try:
            frame = child.call(data, blobs, timeout_s=timeout_s or self.reply_s)
        except (ChildDied, ChildTimeout, KeyboardInterrupt):
            self._drop()
            raise
        if frame.data.get("lost"):
            self._drop()
        return self._checked(frame)

    @_read_as_hostile()
    def _ask_side(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request of an armed baseline. Where its child is gone, so is it: nothing to free."""
        if request["op"] == "disarm" and self._child is None:
            return {}
        return self._call(request).data

    def _start(self) -> OracleChild:
        limits = Limits(
            wall_s=self.reply_s, cpu_s=_CPU_S, memory_bytes=self._memory_bytes, processes=2 * max(self._threads, 1)
        )
        if self.device == "cpu":
            limits = replace(limits, idle_s=IDLE_S, answer_cpu_s=self._answer_cpu_s)
        else:
            limits = replace(limits, memory_bytes=_HOST_BYTES, tmp_bytes=_GPU_TMP_BYTES, file_bytes=_GPU_FILE_BYTES)
        self._child = child = self._zygote.spawn(limits)
        self._started += 1
        task = self.task.model_dump(mode="json")
        request = {"op": "load", "task": task, "threads": self._threads, "device": self.device}
        request["scales"] = self.cached.scales
        try:
            self._checked(child.call(request, timeout_s=self.reply_s))
            if self._tests:
                self._checked(child.call(self._generators_request(), timeout_s=self.reply_s))
        except BaseException:
            self._drop()
            raise
        return child

    def _generators_request(self) -> dict[str, Any]:
        recipes = {name: recipe.model_dump(mode="json") for name, recipe in self._tests.items()}
        return {"op": "tests", "recipes": recipes}

    def _drop(self) -> None:
        child, self._child, self._further = self._child, None, ""
        self._batch.end()
        if child is not None:
            with contextlib.suppress(SandboxError):
                child.close()

    def _checked(self, frame: Frame) -> Frame:
        if not frame.data.get("ok"):
            text = str(frame.data.get("message", "the oracle gave no reason"))[:_LONGEST_TEXT]
            message = f"task '{self.task.name}': {text}"
            raise _ERRORS.get(str(frame.data.get("error")), TaskError)(message)
        return frame
