"""Each program of docs/examples runs and prints what it is there to show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "examples"
PRINTED = {
    "evaluate_kernel": r"verdict: OK\n(.*\n)*dram__bytes\.sum: 33,554,432 byte .*\nverdict: WRONG\nreason: at",
    "optimize_task": r"00 seed OK reward 0\.3\n(.*\n)*best: attempt 0[1-9]\n",
    "own_task": r"verdict: OK",
    "recompute_rewards": r"attempt 0: kernelforge/1 0\.3\nattempt 0: kevin/1 0\.3\nattempt 0: cuda-agent/1 1\.0",
    "reward_server": r"(scored OK 0\.3\n){2}scored WRONG 0\.0\nscored POLICY 0\.0\nadvantages: \[0\.2",
}

TRAINED = {
    "grpo_toy": ["--policy", "predicted/1"],
    "sft_then_rl": ["--samples", "256", "--steps", "12"],
    "kevin_turns": ["--steps", "1"],
}


def test_every_example_is_run_and_listed() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py")}
    assert programs == set(PRINTED)
    assert programs == set(re.findall(r"\((\w+)\.py\)", (FOLDER / "README.md").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_trains_its_toy(name: str, tmp_path: Path) -> None:
    """By rewards alone it comes to write right kernels, and the fast one of them."""
    pytest.importorskip("trl")
    program = subprocess.run(
        [sys.executable, FOLDER / "training" / f"{name}.py", *TRAINED[name]],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert program.returncode == 0, program.stderr
    shares = [tuple(map(float, pair)) for pair in re.findall(r"correct (\S+), of these fast (\S+)", program.stdout)]
    if name == "grpo_toy":
        ((correct, fast),) = shares
        assert correct > 0.9
        assert fast > 0.9
    elif name == "sft_then_rl":
        (from_random_weights, _), (after_fine_tuning, _) = shares
        assert after_fine_tuning > from_random_weights
    else:
        assert "step 1: mean reward of each turn 0." in program.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_expected_curves_are_drawn_from_the_shares_that_are_kept(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    program = [sys.executable, FOLDER / "training" / "curves.py", "--output", tmp_path]
    subprocess.run(program, check=True, capture_output=True, timeout=120)
    for name in ("training-correct.svg", "training-fast.svg"):
        assert (tmp_path / name).read_bytes() == (FOLDER.parent / "images" / name).read_bytes(), name


@pytest.mark.slow
def test_the_page_of_the_first_reward_prints_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = FOLDER.parents[1]
    monkeypatch.syspath_prepend(str(FOLDER / "training"))
    toy = pytest.importorskip("toy")
    page = (root / "docs" / "first-reward.md").read_text()
    block = page.partition("<!-- submitted -->\n```console\n$ ")[2].partition("```")[0]
    monkeypatch.setattr(toy, "SUITE", "core")
    with toy.reward_server(tmp_path):
        for step in block.split("\n$ "):
            command, *printed = step.splitlines()
            arguments = command.split()[1:]
            run = [sys.executable, "-m", "kernelforge", *arguments]
            output = subprocess.run(run, cwd=root, capture_output=True, text=True, timeout=120, check=True).stdout
            assert output.splitlines()[: len(printed)] == printed


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    program = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert program.returncode == 0, program.stderr
    assert re.search(PRINTED[name], program.stdout), program.stdout
    assert list(tmp_path.iterdir()) == []
