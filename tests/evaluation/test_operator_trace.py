"""The operators that the oracle's process records of a reference."""

from __future__ import annotations

import pytest

from kernelforge.errors import SandboxError
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.oracle.worker.operator_trace import operators_at
from kernelforge.evaluation.oracle.worker.reference import Reference
from kernelforge.prediction import Operator
from kernelforge.sandbox import Zygote
from tests.evaluation.oracle_tasks import make_task
from tests.support.shipped_prompts import shipped


def traced(forward: str, inputs: str, init: str = "pass") -> tuple[Operator, ...]:
    task = make_task(forward, inputs, init=init)
    return operators_at(Reference(task.source, {}), "full", ()).operators


def test_a_trace_crosses_the_boundary(zygote: Zygote) -> None:
    with Oracle(zygote, shipped("core").task("swish")) as oracle:
        first, second = oracle.operators("small").operators
    assert (first.name, first.kind) == ("sigmoid", "pointwise")
    assert [operand.producer for operand in second.reads] == [None, 0]
    assert second.read_bytes == 2 * first.read_bytes


def test_a_trace_of_another_size_is_refused(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    with Oracle(zygote, shipped("core").task("gelu")) as oracle:
        frame = oracle._call({"op": "operators", "size": "small", "run": True})
        monkeypatch.setattr(oracle, "_call", lambda request: frame)
        with pytest.raises(SandboxError, match="another size"):
            oracle.operators("full")


def test_products_have_their_extents_and_views_are_left_out() -> None:
    (operator,) = traced("(a @ b.T).reshape(-1)", "torch.randn(4, 5), torch.randn(6, 5)")
    assert (operator.kind, operator.flops) == ("matmul", 2 * 4 * 5 * 6)
    assert operator.geometry == {"batch": 1, "m": 4, "n": 6, "k": 5}
    assert operator.write_bytes == 4 * 4 * 6


@pytest.mark.parametrize(
    ("init", "shape", "kind", "flops"),
    [
        ("nn.Conv2d(4, 8, 3, padding=1)", (2, 4, 6, 6), "conv2d", 2 * 2 * 8 * 36 * 4 * 9),
        ("nn.Conv1d(4, 8, 3, groups=2)", (2, 4, 6), "grouped_conv", 2 * 2 * 8 * 4 * 2 * 3),
        ("nn.Conv2d(4, 4, 3, groups=4)", (2, 4, 6, 6), "depthwise", 2 * 2 * 4 * 16 * 9),
        ("nn.ConvTranspose3d(4, 8, 2)", (1, 4, 3, 3, 3), "conv_transpose3d", 2 * 4 * 27 * 8 * 8),
    ],
)
def test_convolutions_have_their_kind_and_operations(init: str, shape: tuple[int, ...], kind: str, flops: int) -> None:
    (operator,) = traced("self.c(a)", f"torch.randn{shape}", init=f"self.c = {init}")
    assert (operator.kind, operator.flops) == (kind, flops)


@pytest.mark.parametrize(
    ("forward", "kind", "rows"),
    [
        ("torch.softmax(a, 1)", "softmax", (32, 5, 8)),
        ("a.sum(-1)", "reduction", (20, 8, 1)),
        ("a.argmax(0)", "argreduce", (40, 4, 40)),
        ("a.cumsum(2)", "scan", (20, 8, 1)),
    ],
)
def test_rows_are_named_by_number_length_and_distance(forward: str, kind: str, rows: tuple[int, int, int]) -> None:
    (operator,) = traced(forward, "torch.randn(4, 5, 8)")
    assert operator.kind == kind
    assert tuple(operator.geometry[name] for name in ("outer", "length", "inner")) == rows


def test_recurrent_networks_and_attention_are_one_call_each() -> None:
    *_, lstm = traced("self.r(a)[0]", "torch.randn(7, 2, 4)", init="self.r = nn.LSTM(4, 6)")
    assert (lstm.kind, lstm.geometry["steps"], lstm.geometry["gates"]) == ("recurrent", 7, 4)
    assert lstm.flops == 2 * 2 * 7 * (24 * 4 + 24 * 6)
    (attention,) = traced("F.scaled_dot_product_attention(a, a, a, is_causal=True)", "torch.randn(2, 3, 8, 4)")
    assert (attention.kind, attention.geometry["causal"]) == ("attention", 1)
    assert attention.flops == 4 * 6 * 8 * 8 * 4


def test_an_expanded_operand_is_read_once_and_a_transposed_copy_is_marked() -> None:
    (add,) = traced("a + b", "torch.randn(16, 8), torch.randn(8)")
    assert [operand.bytes for operand in add.reads] == [512, 32]
    (copy,) = traced("a.T.contiguous()", "torch.randn(16, 8)")
    assert (copy.kind, copy.geometry["strided"]) == ("copy", 1)


def test_a_lookup_reads_what_it_gives_and_not_its_table() -> None:
    (operator,) = traced("self.e(a)", "torch.randint(0, 9, (3,))", init="self.e = nn.Embedding(1000, 4)")
    assert operator.kind == "gather"
    assert operator.read_bytes <= 48 + 24
