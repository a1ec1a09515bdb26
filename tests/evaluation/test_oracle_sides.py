"""Baselines through the jail: what the parent asks, and what it makes of a child that lies."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from kernelforge.errors import BaselineError, ChildDied, ChildTimeout, SandboxError, TaskError, UsageError
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.oracle.remote_baseline import RemoteBaseline
from kernelforge.evaluation.stages.candidate_runs import EvaluationState
from kernelforge.evaluation.stages.compile_stage import StageFailed
from kernelforge.evaluation.timing import SamplePlan, candidate_timer
from kernelforge.evaluation.timing.candidate_timer import MOST_LOST, CandidateTimer, _Baseline, _OracleRestarted, _Sets
from kernelforge.records import DType, MeasureSettings, TaskPolicy, TensorSpec, Verdict
from kernelforge.sandbox import Zygote
from kernelforge.sandbox.channel import Frame
from tests.evaluation.oracle_tasks import make_task
from tests.support.factories import sum_facts
from tests.support.shipped_prompts import shipped

SOFTMAX = shipped("core").task("softmax")


def test_a_baseline_is_timed_in_the_oracles_process(zygote: Zygote) -> None:
    with Oracle(zygote, SOFTMAX) as oracle:
        assert oracle.baselines("small")[0] == "eager"
        handles = [oracle.draw("small", "task", seed).handle for seed in (1, 2)]
        side = oracle.arm("eager", handles, flush_bytes=1 << 16, flush_each=True)
        for handle in handles:
            oracle.release(handle)
        assert (side.name, side.captured, side.note) == ("eager", False, "")
        assert len(side.block(5)) == 5
        assert all(time > 0 for time in side.block(2, gaps_us=[10.0, 0.0]))
        assert all(time > 0 for time in side.flush_block(3))
        side.close()
        side.close()
        with pytest.raises(BaselineError, match="closed"):
            side.block(1)


def test_two_baselines_of_one_draw_are_told_apart(zygote: Zygote) -> None:
    with Oracle(zygote, SOFTMAX) as oracle:
        draw = oracle.draw("small", "task", 1)
        first, second = (oracle.arm("eager", [draw.handle], flush_bytes=flush) for flush in (0, 4096))
        assert first.flush_block(1) == (0.0,)
        assert second.flush_block(1)[0] > 0
        first.close()
        assert len(second.block(1)) == 1


@pytest.mark.slow
def test_without_a_compiler_in_the_jail_the_compiled_baseline_is_a_note(zygote: Zygote) -> None:
    with Oracle(zygote, SOFTMAX) as oracle:
        draw = oracle.draw("small", "task", 1)
        with pytest.raises(BaselineError, match=r"task 'softmax': InductorError: .*(not permitted|compiler)"):
            oracle.arm("compile", [draw.handle])
        assert len(oracle.arm("eager", [draw.handle]).block(1)) == 1


def test_a_baseline_needs_draws_that_are_there(zygote: Zygote) -> None:
    with Oracle(zygote, SOFTMAX) as oracle:
        draw = oracle.draw("small", "task", 1)
        oracle.release(draw.handle)
        with pytest.raises(UsageError, match="no draw"):
            oracle.arm("eager", [draw.handle])


@pytest.mark.slow
def test_a_baseline_that_ends_the_process_is_not_tried_again(zygote: Zygote) -> None:
    head = "import os\nCALLS = [0]\ndef once(x):\n    CALLS[0] += 1\n    return x if CALLS[0] < 100 else os._exit(3)"
    task = make_task("once(a) * 2", "torch.randn(4)", head=head)
    with Oracle(zygote, task) as oracle:
        draw = oracle.draw("small", "task", 1)

        def arm_until_it_dies() -> None:
            for _ in range(100):
                oracle.arm("eager", [draw.handle]).close()

        with pytest.raises(ChildDied):
            arm_until_it_dies()
        assert "eager" not in oracle.baselines("small")
        with pytest.raises(BaselineError, match="ended the oracle's process"):
            oracle.arm("eager", [draw.handle])


@pytest.mark.slow
def test_a_side_whose_child_is_gone_closes_in_peace(zygote: Zygote) -> None:
    task = make_task("a * 2", "torch.randn(4)", head="import os")
    source = task.source.replace("return [torch.randn(4)]", "return [torch.randn(4)] if N else os._exit(3)")
    sizes = (*task.sizes, task.sizes[1].model_copy(update={"name": "hidden_deadly", "constants": {"N": 0}}))
    task = task.model_copy(update={"source": "N = 1\n" + source, "sizes": sizes})
    with Oracle(zygote, task) as oracle:
        side = oracle.arm("eager", [oracle.draw("small", "task", 1).handle])
        with pytest.raises(ChildDied):
            oracle.draw("hidden_deadly", "task", 1)
        side.close()
        other = oracle.arm("eager", [oracle.draw("small", "task", 1).handle])
        assert len(other.block(1)) == 1


def test_memory_is_told_in_bytes(zygote: Zygote) -> None:
    with Oracle(zygote, SOFTMAX) as oracle:
        assert oracle.memory() > 1 << 20


@pytest.mark.parametrize("device", ["tpu:0", "meta", "cuda:first"])
def test_a_device_that_a_reference_cannot_run_on_is_a_task_error(zygote: Zygote, device: str) -> None:
    with pytest.raises(TaskError, match=r"runs on cpu or on cuda:N, not on"):
        Oracle(zygote, SOFTMAX, device=device)


def test_a_gpu_that_is_not_there_is_named(zygote: Zygote) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU, though not in this jail")
    with pytest.raises(TaskError, match="cannot use 'cuda:0'"):
        Oracle(zygote, SOFTMAX, device="cuda:0")


@pytest.mark.parametrize(
    "times",
    [[1.0], [1.0, 0.0], [1.0, -2.0], [1.0, float("nan")], [1.0, float("inf")], [1.0, 2.0, 3.0]],
)
def test_times_that_are_none_are_not_believed(times: list[float]) -> None:
    side = RemoteBaseline("eager", False, "", 1, lambda request: {"times_us": times})
    with pytest.raises(SandboxError, match="times that are none"):
        side.block(2)


def _reply(reply: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    return reply


QUEUE = {"origin": "measured", "kernels": 3, "tklqt_us": 64.0, "launch_us": 18.0, "host_us": 64.0, "gpu_us": 48.0}


def test_launches_are_traced_on_a_gpu_alone(zygote: Zygote) -> None:
    with Oracle(zygote, SOFTMAX) as oracle:
        side = oracle.arm("eager", [oracle.draw("small", "task", 1).handle])
        with pytest.raises(BaselineError, match="what a host launches on a GPU"):
            side.launches()
        assert len(side.block(1)) == 1


@pytest.mark.parametrize("change", [{"origin": "predicted"}, {"kernels": 0}, {"launch_us": 65.0}, {"tklqt_us": -1.0}])
def test_launches_that_are_none_are_not_believed(change: dict[str, Any]) -> None:
    assert RemoteBaseline("eager", False, "", 1, lambda request: {"launches": QUEUE}).launches().bound == "CPU"
    replies: list[dict[str, Any]] = [{"launches": QUEUE | change}, {}]
    for reply in replies:
        side = RemoteBaseline("eager", False, "", 1, partial(_reply, reply))
        with pytest.raises(SandboxError, match="launches that"):
            side.launches()


def test_gaps_are_one_per_sample_or_none() -> None:
    requests: list[dict[str, Any]] = []

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        requests.append(request)
        return {"times_us": [1.0] * requests[0]["samples"]}

    side = RemoteBaseline("eager", True, "", 1, ask)
    for gaps in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="one gap before each"):
            side.block(2, gaps_us=gaps)
    with pytest.raises(ValueError, match="0 samples"):
        side.block(0)
    assert not requests
    assert side.block(2, gaps_us=[3.0, 4.0]) == (1.0, 1.0)
    assert requests[0]["gaps_us"] == [3.0, 4.0]


@pytest.mark.gpu
@pytest.mark.parametrize("task", ["softmax", "matmul"])
def test_every_baseline_is_armed_in_the_jail_of_a_gpu(task: str) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    with Zygote("gpu-oracle") as zygote, Oracle(zygote, shipped("core").task(task), device="cuda:0") as oracle:
        handles = [oracle.draw("full", "task", seed).handle for seed in (1, 2)]
        names = oracle.baselines()
        assert ("cublaslt-autotuned" in names) == (task == "matmul")
        for name in names:
            side = oracle.arm(name, handles, flush_bytes=1 << 20)
            assert side.captured == (name not in ("eager", "eager-synchronised")), (name, side.note)
            assert all(time > 0 for time in side.block(3))
            side.close()
        assert oracle.memory() > 1 << 30


class Scripted:
    """A zygote whose only child answers by a script, and dies when asked for more."""

    def __init__(self, *replies: dict[str, Any]) -> None:
        self.replies = list(replies)
        self.spawned = 0

    def spawn(self, limits: object = None) -> Scripted:
        self.spawned += 1
        return self

    def call(self, data: dict[str, Any], blobs: object = (), *, timeout_s: float | None = None) -> Frame:
        if data["op"] == "load":
            return Frame({"ok": True})
        if not self.replies:
            raise ChildDied("the child is gone")
        return Frame(self.replies.pop(0))

    def close(self) -> None:
        pass


def test_a_child_whose_gpu_context_is_spoilt_is_replaced() -> None:
    spoilt = {"ok": False, "error": "TaskError", "message": "Model.forward failed: illegal address", "lost": True}
    zygote = Scripted(spoilt, {"ok": True, "free_bytes": 5})
    oracle = Oracle(zygote, SOFTMAX)
    with pytest.raises(TaskError, match="illegal address"):
        oracle.memory()
    assert oracle.memory() == 5
    assert zygote.spawned == 2


def test_a_child_that_dies_as_a_draw_is_released_changes_no_result() -> None:
    drawn = {"ok": True, "positions": [], "weights": [], "tiled": [], "aliases": {}, "scalars": {}}
    zygote = Scripted(drawn)
    oracle = Oracle(zygote, SOFTMAX)
    with pytest.raises(StageFailed) as failed, EvaluationState(seed=1).drawn(oracle, SOFTMAX.size("small"), "task"):
        raise StageFailed(Verdict.WRONG, "small", "wrong values")
    assert failed.value.verdict is Verdict.WRONG
    assert not oracle.holds_draws
    zygote.replies.append({"ok": True, "free_bytes": 5})
    assert oracle.memory() == 5


def test_an_oracle_that_ends_between_rounds_ends_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Sets, "check", lambda sets: None)
    oracle = Oracle(Scripted(), SOFTMAX)
    timer = CandidateTimer(
        device=None, oracle=oracle, facts=None, settings=MeasureSettings(), seed=1, request=None,  # type: ignore[arg-type]
    )  # fmt: skip
    sets = _Sets(timer, armed=None, draws=[])  # type: ignore[arg-type]
    sets._fresh = [DrawHandle(handle=1, size="full", family="task", tensors={}, weights={})]
    with pytest.raises(ChildDied, match="between two rounds"):
        sets.between()


def test_a_baseline_that_spoils_the_gpu_context_counts_as_one_that_ends_the_child() -> None:
    refused = {"ok": False, "error": "BaselineError", "message": "illegal address"}
    names = {"ok": True, "names": ["eager", "compile"]}
    oracle = Oracle(Scripted(refused, refused | {"lost": True}, names), SOFTMAX)
    with pytest.raises(BaselineError, match="illegal address"):
        oracle.arm("eager", [1])
    with pytest.raises(ChildDied, match="spoilt the GPU's context"):
        oracle.arm("compile", [1])
    assert oracle.baselines() == ("eager",)
    with pytest.raises(BaselineError, match="spoilt the GPU's context"):
        oracle.arm("compile", [1])


@pytest.mark.parametrize(
    "reply", [{"names": None}, {"names": 3}, {}, {"captured": 1}, {"free_bytes": "much"}, {"free_bytes": None}]
)
def test_replies_about_baselines_that_cannot_be_read_are_the_childs_failure(reply: dict[str, Any]) -> None:
    for ask in (lambda oracle: oracle.baselines(), lambda oracle: oracle.memory(), lambda oracle: oracle.arm("e", [1])):
        with pytest.raises(SandboxError):
            ask(Oracle(Scripted({"ok": True} | reply), SOFTMAX))


class Held:
    """An oracle whose baseline gives scripted answers, or takes the process with it."""

    def __init__(self, *answers: Exception | dict[str, Any]) -> None:
        self._answers = list(answers)
        self.holds_draws = True
        self.given_up: dict[str, str] = {}
        self.disarmed = 0

    def arm(self, name: str, handles: list[int], *, flush_bytes: int, flush_each: bool) -> RemoteBaseline:
        self._next()
        return RemoteBaseline(name, True, "a note", 1, self._ask)

    def give_up(self, baseline: str, reason: str) -> None:
        self.given_up[baseline] = reason

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.disarmed += request["op"] == "disarm"
        return self._next()

    def _next(self) -> dict[str, Any]:
        answer = self._answers.pop(0)
        if isinstance(answer, ChildDied | ChildTimeout):
            self.holds_draws = False
        if isinstance(answer, Exception):
            raise answer
        return answer


def baseline_of(oracle: Held) -> _Baseline:
    return _Baseline("compile", oracle, [1], SamplePlan(1, 1 << 20))  # type: ignore[arg-type]


def test_a_baseline_is_built_when_it_is_timed_and_freed_when_it_is_not() -> None:
    oracle = Held({}, {}, {"times_us": [1.0, 2.0]}, {}, {})
    side = baseline_of(oracle)
    assert not side.captured
    side.ready()
    side.ready()
    side.run(2)
    assert side.times() == (1.0, 2.0)
    assert side.captured
    assert side.note == "a note"
    side.rest()
    side.rest()
    assert oracle.disarmed == 1
    side.ready()
    assert oracle.holds_draws


@pytest.mark.parametrize(
    "failure", [TaskError("out of memory"), SandboxError("no such reply"), UsageError("not armed")]
)
def test_whatever_goes_wrong_with_a_baseline_is_its_own_failure(failure: Exception) -> None:
    for answers in ([failure], [{}, failure]):
        side = baseline_of(Held(*answers))
        with pytest.raises(BaselineError, match=str(failure)):
            side.run(1)


@pytest.mark.parametrize("death", [ChildDied("killed by signal 9"), ChildTimeout("no answer")])
def test_a_baseline_that_ends_the_oracle_while_it_is_timed_is_not_tried_again(death: Exception) -> None:
    oracle = Held({}, death)
    with pytest.raises(_OracleRestarted):
        baseline_of(oracle).run(1)
    assert oracle.given_up == {"compile": f"timing it ended the oracle's process: {death}"}
    freed = Held({}, death)
    side = baseline_of(freed)
    side.ready()
    with pytest.raises(_OracleRestarted):
        side.rest()
    last = baseline_of(Held({}, death))
    last.ready()
    last.close()  # at the end the draws are no longer needed


@pytest.mark.parametrize(
    ("answers", "note"),
    [
        (({}, {"launches": QUEUE}, {}), ""),
        (({}, BaselineError("no trace"), {}), "launches: no trace"),
        (({}, ChildDied("killed by signal 11"), {}), "launches: killed by signal 11"),
        ((ChildDied("killed by signal 9"),), "launches: "),
    ],
)
def test_a_trace_that_fails_is_a_note_and_leaves_the_baseline_alone(answers: tuple[Any, ...], note: str) -> None:
    oracle = Held(*answers)
    eager = _Baseline("eager", oracle, [1], SamplePlan(1, 1 << 20))  # type: ignore[arg-type]
    sides = [baseline_of(oracle), eager]

    def traced(requested: bool) -> Any:
        settings = MeasureSettings(launches=requested)
        timer = CandidateTimer(device=None, oracle=oracle, facts=None, settings=settings, seed=1, request=None)  # type: ignore[arg-type]
        return timer._eager_launches(sides)

    assert traced(requested=False) == (None, ())
    queue, notes = traced(requested=True)
    assert [text.startswith(note) for text in notes] == ([True] if note else [])
    assert (queue is None) == bool(note)
    assert oracle.given_up == {}


def test_a_candidate_is_timed_without_baselines_when_they_end_the_oracle_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopwatch = CandidateTimer(
        device=None, oracle=None, facts=None, settings=MeasureSettings(), seed=1, request=None,  # type: ignore[arg-type]
    )  # fmt: skip
    tried: list[str] = []

    def once(self: CandidateTimer, session: object) -> str:
        tried.append(self._without_baselines)
        if not self._without_baselines:
            raise _OracleRestarted
        return "a time"

    monkeypatch.setattr(CandidateTimer, "_once", once)
    assert stopwatch.time(None) == "a time"  # type: ignore[arg-type,comparison-overlap]
    assert len(tried) == MOST_LOST + 2
    assert "ended the oracle's process again and again" in tried[-1]


def test_an_input_in_host_memory_is_no_part_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = TensorSpec.contiguous((8, 16), DType.FLOAT32)
    facts = sum_facts(1).model_copy(update={"inputs": (rows, rows), "outputs": (rows,)})

    def timer(*host_inputs: int) -> CandidateTimer:
        task = make_task("a + b", "torch.randn(8, 16), torch.randn(8, 16)", policy=TaskPolicy(host_inputs=host_inputs))
        device = SimpleNamespace(
            l2_bytes=1 << 14, memory_bytes=1 << 30, memory_bandwidth_gbps=0.0, identity=lambda: {"gpu": "NVIDIA H200"}
        )
        fields: dict[str, Any] = {"device": device, "oracle": SimpleNamespace(task=task), "request": None}
        own = facts.model_copy(update={"host_bytes": 63_000_000 if host_inputs else 0})
        return CandidateTimer(facts=own, settings=MeasureSettings(), seed=1, **fields)

    assert (timer().set_bytes, timer(0).set_bytes) == (3 * 512, 2 * 512)
    assert (timer().shape.sets, timer(0).shape.sets) == (22, 33)
    assert (timer().floor_us, timer(0).floor_us) == (0, pytest.approx(1e3, rel=1e-3))
    # Nor may all of them together take more of the machine's memory than a part.
    monkeypatch.setattr(candidate_timer, "installed_memory_bytes", lambda: 8 * 512 * 3)
    assert (timer().shape.sets, timer(0).shape.sets, timer(0).shape.flush_each) == (22, 3, True)
