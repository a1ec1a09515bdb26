"""robust-kbench's folders as task files: its configuration becomes module constants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.tasks import parse_task_file
from kernelforge.tasks.loaders import loader_for, loader_named

LOADER = loader_named("robust-kbench")

MODULE = '''import torch
import torch.nn as nn


def forward_fn(x: torch.Tensor, w: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Scaled rows."""
    return x * w * scale


class Model(nn.Module):
    def __init__(self, num_features: int, scale: float):
        super().__init__()
        self.w = nn.Parameter(torch.ones(num_features))
        self.scale = scale

    def forward(self, x: torch.Tensor, fn=forward_fn) -> torch.Tensor:
        """Apply it."""
        return fn(x, self.w, self.scale)


def get_inputs(batch_size: int = 16, num_features: int = 4096):
    return [torch.randn(batch_size, num_features)]


input_names = ["x"]
'''
CONFIG = {
    "single_input_configs": [{"batch_size": 32}, {"batch_size": 1}],
    "single_init_configs": [{"scale": 3.0}],
    "single_shared_configs": [{"num_features": 2048}],
    "multi_input_configs": [{"batch_size": 8}],
}


def write(folder: Path, module: str = MODULE, config: object = CONFIG) -> Path:
    folder.mkdir(parents=True)
    (folder / "func_forward.py").write_text(module)
    (folder / "config_forward.json").write_text(json.dumps(config))
    return folder


def test_the_single_configuration_becomes_constants_and_the_model_takes_tensors_alone(tmp_path: Path) -> None:
    write(tmp_path / "tasks" / "row_scale")
    assert loader_for(tmp_path).name == "robust-kbench"
    (task,) = LOADER.load(tmp_path).tasks
    assert (task.name, task.tags) == ("row_scale", ("robust-kbench",))
    parsed = parse_task_file(task.source, "t")
    assert parsed.constants == {"BATCH_SIZE": 32, "SCALE": 3.0, "NUM_FEATURES": 2048}
    assert parsed.parameters == ("x",)


def test_the_task_computes_what_the_benchmark_does(tmp_path: Path) -> None:
    import torch

    write(tmp_path / "row_scale", config=CONFIG | {"single_shared_configs": [{"num_features": 5}]})
    (task,) = LOADER.load(tmp_path / "row_scale").tasks
    module: dict[str, object] = {}
    exec(task.source, module)
    (x,) = module["get_inputs"]()  # type: ignore[operator]
    model = module["Model"](**module["get_init_inputs"]())  # type: ignore[operator]
    assert x.shape == (32, 5)
    assert torch.equal(model(x), 3 * x)


def test_what_is_malformed_or_backward_is_listed(tmp_path: Path) -> None:
    write(tmp_path / "a_list", config=[1])
    write(tmp_path / "b_module", module="x = (")
    write(tmp_path / "c_tensor", config={"single_input_configs": [{"a": {"b": 1}}]})
    write(tmp_path / "d_empty", module="x = 1")
    (write(tmp_path / "e_alone") / "config_forward.json").unlink()
    (tmp_path / "f_backward").mkdir()
    (tmp_path / "f_backward" / "func_backward.py").write_text("")
    result = LOADER.load(tmp_path)
    assert not result.tasks
    output = {item.origin: item.reason for item in result.not_loaded}
    assert output["a_list/func_forward.py"] == "config_forward.json is no JSON object"
    assert output["b_module/func_forward.py"].startswith("line 1: ")
    assert "no number, text, or list" in output["c_tensor/func_forward.py"]
    assert output["d_empty/func_forward.py"].startswith("it has no `class Model`")
    assert output["e_alone/func_forward.py"] == "there is no config_forward.json next to it"
    assert "gradients" in output["f_backward/func_backward.py"]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no func_forward\.py"):
        LOADER.load(tmp_path)
