"""Sets of C functions and CUDA kernels: HPCTransEval, BabelTower with tests, MuSL and CodeRosetta."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.tasks.loaders import loader_for, loader_named

CUDA = "__global__ void k ( float * x ) { x [ threadIdx . x ] += 1 ; }"
SCALE = "void scale ( float * x , float * y , int N , float a ) { "
SCALE += " for ( int i = 0 ; i < N ; i ++ ) y [ i ] = a * x [ i ] ; }"
STRIDED = "void put ( float * x , int n , int step ) { for ( int i = 0 ; i < n ; i ++ ) x [ i * step ] += 1 ; }"
GATHER = "void gather ( float * x , int * at , int n ) { for ( int i = 0 ; i < n ; i ++ ) x [ at [ i ] ] = 1 ; }"
REASON = "its C finds an element of 'x' by data, so no length of it is surely enough"


def test_rows_of_babeltower_take_numbers_from_their_tests(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    test = "float x1[] = {1, 2};\nwrapper(put, x1, 2, 5);\n"
    rows: list[object] = [
        {"id": 0, "cpp_code": SCALE, "cuda_code": CUDA, "consistent_cpp_inputs": ["wrapper(scale, x, y, 3, 0.25f);"]},
        {"id": 1, "cpp_code": STRIDED, "cuda_code": CUDA, "consistent_cpp_inputs": [test]},
        {"id": 2, "cpp_code": GATHER, "cuda_code": CUDA, "consistent_cpp_inputs": [test]},
        {"id": 3, "cpp_code": STRIDED, "cuda_code": CUDA, "consistent_cpp_inputs": "wrapper("},
        {"id": 4, "cpp_code": None, "cuda_code": CUDA},
        [1],
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    assert loader_for(path).name == "babeltower"
    loaded = loader_named("babeltower").load(path)
    assert [(task.name, task.title, task.tags) for task in loaded.tasks] == [
        ("f0000_scale", "scale", ("translate",)),
        ("f0001_put", "put", ("translate",)),
        ("f0003_put", "put", ("translate",)),
    ]
    scale, put, other = loaded.tasks
    assert "\nA = 0.25\n" in scale.source
    assert scale.fixed == {"A"}
    assert "\nSTEP = 5\n" in put.source
    assert "\nSTEP = 3\n" in other.source
    assert "\nvoid f0001_put(const float *x, float *x_out, int n, int step)\n" in put.c_source
    assert [item.reason.partition(":")[0] for item in loaded.not_loaded] == [
        REASON,
        "it has no text in column 'cpp_code'",
        "the row is no JSON object",
        "the row is not JSON",
    ]


def test_graphs_of_hpctranseval_have_the_lengths_of_their_shapes(tmp_path: Path) -> None:
    def graph(name: str, shape: object, body: str) -> dict[str, object]:
        code = f"void default_function_kernel(float* T, float* ph) {{\n  #pragma omp parallel for\n{body}}}\n"
        return {"op_name": name, "c_code": code, "cuda_code": CUDA, "input_shape": shape, "input_name": ["ph"]}

    slice_ = "for (int32_t i = 0; i < 6; ++i) { T[i] = fabsf(ph[i * 2]); }\n"
    rows = [graph("slice", [[4, 5]], slice_), graph("slice", [[10]], slice_), graph("slice", "none", slice_)]
    path = tmp_path / "ComputationGraph.json"
    path.write_text(json.dumps(rows))
    assert loader_for(path).name == "hpctranseval"
    loaded = loader_named("hpctranseval").load(path)
    assert [task.name for task in loaded.tasks] == ["f0000_slice", "f0002_slice"]
    assert ["randn(20," in task.source for task in loaded.tasks] == [True, False]
    assert "randn(11," in loaded.tasks[1].source
    assert [item.reason for item in loaded.not_loaded] == [
        "its C reaches behind the end of 'ph', whose shape the data set gives"
    ]


def test_pairs_of_musl_may_have_c_that_a_model_wrote(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [{"CPP": SCALE, "CUDA": CUDA}, {"CPP": "", "CPP-gen": STRIDED, "CUDA": CUDA}, {"CPP": "", "CUDA": CUDA}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = loader_for(path).load(path)
    assert [task.name for task in loaded.tasks] == ["f0000_scale", "f0001_put"]
    assert [item.reason for item in loaded.not_loaded] == ["it has no text in column 'CPP'"]


def test_lines_of_coderosetta_are_functions(tmp_path: Path) -> None:
    (tmp_path / "cpp.para.test.tok").write_bytes(f"{SCALE}\n{GATHER}\n\n".encode() + b"\xff\n")
    (tmp_path / "cuda.para.test.tok").write_text(f"{CUDA}\n" * 4)
    (tmp_path / "cpp.mono.train.tok").write_text(f"{SCALE}\n")
    assert loader_for(tmp_path).name == "coderosetta"
    loaded = loader_named("coderosetta").load(tmp_path)
    assert [(task.name, task.origin) for task in loaded.tasks] == [("f0000_scale", "cpp.para.test.tok, row 0")]
    assert "\nA = 0.75\n" in loaded.tasks[0].source
    assert [item.reason for item in loaded.not_loaded] == [
        REASON,
        "it has no text in column 'cpp'",
        "the row is not UTF-8 text",
    ]


def test_files_of_coderosetta_without_a_plain_counterpart_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cpp.para.test.tok"
    path.write_text(f"{SCALE}\n")
    other = tmp_path / "cuda.para.test.tok"
    with pytest.raises(UsageError, match=r"no counterpart: there is no file cuda\.para\.test\.tok"):
        loader_named("coderosetta").load(path)
    other.symlink_to(path)
    with pytest.raises(UsageError, match="holds no pairs of CodeRosetta"):
        loader_named("coderosetta").load(tmp_path)
    other.unlink()
    other.write_text(f"{CUDA}\n" * 2)
    with pytest.raises(UsageError, match="different numbers of lines"):
        loader_named("coderosetta").load(tmp_path)
    other.write_text("x" * (5 << 20))
    (item,) = loader_named("coderosetta").load(tmp_path).not_loaded
    assert item.reason == "the row has more than 4,194,304 bytes; the file is read no further"
