"""Rows of ConCuR, KernelBook and the AI CUDA Engineer archive, from files of their columns made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelforge.datasets import read_ai_cuda_engineer
from kernelforge.datasets.published_rows import FORMATS, published_rows, read_published, unlike
from kernelforge.datasets.training import columns
from kernelforge.errors import UsageError
from tests.datasets.test_training import sample
from tests.support.factories import make_task

REFERENCE = "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
MODEL_NEW = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + x\n"
KERNEL = "#include <torch/extension.h>\n__global__ void twice(float* x) {}\n"
FUNCTIONAL = """import torch

def module_fn(x):
    return x * 2

class Model(torch.nn.Module):
    def forward(self, x, fn=module_fn):
        return fn(x)
"""


def arrow(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A stream of record batches, as ``datasets`` saves."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def archived(**changes: Any) -> dict[str, Any]:
    fields = {"Op_Name": "19_ReLU", "Level_ID": 1, "Task_ID": 19, "Kernel_Name": "19_relu_vectorised", "Correct": True,
              "CUDA_Speedup_Native": 1.25, "CUDA_Code": KERNEL, "PyTorch_Code_Module": REFERENCE,
              "PyTorch_Code_Functional": FUNCTIONAL, "Max_Diff": 0.0, "Error": None}  # fmt: skip
    return fields | changes


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ({}, {"pytorch_code": REFERENCE, "cot": "Twice is a sum.", "cuda_code": MODEL_NEW}),
        ({}, {"input": REFERENCE, "thinking": "<think>\nTwice is a sum.\n</think>", "output": MODEL_NEW}),
        ({}, {"problem": REFERENCE, "response": f"<think>\nTwice is a sum.\n</think>\n\n{MODEL_NEW}"}),
        (
            {"reference": "a", "reasoning": "b", "kernel": "c"},
            {"a": REFERENCE, "b": "Twice is a sum.", "c": MODEL_NEW, "d": REFERENCE},
        ),
    ],
)
def test_columns_of_concur_are_recognised_or_named(
    tmp_path: Path, columns: dict[str, str], row: dict[str, str]
) -> None:
    read = read_published(arrow(tmp_path / "data-00000-of-00001.arrow", [row, row]), "concur", columns)
    assert (len(read.pairs), read.unread) == (2, ())
    [first, _] = published_rows(read.pairs, "sft", "concur", "think")
    assert REFERENCE.strip() in first["messages"][0]["content"]
    answer = f"<think>\nTwice is a sum.\n</think>\n\n```python\n{MODEL_NEW.strip()}\n```\n"
    assert first["messages"][1]["content"] == answer
    assert (first["reasoning"], first["run"], first["written_by"]) == ("Twice is a sum.", "concur", "ConCuR")


def test_columns_of_concur_that_cannot_be_recognised_are_asked_for(tmp_path: Path) -> None:
    path = arrow(tmp_path / "a.arrow", [{"a": "x", "b": "y"}])
    with pytest.raises(UsageError, match=r"the reference and the kernel cannot be recognised; it has a, b: name them"):
        read_published(path, "concur")
    with pytest.raises(UsageError, match="has no column 'c'; it has a, b"):
        read_published(path, "concur", {"kernel": "c"})
    with pytest.raises(UsageError, match="not 'speed'"):
        read_published(path, "concur", {"speed": "a"})
    (tmp_path / "b.arrow").write_bytes(b"no stream")
    with pytest.raises(UsageError, match=r"b\.arrow"):
        read_published(tmp_path / "b.arrow", "concur")


def test_kernelbook_has_triton_and_the_licences_of_its_modules(tmp_path: Path) -> None:
    row = {"python_code": REFERENCE, "triton_code": "@triton.jit\ndef f(): ...\n", "entry_point": "Twice",
           "licenses": ["MIT", "BSD-3-Clause"], "uuid": 7}  # fmt: skip
    path = parquet(tmp_path / "dataset_permissive.parquet", [row, {**row, "triton_code": " "}])
    read = read_published(path, "kernelbook")
    assert [(item.origin, item.reason) for item in read.unread] == [
        ("dataset_permissive.parquet, row 1", "no text in column 'triton_code'")
    ]
    [made] = published_rows(read.pairs, "sft", "kernelbook")
    assert made["messages"][0]["content"].startswith("Write Triton kernels")
    assert (made["task"], made["licence"], made["reasoning"]) == ("Twice", "MIT, BSD-3-Clause", None)
    array = tmp_path / "array.json"
    array.write_text(json.dumps([row]))
    assert [pair.kernel for pair in read_published(array, "kernelbook").pairs] == [row["triton_code"]]


def test_the_archive_says_which_kernels_are_wrong(tmp_path: Path) -> None:
    rows = [archived(), archived(Correct=False, CUDA_Speedup_Native=float("nan")), archived(Correct=None)]
    read = read_published(parquet(tmp_path / "level_1.parquet", rows), "ai-cuda-engineer")
    supervised = list(published_rows(read.pairs, "sft", "ai-cuda-engineer"))
    labels = list(published_rows(read.pairs, "kto", "ai-cuda-engineer"))
    assert [row["id"] for row in supervised] == ["ai-cuda-engineer/0", "ai-cuda-engineer/2"]
    assert [row["label"] for row in labels] == [True, False]
    assert [row["published_speedup"] for row in labels] == [1.25, None]
    assert supervised[0]["task"] == "level_1/19 19_ReLU"
    assert supervised[0]["licence"] == "CC-BY-4.0"
    assert (supervised[0]["speedup"], supervised[0]["verdict"]) == (None, None), "not judged here"


def test_pairs_like_an_excluded_task_are_left_out(tmp_path: Path) -> None:
    other = "def forward(a, b):\n    return a @ b + a.sum() - b.mean() * 3\n"
    path = parquet(tmp_path / "level_1.parquet", [archived(), archived(PyTorch_Code_Module=other)])
    pairs = read_published(path, "ai-cuda-engineer").pairs
    assert [pair.name for pair in unlike(pairs, [make_task(source=f"# the same\n{REFERENCE}")], 0.9)] == [
        "ai-cuda-engineer/1"
    ]


def test_files_without_the_columns_of_their_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"python_code": "x"}\n')
    for name in sorted(set(FORMATS) - {"concur", "coderosetta"}):
        with pytest.raises(UsageError, match=f"so it is not {name}; it has python_code"):
            read_published(tmp_path / "a.jsonl", name)
    with pytest.raises(UsageError, match="is no file of rows"):
        read_published(tmp_path / "none", "kernelbook")


def test_a_kernel_of_the_archive_becomes_a_class_whose_forward_calls_it(tmp_path: Path) -> None:
    rows = [archived(), archived(), archived(Level_ID=-1), archived(CUDA_Code=None)]
    rows.append(archived(PyTorch_Code_Functional=REFERENCE))
    read = read_ai_cuda_engineer(parquet(tmp_path / "level_1.parquet", rows))
    first, second = read.candidates
    assert first.name == "level1_problem19_19_relu_vectorised"
    assert second.name.startswith(f"{first.name}_")
    assert (first.published_score, first.published_correct, first.reference) == (1.25, True, REFERENCE)
    assert [item.reason for item in read.unread] == [
        "level -1 and Task_ID 19 name no problem",
        "no text in CUDA_Code",
        "PyTorch_Code_Functional has no Model whose forward takes fn=",
    ]
    calls: list[dict[str, Any]] = []

    class Extension:
        @staticmethod
        def forward(x: float) -> float:
            return x * 20

    def load_inline(**arguments: Any) -> type[Extension]:
        calls.append(arguments)
        return Extension

    text = first.source.replace("from torch.utils.cpp_extension import load_inline\n", "")
    names: dict[str, Any] = {"load_inline": load_inline}
    exec(text.replace("import torch\n", "").replace("torch.nn.Module", "object"), names)
    assert names["ModelNew"]().forward(2.0) == 40.0
    assert "Model" not in names
    assert calls == [{"name": first.name, "cpp_sources": [], "cuda_sources": [KERNEL]}]
    with pytest.raises(UsageError, match="it has no column Level_ID, Task_ID"):
        read_ai_cuda_engineer(tmp_path / "none")


def test_pairs_of_translations_ask_for_their_own_language(tmp_path: Path) -> None:
    c, cuda = "void f ( float * x ) { x [ 0 ] = 1 ; }", "__global__ void f ( float * x ) { x [ 0 ] = 1 ; }"
    tower = tmp_path / "test.jsonl"
    tower.write_text(json.dumps({"id": 0, "cpp_code": c, "cuda_code": cuda, "cuda_wrapper": "int main() {}"}))
    musl = tmp_path / "musl.jsonl"
    rows = [{"CPP": c, "CUDA": cuda}, {"CPP": "", "CPP-gen": c, "CUDA": cuda}, {"CPP": "", "CUDA": cuda}]
    musl.write_text("\n".join(map(json.dumps, rows)))
    graph = tmp_path / "ComputationGraph.json"
    graph.write_text(json.dumps([{"op_name": "exp", "c_code": c, "cuda_code": cuda, "input_shape": [[1, 9]]}]))
    for path, name, count in ((tower, "babeltower", 1), (musl, "musl", 2)):
        read = read_published(path, name)
        made = list(published_rows(read.pairs, "sft", name))
        assert len(made) == count
        assert set(columns(sample())) <= set(made[0])
        for row in made:
            user, reply = (message["content"] for message in row["messages"])
            assert (
                user
                == f"Write CUDA kernels that do in parallel what this sequential C function does.\n\n```cpp\n{c}\n```\n"
            )
            assert reply == f"```cuda\n{cuda}\n```\n"
    assert [item.reason for item in read_published(musl, "musl").unread] == ["no text in column 'CPP'"]
    [row] = published_rows(read_published(graph, "hpctranseval").pairs, "sft", "hpctranseval")
    user, reply = (message["content"] for message in row["messages"])
    assert user.startswith("Write a C function, parallel with OpenMP")
    assert f"```cuda\n{cuda}\n```" in user
    assert reply == f"```c\n{c}\n```\n"
    assert row["task"] == "exp"
    assert not list(published_rows(read_published(graph, "hpctranseval").pairs, "kto", "hpctranseval"))


def test_the_same_line_of_two_files_of_coderosetta_is_a_pair(tmp_path: Path) -> None:
    (tmp_path / "cpp.para.test.tok").write_text("void f ( int n ) { }\n\nvoid g ( int n ) { }\n")
    (tmp_path / "cuda.para.test.tok").write_text("__global__ void f ( int n ) { }\nx\n__global__ void g ( ) { }\n")
    (tmp_path / "fortran.para.train.jsonl").write_text(json.dumps({"text": "end"}) + "\n[1]\n")
    (tmp_path / "cpp.para.train.jsonl").write_text(json.dumps({"text": "int main() {}"}) + "\n{}\n")
    (tmp_path / "cpp.mono.train.tok").write_text("void h ( ) { }\n")
    read = read_published(tmp_path, "coderosetta")
    assert [(pair.original, pair.language, pair.reference) for pair in read.pairs] == [
        ("cpp", "CUDA", "void f ( int n ) { }"),
        ("cpp", "CUDA", "void g ( int n ) { }"),
        ("fortran", "C++", "end"),
    ]
    assert [item.reason for item in read.unread] == [
        "no text in column 'cpp'",
        "the row is no JSON object with a text",
    ]
    rows = list(published_rows(read.pairs, "sft", "coderosetta"))
    assert rows[0]["messages"][1]["content"] == "```cuda\n__global__ void f ( int n ) { }\n```\n"
    assert rows[2]["messages"][0]["content"].startswith("Write C++ that does what this Fortran program does.")
    (tmp_path / "cuda.para.test.tok").write_text("one line\n")
    with pytest.raises(UsageError, match="different numbers of lines"):
        read_published(tmp_path, "coderosetta")
