"""Between accesses of a warp's lanes to the same bytes there is ``__syncwarp``, or what else waits for the lanes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import cuda
from tests.devices.emulated.nvrtc import PRECOMPILED

GROUPS = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
"""
"""The first build with it takes 0.6 s, another one 0.1 s, and one without it 0.02 s."""
KERNEL = """
extern "C" __global__ void k(float* y) {
  __shared__ QUALIFIER float s[64];
  __shared__ int counts[4];
  int t = threadIdx.x;
  float v = y[t];
  BODY
  y[t] = v;
}"""
REDUCTION = """s[t] = v; SYNC
  for (int o = 16; o; o >>= 1) { if (t < o) s[t] = s[t] + s[t + o]; SYNC }
  v = s[0];"""
UNGUARDED = """s[t] = v; s[t + 32] = 0; SYNC
  for (int o = 16; o; o >>= 1) { s[t] = s[t] + s[t + o]; SYNC }
  v = s[0];"""
FIXED = """s[t] = v; s[t + 32] = 0; SYNC
  for (int o = 16; o; o >>= 1) { v += s[t + o]; SYNC s[t] = v; SYNC }
  v = s[0];"""
SYNC = "__syncwarp();"


def faults(body: str, qualifier: str = "", **options: object) -> set[str]:
    """Kinds of faults of one warp that runs ``body``; the values must be those of a warp in step."""
    source, headers = KERNEL.replace("BODY", body).replace("QUALIFIER", qualifier), ()
    if "cg::" in body:
        source, headers = GROUPS + source, (PRECOMPILED,)
    y = np.arange(32, dtype=np.float32)
    report = cuda(source, *headers).run(1, 32, y, clean=False, racecheck=True, **options)
    return {fault.kind for fault in report.faults}


@pytest.mark.parametrize("qualifier", ["", "volatile"])
@pytest.mark.parametrize("body", [REDUCTION, UNGUARDED, FIXED])
def test_a_reduction_without_a_synchronisation_is_a_race(body: str, qualifier: str) -> None:
    assert faults(body.replace("SYNC", 'asm volatile("" ::: "memory");'), qualifier) == {"warp_race"}


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("qualifier", ["", "volatile"])
@pytest.mark.parametrize("body", [REDUCTION, FIXED])
@pytest.mark.parametrize(
    "sync",
    [
        SYNC, "__syncthreads();", "cg::tiled_partition<32>(cg::this_thread_block()).sync();",
        "cg::coalesced_threads().sync();", "v += 0 * __shfl_xor_sync(~0u, v, 1);", "(void)__ballot_sync(~0u, v > 0);",
    ],
)  # fmt: skip
def test_the_same_with_one_is_none(body: str, qualifier: str, sync: str) -> None:
    assert faults(body.replace("SYNC", f'{sync} asm volatile("" ::: "memory");'), qualifier) == set()


def test_a_lane_that_reads_what_another_one_overwrites_is_a_race() -> None:
    """The CUDA C++ Programming Guide's example: each lane reads ``s[t + o]`` and writes ``s[t]``."""
    assert faults(UNGUARDED.replace("SYNC", SYNC)) == {"warp_race"}


def test_what_each_lane_does_with_its_own_words_is_none() -> None:
    assert faults("s[t] = v; s[t] += 1; v = s[t]; s[t] = 2; v += s[t];", "volatile") == set()
    assert faults("if (t == 0) { s[0] = v; s[1] = s[0] + 1; v = s[1]; s[0] = v; }", "volatile") == set()


def test_writes_of_one_instruction_to_one_word_are_none() -> None:
    assert (
        faults("s[0] = 3; v += s[0]; __syncwarp(); s[0] = 4; s[0] = 5; __syncwarp(); v += s[0];", "volatile") == set()
    )
    assert faults("s[t / 2] = v; __syncwarp(); v = s[t / 4];") == set()
    assert faults("s[t / 2] = v; v = s[t / 4];", "volatile") == {"warp_race"}


def test_lanes_that_store_one_value_are_none() -> None:
    flag = "for (int i = 0; i < 4; i++) if ((t & 3) == i) { s[0] = VALUE; }"
    assert faults(flag.replace("VALUE", "7.f") + " __syncwarp(); v = s[0];", "volatile") == set()
    assert faults(flag.replace("VALUE", "(float)i"), "volatile") == {"warp_race"}
    few = flag.replace("VALUE", "7.f").replace("t & 3", "t & 7")
    assert faults(few + " v = s[0];", "volatile") == {"warp_race"}  # of lanes that have not stored


def test_atomics_race_with_plain_accesses_only() -> None:
    clear, add, read = "if (t < 4) counts[t] = 0;", "atomicAdd(&counts[t & 3], 1);", "v = counts[t & 3];"
    assert faults(f"{clear} {SYNC} {add} {add} {SYNC} {read}") == set()
    assert faults(f"{clear} {add} {SYNC} {read}") == {"warp_race"}
    assert faults(f"{clear} {SYNC} {add} {read}") == {"warp_race"}


@pytest.mark.slow
def test_a_mask_orders_the_lanes_that_it_names() -> None:
    halves = "unsigned half = t < 16 ? 0xffffu : 0xffff0000u; s[t] = v; __syncwarp(half); v = s[t ^ {}];"
    assert faults(halves.format(1)) == set()
    assert faults(halves.format(16)) == {"warp_race"}
    tile = "auto tile = cg::tiled_partition<{}>(cg::this_thread_block()); s[t] = v; tile.sync(); v = s[t ^ 7];"
    assert faults(tile.format(8)) == set()
    assert faults(tile.format(4)) == {"warp_race"}


def test_what_a_lane_has_seen_is_passed_on() -> None:
    """Lane 0 meets lane 1, lane 1 meets lane 2: lane 2 comes after lane 0."""
    chain = """if (t == 0) s[0] = v;
  if (t < 2) __syncwarp(3);
  if (t == 1 || t == 2) __syncwarp(6);
  if (t == READER) v = s[0];"""
    assert faults(chain.replace("READER", "2"), "volatile") == set()
    assert faults(chain.replace("READER", "3"), "volatile") == {"warp_race"}
    apart = chain.replace("__syncwarp(6)", "__syncwarp(4)").replace("t == 1 || ", "")
    assert faults(apart.replace("READER", "2"), "volatile") == {"warp_race"}


def test_lanes_that_read_between_two_meetings_do_not_race_with_who_met_them() -> None:
    body = """if (t == 0) v += s[40];
  if (t < 2) __syncwarp(3);
  if (t == 1) v += s[40];
  if (t == 1) s[40] = v;
  __syncwarp();"""
    assert faults(f"s[t] = v; s[t + 32] = v; {SYNC} {body}", "volatile") == set()
    assert faults(f"s[t] = v; s[t + 32] = v; {SYNC} {body.replace('__syncwarp(3)', 'v += 1')}", "volatile") == {
        "warp_race"
    }


def test_a_load_that_the_compiler_takes_out_of_a_branch_is_none() -> None:
    """All lanes load the word, and all but one throw it away."""
    body = """if (t == 0) s[5] = v;
  asm volatile("" ::: "memory");
  if (t == 0) v += s[5];"""
    assert faults(body) == set()
    assert faults(body.replace("if (t == 0) v += s[5]", "v += s[5]")) == {"warp_race"}


def test_lanes_of_two_branches_race_and_lanes_that_have_ended_do_not() -> None:
    branches = 'if (t < 16) s[t] = v; else { asm volatile("nanosleep.u32 1;"); s[t - OTHER] = v; }'
    assert faults(branches.replace("OTHER", "16"), "volatile") == {"warp_race"}
    assert faults(branches.replace("OTHER", "0"), "volatile") == set()
    ended = "s[t] = v; if (t >= 8) return; __syncwarp(0xff); v = s[t ^ 1]; __syncwarp(0xff); s[t] = v;"
    assert faults(ended) == set()


def test_bytes_of_one_word_are_told_apart() -> None:
    body = "((unsigned char*)s)[t] = t; SYNC v = ((unsigned char*)s)[t ^ FLIP];"
    assert faults(body.replace("SYNC", "").replace("FLIP", "0")) == set()
    assert faults(body.replace("SYNC", "").replace("FLIP", "1")) == {"warp_race"}
    assert faults(body.replace("SYNC", SYNC).replace("FLIP", "1")) == set()


def test_matrices_are_loaded_together() -> None:
    body = """s[t] = v; SYNC
  unsigned a, at = (unsigned)__cvta_generic_to_shared(s) + (t & 7) * 16;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(at));
  s[t] = __int_as_float(a); SYNC
  v = s[t ^ 1];"""
    assert faults(body.replace("SYNC", SYNC)) == set()
    assert faults(body.replace("SYNC", "")) == {"warp_race"}


def test_the_fault_names_the_line_and_the_remedy() -> None:
    source = KERNEL.replace("BODY", "s[t] = v;\n  v = s[31 - t];  // here").replace("QUALIFIER", "")
    report = cuda(source).run(1, 32, np.zeros(32, np.float32), clean=False, racecheck=True)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "// here" in text)
    assert {fault.source_line for fault in report.faults} == {line}
    assert "no __syncwarp() between them" in str(report.faults[0])


def test_blocks_do_not_race_with_the_blocks_before_them() -> None:
    source = KERNEL.replace("BODY", "v = blockIdx.x; if (t == blockIdx.x) s[0] = v; __syncwarp(); v = s[0];")
    report = cuda(source.replace("QUALIFIER", "")).run(8, 32, np.zeros(32, np.float32), racecheck=True)
    assert not report.faults


LIBRARIES = {
    "warp reduce and scan": """#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
extern "C" __global__ void k(int* y) {
  using Reduce = cub::WarpReduce<int, 7>; using Scan = cub::WarpScan<int, 16>;
  __shared__ typename Reduce::TempStorage r[4]; __shared__ typename Scan::TempStorage s[8];
  int t = threadIdx.x, sum = 0, v = y[t];
  if ((t & 31) < 7) sum = Reduce(r[t / 32]).Sum(v);
  Scan(s[t / 16]).InclusiveSum(v, v);
  y[t] = v + sum;
}""",
    "radix sort": """#include <cub/block/block_radix_sort.cuh>
extern "C" __global__ void k(int* y) {
  using Sort = cub::BlockRadixSort<int, 128, 1>;
  __shared__ typename Sort::TempStorage s;
  int v[1] = {y[threadIdx.x]};
  Sort(s).Sort(v);
  y[threadIdx.x] = v[0];
}""",
    "exchange within warps": """#include <cub/block/block_exchange.cuh>
extern "C" __global__ void k(int* y) {
  using Exchange = cub::BlockExchange<int, 128, 1, true>;
  __shared__ typename Exchange::TempStorage s;
  int v[1] = {y[threadIdx.x]};
  Exchange(s).BlockedToWarpStriped(v);
  y[threadIdx.x] = v[0];
}""",
    "cooperative groups": """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(int* y) {
  __shared__ int s[8];
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  int v = cg::reduce(tile, y[threadIdx.x], cg::plus<int>());
  if (tile.thread_rank() == 0) s[threadIdx.x / 16] = v;
  tile.sync();
  y[threadIdx.x] = s[threadIdx.x / 16];
}""",
}


@pytest.mark.slow
@pytest.mark.parametrize("source", LIBRARIES.values(), ids=LIBRARIES)
def test_code_of_cub_and_of_cooperative_groups_is_none(source: str) -> None:
    y = np.random.default_rng(0).integers(0, 1000, 128).astype(np.int32)
    cuda("#define assert(condition)\n" + source).run(1, 128, y, racecheck=True)
