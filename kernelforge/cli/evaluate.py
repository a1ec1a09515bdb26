"""``kernelforge eval``: one candidate file against one task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.common import DeviceOption, JsonOption, UnconfinedOption, console, print_json, task_reference
from kernelforge.cli.measuring import (
    MeasureOption,
    ProtocolOption,
    RuntimeOption,
    SanitizerOption,
    measure_settings,
)
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.evaluate.evaluator import EvaluationResult

MAX_FILE_BYTES = 1 << 20


def evaluate(
    candidate: Annotated[
        Path,
        typer.Argument(metavar="CANDIDATE", help="A reply as a file: one ```cuda block and one ```python block."),
    ],
    task: Annotated[
        str,
        typer.Option("--task", metavar="TASK", help="NAME in suite core, SUITE/NAME, or the path of a task file."),
    ],
    choose: Annotated[
        list[str] | None,
        typer.Option("--choose", metavar="NAME=VALUE", help="Value of a '# tune:' name; repeat for more."),
    ] = None,
    device: DeviceOption = None,
    profile: Annotated[bool, typer.Option("--profile/--no-profile", help="Profile a correct candidate.")] = True,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of the inputs; a fresh, secret one if left out.")
    ] = None,
    runtime: RuntimeOption = None,
    protocol: ProtocolOption = None,
    sanitizer: SanitizerOption = False,
    measure: MeasureOption = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate one candidate against one task. Leaves with 0 for verdict OK, with 1 for any other."""
    text, choices = _read(candidate), _choices(choose or ())
    measuring = measure_settings(runtime, protocol, sanitizer, measure)
    from kernelforge.evaluate.api import evaluate as evaluate_candidate

    result = evaluate_candidate(
        task_reference(task),
        text,
        choices=choices,
        device=device,
        profile=profile,
        seed=seed,
        measure=measuring,
        allow_unconfined=allow_unconfined,
    )
    _show(result, as_json=as_json)
    raise typer.Exit(0 if result.evaluation.verdict.value == "OK" else 1)


def _choices(options: Sequence[str]) -> dict[str, int]:
    """The values of ``--choose`` options."""
    choices: dict[str, int] = {}
    for option in options:
        name, _, value = (part.strip() for part in option.partition("="))
        try:
            number = int(value)
        except ValueError:
            raise UsageError(f"--choose takes NAME=VALUE with an integer, such as BLOCK=256, not {option!r}") from None
        if choices.setdefault(name, number) != number:
            raise UsageError(f"--choose gives {name} two values: {choices[name]} and {number}")
    return choices


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; name the file that holds the candidate") from None
    except OSError as error:
        raise UsageError(f"cannot read the candidate {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; a candidate never is")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}); a candidate is a Markdown reply") from error


def _show(result: EvaluationResult, *, as_json: bool) -> None:
    from kernelforge.report.evaluation_view import evaluation_view

    view = evaluation_view(result.evaluation, result.profile)
    if as_json:
        print_json(view)
    else:
        from kernelforge.report.terminal import evaluation_lines

        console().print(evaluation_lines(view))
