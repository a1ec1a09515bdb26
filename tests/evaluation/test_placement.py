"""Devices of references. ``meta``, a device that computes nothing, stands in for a GPU where only placement matters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kernelforge.capture import worker as capture_worker
from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker import sequential_sums
from kernelforge.evaluation.oracle.worker.comparison import Got, compare_outputs
from kernelforge.evaluation.oracle.worker.reference import Reference, seeded, tensor_bytes, tensor_view, to_device
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.oracle.worker.tolerance import expected_output
from kernelforge.evaluation.oracle.worker.torch_device import (
    HOST,
    default_device,
    driver_started,
    hide_gpu,
    open_device,
    set_arithmetic,
)
from kernelforge.evaluation.oracle.worker.tracing import trace_source
from kernelforge.evaluation.size_search import worker as size_worker
from kernelforge.packaging import splice_worker
from kernelforge.records import DType
from kernelforge.sandbox.channel import Frame
from tests.evaluation.oracle_tasks import make_task

ELSEWHERE = torch.device("meta")


def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return open_device("cuda:0")


def reference_of(forward: str, inputs: str, *, init: str = "pass", head: str = "") -> Reference:
    return Reference(make_task(forward, inputs, init=init, head=head).source, {})


def test_a_moved_reference_leaves_the_first_where_it_is() -> None:
    init = "self.fc = nn.Linear(4, 4); self.scale = torch.ones(4); self.register_buffer('shift', torch.zeros(4))"
    here = reference_of("self.fc(a) * self.scale + self.shift", "torch.randn(2, 4)", init=init)
    there = here.on(ELSEWHERE)
    assert {tensor.device for tensor in there.weights().values()} == {ELSEWHERE}
    assert {tensor.device for tensor in here.weights().values()} == {HOST}
    assert there.device == ELSEWHERE
    assert here.on(HOST) is here
    assert there.inputs(1)[0].device == ELSEWHERE  # type: ignore[union-attr]
    assert here.inputs(1)[0].device == HOST  # type: ignore[union-attr]


def test_tensors_in_lists_of_a_module_move_with_it_and_stay_one() -> None:
    init = "self.masks = [torch.ones(4), (2, torch.ones(4))]; self.mask = self.masks[0]"
    here = reference_of("a * self.masks[0] + self.masks[1][1]", "torch.randn(2, 4)", init=init)
    there = here.on(ELSEWHERE)
    masks, mask = there.model.masks, there.model.mask
    assert (masks[0].device, masks[1][1].device, masks[1][0]) == (ELSEWHERE, ELSEWHERE, 2)  # type: ignore[union-attr, index]
    assert masks[0] is mask  # type: ignore[index]
    assert here.model.masks[0].device == HOST  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    "inputs",
    [
        "torch.from_numpy(np.random.randn(4, 4))",
        "torch.randn(4, 4, generator=torch.Generator())",
        "torch.randn(4, 4, device='cpu')",
        "torch.tensor(torch.randn(4, 4).numpy())",
        "torch.randn(4, 4)",
    ],
)
def test_inputs_are_on_the_device_however_the_task_file_makes_them(inputs: str) -> None:
    there = reference_of("a", inputs, head="import numpy as np").on(ELSEWHERE)
    (drawn,) = there.inputs(3)
    assert isinstance(drawn, torch.Tensor)
    assert (drawn.device, drawn.shape) == (ELSEWHERE, (4, 4))


def test_shapes_of_inputs_that_fail_without_storage_leave_real_ones_on_the_device() -> None:
    there = reference_of("a", "torch.randn(4) if torch.get_default_device().type == 'meta' else undefined").on(
        ELSEWHERE
    )
    with pytest.raises(TaskError, match="undefined"):
        there.fake_inputs()
    assert [value.device for value in there.inputs(1)] == [ELSEWHERE]  # type: ignore[union-attr]


def test_a_get_inputs_that_fails_everywhere_says_so() -> None:
    with pytest.raises(TaskError, match=r"get_inputs\(\) failed: NameError"):
        reference_of("a", "undefined").on(ELSEWHERE).inputs(1)


def test_facts_are_said_of_the_host_whatever_the_device() -> None:
    task = make_task("self.fc(a)", "torch.randn(8, 4)", init="self.fc = nn.Linear(4, 2)")
    here, there = ReferenceRunner(task), ReferenceRunner(task, ELSEWHERE)
    facts = [facts_at(reckoner.described("full"), "full", (), (), fake=True) for reckoner in (here, there)]
    assert facts[0] == facts[1]
    assert there.described("full").device == HOST
    assert here.reference("full") is here.described("full")


def test_strides_survive_a_move() -> None:
    for tensor in (torch.randn(4, 6).t(), torch.randn(8, 8)[::2, 1:5], torch.randn(1, 5).expand(3, 5)):
        moved = to_device(tensor, ELSEWHERE)
        assert (moved.shape, moved.stride()) == (tensor.shape, tensor.stride())
    same = torch.randn(3)
    assert to_device(same, HOST) is same


def test_a_view_of_a_tensors_bytes_copies_nothing_that_is_in_one_piece() -> None:
    tensor = torch.arange(6, dtype=torch.float32)
    view = tensor_view(tensor)
    tensor[0] = 7.0
    assert bytes(view) == np.float32([7, 1, 2, 3, 4, 5]).tobytes() == tensor_bytes(tensor)
    copied = tensor_bytes(tensor)
    tensor[0] = 8.0
    assert copied != tensor_bytes(tensor)
    assert (tensor_bytes(torch.empty(0)), tensor_bytes(torch.ones(2, dtype=torch.bfloat16))) == (b"", b"\x80\x3f" * 2)


def test_arithmetic_is_that_of_full_precision() -> None:
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    set_arithmetic()
    assert torch.get_float32_matmul_precision() == "highest"
    flags = torch.backends.cudnn
    assert (flags.allow_tf32, flags.benchmark, flags.deterministic) == (False, False, False)
    assert not torch.backends.cuda.matmul.allow_tf32


def test_tensors_without_a_device_are_made_on_the_default_one() -> None:
    with default_device(ELSEWHERE):
        assert torch.zeros(2).device == ELSEWHERE
    with default_device(HOST):
        assert torch.zeros(2).device == HOST


def test_looking_whether_the_driver_runs_does_not_start_it() -> None:
    assert driver_started() == driver_started()
    assert not driver_started() or torch.cuda.is_available()


def test_before_a_fork_torch_is_kept_from_asking_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(calls.append(1)))
    with hide_gpu():
        trace_source(make_task("torch.softmax(a, -1)", "torch.randn(2, 4)").source, {})
        assert not calls
    torch.cuda.is_available()
    assert calls


@pytest.mark.slow
def test_warm_ups_call_nothing_of_torch_that_counts_gpus() -> None:
    """In a CUDA build each of these calls starts the driver; in a CPU build they only say that they were called."""
    script = """
import torch
from kernelforge.capture import worker as capture_worker
from kernelforge.evaluation.size_search import worker as size_worker
torch.set_num_interop_threads = lambda threads: None  # torch takes it once in a process
calls = []
for holder, name in [(torch._C, "_ensureCUDADeviceGuardSet"), (torch._C, "_cuda_getDeviceCount"),
                     (torch.cuda, "is_available"), (torch.cuda, "device_count"), (torch.cuda, "init")]:
    if not hasattr(holder, name):
        continue  # a CPU build has not all of them
    def counted(*arguments, name=name, original=getattr(holder, name)):
        calls.append(name)
        return original(*arguments)
    setattr(holder, name, counted)
torch._C._ensureCUDADeviceGuardSet(); assert calls == ["_ensureCUDADeviceGuardSet"]; calls.clear()
size_worker.warm_up({})  # which includes the oracle's
capture_worker.warm_up({})
print("calls:", calls)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.returncode) == ("calls: []\n", 0), done.stderr


class Requests:
    """A channel by which these requests came."""

    def __init__(self, *requests: dict[str, Any]) -> None:
        self._requests = requests

    def requests(self) -> Iterator[Frame]:
        return map(Frame, self._requests)

    def send(self, reply: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("worker", "requests"),
    [(capture_worker, []), (splice_worker, []), (size_worker, [{"op": "probe", "source": ""}])],
)
def test_children_that_run_on_the_cpu_ask_for_no_gpu(
    worker: Any, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_ensureCUDADeviceGuardSet", torch._C._ensureCUDADeviceGuardSet)
    worker.serve(Requests(*requests))
    assert not torch.cuda.is_available()


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> int:
    """Reductions are treated as those of a GPU tensor, of which only the first lines are summed in order."""
    monkeypatch.setattr(sequential_sums, "_complete_sum", lambda x: False)
    monkeypatch.setattr(sequential_sums, "_MAX_HOST_ELEMENTS", 256)
    return 256


@pytest.mark.parametrize("dims", [[-1], [0], [0, 2], [1], []])
@pytest.mark.parametrize("keepdim", [True, False])
def test_sums_of_a_gpu_are_in_order_on_the_first_lines(as_on_a_gpu: int, dims: list[int], keepdim: bool) -> None:
    x = torch.randn(6, 10, 64, generator=torch.Generator().manual_seed(1))
    total = sequential_sums.ordered_sum(x, dims, keepdim, torch.float32)
    axes = tuple(dims) or (0, 1, 2)
    assert total.shape == x.sum(axes, keepdim=keepdim).shape
    torch.testing.assert_close(total, x.sum(axes, keepdim=keepdim), rtol=1e-4, atol=1e-4)
    kept = [axis for axis in range(3) if axis not in {axis % 3 for axis in axes}]
    lines = x.permute(*kept, *sorted(axis % 3 for axis in axes)).reshape(total.numel(), -1)
    first = max(as_on_a_gpu // lines.shape[1], 1)
    in_order = np.add.accumulate(lines[:first].contiguous().numpy(), axis=-1)[:, -1]
    assert np.array_equal(total.reshape(-1)[:first].numpy(), in_order[: total.numel()])


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_sums_of_a_gpu_keep_their_places(as_on_a_gpu: int, dim: int) -> None:
    x = torch.randn(5, 7, 33, generator=torch.Generator().manual_seed(2))
    result = sequential_sums.running(x, dim, torch.float32)
    torch.testing.assert_close(result, x.cumsum(dim), rtol=1e-4, atol=1e-4)
    assert np.array_equal(
        result.movedim(dim, -1)[0, 0].numpy(), np.add.accumulate(x.movedim(dim, -1)[0, 0].contiguous().numpy())
    )


def test_only_the_first_image_of_a_gpus_convolution_is_summed_in_order(as_on_a_gpu: int) -> None:
    x, weight = torch.randn(3, 4, 9, 9), torch.randn(8, 4, 3, 3)
    plain = torch.conv2d(x, weight)
    with sequential_sums.SequentialSums(torch.float32) as mode:
        ordered = torch.conv2d(x, weight)
    assert mode.replaced == 1
    assert not torch.equal(ordered[0], plain[0])
    assert torch.equal(ordered[1:], plain[1:])
    torch.testing.assert_close(ordered, plain, rtol=1e-4, atol=1e-4)


def test_values_are_compared_in_pieces_wherever_the_wrong_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.tolerance.PIECE", 7)
    reference = torch.randn(4, 8)
    want = expected_output(reference, reference.double(), reference)
    for wrong in (0, 6, 7, 31):
        value = reference.clone()
        value.view(-1)[wrong] += 1.0
        for data in (value, tensor_bytes(value)):
            comparison = compare_outputs([want], [Got(data, (4, 8), DType.FLOAT32)], [None])
            assert not comparison.ok
            assert comparison.worst_index == (wrong // 8, wrong % 8)
    value = reference.clone()
    value[3, 7] = float("nan")
    assert not compare_outputs([want], [Got(value, (4, 8), DType.FLOAT32)], [None]).ok
    assert compare_outputs([want], [Got(tensor_bytes(reference), (4, 8), DType.FLOAT32)], [None]).error == 0.0


@pytest.mark.gpu
def test_a_gpu_draws_the_same_again_by_its_own_generator() -> None:
    reference = reference_of("a", "torch.randn(64)").on(gpu())
    first, repeated, other = (reference.inputs(seed)[0] for seed in (1, 1, 2))
    assert isinstance(first, torch.Tensor)
    assert first.is_cuda
    assert torch.equal(first, repeated)  # type: ignore[arg-type]
    assert not torch.equal(first, other)  # type: ignore[arg-type]
    with seeded(5, gpu()):
        before = torch.cuda.default_generators[0].get_state()
    assert not torch.equal(before, torch.cuda.default_generators[0].get_state())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("forward", "inputs", "init"),
    [
        ("torch.softmax(a, -1)", "torch.randn(64, 512)", "pass"),
        ("self.n(a)", "torch.randn(64, 512)", "self.n = nn.LayerNorm(512)"),
        ("self.c(a)", "torch.randn(4, 3, 16, 16)", "self.c = nn.Conv2d(3, 8, 3)"),
        ("self.b(a)", "torch.randn(4, 3, 16, 16)", "self.b = nn.BatchNorm2d(3)"),
        ("F.scaled_dot_product_attention(a, a, a)", "torch.randn(2, 2, 64, 32)", "pass"),
        ("self.r(a)[0]", "torch.randn(8, 4, 16)", "self.r = nn.GRU(16, 16)"),
        ("a.cumsum(1)", "torch.randn(16, 1024)", "pass"),
        ("a @ a", "torch.randn(128, 128).half()", "pass"),
    ],
)
def test_torch_passes_its_own_oracle_on_a_gpu(forward: str, inputs: str, init: str) -> None:
    reckoner = ReferenceRunner(make_task(forward, inputs, init=init), gpu())
    assert "task" in reckoner.scales("small")
    drawn = reckoner.draw("full", "task", 11)
    assert drawn.expected is not None
    assert all(output.reference.is_cuda and output.sound for output in drawn.expected)
    values = [
        Got(tensor_bytes(want.reference.contiguous()), tuple(want.reference.shape), _dtype(want.reference))
        for want in drawn.expected
    ]
    assert reckoner.compare(drawn, values).ok
    zeros = [Got(bytes(output.nbytes), output.shape, output.dtype) for output in values]
    assert not reckoner.compare(drawn, zeros).ok


def _dtype(tensor: torch.Tensor) -> DType:
    return DType(str(tensor.dtype).removeprefix("torch."))


@pytest.mark.gpu
def test_tied_weights_stay_tied_when_moved() -> None:
    init = "self.e = nn.Embedding(5, 4); self.f = nn.Linear(4, 5, bias=False); self.f.weight = self.e.weight"
    there = reference_of("self.f(self.e(a))", "torch.randint(0, 5, (3,))", init=init).on(gpu())
    assert there.model.get_parameter("e.weight") is there.model.get_parameter("f.weight")


@pytest.mark.gpu
def test_a_reference_that_does_not_fit_is_a_task_error() -> None:
    reckoner = ReferenceRunner(make_task("a * 2", "torch.zeros(1 << 40)"), gpu())
    with pytest.raises(TaskError, match="more memory than the GPU has left"):
        reckoner.draw("full", "task", 1)
