"""``benchmarks/cudaforge.py`` counts as the paper does, and says what its runs cost before any model is called."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from tests.support.benchmark_scripts import benchmark_script

SCRIPT = benchmark_script("cudaforge")


def test_a_task_that_is_not_correct_counts_as_no_speedup() -> None:
    row = SCRIPT.figures([2.0, None, 1.5, 0.5])
    assert (row.correct, row.median, row.mean, row.faster) == (75, 1.0, 1.0, 50)
    assert row.upper == pytest.approx(1.625)
    assert SCRIPT.figures([None]) == (0, 0, 0, 0, 0)


def test_the_papers_row_is_that_of_the_same_gpu_and_models() -> None:
    o3, table = "openai:o3", SCRIPT.PUBLISHED
    for gpu, name in (
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("A100-PCIE-40GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("Quadro RTX 6000", "RTX 6000"),
    ):
        assert SCRIPT.published(gpu, o3, o3) == (name, table[name, "o3", "o3"])
    gpu = "Quadro RTX 6000"
    assert {SCRIPT.published(gpu, *pair)[1] for pair in SCRIPT.PAIRS} < set(table.values())
    for coder, name in (("openai:gpt-5-2025-08-07?effort=high", "gpt-5"), ("openai:Qwen/QwQ-32B", "qwq-32b"),
                        ("openai:gpt-oss:120b", "gpt-oss-120b")):  # fmt: skip
        assert SCRIPT.published(gpu, coder, o3) == ("RTX 6000", table["RTX 6000", name, "o3"])


@pytest.mark.parametrize(
    "gpu",
    [
        "", "NVIDIA H100 80GB HBM3", "NVIDIA RTX A1000", "NVIDIA RTX 6000 Ada Generation", "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
    ],
)  # fmt: skip
def test_the_paper_has_no_row_for_another_gpu(gpu: str) -> None:
    assert SCRIPT.published(gpu, "openai:o3", "openai:o3") is None


@pytest.mark.parametrize(
    "coder",
    ["builtin", "openai:o3-mini", "openai:gpt-5-nano", "openai:gpt-5.1", "anthropic:claude-sonnet-4-5-20250929"],
)
def test_the_paper_has_no_row_for_another_model(coder: str) -> None:
    assert SCRIPT.published("Quadro RTX 6000", coder, "openai:o3") is None


def test_runs_of_a_study_have_folders_of_their_own() -> None:
    pairs = [("cuda:0", *pair) for pair in SCRIPT.PAIRS] + [("ssh://me@box/cuda:0", "openai:o3", "openai:o3")]
    folders = {SCRIPT.folder_of(Path("study"), *names) for names in pairs}
    assert len(folders) == len(pairs)
    assert all(folder.parent == Path("study") for folder in folders)


@pytest.mark.slow
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


def test_a_dry_run_without_a_gpu_is_of_an_emulated_device(
    capsys: pytest.CaptureFixture[str], warm_zygotes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SCRIPT, "best_device", lambda: "emulated:h100")
    arguments = ["core", "--select", "gelu", "--pair", "builtin", "builtin", "--dry-run"]
    assert SCRIPT.main(arguments) == 0
    assert capsys.readouterr().out.startswith("emulated:h100, builtin with builtin: at most ")
    assert SCRIPT.main([*arguments, "--device", "emulated:none"]) != 0
    assert "emulated:none" in capsys.readouterr().err


def test_a_run_that_fails_has_its_row_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(command: list[str], *, check: bool) -> None:
        coder = command[command.index("--coder") + 1]
        if coder != "good":
            raise subprocess.CalledProcessError(2, command)

    def print_run(results: Path, coder: str, judge: str) -> None:
        if judge == "unread":
            raise UsageError("it holds no run yet")
        print(f"row of {coder} with {judge}")

    monkeypatch.setattr(SCRIPT.subprocess, "run", run)
    monkeypatch.setattr(SCRIPT, "print_run", print_run)
    pairs = [word for pair in ("bad good", "good unread", "good good") for word in ("--pair", *pair.split())]
    assert SCRIPT.main(["core", "--device", "emulated:h100", "--output", str(tmp_path), *pairs]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "emulated:h100, bad with good",
        "  failed    its process ended with 2 and the message above; the same command tries again",
        "emulated:h100, good with unread",
        "  failed    it holds no run yet; the same command tries again",
        "row of good with good",
    ]
    assert SCRIPT.main(["core", "--device", "emulated:h100", "--output", str(tmp_path), *pairs[-3:]]) == 0
