"""``kernelforge select-metrics`` chooses metrics of stored runs, and ``run --metrics`` takes its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge import optimize
from kernelforge.cli.support.options import shown_metrics
from kernelforge.records import Budget
from kernelforge.store import Store
from tests.report.views.test_metric_selection import planted
from tests.support.recorded_run import make_run, make_task

CHOSEN = {"sm__more.sum", "sm__less.pct", "sm__ends.sum"}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A results folder with a run in which three metrics go with the times."""
    folder = tmp_path / "results"
    with Store.open(folder / "kernelforge.db") as store:
        run = make_run("planted")
        tasks = tuple(f"task{at}" for at in range(4))
        store.start_run(run.model_copy(update={"config": run.config.model_copy(update={"tasks": tasks})}))
        for name in tasks:
            store.put_task("planted", make_task(name))
        for attempt in planted():
            own = {"run": run.id, "id": f"{run.id}/{attempt.task}/{attempt.number:02d}"}
            store.add_attempt(attempt.model_copy(update=own))
    return folder


@pytest.mark.slow
def test_chosen_metrics_are_printed_and_written_for_a_run(cli, stored: Path) -> None:
    command = ("select-metrics", "--results", str(stored), "--percentile", "92")
    done = cli(*command, "--output", "chosen.metrics")
    assert done.code == 0
    assert "3 with a mean |r| above" in done.out
    assert set(shown_metrics("chosen.metrics").split()) == CHOSEN
    [selection] = cli(*command, "all", "--json").json()
    assert {row["name"] for row in selection["metrics"] if row["selected"]} == CHOSEN
    assert (selection["gpu"], selection["origin"]) == ("emulated:h100", "modelled")
    assert "a file of names" in cli("prompts", "show", "judge-optimise", "--task", "gelu", "--metrics", "no.file").err


@pytest.mark.slow
def test_what_cannot_be_chosen_from_is_said(cli, stored: Path) -> None:
    command = ("select-metrics", "--results", str(stored))
    for options, code, why in (
        (("--gpu", "NVIDIA H200"), 2, "no attempt on 'NVIDIA H200'"),
        (("--task", "nothing"), 2, "no task 'nothing'"),
        (("--task", "task1", "--output", "none.metrics"), 2, "nothing is written"),
        (("--task", "task1"), 1, ""),
    ):
        done = cli(*command, *options)
        assert done.code == code
        assert why in done.err
    assert not Path("none.metrics").exists()


SMALL = """
import torch
from torch import nn

ROWS, COLUMNS = 128, 512


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_sectors_go_with_the_modelled_times_of_a_run_of_the_builtin_agents(cli, tmp_path: Path) -> None:
    """The first kernel of a softmax has a thread per row, the next ones read rows with whole warps."""
    task, results = tmp_path / "small.py", tmp_path / "real"
    task.write_text(SMALL)
    optimize(str(task), device="emulated:h100", budget=Budget(rounds=4), seed=1, results=results)
    [selection] = cli("select-metrics", "--tasks", "1", "--json", "--results", str(results)).json()
    [sample] = selection["tasks"]
    assert sample["counted"] >= 4
    rows = {row["name"]: row for row in selection["metrics"]}
    assert rows["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]["correlations"]["small"] > 0.9
