"""cupy has what the driver asks of it, with those parameters. Without a GPU no more of cupy can run."""

import inspect

import pytest

from kernelforge.devices.cuda.discovery import CONTROL
from kernelforge.devices.cuda.worker.cupy_driver import make
from kernelforge.devices.cuda.worker.driver import DriverError

cupy = pytest.importorskip("cupy", reason="needs cupy, of the extra gpu")


def test_modules_memory_and_streams_have_their_names():
    assert cupy.cuda.function.Module.load.__doc__.startswith("Module.load(self, bytes cubin)")
    assert cupy.cuda.function.Module.get_function.__doc__.startswith("Module.get_function(self, name)")
    assert cupy.cuda.Memory.__doc__.startswith("Memory(size_t size)")
    for kind in (cupy.cuda.function.Module, cupy.cuda.function.Function, cupy.cuda.Memory):
        assert hasattr(kind, "ptr")
    inspect.signature(cupy.cuda.Stream.__init__).bind(object(), non_blocking=True)
    assert callable(cupy.cuda.Device.use)


def test_errors_of_both_apis_carry_their_number():
    error = cupy.cuda.runtime.CUDARuntimeError(700)
    assert error.status == 700
    assert str(error).startswith("cudaErrorIllegalAddress: ")
    assert issubclass(cupy.cuda.driver.CUDADriverError, RuntimeError)


def test_runtime_and_driver_number_alike_what_both_have():
    cuda = pytest.importorskip("cuda.bindings.driver")
    pairs = {
        "cudaErrorInvalidValue": "INVALID_VALUE", "cudaErrorMemoryAllocation": "OUT_OF_MEMORY",
        "cudaErrorNoDevice": "NO_DEVICE", "cudaErrorInvalidDevice": "INVALID_DEVICE",
        "cudaErrorIllegalAddress": "ILLEGAL_ADDRESS", "cudaErrorLaunchOutOfResources": "LAUNCH_OUT_OF_RESOURCES",
        "cudaErrorLaunchTimeout": "LAUNCH_TIMEOUT", "cudaErrorAssert": "ASSERT",
        "cudaErrorMisalignedAddress": "MISALIGNED_ADDRESS", "cudaErrorLaunchFailure": "LAUNCH_FAILED",
        "cudaErrorIllegalInstruction": "ILLEGAL_INSTRUCTION", "cudaErrorECCUncorrectable": "ECC_UNCORRECTABLE",
    }  # fmt: skip
    for runtime, driver in pairs.items():
        number = int(getattr(cuda.CUresult, f"CUDA_ERROR_{driver}"))
        assert str(cupy.cuda.runtime.CUDARuntimeError(number)).startswith(f"{runtime}: ")


@pytest.mark.skipif(any(node.exists() for node in CONTROL), reason="an NVIDIA driver is here")
def test_no_driver_is_an_error_with_the_runtimes_name():
    with pytest.raises(DriverError) as caught:
        make(0)
    assert caught.value.code == "cudaErrorInsufficientDriver"
    assert not caught.value.sticky
