"""The programs of .ci that check prose, commit messages and the API reference."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import cases_left_out

ROOT = Path(__file__).resolve().parents[1]


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("message", "broken"),
    [
        ("store: lock runs before they show\n\nTwo processes could resume one run.\n", []),
        ("server, workers: merge small modules\n\nEach had one user.\n", []),
        ("Store: lock runs\n\nWhy.\n", ["of the form"]),
        ("store lock runs\n\nWhy.\n", ["of the form"]),
        (f"store: {'lock ' * 20}runs\n\nWhy.\n", ["more than 72"]),
        ("store: lock runs.\n\nWhy.\n", ["full stop"]),
        ("store: lock runs\nWhy.\n", ["not blank"]),
        ("store: lock runs\n\n# a comment of git's\n", ["no body"]),
        ("Merge branch 'main'\n", []),
    ],
)
def test_a_commit_message_names_area_and_verb_and_says_why(message: str, broken: list[str]) -> None:
    problems = program("commit_message").problems(message)
    assert len(problems) == len(broken)
    assert all(part in problem for part, problem in zip(broken, problems, strict=True))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.py", "def f() -> None:\n    found = 1\n", "name `found`"),
        ("a.py", "def f(told: int) -> None: ...\n", "name `told`"),
        ("a.py", "def _told() -> None: ...\n", "name `_told`"),
        ("a.py", '"""What came."""\n', "say first what it is"),
        ("a.py", "# nobody reads this\n", '"nobody"'),
        ("a.py", 'x = "kept for whoever asks"\n', '"whoever"'),
        ("a.md", "x" * 121 + "\n", "more than 120"),
        ("a.md", "It is done anew.\n", '"anew"'),
        ("a.py", '"""Replace a file atomically."""\nresult = 1\n', ""),
        ("a.md", "Replace a file atomically.\n", ""),
    ],
)
def test_weak_names_and_riddles_are_reported_with_their_line(
    tmp_path: Path, name: str, text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert program("plain_english").main([str(path)]) == bool(problem)
    printed = capsys.readouterr().out
    assert problem in printed
    assert printed.startswith(f"{path}:") == bool(problem)


@pytest.mark.slow
def test_the_api_reference_is_what_the_docstrings_say() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / ".ci" / "reference.py", "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


class Case:
    def __init__(self, name: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = name
        self.marks = {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> object:
        return self.marks.get(name)


CASES = [Case(f"a.py::long[{number}]", pytest.mark.one_in(3)) for number in range(7)]
CASES += [Case("b.py::long[0]", pytest.mark.one_in(3)), Case("b.py::whole[0]"), Case("b.py::whole[1]")]
CASES += [Case("c.py::slow", pytest.mark.slow)]
SIMILAR = [f"a.py::long[{number}]" for number in (1, 2, 4, 5)]


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({}, ["c.py::slow", *SIMILAR]),
        ({"slow": True}, SIMILAR),
        ({"slow": True, "by_name": True}, []),
    ],
)
def test_slow_tests_and_all_but_one_similar_case_in_so_many_are_left_out(
    options: dict[str, bool], left_out: list[str]
) -> None:
    assert [case.nodeid for case in cases_left_out(CASES, **options)] == left_out
