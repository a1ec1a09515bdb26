"""``convert`` and ``import``: what they print, write, and leave with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kernelforge.cli.convert import convert
from kernelforge.cli.import_candidates import app as import_app
from tests.support.kernelbench_files import DOUBLE

convert_app = typer.Typer()
convert_app.command()(convert)

SWISH = '''
import cupy as cp
import numpy as np
import torch
import torch.nn as nn

swish = cp.RawKernel(r"""
extern "C" __global__ void swish_raw(const float* x, float* out, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n) out[i] = x[i] / (1.0f + expf(-x[i]));
}
""", "swish_raw")

class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        swish(((x.numel() + 255) // 256,), (256,), (x.data_ptr(), out.data_ptr(), np.int32(x.numel())))
        return out
'''

GOOD = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + x
"""


@pytest.fixture
def runner(warm_zygotes: None) -> CliRunner:
    return CliRunner()


@pytest.mark.slow
def test_convert_writes_a_reply_that_compiles_for_its_task(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "swish.py").write_text(SWISH)
    out = tmp_path / "swish.md"
    result = runner.invoke(convert_app, [str(tmp_path / "swish.py"), "--task", "swish", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "```cuda" in out.read_text()
    assert "swish_raw[" in out.read_text()


def test_convert_says_what_it_could_not(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(SWISH.replace("return out", "return torch.erfinv(out)"))
    result = runner.invoke(convert_app, [str(tmp_path / "bad.py"), "--json"])
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["converted"] is False
    assert [(item["line"], "torch's `erfinv`" in item["why"]) for item in data["problems"]] == [(18, True)]


def rows(path: Path) -> Path:
    common = {"level_id": 1, "ref_code": DOUBLE, "score_default": 3.0}
    texts = [GOOD, GOOD.replace("x + x", "x"), "None"]
    path.write_text(
        "".join(json.dumps({**common, "task_id": at, "custom_code": text}) + "\n" for at, text in enumerate(texts))
    )
    return path


def test_import_lists_and_writes_what_there_is(runner: CliRunner, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = runner.invoke(import_app, ["cuda-l1", str(rows(tmp_path / "a.json")), "-o", str(folder)])
    assert result.exit_code == 0, result.output
    assert "published 3x" in result.stdout
    assert "2 candidates, 1 not read" in result.stdout
    assert {path.name for path in folder.iterdir()} == {
        "level1_problem0.py", "level1_problem0_reference.py", "level1_problem1.py", "level1_problem1_reference.py",
    }  # fmt: skip


@pytest.mark.slow
def test_import_evaluates_with_the_same_oracle(runner: CliRunner, tmp_path: Path) -> None:
    arguments = ["cuda-l1", str(rows(tmp_path / "a.json")), "--evaluate", "--small", "N=5", "--json"]
    result = runner.invoke(import_app, arguments)
    assert result.exit_code == 1, result.output
    verdicts = {item["name"]: item["verdict"] for item in json.loads(result.stdout)["candidates"]}
    assert verdicts == {"level1_problem0": "OK", "level1_problem1": "WRONG"}


@pytest.mark.parametrize("option", [["--small", "N=5"], ["--device", "cpu"]])
def test_where_and_how_large_without_an_evaluation_is_refused(
    runner: CliRunner, tmp_path: Path, option: list[str]
) -> None:
    result = runner.invoke(import_app, ["cuda-l1", str(rows(tmp_path / "a.json")), *option])
    assert result.exit_code != 0
    assert "--evaluate" in str(result.exception)


def test_names_that_others_chose_do_not_reach_the_terminal_raw(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "x\x1b[2J.py").write_text("x = 1")
    result = runner.invoke(import_app, ["kernelbench", str(tmp_path)])
    assert "x\\x1b[2J.py" in result.output
    assert "\x1b" not in result.output
    (tmp_path / "a.json").write_text(json.dumps({"level_id": "\x1b[2J", "task_id": 1}) + "\n")
    assert "\x1b" not in runner.invoke(import_app, ["cuda-l1", str(tmp_path / "a.json")]).output


def test_a_conversion_does_not_reach_the_terminal_raw(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "swish.py"
    path.write_text(SWISH.replace("{\n    int i", "{ // \x1b[2J ```\n    int i"))
    result = runner.invoke(convert_app, [str(path)])
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    path.write_text("x = " + "-" * 100000 + "1")
    result = runner.invoke(convert_app, [str(path)])
    assert result.exit_code == 1
    assert "nested too deeply" in result.output


def test_a_conversion_too_large_for_a_candidate_is_a_problem(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "swish.py"
    path.write_text(SWISH.replace("{\n    int i", "{ //" + "x" * 300_000 + "\n    int i"))
    result = runner.invoke(convert_app, [str(path)])
    assert result.exit_code == 1
    assert "no candidate" in result.output


def test_code_with_a_fence_in_it_comes_back_whole() -> None:
    from kernelforge.candidate import parse_reply
    from kernelforge.modelnew.convert import convert as convert_text

    conversion = convert_text(SWISH.replace("{\n    int i", "{ /*\n```\n```python\nx\n```\n*/\n    int i"))
    assert conversion.candidate is not None
    second = parse_reply(conversion.as_reply())
    assert second.source.split() == conversion.candidate.source.split()
    assert second.plan.split() == conversion.candidate.plan.split()
