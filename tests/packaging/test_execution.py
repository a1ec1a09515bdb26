"""Plans on torch's tensors: on the emulated device, and by the driver calls of a GPU, which a driver emulates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelforge.candidate.resolved import TensorView
from kernelforge.compile import Compiler
from kernelforge.devices.emulated import layout
from kernelforge.errors import DeviceError
from kernelforge.packaging import execution
from kernelforge.packaging.execution import CudaBackend, Part, split
from kernelforge.packaging.operator import Operator
from kernelforge.records import DType
from tests.devices.cuda.plans import ADD, ADD_PLAN, build, randoms, resolve
from tests.devices.cuda.software import SoftwareDriver, with_ptx

LIBRARY_PLAN = """
def forward(a, b):
    n = a.shape[0]
    both = empty((2, n, n))
    library("matmul", a, b, out=both[0])
    add[ceil_div(n * n, 256), 256](both[0], a, both[1], i32(n * n))
    return both[0], both[1]
"""


class OnSoftware(CudaBackend):
    """The backend of a GPU, whose memory and kernels are those of a driver in software."""

    def __init__(self) -> None:
        self.driver = SoftwareDriver()
        self.copies = 0
        super().__init__(self.driver, "sm_90a", self.driver.tensor)

    def empty(self, nbytes: int) -> torch.Tensor:
        pointer = self.driver.allocate(nbytes)
        return self.driver.tensor(pointer, TensorView(0, 0, (nbytes,), (1,), DType.UINT8))

    def address(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr() - self.driver._memory.host_base + layout.GLOBAL_BASE

    def put(self, tensor: torch.Tensor, offset_bytes: int = 0) -> torch.Tensor:
        """A copy in the driver's memory."""
        memory = self.empty(tensor.nbytes + offset_bytes)[offset_bytes:].view(tensor.dtype).view(tensor.shape)
        memory.copy_(tensor)
        return memory


@pytest.fixture
def compiler(open_warm: Callable[..., Compiler]) -> Compiler:
    return open_warm(Compiler, None)


@pytest.mark.slow
def test_a_gpu_computes_on_torchs_memory(compiler: Compiler) -> None:
    backend, arrays = OnSoftware(), [randoms(16, 16), randoms(16, 16, seed=1)]
    plan = resolve(ADD_PLAN, arrays)
    part = Part(split(plan)[1], with_ptx(build(compiler, ADD, plan)))
    a, b = (torch.from_numpy(array) for array in arrays)
    for offset in (0, 4):  # the second does not begin where a plan may rely on
        inputs = [backend.put(a, offset), backend.put(b, offset)]
        before = backend.driver._memory.used_bytes
        (output,) = backend.run(part, dict(enumerate(inputs)))
        torch.testing.assert_close(output, a + b)
        used = backend.driver._memory.used_bytes - before
        assert used < 2 * output.nbytes if offset == 0 else used >= 3 * output.nbytes


@pytest.mark.slow
def test_outputs_share_no_memory_and_operators_of_torch_are_called(compiler: Compiler) -> None:
    backend, arrays = OnSoftware(), [randoms(16, 16), randoms(16, 16, seed=1)]
    plan = resolve(LIBRARY_PLAN, arrays, library=["matmul"])
    part = Part(split(plan)[1], with_ptx(build(compiler, ADD, plan)))
    a, b = (torch.from_numpy(array) for array in arrays)
    product, total = backend.run(part, {0: backend.put(a), 1: backend.put(b)})
    torch.testing.assert_close(product, a @ b)
    torch.testing.assert_close(total, a @ b + a)
    assert product.untyped_storage().data_ptr() != total.untyped_storage().data_ptr()


@pytest.mark.slow
def test_a_launch_that_cannot_run_is_a_device_error(compiler: Compiler) -> None:
    backend, arrays = OnSoftware(), [randoms(16, 16), randoms(16, 16, seed=1)]
    backend.driver.facts = replace(backend.driver.facts, shared_bytes_per_block=1024)
    plan = resolve(ADD_PLAN.replace("256](", "256, 4096]("), arrays)
    part = Part(split(plan)[1], with_ptx(build(compiler, ADD, plan)))
    inputs = {at: backend.put(torch.from_numpy(array)) for at, array in enumerate(arrays)}
    with pytest.raises(DeviceError, match="4096 bytes of shared memory"):
        backend.run(part, inputs)


@pytest.mark.slow
def test_setup_and_forward_run_apart_on_a_gpu(
    operator_of: Callable[[str], Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, backend = operator_of("linear"), OnSoftware()
    ride: Callable[..., Any] = execution.build
    monkeypatch.setattr("kernelforge.packaging.operator.build", lambda *a, **named: with_ptx(ride(*a, **named)))
    monkeypatch.setattr(operator, "_backend", lambda device: backend)
    monkeypatch.setattr(operator, "_parts", {})
    x, weight, bias = (backend.put(torch.randn(*shape)) for shape in ((8, 32), (16, 32), (16,)))
    for _ in range(2):
        (output,) = operator(x, weight, bias)
        torch.testing.assert_close(output, torch.relu(torch.nn.functional.linear(x, weight, bias)))
    assert (operator.setups, operator.fallbacks.total()) == (1, 0)
