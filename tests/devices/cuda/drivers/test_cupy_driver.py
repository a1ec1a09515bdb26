"""Use of cupy's objects by the cupy driver, on a libcuda in software; cupy's runtime itself is a test double."""

import pytest


@pytest.mark.slow
def test_memory_and_modules_live_until_they_are_given_back(software_cupy):
    answer = software_cupy(
        """
        import struct
        driver = make(0)
        module = driver.load(IMAGE)
        add_one = driver.function(module, "add_one")
        pointer, empty = driver.allocate(16), driver.allocate(0)
        driver.fill(pointer, 1, 16)
        with driver.capture() as held:
            driver.launch(
                add_one, LaunchShape((1, 1, 1), (4, 1, 1)), [struct.pack("<Q", pointer), struct.pack("<I", 4)]
            )
        held.graph.launch()
        table, nbytes = driver.variable(module, "table")
        read = driver.read(pointer, 16).hex()
        forget()
        driver.free(empty)
        driver.unload(module)
        given = record()
        held.graph.close()
        driver.close()
        answer = driver.facts.runtime, sorted(driver.lacks), read, nbytes, given, record()
        """
    )
    runtime, lacks, read, nbytes, freed, closed = answer
    assert runtime.startswith("cupy 1")
    assert lacks == []
    assert (read, nbytes) == ("02010101" * 4, 24)
    assert freed == ["free", "unload"]
    assert closed == ["destroy graph", "free", "destroy stream"]


def test_errors_have_cudas_names(software_cupy):
    codes = software_cupy(
        """
        driver = make(0)
        module = driver.load(IMAGE)
        answer = []
        for refused in (
            lambda: driver.function(module, "absent"),
            lambda: driver.variable(module, "absent"),
            lambda: driver.load(b"no cubin"),
            lambda: driver.free(77),
            lambda: driver.allocate(1 << 40),
            lambda: (driver.unload(module), driver.function(module, "add_one")),
            lambda: make(3),
        ):
            try:
                refused()
                answer.append(None)
            except DriverError as error:
                answer.append(error.code.removeprefix("CUDA_ERROR_"))
        """
    )
    assert codes == [
        "NOT_FOUND", "NOT_FOUND", "INVALID_IMAGE", "INVALID_VALUE", "OUT_OF_MEMORY", "INVALID_HANDLE", "INVALID_DEVICE",
    ]  # fmt: skip
