"""The command line: registers the commands, and turns errors into one line and an exit code.

This module and the tops of command modules import no heavy package, so that ``kernelforge --help`` is fast.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Annotated, NoReturn

import typer

from kernelforge.cli import (
    calibrate,
    capture,
    compare,
    convert,
    data,
    emulate,
    evaluate,
    export,
    figure,
    import_candidates,
    import_tasks,
    leaderboard,
    mcp,
    notes,
    package,
    predict,
    prompts,
    report,
    reward,
    run,
    select_metrics,
    serve,
    show,
    skill,
    splice,
    strategies,
    study,
    submit,
    tasks,
    translate,
)
from kernelforge.cli.doctor import host
from kernelforge.errors import KernelForgeError
from kernelforge.version import __version__

DEBUG_VARIABLE = "KERNELFORGE_DEBUG"

app = typer.Typer(
    name="kernelforge",
    help="Turns PyTorch modules into CUDA kernels that are verified, faster and honestly measured.",
    epilog="Start with 'kernelforge doctor', then 'kernelforge run'.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("doctor", short_help="Check what this machine has.")(host.doctor)
app.add_typer(tasks.app, name="tasks", short_help="List, show, check and import tasks.")
tasks.app.command("import", short_help="Make a suite of another benchmark's tasks.")(import_tasks.import_tasks)
app.command("capture", short_help="Find the groups of a model that kernels could compute.")(capture.capture)
app.command("splice", short_help="Put packaged operators into a model, and check it.")(splice.splice)
app.command("eval", short_help="Evaluate one candidate against one task.")(evaluate.evaluate)
app.command("emulate", short_help="Run a kernel of your own without a GPU.")(emulate.emulate)
app.command("calibrate", short_help="Measure the figures of a GPU.")(calibrate.calibrate)
app.command("predict", short_help="Predict times of a matrix product by its tiles.")(predict.predict)
app.command("convert", short_help="Make device code and a plan of a ModelNew.")(convert.convert)
app.add_typer(import_candidates.app, name="import", short_help="Import candidates that others published.")
app.command("run", short_help="Write and improve kernels for a suite.")(run.run)
app.command("translate", short_help="Let a Coder write C for CUDA.")(translate.translate)
app.add_typer(study.app, name="study", short_help="Studies of what a model can write.")
app.command("strategies", short_help="List the search methods and their options.")(strategies.strategies)
app.command("resume", short_help="Go on with a run.")(run.resume)
app.command("show", short_help="Show a run, a task's lineage, or an attempt.")(show.show)
app.command("select-metrics", short_help="Choose metrics that go with times.")(select_metrics.select_metrics)
app.command("diff", short_help="Show what made one attempt of another.")(compare.diff)
app.command("compare", short_help="Compare two runs, task by task.")(compare.compare)
app.command("figure", short_help="Draw figures for papers.")(figure.figure)
app.command("report", short_help="Write runs as web pages.")(report.report)
app.command("view", short_help="Watch runs in a browser while they go on.")(report.view)
app.add_typer(notes.app, name="notes", short_help="Search the optimisation notes.")
app.add_typer(prompts.app, name="prompts", short_help="List and show the prompts.")
app.command("serve", short_help="Serve rewards to RL trainers.")(serve.serve)
app.add_typer(serve.token_app, name="token", short_help="Manage reward-server tokens.")
app.command("submit", short_help="Send completions to a reward server.")(submit.submit)
app.command("mcp", short_help="Serve the judge to a coding agent.")(mcp.mcp)
app.add_typer(skill.app, name="skill", short_help="Teach a coding agent to use KernelForge.")
app.add_typer(leaderboard.app, name="leaderboard", short_help="Compare runs.")
app.add_typer(reward.app, name="reward", short_help="List reward policies, and compute rewards again.")
app.command("export", short_help="Write attempts as JSON lines.")(export.export)
app.command("package", short_help="Write an attempt as a Python package.")(package.package)
app.add_typer(data.app, name="data", short_help="Make training data of runs, jobs and sessions.")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"kernelforge {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback of an error; {DEBUG_VARIABLE}=1 does the same.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


def main() -> NoReturn:
    """Entry point of the ``kernelforge`` script."""
    try:
        with _without("pandas"):
            app(prog_name="kernelforge")
    except KernelForgeError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the flush at exit would fail again
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        _fail(
            f"this is a bug in KernelForge: {type(error).__name__}: {error}. "
            "Run the same command with 'kernelforge --debug ...' and report what it prints",
            70,
        )
    sys.exit(0)


@contextlib.contextmanager
def _without(package: str) -> Iterator[None]:
    """Hide ``package`` from imports: sqlite-utils would load pandas, in half a second, for types not used here."""
    hidden = package not in sys.modules
    if hidden:
        sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules[package]


def _fail(message: str, exit_code: int) -> NoReturn:
    from kernelforge.report.formatting import printable

    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        traceback.print_exc()
    typer.echo(f"error: {printable(message)}", err=True)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
