"""``kernelforge import``: list, write and evaluate published candidates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.support.options import JsonOption, UnconfinedOption, console, warn
from kernelforge.errors import KernelForgeError, UsageError

if TYPE_CHECKING:
    from kernelforge.datasets import Import, ImportedCandidate
    from kernelforge.modelnew.evaluator import ModelNewEvaluators
    from kernelforge.modelnew.remote import RemoteModelNewEvaluators
    from kernelforge.tasks.constants import Scalar

app = typer.Typer(help="Import candidates that others published.", no_args_is_help=True, rich_markup_mode=None)

LevelOption = Annotated[int | None, typer.Option("--level", min=0, help="Only this level.")]
ProblemOption = Annotated[
    list[str] | None, typer.Option("--problem", metavar="ID", help="Only this problem; repeat for more.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Write each candidate and its reference to this folder."),
]
EvaluateOption = Annotated[
    bool,
    typer.Option("--evaluate", help="Run each candidate, jailed: on a GPU checked and timed, on the CPU checked."),
]
ModelNewDeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="Where to evaluate: cpu, or a GPU; the first GPU if there is one."),
]
SmallOption = Annotated[
    list[str] | None,
    typer.Option(
        "--small",
        metavar="NAME=VALUE",
        help="Module constant of the references at a small size, checked first; only the full size if left out.",
    ),
]


@app.command("cuda-l1")
def cuda_l1(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="optimized_cuda_code/*.json or codes/*.json.")],
    level: LevelOption = None,
    problem: ProblemOption = None,
    output: OutputOption = None,
    evaluate: EvaluateOption = False,
    device: ModelNewDeviceOption = None,
    small: SmallOption = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Import CUDA-L1's released kernels. Leaves with 1 if one that was evaluated is not OK."""
    from kernelforge.datasets import read_cuda_l1

    selected = _select(read_cuda_l1(file), level, problem)
    _output(selected, output, evaluate, device, small, allow_unconfined, as_json)


@app.command("kernelbench")
def kernelbench(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run folder of KernelBench, such as runs/NAME.")],
    references: Annotated[
        Path | None,
        typer.Option("--references", metavar="FOLDER", help="KernelBench's folder of tasks, with level1 in it."),
    ] = None,
    level: LevelOption = None,
    problem: ProblemOption = None,
    output: OutputOption = None,
    evaluate: EvaluateOption = False,
    device: ModelNewDeviceOption = None,
    small: SmallOption = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Import the kernels of a KernelBench run. Leaves with 1 if one that was evaluated is not OK."""
    from kernelforge.datasets import read_kernelbench

    selected = _select(read_kernelbench(folder, references), level, problem)
    _output(selected, output, evaluate, device, small, allow_unconfined, as_json)


@app.command("ai-cuda-engineer")
def ai_cuda_engineer(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="level_1.parquet, or a folder of such files.")],
    level: LevelOption = None,
    problem: ProblemOption = None,
    output: OutputOption = None,
    evaluate: EvaluateOption = False,
    device: ModelNewDeviceOption = None,
    small: SmallOption = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Import kernels of the AI CUDA Engineer archive. Leaves with 1 if one that was evaluated is not OK."""
    from kernelforge.datasets import read_ai_cuda_engineer

    selected = _select(read_ai_cuda_engineer(source), level, problem)
    _output(selected, output, evaluate, device, small, allow_unconfined, as_json)


@app.command("cuda-l2")
def cuda_l2(
    checkout: Annotated[Path, typer.Argument(metavar="CHECKOUT", help="A checkout of deepreinforce-ai/CUDA-L2.")],
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="Only this GPU, such as a100.")] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option("--problem", metavar="M_N_K", help="Only kernels of this shape; repeat for more."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write each kernel as a ModelNew there.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Import CUDA-L2's release: accumulators of its kernels, and its speedups over the grid. Runs nothing."""
    from kernelforge.cli.support.options import print_view
    from kernelforge.datasets.cuda_l2 import as_model_new, read_release, select_release
    from kernelforge.report.terminal.cuda_l2 import release_lines
    from kernelforge.utils.text_files import read_text

    release = select_release(read_release(checkout), gpu, problem or [])
    if output is not None and not release.kernels:
        raise UsageError(f"{checkout} has no kernel that could be written; leave --output out")
    if output is not None:
        if output.exists():
            raise UsageError(f"{output} exists: name a folder that does not")
        for item in release.kernels:
            source = read_text(checkout / "kernels" / item.origin, 1 << 20)
            target = output / item.task / f"{item.gpu}_{item.declared}.py"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(as_model_new(item, source))
    print_view(release, release_lines, as_json=as_json)


def _select(imported: Import, level: int | None, problems: list[str] | None) -> Import:
    from kernelforge.datasets import Import

    kept = tuple(
        item
        for item in imported.candidates
        if (level is None or item.level == level) and (not problems or item.problem in problems)
    )
    return Import(kept, imported.unread)


def _output(
    imported: Import,
    output: Path | None,
    evaluate: bool,
    device: str | None,
    small: list[str] | None,
    allow_unconfined: bool,
    as_json: bool,
) -> None:
    from kernelforge.report.formatting import one_line

    constants = _constants(small or [])
    if constants and not evaluate:
        raise UsageError("--small says at which size to evaluate; add --evaluate")
    if device is not None and not evaluate:
        raise UsageError("--device says where to evaluate; add --evaluate")
    if output is not None:
        _write(imported, output)
    rows: list[dict[str, Any]] = []
    bad = False
    out = console()
    if evaluate:
        from kernelforge.modelnew.remote import open_modelnew

        with open_modelnew(device, allow_unconfined=allow_unconfined, tell=warn) as evaluators:
            for item in imported.candidates:
                outcome = _evaluate(evaluators, item, constants)
                bad = bad or outcome["verdict"] != "OK"
                rows.append(_row(item) | outcome)
                if not as_json:
                    out.print(one_line(f"{item.name}: {_outcome_line(outcome)}", 2000), soft_wrap=True)
    else:
        rows = [_row(item) for item in imported.candidates]
        if not as_json:
            for item in imported.candidates:
                score = "no published score" if item.published_score is None else f"published {item.published_score:g}x"
                missing = "" if item.reference is not None else ", no reference"
                out.print(one_line(f"{item.name}: {score}{missing} ({item.origin})"), soft_wrap=True)
    unread = [{"origin": item.origin, "name": item.name, "reason": item.reason} for item in imported.unread]
    if as_json:
        typer.echo(json.dumps({"candidates": rows, "unread": unread}, indent=2))
    else:
        for line in imported.unread:
            out.print(one_line(f"not read: {line.origin} {line.name}: {line.reason}", 1000), soft_wrap=True)
        out.print(f"{len(rows)} candidates, {len(unread)} not read")
    raise typer.Exit(1 if bad else 0)


def _evaluate(
    evaluators: ModelNewEvaluators | RemoteModelNewEvaluators, item: ImportedCandidate, constants: dict[str, Scalar]
) -> dict[str, Any]:
    """Verdict, reason and speed; without a verdict where the reference cannot be judged."""
    from pydantic import ValidationError

    from kernelforge.datasets import as_task

    try:
        task = as_task(item, constants)
        evaluation = evaluators.evaluate(
            task, item.candidate, seed=_seed(), sizes=None if constants else ("full",)
        ).evaluation
    except ValidationError as error:
        return {"verdict": "not evaluated", "reason": f"the text is no candidate: {error.errors()[0]['msg']}"}
    except KernelForgeError as error:
        return {"verdict": "not evaluated", "reason": str(error)}
    speed = evaluation.performance
    return {
        "verdict": evaluation.outcome,
        "reason": evaluation.reason,
        "time_us": None if speed is None else speed.time_us,
        "speedup": None if speed is None else speed.speedup,
        "speedup_eager": None if speed is None else speed.speedup_eager,
        "quarantined": None if speed is None else speed.quarantined,
    }


def _outcome_line(row: dict[str, Any]) -> str:
    """Outcome of one candidate, in a line."""
    if row["reason"]:
        return f"{row['verdict']}: {row['reason']}"
    if row.get("speedup") is None:
        return str(row["verdict"])
    eager = row["speedup_eager"]
    versus_eager = "" if eager is None else f", {eager:.3g}x eager"
    return f"{row['verdict']}: {row['time_us']:.4g} µs, {row['speedup']:.3g}x the fastest baseline{versus_eager}"


def _seed() -> int:
    import secrets

    return secrets.randbits(63)


def _row(item: ImportedCandidate) -> dict[str, Any]:
    return {
        "name": item.name,
        "level": item.level,
        "problem": item.problem,
        "origin": item.origin,
        "published_score": item.published_score,
        "published_correct": item.published_correct,
        "has_reference": item.reference is not None,
    }


def _write(imported: Import, output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        for item in imported.candidates:
            (output / f"{item.name}.py").write_text(item.source, encoding="utf-8")
            if item.reference is not None:
                (output / f"{item.name}_reference.py").write_text(item.reference, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {output}: {error.strerror}") from error


def _constants(options: list[str]) -> dict[str, Scalar]:
    constants: dict[str, Scalar] = {}
    for item in options:
        name, _, text = (part.strip() for part in item.partition("="))
        try:
            constants[name] = int(text)
        except ValueError:
            try:
                constants[name] = float(text)
            except ValueError:
                raise UsageError(f"--small takes NAME=VALUE with a number, such as BATCH=4, not {item!r}") from None
    return constants
