"""Options shared by commands, their conversion to configuration records, and the output of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kernelforge.errors import UsageError
from kernelforge.utils import shell_hints

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, RenderableType

    from kernelforge.capture.client import Source
    from kernelforge.llm.providers import Providers
    from kernelforge.records import Budget, Limits, LLMSettings, MeasureSettings, Task
    from kernelforge.sandbox import Zygote
    from kernelforge.store import Store


class Runtime(StrEnum):
    """Values of ``--runtime``."""

    CUPY = "cupy"
    PYCUDA = "pycuda"


class Protocol(StrEnum):
    """Values of ``--protocol``."""

    KERNELFORGE = "kernelforge"
    KERNELBENCH = "kernelbench"


ModelArgument = Annotated[
    str, typer.Argument(metavar="FILE.py:FUNCTION", help="The function that returns the model, an nn.Module.")
]
InputsOption = Annotated[
    str | None,
    typer.Option(
        "--inputs",
        metavar="FILE.py:FUNCTION",
        help="The function that returns the model's arguments: a list, or a dict of keyword arguments.",
    ),
]
ModuleOption = Annotated[
    str, typer.Option("--module", metavar="NAME", help="Only this part of the model, such as layers.0.mlp.")
]


def model_sources(model: str, inputs: str | None) -> tuple[Source, Source]:
    """The functions that make a user's model and its arguments; these are in the model's file where none is named.

    Raises:
        UsageError: there are no arguments, or a file cannot be read.
    """
    if inputs is None:
        raise UsageError("the model needs arguments: add --inputs FILE.py:FUNCTION, a function that returns them")
    from kernelforge.capture.client import Source

    source = Source.of(model, "MODEL")
    return source, Source.of(inputs, "--inputs", default=source.path)


RuntimeOption = Annotated[Runtime | None, typer.Option("--runtime", help="What talks to the GPU's driver.")]
ProtocolOption = Annotated[
    Protocol | None,
    typer.Option("--protocol", help="How a GPU is timed; kernelbench is for comparison with published numbers only."),
]
SanitizerOption = Annotated[
    bool, typer.Option("--sanitizer", help="On a GPU: also run the small size under compute-sanitizer.")
]
MeasureOption = Annotated[
    list[str] | None,
    typer.Option("--measure", metavar="NAME=VALUE", help="How a GPU measures, such as qps=100 or seconds=20."),
]


class Approximations(StrEnum):
    """Values of ``--approx``."""

    VARIED = "varied"
    WORST = "worst"


ApproxOption = Annotated[
    Approximations,
    typer.Option(
        "--approx",
        help="Errors of approximate instructions on the emulated device: varied by the seed, or as large as they may "
        "be.",
    ),
]


ScreenOption = Annotated[
    bool,
    typer.Option(
        "--screen/--no-screen", help="On a GPU: run each candidate on an emulated device first, before the GPU is used."
    ),
]


def measure_settings(
    runtime: Runtime | None,
    protocol: Protocol | None,
    sanitizer: bool,
    measure: Sequence[str] | None,
    *,
    approx: Approximations = Approximations.VARIED,
    screen: bool = True,
) -> MeasureSettings:
    """Settings from the options.

    Raises:
        UsageError: an unknown name, or an invalid value.
    """
    from pydantic import ValidationError

    from kernelforge.records import MeasureSettings, first_fault

    values: dict[str, Any] = pairs("--measure", measure)
    names = ("counters", "energy", "figures", "launches", "precision", "qps", "seconds")
    for name in values:
        if name not in names:
            raise UsageError(f"--measure has no {name!r}; choose of {', '.join(names)}")
    for name, value in (("runtime", runtime), ("protocol", protocol)):
        if value is not None:
            values[name] = value.value
    try:
        values |= {"sanitizer": sanitizer, "approx": approx.value, "screen": screen}
        return MeasureSettings.model_validate(values, strict=False)
    except ValidationError as error:
        raise UsageError(f"--measure {first_fault(error)}") from error


def c_measure_settings(*, timed: bool) -> MeasureSettings | None:
    """Settings that C functions are timed with; None where they are not timed."""
    from kernelforge.records import MeasureSettings
    from kernelforge.translation.timing import SECONDS

    return MeasureSettings(seconds=SECONDS) if timed else None


def default_device(*, opens: bool, measure: MeasureSettings, allow_unconfined: bool) -> str:
    """Device to use when none was named; prints on stderr why a GPU is not used.

    Args:
        opens: open a GPU to see that it works, and take the emulated device if not.
        measure: settings for the GPU.
        allow_unconfined: open it without a jail if none works.
    """
    from kernelforge.devices import best_device, unused_gpu, usable_device

    name, why = usable_device(measure, allow_unconfined=allow_unconfined) if opens else (best_device(), unused_gpu())
    if why is not None:
        typer.echo(f"note: {why}", err=True)
    return name


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping.

    Raises:
        UsageError: a text without ``=``, or a name given twice.
    """
    values: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise UsageError(f"{option} {text!r}: write NAME=VALUE")
        if name in values:
            raise UsageError(f"{option} {name} is given twice; give it once")
        values[name] = value.strip()
    return values


def shown_metrics(text: str) -> str:
    """Share of a profile in a prompt by ``--metrics``: none, subset, full, or the names in a file."""
    if text in ("none", "subset", "full"):
        return text
    from kernelforge.report.views.metric_selection import read_names

    try:
        names = read_names(Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--metrics {text}: none, subset, full, or a file of names: {error}") from None
    if not names:
        raise UsageError(f"--metrics {text}: the file has no name of a metric")
    return " ".join(names)


def strategy_settings(set_options: Sequence[str] | None, metrics: str | None) -> dict[str, Any]:
    """Options of the strategy, from ``--set`` and ``--metrics``."""
    settings: dict[str, Any] = pairs("--set", set_options)
    if metrics is not None:
        if "metrics" in settings:
            raise UsageError("--metrics and --set metrics=... say the same; give one of them")
        settings["metrics"] = shown_metrics(metrics)
    return settings


def budget_of(
    rounds: int | None,
    evaluations: int | None,
    wall_minutes: float | None,
    tokens: int | None,
    dollars: float | None,
    per_task: Sequence[str] | None,
) -> Budget:
    """Budget from the options of ``run``.

    Raises:
        UsageError: a limit that is not a positive number, or an unknown one.
    """
    from kernelforge.records import Budget

    for option, value, what in (("--wall-minutes", wall_minutes, "time"), ("--dollars", dollars, "money")):
        if value is not None and not value > 0:
            raise UsageError(f"{option} {value:g}: give the run some {what}, for instance 5")
    return Budget(
        rounds=rounds,
        evaluations=evaluations,
        wall_seconds=None if wall_minutes is None else wall_minutes * 60,
        tokens=tokens,
        dollars=dollars,
        per_task=_limits(pairs("--per-task", per_task)),
    )


def _limits(texts: dict[str, str]) -> Limits:
    from pydantic import ValidationError

    from kernelforge.records import Limits, first_fault

    names = ("evaluations", "tokens", "dollars", "wall_minutes")
    for name in texts:
        if name not in names:
            raise UsageError(f"--per-task has no limit {name!r}; choose of {', '.join(names)}")
    values: dict[str, Any] = dict(texts)
    minutes = values.pop("wall_minutes", None)
    if minutes is not None:
        try:
            values["wall_seconds"] = float(minutes) * 60
        except ValueError as error:
            raise UsageError(f"--per-task wall_minutes={minutes}: give a number, for instance 5") from error
    try:
        return Limits.model_validate(values, strict=False)
    except ValidationError as error:
        raise UsageError(f"--per-task: {first_fault(error, show_input=True)}") from error


def llm_settings(texts: Sequence[str] | None, base_url: str | None, prices: Path | None, reasoning: str) -> LLMSettings:
    """Settings for calls of models.

    Raises:
        UsageError: an unknown setting, a value that it cannot have, or a price list that cannot be read.
    """
    from pydantic import ValidationError

    from kernelforge.records import LLMSettings, first_fault

    values: dict[str, Any] = dict(pairs("--llm", texts))
    names = [name for name in LLMSettings.model_fields if name not in ("prices", "base_url", "reasoning")]
    for name in values:
        if name not in names:
            raise UsageError(f"--llm has no setting {name!r}; choose of {', '.join(names)}")
    values["reasoning"] = reasoning
    if base_url is not None:
        values["base_url"] = base_url
    if prices is not None:
        from kernelforge.llm.prices import load_prices

        values["prices"] = load_prices(prices)
    try:
        return LLMSettings.model_validate(values, strict=False)
    except ValidationError as error:
        raise UsageError(f"--llm: {first_fault(error, show_input=True)}") from error


PATTERNS = "this task, 1/23, level1, D* (CudaForge's 25), or a pattern such as '*softmax*'"


def check_coder(providers: Providers, coder: str, dollars: float | None) -> None:
    """Refuse a Coder that cannot be called, or whose price is unknown where a budget is in dollars.

    Raises:
        UsageError: it is refused; the message says what to do.
    """
    providers.check(coder)
    if dollars is not None and not providers.price_known(coder):
        raise UsageError(f"a dollar budget cannot be held: the price of {coder!r} is unknown; give it with --prices")


SuiteArgument = Annotated[
    str, typer.Argument(metavar="[SUITE]", help="Name of a shipped suite, or the path of a suite's folder.")
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the inputs; a fresh, secret one if left out.")
]
BaseUrlOption = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="OpenAI-compatible server of 'openai:' models.")
]
LLMOption = Annotated[
    list[str] | None,
    typer.Option("--llm", metavar="NAME=VALUE", help="How models are called, such as concurrency=20; repeat for more."),
]
PricesOption = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="Prices of models: TOML, dollars a million tokens.")
]
TokensOption = Annotated[
    int | None, typer.Option("--tokens", min=1, help="Start no call of a model after this many tokens.")
]
DollarsOption = Annotated[
    float | None, typer.Option("--dollars", help="Start no call of a model after this many dollars.")
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--task", "--select", metavar="NAME", help=f"Only {PATTERNS} of the suite; repeat for more."),
]
AllOption = Annotated[bool, typer.Option("--all", help="Every suite that ships with KernelForge.")]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=1, help="Longest wait for one answer of a task's reference."),
]
JobsOption = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Tasks worked on at a time.")]


@dataclass(frozen=True)
class TaskSelection:
    """Tasks from the command line."""

    tasks: tuple[tuple[str, Task], ...]
    """Name or path of the suite as given, with the task."""
    broken: tuple[str, ...] = ()
    """Errors of suites and tasks that could not be read; the others are still used."""

    @property
    def suites(self) -> list[str]:
        return list(dict.fromkeys(suite for suite, _ in self.tasks))


def select_tasks(suite: str, only: list[str] | None, every: bool) -> TaskSelection:
    """Select tasks of every shipped suite, of one suite, or some tasks of one.

    Raises:
        UsageError: there is no such suite or task, or ``--all`` was given with ``--task``.
        TaskError: the suite that was named is malformed.
    """
    from kernelforge.errors import TaskError
    from kernelforge.tasks import list_suites, load_suite

    if every and only:
        raise UsageError("--all takes every task of every suite; leave out --task, or name the suite instead")
    broken: list[str] = []
    if not every:
        loaded = load_suite(suite, broken=None if only else broken)
        selected = loaded.select(only) if only else loaded
        return TaskSelection(tuple((suite, task) for task in selected), tuple(broken))
    tasks: list[tuple[str, Task]] = []
    for name in list_suites():
        try:
            tasks += [(name, task) for task in load_suite(name, broken=broken)]
        except TaskError as error:
            broken.append(str(error))
    return TaskSelection(tuple(tasks), tuple(broken))


def print_broken(selection: TaskSelection) -> None:
    """Print a line on stderr for each suite or task that could not be read."""
    from kernelforge.report.formatting import one_line

    for text in selection.broken:
        typer.echo(f"error: {one_line(text)}", err=True)


def oracle_zygote(allow_unconfined: bool) -> Zygote:
    """Zygote for the confined children that run references."""
    from kernelforge.sandbox import Zygote

    return Zygote("oracle", allow_unconfined=allow_unconfined)


V = TypeVar("V", bound="BaseModel")

DEFAULT_RESULTS = shell_hints.RESULTS

ResultsOption = Annotated[
    Path,
    typer.Option(
        "--results", envvar=shell_hints.RESULTS_VARIABLE, metavar="FOLDER", help="Folder of the results database."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Where candidates run; the best device here if left out.")
]
OfferedSuites = Annotated[
    list[str] | None,
    typer.Option("--suite", metavar="SUITE", help="Offer this suite, or folder; repeat for more. Else all shipped."),
]
OfferedTasks = Annotated[
    list[str] | None,
    typer.Option("--task", "--select", metavar="NAME", help=f"Offer only {PATTERNS}; repeat for more."),
]
UnconfinedOption = Annotated[
    bool,
    typer.Option(
        "--allow-unconfined",
        help="Go on where no jail works. Recorded on every result; such results are never rewarded.",
    ),
]


def open_store(results: Path, *, read_only: bool = False) -> Store:
    """Results database in a folder; created if missing, unless ``read_only``."""
    from kernelforge.store import DATABASE_NAME, Store

    return Store.open(results / DATABASE_NAME, create=not read_only, read_only=read_only)


def console(*, stderr: bool = False) -> Console:
    """Console without markup. Colours only on a terminal, and never with NO_COLOR."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def warn(message: str) -> None:
    """Print a message of a device on stderr."""
    typer.echo(f"kernelforge: {message}", err=True)


def print_json(view: BaseModel) -> None:
    """Write a view as indented JSON."""
    write_text(json_text(view), None)


def print_view(view: V, terminal: Callable[[V], RenderableType], *, as_json: bool) -> None:
    """Print a view as JSON for programs, or as ``terminal`` writes it for people."""
    if as_json:
        print_json(view)
    else:
        console().print(terminal(view))


def json_text(view: BaseModel) -> str:
    """A view as indented JSON, without control characters."""
    from kernelforge.report.formatting import json_printable

    return json_printable(view.model_dump_json(indent=2)) + "\n"


def write_text(text: str, output: Path | None) -> None:
    """Write to a file, atomically, or to stdout when ``output`` is None."""
    if output is None:
        typer.echo(text, nl=not text.endswith("\n"))
        return
    write_bytes(text.encode("utf-8", "backslashreplace"), output)


def write_rows(rows: Iterable[BaseModel | Mapping[str, Any]], output: Path) -> None:
    """Write records or rows for training as JSON lines, atomically."""
    from kernelforge.utils.json_lines import json_lines

    write_bytes(json_lines(rows), output)


def begin_rows(output: Path) -> None:
    """Make an empty file of JSON lines, so that one that cannot be written costs no call.

    Raises:
        UsageError: it has rows, or cannot be written.
    """
    if output.is_file() and output.stat().st_size:
        raise UsageError(f"{output} exists, with rows that were paid for: name a file that does not")
    write_rows([], output)


def write_bytes(content: bytes, output: Path) -> None:
    """Write to a file, atomically."""
    from kernelforge.utils.atomic_files import atomic_write

    if output.is_dir():
        raise UsageError(f"{output} is a folder: name a file")
    with atomic_write(output) as part:
        part.write_bytes(content)
        part.replace(output)


def task_reference(name: str) -> str:
    """Task reference for the loader: a bare name is a task of suite ``core``."""
    return name if "/" in name or name.endswith(".py") else f"core/{name}"


class Form(StrEnum):
    """Values of ``--format``."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


FormOption = Annotated[Form, typer.Option("--format", help="Form of the output.")]
DocumentOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write to a file (not with --format terminal).")
]


def chosen_form(form: Form, *, as_json: bool, output: Path | None) -> Form:
    """Form of the output, from the options.

    Raises:
        UsageError: the terminal form with a file.
    """
    form = Form.JSON if as_json else form
    if output is not None and form is Form.TERMINAL:
        raise UsageError("--output needs --format markdown, json or csv")
    return form


def write_view(
    view: V,
    form: Form,
    output: Path | None,
    *,
    markdown: Callable[[V], str],
    csv: Callable[[V], str],
    terminal: Callable[[V], RenderableType],
) -> None:
    """Write a view in the form, with the function for that form."""
    if form is Form.TERMINAL:
        console().print(terminal(view))
    elif form is Form.JSON:
        write_text(json_text(view), output)
    else:
        write_text((csv if form is Form.CSV else markdown)(view), output)
