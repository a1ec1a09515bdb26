"""``kernelforge data``: training data from runs, jobs and sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.support.options import DEFAULT_RESULTS, ResultsOption, open_store, write_text
from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import install_hint

if TYPE_CHECKING:
    from kernelforge.datasets.training import Row, Sample
    from kernelforge.records import Task

app = typer.Typer(help="Make training data of runs, jobs and sessions.", no_args_is_help=True, rich_markup_mode=None)


class Origin(StrEnum):
    """Values of ``--from``."""

    RUNS = "runs"
    JOBS = "jobs"
    SESSIONS = "sessions"


class Kind(StrEnum):
    """Values of ``--as``."""

    SFT = "sft"
    DPO = "dpo"
    KTO = "kto"
    GRPO = "grpo"
    TRAJECTORIES = "trajectories"
    CRITIQUE = "critique"


class ReasoningForm(StrEnum):
    """Values of ``--reasoning``."""

    COLUMN = "column"
    THINK = "think"
    OFF = "off"


class FileFormat(StrEnum):
    """Values of ``--format``."""

    JSONL = "jsonl"
    PARQUET = "parquet"


@app.callback()
def _group() -> None:
    """Keeps ``export`` a command of its own."""


@app.command("export")
def export(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write; a folder that does not exist.")
    ],
    kind: Annotated[Kind, typer.Option("--as", help="Kind of rows.")],
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Id of a run, 'latest', or 'all'; of jobs and sessions, a run_id.")
    ] = "all",
    origin: Annotated[Origin, typer.Option("--from", help="What the rows are made of.")] = Origin.RUNS,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="Reward policy; the default one if left out.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; repeat for more.")
    ] = None,
    min_reward: Annotated[
        float | None, typer.Option("--min-reward", metavar="NUMBER", help="Only replies with at least this reward.")
    ] = None,
    near: Annotated[
        float, typer.Option("--near", metavar="SHARE", min=0, max=1, help="Likeness from which on texts are repeats.")
    ] = 0.9,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="SUITE", help="Leave out what is like a task of this suite; repeat for more."
        ),
    ] = None,
    validation: Annotated[
        float, typer.Option("--validation", metavar="SHARE", min=0, max=1, help="Share of the tasks kept apart.")
    ] = 0.0,
    discount: Annotated[
        float, typer.Option("--discount", metavar="NUMBER", min=0, max=1, help="Weight of a later turn's reward.")
    ] = 0.4,
    reasoning: Annotated[
        ReasoningForm,
        typer.Option("--reasoning", help="Reasoning in its column, also in the replies between tags, or nowhere."),
    ] = ReasoningForm.COLUMN,
    license_: Annotated[
        str, typer.Option("--license", metavar="TEXT", help="Licence of the rows, for the data card.")
    ] = "not stated",
    file_format: Annotated[FileFormat, typer.Option("--format", help="Form of the files.")] = FileFormat.JSONL,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write rows for training, with a data card: prompts, replies, rewards, and where each is from.

    Replies that repeat an earlier one of the same prompt are left out, by source, by PTX, and by likeness.
    """
    from kernelforge.datasets.training import distinct, rows, split, uncontaminated, with_reasoning
    from kernelforge.rewards import DEFAULT_POLICY, find_policy

    if output.exists():
        raise UsageError(f"{output} exists: name a folder that does not")
    if file_format is FileFormat.PARQUET:
        _require_parquet()
    if kind is Kind.CRITIQUE and reasoning is ReasoningForm.THINK:
        raise UsageError("a critique's answer is a finding, which has no reasoning: leave '--reasoning think' out")
    scoring = find_policy(policy or DEFAULT_POLICY).name
    samples, references = _samples(origin, run, scoring, results)
    known_tasks = {sample.task for sample in samples}
    for name in task or ():
        if name not in known_tasks:
            raise UsageError(f"no task '{name}' there; there is: {', '.join(sorted(known_tasks)) or 'none'}")
    steps: list[tuple[str, int]] = [("replies with a prompt", len(samples))]
    if task:
        samples = [sample for sample in samples if sample.task in task]
        steps.append(("of the tasks", len(samples)))
    if min_reward is not None:
        samples = [sample for sample in samples if sample.reward is not None and sample.reward >= min_reward]
        steps.append((f"with a reward of at least {min_reward:g}", len(samples)))
    if exclude:
        samples = uncontaminated(samples, references, _tasks_of(exclude), near)
        steps.append((f"unlike any task of {', '.join(exclude)}", len(samples)))
    if kind not in (Kind.GRPO, Kind.TRAJECTORIES, Kind.CRITIQUE):  # these need every completion of a group or dialogue
        samples = distinct(samples, near)
        steps.append((f"without repeats, from {near:.0%} alike on", len(samples)))
    samples = with_reasoning(samples, reasoning.value)
    made = {name: rows(kind.value, part, discount) for name, part in split(samples, validation).items()}
    if not any(made.values()):
        counts = "; ".join(f"{count:,} {what}" for what, count in steps)
        raise UsageError(f"nothing to write as {kind.value}: {counts}")
    files = {name: part for name, part in made.items() if part}
    output.mkdir(parents=True)
    for name, part in files.items():
        _write(output / f"{name}.{file_format.value}", part)
    write_text(_card(kind, scoring, license_, files, file_format, samples, steps), output / "README.md")
    counted = ", ".join(f"{len(part):,} rows in {name}.{file_format.value}" for name, part in files.items())
    typer.echo(f"{counted}, and README.md, in {output}", err=True)


def _samples(origin: Origin, run: str, policy: str, results: Path) -> tuple[list[Sample], dict[str, str]]:
    """Samples, and sources of references by the digests of their tasks, as far as they are stored."""
    from kernelforge.datasets.training import samples_of_attempts

    if origin is Origin.RUNS:
        found_samples: list[Sample] = []
        references: dict[str, str] = {}
        with open_store(results, read_only=True) as store:
            for stored_run in store.runs() if run == "all" else [store.run(run)]:
                for stored_task in store.tasks(stored_run.id):
                    references[stored_task.digest] = stored_task.source
                    attempts = store.attempts(stored_run.id, stored_task.name)
                    found_samples += samples_of_attempts(attempts, policy)
        return found_samples, references
    from kernelforge.server.samples import samples_of_jobs, samples_of_sessions

    read = samples_of_jobs if origin is Origin.JOBS else samples_of_sessions
    return list(read(results, None if run == "all" else run, policy)), {}


def _tasks_of(suites: Sequence[str]) -> list[Task]:
    from kernelforge.tasks.suites import Catalogue

    catalogue = Catalogue(suites)
    return [item for name in catalogue.names for item in catalogue.tasks(name)]


def _require_parquet() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise UsageError(f"parquet files need a package that is not installed: {install_hint('datasets')}") from error


def _write(path: Path, part: Sequence[Row]) -> None:
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(part)), path)
        return
    write_text("".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in part), path)


def _card(
    kind: Kind,
    policy: str,
    license_: str,
    files: dict[str, list[Row]],
    file_format: FileFormat,
    samples: Sequence[Sample],
    steps: Sequence[tuple[str, int]],
) -> str:
    """The data card: where the rows are from, how they were chosen, and what their columns are."""
    from kernelforge.datasets.training import KINDS
    from kernelforge.report.formatting import markdown
    from kernelforge.version import __version__

    def listed(values: set[str]) -> str:
        return ", ".join(markdown(value) for value in sorted(values) if value) or "unknown"

    data_files = "".join(f"\n  - split: {name}\n    path: {name}.{file_format.value}" for name in files)
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.evaluation.outcome] = counts.get(sample.evaluation.outcome, 0) + 1
    fingerprints = [sample.evaluation.fingerprint for sample in samples]
    columns: dict[str, Any] = next(iter(files.values()))[0]
    lines = [
        "---",
        f"configs:\n- config_name: default\n  data_files:{data_files}",
        "tags: [kernelforge, cuda]",
        "---",
        f"# {kind.value}: {KINDS[kind.value]}",
        "",
        f"Written by KernelForge {__version__}. Licence: {license_}.",
        "",
        "| | |",
        "|---|---|",
        f"| rows | {', '.join(f'{name}: {len(part):,}' for name, part in files.items())} |",
        f"| rewards | {policy} |",
        f"| replies by verdict | {', '.join(f'{name}: {count:,}' for name, count in sorted(counts.items()))} |",
        f"| tasks | {len({sample.evaluation.task for sample in samples}):,} |",
        f"| written by | {listed({sample.written_by for sample in samples})} |",
        f"| devices | {listed({item.device for item in fingerprints})} |",
        f"| evaluator | {listed({item.evaluator for item in fingerprints})} |",
        f"| columns | {listed(set(columns))} |",
        "",
        "How the replies were chosen:",
        "",
        *(f"- {count:,} {what}" for what, count in steps),
        "",
        "Verdicts and rewards are those of KernelForge's evaluator, which compared outputs with PyTorch's. Times of an",
        "emulated device are modelled, and speedups of theirs predicted.",
        "",
    ]
    return "\n".join(lines)
