"""Suites and task files published to do harm: one error that names the fault, in bounded time and memory."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import pytest

from kernelforge.errors import TaskError
from kernelforge.evaluation.audit.equivalents import read_equivalents
from kernelforge.tasks import evaluate_expression, load_suite, module_constants
from kernelforge.tasks.constants import Template, parse_python
from kernelforge.tasks.files import parse_task_file, read_manifest, read_task_source

CPU_SECONDS = 12.0
"""Far above what any of these costs, far below what a quadratic walk would take."""

SOURCE = '''"""Identity."""
import torch
ROWS = 64
class Model(torch.nn.Module):
    def forward(self, x):
        return x
def get_inputs():
    return [torch.randn(ROWS)]
def get_init_inputs():
    return []
'''


def suite_of(folder: Path, manifest: str) -> Path:
    made = folder / "mine"
    made.mkdir(parents=True)
    (made / "suite.toml").write_text(manifest)
    (made / "identity.py").write_text(SOURCE)
    return made


MANIFESTS = {
    "deep lists": 'title = "x"\ntags = ' + "[" * 5000,
    "deep tables": 'title = "x"\na = ' + "{a=" * 5000,
    "a huge number": 'title = "x"\nlevel = ' + "1" * 5000,
    "a long key": 'title = "x"\n' + "a." * 40_000 + "b = 1",
    "a long quoted key": 'title = "x"\n' + '"a" . ' * 40_000 + "b = 1",
    "a null byte in a file": 'title = "x"\n[[task]]\nname = "identity"\nfile = "a\\u0000.py"',
    "a null byte in a name": 'title = "x"\n[[task]]\nname = "a\\u0000"',
    "a null byte in a base": 'title = "x"\nbase = "a\\u0000"',
    "a null byte in a C file": 'title = "x"\n[[task]]\nname = "identity"\nc_source = "\\u0000"',
    "a long name": f'title = "x"\n[[task]]\nname = "{"a" * 5000}"',
    "a long base": f'title = "x"\nbase = "{"a" * 5000}"',
    "a file elsewhere": 'title = "x"\n[[task]]\nname = "a"\nfile = "/etc/hostname"',
    "a folder": 'title = "x"\n[[task]]\nname = "a"\nfile = "."',
    "no number": 'title = "x"\n[[task]]\nname = "identity"\nsmall = {ROWS = nan}',
    "no number in a grid": 'title = "x"\n[[grid]]\nname = "a"\nfile = "identity.py"\nfull = {ROWS = [inf]}',
    "a wide name": 'title = "x"\n[[grid]]\nname = "a{ROWS:999999999}"\nfile = "identity.py"\nfull = {ROWS = [1]}',
    "a nested width": 'title = "x"\n[[grid]]\nname = "a{ROWS:{ROWS}}"\nfile = "identity.py"\nfull = {ROWS = [9999999]}',
    "an element": 'title = "x"\n[[grid]]\nname = "a{ROWS[0]}"\nfile = "identity.py"\nfull = {ROWS = [1]}',
    "an attribute": 'title = "x"\n[[grid]]\nname = "a{ROWS.real}"\nfile = "identity.py"\nfull = {ROWS = [1]}',
}


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_a_hostile_manifest_is_one_task_error(tmp_path: Path, manifest: str) -> None:
    folder = suite_of(tmp_path, manifest)
    start = time.process_time()
    with pytest.raises(TaskError):
        load_suite(folder)
    assert time.process_time() - start < CPU_SECONDS


def test_dots_in_texts_and_short_keys_are_no_long_key(tmp_path: Path) -> None:
    text = ". ".join(["a"] * 20)
    folder = suite_of(tmp_path, f'title = "{text}"\n[[task]]\nname = "identity"\nhidden.odd.ROWS = 3')
    assert load_suite(folder).tasks[0].size("hidden_odd").constants == {"ROWS": 3}


@pytest.mark.parametrize("manifest", ["equivalent = " + "[" * 5000, "a = " + "1" * 5000], ids=["deep", "huge"])
def test_hostile_arguments_of_an_audit_are_one_task_error(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "audit.toml").write_text(manifest)
    with pytest.raises(TaskError, match=r"audit\.toml"):
        read_equivalents(tmp_path / "audit.toml")


def test_a_manifest_that_names_a_long_file_often_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.tasks.suites._MOST_TEXT", 10 * len(SOURCE))
    entries = "".join(f'[[task]]\nname = "t{number}"\nfile = "identity.py"\n' for number in range(20))
    with pytest.raises(TaskError, match="split the suite"):
        load_suite(suite_of(tmp_path, f'title = "x"\n{entries}'))


def test_only_plain_files_are_read_and_no_more_of_them_than_may_be(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "endless.py").symlink_to("/dev/zero")
    (tmp_path / "circle.py").symlink_to(tmp_path / "circle.py")
    with (tmp_path / "sparse.py").open("wb") as file:
        file.truncate(1 << 40)
    for name, output in {"pipe": "no plain file", "endless": "no plain file", "sparse": "more than"}.items():
        with pytest.raises(TaskError, match=output):
            read_task_source(tmp_path / f"{name}.py")
        with pytest.raises(TaskError, match=output):
            read_manifest(tmp_path / f"{name}.py")
    with pytest.raises(TaskError, match="cannot read"):
        read_task_source(tmp_path / "circle.py")


TEXTS = {
    "a long sum": "X = " + "+".join(["1"] * 2000),
    "many signs": "X = " + "-" * 2000 + "1",
    "very many signs": "X = " + "-" * 200_000 + "1",
    "brackets": "X = " + "(" * 200_000 + "1",
    "a chain of calls": "X = " + "a.b()." * 900 + "c",
    "a huge number": "X = 0x" + "f" * 100_000,
    "a huge number of digits": "X = " + "1" * 5000,
    "half a pair": "X = '\ud800'",
    "a null byte": "X = '\0'",
    "carriage returns": SOURCE.replace("\n", "\r"),
    "combining marks": "a" + "\u0316\u0300" * 100_000 + " = 1",
    "two megabytes": "#" * (2 << 20),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_that_no_walker_could_walk_is_one_task_error(text: str) -> None:
    start = time.process_time()
    with pytest.raises(TaskError, match=r"^it.py"):
        parse_task_file(f"{text}\n{SOURCE}", "it.py")
    assert time.process_time() - start < CPU_SECONDS


def test_nothing_is_printed_about_the_style_of_others() -> None:
    with warnings.catch_warnings(record=True) as result:
        warnings.simplefilter("always")
        parse_python('X = "\\\x1b" if 1else "\\d"', "it.py")
    assert not result


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("X = (-1) ** 0.5\nY = X * 2\nZ = int(X)", {}),
        ("X = float(0x" + "f" * 200 + ")", {}),
        ("X = 1e999\nY = int(X)\nZ = X % 5\nW = X // 1", {}),
        ("X = 0x" + "f" * 200 + "\nY = X * X\nZ = 0 * X", {}),
        ("X = 1e30\nY = int(1e300)", {"X": 1e30}),
        ("X = 4 ** -2", {}),
    ],
)
def test_constants_are_finite_real_numbers_of_a_size_to_compute_with(text: str, constants: dict[str, float]) -> None:
    assert module_constants(parse_python(text, "it.py")) == constants


@pytest.mark.parametrize("text", ["1e999", "-" * 3000 + "1", "(-1) ** 0.5", "1" * 5000, "X\0", "0xf" * 900])
def test_an_expression_that_is_no_finite_number_is_a_task_error(text: str) -> None:
    with pytest.raises(TaskError) as caught:
        evaluate_expression(text, {"X": 1})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_constant_is_set_to_what_cannot_be_written(value: float) -> None:
    with pytest.raises(TaskError, match="cannot be set to"):
        Template(SOURCE).filled({"ROWS": value})
