"""Baselines in this process: the protocol on the CPU, by the host's clock and without graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from kernelforge.devices.base import SampleWork
from kernelforge.errors import BaselineError
from kernelforge.evaluation.oracle.worker.baselines import COMPILE_MODES, SYNCHRONISED, Baselines, ModelSets
from kernelforge.evaluation.oracle.worker.cublas import CUBLAS_NAMES
from kernelforge.evaluation.oracle.worker.reference import flatten_outputs
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.evaluation.oracle.worker.timed_baseline import Shape, TimedBaseline
from kernelforge.records import TaskPolicy
from tests.evaluation.oracle_tasks import make_task

LINEAR = make_task("self.fc(a)", "torch.randn(8, 16)", init="self.fc = nn.Linear(16, 4, bias=False)")


def draws_of(reckoner: ReferenceRunner, count: int, *, expected: bool = True) -> list[InputDraw]:
    return [reckoner.draw("full", "task", 100 + index, expected=expected) for index in range(count)]


def times_of(
    armed: TimedBaseline, samples: int, work: SampleWork = "sample", gaps_us: Sequence[float] = ()
) -> list[float]:
    armed.run(samples, work, gaps_us)
    return armed.times()


def test_a_sample_goes_once_through_every_set_and_its_flushes() -> None:
    reckoner = ReferenceRunner(LINEAR)
    armed = Baselines(reckoner).arm("eager", draws_of(reckoner, 3), 4096)
    visited: list[int] = []
    execute = armed.sets.execute
    armed.sets.execute = lambda position: (visited.append(position), execute(position))[1]  # type: ignore[method-assign]
    times = times_of(armed, 4)
    assert visited == [0, 1, 2] * 4
    assert len(times) == 4
    assert all(time > 0 for time in times)
    assert all(time > 0 for time in times_of(armed, 2, "overhead"))
    assert not armed.captured


class Log:
    """Sets that only say what is done to them."""

    note = ""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def execute(self, position: int) -> None:
        self.steps.append(f"execute {position}")

    def restore(self, position: int) -> None:
        self.steps.append(f"restore {position}")

    def outputs(self, position: int) -> list[torch.Tensor]:
        return []


def steps_of(monkeypatch: pytest.MonkeyPatch, shape: Shape) -> tuple[list[str], list[str]]:
    """The work of a sample, and that of its overhead, in order."""
    sets = Log()
    monkeypatch.setattr(TimedBaseline, "_flush_once", lambda armed: sets.steps.append("flush"))
    armed = TimedBaseline("eager", sets, shape, torch.device("cpu"))
    times_of(armed, 1)
    sample, sets.steps = sets.steps, []
    times_of(armed, 1, "overhead")
    return sample, sets.steps


def test_every_execution_starts_from_the_drawn_inputs_and_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    each = steps_of(monkeypatch, Shape(2, 64, flush_each=True))
    once = steps_of(monkeypatch, Shape(2, 64))
    assert each[0] == ["restore 0", "flush", "execute 0", "restore 1", "flush", "execute 1"]
    assert once[0] == ["restore 0", "restore 1", "flush", "execute 0", "execute 1"]
    for sample, overhead in (each, once):
        assert overhead == [step for step in sample if not step.startswith("execute")]
    assert steps_of(monkeypatch, Shape(1)) == (["restore 0", "execute 0"], [])


def test_an_empty_kernel_takes_the_place_of_each_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = Log()
    monkeypatch.setattr(TimedBaseline, "_flush_once", lambda armed: sets.steps.append("flush"))
    monkeypatch.setattr(TimedBaseline, "_execute_nothing", lambda armed: sets.steps.append("nothing"))
    armed = TimedBaseline("eager", sets, Shape(2, 64, flush_each=True), torch.device("cpu"))
    assert len(times_of(armed, 1, "empty")) == 1
    assert sets.steps == ["restore 0", "flush", "nothing", "restore 1", "flush", "nothing"]
    assert times_of(TimedBaseline("eager", sets, Shape(2), torch.device("cpu")), 3, "empty") == [0.0, 0.0, 0.0]


def test_a_host_that_waits_for_the_flush_hides_no_launch_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both in the sample and in its overhead, so that the wait itself is subtracted."""
    sets = Log()
    monkeypatch.setattr(torch, "sum", lambda *args, **kwargs: sets.steps.append("flush"))
    monkeypatch.setattr(
        "kernelforge.evaluation.oracle.worker.timed_baseline.synchronize", lambda device: sets.steps.append("wait")
    )
    times = []
    for shape in (Shape(2, 64, True, synchronised=True), Shape(2, 64, synchronised=True), Shape(1, 64)):
        armed = TimedBaseline("eager-synchronised", sets, shape, torch.device("cpu"))
        sets.steps = []
        armed.run(1)
        times.append(sets.steps[1:-1])  # between the waits at both ends of every block
    each = ["restore 0", "flush", "wait", "execute 0", "restore 1", "flush", "wait", "execute 1"]
    assert times == [
        each,
        ["restore 0", "restore 1", "flush", "wait", "execute 0", "execute 1"],
        ["restore 0", "flush", "execute 0"],
    ]
    armed = TimedBaseline("eager-synchronised", sets, Shape(2, 64, True, synchronised=True), torch.device("cpu"))
    sets.steps = []
    armed.run(1, "overhead")
    assert sets.steps[1:-1] == [step for step in each if not step.startswith("execute")]


def test_a_flush_reads_and_does_not_write() -> None:
    armed = TimedBaseline("eager", Log(), Shape(1, 4096), torch.device("cpu"))
    before = armed._flush._version
    times_of(armed, 2)
    assert armed._flush.nbytes == 4096
    assert armed._flush._version == before
    armed._flush[7] = 2.5
    times_of(armed, 1, "overhead")
    assert armed._sink.item() == 2.5, "all of it is read"


def test_without_a_flush_there_is_nothing_to_subtract() -> None:
    reckoner = ReferenceRunner(LINEAR)
    assert times_of(Baselines(reckoner).arm("eager", draws_of(reckoner, 1), 0), 3, "overhead") == [0.0, 0.0, 0.0]


class Clock:
    """Takes a microsecond to be read, and no time but what is slept: nothing is ever late."""

    def __init__(self) -> None:
        self.ns = 0

    def perf_counter_ns(self) -> int:
        self.ns += 1000
        return self.ns

    def perf_counter(self) -> float:
        return self.perf_counter_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


def test_idle_time_before_a_sample_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reckoner = ReferenceRunner(LINEAR)
    armed = Baselines(reckoner).arm("eager", draws_of(reckoner, 1), 0)
    clock = Clock()
    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.timed_baseline.time", clock)
    assert times_of(armed, 2, gaps_us=[20_000.0, 30_000.0]) == [1.0, 1.0]
    assert clock.ns >= 50_000_000


def test_every_set_has_the_weights_and_inputs_of_its_own_draw() -> None:
    reckoner = ReferenceRunner(LINEAR)
    draws = draws_of(reckoner, 2)
    armed = Baselines(reckoner).arm("eager", draws, 0)
    (first,), (second,) = armed.sets.outputs(0), armed.sets.outputs(1)
    assert draws[0].expected is not None
    assert draws[1].expected is not None
    assert torch.equal(first, draws[0].expected[0].reference)
    assert torch.equal(second, draws[1].expected[0].reference)
    assert not torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()


def test_a_baseline_that_is_wrong_in_one_set_only_is_refused() -> None:
    reckoner = ReferenceRunner(LINEAR)
    draws = draws_of(reckoner, 2)
    other = reckoner.draw("full", "task", 999)
    mixed = InputDraw(draws[1].size, draws[1].family, draws[1].inputs, other.expected, other.selections, draws[1].seed)
    with pytest.raises(BaselineError, match="its result is wrong: output 0"):
        Baselines(reckoner).arm("eager", [draws[0], mixed], 0)


def test_an_input_in_host_memory_is_pinned_where_the_model_runs_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("a[b]", "torch.randn(9, 4), torch.tensor([3, 8])", policy=TaskPolicy(host_inputs=(0,)))
    reckoner = ReferenceRunner(task)
    (drawn,) = draws_of(reckoner, 1)
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.clone()) or pinned[-1])
    baselines = Baselines(reckoner)
    assert baselines._placed(drawn.inputs) is drawn.inputs
    baselines._captures = True  # as on a GPU
    placed = baselines._placed(drawn.inputs)
    assert [value is other for value, other in zip(placed, drawn.inputs, strict=True)] == [False, True]
    assert [tensor is placed[0] for tensor in pinned] == [True]


def test_mutated_inputs_are_copies_restored_before_every_execution() -> None:
    task = make_task("a.mul_(3.0)", "torch.randn(32)", policy=TaskPolicy(mutates=(0,)))
    reckoner = ReferenceRunner(task)
    (drawn,) = draws_of(reckoner, 1)
    before = drawn.inputs[0].clone()  # type: ignore[union-attr]
    armed = Baselines(reckoner).arm("eager", [drawn], 0)
    assert torch.equal(drawn.inputs[0], before)  # type: ignore[arg-type]
    assert len(armed.sets.outputs(0)) == 2
    for flush_bytes in (0, 64):
        armed = Baselines(reckoner).arm("eager", [drawn], flush_bytes)
        times_of(armed, 2)
        assert torch.equal(armed.sets.outputs(0)[1], before * 3), "restored before every execution"
    armed.sets.restore(0)
    assert torch.equal(armed.sets.outputs(0)[1], before)


def test_inputs_that_a_reference_writes_to_unasked_stay_as_drawn() -> None:
    reckoner = ReferenceRunner(make_task("a.mul_(3.0).exp() * b", "torch.randn(32), torch.randn(32)"))
    (drawn,) = draws_of(reckoner, 1)
    before = [value.clone() for value in drawn.inputs if isinstance(value, torch.Tensor)]
    baselines = Baselines(reckoner)
    for _ in range(2):
        times_of(baselines.arm("eager", [drawn], 0), 2)
    assert all(torch.equal(current, value) for current, value in zip(drawn.inputs, before, strict=True))  # type: ignore[arg-type]


def test_draws_without_expected_outputs_check_nothing_so_no_baseline_is_armed_on_them() -> None:
    reckoner = ReferenceRunner(LINEAR)
    with pytest.raises(BaselineError, match="without expected outputs"):
        Baselines(reckoner).arm("eager", draws_of(reckoner, 1, expected=False), 0)


def test_draws_of_two_sizes_do_not_mix() -> None:
    reckoner = ReferenceRunner(LINEAR)
    with pytest.raises(BaselineError, match="one size"):
        Baselines(reckoner).arm("eager", [*draws_of(reckoner, 1), reckoner.draw("small", "task", 1)], 0)


@pytest.mark.parametrize("name", ["eager-graph", "compile-max-autotune", "cublas", "magic"])
def test_what_needs_a_gpu_is_not_offered_on_the_cpu(name: str) -> None:
    reckoner = ReferenceRunner(LINEAR)
    baselines = Baselines(reckoner)
    assert baselines.names("full") == ("eager", "compile")
    with pytest.raises(BaselineError, match=f"no baseline '{name}'"):
        baselines.arm(name, draws_of(reckoner, 1), 0)


@pytest.mark.slow
def test_compiled_code_is_kept_for_the_next_candidate() -> None:
    """A product alone needs no generated kernel, so this runs where there is no C++ compiler."""
    from torch._dynamo.utils import counters

    reckoner = ReferenceRunner(LINEAR)
    baselines = Baselines(reckoner)
    before = counters["stats"]["unique_graphs"]
    first = baselines.arm("compile", draws_of(reckoner, 2), 0)
    assert counters["stats"]["unique_graphs"] == before + 1
    del first
    repeated = [reckoner.draw("full", "task", 500 + index) for index in range(2)]
    assert len(times_of(baselines.arm("compile", repeated, 0), 1)) == 1
    assert counters["stats"]["unique_graphs"] == before + 1


class Replay:
    """A CUDA graph on the CPU: runs the captured work again."""

    made = 0

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        Replay.made += 1
        self.replays = 0
        self._work = work

    def replay(self) -> None:
        self.replays += 1
        self._work()


@pytest.mark.slow
def test_a_captured_baseline_is_replayed_and_checked_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replay, "made", 0)
    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.timed_baseline._captured", Replay)
    reckoner = ReferenceRunner(LINEAR)
    baselines = Baselines(reckoner)
    baselines._captures = True
    armed = baselines.arm("compile", draws_of(reckoner, 2), 64)
    assert armed.captured
    assert Replay.made == 3
    graph, flushes, empties = (armed._graphs[work] for work in ("sample", "overhead", "empty"))
    assert isinstance(graph, Replay)
    assert isinstance(flushes, Replay)
    assert isinstance(empties, Replay)
    assert graph.replays == 1, "the outputs that were checked are those of a replay"
    times_of(armed, 3)
    times_of(armed, 4, "overhead")
    times_of(armed, 5, "empty")
    assert (graph.replays, flushes.replays, empties.replays) == (4, 4, 5)
    assert not baselines.arm("eager", draws_of(reckoner, 1), 0).captured


@pytest.mark.slow
def test_a_compiled_baseline_that_cannot_be_captured_is_timed_with_its_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(work: Callable[[], None], device: torch.device) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.timed_baseline._captured", fails)
    reckoner = ReferenceRunner(LINEAR)
    baselines = Baselines(reckoner)
    baselines._captures = True
    armed = baselines.arm("compile", draws_of(reckoner, 1), 0)
    assert not armed.captured
    assert armed.note == "not captured in a CUDA graph: operation not permitted when stream is capturing"
    assert len(times_of(armed, 2)) == 2


def test_what_a_compiler_says_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Baselines, name: str, draws: object) -> None:
        raise ValueError("C++ compile error\n\n  a.cpp:3:1: fatal error: no such file\nmore")

    monkeypatch.setattr(Baselines, "_sets", broken)
    reckoner = ReferenceRunner(LINEAR)
    with pytest.raises(BaselineError, match=r"^ValueError: a.cpp:3:1: fatal error: no such file$"):
        Baselines(reckoner).arm("eager", draws_of(reckoner, 1), 0)


def test_outputs_that_are_no_tensors_are_left_out_as_the_oracle_does() -> None:
    sets = ModelSets([lambda x: {"a": x, "b": (x + 1, None)}], [(torch.ones(2),)])
    sets.execute(0)
    assert [output.tolist() for output in sets.outputs(0)] == [[1, 1], [2, 2]]
    assert flatten_outputs(None) == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["eager", SYNCHRONISED, "eager-graph", "compile", "compile-max-autotune"])
def test_every_baseline_is_right_on_a_gpu(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from kernelforge.evaluation.oracle.worker.torch_device import open_device

    task = make_task("torch.softmax(self.fc(a), -1)", "torch.randn(64, 256)", init="self.fc = nn.Linear(256, 128)")
    reckoner = ReferenceRunner(task, open_device("cuda:0"))
    armed = Baselines(reckoner).arm(name, draws_of(reckoner, 3), 1 << 20)
    assert armed.captured == (name not in ("eager", SYNCHRONISED)), armed.note
    assert all(time > 0 for time in times_of(armed, 5))
    assert all(0 < time < 1e5 for time in times_of(armed, 5, "overhead"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cublas", "cublaslt-heuristic", "cublaslt-autotuned"])
@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("a @ b", "torch.randn(128, 192), torch.randn(192, 64)"),
        ("a.t() @ b.t()", "torch.randn(192, 128), torch.randn(64, 192)"),
        ("torch.bmm(a, b)", "torch.randn(3, 64, 32), torch.randn(3, 32, 16)"),
        ("a @ b", "torch.randn(128, 192).half(), torch.randn(192, 64).half()"),
    ],
)
def test_cublas_is_right_on_a_gpu(name: str, forward: str, inputs: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from kernelforge.evaluation.oracle.worker.torch_device import open_device

    reckoner = ReferenceRunner(make_task(forward, inputs), open_device("cuda:0"))
    baselines = Baselines(reckoner)
    assert name in baselines.names("full")
    armed = baselines.arm(name, draws_of(reckoner, 2), 0)
    assert armed.captured, armed.note
    assert armed.note.startswith("layout ")
    assert all(time > 0 for time in times_of(armed, 3))


def test_the_page_on_baselines_has_every_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "baselines.md").read_text()
    named = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert named == ["eager", SYNCHRONISED, "eager-graph", *COMPILE_MODES, *CUBLAS_NAMES]
    for mode in COMPILE_MODES.values():
        assert mode == "default" or f"`{mode}`" in page
