"""Write groups of a captured model as a suite of tasks, with ``capture.json`` next to them.

Full sizes are those of the model; small and hidden ones come from the search that imported tasks get theirs from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kernelforge.capture.grouping import packet
from kernelforge.capture.records import Capture, CapturedGroup, CapturedNode
from kernelforge.capture.task_text import TaskText
from kernelforge.errors import TaskError, UsageError
from kernelforge.records import TaskPolicy
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, NotLoaded
from kernelforge.tasks.loaders.write_suite import Origin, SizedTask, write_suite

CAPTURE: Final = "capture.json"
"""File next to the manifest: the captured model, which operators the tasks stand for, and where these are in it."""

_INDICES: Final = frozenset({"argmax", "argmin"})


def select_groups(capture: Capture, names: Sequence[str], top: int | None) -> list[CapturedGroup]:
    """The groups with these names or numbers (``g01``), or the ``top`` ones that can be tasks; all if neither is given.

    Raises:
        UsageError: There is no such group.
    """
    if not names:
        return [group for group in capture.groups if top is None or not group.no_task][:top]
    selection: list[CapturedGroup] = []
    for name in names:
        group = next((each for each in capture.groups if name in (each.name, each.name.split("-")[0])), None)
        if group is None:
            offered = ", ".join(each.name for each in capture.groups[:5])
            raise UsageError(f"--write: there is no group {name!r}; the first are {offered}")
        if group not in selection:
            selection.append(group)
    return selection


def tasks_of(capture: Capture, groups: Sequence[CapturedGroup]) -> Loaded:
    """A task for each group, at the model's own shapes; a group that has none says why."""
    nodes = {node.name: node for node in capture.nodes}
    tasks: list[ExternalTask] = []
    missing: list[NotLoaded] = []
    for group in groups:
        try:
            if group.no_task:
                raise TaskError(group.no_task)
            tasks.append(_task(capture, group, nodes))
        except TaskError as error:
            missing.append(NotLoaded(group.name, str(error)))
    return Loaded(tuple(tasks), tuple(missing))


def _task(capture: Capture, group: CapturedGroup, nodes: dict[str, CapturedNode]) -> ExternalTask:
    module = group.calls[0].module
    text = TaskText(group, nodes, module or capture.module or capture.model.function)
    ties = [at for at, name in enumerate(group.calls[0].outputs) if packet(nodes[name].op) in _INDICES]
    return ExternalTask(
        name=group.name,
        title=f"{' '.join(dict.fromkeys(group.operators))[:120]}, {len(group.calls)} x",
        source=text.source,
        origin=group.name,
        level=1 if len(group.operators) == 1 else 2,
        tags=("captured", group.kind),
        policy=TaskPolicy(ties=tuple(ties)),
    )


def write_capture(
    folder: Path, origin: Origin, capture: Capture, tasks: Sequence[SizedTask], missing: Sequence[NotLoaded]
) -> Capture:
    """Write the suite; gives the capture that it keeps, whose groups name their tasks.

    Raises:
        UsageError: The folder has other content, or cannot be written.
    """
    written = {sized.task.origin for sized in tasks}
    groups = [
        group.model_copy(update={"task": group.name if group.name in written else ""}) for group in capture.groups
    ]
    kept = capture.model_copy(update={"groups": tuple(groups)})
    title = f"{capture.model.function} of {capture.model.path}" + (f", {capture.module}" if capture.module else "")
    write_suite(folder, origin, title, tasks, missing, {CAPTURE: kept.model_dump_json(indent=1) + "\n"})
    return kept
