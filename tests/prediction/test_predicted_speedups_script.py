"""The script that compares predicted speedups with published ones: its table, its targets, and a kernel of our own."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from kernelforge.hardware.specs import SPECS
from kernelforge.prediction.speedup import KERNEL_SPREAD
from tests.modelnew.converter_samples import SWISH
from tests.support.benchmark_scripts import benchmark_script

SCRIPT = benchmark_script("predicted_speedups")
ROW = {
    "task": "level1_19_relu", "gpu": "l40s", "eager_us": "1000", "kernel_us": "500", "provenance": "who/what@1:there",
    "modelled_us": "500", "protocol": "emulated/7", "bound": "dram", "steps": "1", "idle": "0",
    "predicted_eager_us": "1000", "eager_low_us": "800", "eager_gpu_us": "1000", "operators": "1",
}  # fmt: skip
PROBLEM = """import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)

rows = 64
columns = 1031

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""


def predicted(**changes: str) -> Any:
    return SCRIPT.prediction(ROW | changes)


def test_the_shipped_table_meets_the_target_and_holds_no_text_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert SCRIPT.main(["compare"]) == 0
    assert "target 85%" in capsys.readouterr().out
    with SCRIPT.TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 60
    assert len({row["task"] for row in rows}) >= 30
    assert {row["gpu"] for row in rows} <= SPECS.keys()
    for row in rows:
        assert "@" in row["provenance"]
        assert float(row["kernel_us"]) > 0
        assert float(row["modelled_us"]) > 0


def test_the_target_is_met_by_kernels_of_the_gpu_and_by_sources_left_out() -> None:
    rows = SCRIPT.read(SCRIPT.TABLE)
    assert SCRIPT.coverage([row for row in rows if row.of_gpu]) >= SCRIPT.TARGET
    table = SCRIPT.left_out(rows)
    assert table.row_count == 3
    for column in table.columns[2:4]:
        shares = [float(cell.partition("%")[0]) for cell in column.cells if cell]
        assert all(share >= 100 * SCRIPT.TARGET for share in shares), column.header


def test_spreads_are_errors_of_the_gpus_times_and_what_idle_ones_add() -> None:
    busy = [predicted(modelled_us="1000"), predicted(modelled_us="250"), predicted(kernel_us="20", modelled_us="9000")]
    idle = predicted(modelled_us="4000", idle="1")
    made = SCRIPT.spreads([*busy, idle])
    assert made.kernel == pytest.approx(math.log(2), rel=1e-4)
    assert math.hypot(made.kernel, made.idle) == pytest.approx(math.log(8), rel=1e-4)
    assert SCRIPT.spreads(busy).idle == 0.0
    assert made.inside(math.log(3), idle=0.0)
    assert not made.inside(math.log(8), idle=0.0)
    assert made.inside(math.log(8), idle=1.0)


def test_a_source_is_held_to_the_errors_of_the_others() -> None:
    right = [predicted(gpu="a100-40gb"), predicted(gpu="a100-40gb", modelled_us="550")]
    wrong = [predicted(modelled_us="2000"), predicted()]
    table = SCRIPT.left_out([*right, *wrong])
    times = dict(zip(table.columns[0].cells, table.columns[4].cells, strict=True))
    assert [share for name, share in times.items() if "A100" in str(name)] == ["100.0% of 2"]
    assert [share for name, share in times.items() if "L40S" in str(name)] == ["50.0% of 2"]


def test_a_table_that_misses_the_target_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.csv"
    for kernel_us, status in (("500", 0), ("5000", 1)):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(ROW))
            writer.writeheader()
            writer.writerow(ROW | {"kernel_us": kernel_us})
        assert SCRIPT.main(["compare", str(path)]) == status
    assert "0.0% (target" in capsys.readouterr().out


def test_what_the_host_takes_is_part_of_a_published_time() -> None:
    assert SCRIPT.called_us(1.0, 1) == pytest.approx(SCRIPT.CALL_US, rel=1e-3)
    assert SCRIPT.called_us(1.0, 3) == pytest.approx(SCRIPT.CALL_US + 2 * SCRIPT.STEP_US, rel=1e-3)
    assert SCRIPT.called_us(5000.0, 1) == pytest.approx(5000.0)
    short = predicted(modelled_us="2", kernel_us="15.5", eager_us="11", eager_gpu_us="4")
    assert abs(short.kernel_error) < 0.01
    assert abs(short.speedup_error) < 0.1


def test_an_idle_gpu_widens_the_interval_and_a_missing_baseline_leaves_the_time() -> None:
    busy, idle = predicted(), predicted(idle="1")
    assert math.exp(busy.width) == pytest.approx(
        math.exp(1.6449 * math.hypot(KERNEL_SPREAD, math.log(1.25) / 1.6449)), rel=1e-3
    )
    assert idle.width > 1.4 * busy.width
    alone = predicted(eager_us="")
    assert (alone.speedup_error, alone.width, alone.inside) == (None, None, False)
    assert abs(alone.kernel_error) < 0.01


def test_order_is_that_of_pairs_that_are_apart() -> None:
    rows = [predicted(kernel_us="100", modelled_us="100"), predicted(kernel_us="200", modelled_us="180"),
            predicted(kernel_us="205", modelled_us="400"), predicted(kernel_us="900", modelled_us="300")]  # fmt: skip
    assert SCRIPT.order(rows) == "80% of 5"


@pytest.mark.slow
def test_kernels_of_a_folder_are_modelled_and_others_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "25_Swish.py").write_text(PROBLEM, encoding="utf-8")
    (tmp_path / "ours.py").write_text(SWISH, encoding="utf-8")
    (tmp_path / "torch.py").write_text(SWISH.replace("self.module.swish_forward(x)", "torch.relu(x)"), encoding="utf-8")
    with (tmp_path / "published.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ("kernel", *SCRIPT.PUBLISHED))
        writer.writeheader()
        for kernel in ("ours.py", "torch.py"):
            writer.writerow({
                "kernel": kernel, "task": "level1/25_Swish.py", "gpu": "l40s", "eager_us": "20", "kernel_us": "19",
                "provenance": "ourselves@0:here",
            })  # fmt: skip
    table = tmp_path / "table.csv"
    assert SCRIPT.main(["measure", str(tmp_path), "--output", str(table)]) == 0
    assert "torch.py: not converted" in capsys.readouterr().out
    (row,) = SCRIPT.read(table)
    assert row.task.endswith("25_swish")
    assert row.modelled_us == pytest.approx(19, rel=0.1), "a call with a memset and a short kernel"
    assert row.inside
