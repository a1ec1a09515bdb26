"""``kernelforge capture``: a user's model as groups of operators with their share of time, and as a suite of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    InputsOption,
    JsonOption,
    ModelArgument,
    ModuleOption,
    UnconfinedOption,
    console,
    default_device,
    model_sources,
    print_view,
    warn,
)
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.capture.records import Capture
    from kernelforge.tasks.loaders.write_suite import Origin


def capture(
    model: ModelArgument,
    inputs: InputsOption = None,
    module: ModuleOption = "",
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="A GPU, to measure times on, or an emulated device, to predict them for; the best here if left out.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Write groups as a suite: a folder that does not exist."),
    ] = None,
    write: Annotated[
        list[str] | None,
        typer.Option("--write", metavar="GROUP", help="Write only this group, such as g01; repeat for more."),
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, metavar="N", help="Write only the N groups with the largest shares.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, metavar="N", help="Tasks that sizes are searched for at a time; one per core."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Longest time that the capture may take.")
    ] = 900.0,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Capture a model: its groups of operators with their share of the time and their floor; as a suite by --output.

    Leaves with 1 if --output could write no group.
    """
    if output is None and (write or top):
        raise UsageError("--write and --top choose what a suite gets: add --output FOLDER, which is made")
    if write and top:
        raise UsageError("--write and --top both choose groups; give one of them")
    from kernelforge.capture.client import capture_model, capture_on_gpu
    from kernelforge.devices import check_device
    from kernelforge.hardware.specs import find_spec
    from kernelforge.records import MeasureSettings
    from kernelforge.report.terminal.capture import capture_lines
    from kernelforge.tasks.loaders.write_suite import Origin, refuse_other_folder

    source, inputs_source = model_sources(model, inputs)
    origin = Origin("capture", Path(":".join(filter(None, (str(source.path), source.function, module)))))
    if output is not None:
        refuse_other_folder(output, origin)
    named = (
        check_device(device)
        if device
        else default_device(opens=True, measure=MeasureSettings(), allow_unconfined=allow_unconfined)
    )
    spec = find_spec(named)
    if spec is not None:
        captured = capture_model(
            source,
            inputs_source,
            spec,
            module=module,
            allow_unconfined=allow_unconfined,
            timeout_s=timeout,
        )
    else:
        captured = capture_on_gpu(
            source,
            inputs_source,
            named,
            module=module,
            allow_unconfined=allow_unconfined,
            timeout_s=timeout,
            tell=warn,
        )
    if output is not None:
        if not as_json:
            print_view(captured, capture_lines, as_json=False)
        captured = _write(captured, output, origin, write or (), top, jobs, allow_unconfined, quiet=as_json)
    if output is None or as_json:
        print_view(captured, capture_lines, as_json=as_json)
    if output is not None and not any(group.task for group in captured.groups):
        raise typer.Exit(1)


def _write(
    captured: Capture,
    folder: Path,
    origin: Origin,
    names: Sequence[str],
    top: int | None,
    jobs: int | None,
    allow_unconfined: bool,
    *,
    quiet: bool,
) -> Capture:
    """Write groups as a suite, with sizes that are searched for; gives the capture that the suite keeps."""
    from kernelforge.capture.suite import select_groups, tasks_of, write_capture
    from kernelforge.cli.import_tasks import most_jobs, sized_tasks
    from kernelforge.evaluation.size_search import SizeChooser
    from kernelforge.report.formatting import one_line

    loaded = tasks_of(captured, select_groups(captured, names, top))
    with SizeChooser(allow_unconfined=allow_unconfined) as chooser:
        tasks, missing, _ = sized_tasks(chooser, loaded, jobs or most_jobs(chooser.bounds.memory_bytes), quiet=quiet)
    if tasks:
        captured = write_capture(folder, origin, captured, tasks, missing)
    if not quiet:
        out = console()
        for item in missing:
            out.print(one_line(f"not written: {item.origin}: {item.reason}", 2000), soft_wrap=True)
        where = f"; suite {folder}" if tasks else ""
        out.print(f"{len(tasks)} tasks, {len(missing)} groups not written{where}", soft_wrap=True)
    return captured
