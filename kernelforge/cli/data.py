"""``kernelforge data``: training data from runs, jobs and sessions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    DEFAULT_RESULTS,
    PATTERNS,
    JsonOption,
    ResultsOption,
    UnconfinedOption,
    console,
    open_store,
    print_view,
    warn,
    write_rows,
    write_text,
)
from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import install_hint

if TYPE_CHECKING:
    from kernelforge.datasets.curation import RuleSummary
    from kernelforge.datasets.graph_pairs import PairSummary
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
    TRANSLATOR = "translator"
    TESTER = "tester"


class Programs(StrEnum):
    """Values of ``--programs``."""

    ONCE = "once"
    ALL = "all"


class LikenessForm(StrEnum):
    """Values of ``--likeness``."""

    SHINGLES = "shingles"
    BLEU = "bleu"


class ReasoningForm(StrEnum):
    """Values of ``--reasoning``."""

    COLUMN = "column"
    THINK = "think"
    OFF = "off"


class FileFormat(StrEnum):
    """Values of ``--format``."""

    JSONL = "jsonl"
    PARQUET = "parquet"


class Published(StrEnum):
    """Values of ``--format`` of ``import``."""

    CONCUR = "concur"
    KERNELBOOK = "kernelbook"
    AI_CUDA_ENGINEER = "ai-cuda-engineer"
    BABELTOWER = "babeltower"
    MUSL = "musl"
    HPCTRANSEVAL = "hpctranseval"
    CODEROSETTA = "coderosetta"


class PublishedKind(StrEnum):
    """Values of ``--as`` of ``import``."""

    SFT = "sft"
    KTO = "kto"


class Rule(StrEnum):
    """Values of ``--rule``."""

    CONCUR = "concur"
    RANDOM = "random"
    LONGEST = "longest"
    SHORTEST = "shortest"
    FASTEST = "fastest"


OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write; a folder that does not exist.")
]
RunArgument = Annotated[
    str, typer.Argument(metavar="[RUN]", help="Id of a run, 'latest', or 'all'; of jobs and sessions, a run_id.")
]
OriginOption = Annotated[Origin, typer.Option("--from", help="What the rows are made of.")]
TaskOption = Annotated[
    list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; repeat for more.")
]
NearOption = Annotated[
    float, typer.Option("--near", metavar="SHARE", min=0, max=1, help="Likeness from which on texts are repeats.")
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="SUITE", help="Leave out what is like a task of this suite; repeat for more."),
]
ReasoningOption = Annotated[
    ReasoningForm,
    typer.Option("--reasoning", help="Reasoning in its column, also in the replies between tags, or nowhere."),
]
LicenseOption = Annotated[
    str, typer.Option("--license", metavar="TEXT", help="Licence of the rows, for the data card.")
]
FormatOption = Annotated[FileFormat, typer.Option("--format", help="Form of the files.")]


@app.command("export")
def export(
    output: OutputOption,
    kind: Annotated[Kind, typer.Option("--as", help="Kind of rows.")],
    run: RunArgument = "all",
    origin: OriginOption = Origin.RUNS,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="Reward policy; the default one if left out.")
    ] = None,
    task: TaskOption = None,
    min_reward: Annotated[
        float | None, typer.Option("--min-reward", metavar="NUMBER", help="Only replies with at least this reward.")
    ] = None,
    near: NearOption = 0.9,
    likeness: Annotated[
        LikenessForm, typer.Option("--likeness", help="Of replies: shared shingles, or BLEU of tokens, names apart.")
    ] = LikenessForm.SHINGLES,
    programs: Annotated[
        Programs, typer.Option("--programs", help="How often equal PTX and plans count in sft, kto and grpo.")
    ] = Programs.ONCE,
    exclude: ExcludeOption = None,
    validation: Annotated[
        float, typer.Option("--validation", metavar="SHARE", min=0, max=1, help="Share of the tasks kept apart.")
    ] = 0.0,
    both: Annotated[
        bool,
        typer.Option("--both", help="As translator: also each right translation as one into C; judges the suite's C."),
    ] = False,
    discount: Annotated[
        float, typer.Option("--discount", metavar="NUMBER", min=0, max=1, help="Weight of a later turn's reward.")
    ] = 0.4,
    reasoning: ReasoningOption = ReasoningForm.COLUMN,
    license_: LicenseOption = "not stated",
    file_format: FormatOption = FileFormat.JSONL,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write rows for training, with a data card: prompts, replies, rewards, and where each is from.

    Replies that repeat an earlier one of the same prompt are left out, by source, by PTX, and by likeness; and so are
    those that share the evaluation of an earlier one, of a group's completions too.
    """
    from kernelforge.datasets.training import KINDS, counted_once, distinct, rows, split, translations, with_reasoning
    from kernelforge.rewards import DEFAULT_POLICY, find_policy

    _check_output(output, file_format)
    if kind is Kind.CRITIQUE and reasoning is ReasoningForm.THINK:
        raise UsageError("a critique's answer is a finding, which has no reasoning: leave '--reasoning think' out")
    if both and kind is not Kind.TRANSLATOR:
        raise UsageError("--both is of translations: take it with --as translator")
    if kind is Kind.TESTER:
        if origin is not Origin.RUNS or validation:
            raise UsageError("a Tester works in runs alone: leave out --from and, for its few rows, --validation")
        made, steps = _tests(run, task, results)
        title = f"{kind.value}: {KINDS[kind.value]}"
        _write_folder(output, title, license_, made, file_format, [], steps, _OUR_VERDICTS)
        return
    scoring = find_policy(policy or DEFAULT_POLICY).name
    samples, tasks = _samples(origin, run, scoring, results)
    samples, steps = _of_tasks(samples, task)
    if kind is Kind.TRANSLATOR:
        samples = translations(samples, tasks)
        steps.append(("of tasks that show sequential code", len(samples)))
    if min_reward is not None:
        samples = [sample for sample in samples if sample.reward is not None and sample.reward >= min_reward]
        steps.append((f"with a reward of at least {min_reward:g}", len(samples)))
    samples = _without(exclude, samples, tasks, near, steps)
    if kind not in (Kind.GRPO, Kind.TRAJECTORIES, Kind.CRITIQUE):  # these need every completion of a group or dialogue
        samples = distinct(samples, near, by_bleu=likeness is LikenessForm.BLEU)
        steps.append((f"without repeats, from {near:.0%} alike on by {likeness.value}", len(samples)))
    if programs is Programs.ONCE and kind in (Kind.SFT, Kind.KTO, Kind.GRPO, Kind.TRANSLATOR):
        samples = counted_once(samples, by_group=kind is Kind.GRPO)
        steps.append(("without those that share the evaluation of an equal one", len(samples)))
    samples = with_reasoning(samples, reasoning.value)
    parts = split(samples, validation)
    made = {name: rows(kind.value, part, discount) for name, part in parts.items()}
    if both:
        import secrets

        from kernelforge.run.translations import reversed_rows

        into_c = reversed_rows(parts, tasks, seed=secrets.randbits(63))
        made = {name: part + into_c[name] for name, part in made.items()}
        steps.append(("in the other direction, right there too", sum(map(len, into_c.values()))))
    if not any(made.values()):
        raise UsageError(f"nothing to write as {kind.value}: {_counted(steps)}")
    title = f"{kind.value}: {KINDS[kind.value]}"
    _write_folder(output, title, license_, made, file_format, _judged(scoring, samples), steps, _OUR_VERDICTS)


@app.command("curate")
def curate(
    run: RunArgument = "all",
    origin: OriginOption = Origin.RUNS,
    rule: Annotated[Rule, typer.Option("--rule", help="How traces are chosen.")] = Rule.CONCUR,
    traces: Annotated[
        int, typer.Option("--traces", metavar="K", min=1, help="Traces of a task that are looked at: its first.")
    ] = 5,
    equal: Annotated[
        float, typer.Option("--equal", metavar="SHARE", min=0, max=1, help="Share by which times are still equal.")
    ] = 0.01,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the rule 'random'.")] = 0,
    task: TaskOption = None,
    near: NearOption = 0.9,
    exclude: ExcludeOption = None,
    reasoning: ReasoningOption = ReasoningForm.COLUMN,
    license_: LicenseOption = "not stated",
    file_format: FormatOption = FileFormat.JSONL,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Write what the rule chooses here."),
    ] = None,
    as_json: JsonOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Choose replies by their reasoning, as ConCuR does, and show what each rule would choose.

    A trace is a reply whose reasoning was kept. ConCuR's rule takes the shortest of a task that is also its fastest,
    the fastest over 5x of other tasks, and, for balance, the shortest of further tasks of a single operator.
    """
    from kernelforge.datasets import curation
    from kernelforge.datasets.training import with_reasoning
    from kernelforge.rewards import DEFAULT_POLICY, find_policy

    if output is not None:
        _check_output(output, file_format)
    scoring = find_policy(DEFAULT_POLICY).name
    samples, tasks = _samples(origin, run, scoring, results)
    samples, steps = _of_tasks(samples, task)
    samples = [sample for sample in samples if sample.reasoning is not None]
    steps.append(("with their reasoning", len(samples)))
    samples = _without(exclude, samples, tasks, near, steps)
    single = {digest for digest, item in tasks.items() if item.level == 1} or _single_operators(samples)
    traced = curation.traces_by_task(samples, single, traces)
    steps.append(
        (f"correct and timed among the first {traces} of each task", sum(len(item.correct) for item in traced))
    )
    if not traced:
        raise UsageError(f"no trace to choose from: {_counted(steps)}; only replies with reasoning are traces")
    summary = curation.summaries(traced, seed, equal)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in summary], indent=2))
    else:
        _print_rules(summary, len(traced))
    if output is None:
        return
    selection = curation.curate(traced, rule.value, seed, equal)
    kept = with_reasoning([trace.sample for trace in selection], reasoning.value)
    selection = [replace(trace, sample=sample) for trace, sample in zip(selection, kept, strict=True)]
    steps.append((f"chosen by the rule {rule.value}: {curation.RULES[rule.value]}", len(selection)))
    for why in dict.fromkeys(trace.why for trace in selection):
        steps.append((f"of these as {why}", sum(trace.why == why for trace in selection)))
    made = {"train": list(curation.curated_rows(selection))}
    if not selection:
        raise UsageError(f"nothing to write: {_counted(steps)}")
    title = f"curated: {curation.RULES[rule.value]}"
    _write_folder(output, title, license_, made, file_format, _judged(scoring, kept), steps, _OUR_VERDICTS)


@app.command("import")
def import_published(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file of rows, or a folder of them.")],
    published: Annotated[Published, typer.Option("--format", help="Whose rows they are.")],
    output: OutputOption,
    kind: Annotated[PublishedKind, typer.Option("--as", help="Kind of rows.")] = PublishedKind.SFT,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="ROLE=NAME", help="A column of ConCuR: reference, reasoning or kernel."),
    ] = None,
    near: NearOption = 0.9,
    exclude: ExcludeOption = None,
    reasoning: ReasoningOption = ReasoningForm.COLUMN,
    license_: LicenseOption = "not stated",
    file_format: Annotated[FileFormat, typer.Option("--files", help="Form of the files.")] = FileFormat.JSONL,
) -> None:
    """Make rows for training of data sets that others published; nothing in them is executed.

    Correctness and speedups are the publishers'. Rows of wrong kernels are written by '--as kto' alone.
    """
    from kernelforge.cli.support.options import pairs
    from kernelforge.datasets.published_rows import FORMATS, published_rows, read_published, unlike
    from kernelforge.report.formatting import markdown, one_line

    _check_output(output, file_format)
    columns = dict(pairs("--column", column))
    if columns and published is not Published.CONCUR:
        raise UsageError("--column names columns of ConCuR; the others have theirs by their cards")
    read = read_published(source, published.value, columns)
    selection = list(read.pairs)
    steps = [("pairs of a module and a kernel", len(selection)), ("rows that could not be read", len(read.unread))]
    for item in read.unread[:_SHOWN_FAULTS]:
        typer.echo(one_line(f"not read: {item.origin}: {item.reason}"), err=True)
    if exclude:
        selection = unlike(selection, _tasks_of(exclude), near)
        steps.append((f"unlike any task of {', '.join(exclude)}", len(selection)))
    made = {"train": list(published_rows(selection, kind.value, published.value, reasoning.value))}
    if not made["train"]:
        raise UsageError(f"nothing to write as {kind.value}: {_counted(steps)}")
    title = f"{published.value}: {FORMATS[published.value]}"
    tasks = len({pair.task or pair.name for pair in selection})
    licences = sorted({pair.licence for pair in selection if pair.licence})
    facts = [("tasks", f"{tasks:,}"), ("licences of the rows", ", ".join(map(markdown, licences)) or "not stated")]
    _write_folder(output, title, license_, made, file_format, facts, steps, _THEIR_VERDICTS)


@app.command("pairs")
def pairs(
    suites: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SUITE]...", help="Suites whose references are traced; all that ship if left out."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where to write; one with pairs is gone on with."),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "--select", metavar="NAME", help=f"Only {PATTERNS}; repeat for more."),
    ] = None,
    augment: Annotated[
        int, typer.Option("--augment", metavar="N", min=0, help="Augmented graphs of each traced one.")
    ] = 2,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Stop when the folder has this many pairs.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of edits, designs and inputs.")] = 0,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="Where the kernels of a pair are judged.")
    ] = "emulated:h100",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write both texts of each graph, evaluate nothing, keep nothing.")
    ] = False,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make pairs of CUDA and C of the graphs of references and of augmented ones, right on both sides, without a model.

    The built-in Coder writes the kernels, a generator the C function of the same program; both are judged. Each pair is
    a row in both directions, on the disk before the next graph.
    """
    import time
    from contextlib import nullcontext

    from kernelforge.datasets.graph_pairs import GraphPair, PairFolder
    from kernelforge.evaluation.pool import EvaluatorPool
    from kernelforge.report.formatting import one_line
    from kernelforge.report.terminal.translation import pair_lines
    from kernelforge.run.graph_pairs import GraphPairs, text_hash
    from kernelforge.tasks import list_suites, load_suite
    from kernelforge.tasks.selection import selected_in_suites
    from kernelforge.translation.evaluator import CEvaluators

    if output is None and not dry_run:
        raise UsageError("name a folder for the pairs with --output, or take --dry-run")
    if output is not None and dry_run:
        raise UsageError("--dry-run writes nothing: leave --output out")
    names = suites or list(list_suites())
    offered = {f"{item.suite}/{item.name}": item for name in names for item in load_suite(name)}
    if task:
        where = f"suite {suites[0]!r}" if suites and len(suites) == 1 else f"the set of suites {', '.join(names)}"
        offered = {name: offered[name] for name in selected_in_suites(task, list(offered), where)}
    folder = None if output is None else PairFolder(output, seed)
    err = console(stderr=True)
    counted, interrupted = 0 if folder is None else folder.pairs, False
    opening = nullcontext() if dry_run else CEvaluators(allow_unconfined=allow_unconfined)
    with EvaluatorPool(device, allow_unconfined=allow_unconfined) as pool, opening as functions:
        pool.start()
        rows = [] if folder is None else folder.rows
        maker = GraphPairs(
            list(offered.values()),
            pool,
            functions,
            seed=seed,
            augment=augment,
            earlier=[row["graph"] for row in rows],
            texts=[text_hash(row["code"]) for row in rows],
        )
        done = set() if folder is None else folder.done
        began = time.perf_counter()
        graphs = maker.make(done)
        try:
            while (limit is None or counted < limit) and (item := next(graphs, None)) is not None:
                seconds, began = time.perf_counter() - began, time.perf_counter()
                if folder is not None:
                    folder.add(item, seconds)
                if isinstance(item, GraphPair):
                    counted += 1
                    outcome = f"pair {counted} ({', '.join(item.edits) or 'traced'})"
                else:
                    outcome = f"{item.stage}: {item.reason}"
                err.print(one_line(f"{item.key.task} {item.key.number}: {outcome}"[:200]), soft_wrap=True)
        except KeyboardInterrupt:
            interrupted = True
            warn("stopped; the same command goes on with the folder")
    if folder is None:
        typer.echo(f"{counted:,} pairs would be judged", err=True)
        return
    summary = folder.summary()
    if folder.pairs:
        _write_pair_card(folder.folder, folder.rows, summary, seed)
    print_view(summary, pair_lines, as_json=as_json)
    if interrupted:
        raise typer.Exit(130)


def _write_pair_card(output: Path, rows: list[Row], summary: PairSummary, seed: int) -> None:
    """Write the card of a folder of pairs: it names the file to load, and counts what was dropped."""
    from kernelforge.datasets.graph_pairs import STAGES, TRAIN
    from kernelforge.report.formatting import markdown

    facts = [
        ("pairs", f"{summary.pairs:,}"),
        ("families", ", ".join(f"{markdown(name)}: {count:,}" for name, count in summary.families.items())),
        ("seed", f"{seed}"),
        ("devices", _listed(row["device"] for row in rows)),
        ("evaluator", _listed(row["evaluator"] for row in rows)),
        ("written by", _listed(row["written_by"] for row in rows)),
        ("licences of the tasks", _listed(row["licence"] for row in rows)),
    ]
    steps = [("graphs", summary.graphs)]
    steps += [(f"dropped: {STAGES[stage]}", count) for stage, count in summary.dropped.items()]
    steps += [("pairs, each in both directions", summary.pairs)]
    split = TRAIN.removesuffix(".jsonl")
    title = "pairs of CUDA and C of traced and augmented graphs"
    _write_card(output, title, "that of each row", {split: rows}, FileFormat.JSONL, facts, steps, _PAIR_VERDICTS)


_PAIR_VERDICTS = (
    "Both sides of each pair were compared with PyTorch's outputs at every size of their task: the kernels by\n"
    "KernelForge's evaluator, the C functions in a jail."
)
_SHOWN_FAULTS = 10
_OUR_VERDICTS = (
    "Verdicts and rewards are those of KernelForge's evaluator, which compared outputs with PyTorch's. Times of an\n"
    "emulated device are modelled, and speedups of theirs predicted."
)
_THEIR_VERDICTS = "Nothing was evaluated here: correctness and speedups are as published."


def _print_rules(summary: Sequence[RuleSummary], tasks: int) -> None:
    from kernelforge.report.formatting import number, times
    from kernelforge.report.tables.base import Column, Table

    columns = (
        Column("rule", "rule"),
        Column("traces", "traces", number, "right"),
        Column("tokens", "mean tokens", lambda value: number(value and round(value)), "right"),
        Column("measured_speedup", "measured speedup", times, "right"),
        Column("predicted_speedup", "predicted speedup", times, "right"),
    )
    title = f"What each rule chooses from {tasks:,} {'task' if tasks == 1 else 'tasks'}; speedups are geometric means"
    console().print(Table.of(title, columns, summary).to_rich())


def _single_operators(samples: Sequence[Sample]) -> set[str]:
    """Digests of tasks of one operator, level 1 of their suite, where the tasks are those of shipped suites."""
    from kernelforge.tasks import list_suites, load_suite

    digests = {sample.evaluation.task for sample in samples}
    named = {sample.task.partition("/")[0] for sample in samples}
    suites = [load_suite(name) for name in list_suites() if name in named]
    return {item.digest for suite in suites for item in suite if item.level == 1} & digests


def _check_output(output: Path, file_format: FileFormat) -> None:
    if output.exists():
        raise UsageError(f"{output} exists: name a folder that does not")
    if file_format is FileFormat.PARQUET:
        _require_parquet()


def _of_tasks(samples: list[Sample], names: list[str] | None) -> tuple[list[Sample], list[tuple[str, int]]]:
    """Samples of the named tasks, or all; and how many there are, for the card."""
    known_tasks = {sample.task for sample in samples}
    for name in names or ():
        if name not in known_tasks:
            raise UsageError(f"no task '{name}' there; there is: {', '.join(sorted(known_tasks)) or 'none'}")
    steps = [("replies with a prompt", len(samples))]
    if names:
        samples = [sample for sample in samples if sample.task in names]
        steps.append(("of the tasks", len(samples)))
    return samples, steps


def _without(
    exclude: list[str] | None,
    samples: list[Sample],
    tasks: dict[str, Task],
    near: float,
    steps: list[tuple[str, int]],
) -> list[Sample]:
    """Samples unlike the tasks of the excluded suites."""
    from kernelforge.datasets.training import uncontaminated

    if not exclude:
        return samples
    references = {digest: item.source for digest, item in tasks.items()}
    samples = uncontaminated(samples, references, _tasks_of(exclude), near)
    steps.append((f"unlike any task of {', '.join(exclude)}", len(samples)))
    return samples


def _counted(steps: Sequence[tuple[str, int]]) -> str:
    return "; ".join(f"{count:,} {what}" for what, count in steps)


def _write_folder(
    output: Path,
    title: str,
    license_: str,
    made: dict[str, list[Row]],
    file_format: FileFormat,
    facts: Sequence[tuple[str, str]],
    steps: Sequence[tuple[str, int]],
    note: str,
) -> None:
    """Write the files of a data set, and its card: where the rows are from, how they were chosen, their columns."""
    files = {name: part for name, part in made.items() if part}
    output.mkdir(parents=True)
    for name, part in files.items():
        _write(output / f"{name}.{file_format.value}", part)
    _write_card(output, title, license_, files, file_format, facts, steps, note)
    counted = ", ".join(f"{len(part):,} rows in {name}.{file_format.value}" for name, part in files.items())
    typer.echo(f"{counted}, and README.md, in {output}", err=True)


def _write_card(
    output: Path,
    title: str,
    license_: str,
    files: dict[str, list[Row]],
    file_format: FileFormat,
    facts: Sequence[tuple[str, str]],
    steps: Sequence[tuple[str, int]],
    note: str,
) -> None:
    """Write the card of a data set; ``files`` have the rows of each split by name."""
    from kernelforge.report.formatting import markdown
    from kernelforge.version import __version__

    data_files = "".join(f"\n  - split: {name}\n    path: {name}.{file_format.value}" for name in files)
    columns = ", ".join(map(markdown, sorted(next(iter(files.values()))[0])))
    counts = ", ".join(f"{name}: {len(part):,}" for name, part in files.items())
    lines = [
        "---",
        f"configs:\n- config_name: default\n  data_files:{data_files}",
        "tags: [kernelforge, cuda]",
        "---",
        f"# {title}",
        "",
        f"Written by KernelForge {__version__}. Licence: {license_}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {label} | {text} |" for label, text in (("rows", counts), *facts, ("columns", columns))),
        "",
        "How the rows were chosen:",
        "",
        *(f"- {count:,} {what}" for what, count in steps),
        "",
        note,
        "",
    ]
    write_text("\n".join(lines), output / "README.md")


def _judged(policy: str, samples: Sequence[Sample]) -> list[tuple[str, str]]:
    """Facts for the card of replies that were evaluated here."""
    outcomes = Counter(sample.evaluation.outcome for sample in samples)
    fingerprints = [sample.evaluation.fingerprint for sample in samples]
    return [
        ("rewards", policy),
        ("replies by verdict", ", ".join(f"{name}: {count:,}" for name, count in sorted(outcomes.items()))),
        ("tasks", f"{len({sample.evaluation.task for sample in samples}):,}"),
        ("written by", _listed(sample.written_by for sample in samples)),
        ("devices", _listed(item.device for item in fingerprints)),
        ("evaluator", _listed(item.evaluator for item in fingerprints)),
        ("licences of the tasks", _listed(sample.licence for sample in samples)),
    ]


def _listed(values: Iterable[str | None]) -> str:
    from kernelforge.report.formatting import markdown

    return ", ".join(markdown(value) for value in sorted({value for value in values if value})) or "unknown"


def _samples(origin: Origin, run: str, policy: str, results: Path) -> tuple[list[Sample], dict[str, Task]]:
    """Samples, and their tasks by digest, as far as they are stored."""
    from kernelforge.datasets.training import samples_of_attempts, with_licences

    samples: list[Sample] = []
    tasks: dict[str, Task] = {}
    if origin is Origin.RUNS:
        with open_store(results, read_only=True) as store:
            for stored_run in store.runs() if run == "all" else [store.run(run)]:
                for stored_task in store.tasks(stored_run.id):
                    tasks[stored_task.digest] = stored_task
                    attempts = store.attempts(stored_run.id, stored_task.name)
                    samples += samples_of_attempts(attempts, policy)
    else:
        from kernelforge.server.jobs.results import stored_tasks
        from kernelforge.server.samples import samples_of_jobs, samples_of_sessions

        read = samples_of_jobs if origin is Origin.JOBS else samples_of_sessions
        samples = list(read(results, None if run == "all" else run, policy))
        tasks = stored_tasks(results)
    return with_licences(samples, tasks), tasks


def _tests(run: str, names: list[str] | None, results: Path) -> tuple[dict[str, list[Row]], list[tuple[str, int]]]:
    """Rows of Testers whose generators caught wrong kernels, and how many tasks they are from.

    Raises:
        UsageError: no generator caught any.
    """
    from kernelforge.datasets.training import catching_tests

    made: list[Row] = []
    looked_at = 0
    with open_store(results, read_only=True) as store:
        for stored_run in store.runs() if run == "all" else [store.run(run)]:
            for task in store.tasks(stored_run.id):
                if names and task.name not in names:
                    continue
                looked_at += 1
                messages = store.task_messages(stored_run.id, task.name)
                made += catching_tests(stored_run.id, task, messages, store.attempts(stored_run.id, task.name))
    steps = [("tasks of runs", looked_at), ("whose Tester caught a wrong kernel", len(made))]
    if not made:
        raise UsageError(f"nothing to write as tester: {_counted(steps)}")
    return {"train": made}, steps


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
    write_rows(part, path)
