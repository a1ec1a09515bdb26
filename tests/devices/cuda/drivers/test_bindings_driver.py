"""The driver's calls through the real cuda-bindings, into a libcuda in software that is compiled against cuda.h."""

import struct

import pytest

from tests.devices.cuda.drivers import gpu_scripts, software_cuda


@pytest.mark.slow
def test_the_kernels_of_the_gpu_suite_compile_for_hopper_where_there_is_no_gpu():
    script = """
        from tests.devices.cuda.drivers.gpu_scripts import *
        made = compiled("sm_90a")
        answer = made.status, made.log, len(made.cubin)
    """
    status, log, size = software_cuda.run(None, script)
    assert (status, log) == (0, "")
    assert size > 1000
    assert gpu_scripts.SOURCE.exists()


@pytest.mark.slow
def test_facts_are_what_the_library_says(software):
    facts = software(
        """
        from dataclasses import asdict
        driver = open_driver()
        answer = {**asdict(driver.facts), "arch": driver.facts.arch, "gbps": driver.facts.memory_bandwidth_gbps}
        """
    )
    assert facts["name"] == "Software GPU"
    assert facts["uuid"] == "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
    assert (facts["max_clock_mhz"], facts["memory_clock_mhz"], facts["memory_bus_bits"]) == (1980, 3201, 6144)
    assert (facts["sm_count"], facts["l2_bytes"], facts["memory_bytes"]) == (132, 62914560, 1 << 37)
    assert (facts["shared_bytes_per_block"], facts["shared_bytes_per_sm"]) == (232448, 233472)
    assert (facts["registers_per_sm"], facts["threads_per_sm"]) == (65536, 2048)
    assert (facts["driver"], facts["runtime"], facts["arch"]) == ("13.0", "software 1", "sm_90a")
    # The published figure of the GPU with these clocks, an H200, is 4.8 TB/s.
    assert 4800 < facts["gbps"] < 5000


@pytest.mark.slow
def test_a_mig_instance_and_clocks_that_nobody_tells(software):
    facts = software(
        """
        import os
        from dataclasses import asdict
        os.environ.update(MIG="", CLOCK_KHZ="0")
        try:
            driver = open_driver()
            answer = {**asdict(driver.facts), "gbps": driver.facts.memory_bandwidth_gbps}
        finally:
            del os.environ["MIG"], os.environ["CLOCK_KHZ"]
        """
    )
    # The text by which CUDA_VISIBLE_DEVICES and the list of GPUs name it, with every version of the bindings.
    assert facts["uuid"] == "MIG-c0c1c2c3-c4c5-c6c7-c8c9-cacbcccdcecf"
    assert (facts["max_clock_mhz"], facts["memory_clock_mhz"], facts["gbps"]) == (0, 0, 0.0)


def test_a_gpu_before_hopper_lacks_clusters_and_tensor_maps(software):
    answer = software(
        """
        import os
        answer = [sorted(open_driver().lacks)]
        os.environ["CAPABILITY"] = "8"
        answer.append(sorted(open_driver().lacks))
        """
    )
    assert answer == [[], ["clusters", "tensor_maps"]]


def test_every_argument_arrives_byte_for_byte(software):
    lines = software(
        """
        driver = open_driver()
        function = driver.function(driver.load(IMAGE), "many")
        values = [bytes(range(8)), b"\\1\\2\\3\\4", bytes(range(100, 108)), b"\\xfe\\xff", bytes(range(128))]
        driver.launch(function, LaunchShape((5, 6, 7), (8, 4, 2), shared_bytes=1024), values)
        driver.launch(driver.function(driver.load(IMAGE), "nothing"), LaunchShape((1, 1, 1), (1, 1, 1)), [])
        answer = record()
        """
    )
    values = [bytes(range(8)), b"\1\2\3\4", bytes(range(100, 108)), b"\xfe\xff", bytes(range(128))]
    written = " ".join(value.hex() for value in values)
    assert lines == [
        f"launch many grid 5,6,7 block 8,4,2 shared 1024 arguments {written}",
        "launch nothing grid 1,1,1 block 1,1,1 shared 0 arguments",
    ]


def test_a_kernel_keeps_its_module_until_it_is_unloaded(software):
    lines, code = software(
        """
        import gc
        driver = open_driver()
        function = driver.function(driver.load(IMAGE), "nothing")
        gc.collect()
        driver.launch(function, LaunchShape((1, 1, 1), (1, 1, 1)), [])
        lines = record()
        driver.unload(function.module)
        try:
            driver.launch(function, LaunchShape((1, 1, 1), (1, 1, 1)), [])
        except DriverError as error:
            answer = lines, error.code
        """
    )
    assert lines == ["launch nothing grid 1,1,1 block 1,1,1 shared 0 arguments"]
    assert code == "CUDA_ERROR_INVALID_HANDLE"


def test_cluster_and_cooperative_are_launch_attributes(software):
    lines = software(
        """
        driver = open_driver()
        function = driver.function(driver.load(IMAGE), "nothing")
        driver.launch(function, LaunchShape((8, 4, 2), (32, 1, 1), cluster=(4, 2, 1)), [])
        driver.launch(function, LaunchShape((8, 4, 2), (32, 1, 1), cooperative=True), [])
        driver.launch(function, LaunchShape((8, 4, 2), (32, 1, 1), cluster=(2, 1, 1), cooperative=True), [])
        answer = record()
        """
    )
    begin = "launch nothing grid 8,4,2 block 32,1,1 shared 0"
    assert lines == [
        f"{begin} cluster 4,2,1 arguments",
        f"{begin} cooperative 1 arguments",
        f"{begin} cluster 2,1,1 cooperative 1 arguments",
    ]


def test_attributes_of_a_kernel_are_set_once_where_a_launch_needs_them(software):
    lines = software(
        """
        driver = open_driver()
        function = driver.function(driver.load(IMAGE), "nothing")
        for shared in (49152, 100_000, 60_000, 200_000):
            driver.launch(function, LaunchShape((1, 1, 1), (32, 1, 1), shared_bytes=shared), [])
        for cluster in ((8, 1, 1), (4, 2, 2), (16, 1, 1)):
            driver.launch(function, LaunchShape((16, 2, 2), (32, 1, 1), cluster=cluster), [])
        answer = [line for line in record() if line.startswith("attribute")]
        """
    )
    dynamic, non_portable = 8, 14
    assert lines == [
        f"attribute nothing {dynamic} 100000",
        f"attribute nothing {dynamic} 200000",
        f"attribute nothing {non_portable} 1",
    ]


def test_more_shared_memory_than_the_gpu_has_is_an_error_with_its_name(software):
    code, text = software(
        """
        driver = open_driver()
        function = driver.function(driver.load(IMAGE), "nothing")
        try:
            driver.launch(function, LaunchShape((1, 1, 1), (32, 1, 1), shared_bytes=300_000), [])
        except DriverError as error:
            answer = error.code, str(error)
        """
    )
    assert code == "CUDA_ERROR_INVALID_VALUE"
    assert "300000 bytes of dynamic shared memory" in text
    assert "nothing" in text


def test_what_is_captured_runs_at_each_replay_and_not_before(software):
    answer = software(
        """
        import struct
        driver = open_driver()
        pointer, other = driver.allocate(16), driver.allocate(16)
        driver.write(pointer, bytes(16))
        driver.write(other, bytes(16))
        function = driver.function(driver.load(IMAGE), "add_one")
        forget()
        with driver.capture() as held:
            driver.launch(
                function, LaunchShape((1, 1, 1), (4, 1, 1)), [struct.pack("<Q", pointer), struct.pack("<I", 4)]
            )
            driver.copy(other, pointer, 8)
            driver.fill(pointer + 12, 0xA5, 4)
        before = driver.read(pointer, 16).hex(), driver.read(other, 16).hex()
        held.graph.launch()
        once = driver.read(pointer, 16).hex(), driver.read(other, 16).hex()
        held.graph.launch()
        twice = driver.read(pointer, 16).hex(), driver.read(other, 16).hex()
        held.graph.close()
        held.graph.close()
        lines = [line for line in record() if not line.startswith("launch")]
        try:
            held.graph.launch()
        except DriverError as error:
            answer = before, once, twice, lines, error.code
        """
    )
    before, once, twice, lines, code = answer
    assert before == ["00" * 16] * 2
    assert once == ["010000000100000001000000a5a5a5a5", "0100000001000000" + "00" * 8]
    assert twice == ["020000000200000002000000a5a5a5a5", "0200000002000000" + "00" * 8]
    thread_local = 1
    assert lines == [
        f"capture mode {thread_local}", "capture ends", "instantiate flags 0", "destroy template", "upload",
        "replay", "replay", "destroy graph",
    ]  # fmt: skip
    assert code == "CUDA_ERROR_INVALID_HANDLE"


def test_an_error_within_a_capture_ends_it_and_leaves_the_stream_usable(software):
    answer = software(
        """
        driver = open_driver()
        pointer = driver.allocate(4)
        try:
            with driver.capture() as held:
                raise KeyError("mine")
        except KeyError:
            pass
        driver.fill(pointer, 7, 4)
        answer = driver.read(pointer, 4).hex(), hasattr(held, "graph"), record(), driver.capturing is None
        """
    )
    values, has_graph, lines, free = answer
    assert (values, has_graph, free) == ("07070707", False, True)
    assert lines == ["allocate 4", "capture mode 1", "capture ends", "destroy template"]


def test_a_capture_that_cuda_gave_up_is_an_error_with_its_name(software):
    code = software(
        """
        driver = open_driver()
        fail("cuStreamEndCapture", 901)
        try:
            with driver.capture():
                pass
        except DriverError as error:
            answer = error.code
        """
    )
    assert code == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"


def test_bytes_go_there_and_back_and_empty_ones_too(software):
    answer = software(
        """
        driver = open_driver()
        data = bytes(range(256)) * 33
        first, second = driver.allocate(len(data)), driver.allocate(len(data))
        driver.write(first, memoryview(data))
        driver.copy(second, first, len(data))
        driver.fill(second + 1, 0xEE, 3)
        read = driver.read(second, len(data))
        empty = driver.allocate(0)
        driver.write(empty, b"")
        driver.fill(empty, 1, 0)
        driver.copy(empty, first, 0)
        answer = [
            read == data[:1] + b"\\xee" * 3 + data[4:], driver.read(empty, 0) == b"", first % 256, empty != 0,
            driver.memory(),
        ]
        for pointer in (first, second, empty):
            driver.free(pointer)
        """
    )
    assert answer == [True, True, 0, True, [1 << 30, 1 << 37]]


def test_host_memory_is_mapped_and_reached_by_the_cpu_until_it_is_freed(software):
    answer = software(
        """
        driver = open_driver()
        forget()
        host, other = driver.allocate_host(5000), driver.allocate(64)
        data = bytes(range(250)) * 20
        driver.write(host, memoryview(data))
        driver.copy(other, host + 4, 64)
        driver.write(host + 4, b"")
        driver.write(host + 8, b"ab")
        answer = [driver.read(other, 64) == data[4:68], driver.read(host + 6, 6) == data[6:8] + b"ab" + data[10:12]]
        driver.free(host)
        fail("cuMemHostGetDevicePointer", 1)
        try:
            driver.allocate_host(64)
        except DriverError as error:
            answer.append(error.code)
        answer += record()
        """
    )
    assert answer[:3] == [True, True, "CUDA_ERROR_INVALID_VALUE"]
    flags = 1 | 2  # CU_MEMHOSTALLOC_PORTABLE and CU_MEMHOSTALLOC_DEVICEMAP
    assert [line for line in answer[3:] if "host" in line] == [
        f"host 5000 flags {flags}", "free host", f"host 64 flags {flags}", "free host",
    ]  # fmt: skip


def test_a_module_has_kernels_and_variables_until_it_is_unloaded(software):
    answer = software(
        """
        driver = open_driver()
        module = driver.load(IMAGE)
        pointer, nbytes = driver.variable(module, "table")
        driver.write(pointer, bytes(range(24)))
        codes = []
        for missing in (lambda: driver.function(module, "absent"), lambda: driver.variable(module, "absent"),
                        lambda: driver.load(b"no cubin")):
            try:
                missing()
            except DriverError as error:
                codes.append(error.code)
        read = driver.read(pointer, nbytes).hex()
        forget()
        driver.unload(module)
        answer = nbytes, read, codes, record()
        """
    )
    codes = ["CUDA_ERROR_NOT_FOUND", "CUDA_ERROR_NOT_FOUND", "CUDA_ERROR_INVALID_IMAGE"]
    assert answer == [24, bytes(range(24)).hex(), codes, ["unload"]]


def test_events_measure_in_microseconds_and_are_destroyed(software):
    answer = software(
        """
        driver = open_driver()
        start, _, end = driver.event(), driver.event(), driver.event()
        took = driver.elapsed_us(start, end)
        again = driver.event(end) is end
        later = driver.elapsed_us(start, end)
        del start, _, end
        answer = took, again, later > took, record()
        """
    )
    assert answer == [1000.0, True, True, ["event flags 0"] * 3 + ["destroy event"] * 3]


def test_a_lost_context_is_a_sticky_error(software):
    answer = software(
        """
        driver = open_driver()
        fail("cuStreamSynchronize", 700)
        try:
            driver.synchronize()
        except DriverError as error:
            answer = error.code, error.sticky, str(error)
        """
    )
    name = "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert answer == [name, True, f"{name} while waiting for the stream"]


def test_an_error_that_no_header_knows_keeps_its_number(software):
    assert (
        software(
            """
            driver = open_driver()
            fail("cuLaunchKernelEx", 987)
            try:
                driver.launch(driver.function(driver.load(IMAGE), "nothing"), LaunchShape((1, 1, 1), (1, 1, 1)), [])
            except DriverError as error:
                answer = error.code
            """
        )
        == "CUDA_ERROR_987"
    )


def test_a_tensor_map_is_encoded_from_its_specification(software):
    answer = software(
        """
        driver = open_driver()
        pointer = driver.allocate(1 << 16)
        maps = []
        for element, swizzle in (("bfloat16", 128), ("float32", 32), ("int8", 0), ("bool", 64)):
            spec = TensorMapSpec(pointer, element, (96, 40, 3), (192, 7680), (64, 8, 1), swizzle)
            maps.append(driver.tensor_map(spec).hex())
        fail("cuTensorMapEncodeTiled", 1)
        errors = []
        for element in ("float16", "complex64"):
            try:
                driver.tensor_map(TensorMapSpec(pointer, element, (4,), (), (5000,)))
            except DriverError as error:
                errors.append([error.code, str(error)])
        answer = pointer, maps, record()[1:], errors
        """
    )
    pointer, maps, lines, errors = answer
    words = [pointer, *(0x0102030405060708 * word % 2**64 for word in range(1, 16))]
    assert maps == [struct.pack("<16Q", *words).hex()] * 4
    # CUtensorMapDataType: UINT8 0, FLOAT32 7, BFLOAT16 9; swizzle: none 0, 32B 1, 64B 2, 128B 3; L2 promotion: 128B 2.
    assert lines == [
        f"tensor map type {element} rank 3 dims 96 40 3 strides 192 7680 box 64 8 1 steps 1 1 1 "
        f"interleave 0 swizzle {swizzle} promotion 2 fill 0"
        for element, swizzle in ((9, 3), (7, 1), (0, 0), (0, 2))
    ]
    assert [code for code, _ in errors] == ["CUDA_ERROR_INVALID_VALUE"] * 2
    assert "box (5000,)" in errors[0][1]
    assert "complex64" in errors[1][1]


def test_a_map_of_images_is_encoded_from_its_specification(software):
    pointer, encoded, lines, errors = software(
        """
        driver = open_driver()
        pointer = driver.allocate(1 << 16)
        box = PixelBoxSpec((-1, -2), (0, 3), (2, 1))
        spec = TensorMapSpec(pointer, "float16", (64, 9, 14, 3), (128, 1152, 16128), (32, 64), 64, box)
        encoded = driver.tensor_map(spec).hex()
        fail("cuTensorMapEncodeIm2col", 1)
        errors = []
        try:
            driver.tensor_map(spec)
        except DriverError as error:
            errors.append([error.code, str(error)])
        answer = pointer, encoded, record()[1:], errors
        """
    )
    assert encoded == struct.pack("<16Q", pointer, *(0x0102030405060708 * k % 2**64 for k in range(1, 16))).hex()
    assert lines == [
        "map of images type 6 rank 4 dims 64 9 14 3 strides 128 1152 16128 lower -1 -2 upper 0 3 channels 32 pixels 64 "
        "steps 1 2 1 1 interleave 0 swizzle 2 promotion 2 fill 0"
    ]
    assert errors[0][0] == "CUDA_ERROR_INVALID_VALUE"
    assert "corners (-1, -2) and (0, 3), stride (2, 1)" in errors[0][1]


def test_a_wide_map_of_images_is_encoded_from_its_specification(software):
    lines, error = software(
        """
        driver = open_driver()
        pointer = driver.allocate(1 << 16)
        for mode in ("im2col::w", "im2col::w::128"):
            box = PixelBoxSpec((-1,), (2,), (3,), mode)
            spec = TensorMapSpec(pointer, "float16", (64, 9, 14, 3), (128, 1152, 16128), (32, 128), 64, box)
            driver.tensor_map(spec)
        fail("cuTensorMapEncodeIm2colWide", 1)
        try:
            driver.tensor_map(spec)
        except DriverError as caught:
            error = str(caught)
        answer = record()[1:], error
        """
    )
    assert lines == [
        "wide map of images type 6 rank 4 dims 64 9 14 3 strides 128 1152 16128 lower -1 upper 2 channels 32 "
        f"pixels 128 steps 1 3 1 1 interleave 0 mode {mode} swizzle 2 promotion 2 fill 0"
        for mode in (0, 1)
    ]
    assert "im2col::w::128, corners (-1,) and (2,), stride (3,)" in error


def test_tensor_maps_are_encoded_where_cuda_wants_them(software):
    # The library refuses an address that is no multiple of 64; the kept blocks make the allocator move on.
    maps = software(
        """
        import ctypes
        driver = open_driver()
        spec = TensorMapSpec(driver.allocate(4096), "float32", (32, 32), (128,), (8, 8))
        kept, answer = [], []
        for _ in range(16):
            answer.append(driver.tensor_map(spec).hex())
            kept += [ctypes.create_string_buffer(129 + extra) for extra in (0, 16, 127)]
        """
    )
    assert len(maps) == 16
    assert len(set(maps)) == 1


def test_only_the_region_is_profiled(software):
    lines = software(
        """
        driver = open_driver()
        function = driver.function(driver.load(IMAGE), "nothing")
        shape = LaunchShape((1, 1, 1), (1, 1, 1))
        driver.launch(function, shape, [])
        with driver.profiler_region():
            driver.launch(function, shape, [])
        answer = [line.split(" grid")[0] for line in record()]
        """
    )
    assert lines == ["launch nothing", "profiler on", "launch nothing", "profiler off"]
