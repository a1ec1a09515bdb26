"""Library calls on host memory: which operators there are, where results go, and what is said of a bad call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernelforge.candidate.resolved import Library, LibraryValue, TensorView
from kernelforge.devices.library_calls import LibraryCallFailed, call, cpu_tensor, operator
from kernelforge.records import DType

torch = pytest.importorskip("torch")

Array = npt.NDArray[Any]


class Memory:
    """Arrays as buffers of a plan."""

    def __init__(self, *arrays: Array) -> None:
        self.arrays = arrays

    def view(self, buffer: int, shape: tuple[int, ...] | None = None, stride: tuple[int, ...] = (), at: int = 0) -> Any:
        array = self.arrays[buffer]
        shape = array.shape if shape is None else shape
        stride = stride or tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return TensorView(buffer, at * array.itemsize, shape, stride, DType(str(array.dtype)))

    def run(self, name: str, *args: LibraryValue, out: tuple[TensorView, ...], **kwargs: LibraryValue) -> None:
        def tensor(view: TensorView) -> Any:
            return cpu_tensor(self.arrays[view.buffer].ctypes.data + view.offset_bytes, view)

        call(Library(name, args, kwargs, out, 7), tensor)


def randoms(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_result_is_written_where_the_plan_has_it() -> None:
    memory = Memory(randoms(4, 5), randoms(5, 3, seed=1), np.zeros((2, 4, 3), np.float32))
    memory.run("matmul", memory.view(0), memory.view(1), out=(memory.view(2, (4, 3), at=12),))
    np.testing.assert_allclose(memory.arrays[2][1], memory.arrays[0] @ memory.arrays[1], rtol=1e-5)
    assert not memory.arrays[2][0].any()


def test_an_operator_without_out_is_copied() -> None:
    memory = Memory(randoms(2, 3, 8, 8), randoms(4, 3, 3, 3, seed=1), np.zeros((2, 4, 8, 8), np.float32))
    memory.run("conv2d", memory.view(0), memory.view(1), out=(memory.view(2),), bias=None, padding=(1, 1))
    expected = torch.nn.functional.conv2d(*map(torch.from_numpy, memory.arrays[:2]), padding=1)
    np.testing.assert_array_equal(memory.arrays[2], expected.numpy())


def test_several_results_go_to_several_tensors() -> None:
    memory = Memory(randoms(3, 9), np.zeros((3, 2), np.float32), np.zeros((3, 2), np.int64))
    memory.run("topk", memory.view(0), 2, out=(memory.view(1), memory.view(2)))
    np.testing.assert_array_equal(memory.arrays[1], -np.sort(-memory.arrays[0])[:, :2])
    np.testing.assert_array_equal(memory.arrays[2], np.argsort(-memory.arrays[0])[:, :2])


def test_strides_of_inputs_are_kept() -> None:
    memory = Memory(randoms(4, 6), np.zeros((6, 4), np.float32))
    memory.run("relu", memory.view(0, (6, 4), (1, 6)), out=(memory.view(1),))
    np.testing.assert_array_equal(memory.arrays[1], np.maximum(memory.arrays[0].T, 0))


@pytest.mark.parametrize("dtype", list(DType))
def test_every_dtype_is_seen_as_it_is(dtype: DType) -> None:
    source = torch.tensor([0, 1, 2, 3, 1]).to(getattr(torch, dtype.value))
    view = TensorView(0, 0, (5,), (1,), dtype)
    assert torch.equal(cpu_tensor(source.data_ptr(), view), source)


def test_an_empty_tensor_needs_no_memory() -> None:
    assert cpu_tensor(0, TensorView(0, 0, (3, 0), (0, 1), DType.FLOAT32)).shape == (3, 0)


@pytest.mark.parametrize(
    "name",
    ["matmul", "conv2d", "softmax", "layer_norm", "relu", "max_pool2d", "einsum", "scaled_dot_product_attention"],
)
def test_operators_are_found(name: str) -> None:
    assert callable(operator(name))


NO_OPERATORS = [
    "", "__import__", "_C", "os.system", "nn", "Tensor", "float32", "nope", "torch.matmul", "functional.relu", "1x",
    "load", "save", "compile", "manual_seed", "set_default_device", "use_deterministic_algorithms", "is_tensor",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_OPERATORS)
def test_nothing_but_operators_is_found(name: str) -> None:
    with pytest.raises(KeyError):
        operator(name)


def fault_of(memory: Memory, name: str, *args: LibraryValue, out: tuple[TensorView, ...], **kwargs: Any) -> Any:
    with pytest.raises(LibraryCallFailed) as caught:
        memory.run(name, *args, out=out, **kwargs)
    assert not caught.value.lost
    return caught.value.fault


def test_an_unknown_operator_is_unsupported() -> None:
    memory = Memory(randoms(4), np.zeros(4, np.float32))
    fault = fault_of(memory, "matmull", memory.view(0), out=(memory.view(1),))
    assert fault.kind == "unsupported"
    assert fault.message == (
        "library('matmull') in plan line 7: torch and torch.nn.functional have no function of that name"
    )


def test_arguments_that_torch_refuses_are_a_crash_with_its_words() -> None:
    memory = Memory(randoms(4, 5), randoms(4, 5), np.zeros((4, 5), np.float32))
    fault = fault_of(memory, "matmul", memory.view(0), memory.view(1), out=(memory.view(2),))
    assert fault.kind == "crash"
    assert (
        "library('matmul') in plan line 7: torch refuses it: mat1 and mat2 shapes cannot be multiplied" in fault.message
    )


@pytest.mark.parametrize("name", ["relu", "abs"])
def test_a_result_of_another_shape_is_told_and_never_written_past_the_tensor(name: str) -> None:
    memory = Memory(randoms(2, 6), np.full(14, 5, np.float32))
    fault = fault_of(memory, name, memory.view(0), out=(memory.view(1, (2, 5)),))
    assert fault.kind == "crash"
    assert (memory.arrays[1][10:] == 5).all()
    fault = fault_of(memory, name, memory.view(0), out=(memory.view(1, (2, 7)),))
    assert fault.kind == "crash"


def test_a_result_of_another_dtype_is_told() -> None:
    memory = Memory(randoms(6), np.zeros(6, np.float64))
    fault = fault_of(memory, "relu", memory.view(0), out=(memory.view(1),))
    assert fault.message.endswith("result 1 is (6,) of float32, the plan says (6,) of float64")


def test_more_results_than_the_plan_takes_are_told() -> None:
    memory = Memory(randoms(3, 9), np.zeros((3, 2), np.float32))
    fault = fault_of(memory, "topk", memory.view(0), 2, out=(memory.view(1),))
    assert fault.kind == "crash"


def test_a_result_that_is_no_tensor_is_told() -> None:
    memory = Memory(randoms(3), np.zeros(3, np.float32))
    fault = fault_of(memory, "is_floating_point", memory.view(0), out=(memory.view(1),))
    assert fault.message.endswith("it returns bool, not tensors")


def test_no_gradient_is_kept() -> None:
    memory = Memory(randoms(3), np.zeros(3, np.float32))
    memory.run("abs", memory.view(0), out=(memory.view(1),))
    np.testing.assert_array_equal(memory.arrays[1], np.abs(memory.arrays[0]))
