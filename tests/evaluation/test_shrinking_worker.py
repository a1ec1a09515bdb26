"""The child's reply to one choice of constants, asked in this process: these files are ours."""

from __future__ import annotations

import pytest

from kernelforge.errors import TaskError
from kernelforge.evaluation.size_search.worker import _try
from tests.support import kernelbench_files as files


def test_shapes_alone_tell_the_cost_of_what_no_memory_could_hold() -> None:
    text = files.INLINE.replace('device="cuda"', "device=None")
    cost = _try(text.replace("4096", "223606").replace("512", "223606"), {}, "abstract")
    assert cost["bytes"] > 200e9
    assert cost["elements"] == 223606**2 + 223606 + 2 * 1024 * 223606
    assert "ran" not in cost


def test_what_is_run_for_real_says_so() -> None:
    cost = _try(files.SOFTMAX, {"dim": 64}, "real")
    assert cost["ran"] is True
    assert cost["elements"] == 2 * 16 * 64
    assert cost["calls"] == 1


def test_control_flow_on_values_is_tried_on_real_tensors() -> None:
    text = files.SOFTMAX.replace("return torch.softmax(x, dim=1)", "return x * 2 if x.sum() > 0 else x")
    assert _try(text, {"dim": 64}, "real")["elements"] == 2 * 16 * 64
    assert "unknown" in _try(text, {}, "abstract")


def test_a_reference_that_raises_says_what_and_where() -> None:
    with pytest.raises(TaskError, match=r"Model\.forward failed: RuntimeError"):
        _try(files.RAISES, {"dim": 64}, "real")


def test_a_number_of_layers_changes_the_number_of_weights_and_an_extent_does_not() -> None:
    def weights(**constants: int) -> int:
        count: int = _try(files.LAYERS, constants, "weights")["weights"]
        return count

    assert weights() == weights(WIDTH=24) == 2 * 9
    assert weights(LAYERS=4) == 2 * 4
