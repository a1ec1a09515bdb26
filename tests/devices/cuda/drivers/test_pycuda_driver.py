"""The pycuda driver, through the real pycuda, into a libcuda in software."""

import pytest


@pytest.mark.slow
def test_memory_kernels_and_events_work_as_with_cupy(software_pycuda):
    answer = software_pycuda(
        """
        import struct
        driver = make(0)
        module = driver.load(IMAGE)
        pointer, other = driver.allocate(16), driver.allocate(0)
        driver.free(other)
        other = driver.allocate(16)
        driver.write(pointer, memoryview(bytes(16)))
        driver.fill(pointer, 1, 8)
        shape = LaunchShape((1, 2, 3), (4, 1, 1), shared_bytes=60_000)
        forget()
        driver.launch(
            driver.function(module, "add_one"), shape, [struct.pack("<Q", pointer), struct.pack("<I", 4)]
        )
        driver.copy(other, pointer, 16)
        start, end = driver.event(), driver.event()
        with driver.profiler_region():
            driver.launch(driver.function(module, "nothing"), shape, [])
        driver.synchronize()
        table, nbytes = driver.variable(module, "table")
        answer = [
            driver.facts.runtime.split()[0], driver.facts.arch, driver.facts.uuid, driver.facts.driver,
            driver.read(other, 16).hex(), driver.elapsed_us(start, end), nbytes, driver.read(table, 0).hex(),
            driver.memory(), [line.split(" arguments")[0] for line in record()],
        ]
        driver.unload(module)
        driver.close()
        driver.close()
        answer.append(record().count("unload"))
        """
    )
    launched = "grid 1,2,3 block 4,1,1 shared 60000"
    assert answer == [
        "pycuda", "sm_90a", "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf", "13.0",
        "02010101020101010100000001000000", 500.0,
        24, "", [1 << 30, 1 << 37],
        [
            "attribute add_one 8 60000", f"launch add_one {launched}", "event flags 0", "event flags 0", "profiler on",
            "attribute nothing 8 60000", f"launch nothing {launched}", "profiler off",
        ],
        1,
    ]  # fmt: skip


def test_host_memory_is_mapped_until_it_is_freed(software_pycuda):
    answer = software_pycuda(
        """
        driver = make(0)
        host, other = driver.allocate_host(5000), driver.allocate(4)
        driver.write(host + 8, b"abcd")
        driver.copy(other, host + 8, 4)
        driver.synchronize()
        answer = [driver.read(host + 9, 2).decode(), driver.read(other, 4).decode()]
        driver.free(host)
        answer += [line for line in record() if "host" in line]
        driver.close()
        """
    )
    assert answer == ["bc", "abcd", "host 5000 flags 3", "free host"]


def test_arguments_are_packed_as_the_kernel_expects_them(software_pycuda):
    lines = software_pycuda(
        """
        driver = make(0)
        function = driver.function(driver.load(b"software\\nkernel mixed 1 2 4 8 2\\n\\0"), "mixed")
        values = [b"\\xfe", b"\\1\\2", b"\\3\\4\\5\\6", bytes(range(10, 18)), b"\\xaa\\xbb"]
        driver.launch(function, LaunchShape((1, 1, 1), (1, 1, 1)), values)
        answer = record()
        """
    )
    assert lines[0].endswith("arguments fe 0102 03040506 0a0b0c0d0e0f1011 aabb")


def test_errors_have_cudas_names_and_what_pycuda_lacks_is_said(software_pycuda):
    answer = software_pycuda(
        """
        driver = make(0)
        module = driver.load(IMAGE)
        function = driver.function(module, "many")
        one = (1, 1, 1)
        codes = []
        for refused in (
            lambda: driver.function(module, "absent"),
            lambda: driver.load(b"no cubin"),
            lambda: driver.free(77),
            lambda: driver.allocate(1 << 40),
            lambda: (fail("cuStreamSynchronize", 700), driver.synchronize()),
            lambda: driver.capture(),
            lambda: driver.tensor_map(TensorMapSpec(0, "float32", (4,), (), (4,))),
            lambda: driver.launch(function, LaunchShape(one, one, cluster=(2, 1, 1)), []),
            lambda: driver.launch(function, LaunchShape(one, one, cooperative=True), []),
            lambda: driver.launch(function, LaunchShape(one, one), [bytes(128)]),
            lambda: (driver.unload(module), driver.launch(function, LaunchShape(one, one), [])),
            lambda: make(3),
        ):
            try:
                refused()
                codes.append(None)
            except DriverError as error:
                codes.append(error.code.removeprefix("CUDA_ERROR_"))
        answer = codes, sorted(driver.lacks)
        """
    )
    codes, lacks = answer
    assert codes == [
        "NOT_FOUND", "INVALID_IMAGE", "INVALID_VALUE", "OUT_OF_MEMORY", "ILLEGAL_ADDRESS",
        *["NOT_SUPPORTED"] * 5, "INVALID_HANDLE", "INVALID_DEVICE",
    ]  # fmt: skip
    assert lacks == ["clusters", "cooperative", "graphs", "tensor_maps"]
