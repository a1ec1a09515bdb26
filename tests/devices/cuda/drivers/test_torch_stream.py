"""Torch on a driver's stream, where torch has no GPU, and the parts of torch that it takes."""

import inspect

import pytest

from kernelforge.devices.cuda.worker.driver import DriverError, on_torch_stream, torch_pool


def test_torch_without_a_gpu_is_refused_by_name():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch has a GPU here")
    with pytest.raises(DriverError, match="sees no GPU here") as caught, on_torch_stream(0, 1, None):
        pass
    assert caught.value.code == "CUDA_ERROR_NOT_SUPPORTED"
    with pytest.raises(DriverError, match="sees no GPU here"):
        torch_pool()


def test_torch_has_what_is_asked_of_it():
    torch = pytest.importorskip("torch")
    inspect.signature(torch.cuda.ExternalStream.__new__).bind(torch.cuda.ExternalStream, 1, device=0)
    inspect.signature(torch.cuda.use_mem_pool).bind(object(), 0)
    inspect.signature(torch.cuda.MemPool.__init__).bind(object())
    assert callable(torch.cuda.stream)
    assert callable(torch.cuda.device)
