"""Leaderboard entries: their format, and their files read as hostile input."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, field_validator, model_validator

from kernelforge.errors import UsageError
from kernelforge.records import (
    Budget,
    Candidate,
    Evaluation,
    Fingerprint,
    MeasureSettings,
    Profile,
    Record,
    Verdict,
    first_fault,
)
from kernelforge.report.formatting import one_line
from kernelforge.report.views.board import BoardKey, KeyParts, timings_of
from kernelforge.report.views.samples import SampleCounts

MAX_FILE_BYTES = 64 << 20
_MAX_DIGITS = 20
"""Longest integer in characters: more than 64 bits need."""


class EntryError(UsageError):
    """A submitted file is invalid; the message names the file and the error."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        EntryError: it is missing, larger than :data:`MAX_FILE_BYTES`, or is not a JSON object in UTF-8.
    """
    try:
        if not path.is_file():
            raise EntryError(f"{path}: no such file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise EntryError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise EntryError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; an entry never is")
    try:
        value = json.loads(
            data.decode(),
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_no_number,
            object_pairs_hook=_each_key_once,
        )
    except RecursionError:
        raise EntryError(f"{path}: brackets within brackets, too deep to be an entry") from None
    except ValueError as error:  # of the decoder, the parser, or the hooks
        raise EntryError(f"{path}: not usable JSON: {error}") from None
    if not isinstance(value, dict):
        raise EntryError(f"{path}: a JSON {type(value).__name__}, where an object belongs")
    return value


def digest_of(data: dict[str, Any]) -> str:
    """SHA-256 over canonical JSON of all but the field ``digest``.

    Over the contents of the file, not over parsed records: a later version with further fields computes the same
    digest.
    """
    rest = {name: value for name, value in data.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def has_at_most(count: int, value: Any) -> bool:
    """Whether a JSON value contains at most ``count`` values, nested ones included."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        inner = current.values() if isinstance(current, dict) else current if isinstance(current, list) else ()
        count -= 1
        if count < len(waiting) + len(inner):
            return False
        waiting.extend(inner)
    return True


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_MAX_DIGITS]} is too large for a number")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {repeated[:80]!r} is given twice")
    return result


FORMAT: Final = "kernelforge-entry/1"

_HUGE = 1e30
"""Limit on counts of bytes and operations, far above real ones; sums and ratios below it stay finite."""

_MOST_VALUES = 200_000
"""Limit on values in one row with all its samples; rows have some thousands."""

M = TypeVar("M", bound=Record)

Line = Annotated[str, StringConstraints(max_length=200)]
Timestamp = Annotated[Line, AfterValidator(lambda text: datetime.fromisoformat(text) and text)]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
SuiteName = Annotated[str, StringConstraints(pattern=r"^[^/\\\x00-\x1f]{1,80}$")]
TaskName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_\-./]*$", max_length=300)]


class RunFacts(Record):
    """Settings of the run. Contains no API key and no address of a server."""

    id: RunId
    started: Timestamp
    """UTC, ISO 8601."""
    ended: Line | None
    state: Literal["finished", "stopped"]
    """``stopped``: by a budget or by hand; tasks that it did not start count as failed."""
    kernelforge: Line
    strategy: Line
    options: dict[Line, bool | int | float | Line] = Field(default={}, max_length=100)
    coder: Line
    judge: Line
    tester: Line | None
    tune: bool
    memory: Literal["off", "run", "results"]
    budget: Budget
    stop_after: int | None
    stop_gain: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    cascade: int | None = Field(default=None, ge=1)
    allocate: Literal["even", "headroom"] = "even"
    starts: int = Field(default=0, ge=0)
    """Tasks whose search was started from a kernel that was there."""
    measure: MeasureSettings
    measure_top: int | None = None
    """Candidates of a round that were measured; None for all."""
    seed: int
    """Seed of the secret inputs. A verification draws its own."""

    @field_validator("measure")
    @classmethod
    def _a_rate(cls, value: MeasureSettings) -> MeasureSettings:
        if value.qps is not None and not 0.1 <= value.qps <= 1e6:
            raise ValueError(f"qps {value.qps:g} is no rate at which anybody could measure again")
        return value


class Best(Record):
    """The best attempt at a task, with all data for another evaluation."""

    attempt: Line
    """Its id within the run."""
    number: int = Field(ge=0)
    candidate: Candidate
    candidate_hash: Hash
    evaluation: Evaluation
    evaluation_key: Hash
    profile: Profile | None
    compulsory_bytes: float | None = Field(ge=0, lt=_HUGE)
    """Compulsory bytes of the full size, where the run knew them."""

    @model_validator(mode="after")
    def _belongs_together(self) -> Best:
        evaluation, profile = self.evaluation, self.profile
        if self.candidate.hash != self.candidate_hash:
            raise ValueError(f"candidate_hash is {self.candidate_hash}, source, plan and choices have another")
        if evaluation.candidate != self.candidate_hash:
            raise ValueError("the evaluation is of another candidate")
        if evaluation.key != self.evaluation_key:
            raise ValueError(f"evaluation_key is {self.evaluation_key}, its parts have another")
        if evaluation.verdict is not Verdict.OK:
            raise ValueError(f"the best of a task has verdict OK, not {evaluation.verdict}")
        if self.candidate.lane != "plan" or evaluation.lane != "plan":
            raise ValueError("boards hold launch plans; a candidate of lane modelnew runs host code of its own")
        if profile is not None and profile.device != evaluation.fingerprint.device:
            raise ValueError("the profile is of another device")
        if profile is not None:
            roof = profile.roofline
            if self.compulsory_bytes not in (None, roof.compulsory_bytes):
                raise ValueError(
                    f"compulsory_bytes is {self.compulsory_bytes}, its profile has {roof.compulsory_bytes}"
                )
            moved = (roof.dram_bytes, roof.compulsory_bytes, roof.host_bytes)
            if not all(0 <= number < _HUGE for number in (roof.flops, *moved, roof.arithmetic_intensity, roof.time_us)):
                raise ValueError("a number of the roofline is negative, not finite or beyond belief")
        return self


class TaskRow(Record):
    """Result of one task."""

    task: TaskName
    task_digest: Hash | None
    """None only where the run did not start the task."""
    verdict: Verdict | None
    """OK when an attempt was accepted, else that of the latest attempt; None when the run did not start the task."""
    finished: Line | None
    """Reason for the end of work on it."""
    attempts: int = Field(ge=0, lt=10**9)
    infra: int = Field(ge=0)
    quarantined: int = Field(ge=0)
    tokens: int | None = Field(ge=0, lt=2**53)
    """Of all models; None where a part is unknown."""
    dollars: float | None = Field(ge=0, lt=1e9)
    moves: tuple[Line, ...] = Field(max_length=10_000)
    samples: SampleCounts | None = None
    """Of ``best-of-n`` on a task with a known translation; None otherwise."""
    best: Best | None

    @model_validator(mode="after")
    def _consistent(self) -> TaskRow:
        if max(self.infra, self.quarantined, int(self.best is not None)) > self.attempts:
            raise ValueError("there are more outcomes than attempts")
        if self.samples is not None and self.samples.judged + self.infra > self.attempts:
            raise ValueError("there are more samples than attempts")
        if (self.verdict is None) != (self.attempts == 0):
            raise ValueError("a task has a verdict when it has attempts")
        if self.task_digest is None and self.attempts:
            raise ValueError("a task with attempts has a task_digest")
        if self.best is not None and self.verdict is not Verdict.OK:
            raise ValueError(f"a task with a best attempt has verdict OK, not {self.verdict}")
        if self.best is not None and self.best.evaluation.task != self.task_digest:
            raise ValueError("the evaluation is of another task")
        return self


class EntryFile(Record):
    """A run as it is submitted."""

    format: Literal["kernelforge-entry/1"] = FORMAT
    by: Annotated[str, StringConstraints(min_length=1, max_length=80)]
    """Name of the submitter."""
    note: Annotated[str, StringConstraints(max_length=500)] = ""
    run: RunFacts
    key: BoardKey
    suite: SuiteName
    suite_digest: Hash
    fingerprints: tuple[Fingerprint, ...] = Field(min_length=1, max_length=100_000)
    """All fingerprints of the run's attempts."""
    tasks: tuple[TaskRow, ...] = Field(min_length=1, max_length=20_000)
    digest: Digest
    """SHA-256 of the file's canonical JSON without this field."""

    @model_validator(mode="after")
    def _consistent(self) -> EntryFile:
        names = [row.task for row in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError("tasks: a task is listed twice")
        for fingerprint in self.fingerprints:
            if fingerprint.jail == "none":
                raise ValueError("fingerprints: candidates ran without a jail; such a run cannot be submitted")
            if any(isinstance(value, str) and len(value) > 200 for value in dict(fingerprint).values()):
                raise ValueError("fingerprints: a text is longer than 200 characters")
        fingerprints = set(self.fingerprints)
        for row in self.tasks:
            if row.best is not None and row.best.evaluation.fingerprint not in fingerprints:
                raise ValueError(f"tasks: the fingerprint of {row.task} is not among those of the run")
        key = self.own_key()
        if len(key.precision) > 200:
            raise ValueError("key: precision is longer than 200 characters")
        wrong = [name for name in BoardKey.model_fields if getattr(self.key, name) != getattr(key, name)]
        if wrong:
            raise ValueError(f"key: {wrong[0]} is {getattr(self.key, wrong[0])}, the rows say {getattr(key, wrong[0])}")
        return self

    def own_key(self) -> BoardKey:
        """The key computed from the rows. Only the precision policy is taken from the file: it is a name."""
        bests = [row.best.evaluation for row in self.tasks if row.best is not None]
        parts = KeyParts(
            device=self.fingerprints[0].device,
            suite=self.suite,
            suite_digest=self.suite_digest,
            tasks=[row.task for row in self.tasks],
            published=self.run.measure.protocol == "kernelbench",
            fingerprints=self.fingerprints,
            lanes=[evaluation.lane for evaluation in bests],
            protocols=[evaluation.performance.protocol for evaluation in bests if evaluation.performance is not None],
            timings=timings_of(bests),
        )
        return parts.key().model_copy(update={"precision": self.key.precision})


def parsed(model: type[M], value: Any, where: str, *, measured: Any = None, of_list: bool = False) -> M:
    """A record from JSON. A value with too many parts is rejected before validation, whose errors would fill the
    memory.

    Args:
        where: Beginning of error messages.
        measured: Value to count, where parts of ``value`` are records already.
        of_list: ``where`` names an item of a list; the path of an error is appended to it.

    Raises:
        EntryError: it is invalid.
    """
    if not has_at_most(_MOST_VALUES, value if measured is None else measured):
        raise EntryError(f"{where}: more than {_MOST_VALUES:,} values, which no entry needs there")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        mark = "." if of_list and error.errors()[0]["loc"] else ": "
        raise EntryError(f"{where}{mark}{one_line(first_fault(error), 500)}") from error


def parsed_each(model: type[M], values: Any, where: str) -> Any:
    """Records of a list, parsed one by one, so that the first error ends it; a value that is not a list is returned as
    it is."""
    if not isinstance(values, list):
        return values
    return tuple(parsed(model, value, f"{where}.{number}", of_list=True) for number, value in enumerate(values))


def parse_entry(data: dict[str, Any], name: str) -> EntryFile:
    """The entry in a JSON object; ``name`` is the file's, for messages.

    Raises:
        EntryError: a field is missing, unknown, invalid, or contradicts another, or the digest is wrong.
    """
    rest = {field: value for field, value in data.items() if field not in ("tasks", "fingerprints")}
    parts = {
        "fingerprints": parsed_each(Fingerprint, data.get("fingerprints"), f"{name}: fingerprints"),
        "tasks": parsed_each(TaskRow, data.get("tasks"), f"{name}: tasks"),
    }
    entry = parsed(
        EntryFile, {**rest, **{field: rows for field, rows in parts.items() if field in data}}, name, measured=rest
    )
    digest = digest_of(data)
    if digest != entry.digest:
        raise EntryError(f"{name}: digest: the content has {digest[:16]}…, the file says {entry.digest[:16]}…")
    return entry


def load_entry(path: Path) -> EntryFile:
    """The entry in a file.

    Raises:
        EntryError: it is invalid; see :func:`parse_entry`.
    """
    return parse_entry(read_object(path), str(path))


def sealed(fields: dict[str, Any]) -> EntryFile:
    """An entry of these fields with its digest."""
    draft = EntryFile.model_validate({**fields, "digest": "0" * 64})
    return draft.model_copy(update={"digest": digest_of(json.loads(draft.model_dump_json()))})


def entry_text(entry: EntryFile) -> str:
    """Text of the file, indented, so that a pull request shows the changes."""
    return json.dumps(json.loads(entry.model_dump_json()), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def entry_schema() -> str:
    schema = EntryFile.model_json_schema()
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"
