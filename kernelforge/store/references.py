"""Resolve references on the command line: runs, their tasks, attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import results_option, shell_command

if TYPE_CHECKING:
    from kernelforge.records import Attempt, Run
    from kernelforge.store import Store

_NAMED = 8
"""Most tasks named in an error."""


class Reference(NamedTuple):
    """A run, one of its tasks, or an attempt at the task."""

    run: Run
    task: str | None = None
    number: int | None = None

    def __str__(self) -> str:
        text = f"run '{self.run.id}'"
        if self.task is not None:
            text += f", task '{self.task}'"
        return text if self.number is None else f"{text}, attempt {self.number}"


def resolve(store: Store, reference: str) -> Reference:
    """Resolve a reference: by a run's full id, the longest first; by a unique beginning of one; or in the latest run.

    Raises:
        UsageError: there is no match, or more than one.
    """
    latest, ids = store.run("latest"), store.run_ids()
    cuts = list(_cuts(reference, "/"))
    if reading := _by_full_id(store, ids, cuts):
        return reading
    begun = [(head, rest) for head, rest in cuts if head and sum(run_id.startswith(head) for run_id in ids) == 1]
    readings = {str(reading): reading for head, rest in begun if (reading := _within(store.run(head), rest))}
    if len(readings) > 1:
        raise UsageError(f"'{reference}' may be {' or '.join(readings)}: write the run's id in full")
    for reading in readings.values():
        return reading
    if reference and (reading := _within(latest, reference)):
        return reading
    raise _unknown(store, latest, reference)


def _by_full_id(store: Store, ids: list[str], cuts: list[tuple[str, str]]) -> Reference | None:
    exact = [(head, rest) for head, rest in cuts if head in ids or head == "latest"]
    return next((match for head, rest in exact if (match := _within(store.run(head), rest))), None)


def _within(run: Run, rest: str) -> Reference | None:
    """Resolve the part after the run's id; None if the run has no such task."""
    if not rest:
        return Reference(run)
    if rest in run.config.tasks:
        return Reference(run, rest)
    task, _, number = rest.rpartition("/")
    return Reference(run, task, int(number)) if task in run.config.tasks and number.isdecimal() else None


def _unknown(store: Store, latest: Run, reference: str) -> UsageError:
    """Error for a reference without a match."""
    ids = store.run_ids()
    for head, rest in _cuts(reference, "/"):
        begun = [run_id for run_id in ids if run_id.startswith(head)]
        if head in ids or head == "latest" or len(begun) == 1:
            run, task = store.run(head), rest.rpartition("/")[0]
            if task in run.config.tasks:
                return _no_number(store, reference, f"{run.id}/{task}")
            return UsageError(f"run {run.id} has no task '{task or rest}'; it has: {_some(run.config.tasks)}")
        if begun:
            break
    else:
        head = reference.partition("/")[0]
    task = reference.rpartition("/")[0]
    if task in latest.config.tasks:
        return _no_number(store, reference, task)
    try:
        store.run(head)
    except UsageError as unknown:
        return UsageError(f"{unknown}; tasks of the latest run: {_some(latest.config.tasks)}")
    raise AssertionError(f"'{reference}' names a run")


def _no_number(store: Store, reference: str, task: str) -> UsageError:
    see = shell_command("show", task, results=results_option(store.path.parent))
    return UsageError(f"'{reference}' does not end in the number of an attempt: see `{see}`")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _cuts(text: str, mark: str) -> Iterator[tuple[str, str]]:
    """The complete text, then the parts before and after each mark, the longest first part first."""
    yield text, ""
    end = len(text)
    while (end := text.rfind(mark, 0, end)) >= 0:
        yield text[:end], text[end + len(mark) :]


def resolve_pair(store: Store, text: str) -> tuple[Run, Run] | None:
    """Two runs as ``A..B``; None if that is no pair. Ids may hold two dots: full ids take precedence.

    Raises:
        UsageError: one of them is unknown, both are one, or there is more than one way to read it.
    """
    cuts = [(a, b) for a, b in _cuts(text, "..") if a and b]
    ids = store.run_ids()
    if not cuts or _by_full_id(store, ids, list(_cuts(text, "/"))):
        return None
    exact = [cut for cut in cuts if {*ids, "latest"}.issuperset(cut)]
    readings = exact[:1] or [cut for cut in cuts if _exist(store, *cut)]
    if len(readings) > 1:
        raise UsageError(f"'{text}' may be read in {len(readings)} ways: write the runs' ids in full")
    a, b = readings[0] if readings else cuts[-1]
    return distinct_runs(store, a, b)


def _exist(store: Store, *names: str) -> bool:
    try:
        return all(store.run(name) for name in names)
    except UsageError:
        return False


def distinct_runs(store: Store, a: str, b: str) -> tuple[Run, Run]:
    """Two runs to be compared.

    Raises:
        UsageError: one of them is unknown, or they are one.
    """
    first, second = store.run(a), store.run(b)
    if first.id == second.id:
        raise UsageError(f"'{a}' and '{b}' are one run, {first.id}: name two")
    return first, second


def the_attempt(store: Store, named: Reference) -> Attempt:
    """The attempt of a reference with a task and a number.

    Raises:
        UsageError: there is no attempt of that number.
    """
    if named.task is None or named.number is None:
        raise AssertionError(f"{named} is no attempt")
    return store.attempt_at(named.run.id, named.task, named.number)
