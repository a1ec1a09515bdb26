"""Progress output of a run: live display on a terminal, lines elsewhere, JSON, or warnings only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.text import Text

from kernelforge.cli.support.watching import Watch, published
from kernelforge.records import Attempt
from kernelforge.report.formatting import one_line
from kernelforge.report.views.progress import ProgressView, standing
from kernelforge.report.views.summary import step_name

if TYPE_CHECKING:
    from kernelforge.cli.support.interrupt import Stop
    from kernelforge.records import RunConfig
    from kernelforge.run.events import Event
    from kernelforge.store import Store

JSON_VERSION = 1
"""Of the lines of ``--display json``: raised when a field changes its meaning or goes; new ones may come."""


class Progress(Protocol):
    """An observer that is shown for a while."""

    def on_event(self, event: Event) -> None: ...


class QuietProgress:
    """Shows warnings alone."""

    def __init__(self, errors: Console) -> None:
        self._errors = errors

    def on_event(self, event: Event) -> None:
        if event.kind == "warning":
            where = f"{event.task}: " if event.task else ""
            self._errors.print(Text(f"warning: {where}{one_line(event.message)}", style="yellow"), soft_wrap=True)


class PlainProgress(QuietProgress):
    """One line per finished attempt and per finished task."""

    def __init__(self, out: Console, errors: Console) -> None:
        super().__init__(errors)
        self._out = out

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if event.kind == "attempt" and event.attempt is not None:
            self._line(_attempt_line(event.attempt))
        elif event.kind == "task_finished":
            self._line(f"{event.task} done: {one_line(event.message)}")
        elif event.kind == "run_started":
            self._line(f"run {event.message}")

    def _line(self, text: str) -> None:
        self._out.print(Text(text), soft_wrap=True)


def _attempt_line(attempt: Attempt) -> str:
    evaluation = attempt.evaluation
    detail = standing(attempt) if evaluation.verdict.value == "OK" else one_line(evaluation.reason, 120)
    mark = "best so far: " if attempt.accepted else ""
    colon = ": " if evaluation.uncompared else " "
    return f"{attempt.task} {attempt.number:02d} {step_name(attempt)} {evaluation.outcome}{colon}{mark}{detail}"


class JsonProgress(QuietProgress):
    """A JSON object on each line of stdout: every event, and after it what it changed of the run's progress."""

    def __init__(self, watch: Watch, errors: Console) -> None:
        super().__init__(errors)
        self._watch = watch
        self._told: dict[str, Any] = {}

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        view = self._watch.view()
        print_json_line({"type": "event", "run": view.run, "at": view.updated, **_event_fields(event)})
        self._tell(view)

    def _tell(self, view: ProgressView) -> None:
        """The fields of the view that are not as they were told. Time that only went by is no change."""
        now = view.model_dump(mode="json")
        changed = {name: value for name, value in now.items() if name != "updated" and self._differs(name, value)}
        self._told = now
        if changed:
            print_json_line({"type": "progress", "updated": view.updated, **changed})

    def _differs(self, name: str, value: Any) -> bool:
        before = self._told.get(name)
        if name == "bars" and before is not None:
            return [bar for bar in value if bar["name"] != "seconds"] != [
                bar for bar in before if bar["name"] != "seconds"
            ]
        if name == "lanes" and before is not None:
            return [_occupied(lane) for lane in value] != [_occupied(lane) for lane in before]
        return name not in self._told or bool(value != before)


def _occupied(lane: dict[str, Any]) -> dict[str, Any]:
    """A lane without the clock of an idle one."""
    return lane if lane["task"] is not None else lane | {"since": ""}


def _event_fields(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kind": event.kind,
        "task": event.task,
        "round": event.round,
        "stage": event.stage,
        "message": event.message,
    }
    if event.attempt is not None:
        attempt = event.attempt
        fields["attempt"] = {
            "id": attempt.id,
            "number": attempt.number,
            "step": step_name(attempt),
            "parent": attempt.parent,
            "verdict": attempt.evaluation.verdict.value,
            "uncompared": attempt.evaluation.uncompared,
            "reason": attempt.evaluation.reason,
            "accepted": attempt.accepted,
            "standing": standing(attempt) if attempt.evaluation.verdict.value == "OK" else "",
            "reward": attempt.reward.value,
            "seconds": attempt.seconds,
        }
    return fields


def print_json_line(fields: dict[str, Any]) -> None:
    """One object on one line, in ASCII: what others wrote reaches no terminal as it is. Written at once."""
    sys.stdout.write(json.dumps({"version": JSON_VERSION, **fields}, allow_nan=False) + "\n")
    sys.stdout.flush()


@contextmanager
def progress(
    config: RunConfig, stop: Stop, store: Store, *, display: str, out: Console, errors: Console
) -> Iterator[Progress]:
    """The observer of a run: shows it, and tells other processes how it stands.

    Args:
        store: where the run is journalled.
        display: ``full`` for a screen, ``plain`` for a line per attempt, ``json``, or ``none`` for warnings alone.
    """
    watch = Watch(config, stop)
    with published(watch, store.path.parent), _shown(watch, display, out, errors) as shown:
        try:
            yield _Both(watch, shown)
        except Exception as error:
            watch.fail(str(error) or type(error).__name__)
            raise


@contextmanager
def _shown(watch: Watch, display: str, out: Console, errors: Console) -> Iterator[Progress]:
    if display == "full":
        from rich.live import Live

        from kernelforge.cli.support.live_screen import LiveScreen

        with Live(LiveScreen(watch.view), console=out, refresh_per_second=4, transient=True) as live:
            # A warning on the same terminal goes above what is drawn, so by way of who draws it.
            yield QuietProgress(live.console if errors.is_terminal else errors)
    elif display == "plain":
        yield PlainProgress(out, errors)
    elif display == "json":
        yield JsonProgress(watch, errors)
    else:
        yield QuietProgress(errors)


class _Both:
    """First the watch, so that the display sees the event's effect."""

    def __init__(self, watch: Watch, shown: Progress) -> None:
        self._watch = watch
        self._shown = shown

    def on_event(self, event: Event) -> None:
        self._watch.on_event(event)
        self._shown.on_event(event)
