"""``calibrate``: the file that it writes, and what it refuses before it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.calibration.measurements import Group
from kernelforge.calibration.plan_timer import PlanTimer
from kernelforge.hardware.specs import spec_by_key


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One made-up measurement in place of all."""

    def made_up(timer: PlanTimer) -> dict[str, float]:
        assert not timer.measures
        return {"l2_latency_cycles": 300.2, "partial_sector_cost": 6.5}

    monkeypatch.setattr("kernelforge.calibration.figures.GROUPS", (Group("made up", made_up),))


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_file_is_written_and_names_a_device(cli, tmp_path: Path):
    done = cli("calibrate", "--device", "emulated:h100", "--output", "mine.toml")
    assert done.code == 0, done.err
    assert "l2_latency_cycles" in done.out
    assert "+13.2%" in done.out
    assert "--device emulated:mine.toml" in done.err
    assert spec_by_key(str(tmp_path / "mine.toml")).l2_latency_cycles == 300
    text = (tmp_path / "mine.toml").read_text()
    assert "partial_sector_cost" not in text

    refused = cli("calibrate", "--device", "emulated:mine.toml", "--output", "mine.toml")
    assert (refused.code, refused.err) == (2, "error: mine.toml exists; --force replaces it\n")
    assert (tmp_path / "mine.toml").read_text() == text
    data = cli("calibrate", "--device", "emulated:mine.toml", "--output", "mine.toml", "--force", "--json").json()
    assert data["figures"][0]["previous"] == 300
    assert data["origin"] == "modelled"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "emulated:h1000"), "there is no device 'emulated:h1000'"),
        (("--device", "cpu"), "there is no device 'cpu'"),
        (("--device", "emulated:none.toml"), "none.toml cannot be read: No such file or directory"),
        (("--device", "emulated:h100", "--output", "mine.txt"), "the name of the file ends with .toml"),
        (("--device", "emulated:h100", "--output", "no/mine.toml"), "there is no folder"),
        (("--device", "emulated:h100", "--output", "folder.toml"), "is a folder: name a file in it"),
    ],
)
def test_bad_input_is_one_message_before_anything_is_measured(
    cli, tmp_path: Path, arguments: tuple[str, ...], message: str
):
    (tmp_path / "folder.toml").mkdir()
    done = cli("calibrate", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1
