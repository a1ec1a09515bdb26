"""The corpus as a benchmark: KernelForge, KernelBench's rule and the command of another evaluator over some cases."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks import integrity
from kernelforge.sandbox import Zygote
from tests.adversarial.corpus import read_cases

SOME = ["zeros-for-a-softmax", "honest-online-softmax", "class-patches-allclose", "lazy-matmul-guards"]
CASES = [case for case in read_cases() if case.name in SOME]


def says(what: str) -> str:
    """A command that says the same of every case."""
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(f'print({what!r})')}"


def test_a_command_is_asked_about_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = tmp_path / "answers.json"
    line = says('{"correct": true, "reward": 0.3}')
    assert integrity.main(["--evaluator", line, "--cases", *SOME, "--json", str(answers)]) == 0
    (answer,) = json.loads(answers.read_text()).values()
    assert sorted(answer) == sorted(SOME)
    printed = capsys.readouterr().out
    assert "3 of 3" in printed
    assert "0 of 1" in printed


@pytest.mark.parametrize("what", ["nothing", "[1]", '{"correct": false}'])
def test_an_answer_that_is_none_pays_nothing(what: str) -> None:
    (row,) = integrity.compare([says(what)], CASES)
    assert row.paid(CASES) == []
    assert row.refused(CASES) == ["honest-online-softmax"]


def test_what_a_command_does_not_judge_is_in_no_count() -> None:
    (row,) = integrity.compare([says('{"correct": null}')], CASES)
    assert row.of(CASES, "cheat") == row.of(CASES, "honest") == []


def test_the_case_and_its_reference_are_handed_over() -> None:
    code = (
        "import sys, pathlib; f, r = map(pathlib.Path, sys.argv[1:]); assert (f / 'case.toml').exists() and r.exists()"
    )
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {{case_folder}} {{reference}}"
    (row,) = integrity.compare([line], CASES)
    assert {answer.why for answer in row.answers.values()} == {""}


@pytest.mark.slow
def test_published_rule_pays_where_kernelforge_does_not(
    kept_zygotes: Callable[..., Zygote], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "Bench", partial(integrity.Bench, zygote=kept_zygotes))
    kernelforge, theirs = integrity.compare(["kernelforge", "kernelbench-rule"], CASES)
    assert kernelforge.paid(CASES) == kernelforge.refused(CASES) == theirs.refused(CASES) == []
    assert theirs.paid(CASES) == ["class-patches-allclose", "zeros-for-a-softmax"]
    assert theirs.answers["lazy-matmul-guards"].correct is None
