"""``kernelforge capture``, end to end in its jail."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from kernelforge.capture.records import Capture
from kernelforge.tasks import load_suite
from tests.capture.conftest import model_text

LAYERS = "self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(3))"
FORWARD = "for layer in self.layers:\n    x = layer(x)\nreturn x"


@pytest.mark.slow
def test_the_command_shows_groups_and_keeps_the_digests_of_the_files(cli, tmp_path: Path) -> None:
    """The model is constructed for real, in a second process: its file registers an operator, which works once."""
    text = model_text(FORWARD, "torch.randn(4, 16, 32).half()", f"{LAYERS}\nself.half()")
    text += "library = torch.library.Library('capture_cli', 'FRAGMENT')\nlibrary.define('twice(Tensor x) -> Tensor')\n"
    path = tmp_path / "net.py"
    path.write_text(text)
    done = cli("capture", f"{path}:make_model", "--inputs", "make_inputs", "--json")
    assert done.code == 0, done.err
    captured = Capture.model_validate(json.loads(done.out))
    assert captured.model.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert sum(group.share for group in captured.groups) == pytest.approx(1)
    assert [group.name for group in captured.groups] == ["g01-linear-gelu", "g02-layer-norm"]
    assert all(group.headroom >= 1 for group in captured.groups)


@pytest.mark.slow
def test_a_group_becomes_a_task_that_can_be_judged(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("net.py").write_text(model_text(FORWARD, "torch.randn(4, 16, 32)", LAYERS))
    command = ("capture", "net.py:make_model", "--inputs", "make_inputs", "--output", "suite", "--write", "g02")
    done = cli(*command)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "1 tasks, 0 groups not written; suite suite"
    (task,) = load_suite(tmp_path / "suite").tasks
    assert (task.name, task.tags) == ("g02-layer-norm", ("captured", "reduction"))
    assert {size.name for size in task.sizes} == {"full", "small", "hidden_odd", "hidden_quad", "hidden_tiny"}
    kept = Capture.model_validate_json((tmp_path / "suite" / "capture.json").read_text())
    assert [group.task for group in kept.groups] == ["", "g02-layer-norm"]
    assert len(kept.groups[1].calls) == 3
    assert cli("tasks", "check", "suite").code == 0
    assert cli(*command).code == 0, "the same capture replaces its own suite"
    Path("suite/notes.txt").write_text("mine")
    refused = cli(*command)
    assert (refused.code, "notes.txt was added" in refused.err) == (2, True)
    assert Path("suite/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["net.py:make_model"], "add --inputs"),
        (["net.py", "--inputs", "make_inputs"], "write FILE.py:FUNCTION"),
        (["absent.py:make_model", "--inputs", "make_inputs"], "there is no file absent.py"),
        (["net.py:make_model", "--inputs", "make_inputs", "--top", "2"], "add --output FOLDER"),
        (["net.py:make_model", "--inputs", "make_inputs", "--device", "cuda:97"], "cuda:97' is not available"),
    ],
)
def test_a_bad_command_is_one_line(cli, arguments: list[str], reason: str) -> None:
    Path("net.py").write_text("")
    done = cli("capture", *arguments)
    assert done.code == 2
    assert reason in done.err
    assert done.err.count("\n") == 1
