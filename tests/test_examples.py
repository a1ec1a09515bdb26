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


def test_every_example_is_run_and_listed() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py")}
    assert programs == set(PRINTED)
    assert programs == set(re.findall(r"\((\w+)\.py\)", (FOLDER / "README.md").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    program = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert program.returncode == 0, program.stderr
    assert re.search(PRINTED[name], program.stdout), program.stdout
    assert list(tmp_path.iterdir()) == []
