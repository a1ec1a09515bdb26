"""``kernelforge study codex``: suggestions are asked for with the bare prompt, judged, kept, and never bought twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Done
from tests.support.llm_server import Fail, FakeLLM, Say

TRANSCRIPT = Path(__file__).parents[2] / "results" / "reference" / "codex-study.jsonl"
needs_cc = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler `c++`")
Cli = Callable[..., Done]

AXPY = """```c
void axpy(int n, double a, const double *x, double *y) {{
{}    for (int i = 0; i < n; i++) y[i] {}= a * x[i];
}}
```
"""
OPENMP = "#pragma omp parallel for\n"
ONE = ("study", "codex", "--kernel", "axpy", "--model", "openmp", "--hint", "function", "--device", "emulated:h100")


@pytest.mark.slow
@needs_cc
def test_the_shipped_transcript_has_every_level(cli: Cli) -> None:
    replay = ("--coder", f"replay:{TRANSCRIPT}", "--hint", "none", "--device", "emulated:h100")
    done = cli("study", "codex", *replay, "--model", "openmp", "--json")
    assert done.code == 0, done.err
    scores = done.json()
    assert {row["kernel"]: row["level"] for row in scores["prompts"]} == {
        "axpy": "expert", "gemv": "learner", "gemm": "proficient", "spmv": "novice", "jacobi3d": "non-knowledge",
        "cg": "proficient",
    }  # fmt: skip
    assert scores["by_model"] == {"openmp": pytest.approx((1 + 0.5 + 0.75 + 0.25 + 0 + 0.75) / 6)}
    cuda = cli("study", "codex", *replay, "--kernel", "spmv", "--kernel", "jacobi3d", "--format", "csv")
    assert [line.split(",")[-2:] for line in cuda.out.splitlines()[1:]] == [
        ["0.5", "learner"],
        ["0.0", "non-knowledge"],
    ]
    numpy = cli("study", "codex", *replay, "--model", "numpy", "--suggestions", "3", "--json")
    assert [row["score"] for row in numpy.json()["prompts"]] == [1, 0.75, 0.25, 0.5, 0.25, 0.75]
    rows = [json.loads(line) for line in Path("codex-study.jsonl").read_text().splitlines()]
    assert len(rows) == 98
    assert {row["messages"][0]["content"] for row in rows} >= {"SpMV CUDA", "3D Jacobi stencil OpenMP"}
    assert all(row["form"] if row["verdict"] == "right" else row["reason"] for row in rows)


@pytest.mark.slow
@needs_cc
def test_a_hosted_model_is_asked_with_the_prompt_alone_and_a_stopped_study_goes_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    good, bad = AXPY.format(OPENMP, "+"), AXPY.format(OPENMP, "-")
    with FakeLLM([Say(good), Say(bad), Fail(401)]) as server:
        options = ("--coder", "openai:m", "--base-url", server.openai_url, "--suggestions", "3")
        stopped = cli(*ONE, *options, "--llm", "concurrency=1")
        assert stopped.code == 1
        assert "401" in stopped.err or "key" in stopped.err
        assert [call.body["messages"][-1]["content"] for call in server.calls] == ["AXPY OpenMP function"] * 3
        assert all(len(call.body["messages"]) == 1 for call in server.calls)
    journal = Path("codex-study.jsonl")
    bought = journal.read_bytes()
    assert bought.count(b"\n") == 2
    journal.write_bytes(bought + bought[:90])  # a third line, which a crash cut short
    with FakeLLM([Say(AXPY.format("", "+"))]) as server:
        options = ("--coder", "openai:m", "--base-url", server.openai_url, "--suggestions", "3")
        estimate = cli(*ONE, *options, "--dry-run")
        assert "1 calls of openai:m" in estimate.out
        assert "20 seen a reply" in estimate.out
        assert "unknown: no price" in estimate.out
        assert server.calls == []
        done = cli(*ONE, *options, "--format", "markdown")
        assert len(server.calls) == 1
    assert journal.read_bytes().startswith(bought)
    assert [json.loads(line)["position"] for line in journal.read_bytes().splitlines()] == [0, 1, 2]
    assert done.code == 0, done.err
    assert "| axpy | 0.25 | 0.25 |" in done.out
    assert "| AXPY OpenMP function | 3 | 1 | 1 | 1 | 0 | 0 | 0.25 | novice |" in done.out


@pytest.mark.slow
@needs_cc
def test_a_spent_budget_ends_the_calls_and_keeps_what_was_bought(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    with FakeLLM([Say(AXPY.format(OPENMP, "+"))]) as server:
        options = ("--coder", "openai:m", "--base-url", server.openai_url, "--llm", "concurrency=1")
        done = cli(*ONE, *options, "--tokens", "150", "--json")
        assert len(server.calls) == 2
        assert "stopped: " in done.err
        row = done.json()["prompts"][0]
        assert (row["suggestions"], row["score"], done.json()["missing"]) == (2, None, 8)
        resumed = cli(*ONE, *options, "--tokens", "150", "--json")
        assert len(server.calls) == 2
        assert resumed.json()["prompts"] == done.json()["prompts"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--coder", "builtin"), "answers no bare prompt"),
        (("--coder", "exchange:x", "--model", "sycl"), "SyCL cannot be asked for"),
        (("--coder", "exchange:x", "--kernel", "fft"), "no kernel 'fft'"),
        (("--coder", "replay:nosuch", "--dry-run"), "the transcript nosuch cannot be read"),
        (("--coder", "unheard-of"), "there is no provider 'unheard-of'"),
        (("--coder", "exchange:x", "--output", "a.md"), "--output needs --format"),
        (("--coder", "exchange:x", "--dollars", "0"), "give the run some money"),
        (("--coder", "exchange:x", "--journal", "other.jsonl"), "other.jsonl, line 1 is no suggestion"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    Path("other.jsonl").write_text('{"task": "axpy"}\n')
    done = cli("study", "codex", *arguments)
    assert done.code != 0
    assert words in done.err
    assert done.err.count("\n") == 1
    assert Path("other.jsonl").read_text() == '{"task": "axpy"}\n'


def test_a_file_of_something_else_is_not_mistaken_for_a_journal_cut_short(cli: Cli) -> None:
    Path("other.jsonl").write_text('{"task": "ax')
    done = cli("study", "codex", "--coder", "exchange:x", "--journal", "other.jsonl")
    assert done.code != 0
    assert "other.jsonl, line 1 is no suggestion" in done.err
    assert Path("other.jsonl").read_text() == '{"task": "ax'
