"""``mbarrier``: phases, counts of arrivals and bytes, waits, and their misuse."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import Device, cuda

HEADER = """
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(u64* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(b)), "r"(count) : "memory");
}
__device__ u64 arrive(u64* b) {
  u64 state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(b)) : "memory");
  return state;
}
__device__ void wait(u64* b, int parity) {
  asm volatile("{.reg .pred p; LAB: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra LAB; DONE:}"
               :: "r"(at(b)), "r"(parity) : "memory");
}
__device__ int test(u64* b, u64 state) {
  int done;
  asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(at(b)), "l"(state) : "memory");
  return done;
}
__device__ int pending(u64 state) {
  int count;
  asm volatile("{.reg .b64 n; mbarrier.pending_count.b64 n, %1; cvt.u32.u64 %0, n;}" : "=r"(count) : "l"(state));
  return count;
}
"""


def device(body: str, parameters: str = "int* out", threads: int = 1, declarations: str = "") -> Device:
    source = f'{HEADER}{declarations}\nextern "C" __global__ void k({parameters}) {{\n{body}\n}}'
    return cuda(source, threads=threads)


def faults(body: str, blocks: int = 1, block: int = 64, **options: object) -> list[tuple[str, int]]:
    """Kind and line, counted in ``body``, of each fault."""
    report = device(body).run(blocks, block, np.zeros(256, np.int32), clean=False, **options)
    before = HEADER.count("\n") + 1
    return [(fault.kind, fault.source_line - before) for fault in report.faults]


RING = """
  __shared__ u64 full[3], empty[3];
  __shared__ int data[3][64];
  int t = threadIdx.x;
  if (t == 0) for (int s = 0; s < 3; ++s) { init(full + s, 64); init(empty + s, 32); }
  __syncthreads();
  if (t < 64) {
    for (int k = 0; k < n; ++k) {
      wait(empty + k % 3, (k / 3 & 1) ^ 1);
      data[k % 3][t] = x[64 * k + t];
      arrive(full + k % 3);
    }
  } else {
    int sum = 0;
    for (int k = 0; k < n; ++k) {
      wait(full + k % 3, k / 3 & 1);
      sum += data[k % 3][t - 64] + data[k % 3][t - 32];
      arrive(empty + k % 3);
    }
    out[32 * blockIdx.x + t - 64] = sum;
  }
"""


@pytest.mark.parametrize("racecheck", [False, True])
def test_two_warps_hand_tiles_to_a_third_through_a_ring(racecheck: bool) -> None:
    x = np.random.default_rng(1).integers(0, 1000, (17, 64)).astype(np.int32)
    out = np.zeros((5, 32), np.int32)
    device(RING, "const int* x, int n, int* out").run(5, 96, x, 17, out, racecheck=racecheck)
    assert (out == x.reshape(17, 2, 32).sum((0, 1))).all()


@pytest.mark.parametrize(
    ("missing", "kind"),
    [("wait(full + k % 3, k / 3 & 1);", "shared_race"), ("wait(empty + k % 3, (k / 3 & 1) ^ 1);", "mbarrier_deadlock")],
)
def test_a_ring_without_one_of_its_waits_is_a_fault(missing: str, kind: str) -> None:
    """Without the second wait two phases of one barrier go by before a thread looks at it."""
    ring = device(RING.replace(missing, "").replace("init(full + s, 64)", "init(full + s, 64 + more)"),
                  "const int* x, int n, int* out, int more")  # fmt: skip
    more = int(kind == "shared_race")
    report = ring.run(1, 96, np.zeros((17, 64), np.int32), 3 if more else 17, np.zeros(32, np.int32), more,
                      clean=False, racecheck=True)  # fmt: skip
    assert {fault.kind for fault in report.faults} == {kind}


def test_states_tell_how_many_arrivals_are_missing() -> None:
    body = """
  __shared__ u64 b;
  int t = threadIdx.x;
  if (t == 0) init(&b, 64);
  __syncthreads();
  u64 state = arrive(&b);
  out[t] = pending(state);
  while (!test(&b, state)) {}
  out[64 + t] = test(&b, state);
  """
    out = np.zeros(128, np.int32)
    device(body).run(1, 64, out)
    assert sorted(out[:64]) == list(range(1, 65))
    assert (out[64:] == 1).all()


def test_lanes_of_one_warp_wait_for_each_other_in_different_branches() -> None:
    body = """
  __shared__ u64 b;
  __shared__ int data[32];
  int t = threadIdx.x, n = 0;
  if (t == 0) init(&b, 32);
  __syncthreads();
  for (int k = 0; k < 5; ++k) {
    if (t % 3 == k % 3) { u64 s = arrive(&b); while (!test(&b, s)) {} n += 100; }
    else if (t % 2) { data[t] = k; arrive(&b); wait(&b, k & 1); n += 1; }
    else { arrive(&b); wait(&b, k & 1); n += 10000; }
  }
  out[t] = n;
  """
    out = np.zeros(32, np.int32)
    device(body).run(1, 32, out)
    t = np.arange(32)
    expected = sum(np.where(t % 3 == k % 3, 100, np.where(t % 2, 1, 10000)) for k in range(5))
    assert (out == expected).all()


def test_a_lane_that_is_first_to_wait_lets_the_others_arrive() -> None:
    body = """
  __shared__ u64 b[2];
  int t = threadIdx.x, sum = 0;
  if (t == 0) { init(b, 31); init(b + 1, 1); }
  __syncwarp();
  for (int k = 0; k < 8; ++k) {
    if (t == 0) { wait(b, k & 1); sum += k; arrive(b + 1); }
    else { arrive(b); wait(b + 1, k & 1); sum += 10 * k; }
  }
  out[t] = sum;
  """
    out = np.zeros(32, np.int32)
    device(body).run(1, 32, out)
    assert out[0] == 28
    assert (out[1:] == 280).all()


def test_bytes_are_expected_and_completed() -> None:
    body = """
  __shared__ u64 b;
  int t = threadIdx.x;
  if (t == 0) {
    init(&b, 1);
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 48;" :: "r"(at(&b)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], 16;" :: "r"(at(&b)) : "memory");
  }
  __syncthreads();
  if (t >= 32)
    asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%0], 2;" :: "r"(at(&b)) : "memory");
  wait(&b, 0);
  out[t] = 1;
  """
    out = np.zeros(64, np.int32)
    device(body).run(1, 64, out)
    assert (out == 1).all()
    assert [kind for kind, _ in faults(body.replace("48", "47"))] == ["mbarrier_deadlock"]


def test_threads_that_drop_out_are_no_longer_expected() -> None:
    body = """
  __shared__ u64 b;
  int t = threadIdx.x;
  if (t == 0) init(&b, 96);
  __syncthreads();
  for (int k = 0; k < 4; ++k) {
    if (t / 32 == k) {
      asm volatile("{.reg .b64 s; mbarrier.arrive_drop.shared::cta.b64 s, [%0];}" :: "r"(at(&b)) : "memory");
      return;
    }
    arrive(&b);
    wait(&b, k & 1);
    out[t] = k;
  }
  """
    out = np.zeros(96, np.int32)
    device(body).run(1, 96, out)
    assert out.reshape(3, 32).tolist() == [[0] * 32, [0] * 32, [1] * 32]


def test_blocks_of_a_cluster_arrive_at_each_others_barriers() -> None:
    body = """
  __shared__ u64 b[3];
  __shared__ int data[32];
  int t = threadIdx.x;
  unsigned rank, theirs, target;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (t < 3) { init(b + t, 32 * 3); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  for (int k = 0; k < 3; ++k) {
    for (int other = 1; other < 4; ++other) {
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(at(b + k)), "r"(rank + other & 3));
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(target) : "r"(at(data + t)), "r"(rank + other & 3));
      asm volatile("red.relaxed.cluster.shared::cluster.add.s32 [%0], %1;" :: "r"(target), "r"(k + 1) : "memory");
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(theirs) : "memory");
    }
    wait(b + k, 0);
  }
  out[32 * blockIdx.x + t] = data[t] - start;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  """
    out = np.zeros((8, 32), np.int32)
    body = body.replace("int t = threadIdx.x;", "int t = threadIdx.x, start = data[t];", 1)
    device(body).run(8, 32, out, cluster=(4, 1, 1))
    assert (out == 18).all()
    lonely = body.replace("other < 4", "other < 3")
    assert {kind for kind, _ in faults(lonely, 8, 32, cluster=(4, 1, 1))} == {"mbarrier_deadlock"}


CP_ASYNC = """
  __shared__ u64 b;
  __shared__ int4 data[64];
  int t = threadIdx.x;
  if (t == 0) init(&b, COUNT);
  __syncthreads();
  if (t < 64) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at(data + t)), "l"(x + t) : "memory");
    asm volatile("cp.async.mbarrier.arrive.KIND.b64 [%0];" :: "r"(at(&b)) : "memory");
    if (COUNT == 1 && t == 0) arrive(&b);
  } else {
    WAIT
    out[t - 64] = data[t - 64].y + data[t - 32].z;
  }
"""


@pytest.mark.parametrize("racecheck", [False, True])
def test_a_barrier_waits_for_asynchronous_copies(racecheck: bool) -> None:
    x = np.random.default_rng(2).integers(0, 1000, (64, 4)).astype(np.int32)
    for count, kind in ((64, "noinc.shared::cta"), (1, "shared::cta")):
        out = np.zeros(32, np.int32)
        source = CP_ASYNC.replace("COUNT", str(count)).replace("KIND", kind).replace("WAIT", "wait(&b, 0);")
        device(source, "const int4* x, int* out").run(1, 96, x, out, racecheck=racecheck)
        assert (out == x[:32, 1] + x[32:, 2]).all()
    source = CP_ASYNC.replace("COUNT", "64").replace("KIND", "noinc.shared::cta").replace("WAIT", "")
    device(source, "const int4* x, int* out").run(1, 96, x, out)
    assert (out == -2).all()  # two words of poison


SETUP = "__shared__ u64 b[2]; int t = threadIdx.x; if (t == 0) init(b, 32); __syncthreads();\n"
MISUSE = {
    "arrive(b + 1);": "no_mbarrier",
    "wait(b + 1, 0);": "no_mbarrier",
    "if (t == 0) init(b + 1, 0);": "mbarrier_count",
    "if (t == 0) init(b + 1, 1 << 20);": "mbarrier_count",
    'if (t == 0) asm volatile("{.reg .b64 s; mbarrier.arrive.b64 s, [%0], 33;}" :: "l"(b));': "mbarrier_count",
    'if (t < 32) asm volatile("{.reg .b64 s; mbarrier.arrive.noComplete.b64 s, [%0], 1;}" :: "l"(b));':
        "mbarrier_count",
    'if (t == 0) asm volatile("mbarrier.expect_tx.relaxed.cta.shared.b64 [%0], 1048576;" :: "r"(at(b)));':
        "mbarrier_bytes",
    'if (t < 2) asm volatile("mbarrier.complete_tx.relaxed.cta.shared.b64 [%0], 600000;" :: "r"(at(b)));':
        "mbarrier_bytes",
    'if (t == 0) { asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(at(b))); arrive(b); }': "no_mbarrier",
    "if (t < 32) wait(b, 0);": "mbarrier_deadlock",
    "if (t < 16) arrive(b); wait(b, 0);": "mbarrier_deadlock",
    "if (t >= 32) wait(b, 0); __syncthreads();": "mbarrier_deadlock",
    "arrive((u64*)((char*)b + 4));": "misaligned",
    'if (t == 0) asm volatile("{.reg .b64 s; mbarrier.arrive.b64 s, [%0];}" :: "l"(out));': "out_of_bounds",
}  # fmt: skip


@pytest.mark.parametrize("body", MISUSE)
def test_misuse_is_a_fault(body: str) -> None:
    reported = faults(SETUP + body)
    assert {kind for kind, _ in reported} == {MISUSE[body]}
    if "asm" in body and "arrive(b)" not in body:
        assert {line for _, line in reported} == {3}


def test_a_barrier_with_copies_under_way_cannot_be_invalidated() -> None:
    body = """
  __shared__ u64 b;
  __shared__ int4 data;
  if (threadIdx.x) return;
  init(&b, 1);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(at(&data)), "l"(out) : "memory");
  asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" :: "r"(at(&b)) : "memory");
  asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(at(&b)) : "memory");
  """
    assert faults(body) == [("mbarrier_busy", 9)]


def test_a_deadlock_in_one_block_leaves_the_others_running() -> None:
    body = """
  __shared__ u64 b;
  int t = threadIdx.x;
  if (t == 0) init(&b, blockIdx.x == 2 ? 65 : 64);
  __syncthreads();
  arrive(&b);
  wait(&b, 0);
  out[64 * blockIdx.x + t] = 1;
  """
    for threads in (1, 2):
        out = np.zeros((6, 64), np.int32)
        report = device(body, threads=threads).run(6, 64, out, clean=False)
        assert [(fault.kind, fault.block) for fault in report.faults] == [("mbarrier_deadlock", (2, 0, 0))]
        assert out.sum(1).tolist() == [64, 64, 0, 64, 64, 64]


def test_a_wait_counts_once_however_long_it_takes() -> None:
    body = """
  __shared__ u64 b;
  int t = threadIdx.x;
  if (t == 0) init(&b, 1);
  __syncthreads();
  if (t >= 64) { int v = t; for (int k = 0; k < n; ++k) v = v * 5 + out[k & 7]; out[t] = v; if (t == 64) arrive(&b); }
  else wait(&b, 0);
  """
    counts = []
    for n in (10, 100_000):
        report = device(body, "int* out, int n").run(1, 96, np.zeros(128, np.int32), n)
        counts.append(report.mix["mbarrier.b64"])
    assert counts[0] == counts[1]
