"""The kernel that flushes the L2, and copies for resetting inputs: candidates must not write there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelforge.compile import installed_toolchain
from kernelforge.devices.cuda.worker.driver import DriverError
from kernelforge.devices.cuda.worker.l2_flush import PTX, L2Flush
from kernelforge.devices.cuda.worker.tensors import Tensors
from kernelforge.hardware.wheels import RELEASES, nvidia_folders
from tests.devices.cuda import plans
from tests.devices.cuda.plans import buffer_contents, randoms, resolve
from tests.devices.cuda.software import INSTRUCTIONS_PER_US, SoftwareDriver

NBYTES = 100_000


@pytest.fixture
def driver() -> SoftwareDriver:
    return SoftwareDriver()


@pytest.fixture
def flush(driver: SoftwareDriver) -> Iterator[L2Flush]:
    made = L2Flush(driver, NBYTES, 0x5A)
    yield made
    made.close()


@pytest.mark.parametrize("at", [0, 15, 4096, NBYTES // 2, NBYTES - 1])
def test_every_byte_is_read(driver: SoftwareDriver, flush: L2Flush, at: int) -> None:
    flush.run()
    assert flush.faults() == []
    driver.fill(flush._buffer + at, 1, 1)
    flush.run()
    (fault,) = flush.faults()
    assert fault.kind == "sanitizer"
    assert "harness reads to empty the L2" in fault.message


def test_what_was_written_there_in_between_is_remembered(driver: SoftwareDriver, flush: L2Flush) -> None:
    driver.fill(flush._buffer, 1, 1)
    flush.run()
    driver.fill(flush._buffer, 0, 1)
    flush.run()
    assert len(flush.faults()) == 1


def test_all_shared_memory_of_every_sm_is_filled(driver: SoftwareDriver) -> None:
    """The emulator gives each block fresh shared memory; what can be seen is that every word is stored in bounds."""
    flush = L2Flush(driver, 16, 0x5A)
    start = driver.event()
    flush.run()
    stores = driver.facts.sm_count * driver.facts.shared_bytes_per_block / 16
    assert driver.elapsed_us(start, driver.event()) > 5 * stores / INSTRUCTIONS_PER_US
    driver.synchronize()


def test_nothing_stays_allocated(driver: SoftwareDriver) -> None:
    before = driver.memory()
    L2Flush(driver, NBYTES, 0x5A).close()
    assert driver.memory() == before
    with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
        L2Flush(driver, 2 << 30, 0x5A)
    assert driver.memory() == before


class Jitless(SoftwareDriver):
    def load(self, image: bytes) -> None:
        raise DriverError("CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "loading a module")


def test_a_driver_that_cannot_compile_the_kernel_is_no_fault_of_a_plan() -> None:
    with pytest.raises(RuntimeError, match=r"libnvidia-ptxjitcompiler\.so\.1"):
        L2Flush(Jitless(), NBYTES, 0x5A)


@pytest.mark.slow
@pytest.mark.parametrize("major", RELEASES)
def test_the_text_is_right_for_every_gpu_that_is_built_for(major: int, tmp_path: Path) -> None:
    """The GPU's driver compiles it with the ptxas of its own version of CUDA."""
    folder = next(nvidia_folders(RELEASES[major].programs), None)
    if folder is None or not (folder / "ptxas").is_file():
        pytest.skip(
            f"no ptxas of CUDA {major}: pip install 'nvidia-cuda-nvcc{'-cu12==12.9' if major == 12 else '==13.0'}.*'"
        )
    toolchain = installed_toolchain(major)
    source = tmp_path / "flush.ptx"
    source.write_text(PTX)
    for number in toolchain.architectures():
        command = [
            folder / "ptxas",
            "-arch",
            toolchain.architecture(divmod(number, 10)),
            source,
            "-o",
            tmp_path / "flush",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), command


def test_a_reset_restores_inputs_from_copies_that_are_watched(driver: SoftwareDriver) -> None:
    x = randoms(50)
    plan = resolve(plans.INCREMENT_PLAN, [x])
    tensors = Tensors(driver, plan, frozenset({0}))
    tensors.put(buffer_contents(plan, [x]))
    tensors.keep_pristine()
    driver.fill(tensors.address(0), 7, 20)
    tensors.reset(0x5A)
    output, mutated = tensors.outputs()
    assert output == b"Z" * 200
    np.testing.assert_array_equal(np.frombuffer(mutated, np.float32), x)
    assert tensors.faults() == []
    driver.fill(tensors._pristine[0] + 3, 1, 1)
    (fault,) = tensors.faults()
    assert "the copy that 'x' is reset from" in fault.message
    tensors.close()
