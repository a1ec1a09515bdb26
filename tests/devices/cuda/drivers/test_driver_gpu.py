"""Every method of each driver on a GPU, each script in a child of its own."""

import struct
import subprocess
import sys
import textwrap

import pytest

from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.nvml import read_clocks
from tests.devices.cuda.drivers import software_cuda

GPUS = discovery.gpus()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="needs an NVIDIA GPU")]


@pytest.fixture(params=["cupy", "pycuda"])
def gpu(request):
    """Run a script with ``driver`` and ``module``; its ``answer`` comes back."""
    missing = discovery.missing_packages(request.param)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    prelude = f"from tests.devices.cuda.drivers.gpu_scripts import *\ndriver, module = open_driver({request.param!r})\n"
    ending = "\ndriver.close()\n"

    def run(script: str, *, needs: str = "") -> object:
        if request.param == "pycuda" and needs in ("clusters", "cooperative", "tensor_maps", "graphs"):
            pytest.skip(f"pycuda lacks {needs}")
        return software_cuda.run(None, prelude + textwrap.dedent(script) + ending)

    return run


def test_facts_agree_with_what_discovery_found(gpu):
    facts = gpu(
        "from dataclasses import asdict\nanswer = {**asdict(driver.facts), 'gbps': driver.facts.memory_bandwidth_gbps}"
    )
    assert (facts["name"], facts["uuid"]) == (GPUS[0].name, GPUS[0].uuid)
    assert facts["driver"] == GPUS[0].cuda
    assert facts["memory_bytes"] == pytest.approx(GPUS[0].memory_bytes, rel=0.05)
    assert facts["sm_count"] > 0
    assert facts["shared_bytes_per_block"] >= 99 << 10
    # From 0.2 TB/s of the smallest card on; 0 would mean that the driver does not say its memory's clock.
    assert 200 < facts["gbps"] < 20_000


def test_clocks_can_be_read():
    clocks = read_clocks(GPUS[0].uuid)
    assert clocks is not None
    assert clocks.sm_mhz[0] > 0
    assert clocks.power_w[0] > 0


def test_memory_is_written_filled_copied_and_read_in_order(gpu):
    answer = gpu(
        """
        data = bytes(range(256)) * 4097
        first, second, empty = driver.allocate(len(data)), driver.allocate(len(data)), driver.allocate(0)
        free, total = driver.memory()
        driver.write(first, memoryview(data))
        driver.copy(second, first, len(data))
        driver.fill(second + 1, 0xEE, 3)
        right = driver.read(second, len(data)) == data[:1] + b"\\xee" * 3 + data[4:]
        driver.write(empty, b"")
        answer = right, driver.read(empty, 0) == b"", first % 256, second % 256, 0 < free < total
        for pointer in (first, second, empty):
            driver.free(pointer)
        """
    )
    assert answer == [True, True, 0, 0, True]


def test_kernels_reach_host_memory_that_the_cpu_fills(gpu):
    answer = gpu(
        """
        host = driver.allocate_host(4096)
        driver.write(host + 128, bytes(range(16)))
        driver.launch(driver.function(module, "add_one"), shape(1, 32), pack("QI", host + 128, 3))
        answer = driver.read(host + 128, 16).hex()
        driver.free(host)
        """
    )
    assert answer == "010102030505060709090a0b0c0d0e0f"


def test_scalar_arguments_arrive(gpu):
    answer = gpu(
        """
        out = driver.allocate(64)
        driver.fill(out, 0, 64)
        values = pack("bhiqdh", -3, -1000, 1 << 30, -(1 << 50), 0.1, 77)
        driver.launch(driver.function(module, "scalars"), shape(1, 1), pack("Q", out) + values)
        answer = driver.read(out, 25).hex()
        """
    )
    assert answer == struct.pack("<bhiqdh", -3, -1000, 1 << 30, -(1 << 50), 0.1, 77).hex()


def test_a_structure_arrives_by_value(gpu):
    answer = gpu(
        """
        out = driver.allocate(25)
        driver.launch(driver.function(module, "blob"), shape(1, 1), pack("Qb", out, 9) + [bytes(range(24))])
        answer = driver.read(out, 25).hex()
        """,
        needs="tensor_maps",
    )
    assert answer == (b"\x09" + bytes(range(24))).hex()


def test_variables_and_large_shared_memory_work_and_a_module_unloads(gpu):
    answer = gpu(
        """
        table, nbytes = driver.variable(module, "table")
        driver.write(table + 20, pack("I", 60)[0])
        count = (driver.facts.shared_bytes_per_block - 1024) // 4
        out = driver.allocate(4 * count)
        driver.fill(out, 0, 4 * count)
        driver.launch(driver.function(module, "add_table"), shape(1, 32), pack("Q", out))
        sums = words(driver.read(out, 24))
        driver.launch(
            driver.function(module, "reversed"), shape(1, 256, shared_bytes=4 * count), pack("QI", out, count)
        )
        right = words(driver.read(out, 4 * count)) == list(range(count))[::-1]
        codes = []
        for refused in (lambda: driver.function(module, "absent"), lambda: driver.load(b"no cubin at all")):
            try:
                refused()
            except DriverError as error:
                codes.append(error.code)
        driver.unload(module)
        answer = nbytes, sums, right, codes
        """
    )
    nbytes, sums, right, codes = answer
    assert (nbytes, sums, right) == (24, [1, 2, 3, 4, 5, 60], True)
    assert codes[0] == "CUDA_ERROR_NOT_FOUND"
    assert codes[1] in ("CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_PTX")


def test_events_time_what_lies_between_them(gpu):
    short, long = gpu(
        """
        target = driver.allocate(1 << 28)
        driver.fill(target, 1, 1 << 28)
        marks = [driver.event()]
        for repeats in (1, 20):
            for _ in range(repeats):
                driver.fill(target, 1, 1 << 28)
            marks.append(driver.event())
        driver.synchronize()
        answer = driver.elapsed_us(marks[0], marks[1]), driver.elapsed_us(marks[1], marks[2])
        """
    )
    assert 0 < short < long


def test_events_can_be_recorded_again(gpu):
    first, second = gpu(
        """
        target = driver.allocate(1 << 28)
        start, end = driver.event(), None
        times = []
        for _ in range(2):
            driver.fill(target, 1, 1 << 28)
            end = driver.event(end)
            driver.synchronize()
            times.append(driver.elapsed_us(start, end))
        answer = times
        """
    )
    assert 0 < first < second


def test_the_flush_is_compiled_from_text_and_reads_all_of_its_buffer(gpu):
    answer = gpu(
        """
        import contextlib
        from kernelforge.devices.cuda.worker.l2_flush import L2Flush as Flush
        nbytes = 2 * driver.facts.l2_bytes
        flush = Flush(driver, nbytes, 0x5A)
        with driver.capture() if "graphs" not in driver.lacks else contextlib.nullcontext() as held:
            flush.run()
        if held is not None:
            held.graph.launch()
        clean = len(flush.faults())
        driver.fill(flush._buffer + nbytes - 1, 1, 1)
        flush.run()
        answer = clean, len(flush.faults())
        flush.close()
        """
    )
    assert answer == [0, 1]


def test_the_flush_leaves_nothing_in_shared_memory(gpu):
    assert (
        gpu(
            """
        from kernelforge.devices.cuda.worker.l2_flush import L2Flush as Flush
        flush = Flush(driver, 1 << 20, 0x5A)
        nbytes = driver.facts.shared_bytes_per_block
        found, mark = driver.allocate(4), driver.function(module, "mark_shared")
        driver.fill(found, 0, 4)
        everywhere = shape(driver.facts.sm_count, 1024, shared_bytes=nbytes)
        driver.launch(mark, everywhere, pack("QII", found, nbytes // 4, 1))
        flush.run()
        driver.launch(mark, everywhere, pack("QII", found, nbytes // 4, 0))
        answer = words(driver.read(found, 4))[0]
        flush.close()
        """
        )
        == 0
    )


@pytest.mark.parametrize("size", [2, 8, 16])
def test_clusters_have_the_size_asked_for(gpu, size):
    answer = gpu(
        f"""
        out = driver.allocate(4 * 32)
        driver.launch(driver.function(module, "ranks"), shape(32, 32, cluster=({size}, 1, 1)), pack("Q", out))
        answer = words(driver.read(out, 4 * 32))
        """,
        needs="clusters",
    )
    assert sorted(answer) == sorted(100 * size + block % size for block in range(32))


def test_a_cooperative_grid_is_resident_and_one_too_large_is_refused(gpu):
    ones, code = gpu(
        """
        blocks = driver.facts.sm_count
        arrived, out = driver.allocate(4), driver.allocate(4 * blocks)
        driver.fill(arrived, 0, 4)
        meet = driver.function(module, "meet")
        driver.launch(meet, shape(blocks, 32, cooperative=True), pack("QQ", arrived, out))
        ones = set(words(driver.read(out, 4 * blocks))) == {1}
        try:
            driver.launch(meet, shape(1000 * blocks, 1024, cooperative=True), pack("QQ", arrived, out))
        except DriverError as error:
            answer = ones, error.code
        """,
        needs="cooperative",
    )
    assert ones
    assert code == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"


def test_a_tensor_map_moves_a_tile_and_pads_with_zeros(gpu):
    answer = gpu(
        """
        import struct
        rows, columns = 9, 12
        source, out = driver.allocate(4 * rows * columns), driver.allocate(128)
        driver.write(source, struct.pack(f"<{rows * columns}f", *range(rows * columns)))
        spec = TensorMapSpec(source, "float32", (columns, rows), (4 * columns,), (8, 4))
        encoded = driver.tensor_map(spec)
        driver.launch(driver.function(module, "tile"), shape(1, 32), [encoded, *pack("Qii", out, 7, 8)])
        answer = struct.unpack("<32f", driver.read(out, 128))
        """,
        needs="tensor_maps",
    )
    expected = [12 * row + column if row < 9 and column < 12 else 0 for row in range(7, 11) for column in range(8, 16)]
    assert answer == expected


def test_a_map_of_images_moves_a_column_of_pixels(gpu):
    """Two images of 3 x 5 pixels with 8 channels, padded by one; from position (1, 3) on, a filter's place (2, 1)."""
    answer = gpu(
        """
        import struct
        source, out = driver.allocate(4 * 240), driver.allocate(4 * 64)
        driver.write(source, struct.pack("<240f", *range(240)))
        box = PixelBoxSpec((-1, -1), (-1, -1), (1, 1))
        spec = TensorMapSpec(source, "float32", (8, 5, 3, 2), (32, 160, 480), (8, 8), 0, box)
        encoded = driver.tensor_map(spec)
        driver.launch(driver.function(module, "column"), shape(1, 32), [encoded, *pack("Qii", out, 1, 3)])
        answer = struct.unpack("<64f", driver.read(out, 256))
        """,
        needs="tensor_maps",
    )
    expected = []
    image, row, position = 0, 1, 3
    for _ in range(8):
        y, x = row + 2, position + 1
        inside = 0 <= y < 3 and 0 <= x < 5
        expected += [8 * (15 * image + 5 * y + x) + channel if inside else 0 for channel in range(8)]
        position += 1
        if position > 3:
            row, position = row + 1, -1
        if row > 1:
            image, row = image + 1, -1
    assert answer == expected


def test_a_graph_replays_launches_fills_and_copies(gpu):
    answer = gpu(
        """
        values, copied = driver.allocate(4 * 100), driver.allocate(4 * 100)
        driver.fill(values, 0, 400)
        driver.fill(copied, 0, 400)
        add_one = driver.function(module, "add_one")
        with driver.capture() as held:
            driver.launch(add_one, shape(4, 32), pack("QI", values, 100))
            driver.copy(copied, values, 400)
            driver.fill(values + 396, 0, 4)
        before = set(words(driver.read(copied, 400)))
        for _ in range(3):
            held.graph.launch()
        after = words(driver.read(copied, 400)), words(driver.read(values, 400))
        held.graph.close()
        try:
            with driver.capture():
                driver.synchronize()
        except DriverError as error:
            code = error.code
        driver.launch(add_one, shape(4, 32), pack("QI", values, 100))
        driver.synchronize()
        answer = list(before), after[0] == [3] * 99 + [1], after[1] == [3] * 99 + [0], code
        """,
        needs="graphs",
    )
    assert answer == [[0], True, True, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"]


_TORCH = """
import torch
target = driver.allocate(4 * 64 * 64)
with driver.torch_stream():
    matrix = torch.ones(64, 64, device="cuda")
    (matrix @ matrix).sum(dim=1)
"""


def test_torch_works_on_the_drivers_stream(gpu):
    answer = gpu(
        _TORCH
        + """
with driver.torch_stream():
    product = matrix @ matrix
driver.copy(target, product.data_ptr(), 4 * 64 * 64)
answer = driver.read(target, 4 * 64 * 64) == pack("f", 64.0)[0] * 64 * 64
"""
    )
    assert answer is True


def test_torch_is_captured_with_memory_that_the_graph_keeps(gpu):
    answer = gpu(
        _TORCH
        + """
with driver.capture() as held:
    with driver.torch_stream():
        product = (matrix @ matrix) + 1
    driver.copy(target, product.data_ptr(), 4 * 64 * 64)
del product
answer = []
for value in (1.0, 2.0):
    with driver.torch_stream():
        matrix.fill_(value)
        # Memory of others, which must not be the graph's.
        noise = [torch.full((64, 64), 7.0, device="cuda") for _ in range(32)]
    held.graph.launch()
    answer.append(driver.read(target, 4 * 64 * 64) == pack("f", 64 * value * value + 1)[0] * 64 * 64)
held.graph.close()
""",
        needs="graphs",
    )
    assert answer == [True, True]


def test_a_region_can_be_profiled(gpu):
    answer = gpu(
        """
        out = driver.allocate(16)
        driver.fill(out, 0, 16)
        with driver.profiler_region():
            driver.launch(driver.function(module, "add_one"), shape(1, 4), pack("QI", out, 4))
        answer = words(driver.read(out, 16))
        """
    )
    assert answer == [1, 1, 1, 1]


@pytest.mark.parametrize("runtime", ["cupy", "pycuda"])
def test_an_illegal_address_is_sticky_and_named(runtime):
    missing = discovery.missing_packages(runtime)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    # The child is left without its driver's clean-up: its context is lost.
    answer = software_cuda.run(
        None,
        f"""
        from tests.devices.cuda.drivers.gpu_scripts import *
        import os
        driver, module = open_driver({runtime!r})
        codes = []
        for _ in range(2):
            try:
                driver.launch(driver.function(module, "astray"), shape(1, 32), pack("Q", 64))
                driver.synchronize()
            except DriverError as error:
                codes.append((error.code, error.sticky))
        print(json.dumps(codes), flush=True)
        os._exit(0)
        """,
    )
    assert answer == [["CUDA_ERROR_ILLEGAL_ADDRESS", True]] * 2


def test_a_gpu_that_is_not_there_is_named():
    script = f"from kernelforge.devices.cuda.worker.cupy_driver import make\nmake({len(GPUS) + 7})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "CUDA_ERROR_INVALID_DEVICE" in done.stderr
