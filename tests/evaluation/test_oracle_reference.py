"""The semantics that candidates are held to."""

from __future__ import annotations

import subprocess
import sys
import weakref

import pytest
import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import Reference, storage_span, tensor_bytes
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.oracle.worker.tracing import trace_at
from kernelforge.records import TaskPolicy
from tests.evaluation.oracle_tasks import judge, make_task, tensors


def reference(forward: str, inputs: str, init: str = "pass", head: str = "") -> Reference:
    return Reference(make_task(forward, inputs, init=init, head=head).source, {})


def test_outputs_are_flattened() -> None:
    ref = reference("{'p': a, 'q': (a + 1, [a + 2, None])}", "torch.randn(3)")
    assert len(ref.run(ref.inputs(1))) == 3


def test_buffers_are_restored_before_each_call() -> None:
    ref = reference("self.n(a)", "torch.randn(64, 4)", init="self.n = nn.BatchNorm1d(4)")
    before = {name: buffer.clone() for name, buffer in ref.weights().items()}
    ref.run(ref.inputs(1))
    assert ref.model.n.num_batches_tracked == 1
    after = ref.weights()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_weights_are_redrawn_so_that_ones_and_zeros_do_not_stay() -> None:
    ref = reference("self.n(a)", "torch.randn(4, 8)", init="self.n = nn.LayerNorm(8)")
    ref.redraw_weights(1)
    first = {name: tensor.clone() for name, tensor in ref.weights().items()}
    ref.redraw_weights(2)
    second = ref.weights()
    for name in ("n.weight", "n.bias"):
        assert first[name].unique().numel() == 8
        assert not torch.equal(first[name], second[name])
    ref.redraw_weights(1)
    assert torch.equal(ref.weights()["n.bias"], first["n.bias"])


def test_tied_weights_are_one_with_an_alias() -> None:
    ref = reference(
        "self.f(self.e(a))",
        "torch.randint(0, 5, (3,))",
        init="self.e = nn.Embedding(5, 4); self.f = nn.Linear(4, 5, bias=False); self.f.weight = self.e.weight",
    )
    (spec,) = ref.weight_specs()
    assert (spec.name, spec.aliases) == ("e.weight", ("f.weight",))


def test_plain_tensors_and_scalars_of_modules_are_found() -> None:
    ref = reference(
        "self.c(a) * self.table[0] * self.k",
        "torch.randn(1, 2, 6, 6)",
        init="self.c = nn.Conv2d(2, 2, 3, stride=2); self.table = torch.ones(4); self.k = 2.5",
    )
    kinds = {spec.name: spec.kind for spec in ref.weight_specs()}
    assert kinds == {"c.weight": "parameter", "c.bias": "parameter", "table": "attribute"}
    attributes = ref.attributes()
    assert (attributes["k"], attributes["c.stride.0"], attributes["c.kernel_size.1"]) == (2.5, 2, 3)


@pytest.mark.parametrize(
    "init", ["self.d = nn.Dropout(0.5)", "self.d = nn.LSTM(4, 4, 2, dropout=0.3)"], ids=["dropout", "lstm"]
)
def test_active_dropout_is_refused_and_named(init: str) -> None:
    with pytest.raises(TaskError, match=r"module 'd'.*active"):
        reference("self.d(a)", "torch.randn(4, 4)", init=init)


def test_dropout_in_eval_mode_is_admitted() -> None:
    ref = reference("self.d(a)", "torch.randn(4)", init="self.d = nn.Dropout(0.5); self.eval()")
    assert torch.equal(ref.run(ref.inputs(1))[0], ref.inputs(1)[0])


def test_random_numbers_in_forward_are_refused() -> None:
    with pytest.raises(TaskError, match="draws random numbers"):
        ReferenceRunner(make_task("a + torch.rand_like(a)", "torch.randn(4)")).reference("small")


def test_mutated_inputs_are_outputs_and_the_drawn_inputs_stay() -> None:
    reckoner = ReferenceRunner(make_task("a.mul_(2.0).sum()", "torch.randn(8)", policy=TaskPolicy(mutates=(0,))))
    drawn = reckoner.draw("small", "task", 1)
    x = tensors(drawn)[0]
    assert judge(reckoner, drawn, (x * 2).sum(), x * 2).ok
    assert not judge(reckoner, drawn, (x * 2).sum(), x).ok


def test_a_reference_may_return_nothing_but_what_it_changes_in_place() -> None:
    reckoner = ReferenceRunner(make_task("[a.mul_(2.0), None][1]", "torch.randn(8)", policy=TaskPolicy(mutates=(0,))))
    drawn = reckoner.draw("small", "task", 1)
    assert drawn.expected is not None
    assert torch.equal(drawn.expected[0].reference, tensors(drawn)[0] * 2)


def test_mutates_must_name_a_tensor() -> None:
    with pytest.raises(TaskError, match="mutates names input 3"):
        ReferenceRunner(make_task("a * 2", "torch.randn(8)", policy=TaskPolicy(mutates=(3,)))).draw("small", "task", 1)


def test_inputs_keep_their_strides() -> None:
    reckoner = ReferenceRunner(make_task("a * 2.0", "torch.randn(6, 4).t()"))
    for family in reckoner.scales("small"):
        (x,) = tensors(reckoner.draw("small", family, 1))
        assert x.stride() == (1, 4)
        assert storage_span(x).numel() == 24
        assert len(tensor_bytes(x)) == 96


def test_a_narrowed_input_is_sent_as_its_storage_span() -> None:
    x = torch.arange(12.0).reshape(3, 4)[:, 1:3]
    assert torch.frombuffer(bytearray(tensor_bytes(x)), dtype=torch.float32).tolist() == list(range(1, 11))


@pytest.mark.parametrize(
    ("forward", "inputs", "message"),
    [
        ("a @ a", "torch.randn(2, 3)", "Model.forward failed: RuntimeError"),
        ("'text'", "torch.randn(2)", "returned a str"),
        ("None", "torch.randn(2)", "returned no tensor"),
        ("a", "torch.randn(2), 'x'", "position 1 is a str"),
        ("a", "torch.randn(2).to_sparse()", "sparse"),
        ("a", "torch.unknown(2)", r"get_inputs\(\) failed: AttributeError"),
    ],
)
def test_a_reference_that_does_not_run_is_named(forward: str, inputs: str, message: str) -> None:
    ref = reference(forward, inputs)
    with pytest.raises(TaskError, match=message):
        ref.run(ref.inputs(1))


def test_a_task_that_casts_says_what_to_declare() -> None:
    forward = "torch.where(a > 0, a, torch.zeros_like(a, dtype=torch.float32)) @ torch.eye(4, dtype=torch.float32)"
    task = make_task(forward, "torch.randn(4, 4)")
    with pytest.raises(TaskError, match="task-precision"):
        ReferenceRunner(task).draw("small", "task", 1)
    declared = task.model_copy(update={"policy": TaskPolicy(oracle="task-precision")})
    reckoner = ReferenceRunner(declared)
    drawn = reckoner.draw("small", "task", 1)
    assert judge(reckoner, drawn, tensors(drawn)[0].clamp_min(0.0)).ok


def test_the_global_generators_are_left_alone() -> None:
    ref = reference("a", "torch.randn(4)")
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    ref.inputs(3)
    assert torch.equal(torch.rand(1), expected)


STATEFUL = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.zeros(2)
        self.scratch = torch.zeros(2)
    def forward(self, x):
        self.scratch.add_(x)
        self.hidden = torch.tanh(self.hidden + x)
        return self.hidden + self.scratch
def get_inputs():
    return [torch.rand(2)]
def get_init_inputs():
    return []
"""


def test_a_call_leaves_plain_tensors_of_modules_as_constructed() -> None:
    reference = Reference(STATEFUL, {})
    inputs = reference.inputs(1)
    first, second = (reference.run(inputs)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert {name: tensor.tolist() for name, tensor in reference.weights().items()} == {
        "hidden": [0, 0], "scratch": [0, 0],
    }  # fmt: skip
    trace_at(reference, "small")
    assert torch.equal(reference.run(inputs)[0], first)


@pytest.mark.slow
def test_large_references_of_other_sizes_are_forgotten_and_constructed_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.reference_runner._FORGOTTEN_WEIGHTS", 16)
    runner = ReferenceRunner(make_task("self.n(a)", "torch.randn(4, 8)", init="self.n = nn.Linear(8, 8)"))
    first = runner.draw("small", "task", 7)
    before = {name: tensor.clone() for name, tensor in runner.reference("small").weights().items()}
    constructed = runner.reference("small")
    runner.make_room("small")
    assert runner.reference("small") is constructed
    facts_at(constructed, "small", (), (), fake=True)
    graph = trace_at(constructed, "small")
    assert trace_at(constructed, "small") is graph
    parameter = weakref.ref(next(constructed.model.parameters()))
    del constructed
    runner.make_room("full")
    assert parameter() is None  # what is remembered of a reference does not keep its weights
    redrawn = runner.draw("small", "task", 7)
    after = runner.reference("small").weights()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert first.expected is not None
    assert redrawn.expected is not None
    assert torch.equal(first.expected[0].reference, redrawn.expected[0].reference)


@pytest.mark.slow
def test_an_outline_is_kept_where_the_reference_itself_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_FORGOTTEN_WEIGHTS", "LARGE_WEIGHTS"):
        monkeypatch.setattr(f"kernelforge.evaluation.oracle.worker.reference_runner.{limit}", 16)
    runner = ReferenceRunner(make_task("self.n(a)", "torch.randn(4, 8)", init="self.n = nn.Linear(8, 8)"))
    outline, constructed = runner.described("full"), runner.reference("full")
    assert outline.is_outline
    runner.make_room("small")
    assert runner.described("full") is outline
    assert runner.reference("full") is not constructed


FREED = """
import sys, torch
from kernelforge.evaluation.oracle.worker import main, torch_device

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

main._keep_freed_memory()
torch_device._IDLE_BYTES = 1 << 20
before = resident()
blocks = [torch.ones(1 << 20) for _ in range(64)]
last = torch.ones(1 << 20)  # above the others, so that the heap cannot shrink
del blocks
kept = resident() - before
torch_device.release_cached_memory(torch_device.HOST)
print(kept >> 20, (resident() - before) >> 20)
"""


@pytest.mark.slow
def test_much_memory_of_freed_blocks_is_given_back_on_the_host() -> None:
    answer = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True).stdout
    kept, rest = map(int, answer.split())
    assert kept > 200
    assert rest < 100
