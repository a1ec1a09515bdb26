"""``benchmarks/cudaforge.py`` counts as the paper does, and says what its runs cost before any model is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.benchmark_scripts import benchmark_script

SCRIPT = benchmark_script("cudaforge")


def test_a_task_that_is_not_correct_counts_as_no_speedup() -> None:
    row = SCRIPT.figures([2.0, None, 1.5, 0.5])
    assert (row.correct, row.median, row.mean, row.faster) == (75, 1.0, 1.0, 50)
    assert row.upper == pytest.approx(1.625)
    assert SCRIPT.figures([None]) == (0, 0, 0, 0, 0)


def test_the_papers_row_is_that_of_the_models_and_with_its_own_pair_of_the_gpu() -> None:
    tables = SCRIPT.PUBLISHED_PAIRS, SCRIPT.PUBLISHED_GPUS
    assert SCRIPT.published("NVIDIA A100-SXM4-80GB", "openai:o3", "openai:o3") == tables[1]["A100"]
    assert SCRIPT.published("NVIDIA H200", "openai:o3", "openai:o3") == tables[0]["o3", "o3"]
    assert SCRIPT.published("NVIDIA H200", "openai:gpt-5", "openai:o3") == tables[0]["gpt-5", "o3"]
    assert SCRIPT.published("NVIDIA H200", "builtin", "openai:o3") is None
    assert all(SCRIPT.published("", coder, judge) is not None for coder, judge in SCRIPT.PAIRS)


def test_runs_of_a_study_have_folders_of_their_own() -> None:
    pairs = [("cuda:0", *pair) for pair in SCRIPT.PAIRS] + [("ssh://me@box/cuda:0", "openai:o3", "openai:o3")]
    folders = {SCRIPT.folder_of(Path("study"), *names) for names in pairs}
    assert len(folders) == len(pairs)
    assert all(folder.parent == Path("study") for folder in folders)


def test_a_dry_run_adds_up_the_costs_of_all_runs(
    capsys: pytest.CaptureFixture[str], warm_zygotes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    pairs = ("--pair", "openai:o3", "openai:o3", "--pair", "builtin", "builtin")
    assert SCRIPT.main(["core", "--select", "gelu", "--device", "emulated:h100", *pairs, "--dry-run"]) == 0
    first, second, total = capsys.readouterr().out.splitlines()
    assert first.startswith("emulated:h100, openai:o3 with openai:o3: at most ")
    assert "dollars $0.00" in second
    dollars = first.partition("dollars ")[2].partition(",")[0]
    assert dollars != "$0.00"
    assert total == f"all 2 runs: dollars {dollars}"
