"""Bad tasks are one line each, and the good ones of the suite are checked all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

FILE = """
import torch
import torch.nn as nn

N = 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
GOOD = {"init": "self.gain = 3", "body": "return x * self.gain", "inputs": "torch.randn(N, 5)"}
BAD = {
    "raises": ({"body": "raise ArithmeticError('no\\nsuch thing')"}, "ArithmeticError: no"),
    "hangs": ({"body": "__import__('time').sleep(3600)"}, "no answer"),
    "random": ({"body": "return x + torch.randn_like(x)"}, "random numbers in forward"),
    "large_input": ({"inputs": "torch.randn(N, 1 << 31)"}, "more memory than the oracle"),
    "large_model": ({"init": "self.weight = nn.Parameter(torch.ones(N, 1 << 31))"}, "more memory than the oracle"),
    "no_model": (None, "no `class Model(nn.Module)`"),
    "no_python": (None, "invalid syntax"),
}


def write_suite(folder: Path) -> Path:
    folder.mkdir()
    manifest = ['title = "Mixed"']
    for name, (changes, _) in {"good": ({}, ""), **BAD}.items():
        manifest += ["[[task]]", f'name = "{name}"', "small = { N = 16 }"]
        text = {"no_model": "N = 64\n", "no_python": "N = = 64\n"}.get(name)
        (folder / f"{name}.py").write_text(text or FILE.format(**GOOD | (changes or {})))
    (folder / "suite.toml").write_text("\n".join(manifest))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["check", "audit"])
def test_each_bad_task_is_one_line_and_the_good_one_is_worked_on(cli, tmp_path: Path, verb: str) -> None:
    suite = write_suite(tmp_path / "mixed")
    done = cli("tasks", verb, str(suite), "--timeout", "5", "--jobs", "2")
    assert done.code == 1
    assert "Traceback" not in done.out + done.err
    assert any(line.startswith("good") and "ok" in line for line in done.out.splitlines()) or verb == "audit"
    for name, (_, reason) in BAD.items():
        lines = [line for line in (done.out + done.err).splitlines() if name in line and reason in line]
        assert len(lines) == 1, (name, reason, done.out, done.err)


@pytest.mark.parametrize("verb", ["check", "audit", "list"])
def test_a_malformed_manifest_is_one_line_that_says_where(cli, tmp_path: Path, verb: str) -> None:
    (tmp_path / "suite.toml").write_text('title = "x\n')
    done = cli("tasks", verb, str(tmp_path))
    assert done.code == 2
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert "suite.toml is not TOML" in line
