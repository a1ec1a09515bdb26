"""Profiles of kernels whose DRAM traffic is known: whole grids and sampled ones."""

from dataclasses import replace

import numpy as np
import pytest

from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.evaluation.stages.full_size import below_least
from kernelforge.hardware.specs import H100, SPECS
from kernelforge.profiling.counts import PlanCounts
from kernelforge.profiling.metrics import build_profile
from kernelforge.records import Performance, Profile, SizeFacts
from tests.devices.emulated.emulated_plans import ADD, ADD_PLAN, REGISTERS, Array, facts, randoms, resolve, runner, work

COALESCED_LD = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"


def profile(
    source: str,
    plan: str,
    *arrays: Array,
    compulsory: int,
    flops: int = 0,
    sampled: bool = False,
    mapped: frozenset[int] = frozenset(),
) -> tuple[Profile, Performance]:
    """Profile a plan; ``sampled`` forces sampling at sizes that a test can afford."""
    resolved = resolve(plan, arrays)
    runs = runner(source)
    budget = Budget(len(resolved.launches), total=400_000, floor=100_000) if sampled else None
    counts = runs.profile(work(resolved, arrays, poison=0, mapped=mapped), budget=budget)
    assert runs.build.memory.used_bytes == 0
    registers = dict.fromkeys(resolved.expressions, REGISTERS)
    return build_profile(H100, "emulated:h100", counts, registers, facts(resolved, arrays, compulsory, flops))


def excess(profiled: Profile) -> float:
    return profiled.roofline.dram_bytes / profiled.roofline.compulsory_bytes


def test_vector_add_moves_twelve_bytes_per_element() -> None:
    n = 1 << 18
    profiled, performance = profile(ADD, ADD_PLAN, randoms(n), randoms(n), compulsory=12 * n)
    assert profiled.value("dram__bytes_read.sum") == 8 * n
    assert profiled.value("dram__bytes_write.sum") == 4 * n
    assert profiled.kernels[0].sampled == 1
    assert profiled.value(COALESCED_LD) == 4
    assert profiled.value("kernelforge__global_bytes_requested") == 12 * n
    assert profiled.value("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum") == n / 32
    assert profiled.value("ptx__branch_uniform.pct") == 100
    assert performance.time_us > 0


def test_sampled_vector_add_moves_twelve_bytes_per_element() -> None:
    n = (1 << 20) + 77
    profiled, _ = profile(ADD, ADD_PLAN, randoms(n), randoms(n), compulsory=12 * n, sampled=True)
    assert profiled.kernels[0].sampled < 0.1
    assert excess(profiled) == pytest.approx(1, rel=0.01)
    assert profiled.value("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum") == pytest.approx(n / 32, rel=0.01)


HOST_SECTORS = "lts__t_sectors_aperture_sysmem_op_read.sum"
HOST_REQUESTS = "kernelforge__host_read_requests.sum"
SHIFTED = """
extern "C" __global__ void shifted(const float* a, const float* b, float* out, int n, int by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i + by] + b[i];
}
"""


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("by", [0, 8, 11])
def test_reads_of_host_memory_go_over_the_link_in_requests_of_a_line(by: int, sampled: bool) -> None:
    """A warp reads one line, or parts of two; a block of eight warps has read the sectors between two of them once."""
    n = 1 << 18
    plan = ADD_PLAN.replace("add[", "shifted[").replace("a.numel()", "b.numel()").replace("_like(a)", "_like(b)")
    arrays = randoms(n + 16), randoms(n)
    profiled, performance = profile(
        SHIFTED, plan.replace("i32(n)", f"i32(n), i32({by})"), *arrays, compulsory=8 * n, sampled=sampled,
        mapped=frozenset({0}),
    )  # fmt: skip
    warps = n // 32
    more = 0 if by == 0 else warps // 8 * (by % 8 != 0)
    assert profiled.value(HOST_SECTORS) == pytest.approx(4 * warps + more, rel=0.01)
    assert profiled.value(HOST_REQUESTS) == pytest.approx(warps if by == 0 else 2 * warps, rel=0.01)
    assert profiled.value("dram__bytes_read.sum") == pytest.approx(4 * n, rel=0.01)
    assert excess(profiled) == pytest.approx(1, rel=0.01)
    assert performance.bound == "host"


def test_a_request_for_host_and_device_memory_is_counted_on_both() -> None:
    source = """extern "C" __global__ void mixed(const float* a, const float* b, float* out) {
  out[threadIdx.x] = (threadIdx.x < 16 ? a : b)[threadIdx.x];
}"""
    plan = "def forward(a, b):\n    out = empty((32,))\n    mixed[1, 32](a, b, out)\n    return out\n"
    profiled, _ = profile(source, plan, randoms(32), randoms(32), compulsory=192, mapped=frozenset({1}))
    assert (profiled.value(HOST_SECTORS), profiled.value(HOST_REQUESTS)) == (2, 1)
    assert profiled.value("dram__bytes_read.sum") == 64
    assert profile(source, plan, randoms(32), randoms(32), compulsory=192)[0].value(HOST_SECTORS) is None


SIZE_FACTS = SizeFacts(
    size="full", inputs=(), outputs=(), weights=(), attrs={}, compulsory_bytes=0, host_bytes=4096, flops=0,
    eager_launches=0,
)  # fmt: skip
COPIES = {
    "a bulk copy": """
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4096;" :: "r"(bar));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 4096, [%2];"
                 :: "r"(to), "l"(a), "r"(bar) : "memory");
  }
  __syncthreads();
  asm volatile("{.reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @p bra D; bra L; D:}"
               :: "r"(bar) : "memory");""",
    "a prefetch": """
  if (t == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], 4096;" :: "l"(a));
  data[t] = 0; __syncthreads();""",
    "copies of 16 bytes": """
  for (int i = 4 * t; i < 1024; i += 128)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to + 4 * i), "l"(a + i) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();""",
    "the read-only path": """
  for (int i = t; i < 1024; i += 32) data[i] = __ldg(a + i);
  __syncthreads();""",
}


@pytest.mark.parametrize("how", COPIES)
def test_whatever_reads_host_memory_is_counted_on_the_link(how: str) -> None:
    source = f"""extern "C" __global__ void copied(const float* a, float* out) {{
  __shared__ alignas(128) float data[1024];
  __shared__ unsigned long long b;
  int t = threadIdx.x;
  unsigned to = (unsigned)__cvta_generic_to_shared(data), bar = (unsigned)__cvta_generic_to_shared(&b);
  {COPIES[how]}
  out[t] = data[t];
}}"""
    plan = "def forward(a):\n    out = empty((32,))\n    copied[1, 32](a, out)\n    return out\n"
    profiled, _ = profile(source, plan, randoms(1024), compulsory=4224, mapped=frozenset({0}))
    assert (profiled.value(HOST_SECTORS), profiled.value(HOST_REQUESTS)) == (128, 32)
    assert profiled.value("dram__bytes_read.sum") == 0
    assert below_least(profiled, SIZE_FACTS) == ""
    assert "host memory" in below_least(profiled, SIZE_FACTS.model_copy(update={"host_bytes": 4352}))


@pytest.mark.slow
def test_blocks_of_an_sm_share_its_l1_for_host_memory_too() -> None:
    """A block reads its 16 KiB four times, and so do 24 side by side: the L1 keeps as much as of device memory."""
    source = """extern "C" __global__ void again(const float4* a, float* out) {
  const float4* own = a + blockIdx.x * 1024;
  float sum = 0;
  #pragma unroll 1
  for (int i = threadIdx.x; i < 4096; i += 64) { float4 v = own[i % 1024]; sum += v.x + v.y + v.z + v.w; }
  out[blockIdx.x * 64 + threadIdx.x] = sum;
}"""
    blocks = H100.sm_count * 24
    plan = f"def forward(a):\n    out = empty(({64 * blocks},))\n    again[{blocks}, 64](a, out)\n    return out\n"
    arrays = (np.zeros(4096 * blocks, np.float32),)
    in_device, _ = profile(source, plan, *arrays, compulsory=16448 * blocks, sampled=True)
    in_host, _ = profile(source, plan, *arrays, compulsory=64 * blocks, sampled=True, mapped=frozenset({0}))
    hits = "l1tex__t_sector_hit_rate.pct"
    assert in_device.value(hits) < 50
    assert in_host.value(hits) == pytest.approx(in_device.value(hits), abs=5)
    assert in_host.value(HOST_SECTORS) == pytest.approx(4 * in_host.value(HOST_REQUESTS))
    assert in_host.value(HOST_SECTORS) >= 2 * 512 * blocks


def test_sampled_and_whole_counts_agree() -> None:
    n = 1 << 18
    arrays = randoms(n), randoms(n)
    sampled, _ = profile(ADD, ADD_PLAN, *arrays, compulsory=12 * n, sampled=True)
    complete, _ = profile(ADD, ADD_PLAN, *arrays, compulsory=12 * n)
    assert sampled.kernels[0].sampled < 1
    assert complete.kernels[0].sampled == 1
    for metric in complete.metrics:
        assert sampled.value(metric.name) == pytest.approx(metric.value, rel=0.02), metric.name


SOFTMAX = """
extern "C" __global__ void softmax(const float* x, float* out, int d) {
  __shared__ float part[256];
  const float* row = x + (long long)blockIdx.x * d;
  float* to = out + (long long)blockIdx.x * d;
  float m = -3.4e38f;
  for (int i = threadIdx.x; i < d; i += 256) m = fmaxf(m, row[i]);
  part[threadIdx.x] = m; __syncthreads();
  for (int s = 128; s; s >>= 1) {
    if (threadIdx.x < s) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + s]);
    __syncthreads();
  }
  m = part[0]; __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < d; i += 256) sum += __expf(row[i] - m);
  part[threadIdx.x] = sum; __syncthreads();
  for (int s = 128; s; s >>= 1) {
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  sum = part[0];
  for (int i = threadIdx.x; i < d; i += 256) to[i] = __expf(row[i] - m) / sum;
}
"""
SOFTMAX_PLAN = """
def forward(x):
    n, d = x.shape
    out = empty_like(x)
    softmax[n, 256](x, out, i32(d))
    return out
"""


@pytest.mark.slow
def test_three_passes_over_a_row_read_it_once_from_dram() -> None:
    profiled, _ = profile(SOFTMAX, SOFTMAX_PLAN, randoms(128, 1024), compulsory=8 * 128 * 1024)
    assert excess(profiled) == pytest.approx(1, rel=0.001)
    # The second and the third pass hit the L1.
    assert profiled.value("l1tex__t_sector_hit_rate.pct") == pytest.approx(200 / 3, rel=0.01)
    assert profiled.value("ptx__inst_barrier.sum") > 0
    assert profiled.value("kernelforge__shared_wavefronts_excess.sum") == 0


def test_sampled_softmax_reads_each_row_once_from_dram() -> None:
    profiled, _ = profile(SOFTMAX, SOFTMAX_PLAN, randoms(1024, 1024), compulsory=8 << 20, sampled=True)
    assert profiled.kernels[0].sampled < 0.1
    assert excess(profiled) == pytest.approx(1, rel=0.01)


@pytest.mark.slow
def test_a_block_reads_all_that_it_touches_though_the_l2_keeps_less() -> None:
    source = """
extern "C" __global__ void sums(const float* x, float* out, int d) {
  int row = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < d; k += 8) sum += x[(long long)row * d + k];
  out[row] = sum;
}"""
    rows, d = 256, 1 << 17
    plan = "def forward(x):\n    out = empty((256,), float32)\n    sums[8, 32](x, out, i32(x.shape[1]))\n    return out"
    profiled, _ = profile(source, plan, np.zeros((rows, d), np.float32), compulsory=4 * rows * d, sampled=True)
    assert profiled.kernels[0].sampled < 1
    assert 4 * d * 32 < H100.l2_distinct_bytes < 4 * d * rows
    assert excess(profiled) == pytest.approx(1, rel=0.01)


@pytest.mark.slow
def test_rows_that_the_others_evict_are_read_again_in_each_pass() -> None:
    """An H100 read 805 MB for 268 MB of such rows (results/reference/h100, softmax_block_32768)."""
    rows, columns = 768, 1 << 15
    profiled, _ = profile(SOFTMAX, SOFTMAX_PLAN, randoms(rows, columns), compulsory=8 * rows * columns, sampled=True)
    assert profiled.value("dram__bytes_read.sum") == pytest.approx(3 * 4 * rows * columns, rel=0.01)


READ_TWICE = """
extern "C" __global__ void read_twice(const float4* x, float* out, int n) {
  float sum = 0;
  for (int pass = 0; pass < 2; ++pass)
    for (int i = threadIdx.x; i < n; i += 1024) { float4 v = x[i]; sum += v.x + v.y + v.z + v.w + pass; }
  out[blockIdx.x * 1024 + threadIdx.x] = sum;
}
"""
READ_TWICE_PLAN = """
def forward(x, y):
    out = empty_like(y)
    read_twice[y.numel() // 1024, 1024](x, out, i32(x.numel() // 4))
    return out
"""


@pytest.mark.slow
def test_data_that_all_blocks_read_stay_in_the_l2() -> None:
    n, blocks = 1 << 20, 264
    arrays = randoms(n), randoms(blocks * 1024)
    profiled, _ = profile(READ_TWICE, READ_TWICE_PLAN, *arrays, compulsory=4 * n, sampled=True)
    assert profiled.kernels[0].sampled < 1
    assert profiled.value("dram__bytes_read.sum") == pytest.approx(4 * n, rel=0.01)


MATMUL = """
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + col];
  c[row * n + col] = sum;
}
"""
MATMUL_PLAN = """
def forward(a, b):
    n = a.shape[0]
    c = empty_like(a)
    matmul[(n // 16, n // 16), (16, 16)](a, b, c, i32(n))
    return c
"""


def test_a_naive_matmul_reuses_its_operands_in_the_caches() -> None:
    n = 128
    profiled, _ = profile(MATMUL, MATMUL_PLAN, randoms(n, n), randoms(n, n), compulsory=12 * n * n, flops=2 * n**3)
    assert excess(profiled) == pytest.approx(1, rel=0.001)
    requested = profiled.value("kernelforge__global_bytes_requested")
    assert requested == 4 * (2 * n**3 + n * n)
    hit_rate = profiled.value("lts__t_sector_hit_rate.pct")
    assert hit_rate is not None
    assert hit_rate > 70


def test_a_sampled_matmul_is_not_charged_for_shared_operands_once_per_block() -> None:
    n = 512
    profiled, _ = profile(
        MATMUL, MATMUL_PLAN, randoms(n, n), randoms(n, n), compulsory=12 * n * n, flops=2 * n**3, sampled=True
    )
    assert profiled.kernels[0].sampled < 0.05
    assert excess(profiled) == pytest.approx(1, rel=0.05)


@pytest.mark.slow
def test_edges_of_an_image_count_as_often_as_there_are_such_blocks() -> None:
    """A sample of some blocks has too many or too few of those at the border, which load less."""
    source = """
extern "C" __global__ void sums(const float* x, float* out, int n) {
  int c = blockIdx.x * 8 + threadIdx.x % 8, r = blockIdx.y * 8 + threadIdx.x / 8;
  float sum = 0;
  for (int i = -2; i <= 2; ++i) {
    if (r + i >= 0 && r + i < n) sum += x[(r + i) * n + c];
    if (c + i >= 0 && c + i < n) sum += x[r * n + c + i];
  }
  out[r * n + c] = sum;
}
"""
    plan = """
def forward(x):
    n = x.shape[0]
    out = empty_like(x)
    sums[(n // 8, n // 8), 64](x, out, i32(n))
    return out
"""
    n = 512
    names = [f"l1tex__t_{what}_pipe_lsu_mem_global_op_ld.sum" for what in ("requests", "sectors")]
    both = [profile(source, plan, randoms(n, n), compulsory=8 * n * n, sampled=sampled)[0] for sampled in (False, True)]
    assert both[1].kernels[0].sampled < 0.1
    for name in names:
        assert both[1].value(name) == pytest.approx(both[0].value(name), rel=1e-12)
    assert both[1].value("dram__bytes_read.sum") == pytest.approx(4 * n * n, rel=0.02)


@pytest.mark.parametrize("empty", [1, 2, 7, 1500])
def test_blocks_without_data_at_the_end_of_a_grid_count_as_such(empty: int) -> None:
    plan = f"""
def forward(x):
    out = empty_like(x)
    twice[ceil_div(x.numel(), 256) + {empty}, 256](x, out, i32(x.numel()))
    return out
"""
    n = 256 * 4096
    names = [
        f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum" for what in ("requests", "sectors") for op in ("ld", "st")
    ]
    profiled, _ = profile(UNFUSED, plan, randoms(n), compulsory=8 * n, sampled=True)
    assert profiled.kernels[0].sampled < 0.3
    assert [profiled.value(name) for name in names] == pytest.approx([n / 32, n / 32, n / 8, n / 8], rel=1e-12)


@pytest.mark.slow
def test_a_block_row_that_the_l2_loses_is_read_again() -> None:
    """Blocks start one after another: between two rows of blocks all of B goes through the L2."""
    n = 1024
    arrays = randoms(n, n), randoms(n, n)
    resolved = resolve(MATMUL_PLAN, arrays)
    read = []
    for l2_bytes in (96 << 20, 1 << 20):
        runs = runner(MATMUL, spec=replace(H100, l2_bytes=l2_bytes, sm_count=8))
        counts = runs.profile(work(resolved, arrays, poison=0), budget=Budget(1, total=400_000, floor=100_000))
        read.append(counts.kernels[0].dram_read_bytes)
    assert read[0] == pytest.approx(8 * n * n, rel=0.05)
    assert read[1] > 30 * n * n


@pytest.mark.parametrize("columns", [1000, 1024])
def test_no_fewer_sectors_are_read_from_the_l2_than_there_are(columns: int) -> None:
    """Four neighbours a thread on a T4: blocks one after another would each lack what a quarter of the L1 loses."""
    source = """
extern "C" __global__ void rows(const float* a, const float* b, float* out, int columns) {
  int x = (blockIdx.x * 16 + threadIdx.x) * 4, y = blockIdx.y * 16 + threadIdx.y;
  for (int k = 0; k < 4; ++k)
    if (x + k < columns) out[y * columns + x + k] = a[y * columns + x + k] + b[y * columns + x + k];
}
"""
    plan = """
def forward(a, b):
    out = empty_like(a)
    rows[(ceil_div(a.shape[1], 64), a.shape[0] // 16), (16, 16)](a, b, out, i32(a.shape[1]))
    return out
"""
    arrays = randoms(1024, columns), randoms(1024, columns)
    resolved = resolve(plan, arrays)
    runs = runner(source, spec=replace(SPECS["t4"], sm_count=8))
    counts = runs.profile(work(resolved, arrays, poison=0), budget=Budget(1, total=400_000, floor=100_000))
    (kernel,) = counts.kernels
    assert kernel.blocks_run < 0.1 * kernel.blocks
    assert kernel.l2_read_sectors >= 2 * 1024 * columns / 8 * 0.999


UNFUSED = """
extern "C" __global__ void twice(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2.f * x[i];
}
"""
UNFUSED_PLAN = """
def forward(x):
    n = x.numel()
    a = empty_like(x)
    b = empty_like(x)
    c = empty_like(x)
    twice[ceil_div(n, 256), 256](x, a, i32(n))
    twice[ceil_div(n, 256), 256](a, b, i32(n))
    twice[ceil_div(n, 256), 256](b, c, i32(n))
    return c, a, b
"""


def test_intermediates_are_written_to_dram_and_read_from_the_l2() -> None:
    n = 1 << 16
    profiled, _ = profile(UNFUSED, UNFUSED_PLAN, randoms(n), compulsory=8 * n)
    assert profiled.value("dram__bytes_read.sum") == 4 * n
    assert profiled.value("dram__bytes_write.sum") == 12 * n
    assert profiled.value("kernelforge__launches") == 3
    assert len(profiled.kernels) == 1
    assert profiled.kernels[0].launches == 3


@pytest.mark.slow
def test_sampled_intermediates_are_accounted_for_alike() -> None:
    n = 1 << 20
    profiled, _ = profile(UNFUSED, UNFUSED_PLAN, randoms(n), compulsory=8 * n, sampled=True)
    assert profiled.value("dram__bytes_read.sum") == pytest.approx(4 * n, rel=0.01)
    assert profiled.value("dram__bytes_write.sum") == pytest.approx(12 * n, rel=0.01)


@pytest.mark.slow
def test_sampled_launches_on_the_rows_of_a_tensor_read_and_write_each_row() -> None:
    """Each of 40 launches, of which 16 run, is on rows that no other one has read."""
    rows, columns = 40, 32768
    plan = """
def forward(a, b):
    rows, columns = a.shape
    out = empty_like(a)
    for r in range(rows):
        add[ceil_div(columns, 256), 256](a[r], b[r], out[r], i32(columns))
    return out
"""
    moved = 12 * rows * columns
    profiled, _ = profile(ADD, plan, randoms(rows, columns), randoms(rows, columns), compulsory=moved, sampled=True)
    assert profiled.kernels[0].sampled < 0.5
    assert profiled.value("dram__bytes.sum") == pytest.approx(moved, rel=0.02)


@pytest.mark.slow
def test_sampled_intermediates_larger_than_the_l2_are_read_back() -> None:
    n = 1 << 25  # 128 MiB
    profiled, _ = profile(UNFUSED, UNFUSED_PLAN, np.zeros(n, np.float32), compulsory=8 * n, sampled=True)
    assert profiled.value("dram__bytes_read.sum") == pytest.approx(12 * n, rel=0.01)
    assert profiled.value("dram__bytes_write.sum") == pytest.approx(12 * n, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True])
def test_repeated_launches_are_all_counted(sampled: bool) -> None:
    plan = """
def forward(x):
    n = x.numel()
    out = empty_like(x)
    other = empty_like(x)
    twice[ceil_div(n, 256), 256](x, out, i32(n))
    for k in range(5):
        twice[ceil_div(n, 256), 256](out, other, i32(n))
        twice[ceil_div(n, 256), 256](other, out, i32(n))
    return out
"""
    n = 1 << 15
    profiled, _ = profile(UNFUSED, plan, randoms(n), compulsory=8 * n, sampled=sampled)
    assert profiled.kernels[0].launches == 11
    assert (profiled.kernels[0].sampled < 1) == sampled
    # Both buffers stay in the L2 and are written back once.
    assert profiled.value("dram__bytes_read.sum") == pytest.approx(4 * n, rel=0.01)
    assert profiled.value("dram__bytes_write.sum") == pytest.approx(8 * n, rel=0.01)
    assert profiled.value("kernelforge__global_bytes_requested") == pytest.approx(11 * 8 * n, rel=0.01)


@pytest.mark.parametrize("sampled", [False, True])
def test_rows_of_growing_length_are_not_overcounted(sampled: bool) -> None:
    source = """
extern "C" __global__ void triangle(const float* x, float* out, int n) {
  int r = blockIdx.x;
  float s = 0;
  for (int i = threadIdx.x; i <= r; i += 32) s += x[(long long)r * n + i];
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
  if (!threadIdx.x) out[r] = s;
}
"""
    plan = """
def forward(x):
    n = x.shape[0]
    out = empty((n,), x.dtype)
    triangle[n, 32](x, out, i32(n))
    return out
"""
    n = 1024
    profiled, _ = profile(source, plan, randoms(n, n), compulsory=2 * n * n + 4 * n, sampled=sampled)
    assert excess(profiled) == pytest.approx(1, rel=0.05)


def test_a_grid_whose_blocks_wait_for_one_another_runs_whole() -> None:
    source = """
extern "C" __global__ void chain(const float* x, float* out, int* turn) {
  if (threadIdx.x == 0) while (atomicAdd(turn, 0) != blockIdx.x) {}
  __syncthreads();
  out[blockIdx.x * 256 + threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(turn, 1);
}
"""
    plan = """
def forward(x):
    out = empty_like(x)
    turn = zeros((1,), int32)
    chain[x.numel() // 256, 256](x, out, turn)
    return out
"""
    profiled, _ = profile(source, plan, randoms(256 * 100), compulsory=8 * 256 * 100, sampled=True)
    assert profiled.kernels[0].sampled == 1
    assert excess(profiled) == pytest.approx(1, rel=0.01)


STRIDED = """
extern "C" __global__ void row_sum(const float* x, float* out, int n, int d) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n) return;
  float sum = 0;
  for (int i = 0; i < d; ++i) sum += x[(long long)r * d + i];
  out[r] = sum;
}
"""
STRIDED_PLAN = """
def forward(x):
    n, d = x.shape
    out = empty((n,), x.dtype)
    row_sum[ceil_div(n, 128), 128](x, out, i32(n), i32(d))
    return out
"""


def test_strided_access_shows_in_sectors_and_not_in_dram() -> None:
    n, d = 1024, 256
    profiled, _ = profile(STRIDED, STRIDED_PLAN, randoms(n, d), compulsory=4 * n * d + 4 * n)
    assert profiled.value(COALESCED_LD) == 32
    assert excess(profiled) == pytest.approx(1, rel=0.01)
    worst = profiled.kernels[0].hot_spots[0]
    assert worst.source_line == 6
    assert worst.transactions == 8 * worst.ideal_transactions


def test_reading_every_eighth_element_moves_whole_sectors() -> None:
    source = """
extern "C" __global__ void pick(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[8 * i];
}
"""
    plan = """
def forward(x):
    n = x.numel() // 8
    out = empty((n,), x.dtype)
    pick[ceil_div(n, 256), 256](x, out, i32(n))
    return out
"""
    n = 1 << 15
    profiled, _ = profile(source, plan, randoms(8 * n), compulsory=8 * n)
    assert profiled.value("dram__bytes_read.sum") == 32 * n
    assert excess(profiled) == pytest.approx(4.5, rel=0.001)


@pytest.mark.slow
def test_bank_conflicts_are_counted() -> None:
    source = """
extern "C" __global__ void columns(const float* x, float* out) {
  __shared__ float tile[32][WIDTH];
  for (int r = threadIdx.y; r < 32; r += 8) tile[r][threadIdx.x] = x[r * 32 + threadIdx.x];
  __syncthreads();
  for (int r = threadIdx.y; r < 32; r += 8) out[r * 32 + threadIdx.x] = tile[threadIdx.x][r];
}
"""
    plan = "def forward(x):\n    out = empty_like(x)\n    columns[1, (32, 8)](x, out)\n    return out\n"
    name = "kernelforge__shared_wavefronts_excess.sum"
    conflicted, _ = profile(source.replace("WIDTH", "32"), plan, randoms(32, 32), compulsory=8192)
    padded, _ = profile(source.replace("WIDTH", "33"), plan, randoms(32, 32), compulsory=8192)
    assert conflicted.value(name) == 32 * 31
    assert padded.value(name) == 0


def test_an_in_place_kernel_reads_and_writes_its_buffer() -> None:
    source = 'extern "C" __global__ void twice(float* x) { x[blockIdx.x * 256 + threadIdx.x] *= 2.f; }'
    plan = """
def forward(x):
    n = x.numel()
    out = zeros(x.shape, x.dtype)
    twice[n // 256, 256](out)
    return out
"""
    n = 1 << 14
    profiled, _ = profile(source, plan, randoms(n), compulsory=4 * n)
    # The memset's bytes, then the kernel's.
    assert profiled.value("dram__bytes_read.sum") == 4 * n
    assert profiled.value("dram__bytes_write.sum") == 8 * n
    assert profiled.value("kernelforge__memsets") == 1


SPLIT_K = """
extern "C" __global__ void add_parts(const float* x, float* out, float* total, int tiles) {
  const float* part = x + (size_t)(blockIdx.y * tiles + blockIdx.x) * 2048;
  float* tile = out + blockIdx.x * 2048;
  int row = threadIdx.x / 16 * 8, column = threadIdx.x % 16;
  #pragma unroll
  for (int i = 0; i < 8; i++) atomicAdd(&tile[(row + i) * 16 + column], part[(row + i) * 16 + column]);
  if (total != out && threadIdx.x == 0) atomicAdd(total, 1.0f);
}
"""


@pytest.mark.parametrize("counts", [False, True])
def test_a_word_of_a_sampled_split_product_has_an_update_of_each_part(counts: bool) -> None:
    """64 parts of 16 tiles: each word has one update of each part, and ``total`` one of each block."""
    total = "total" if counts else "out"
    plan = f"""
def forward(x):
    out = zeros((16, 2048))
    total = zeros((1,))
    add_parts[(16, 64), 256](x, out, {total}, i32(16))
    return out
"""
    profiled, _ = profile(SPLIT_K, plan, randoms(64, 16, 2048), compulsory=4 * 65 * 16 * 2048, sampled=True)
    assert profiled.kernels[0].sampled < 0.5
    most = profiled.value("ptx__global_atomics_per_address.max")
    assert most == pytest.approx(1024 if counts else 64, rel=0.15)


COLUMN_SUMS = """
extern "C" __global__ void sums(const float* x, float* out, int rows, int columns) {
  int c = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  for (int r = 0; r < rows; ++r) sum += x[(long long)r * columns + c];
  out[c] = sum;
}
extern "C" __global__ void again(const float* x, float* out, int rows, int columns) {
  int c = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  for (int r = 0; r < rows; ++r) sum += x[(long long)r * columns + c] * x[(long long)r * columns + c];
  out[c] += sum;
}
"""
COLUMN_SUMS_PLAN = """
def forward(x):
    rows, columns = x.shape
    out = empty((columns,))
    sums[columns // 32, 32](x, out, i32(rows), i32(columns))
    again[columns // 32, 32](x, out, i32(rows), i32(columns))
    again[columns // 32, 32](x, out, i32(rows), i32(columns))
    return out
"""


@pytest.mark.parametrize("columns", [96, 512])
def test_one_block_stands_for_launches_whose_blocks_would_take_all_work(columns: int) -> None:
    arrays = (randoms(2048, columns),)
    resolved, runs = resolve(COLUMN_SUMS_PLAN, arrays), runner(COLUMN_SUMS)

    def counts(limit: int | None, total: int) -> PlanCounts:
        request = work(resolved, arrays, poison=0, max_thread_instructions=limit, sample_seed=3)
        return runs.profile(request, budget=Budget(len(resolved.launches), total=total, floor=1))

    complete = counts(None, 1 << 40)
    of_block = sum(kernel.thread_instructions / kernel.blocks for kernel in complete.kernels)
    single = counts(int(2.5 * of_block), 1000)
    assert [kernel.blocks_run for kernel in single.kernels] == [1, 1]
    for own, exact in zip(single.kernels, complete.kernels, strict=True):
        assert own.launches == exact.launches
        assert own.thread_instructions == exact.thread_instructions
        assert own.total("transactions", "global", "load") == exact.total("transactions", "global", "load")
        assert own.l1_read_sectors == exact.l1_read_sectors
    # The input fits the L2: only the first launch reads it.
    assert sum(kernel.dram_read_bytes for kernel in single.kernels) == pytest.approx(arrays[0].nbytes, rel=0.01)


ROUNDS_PLAN = """
def forward(x):
    rounds, rows, columns = x.shape
    out = empty((rounds, columns))
    for r in range(rounds):
        sums[columns // 32, 32](x[r], out[r], i32(rows), i32(columns))
    return out
"""


@pytest.mark.parametrize("single", [False, True])
def test_launches_too_long_for_blocks_at_the_ends_of_a_grid_read_and_write_each_row(single: bool) -> None:
    """Two blocks of some launches run, or one of the first: that a launch reads another part of ``x`` is in neither."""
    arrays = (randoms(40, 64, 512),)
    resolved, runs = resolve(ROUNDS_PLAN, arrays), runner(COLUMN_SUMS)
    request = work(resolved, arrays, poison=0, max_thread_instructions=400_000 if single else None, sample_seed=3)
    (kernel,) = runs.profile(request, budget=Budget(len(resolved.launches), total=1000, floor=1)).kernels
    assert kernel.blocks_run == (1 if single else 2 * 16)
    assert kernel.dram_read_bytes == pytest.approx(arrays[0].nbytes, rel=0.05)
    assert kernel.dram_write_bytes == pytest.approx(4 * 40 * 512, rel=0.05)


MANY_LAUNCHES_PLAN = """
def forward(x):
    rows, columns = x.shape
    part = empty((32,))
    for i in range(17):
        sums[1, 32](x, part, i32(1), i32(columns))
    out = empty((columns,))
    sums[columns // 32, 32](x, out, i32(rows), i32(columns))
    return part, out
"""


def test_launches_that_ran_though_not_sampled_take_no_share_from_later_ones() -> None:
    arrays = (randoms(2048, 96),)
    resolved, runs = resolve(MANY_LAUNCHES_PLAN, arrays), runner(COLUMN_SUMS)
    request = work(resolved, arrays, poison=0, max_thread_instructions=1 << 30, sample_seed=3)
    profile = runs.profile(request, budget=Budget(len(resolved.launches), total=1000, floor=1))
    assert sum(kernel.launches for kernel in profile.kernels) == 18
