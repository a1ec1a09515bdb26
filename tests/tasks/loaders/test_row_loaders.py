"""Data sets of rows: KernelBench's parquet, CUDA-Agent-Ops-6K as parquet and as JSON lines."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.tasks.loaders import loader_for, loader_named
from kernelforge.tasks.loaders.kernelbook import reference_of
from kernelforge.utils.shell_hints import install_hint
from tests.support import kernelbench_files as files

KERNELBENCH, OPS = loader_named("kernelbench-parquet"), loader_named("ops-6k")

OPS_ROWS = [
    {"ops": '["torch.softmax"]', "data_source": "torch#1", "code": files.SOFTMAX},
    {"ops": "['torch.nn.Linear', 'torch.relu']", "data_source": "torch#2", "code": files.INLINE},
    {"ops": "[]", "data_source": "torch#3", "code": files.BROKEN},
    {"ops": "[]", "data_source": "torch#3", "code": None},
]


def write_parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_rows_of_kernelbench_are_its_files(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"code": files.SOFTMAX, "level": 1, "name": "23_Softmax", "problem_id": 23},
        {"code": files.GROUP_NORM, "level": 1, "name": "GroupNorm_", "problem_id": 35},
        {"code": files.BROKEN, "level": 2, "name": "1_Broken", "problem_id": 1},
        {"code": None, "level": 3, "name": "2_None", "problem_id": 2},
    ]
    write_parquet(tmp_path / "level_1-00000-of-00001.parquet", rows)
    assert loader_for(tmp_path).name == "kernelbench-parquet"
    result = KERNELBENCH.load(tmp_path)
    assert [(task.name, task.title, task.level) for task in result.tasks] == [
        ("level1_23_softmax", "Softmax", 1),
        ("level1_35_groupnorm", "GroupNorm", 1),
    ]
    assert [(item.origin.rpartition(" ")[2], item.reason, item.level) for item in result.not_loaded] == [
        ("2", "line 2: expected ':'", 2),
        ("3", "it has no text in column 'code'", 3),
    ]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_rows_of_ops_6k_are_named_after_their_operators(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train.{suffix}"
    if suffix == "parquet":
        write_parquet(path, OPS_ROWS)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in OPS_ROWS))
    assert loader_for(path).name == "ops-6k"
    result = OPS.load(path)
    assert [(task.name, task.title, task.level) for task in result.tasks] == [
        ("0000_softmax", "softmax", 1),
        ("0001_linear_relu", "Linear, relu", 2),
    ]
    assert "X = 1024" in result.tasks[1].source
    assert [item.reason for item in result.not_loaded] == [
        "line 2: expected ':'",
        "it has no text in column 'code'",
    ]


def test_lines_that_are_no_rows_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(OPS_ROWS[0]) + "\n[1]\n{broken\n")
    result = OPS.load(path)
    assert len(result.tasks) == 1
    assert [item.origin for item in result.not_loaded] == ["rows.jsonl, row 1", "rows.jsonl, row 2"]
    assert result.not_loaded[0].reason == "the row is no JSON object"
    assert result.not_loaded[1].reason.startswith("the row is not JSON")


def test_a_file_that_is_no_parquet_is_one_clear_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(UsageError, match=r"cannot read .*x\.parquet"):
        KERNELBENCH.load(path)
    with pytest.raises(UsageError, match=r"no \.parquet file"):
        KERNELBENCH.load(tmp_path / "absent")


def test_without_pyarrow_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert loader_for(tmp_path).name == "kernelbench-parquet"
    with pytest.raises(UsageError, match=re.escape(install_hint("datasets"))):
        KERNELBENCH.load(tmp_path)


def module(init: str, arguments: str, *, name: str = "Scale") -> str:
    """A row's module as KernelBook has them."""
    return (
        f"import torch\nimport torch.nn as nn\n\n\nclass {name}(nn.Module):\n    def __init__(self, {init}):\n"
        f"        super({name}, self).__init__()\n        self.by = by\n\n    def forward(self, x):\n"
        f"        return x * self.by\n\n\ndef get_inputs():\n    return [torch.rand([4, 64])]\n\n\n"
        f"def get_init_inputs():\n    return {arguments}\n"
    )


@pytest.mark.parametrize(
    ("init", "arguments", "expected"),
    [
        ("by=2", "[[], {}]", "[]"),
        ("by", "[[3], {}]", "[3]"),
        ("by", "[[], {'by': 3}]", "{'by': 3}"),
        ("by, bias", "[[3], {'bias': 4}]", "{'by': 3, 'bias': 4}"),
    ],
)
def test_a_module_of_kernelbook_becomes_a_task_file(init: str, arguments: str, expected: str) -> None:
    source = reference_of(module(init, arguments), "Scale")
    assert source == module(init, expected, name="Model")


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_rows_of_kernelbook_are_named_after_their_classes(tmp_path: Path, suffix: str) -> None:
    rows: list[dict[str, object]] = [
        {"python_code": module("by=2", "[[], {}]"), "entry_point": "Scale", "repo_name": "a/b", "triton_code": "t"},
        {"python_code": module("by", "None"), "entry_point": "Scale", "repo_name": "a/b", "triton_code": "t"},
        {"python_code": module("by", "[[2], {}]"), "entry_point": "Other", "repo_name": "a/b", "triton_code": "t"},
    ]
    path = tmp_path / f"dataset_permissive.{suffix}"
    if suffix == "parquet":
        write_parquet(path, rows)
    else:
        path.write_text(json.dumps(rows) if suffix == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    assert loader_for(path).name == "kernelbook"
    result = loader_named("kernelbook").load(path)
    assert [(task.name, task.title, task.tags) for task in result.tasks] == [
        ("00000_scale", "Scale, of a/b", ("kernelbook",))
    ]
    assert "class Model(nn.Module)" in result.tasks[0].source
    assert "= 64\n" in result.tasks[0].source
    assert [item.reason for item in result.not_loaded] == [
        "its get_init_inputs() does not return [positional, by keyword]",
        "its module has no class 'Other'",
    ]
