"""``kernelforge eval``: one candidate file against one task."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    Approximations,
    ApproxOption,
    DeviceOption,
    JsonOption,
    MeasureOption,
    ProtocolOption,
    RuntimeOption,
    SanitizerOption,
    ScreenOption,
    SeedOption,
    UnconfinedOption,
    c_measure_settings,
    console,
    default_device,
    measure_settings,
    print_view,
    task_reference,
    warn,
)
from kernelforge.errors import UsageError
from kernelforge.utils.text_files import read_text

if TYPE_CHECKING:
    from kernelforge.evaluation.evaluator import EvaluationResult
    from kernelforge.records import MeasureSettings

MAX_FILE_BYTES = 1 << 20


class CandidateKind(StrEnum):
    """Values of ``--lane``."""

    PLAN = "plan"
    MODELNEW = "modelnew"
    C = "c"


def evaluate(
    candidate: Annotated[
        Path,
        typer.Argument(
            metavar="CANDIDATE",
            help="A reply as a file: one ```cuda block and one ```python block. Of other lanes: Python, or C.",
        ),
    ],
    task: Annotated[
        str,
        typer.Option("--task", metavar="TASK", help="NAME in suite core, SUITE/NAME, or the path of a task file."),
    ],
    kind: Annotated[
        CandidateKind,
        typer.Option(
            "--lane",
            help="plan: device code and launch plan. modelnew: KernelBench's ModelNew class. c: a C function.",
        ),
    ] = CandidateKind.PLAN,
    choose: Annotated[
        list[str] | None,
        typer.Option("--choose", metavar="NAME=VALUE", help="Value of a '# tune:' name; repeat for more."),
    ] = None,
    device: DeviceOption = None,
    profile: Annotated[bool, typer.Option("--profile/--no-profile", help="Profile a correct candidate.")] = True,
    timed: Annotated[
        bool, typer.Option("--time", help="Of lane c: time a right function, in turn with the suite's and PyTorch.")
    ] = False,
    seed: SeedOption = None,
    runtime: RuntimeOption = None,
    protocol: ProtocolOption = None,
    sanitizer: SanitizerOption = False,
    screen: ScreenOption = True,
    measure: MeasureOption = None,
    approx: ApproxOption = Approximations.VARIED,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate one candidate against one task. Leaves with 0 if it is OK and compared at full size, else with 1."""
    text = read_text(candidate, MAX_FILE_BYTES, what="the candidate", hint="name a file with a Markdown reply")
    choices = _choices(choose or ())
    if kind is CandidateKind.C:
        if choices or device not in (None, "cpu"):
            option = "--choose" if choices else f"--device {device}"
            raise UsageError(f"{option} is not for lane c: a C function has no choices and runs on this machine's CPU")
        result = _evaluate_c(text, task, seed, allow_unconfined, timed=timed)
        _show(result, as_json=as_json)
        if timed and result.evaluation.outcome.startswith("OK") and result.evaluation.performance is None:
            warn("not timed, for the full size was not compared")
        raise typer.Exit(0 if result.evaluation.outcome == "OK" else 1)
    if timed:
        raise UsageError("--time is for lane c: a GPU times every right candidate, an emulated device models the time")
    measuring = measure_settings(runtime, protocol, sanitizer, measure, approx=approx, screen=screen)
    if device is None:
        device = default_device(opens=True, measure=measuring, allow_unconfined=allow_unconfined)
        if kind is CandidateKind.MODELNEW and not device.startswith("cuda:"):
            device = "cpu"  # an emulated device runs no Python
    if kind is CandidateKind.MODELNEW:
        if choices:
            raise UsageError("--choose sets '# tune:' names of a launch plan; a ModelNew class has none")
        if approx is not Approximations.VARIED:
            raise UsageError("--approx is of the emulated device, which runs no ModelNew class; leave it out")
        if not screen or measuring.figures is not None:
            option = "--measure figures" if screen else "--no-screen"
            raise UsageError(
                f"{option} is for launch plans: no ModelNew class runs on an emulated device; leave it out"
            )
        result = _evaluate_class(text, task, device, measuring, seed, allow_unconfined)
        _show(result, as_json=as_json, telemetry=None if as_json else text)
        raise typer.Exit(0 if result.evaluation.outcome == "OK" else 1)
    from kernelforge.evaluation.api import evaluate as evaluate_candidate

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
    raise typer.Exit(0 if result.evaluation.outcome == "OK" else 1)


def _evaluate_class(
    text: str, task: str, device: str | None, measure: MeasureSettings, seed: int | None, allow_unconfined: bool
) -> EvaluationResult:
    """Evaluate a Python file with a class ``ModelNew``, in a jailed process."""
    import secrets

    from pydantic import ValidationError

    from kernelforge.modelnew.evaluator import modelnew_candidate
    from kernelforge.modelnew.remote import open_modelnew
    from kernelforge.records import first_fault
    from kernelforge.tasks import load_task

    try:
        candidate = modelnew_candidate(text)
    except ValidationError as error:
        raise UsageError(f"the file is no candidate: {first_fault(error)}") from error
    loaded = load_task(task_reference(task))
    with open_modelnew(device, measure=measure, allow_unconfined=allow_unconfined, tell=warn) as evaluators:
        return evaluators.evaluate(loaded, candidate, seed=secrets.randbits(63) if seed is None else seed)


def _evaluate_c(text: str, task: str, seed: int | None, allow_unconfined: bool, *, timed: bool) -> EvaluationResult:
    """Evaluate a C file with the function of a task that translates C, in a jailed process."""
    import secrets

    from pydantic import ValidationError

    from kernelforge.records import first_fault
    from kernelforge.tasks import load_task
    from kernelforge.translation.evaluator import CEvaluators, c_candidate

    try:
        candidate = c_candidate(text)
    except ValidationError as error:
        raise UsageError(f"the file is no candidate: {first_fault(error)}") from error
    loaded = load_task(task_reference(task))
    measure = c_measure_settings(timed=timed)
    with CEvaluators(allow_unconfined=allow_unconfined, measure=measure) as evaluators:
        return evaluators.evaluate(loaded, candidate, seed=secrets.randbits(63) if seed is None else seed)


def _choices(options: Sequence[str]) -> dict[str, int]:
    """Values of ``--choose`` options."""
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


def _show(result: EvaluationResult, *, as_json: bool, telemetry: str | None = None) -> None:
    """Print a result, with findings about the text of a ModelNew class.

    Args:
        telemetry: the text; None prints no findings.
    """
    from kernelforge.report.terminal import evaluation_lines
    from kernelforge.report.views.attempt import EvaluationView

    print_view(EvaluationView.of(result), evaluation_lines, as_json=as_json)
    if telemetry is not None:
        from kernelforge.modelnew.static_checks import static_findings
        from kernelforge.report.formatting import one_line

        for finding in static_findings(telemetry):
            console().print(one_line(f"seen in line {finding.line}: {finding.text} ({finding.rule})"))
