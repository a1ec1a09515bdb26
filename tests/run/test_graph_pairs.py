"""Tasks and C functions that count as equal make one pair, and a graph is looked at once."""

from __future__ import annotations

import pytest

from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Task
from kernelforge.run.graph_pairs import DroppedGraph, GraphKey, GraphPair, GraphPairs, text_hash, unlike_files
from tests.support.shipped_prompts import shipped


def task(name: str) -> Task:
    return next(item for item in shipped("core") if item.name == name)


def edited(item: Task, name: str, before: str, after: str) -> Task:
    assert before in item.source
    return item.model_copy(update={"name": name, "source": item.source.replace(before, after, 1)})


def test_files_that_differ_in_constants_alone_are_one() -> None:
    softmax, gelu = task("softmax"), task("gelu")
    assert [
        item.name for item in unlike_files([softmax, edited(softmax, "wide", "COLS = 4096", "COLS = 9"), gelu])
    ] == [
        "softmax",
        "gelu",
    ]


def test_a_c_function_is_the_same_under_another_name_and_comment() -> None:
    text = "/* softmax */\nvoid f(const float *x, float *out)\n{\n    out[0] = x[0];\n}\n"
    assert text_hash(text) == text_hash(text.replace("softmax", "other").replace("void f(", "void g("))
    assert text_hash(text) != text_hash(text.replace("x[0];", "-x[0];"))


@pytest.mark.slow
def test_equal_graphs_make_one_pair_and_done_ones_none(warm_zygotes: None) -> None:
    softmax = task("softmax")
    same = edited(softmax, "same", "import torch\n", "import math\nimport torch\n")
    with EvaluatorPool("emulated:h100") as pool:
        first, second = GraphPairs([softmax, same], pool, None, seed=0, augment=0).make()
        assert isinstance(first, GraphPair)
        assert (first.operators, first.families, first.edits) == (("softmax",), ("softmax",), ())
        assert "launch" not in first.task.c_source
        assert isinstance(second, DroppedGraph)
        assert second.stage == "repeat"
        done = {GraphKey("core/softmax", 0), GraphKey("core/same", 0)}
        assert list(GraphPairs([softmax, same], pool, None, seed=0, augment=0).make(done)) == []
