"""The command line answers at once, and its pages name what exists."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from kernelforge.cli.main import app
from kernelforge.version import __version__

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch", "numba", "llvmlite", "openai", "anthropic", "sqlite_utils", "sqlite3", "numpy", "rich",
    "kernelforge.records",
)  # fmt: skip
COMMAND = typer.main.get_command(app)


def walk(command, path=()):
    """Every command that does something, with its words."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from walk(child, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS = dict(walk(COMMAND))


def options_of(command) -> set[str]:
    result = set()
    for parameter in command.params:
        if parameter.param_type_name == "option":
            result |= {*parameter.opts, *parameter.secondary_opts}
    return result - {"--help"}


def test_the_verbs_are_these():
    assert sorted(COMMANDS) == [
        "calibrate", "capture", "compare", "convert", "data curate", "data export", "data import",
        "data pairs", "diff", "doctor", "emulate", "eval",
        "export", "figure", "import ai-cuda-engineer", "import cuda-l1", "import cuda-l2",
        "import kernelbench", "leaderboard build", "leaderboard entry", "leaderboard grid", "leaderboard schema",
        "leaderboard show", "leaderboard verify", "mcp", "notes find", "package", "predict", "prompts list",
        "prompts show", "report", "resume",
        "reward list", "reward recompute", "run", "select-metrics", "serve", "show", "skill install",
        "splice", "strategies", "study codex", "submit", "tasks audit", "tasks check",
        "tasks import", "tasks list", "tasks score-tester", "tasks show", "tasks suites",
        "token create", "token limit", "token list", "token revoke", "token rotate",
        "translate", "view",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"], ["tasks", "show", "--help"]])
def test_help_loads_nothing_heavy(start, arguments):
    script = (
        "import sys\nfrom kernelforge.cli.main import main\n"
        f"sys.argv = ['kernelforge', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code in (0, None), left.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    process = start("-c", script)
    out, err = process.communicate()
    assert err == "[]\n"
    assert "kernelforge" in out


@pytest.mark.slow
def test_a_command_opens_results_without_pandas_and_hides_it_from_nobody_else(start, tmp_path):
    script = (
        "import sys\nfrom kernelforge.cli.main import main\n"
        f"sys.argv = ['kernelforge', 'report', '--results', {str(tmp_path)!r}]\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code == 1, left.code\n"
        "print('sqlite_utils' in sys.modules, 'pandas' in sys.modules)\n"
    )
    out, err = start("-c", script).communicate()
    assert out == "True False\n", err


@pytest.mark.slow
def test_reports_load_neither_torch_nor_the_evaluator_of_c_functions(start):
    script = (
        "import sys\nimport kernelforge.report.html.writer, kernelforge.report.terminal.translation\n"
        "print([name for name in ('torch', 'kernelforge.translation.evaluator', 'kernelforge.run.translations') "
        "if name in sys.modules])\n"
    )
    out, err = start("-c", script).communicate()
    assert out == "[]\n", err


def test_the_version(cli):
    assert cli("--version").out == f"kernelforge {__version__}\n"


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_every_command_and_option_has_help(path: str):
    command = COMMANDS[path]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{path} {parameter.name}"


READING = (
    "doctor",
    "tasks list",
    "tasks show",
    "tasks check",
    "tasks import",
    "capture",
    "eval",
    "show",
    "leaderboard show",
    "notes find",
    "strategies",
)


@pytest.mark.parametrize("path", READING)
def test_every_reading_verb_has_json(path: str):
    assert "--json" in options_of(COMMANDS[path])


def page_sections() -> dict[str, str]:
    """Sections of the command line's page by the command they are about."""
    text = (ROOT / "docs" / "cli.md").read_text()
    parts = re.split(r"^## `kernelforge ?([^`]*)`$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_page_has_a_section_for_every_command_and_for_nothing_else():
    assert sorted(page_sections()) == sorted(["", *COMMANDS])


@pytest.mark.parametrize("path", ["", *sorted(COMMANDS)])
def test_the_page_names_every_option_and_no_other(path: str):
    section = page_sections()[path]
    cells = re.findall(r"^\| (`-[^|]*) \|", section, re.M)
    named = {word for cell in cells for word in re.split(r"[ ,/`]+", cell) if word.startswith("-")}
    assert named == options_of(COMMANDS.get(path, COMMAND))


def shown_commands() -> list[tuple[str, str]]:
    """Every line in a fenced block of a page that begins with ``kernelforge`` or ``$ kernelforge``."""
    result = []
    for page in [*sorted((ROOT / "docs").glob("**/*.md")), ROOT / "README.md"]:
        if page.exists():
            for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S):
                lines = block.replace("\\\n", " ").splitlines()
                result += [(page.name, line) for line in lines if re.match(r"(\$ )?kernelforge ", line)]
    return result


@pytest.mark.parametrize(("page", "line"), shown_commands())
def test_commands_on_pages_exist(page: str, line: str):
    words = shlex.split(line.removeprefix("$ "), comments=True)
    for stop in ("|", ">", "&&", ";"):
        if stop in words:
            words = words[: words.index(stop)]
    command, rest, name = COMMAND, words[1:], "kernelforge"
    while hasattr(command, "commands"):
        parsed = [word for word in rest if not word.startswith("-")]
        if not parsed:
            break
        rest.remove(parsed[0])
        assert parsed[0] in command.commands, f"{page}: {line}"
        command, name = command.commands[parsed[0]], parsed[0]
    with contextlib.suppress(typer.Exit):  # --help and --version leave before anything is done
        command.make_context(name, rest)


def test_the_docs_show_commands():
    assert len(shown_commands()) > 10


def test_a_bug_is_one_line_that_says_how_to_report_it(cli, monkeypatch):
    import kernelforge.cli.support.options

    monkeypatch.setattr(kernelforge.cli.support.options, "console", lambda: 1 / 0)
    monkeypatch.setattr("kernelforge.cli.tasks.console", lambda: 1 / 0)
    done = cli("tasks", "list")
    assert done.code == 70
    assert "bug in KernelForge: ZeroDivisionError" in done.err
    assert "--debug" in done.err
    assert "Traceback" not in done.err
