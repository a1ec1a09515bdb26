"""References as graphs, and what is counted on them."""

from __future__ import annotations

import pytest

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import Reference
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at
from kernelforge.evaluation.oracle.worker.tracing import trace_source
from kernelforge.records import Graph, SizeFacts
from tests.evaluation.oracle_tasks import make_task
from tests.support.shipped_prompts import shipped


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.kind == "op"]


def facts(forward: str, inputs: str, init: str = "pass") -> SizeFacts:
    reference = Reference(make_task(forward, inputs, init=init).source, {})
    real, fake = (facts_at(reference, "small", (), (), fake=fake) for fake in (False, True))
    assert real == fake
    return real


@pytest.mark.parametrize("task", shipped("core").tasks, ids=lambda task: task.name)
def test_core_tasks_trace_to_graphs_that_hold_together(task: object) -> None:
    graph = trace_source(task.source, {}, "full")  # type: ignore[attr-defined]
    seen: set[str] = set()

    def check(argument: object) -> None:
        if isinstance(argument, dict):
            assert argument["ref"] in seen
        elif isinstance(argument, tuple | list):
            for item in argument:
                check(item)

    for node in graph.nodes:
        check([*node.args, *node.kwargs.values()])
        seen.add(node.name)
    assert graph.nodes[-1].kind == "output"
    assert Graph.model_validate_json(graph.model_dump_json()) == graph


def test_operators_keep_their_high_level_names_and_weights_their_dotted_ones() -> None:
    task = make_task(
        "torch.softmax(F.gelu(self.f(self.n(a))), -1), F.scaled_dot_product_attention(a, a, a)",
        "torch.randn(2, 4, 8)",
        init="self.n, self.f = nn.LayerNorm(8), nn.Linear(8, 3)",
    )
    graph = trace_source(task.source, {})
    assert ops(graph) == [
        "aten.layer_norm",
        "aten.linear",
        "aten.gelu",
        "aten.softmax.int",
        "aten.scaled_dot_product_attention",
    ]
    weights = {node.op: node.spec.shape for node in graph.nodes if node.kind == "weight" and node.spec}
    assert weights == {"n.weight": (8,), "n.bias": (8,), "f.weight": (3, 8), "f.bias": (3,)}


def test_one_of_several_results_is_a_getitem() -> None:
    graph = trace_source(make_task("a.max(1)[0]", "torch.randn(4, 8)").source, {})
    assert ops(graph) == ["aten.max.dim", "getitem"]


def test_constants_reach_the_shapes() -> None:
    source = shipped("core").task("softmax").source
    graph = trace_source(source, {"ROWS": 3, "COLS": 5}, "small")
    assert graph.nodes[0].spec is not None
    assert graph.nodes[0].spec.shape == (3, 5)


def test_control_flow_on_values_is_a_clear_error() -> None:
    with pytest.raises(TaskError, match=r"depend on tensor values.*torch\.where"):
        trace_source(make_task("a if a.sum() > 0 else -a", "torch.randn(4)").source, {})


def test_compulsory_bytes_are_inputs_weights_and_outputs_once() -> None:
    assert facts("a + b", "torch.randn(8, 4), torch.randn(4)").compulsory_bytes == 4 * (32 + 4 + 32)
    assert facts("self.n(a)", "torch.randn(8, 4)", "self.n = nn.LayerNorm(4)").compulsory_bytes == 4 * (32 + 8 + 32)


def test_what_is_not_read_is_not_compulsory() -> None:
    assert facts("a[:2] + 1", "torch.randn(8, 4), torch.randn(4)").compulsory_bytes == 4 * (8 + 8)
    assert facts("a.t()[1] + 1", "torch.randn(8, 4)").compulsory_bytes == 4 * (8 + 8)
    assert facts("a.shape[0] + b", "torch.randn(8, 4), torch.randn(4)").compulsory_bytes == 4 * (4 + 4)
    assert facts("a[0] + a.sum()", "torch.randn(8, 4)").compulsory_bytes == 4 * (32 + 4)


def test_bytes_of_inputs_in_host_memory_are_counted_apart() -> None:
    task = make_task("a[b] + 1", "torch.randn(100, 4), torch.tensor([3, 99, 3])")
    of_size = facts_at(Reference(task.source, {}), "small", (), (0,), fake=False)
    assert (of_size.compulsory_bytes, of_size.host_bytes, of_size.moved_bytes) == (3 * 8 + 48, 32, 104)
    with pytest.raises(TaskError, match="host_inputs names input 2"):
        facts_at(Reference(task.source, {}), "small", (), (2,), fake=False)


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("torch.index_select(a, 0, b.to(torch.int64)) + 1", 2),
        ("nn.functional.embedding(b, a)", 2),
        ("a[b.clamp(min=1)]", 0.25),  # which rows is not known: one element
        ("a[b] + a.sum()", 100),
    ],
)
def test_rows_of_host_memory_that_repeat_count_once(expression: str, rows: float, fake: bool) -> None:
    task = make_task(expression, "torch.randn(100, 4), torch.arange(9) % 2 + 3")
    assert facts_at(Reference(task.source, {}), "small", (), (0,), fake=fake).host_bytes == rows * 16


def test_flops_of_matrix_products_and_estimates_of_the_rest() -> None:
    assert facts("a @ b", "torch.randn(4, 8), torch.randn(8, 5)").flops == 2 * 4 * 8 * 5
    assert facts("a.sum(1)", "torch.randn(4, 8)").flops == 32
    assert facts("torch.relu(a) + 1", "torch.randn(4, 8)").flops == 64
    assert facts("a.t().contiguous()", "torch.randn(4, 8)").flops == 0


def test_a_recurrent_layer_is_counted_by_its_products() -> None:
    # 4 gates of 6 units, from 5 inputs and 6 states, for 2 sequences of 3 steps; multiply and add.
    products = 2 * (4 * 6) * (5 + 6) * 2 * 3
    counted = facts("self.n(a)[0]", "torch.randn(3, 2, 5)", "self.n = nn.LSTM(5, 6)")
    assert products < counted.flops < 1.5 * products
    assert counted.eager_launches > 3 * 4


def test_eager_launches_leave_views_out() -> None:
    assert facts("(a.t().reshape(32).unsqueeze(0) * 2 + 1).sum()", "torch.randn(8, 4)").eager_launches == 4
    assert facts("a.view(-1)[:3] * 2", "torch.randn(8, 4)").eager_launches == 1
    assert facts("self.n(a)", "torch.randn(8, 4)", "self.n = nn.BatchNorm1d(4)").eager_launches == 2


def test_outputs_are_contiguous_in_the_facts() -> None:
    assert facts("a.t()", "torch.randn(8, 4)").outputs[0].is_contiguous


def test_updates_of_buffers_are_no_part_of_the_graph() -> None:
    task = make_task("self.n(a)", "torch.randn(8, 4)", init="self.n = nn.BatchNorm1d(4)")
    assert ops(trace_source(task.source, {})) == ["aten.batch_norm"]


def test_a_size_too_large_to_draw_still_has_facts() -> None:
    reference = Reference(make_task("torch.relu(a)", "torch.randn(1 << 20, 1 << 20)").source, {})
    assert facts_at(reference, "full", (), (), fake=True).compulsory_bytes == 2 * 4 << 40


def test_complex_values_inside_a_reference_have_no_spec_and_its_inputs_are_counted_in_full() -> None:
    forward, inputs = "torch.fft.irfft(torch.fft.rfft(a) * 2)", "torch.randn(4, 16)"
    specs = {node.op: node.spec for node in trace_source(make_task(forward, inputs).source, {}).nodes}
    assert specs["aten.fft_rfft"] is None
    assert specs["aten.fft_irfft"] is not None
    assert facts(forward, inputs).compulsory_bytes == 2 * 4 * 16 * 4


def test_a_number_keeps_its_place_among_the_inputs_and_says_its_value() -> None:
    graph = trace_source(make_task("a * b + c", "torch.randn(3), 0.37, torch.randn(3)").source, {})
    inputs = {node.op: node for node in graph.nodes if node.kind == "input"}
    assert list(inputs) == ["0", "1", "2"]
    assert inputs["1"].spec is None
    assert inputs["1"].args == (0.37,)
    assert inputs["2"].name == "c"
