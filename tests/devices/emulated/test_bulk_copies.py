"""``cp.async.bulk`` and ``cp.async.bulk.tensor``: bytes and boxes, both ways, and what they check."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kernelforge.devices.emulated.report import LaunchReport
from kernelforge.devices.emulated.tensor_maps import encode_tensor_map
from tests.devices.emulated.harness import Device, cuda, total
from tests.devices.emulated.nvrtc import compile_ptx

HEADER = """
typedef unsigned long long u64;
struct alignas(128) CUtensorMap { u64 opaque[16]; };
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(u64* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(b)), "r"(count) : "memory");
}
__device__ void expect(u64* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(b)), "r"(bytes) : "memory");
}
__device__ void wait(u64* b, int parity) {
  asm volatile("{.reg .pred p; LAB: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra LAB; DONE:}"
               :: "r"(at(b)), "r"(parity) : "memory");
}
__device__ void load(void* to, const void* from, int bytes, u64* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(at(to)), "l"(from), "r"(bytes), "r"(at(b)) : "memory");
}
__device__ void store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :: "l"(to), "r"(at(from)), "r"(bytes) : "memory");
}
#define COMMIT asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define WAIT(n) asm volatile("cp.async.bulk.wait_group " #n ";" ::: "memory")
#define WAIT_READ(n) asm volatile("cp.async.bulk.wait_group.read " #n ";" ::: "memory")
#define FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
"""
X = np.random.default_rng(4).integers(0, 1000, (64, 128)).astype(np.int32)


def run(
    body: str, *arguments: object, parameters: str = "const int* x, int* y", block: int = 64, **options: object
) -> LaunchReport:
    source = f'{HEADER}extern "C" __global__ void k({parameters}) {{\n{body}\n}}'
    return cuda(source).run(options.pop("grid", 1), block, *arguments, **options)  # type: ignore[arg-type]


SUM = """
  __shared__ alignas(16) int data[2][128];
  __shared__ u64 b[2];
  int t = threadIdx.x, sum = 0;
  if (t == 0) { init(b, 1); init(b + 1, 1); }
  __syncthreads();
  for (int k = 0; k < 8; ++k) {
    if (t == 0) { expect(b + k % 2, 512); load(data[k % 2], x + 128 * k, 512, b + k % 2); }
    WAITS
    sum += data[k % 2][t] + data[k % 2][t + 64];
    __syncthreads();
  }
  y[t] = sum;
"""


@pytest.mark.parametrize("racecheck", [False, True])
def test_copied_bytes_are_there_after_the_wait(racecheck: bool) -> None:
    y = np.zeros(64, np.int32)
    report = run(SUM.replace("WAITS", "wait(b + k % 2, k / 2 & 1);"), X, y, racecheck=racecheck)
    assert (y == X[:8].reshape(8, 2, 64).sum((0, 1))).all()
    assert total(report, "transactions", "global", "load") == 8 * 512 // 32
    assert total(report, "requests", "global", "load") == 8


@pytest.mark.parametrize("poison", [0xFF, 0x5A])
def test_bytes_that_nobody_waits_for_are_poison(poison: int) -> None:
    y = np.zeros(64, np.int32)
    run(SUM.replace("WAITS", "__syncthreads();").replace("k < 8", "k < 2"), X, y, poison=poison)
    word = np.full(1, poison * 0x01010101, np.uint32).view(np.int32)
    assert (y == np.full(64, word, np.int32) * np.int32(4)).all()


def test_reading_before_the_wait_is_a_race() -> None:
    early = SUM.replace("WAITS", "").replace("sum += data[k % 2][t] + data[k % 2][t + 64];",
                                             "sum += data[k % 2][t]; wait(b + k % 2, k / 2 & 1);")  # fmt: skip
    report = run(early, X, np.zeros(64, np.int32), clean=False, racecheck=True)
    assert {fault.kind for fault in report.faults} == {"warp_race"}


STORES = """
  __shared__ alignas(16) int data[4][32];
  int t = threadIdx.x;
  for (int k = 0; k < 4; ++k) data[k][t] = x[32 * k + t];
  FENCE;
  __syncwarp();
  if (t == 0) {
    for (int k = 0; k < 4; ++k) { store(y + 32 * k, data[k], 128); COMMIT; }
    WAITS
    for (int k = 0; k < 4; ++k) data[k][5] = -1;
  }
"""


@pytest.mark.parametrize(("waits", "right"), [("WAIT(0);", 4), ("WAIT_READ(1);", 3), ("WAIT_READ(4);", 0), ("", 0)])
def test_a_store_reads_its_source_at_the_wait_of_its_group(waits: str, right: int) -> None:
    y = np.zeros((4, 32), np.int32)
    report = run(STORES.replace("WAITS", waits), X, y, block=32)
    expected = X[0].reshape(4, 32).copy()
    expected[right:, 5] = -1
    assert (y == expected).all()
    assert total(report, "transactions", "global", "store") == 16


FILLS = {
    "stores": ("data[t] = x[t];", 1),
    "stores and a fence": ("data[t] = x[t]; FENCE;", 0),
    "stores and a fence of global memory": ('data[t] = x[t]; asm volatile("fence.proxy.async.global;");', 1),
    "stores and a fence of one lane": ("data[t] = x[t]; if (t == 3) FENCE;", 1),
    "stores and a fence of the lane that copies": ("data[t] = x[t]; __syncwarp(); if (t == 0) FENCE;", 0),
    "an atomic": ("atomicExch(data + t, x[t]);", 1),
    "a bulk copy": (
        "data[t] = 0; if (t == 0) init(&b, 1); __syncwarp(); if (t == 0) { expect(&b, 128); load(data, x, 128, &b); }"
        " wait(&b, 0);",
        0,
    ),
    "cp.async": (
        'asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;" :: "r"(at(data + t)), "l"(x + t)'
        ' : "memory");',
        0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fill", FILLS)
def test_a_copy_of_what_threads_stored_needs_a_proxy_fence(fill: str) -> None:
    statements, expected = FILLS[fill]
    body = (
        f"__shared__ alignas(128) int data[32]; __shared__ u64 b; int t = threadIdx.x;\n{statements}\n__syncwarp();\n"
    )
    body += "if (t == 0) { store(y, data, 128); COMMIT; WAIT(0); }"
    report = run(body, X, np.zeros(32, np.int32), block=32, racecheck=True, clean=False)
    assert [fault.kind for fault in report.faults] == ["proxy_fence"] * expected
    assert not run(body, X, np.zeros(32, np.int32), block=32).faults


def test_a_store_that_another_block_replaced_needs_no_fence_of_its_own() -> None:
    body = """
  __shared__ alignas(128) int data[32];
  int t = threadIdx.x;
  unsigned rank, there;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (rank == 0) data[t] = -1;
  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
  if (rank == 1) {
    asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(at(data + t)));
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(there), "r"(x[t]) : "memory");
    FENCE;
  }
  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
  if (rank == 0 && t == 0) { store(y, data, 128); COMMIT; WAIT(0); }"""
    y = np.zeros(32, np.int32)
    report = run(body, X, y, block=32, grid=2, cluster=(2, 1, 1), racecheck=True, clean=False)
    assert not report.faults
    assert np.array_equal(y, X.reshape(-1)[:32])


def test_groups_belong_to_their_thread() -> None:
    body = """
  __shared__ alignas(16) int data[64][4];
  int t = threadIdx.x;
  for (int k = 0; k < 4; ++k) data[t][k] = x[4 * t + k];
  FENCE;
  store(y + 4 * t, data[t], 16);
  if (t % 3) COMMIT;
  if (t % 2) WAIT(0);
  data[t][0] = -1;
  """
    y = np.zeros((64, 4), np.int32)
    run(body, X, y)
    expected, t = X.reshape(-1, 4)[:64].copy(), np.arange(64)
    expected[(t % 3 == 0) | (t % 2 == 0), 0] = -1
    assert (y == expected).all()


REDUCE = """
  __shared__ alignas(16) TYPE data[32];
  int t = threadIdx.x;
  data[t] = x[t];
  FENCE;
  __syncwarp();
  if (t == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.OP [%0], [%1], %2;"
                 :: "l"(y), "r"(at(data)), "r"((int)sizeof(data)) : "memory");
    COMMIT;
    WAIT(0);
  }
"""
REDUCTIONS = [
    ("int", "add.s32", np.int32, np.add), ("int", "min.s32", np.int32, np.minimum),
    ("unsigned", "max.u32", np.uint32, np.maximum), ("unsigned", "xor.b32", np.uint32, np.bitwise_xor),
    ("u64", "and.b64", np.uint64, np.bitwise_and), ("u64", "add.u64", np.uint64, np.add),
    ("float", "add.f32", np.float32, np.add), ("double", "add.f64", np.float64, np.add),
    ("short", "add.noftz.f16", np.float16, np.add), ("short", "max.f16", np.float16, np.maximum),
    ("short", "min.f16", np.float16, np.minimum),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "operation", "dtype", "function"), REDUCTIONS)
def test_reductions_combine_elements(kind: str, operation: str, dtype: type, function: np.ufunc) -> None:
    rng = np.random.default_rng(8)
    x, y = ((100 * rng.standard_normal(32)).astype(dtype) if np.issubdtype(dtype, np.floating)
            else rng.integers(-(2**31) if kind == "int" else 0, 2**31, 32).astype(dtype) for _ in range(2))  # fmt: skip
    expected = function(y, x)
    body = REDUCE.replace("TYPE", kind).replace("OP", operation)
    run(body, x, y, parameters=f"const {kind}* x, {kind}* y", block=32)
    assert np.array_equal(y, expected)


MISUSE = [
    ("load(data + 1, x, 16, b);", "copy_misaligned"), ("load(data, x + 1, 16, b);", "copy_misaligned"),
    ("load(data, x, 24, b);", "copy_size"), ("load(data, x, 0, b);", "copy_size"),
    ("load(data, x + 64 * 128 - 4, 32, b);", "out_of_bounds"), ("load(data + 508, x, 32, b);", "out_of_bounds"),
    ("load(data, x, 16, b + 1);", "no_mbarrier"), ("store((int*)x, data, 16);", "read_only_write"),
    ("store(y + 64, data, 16);", "out_of_bounds"), ("store(y, data + 508, 32);", "out_of_bounds"),
    ("expect(b, 32); load(data, x, 16, b); wait(b, 0);", "mbarrier_deadlock"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind"), MISUSE)
def test_misuse_is_a_fault_with_its_line(call: str, kind: str) -> None:
    body = f"__shared__ alignas(128) int data[508]; __shared__ u64 b[2]; if (threadIdx.x) return; init(b, 1);\n{call}"
    report = run(body, X, np.zeros(64, np.int32), clean=False, read_only=[0])
    assert {fault.kind for fault in report.faults} == {kind}


CLUSTER = """
  __shared__ alignas(16) int data[64];
  __shared__ alignas(16) int mine[64];
  __shared__ u64 b[2];
  int t = threadIdx.x;
  unsigned rank, there, barrier;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  mine[t] = x[64 * rank + t];
  if (t == 0) { init(b, 1); init(b + 1, 1); expect(b, 256); if (rank != 2) expect(b + 1, 256); }
  FENCE;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  if (t == 0) {
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at(data)), "r"((rank + 1) % 4));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(at(b)), "r"((rank + 1) % 4));
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                 :: "r"(there), "r"(at(mine)), "r"(barrier) : "memory");
  }
  wait(b, 0);
  int sum = data[t];
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  if (t == 0 && rank == 0)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], 256, [%2], %3;" :: "r"(at(data)), "l"(x + 1024), "r"(at(b + 1)), "h"((short)11)
                 : "memory");
  if (rank != 2) { wait(b + 1, 0); sum += 1000 * data[t]; }
  y[64 * rank + t] = sum;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
"""


@pytest.mark.parametrize("racecheck", [False, True])
def test_copies_to_other_blocks_of_a_cluster(racecheck: bool) -> None:
    y = np.zeros((4, 64), np.int32)
    report = run(CLUSTER, X, y, grid=4, cluster=(4, 1, 1), racecheck=racecheck)
    expected = np.roll(X.reshape(-1, 64)[:4], 1, axis=0)
    expected[[0, 1, 3]] += 1000 * X.reshape(-1, 64)[16]
    assert (y == expected).all()
    assert total(report, "requests", "global", "load") == 4 * 2 + 1


KINDS = {
    "uint8": np.uint8, "float16": np.float16, "int32": np.int32, "float32": np.float32, "float64": np.float64,
}  # fmt: skip


class Tensor:
    """A tensor on a device, with its map."""

    def __init__(self, device: Device, x: np.ndarray, kind: str, box: Sequence[int], **options: object) -> None:
        self.device, self.x = device, x
        self.address = device.memory.allocate(x.nbytes, "x")
        device.memory.write(self.address, x)
        self.map = np.frombuffer(
            encode_tensor_map(
                self.address, kind, x.shape[::-1], x.strides[-2::-1] if x.ndim > 1 else (), box, **options
            ),  # type: ignore[arg-type]
            np.uint8,
        )

    def read(self) -> np.ndarray:
        return np.frombuffer(self.device.memory.read(self.address, self.x.nbytes), self.x.dtype).reshape(self.x.shape)


def map_argument(tensor: Tensor) -> object:
    """The map as one scalar of 128 bytes."""
    return tensor.map.view("V128")[0]


PAIRS = (
    HEADER
    + """
extern "C" __global__ void k(const __grid_constant__ CUtensorMap map, int* y, int host) {
  __shared__ alignas(128) int data[64];
  __shared__ u64 b;
  int t = threadIdx.x;
  unsigned rank, barrier;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (t == 0) { init(&b, 1); if (rank % 2 == host % 2) expect(&b, 512); }
  FENCE;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  if (t == 0 && rank == 2) {
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(at(&b)), "r"(host));
    asm volatile("cp.async.bulk.tensor.1d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2}], [%3], %4;"
                 :: "r"(at(data)), "l"(&map), "r"(64), "r"(barrier), "h"((short)15) : "memory");
  }
  if (rank % 2 == host % 2) wait(&b, 0);
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  y[64 * rank + t] = data[t];
}"""
)


@pytest.mark.parametrize("host", [0, 1, 3])
def test_a_box_for_pairs_of_blocks_completes_at_the_block_of_each_that_is_as_odd(host: int) -> None:
    device = Device(compile_ptx(PAIRS, arch="compute_100a"))
    x, y = Tensor(device, np.arange(256, dtype=np.int32), "int32", (64,)), np.zeros((4, 64), np.int32)
    device.run(4, 64, map_argument(x), y, host, cluster=(4, 1, 1))
    assert (y == x.x[64:128]).all()


def box_copies(load: str, *stores: str) -> str:
    """Source of a kernel that copies a box of ``map`` at ``c`` to ``out`` (0), or ``out`` to a box by one of ``stores``
    (1, 2); ``load`` and those are statements of one thread, of which the load completes at the mbarrier ``b``."""
    cases = "".join(f"if (how == {how}) {{ {store} }}\n" for how, store in enumerate(stores, 1))
    return f"""{HEADER}
extern "C" __global__ void k(const __grid_constant__ CUtensorMap map, const int* c, uint4* out, int bytes, int how) {{
  extern __shared__ __align__(1024) uint4 box[];
  __shared__ u64 b;
  int t = threadIdx.x;
  if (how) for (int i = t; i < bytes / 16; i += blockDim.x) box[i] = out[i];
  if (t == 0) init(&b, 1);
  FENCE;
  __syncthreads();
  if (how == 0) {{
    if (t == 0) {{
      expect(&b, bytes);
      {load}
    }}
    wait(&b, 0);
    for (int i = t; i < bytes / 16; i += blockDim.x) out[i] = box[i];
  }} else if (t == 0) {{
    {cases}
    COMMIT;
    WAIT(0);
  }}
}}
"""


def box_kernel(rank: int) -> str:
    def position(tensor: int, first: int) -> str:
        return f"[%{tensor}, {{{', '.join(f'%{first + axis}' for axis in range(rank))}}}]"

    values = ", ".join(f'"r"(c[{axis}])' for axis in range(rank))
    tensor = f"cp.async.bulk.tensor.{rank}d"
    load = f"""
asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
asm volatile("cp.async.bulk.prefetch.tensor.{rank}d.L2.global {position(0, 1)};" :: "l"(&map), {values} : "memory");
asm volatile("{tensor}.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], {position(1, 2)}, [%{2 + rank}];"
             :: "r"(at(box)), "l"(&map), {values}, "r"(at(&b)) : "memory");"""
    stores = (
        f'asm volatile("{copy}.tile.bulk_group {position(0, 2)}, [%1];"'
        f' :: "l"(&map), "r"(at(box)), {values} : "memory");'
        for copy in (f"{tensor}.global.shared::cta", f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add")
    )
    return box_copies(load, *stores)


def box_of(
    x: np.ndarray, box: Sequence[int], start: Sequence[int], steps: Sequence[int], outside: object
) -> np.ndarray:
    """A box by its definition; box, start and steps are innermost first."""
    counts = [-(-b // s) for b, s in zip(box, steps, strict=True)]
    result = np.full(counts[::-1], outside, x.dtype)
    for position in np.ndindex(*result.shape):
        at = tuple(c + i * s for c, i, s in zip(start[::-1], position, steps[::-1], strict=True))
        if all(0 <= a < extent for a, extent in zip(at, x.shape, strict=True)):
            result[position] = x[at]
    return result


def swizzled(raw: np.ndarray, swizzle_bytes: int) -> np.ndarray:
    """Bytes of a box in shared memory, from an address that is a multiple of 1024."""
    order = {0: lambda k: 0, 32: lambda k: k >> 3 & 1, 64: lambda k: k >> 3 & 3, 128: lambda k: k >> 3 & 7}
    chunks = raw.reshape(-1, 16)
    result = np.zeros_like(chunks)
    for k in range(len(chunks)):
        result[k ^ order[swizzle_bytes](k)] = chunks[k]
    return result.reshape(-1)


BOXES = [
    ("float32", (300,), (64,), (16,), {}), ("float32", (300,), (64,), (280,), {}), ("int32", (300,), (64,), (-12,), {}),
    ("float16", (40, 64), (32, 8), (8, 36), {}), ("float16", (40, 64), (64, 16), (0, 8), {"swizzle_bytes": 128}),
    ("float32", (40, 64), (16, 16), (56, -3), {"swizzle_bytes": 64}),
    ("uint8", (40, 64), (32, 16), (16, 30), {"swizzle_bytes": 32}),
    ("float64", (6, 10, 12), (8, 4, 3), (6, 8, -1), {}),
    ("float32", (6, 10, 12), (8, 4, 3), (4, 1, 4), {"nan_outside": True}),
    ("float16", (3, 4, 6, 16), (16, 2, 3, 2), (-8, 5, 2, 1), {"nan_outside": True}),
    ("float16", (2, 3, 4, 6, 16), (8, 2, 3, 2, 2), (8, 5, 2, 1, 1), {}),
    ("float32", (40, 64), (32, 9), (4, 20), {"steps": (2, 3)}),
    ("float32", (40, 64), (32, 9), (40, 36), {"steps": (4, 2)}),
]  # fmt: skip


def tensor_and_kernel(kind: str, shape: Sequence[int], box: Sequence[int], options: dict[str, object]) -> Tensor:
    x = np.random.default_rng(5).integers(0, 100, shape).astype(KINDS[kind])
    return Tensor(cuda(box_kernel(len(shape))), x, kind, box, **options)


@pytest.mark.parametrize(("kind", "shape", "box", "start", "options"), BOXES)
def test_a_box_is_loaded_and_filled_outside_the_tensor(
    kind: str, shape: tuple[int, ...], box: tuple[int, ...], start: tuple[int, ...], options: dict[str, object]
) -> None:
    tensor = tensor_and_kernel(kind, shape, box, options)
    steps = options.get("steps", (1,) * len(shape))
    outside = np.nan if options.get("nan_outside") else 0
    expected = box_of(tensor.x, box, start, steps, outside)  # type: ignore[arg-type]
    out = np.zeros(expected.nbytes, np.uint8)
    tensor.device.run(1, 64, map_argument(tensor), np.array(start, np.int32), out, out.nbytes, 0, shared=out.nbytes)
    raw = swizzled(expected.reshape(-1).view(np.uint8), options.get("swizzle_bytes", 0))  # type: ignore[arg-type]
    if options.get("nan_outside"):
        np.testing.assert_array_equal(out.view(KINDS[kind]), raw.view(KINDS[kind]))
    else:
        assert (out == raw).all()


@pytest.mark.parametrize("how", [0, 1, 2])
@pytest.mark.parametrize(("column", "faults"), [(0, 0), (4, 0), (8, 0), (-4, 0), (5, 1), (6, 1), (-1, 1)])
def test_a_box_begins_at_a_multiple_of_16_bytes(column: int, faults: int, how: int) -> None:
    """An H100 loaded boxes from columns 0, 4 and 8, and ended with an illegal instruction at 5 and 6."""
    tensor = tensor_and_kernel("float32", (9, 12), (8, 4), {})
    out = np.zeros(128, np.uint8)
    start = np.array([column, 7], np.int32)
    report = tensor.device.run(1, 32, map_argument(tensor), start, out, 128, how, shared=128, clean=False)
    kinds = [fault.kind for fault in report.faults]
    assert kinds[:1] == ["box_misaligned"] * faults
    if faults:
        assert f"begins at innermost coordinate {column}, of 4-byte elements" in str(report.faults[0])
        assert "begin at a multiple of 4, " in str(report.faults[0])


@pytest.mark.parametrize("how", [1, 2])
@pytest.mark.parametrize(("kind", "shape", "box", "start", "options"), BOXES)
def test_a_box_is_stored_or_added_inside_the_tensor(
    kind: str,
    shape: tuple[int, ...],
    box: tuple[int, ...],
    start: tuple[int, ...],
    options: dict[str, object],
    how: int,
) -> None:
    if how == 2 and kind == "uint8":
        pytest.skip("no reduction of bytes")
    tensor = tensor_and_kernel(kind, shape, box, options)
    steps = options.get("steps", (1,) * len(shape))
    counts = [-(-b // s) for b, s in zip(box, steps, strict=True)]  # type: ignore[call-overload]
    values = np.random.default_rng(6).integers(0, 100, counts[::-1]).astype(KINDS[kind])
    expected = tensor.x.copy()
    for position in np.ndindex(*values.shape):
        at = tuple(c + i * s for c, i, s in zip(start[::-1], position, steps[::-1], strict=True))  # type: ignore[index]
        if all(0 <= a < extent for a, extent in zip(at, shape, strict=True)):
            expected[at] = values[position] + (expected[at] if how == 2 else 0)
    raw = swizzled(values.reshape(-1).view(np.uint8), options.get("swizzle_bytes", 0)).copy()  # type: ignore[arg-type]
    tensor.device.run(1, 64, map_argument(tensor), np.array(start, np.int32), raw, raw.nbytes, how, shared=raw.nbytes)
    assert np.array_equal(tensor.read(), expected)


def test_sectors_of_a_box_are_counted_once() -> None:
    tensor = tensor_and_kernel("float32", (40, 64), (16, 8), {})
    out = np.zeros(16 * 8 * 4, np.uint8)
    arguments = (map_argument(tensor), np.array((16, 36), np.int32), out, out.nbytes)
    report = tensor.device.run(1, 64, *arguments, 0, shared=out.nbytes)
    ops = [op for op in report.memory if "tensor" in op.opcode and "prefetch" not in op.opcode]
    loads = [op for op in ops if op.access == "load"]
    assert [(op.requests, op.transactions, op.ideal_transactions, op.threads * 16) for op in loads] == [(1, 8, 8, 256)]


def test_a_kernel_without_a_map_or_with_a_bad_place_is_a_fault() -> None:
    tensor = tensor_and_kernel("float32", (40, 64), (16, 8), {})
    out, start = np.zeros(512, np.uint8), np.zeros(2, np.int32)
    bad = np.zeros(128, np.uint8).view("V128")[0]
    for scalar, offset, kind in ((bad, 512, "no_tensor_map"), (map_argument(tensor), 256, "out_of_bounds")):
        report = tensor.device.run(1, 64, scalar, start, out, 512, 0, shared=offset, clean=False)
        assert kind in {fault.kind for fault in report.faults}
