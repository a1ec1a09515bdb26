"""``eval --lane modelnew``, and options that only a device that measures has a use for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.cli.support.options import strategy_settings

RIGHT = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)
"""


@pytest.fixture
def candidate(tmp_path: Path) -> str:
    (tmp_path / "model_new.py").write_text(RIGHT)
    return "model_new.py"


@pytest.mark.slow
def test_a_model_new_class_is_checked_with_torch(cli, candidate: str) -> None:
    done = cli("eval", candidate, "--task", "softmax", "--lane", "modelnew", "--device", "cpu")
    assert done.code == 0, done.err
    assert "OK at stage done" in done.out
    assert "hidden_odd" in done.out
    assert "not timed" in done.out
    assert "seen in line 7: torch.softmax(...) (torch_computation_ops)" in done.out


@pytest.mark.slow
def test_a_wrong_class_leaves_with_1_and_earns_no_reward(cli, candidate: str, tmp_path: Path) -> None:
    (tmp_path / candidate).write_text(RIGHT.replace("dim=1", "dim=0"))
    done = cli("eval", candidate, "--task", "softmax", "--lane", "modelnew", "--device", "cpu", "--json")
    assert done.code == 1
    evaluation = done.json()["evaluation"]
    assert evaluation["verdict"] == "WRONG"
    assert evaluation["lane"] == "modelnew"
    assert evaluation["fingerprint"]["device"] == "cpu"


@pytest.mark.slow
def test_an_emulated_device_runs_no_class(cli, candidate: str) -> None:
    done = cli("eval", candidate, "--task", "softmax", "--lane", "modelnew", "--device", "emulated")
    assert done.code == 2
    assert "use --device cpu, or a GPU" in done.err


def test_a_class_has_no_values_to_choose(cli, candidate: str) -> None:
    done = cli("eval", candidate, "--task", "softmax", "--lane", "modelnew", "--choose", "BLOCK=1")
    assert done.code == 2
    assert "--choose" in done.err


def test_no_emulated_device_runs_a_class_first(cli, candidate: str) -> None:
    done = cli("eval", candidate, "--task", "softmax", "--lane", "modelnew", "--no-screen")
    assert done.code == 2
    assert "--no-screen is for launch plans" in done.err


def test_an_emulated_device_has_no_other_in_front_of_it(cli, candidate: str) -> None:
    done = cli("eval", candidate, "--task", "softmax", "--device", "emulated", "--no-screen")
    assert done.code == 2
    assert "so screen=False has no use there; name a GPU (cuda:0)" in done.err


def test_a_class_has_no_approximations_to_choose(cli, candidate: str) -> None:
    done = cli("eval", candidate, "--task", "softmax", "--lane", "modelnew", "--approx", "worst")
    assert done.code == 2
    assert "--approx is of the emulated device" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--runtime", "pycuda"], "runtime=pycuda"),
        (["--protocol", "kernelbench"], "protocol=kernelbench"),
        (["--sanitizer"], "sanitizer=True"),
        (["--measure", "qps=100"], "qps=100"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "eval"])
def test_what_a_model_of_time_cannot_do_is_refused(
    cli, candidate: str, verb: str, options: list[str], message: str
) -> None:
    subject = [candidate, "--task", "softmax"] if verb == "eval" else []
    done = cli(verb, *subject, *options, "--device", "emulated:h100")
    assert done.code == 2
    assert message in done.err
    assert "emulated:h100 models time and measures nothing" in done.err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("qps=0", "qps"),
        ("speed=3", "choose of counters, energy, figures, launches, precision"),
        ("precision", "NAME=VALUE"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(cli, setting: str, message: str) -> None:
    done = cli("run", "--measure", setting)
    assert done.code == 2
    assert message in done.err


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["refine", "evolve"])
def test_every_strategy_takes_the_metrics_that_agents_see(cli, strategy: str) -> None:
    run = ("run", "--strategy", strategy, "--device", "emulated:h100", "--task", "softmax", "--dry-run")
    for metrics in ("none", "subset", "full"):
        assert cli(*run, "--metrics", metrics).code == 0
    Path("names.txt").write_text("# chosen\ndram__bytes.sum\nsm__inst_executed.sum\n")
    assert cli(*run, "--metrics", "names.txt").code == 0
    assert strategy_settings(None, "names.txt") == {"metrics": "dram__bytes.sum sm__inst_executed.sum"}
    Path("empty.txt").write_text("# none\n")
    for wrong, why in (("subsett", "a file of names"), ("empty.txt", "no name"), ("README", "a file of names")):
        done = cli(*run, "--metrics", wrong)
        assert (done.code, why in done.err) == (2, True)
    assert "should be 'none', 'subset' or 'full'" in cli(*run, "--set", "metrics=subsett").err
    twice = cli(*run, "--metrics", "full", "--set", "metrics=full")
    assert twice.code == 2
    assert "say the same; give one of them" in twice.err
