"""``kernelforge convert``: a ``ModelNew`` file as device code and a launch plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import JsonOption, UnconfinedOption, console, task_reference, write_text
from kernelforge.utils.text_files import read_text

if TYPE_CHECKING:
    from kernelforge.modelnew.convert import Conversion

MAX_FILE_BYTES = 1 << 20


def convert(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Python file with ModelNew, load_inline or cupy's RawKernel.")
    ],
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="Also resolve the plan and compile it at every size of this task."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead of to stdout.")
    ] = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a ModelNew whose host part is a plain launch. Leaves with 1 if something could not be converted."""
    from kernelforge.modelnew.convert import convert as convert_text
    from kernelforge.report.formatting import one_line, printable

    conversion = convert_text(read_text(file, MAX_FILE_BYTES, what="the candidate", hint="name a Python file"))
    refused = ""
    if conversion.candidate is not None and task is not None:
        conversion, refused = _compiled(conversion, task, allow_unconfined)
    good = conversion.candidate is not None and not refused
    if as_json:
        data = {
            "converted": good,
            "source": conversion.candidate.source if conversion.candidate else None,
            "plan": conversion.candidate.plan if conversion.candidate else None,
            "problems": [
                {"line": problem.line, "construct": problem.construct, "why": problem.why}
                for problem in conversion.problems
            ],
            "notes": list(conversion.notes),
            "refused": refused or None,
        }
        write_text(json.dumps(data, indent=2), output)
    elif good:
        reply = conversion.as_reply()
        write_text(printable(reply) if output is None else reply, output)
    err = console(stderr=True)
    for problem in () if as_json else conversion.problems:
        err.print(one_line(f"{file.name}, {problem}"))
    for note in () if as_json else conversion.notes:
        err.print(one_line(f"note: {note}"))
    if refused and not as_json:
        err.print(printable(f"converted, but {refused}"))
    raise typer.Exit(0 if good else 1)


def _compiled(conversion: Conversion, task: str, allow_unconfined: bool) -> tuple[Conversion, str]:
    """The conversion with the names of the task's reference, and why it does not resolve or compile at a size.

    The reason is empty if it does at all sizes.
    """
    from dataclasses import replace

    from kernelforge.evaluation.pool import EvaluatorPool
    from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed
    from kernelforge.tasks import load_task

    loaded = load_task(task_reference(task))
    with EvaluatorPool("emulated:h100", allow_unconfined=allow_unconfined) as pool:
        evaluator = pool.evaluator(loaded)
        try:
            facts = evaluator.oracle.facts(["full"]).at("full")
            conversion = replace(conversion, candidate=conversion.fitted(loaded.source, facts))
            assert conversion.candidate is not None
            evaluator.prepare(conversion.candidate, BuildState())
        except StageFailed as failure:
            reason = f"it does not fit task '{loaded.name}': {failure.verdict} at {failure.stage}: {failure.reason}"
            return conversion, reason
        finally:
            evaluator.close()
    return conversion, ""
