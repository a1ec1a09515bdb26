"""Every fault does to a reference what it says, and nothing else."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch

from kernelforge.evaluation.audit.injection import MutationNotApplicable
from kernelforge.evaluation.audit.mutants import FAULTS, Mutant, select_evenly
from kernelforge.evaluation.audit.runner import MutationAudit, Trial
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.records import TaskPolicy
from tests.evaluation.oracle_tasks import make_task

ROOT = Path(__file__).parents[3]

GRAPHS = {
    "tail": ("a * 2", "torch.randn(9, 5)"),
    "last-element": ("a * 2", "torch.randn(9, 5)"),
    "block": ("a * 2", "torch.randn(9, 100)"),
    "stale": ("a * 2", "torch.randn(9, 5)"),
    "row": ("a * 2", "torch.randn(9, 5)"),
    "column-major": ("a * 2", "torch.randn(9, 5)"),
    "one-of-several": ("a * 2, a * 3", "torch.randn(9, 5)"),
    "dtype": ("a * 2", "torch.randn(9, 5)"),
    "narrow-store": ("a * 2", "torch.randn(9, 5)"),
    "off-by-one": ("a.argmax(1)", "torch.randn(9, 5)"),
    "misread-input": ("a * 2", "torch.randn(9, 5)"),
    "ignored-input": ("a + b", "torch.randn(9, 5), torch.randn(9, 5)"),
    "misread-weight": ("self.f(a)", "torch.randn(9, 5)", "self.f = nn.Linear(5, 4)"),
    "dropped-weight": ("self.f(a)", "torch.randn(9, 5)", "self.f = nn.Linear(5, 4)"),
    "initial-weight": ("self.f(a)", "torch.randn(9, 5)", "self.f = nn.LayerNorm(5)"),
    "removed": ("a.exp()", "torch.randn(9, 5)"),
    "dropped-operand": ("a + b", "torch.randn(9, 5), torch.randn(9, 5)"),
    "swapped-operands": ("a - b", "torch.randn(9, 5), torch.randn(9, 5)"),
    "replaced": ("F.gelu(a)", "torch.randn(9, 5)"),
    "flag": ("F.avg_pool2d(a, 3, 1, 1)", "torch.randn(2, 2, 6, 6)"),
    "biased": ("a.var(1)", "torch.randn(9, 5)"),
    "eps": ("F.layer_norm(a, (5,), eps=1e-5)", "torch.randn(9, 5)"),
    "constant": ("a * 0.7", "torch.randn(9, 5)"),
    "no-max": ("torch.softmax(a, 1)", "200 * torch.randn(9, 5)"),
    "diagonal": ("a.tril()", "torch.randn(6, 6)"),
    "axis": ("a.cumsum(1)", "torch.randn(9, 5)"),
    "shifted": ("a[:, 1:4] * 2", "torch.randn(9, 5)"),
    "padding": ("F.conv2d(a, b, padding=1)", "torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)"),
    "step": ("F.conv2d(a, b, stride=2)", "torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)"),
    "lost-terms": ("a.sum(1)", "torch.randn(9, 37)"),
    "lost-carry": ("a.cumsum(1)", "torch.randn(9, 37)"),
    "lost-candidate": ("a.topk(2)[0]", "torch.tensor([[1.0, 2.0, 3.0]]).repeat(4, 1) * torch.rand(4, 1)"),
    "lost-update": ("a.scatter_add(0, b, a)", "torch.randn(9), torch.randint(0, 9, (9,))"),
    "rounded-operands": ("a @ b", "torch.randn(9, 5), torch.randn(5, 7)"),
    "narrow-accumulator": ("a @ b", "torch.randn(9, 5), torch.randn(5, 7)"),
}
"""For each fault a reference that can have it."""


@cache
def examined(forward: str, inputs: str, init: str = "pass", **policy: str) -> tuple[dict[str, Mutant], Trial]:
    """Every mutant of a small reference by name, and a set of inputs to run them on."""
    task = make_task(forward, inputs, init=init, policy=TaskPolicy.model_validate(policy))
    examination = MutationAudit(ReferenceRunner(task))
    _, trial = examination._trial("small", "task", 0)
    return {mutant.name: mutant for mutant in examination._mutants()}, trial


def test_every_fault_has_a_reference_here() -> None:
    assert GRAPHS.keys() == FAULTS.keys()


@pytest.mark.parametrize("fault", GRAPHS)
def test_a_fault_changes_the_answer_and_keeps_its_shape(fault: str) -> None:
    mutants, trial = examined(*GRAPHS[fault])
    changed = 0
    for mutant in (possible for possible in mutants.values() if possible.fault.name == fault):
        try:
            outputs = trial.run(mutant)
        except MutationNotApplicable:
            continue
        assert [possible.shape for possible in outputs] == [possible.shape for possible in trial.outputs]
        pairs = zip(outputs, trial.outputs, strict=True)
        changed += any(a.dtype != b.dtype or not torch.equal(a, b) for a, b in pairs)
    assert changed


def test_the_page_lists_every_fault_with_its_bug() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", (ROOT / "docs" / "audit.md").read_text(), re.M)
    assert rows == [(fault.name, fault.stands_for) for fault in FAULTS.values()]


def test_a_lost_term_is_the_last_one() -> None:
    mutants, trial = examined("a.sum(1)", "torch.randn(9, 37)")
    (x,) = trial.inputs
    assert isinstance(x, torch.Tensor)
    (last,) = trial.run(mutants["lost-terms:last@sum"])
    (tail,) = trial.run(mutants["lost-terms:tail-32@sum"])
    assert torch.equal(last, x[:, :36].sum(1))
    assert torch.equal(tail, x[:, :32].sum(1))
    with pytest.raises(MutationNotApplicable):
        trial.run(mutants["lost-terms:past-1024@sum"])


def test_a_tail_changes_the_last_elements_alone() -> None:
    mutants, trial = examined("a * 2", "torch.randn(9, 5)")
    (output,) = trial.run(mutants["tail:32-zeros@output0"])
    assert torch.equal(output.reshape(-1)[:32], trial.outputs[0].reshape(-1)[:32])
    assert not output.reshape(-1)[32:].any()


def test_operands_are_rounded_to_ten_bits_for_tf32() -> None:
    mutants, trial = examined("a @ b", "torch.randn(9, 5), torch.randn(5, 7)")
    rounded = [value.clone() for value in trial.inputs if isinstance(value, torch.Tensor)]
    for value in rounded:
        mantissa, exponent = torch.frexp(value)
        value.copy_(torch.ldexp((mantissa * 2**11).round() / 2**11, exponent))
    (output,) = trial.run(mutants["rounded-operands:tf32@mm"])
    assert torch.equal(output, rounded[0] @ rounded[1])


def test_what_the_outputs_cannot_show_is_no_fault() -> None:
    half = "torch.randn(9, 5), torch.randn(5, 7)"
    assert not [name for name in examined("(a @ b).half()", half)[0] if "tf32" in name or "operands:f16" in name]
    assert "narrow-accumulator:f16@mm" not in examined("a @ b", half, accumulator="float16")[0]


def test_faults_are_put_inside_composite_operators() -> None:
    mutants, trial = examined("F.layer_norm(a, (5,), eps=1e-5)", "torch.randn(9, 5)")
    (x,) = trial.inputs
    assert isinstance(x, torch.Tensor)
    (output,) = trial.run(mutants["biased@native_layer_norm/var_mean"])
    wrong = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(output, wrong)


LOOP = "sum((self.step(a, i) for i in range(4)), a)"
STEP = "self.step = lambda a, i: torch.tanh(a * (i + 0.5))"


def test_a_place_in_a_loop_is_one_place() -> None:
    mutants, trial = examined(LOOP, "torch.randn(9, 5)", STEP)
    assert "removed@tanh" in mutants
    assert "removed@tanh.1" not in mutants
    (x,) = trial.inputs
    assert isinstance(x, torch.Tensor)
    (output,) = trial.run(mutants["removed@tanh"])
    torch.testing.assert_close(output, x + sum(x * (i + 0.5) for i in range(4)))


def test_layers_of_one_kind_are_places_of_their_own() -> None:
    init = "self.f = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh())"
    mutants, _ = examined("self.f(a)", "torch.randn(9, 5)", init)
    assert {"removed@tanh", "removed@tanh.1"} <= mutants.keys()
    assert "removed@tanh.2" not in mutants


def test_a_call_whose_result_reaches_no_output_is_no_place() -> None:
    """A batch norm in training also updates its running statistics, which nothing reads."""
    mutants, _ = examined("(a.exp(), self.n(a))[1]", "torch.randn(9, 5)", "self.n = nn.BatchNorm1d(5, eps=1e-5)")
    assert not [name for name in mutants if "@exp" in name or "copy_" in name]
    assert "eps:x10@native_batch_norm" in mutants


def test_the_choice_takes_each_fault_in_turn_and_is_always_the_same() -> None:
    mutants, _ = examined("torch.softmax(self.f(a), 1)", "torch.randn(9, 5)", "self.f = nn.Linear(5, 4)")
    kinds = {mutant.fault.name for mutant in mutants.values()}
    picked = select_evenly(list(mutants.values()), len(kinds))
    assert {mutant.fault.name for mutant in picked} == kinds
    repeated = select_evenly(list(reversed(mutants.values())), len(kinds))
    assert [mutant.name for mutant in repeated] == [mutant.name for mutant in picked]
