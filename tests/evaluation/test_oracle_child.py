"""The oracle in its jail: the parent's client, end to end."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from kernelforge.errors import ChildDied, SandboxError, TaskError, UsageError
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.oracle.task_context import shape_invariants
from kernelforge.evaluation.suite_checks import check_suite
from kernelforge.records import DType, TaskPolicy
from kernelforge.sandbox import Channel, Frame, Zygote
from tests.evaluation.oracle_tasks import make_task
from tests.support.shipped_prompts import shipped

CORE = shipped("core")


@pytest.mark.slow
def test_the_parent_never_imports_torch() -> None:
    modules = "kernelforge.evaluation.oracle.client, kernelforge.evaluation.suite_checks"
    code = f"import sys; import {modules}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_a_draw_gives_bytes_and_a_check_compares_them(zygote: Zygote) -> None:
    with Oracle(zygote, CORE.task("transpose")) as oracle:
        (facts,) = oracle.facts(["small"]).sizes
        (rows, columns) = facts.inputs[0].shape  # type: ignore[union-attr]
        draw = oracle.draw("small", "task", 2**63 + 5)
        data = draw.tensors[0]
        assert len(data) == rows * columns * 4
        flipped = b"".join(data[4 * (row * columns + column) :][:4] for column in range(columns) for row in range(rows))
        shape, dtype = facts.outputs[0].shape, facts.outputs[0].dtype
        assert oracle.check(draw.handle, [flipped], [shape], [dtype]).ok
        wrong = oracle.check(draw.handle, [data], [shape], [dtype])
        assert not wrong.ok
        assert "elements differ" in wrong.message
        oracle.release(draw.handle)
        with pytest.raises(UsageError, match="released"):
            oracle.check(draw.handle, [flipped], [shape], [dtype])


def test_weights_come_with_their_aliases_and_scalars_apart(zygote: Zygote) -> None:
    task = make_task(
        "self.f(self.e(a)) * b",
        "torch.randint(0, 5, (3,)), 2.5 if torch.is_tensor else 0",
        init="self.e = nn.Embedding(5, 4); self.f = nn.Linear(4, 5, bias=False); self.f.weight = self.e.weight",
    )
    with Oracle(zygote, task) as oracle:
        draw = oracle.draw("small", "task", 1)
        assert draw.weights["e.weight"] == draw.weights["f.weight"]
        assert draw.scalars == {1: 2.5}
        assert list(draw.tensors) == [0]


def test_inputs_alone_can_be_drawn_and_not_checked(zygote: Zygote) -> None:
    with Oracle(zygote, CORE.task("gelu")) as oracle:
        draw = oracle.draw("small", "task", 1, expected=False)
        with pytest.raises(TaskError, match="without expected outputs"):
            oracle.check(draw.handle, [draw.tensors[0]], [(64, 256)], [DType.FLOAT32])


@pytest.mark.slow
def test_the_graph_and_the_families_cross_the_boundary(zygote: Zygote) -> None:
    with Oracle(zygote, CORE.task("softmax")) as oracle:
        assert oracle.trace().nodes[1].op == "aten.softmax.int"
        assert oracle.families("small")[0] == "task"
        assert oracle.families("full")[0] == "task"


def test_a_bad_reference_is_a_task_error_with_its_reason(zygote: Zygote) -> None:
    with pytest.raises(TaskError, match=r"task 't': module 'd'.*active"):
        Oracle(zygote, make_task("self.d(a)", "torch.randn(4)", init="self.d = nn.Dropout(0.5)"))


@pytest.mark.parametrize("size", ["huge", "hidden_other"])
def test_an_unknown_size_is_refused(zygote: Zygote, size: str) -> None:
    with Oracle(zygote, CORE.task("gelu")) as oracle, pytest.raises(UsageError, match=f"no size '{size}'"):
        oracle.draw(size, "task", 1)


def test_an_unknown_family_is_refused(zygote: Zygote) -> None:
    with Oracle(zygote, CORE.task("gelu")) as oracle, pytest.raises(TaskError, match="'odd' is not admitted"):
        oracle.draw("small", "odd", 1)


@pytest.mark.slow
def test_a_reference_that_kills_its_process_ends_only_the_child(zygote: Zygote) -> None:
    with pytest.raises(ChildDied):
        Oracle(zygote, make_task("a", "torch.randn(4)", head="import os; os._exit(3)"))
    with Oracle(zygote, CORE.task("gelu")) as oracle:
        assert oracle.families("small")


@pytest.mark.slow
def test_a_child_that_dies_is_replaced_at_the_next_request(zygote: Zygote) -> None:
    task = make_task("a * 2", "torch.randn(4)", head="import os").model_copy(update={"suite": "fragile"})
    source = task.source.replace("return [torch.randn(4)]", "return [torch.randn(4)] if N else os._exit(3)")
    sizes = (*task.sizes, task.sizes[1].model_copy(update={"name": "hidden_deadly", "constants": {"N": 0}}))
    task = task.model_copy(update={"source": "N = 1\n" + source, "sizes": sizes})
    with Oracle(zygote, task) as oracle:
        first = oracle.draw("small", "task", 1)
        with pytest.raises(ChildDied):
            oracle.draw("hidden_deadly", "task", 1)
        second = oracle.draw("small", "task", 1)
        assert second.tensors == first.tensors
        assert second.handle != first.handle
        with pytest.raises(UsageError, match="no draw"):
            oracle.check(first.handle, [first.tensors[0]], [(4,)], [DType.FLOAT32])


@pytest.mark.slow
def test_after_ctrl_c_the_next_answer_is_that_of_the_next_question(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(channel: Channel, *, timeout_s: float | None = None) -> Frame:
        raise KeyboardInterrupt

    with Oracle(zygote, CORE.task("gelu")) as oracle:
        first = oracle.draw("small", "task", 1)
        with monkeypatch.context() as patch:
            patch.setattr(Channel, "receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                oracle.draw("small", "task", 2)
            oracle.release(first.handle)
        assert oracle.draw("small", "task", 1).tensors == first.tensors
        assert oracle.draw("small", "task", 2).tensors != first.tensors


def test_a_task_file_reads_no_secret_and_opens_no_socket(zygote: Zygote) -> None:
    for head in ("open('/etc/passwd').read()", "import socket; socket.create_connection(('127.0.0.1', 9))"):
        with pytest.raises((TaskError, SandboxError)):
            Oracle(zygote, make_task("a", "torch.randn(4)", head=head))


def test_a_closed_oracle_says_so(zygote: Zygote) -> None:
    oracle = Oracle(zygote, CORE.task("gelu"))
    oracle.close()
    oracle.close()
    with pytest.raises(SandboxError, match="closed"):
        oracle.families("small")


@pytest.mark.slow
def test_core_admits_every_task(zygote: Zygote) -> None:
    for report in check_suite(CORE, lambda task: Oracle(zygote, task), sizes=["small", "hidden_tiny"]):
        assert report.ok, (report.error, [finding for finding in report.findings if not finding.ok])
        assert {finding.family for finding in report.findings if finding.admitted} >= {"task", "normal", "edge"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "inputs", "answer"),
    [
        ("a.clone()", "torch.rand(8, 8)", "input 0 returned"),
        ("a.mean(0) * 1e-9 + 1.0", "torch.randn(8, 8)", "a constant"),
        ("torch.softmax(a, 1).sum(1, keepdim=True)", "torch.randn(8, 8)", "one batch row repeated"),
        ("a * 0", "torch.randn(8, 8)", "zeros"),
    ],
)
def test_a_task_that_a_trivial_answer_solves_is_not_admitted(
    zygote: Zygote, forward: str, inputs: str, answer: str
) -> None:
    (report,) = check_suite([make_task(forward, inputs)], lambda task: Oracle(zygote, task), sizes=["small"])
    assert not report.ok
    assert any(answer in finding.text for finding in report.findings if not finding.ok)


def test_a_task_that_does_not_run_is_a_failed_report(zygote: Zygote) -> None:
    (report,) = check_suite([make_task("a @ a", "torch.randn(2, 3)")], lambda task: Oracle(zygote, task))
    assert not report.ok
    assert "Model.forward failed" in report.error


@pytest.mark.slow
def test_later_answers_may_take_longer_once_a_reference_has_ended(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[str, Any, float]] = []
    call = Oracle._call

    def noted(self: Oracle, data: dict[str, Any], *rest: Any) -> Any:
        waits.append((data["op"], data.get("sizes"), self.reply_s))
        return call(self, data, *rest)

    monkeypatch.setattr(Oracle, "_call", noted)
    task = make_task("torch.softmax(a, 1)", "torch.randn(8, 8)")
    (report,) = check_suite([task], lambda task: Oracle(zygote, task, reply_s=60.0), then_s=600.0)
    assert report.ok
    names = [size.name for size in task.sizes if size.name != "small"]
    later = [("facts", [name], 600.0) for name in names] + [("trace", None, 600.0)]
    later += [("admit", [name], 600.0) for name in ("small", *names) if name != "full"]
    assert waits == [("facts", ["small"], 60.0), *later]


@pytest.mark.slow
def test_shared_facts_name_no_hidden_extent(zygote: Zygote) -> None:
    task = CORE.task("conv2d")
    with Oracle(zygote, task) as oracle:
        shared = shape_invariants(task, oracle.facts())
    assert shared["w['conv.weight'].shape[2]"] == "3 at every size"
    assert shared["w['conv.weight'].shape[1]"] == "equal to x.shape[1] at every size"
    assert shared["x.shape[3]"] == "varies; a multiple of 4 at some sizes only"
    text = " ".join(shared.values())
    for size in task.sizes:
        if size.is_hidden:
            assert not any(f" {value} " in f" {text} " for value in size.constants.values() if value > 4)


def test_ties_cross_the_boundary(zygote: Zygote) -> None:
    task = make_task("torch.argmax(a, 1)", "torch.zeros(4, 8)", policy=TaskPolicy(ties=(0,)))
    with Oracle(zygote, task) as oracle:
        draw = oracle.draw("small", "task", 1)
        fives = b"".join((5).to_bytes(8, "little") for _ in range(4))
        assert oracle.check(draw.handle, [fives], [(4,)], [DType.INT64]).ok
