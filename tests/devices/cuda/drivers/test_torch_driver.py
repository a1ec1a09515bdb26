"""The driver of processes that use torch, on a libcuda in software, with stand-ins for torch's stream and allocator."""

import pytest

SCRIPT = """
    import struct
    from types import SimpleNamespace
    from kernelforge.devices.cuda.worker.torch_driver import TorchDriver, TorchOwner

    owner = Owner()
    other = int(owner._take(owner._cuda.cuStreamCreate(1)))
    current = SimpleNamespace(cuda_stream=owner.stream)
    cuda = SimpleNamespace(
        current_stream=lambda: current, caching_allocator_alloc=owner.allocate, caching_allocator_delete=owner.free
    )
    driver = TorchDriver(TorchOwner(SimpleNamespace(__version__="2.13", cuda=cuda)), 0)
"""


@pytest.mark.slow
def test_kernels_are_launched_on_torchs_current_stream(software):
    answer = software(
        SCRIPT
        + """
    module = driver.load(IMAGE)
    add_one = driver.function(module, "add_one")
    pointer = driver.allocate(16)
    arguments = [struct.pack("<Q", pointer), struct.pack("<I", 4)]
    driver.fill(pointer, 1, 16)
    driver.launch(add_one, LaunchShape((1, 1, 1), (4, 1, 1)), arguments)
    read, streams = driver.read(pointer, 16).hex(), [int(driver.stream) == owner.stream]
    current.cuda_stream = other
    with driver.torch_stream():
        driver.use_current_stream()
    streams.append(int(driver.stream) == other)
    driver.launch(add_one, LaunchShape((1, 1, 1), (4, 1, 1)), arguments)
    forget()
    driver.free(pointer)
    driver.unload(module)
    driver.close()
    answer = driver.facts.runtime, read, streams, record()
"""
    )
    assert answer == ["torch 2.13", "02010101" * 4, [True, True], ["free", "unload"]]


def test_errors_have_cudas_names(software):
    codes = software(
        SCRIPT
        + """
    module = driver.load(IMAGE)
    answer = []
    for refused in (lambda: driver.function(module, "absent"), lambda: driver.load(b"no cubin")):
        try:
            refused()
            answer.append(None)
        except DriverError as error:
            answer.append(error.code.removeprefix("CUDA_ERROR_"))
"""
    )
    assert codes == ["NOT_FOUND", "INVALID_IMAGE"]
