"""Counters equal what can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.emulated.codegen import program
from kernelforge.devices.emulated.codegen.emit import memory
from kernelforge.devices.emulated.layout import GLOBAL_BASE
from kernelforge.devices.emulated.profile.traffic import (
    distinct,
    distinct_in_grid,
    most_updates,
    most_updates_of_a_word,
)
from kernelforge.devices.emulated.runtime.cache import CacheModel
from tests.devices.emulated.harness import bank_conflicts, compiled_at, cuda, total


def only(report, space: str, access: str):  # type: ignore[no-untyped-def]
    ops = [op for op in report.memory if (op.space, op.access) == (space, access)]
    assert len(ops) == 1
    return ops[0]


@pytest.mark.parametrize(
    ("stride", "sectors", "lines"),
    [(1, 4, 1), (2, 8, 2), (3, 12, 3), (8, 32, 8), (16, 32, 16), (32, 32, 32), (0, 1, 1)],
)
def test_sectors_and_lines_per_request_by_stride(stride: int, sectors: int, lines: int) -> None:
    source = f'extern "C" __global__ void k(const float* x, float* y) {{ y[threadIdx.x] = x[threadIdx.x * {stride}]; }}'
    report = cuda(source).run(3, 64, np.zeros(2048, np.float32), np.zeros(64, np.float32))
    op = only(report, "global", "load")
    assert (op.requests, op.threads, op.transactions, op.lines) == (6, 192, 6 * sectors, 6 * lines)
    assert op.ideal_transactions == 6 * (4 if stride else 1)
    assert total(report, "transactions", "global", "load") == 6 * sectors
    assert op.threads * op.bytes_per_thread == 192 * 4


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_requests_in_any_order_of_lanes_count_what_they_touch(kind: type) -> None:
    """Lanes that rise, fall, meet or jump between two buffers, in some lanes only."""
    name = {np.float32: "float", np.float64: "double"}[kind]
    source = f"""extern "C" __global__ void k(const int* at, const {name}* x, const {name}* z, {name}* y) {{
  int i = blockIdx.x * 32 + threadIdx.x, from = at[i];
  if (from >= 0) y[i] = (from & 1 ? x : z)[from];
}}"""
    draws = np.random.default_rng(1)
    rising = np.sort(draws.integers(0, 600, (10, 32)), axis=1)
    falling = np.sort(draws.integers(0, 90, (10, 32)), axis=1)[:, ::-1]
    requests = np.concatenate([rising, falling, draws.integers(0, 4000, (10, 32)), draws.integers(0, 9, (10, 32))])
    requests[draws.random(requests.shape) < 0.1] = -1
    data = np.arange(4000).astype(kind)
    result = np.zeros(requests.size, kind)
    report = cuda(source).run(len(requests), 32, requests.astype(np.int32).reshape(-1), data, data.copy(), result)
    load = next(op for op in report.memory if op.access == "load" and op.threads == (requests >= 0).sum())
    # Buffers begin at lines of their own.
    bytes_of = [[(index & 1) * 2**20 + index * data.itemsize for index in row if index >= 0] for row in requests]
    for shift, counted in ((5, load.transactions), (7, load.lines)):
        assert counted == sum(len({byte >> shift for byte in row}) for row in bytes_of)
    assert load.ideal_transactions == sum((len(set(row)) * data.itemsize + 31) // 32 for row in bytes_of)
    assert np.array_equal(result, np.maximum(requests, 0).reshape(-1).astype(kind))


def test_offset_by_one_element_costs_a_fifth_sector() -> None:
    source = 'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }'
    op = only(cuda(source).run(1, 32, np.zeros(64, np.float32), np.zeros(32, np.float32)), "global", "load")
    assert (op.transactions, op.ideal_transactions) == (5, 4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("pitch", [32, 33, 40, 48, 61])
def test_lines_follow_each_row_of_a_matrix(kind: type, pitch: int, threads: int) -> None:
    """A warp reads 32 elements of a row: how many lines these lie in changes with the row."""
    name = {np.uint8: "unsigned char", np.uint16: "unsigned short", np.float32: "float", np.float64: "double"}[kind]
    source = f"""extern "C" __global__ void k(const {name}* x, {name}* y) {{
  for (int i = blockIdx.x * {pitch} + threadIdx.x; i < 64 * {pitch}; i += gridDim.x * {pitch}) y[i] = x[i];
}}"""
    matrix = np.arange(64 * pitch).astype(kind)
    device = cuda(source, threads=threads)
    report = device.run(8, 32, matrix, np.zeros_like(matrix))
    size = matrix.itemsize
    for bits, attribute in ((7, "lines"), (5, "transactions")):
        expected = sum(((row * pitch + 32) * size - 1 >> bits) - (row * pitch * size >> bits) + 1 for row in range(64))
        for access in ("load", "store"):
            assert getattr(only(report, "global", access), attribute) == expected


def test_float4_needs_16_sectors() -> None:
    source = 'extern "C" __global__ void k(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }'
    report = cuda(source).run(1, 32, np.zeros(128, np.float32), np.zeros(128, np.float32))
    for access in ("load", "store"):
        op = only(report, "global", access)
        assert (op.requests, op.threads, op.transactions, op.lines, op.bytes_per_thread) == (1, 32, 16, 4, 16)


def test_partial_warp_counts_its_lanes() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) y[i] = x[i];
}"""
    report = cuda(source).run(2, 64, np.zeros(75, np.float32), np.zeros(75, np.float32), 75)
    op = only(report, "global", "load")
    assert (op.requests, op.threads, op.transactions) == (3, 75, 4 + 4 + 2)
    assert report.divergent_branches == 1


TRANSPOSE = """extern "C" __global__ void k(const float* x, float* y, int n) {
  __shared__ float tile[32][WIDTH];
  int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 32 + threadIdx.y;
  tile[threadIdx.y][threadIdx.x] = x[j * n + i];
  __syncthreads();
  y[(blockIdx.x * 32 + threadIdx.y) * n + blockIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}"""


@pytest.mark.parametrize(("width", "wavefronts"), [(32, 32), (33, 1)])
def test_transpose_bank_conflicts(width: int, wavefronts: int) -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    y = np.zeros_like(x)
    report = cuda(TRANSPOSE.replace("WIDTH", str(width))).run((2, 2), (32, 32), x, y, 64)
    assert np.array_equal(y, x.T)
    load = only(report, "shared", "load")
    assert (load.requests, load.transactions) == (128, 128 * wavefronts)
    assert only(report, "shared", "store").transactions == 128
    assert bank_conflicts(report) == 128 * (wavefronts - 1)
    assert report.barriers == 4


def test_wide_shared_accesses_are_conflict_free_in_groups() -> None:
    source = """extern "C" __global__ void k(float* y) {
  __shared__ float4 s4[32]; __shared__ float2 s2[32];
  s4[threadIdx.x] = make_float4(1, 2, 3, threadIdx.x); s2[threadIdx.x] = make_float2(4, threadIdx.x);
  __syncthreads();
  y[threadIdx.x] = s4[31 - threadIdx.x].w + s2[threadIdx.x ^ 1].y;
}"""
    report = cuda(source).run(1, 32, np.zeros(32, np.float32))
    stores = sorted(
        (op.bytes_per_thread, op.transactions) for op in report.memory if (op.space, op.access) == ("shared", "store")
    )
    assert stores == [(8, 2), (16, 4)]
    # A 4-byte read of every fourth word uses eight banks four times; every second word, sixteen banks twice.
    loads = sorted(op.transactions for op in report.memory if (op.space, op.access) == ("shared", "load"))
    assert loads == [2, 4]


def test_wide_shared_loads_of_the_same_words_are_served_in_groups() -> None:
    """A quarter-warp at a time for 16 bytes, a half-warp for 8: the same words for all groups save no wavefront."""
    source = """extern "C" __global__ void k(float* y) {
  __shared__ float4 s4[32]; __shared__ float2 s2[32];
  s4[threadIdx.x] = make_float4(1, 2, 3, threadIdx.x); s2[threadIdx.x] = make_float2(4, threadIdx.x);
  __syncthreads();
  float4 a = s4[threadIdx.x % 8]; float2 b = s2[threadIdx.x % 16];
  y[threadIdx.x] = a.x + a.y + a.z + a.w + b.x + b.y;
}"""
    report = cuda(source).run(1, 32, np.zeros(32, np.float32))
    loads = sorted(
        (op.bytes_per_thread, op.transactions) for op in report.memory if (op.space, op.access) == ("shared", "load")
    )
    assert loads == [(8, 2), (16, 4)]


def test_instruction_counts_and_mix() -> None:
    source = """extern "C" __global__ void k(float* y, int n) {
  float s = 1;
  #pragma unroll 1
  for (int i = 0; i < n; i++) s = s * 1.5f + y[i];
  y[threadIdx.x] = s;
}"""
    report = cuda(source).run(1, 64, np.zeros(64, np.float32), 10)
    assert report.mix["fma.f32"] == (20, 640)
    assert report.mix["ret"] == (2, 64)
    assert report.thread_instructions == 32 * report.warp_instructions
    assert report.warp_instructions == sum(w for w, _ in report.mix.values())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_counters_do_not_depend_on_threads(threads: int) -> None:
    source = """extern "C" __global__ void k(const float* x, const int* at, float* y, int n) {
  __shared__ float s[64];
  int i = blockIdx.x * 64 + threadIdx.x;
  s[threadIdx.x] = i < n ? x[at[i]] : 0;
  __syncthreads();
  if (i < n) y[i] = s[(threadIdx.x * 5) & 63] * (i % 3 ? 2.0f : s[0]);
}"""
    rng = np.random.default_rng(3)
    x, at = rng.standard_normal(2000).astype(np.float32), rng.integers(0, 2100, 2000).astype(np.int32)

    def go(count: int):  # type: ignore[no-untyped-def]
        y = np.zeros(2000, np.float32)
        report = cuda(source, threads=count).run(32, 64, x, at, y, 2000, clean=False)
        return y.tobytes(), report.memory, report.mix, report.faults, report.fault_count, report.divergent_branches

    assert go(threads) == go(1)


def test_sampled_ctas_run_alone() -> None:
    source = 'extern "C" __global__ void k(int* y) { y[blockIdx.x] = 1 + blockIdx.x; }'
    y = np.zeros(100, np.int32)
    report = cuda(source).run(100, 1, y, ctas=[3, 97])
    assert report.ctas_run == 2
    assert np.flatnonzero(y).tolist() == [3, 97]


def test_cache_model_counts_reuse_and_write_back() -> None:
    source = """extern "C" __global__ void k(const volatile float* x, float* y) {
  float a = x[threadIdx.x], b = x[threadIdx.x];
  y[blockIdx.x * 32 + threadIdx.x] = a + b;
}"""
    device = cuda(source)
    cache = CacheModel(32 << 10, 1 << 20)
    device.run(4, 32, np.zeros(32, np.float32), np.zeros(128, np.float32), cache=cache)
    counts = cache.counts
    assert (counts.l1_read_sectors, counts.l1_read_hits) == (32, 16)  # each CTA: 4 sectors miss, then hit
    assert (counts.l2_read_sectors, counts.l2_read_hits) == (16, 12)
    assert (counts.dram_read_sectors, counts.dram_write_sectors, counts.l2_write_sectors) == (4, 0, 16)
    cache.flush()
    assert cache.counts.dram_write_sectors == 16


def test_l2_evicts_dirty_lines_and_persists_across_launches() -> None:
    source = 'extern "C" __global__ void k(float* y) { y[blockIdx.x * 256 + threadIdx.x] += 1.0f; }'
    device = cuda(source)
    cache = CacheModel(16 << 10, 64 << 10)
    y = np.zeros(1 << 16, np.float32)  # 256 KiB, four times the L2
    device.run(256, 256, y, cache=cache)
    assert cache.counts.dram_read_sectors == 8192
    cache.flush()
    assert cache.counts.dram_write_sectors == 8192


def test_local_memory_is_interleaved() -> None:
    source = """extern "C" __global__ void k(const int* x, int* y) {
  int a[8];
  _Pragma("unroll") for (int i = 0; i < 8; i++) a[i] = x[i] + threadIdx.x;
  y[threadIdx.x] = a[x[threadIdx.x & 7] & 7];
}"""
    x = np.arange(8, dtype=np.int32)
    y = np.zeros(32, np.int32)
    report = cuda(source).run(1, 32, x, y)
    assert np.array_equal(y, (np.arange(32) & 7) + np.arange(32))
    stores = [op for op in report.memory if (op.space, op.access) == ("local", "store")]
    assert sum(op.transactions for op in stores) == 4 * 8  # 32 lanes x 32 bytes: 32 sectors at every vector width
    assert all(op.transactions == op.ideal_transactions for op in stores)
    assert sum(op.lines for op in stores) == 8  # a word of all lanes is a line
    load = only(report, "local", "load")
    assert (load.transactions, load.lines) == (32, 8)  # eight lanes of a sector read eight words


@pytest.mark.parametrize(("words", "index"), [(1, "0"), (4, "i & 3"), (64, "i & 63"), (512, "i & 511")])
@pytest.mark.parametrize("threads", [1, 2])
def test_atomics_are_counted_with_the_words_they_meet(words: int, index: str, threads: int) -> None:
    source = f"""extern "C" __global__ void k(float* y) {{
  int i = blockIdx.x * 128 + threadIdx.x;
  atomicAdd(&y[{index}], 1.0f);
}}"""
    y = np.zeros(512, np.float32)
    report = cuda(source, threads=threads).run(16, 128, y)
    assert y.sum() == 2048
    op = only(report, "global", "atomic")
    assert op.threads == 2048
    assert distinct(op.sketch) == pytest.approx(words, rel=0.1)


def test_atomics_on_shared_memory_have_words_of_their_own() -> None:
    source = """extern "C" __global__ void k(float* y) {
  __shared__ float s[32];
  s[threadIdx.x & 31] = 0; __syncthreads();
  atomicAdd(&s[threadIdx.x & 7], 1.0f); __syncthreads();
  if (threadIdx.x < 8) y[threadIdx.x] = s[threadIdx.x];
}"""
    op = only(cuda(source).run(4, 64, np.zeros(8, np.float32)), "shared", "atomic")
    assert (op.threads, round(distinct(op.sketch))) == (256, 8)


def test_words_of_a_grid_are_estimated_from_its_blocks() -> None:
    def sketch(*bits: int) -> int:
        return sum(1 << bit for bit in bits)

    assert distinct_in_grid([], 4.0) == 0
    same = distinct_in_grid([sketch(3), sketch(3)], 10.0)
    apart = distinct_in_grid([sketch(3), sketch(900)], 10.0)
    assert same == pytest.approx(1, rel=0.01)
    assert apart == pytest.approx(20, rel=0.01)


SEVERAL_THROUGH_ONE_REGISTER = """
extern "C" __global__ void k(const float* x, const int* at, float* y, int pitch, int n) {
  __shared__ float tile[16 * 33];
  int t = threadIdx.x;
  const float* row = x + blockIdx.x * pitch + t;
  float sum = row[0] + row[32] * 2 + row[96] * 3;              // slots that change with the row
  if (t % 3 <= blockIdx.x % 3) sum += row[1] + row[2] + row[5];    // lanes that change with the block
  const float* far = x + at[(t + blockIdx.x) % n];             // distances that change with the block
  sum += far[0] + far[3];
  const float* last = x + at[n + blockIdx.x] + t * (blockIdx.x ? 2 : 1);
  sum += last[0] + last[40];                                   // may be outside x in some lanes of the second block
  const double* wide = (const double*)(x + 2 * (t + blockIdx.x));
  sum += (float)(wide[0] + wide[7]);
  const unsigned char* bytes = (const unsigned char*)x + t;
  const unsigned short* apart = (const unsigned short*)x + 3 * t + 16 * blockIdx.x;
  sum += apart[0] + apart[32];                                 // narrow elements that are not adjacent
  sum += bytes[blockIdx.x] + bytes[blockIdx.x + 64] + ((const float4*)x)[t + blockIdx.x].y;
  for (int k = 0; k < 4; ++k) {
    float* mine = tile + t * (t < 16 ? 33 : 1) + k;            // conflicts in half of the warps
    if (t < 16 || k < 2) { mine[0] = sum; mine[4] = sum + k; sum += mine[8] + mine[12]; }
    __syncthreads();
  }
  float* out = y + blockIdx.x * 192 + t;
  out[0] = sum;
  out[64] = tile[t];
  out[END] = 1;
}
"""


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize(("end", "threads"), [(128, 1), (128, 2), (1 << 20, 1)])
def test_accesses_in_groups_count_and_fault_as_those_by_themselves(
    end: int, threads: int, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``end`` 1 << 20 is outside the output; accesses of the second block are then outside an input. How far a second
    thread gets before such a fault ends the launch is not always the same."""
    source = SEVERAL_THROUGH_ONE_REGISTER.replace("END", str(end))
    random = np.random.default_rng(3)
    x, at = random.random(8192, np.float32), random.integers(0, 4000, 97).astype(np.int32)
    at = np.append(at, np.full(24, 109)).astype(np.int32)
    at[98] = 109 if end == 128 else -19
    outcomes = []
    for groups in (memory.MOST_GROUPS, 0):
        monkeypatch.setattr(memory, "MOST_GROUPS", groups)
        monkeypatch.setattr(program, "_programs", {})
        device, y = cuda(source, threads=threads), np.zeros(24 * 192, np.float32)
        with compiled_at(level):
            report = device.run(24, 64, x, at, y, 68, 97, clean=False)
        assert bool(report.faults) == (end > 128)
        grouped = sum(site.block >= 0 for site in device.machine.program("k", (64, 1, 1)).sites)
        outcomes.append((y.tobytes(), report.memory, report.mix, [str(fault) for fault in report.faults], grouped))
    assert outcomes[0][:-1] == outcomes[1][:-1]
    assert outcomes[0][-1] > 12
    assert outcomes[1][-1] == 0


def a_cache() -> CacheModel:
    """Leaders among words are counted where a cache is modelled."""
    return CacheModel(32 << 10, 1 << 22, 32)


def updates_of(source: str, grid: int, block: int, *arguments: np.ndarray, threads: int = 1) -> tuple[float, float]:
    """Updates of the word, and sectors of the line, that an atomic updates most."""
    cache = a_cache()
    op = only(cuda(source, threads=threads).run(grid, block, *arguments, cache=cache), "global", "atomic")
    words = most_updates_of_a_word([op.word_updates], [op.sketch], op.threads, 1.0)
    return words, most_updates([op.line_updates], 1.0)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_word_and_the_line_that_atomics_update_most_are_found(threads: int) -> None:
    source = """extern "C" __global__ void k(const int* at, unsigned* bins) {
  atomicAdd(&bins[at[blockIdx.x * blockDim.x + threadIdx.x]], 1u);
}"""
    bins, n = np.zeros(1 << 16, np.uint32), 1 << 14
    assert updates_of(source, 64, 256, np.full(n, 7, np.int32), bins, threads=threads) == (n, n // 32)
    skewed = np.where(np.arange(n) % 8, 3, 64 + np.arange(n) % 64).astype(np.int32)
    assert updates_of(source, 64, 256, skewed, bins, threads=threads)[0] == pytest.approx(7 * n // 8, rel=0.01)
    words, lines = updates_of(source, 64, 256, (np.arange(n) % 256).astype(np.int32), bins, threads=threads)
    assert words == pytest.approx(n // 256, rel=0.1)
    assert lines == n // 256 * 4  # 8 lines, each of 4 sectors for the requests of 64 warps
    padded = (np.arange(n) % 127 * 32).astype(np.int32)  # each word in a line of its own
    words, lines = updates_of(source, 64, 256, padded, bins, threads=threads)
    assert (words, lines) == (pytest.approx(n / 127, rel=0.1), pytest.approx(n / 127, rel=0.01))


def test_only_a_word_that_other_parts_chose_is_updated_by_the_rest_of_the_grid() -> None:
    assert most_updates([], 1.0) == 0.0
    assert most_updates([[(7, 5)], [(7, 3)]], 1.0) == 8.0
    assert most_updates([[(7, 5)], [(7, 3), (8, 1)]], 10.0) == 80.0
    assert most_updates([[(1, 9)], [(2, 8)]], 10.0) == 9.0
    assert most_updates([[(7, 5)]], 10.0) == 5.0, "of one part nothing tells"
    many = [[(100 * part + word, 1) for word in range(100)] for part in range(8)]
    assert most_updates(many, 1000.0) == 1.0
    assert most_updates([[*part, (5000, 1)] for part in many], 1000.0) == 8000.0


@pytest.mark.parametrize("words", [1, 100, 127, 254, 256, 762])
def test_words_that_fill_all_counters_alike_are_updated_their_mean(words: int) -> None:
    source = """extern "C" __global__ void k(unsigned* bins, int n) {
  atomicAdd(&bins[(blockIdx.x * blockDim.x + threadIdx.x) % n], 1u);
}"""
    op = only(
        cuda(source).run(64, 256, np.zeros(1024, np.uint32), words, cache=a_cache()),
        "global",
        "atomic",
    )
    updates = most_updates_of_a_word([op.word_updates], [op.sketch], op.threads, 1.0)
    assert updates == pytest.approx(64 * 256 / words, rel=0.1)


def dram_reads(source: str, grid: int, fetch_bytes: int, *arguments: np.ndarray) -> int:
    cache = CacheModel(32 << 10, 1 << 22, fetch_bytes)
    cache.keep_footprint(GLOBAL_BASE, 1 << 30)
    cuda(source).run(grid, 32, *arguments, cache=cache)
    cache.complete()
    fetched = cache.counts.dram_read_sectors
    cache.complete()
    assert cache.counts.dram_read_sectors == fetched
    assert cache.footprint().read.size == fetched
    return int(fetched)


@pytest.mark.parametrize(
    "body",
    [
        "y[t] = x[t * 8] + x[t * 8]",
        "y[t * 8] = 1; __syncwarp(); y[t * 8 + 1] = y[t * 8] + y[t * 8 + 2]",
        "y[t] = 2; __syncwarp(); y[127 - t] += x[t] * y[t + 128]",
        "atomicAdd(y + t, x[t]); x[t] = y[t]",
        "for (int k = 0; k < 8; ++k) x[t * 8 + k] = y[(t * 8 + k) / 2] + (k ? x[t * 8 + k - 1] : 0)",
    ],
)
def test_a_footprint_alone_is_the_same_as_with_counters(body: str) -> None:
    source = f"""extern "C" __global__ void k(volatile float* x, float* y) {{
  int t = blockIdx.x * 32 + threadIdx.x;
  {body};
}}"""
    sets = []
    for only in (False, True):
        cache = CacheModel(32, 1 << 22, footprint_only=only)
        cache.keep_footprint(GLOBAL_BASE, 1 << 30)
        cuda(source).run(4, 32, np.zeros(1024, np.float32), np.zeros(1280, np.float32), cache=cache)
        footprint = cache.footprint()
        sets.append((footprint.read.numbers().tolist(), footprint.written.numbers().tolist()))
    assert sets[0] == sets[1]
    assert all(sets[0])


def test_a_footprint_alone_has_the_words_that_were_read() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
  int t = blockIdx.x * 32 + threadIdx.x;
  float4 wide = ((const float4*)x)[2 * t];
  y[t] = wide.x + wide.y + wide.z + wide.w + x[8 * t + 5];
  if (t == 9) atomicAdd(y + 1016, 1);
}"""
    cache = CacheModel(32, 1 << 22, footprint_only=True)
    cache.keep_footprint(GLOBAL_BASE, 1 << 30)
    cuda(source).run(4, 32, np.zeros(1024, np.float32), np.zeros(1024, np.float32), cache=cache)
    words = cache.words_of(cache.footprint().read.numbers())
    read = words[:-8] - words[0]
    assert read.tolist() == [8 * t + k for t in range(128) for k in (0, 1, 2, 3, 5)]
    assert (np.diff(words[-8:]) == 1).all()
    cache.reset()
    assert not cache.words_of(cache.footprint().read.numbers()).size


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (4, 16), (8, 32), (16, 64), (32, 64)])
def test_the_l2_fetches_neighbouring_sectors(stride: int, sectors: int) -> None:
    """Of sectors two or more apart an H100 fetches the neighbours too: 268 MB for 134 MB (ladder stride)."""
    source = f"""extern "C" __global__ void k(const float* x, float* y) {{
  if (x[(blockIdx.x * 32 + threadIdx.x) * {stride}] == 9) y[0] = 1;
}}"""
    x = np.zeros(4 * 32 * 32, np.float32)
    assert dram_reads(source, 4, 64, x, np.zeros(1, np.float32)) == 4 * sectors
    assert dram_reads(source, 4, 32, x, np.zeros(1, np.float32)) == 4 * min(sectors, 32)


@pytest.mark.parametrize(
    ("store", "sectors"),
    [
        ("y[t] = 1", 0),
        ("y[t * 8] = 1", 128),  # a word of each sector
        ("y[t * 2] = 1", 32),
        ("y[t * 2] = 1; y[t * 2 + 1] = 2", 0),
        ("((float2*)y)[t] = make_float2(1, 2)", 0),
        ("y[t * 8] = y[t * 8] + 1", 128),  # it was read before
        ("if (t < 125) y[t] = 1", 1),
        ("y[t + 3] = 1", 2),  # the first sector and the last
        ("for (int k = 0; k < 8; ++k) ((volatile float*)y)[t * 8] = k", 128),  # one word of each, eight times
        ("y[0] = t", 1),  # one word, by all lanes
        ("((short*)y)[t * 2] = 1; ((short*)y)[t * 2 + 1] = 2", 0),
        ("((short*)y)[t * 2 + 1] = 1", 16),
    ],
)
def test_sectors_that_are_written_in_part_are_fetched(store: str, sectors: int) -> None:
    """An H100 reads 145 MB where a kernel writes one word of each of 4.2 million sectors (ladder stride)."""
    source = f'extern "C" __global__ void k(float* y) {{ int t = blockIdx.x * 32 + threadIdx.x; {store}; }}'
    assert dram_reads(source, 4, 32, np.zeros(1024, np.float32)) == sectors


def test_loads_of_a_chain_are_not_in_flight_together() -> None:
    source = """extern "C" __global__ void k(const int* x, int* y, int n) {
  int t = threadIdx.x, at = t;
  for (int i = 0; i < n; i += 4) at = x[x[x[x[at]]]];
  int a = x[t], b = x[t + 32], c = x[t + 64], d = x[t + 96];
  y[t] = at + a * b + c * d;
}"""
    report = cuda(source).run(1, 32, np.arange(128, dtype=np.int32), np.zeros(32, np.int32), 8)
    loads = [op.in_flight for op in report.memory if op.access == "load"]
    assert sorted(loads) == [1] * (len(loads) - 4) + [4] * 4


def test_copies_and_matrices_of_a_block_are_in_flight_together() -> None:
    source = """extern "C" __global__ void k(const int4* x, unsigned* y) {
  __shared__ int4 tile[128];
  unsigned t = threadIdx.x, to = (unsigned)__cvta_generic_to_shared(tile + t), a, b, c, d;
  for (int i = 0; i < 4; ++i)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 512 * i), "l"(x + t + 32 * i) : "memory");
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(to) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(c), "=r"(d) : "r"(to) : "memory");
  y[t] = a + b + c + d;
}"""
    report = cuda(source).run(1, 32, np.zeros(512, np.int32), np.zeros(32, np.uint32))
    assert [op.in_flight for op in report.memory if op.access == "load" and op.space == "global"] == [4] * 4
    assert [op.in_flight for op in report.memory if op.opcode.startswith("ldmatrix")] == [2] * 2
