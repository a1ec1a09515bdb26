"""``st.async`` and ``red.async``: values that arrive in shared memory of the cluster at the wait of an mbarrier."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernelforge.devices.emulated.report import LaunchReport
from tests.devices.emulated.harness import Device, cuda, ptx_module, total
from tests.devices.emulated.test_bulk_copies import HEADER

PEERS = """
  __shared__ alignas(16) u64 data[64];
  __shared__ u64 b;
  int t = threadIdx.x;
  unsigned rank, there, barrier;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  data[t] = START;
  if (t == 0) { init(&b, 1); expect(&b, 32 * sizeof(TYPE) * COUNT); }
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there)
               : "r"(at(data) + (unsigned)sizeof(TYPE) * COUNT * (SPREAD ? t : t / 32)), "r"((rank + 1) % 4));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(at(&b)), "r"((rank + 1) % 4));
  TYPE v = (TYPE)(1000 * rank + t);
  asm volatile("INSTRUCTION" :: "r"(there), CONSTRAINT, "r"(barrier) : "memory");
  WAIT
  y[32 * rank + t] = data[t];
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
"""
STORE = "st.async.shared::cluster.mbarrier::complete_tx::bytes.{} [%0], {}, [%{}];"
REDUCE = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{} [%0], %1, [%2];"
RANK, THREAD = np.indices((4, 32))
SENT = 1000 * ((RANK - 1) % 4) + THREAD


def run(
    instruction: str, kind: str, constraint: str, *, count: int = 1, start: str = "0", spread: bool = True,
    wait: str = "wait(&b, 0);", **options: object,
) -> tuple[np.ndarray, LaunchReport]:  # fmt: skip
    body = PEERS
    words = {"INSTRUCTION": instruction, "CONSTRAINT": constraint, "TYPE": kind, "COUNT": str(count), "START": start,
             "WAIT": wait, "SPREAD": str(int(spread))}  # fmt: skip
    for word, text in words.items():
        body = body.replace(word, text)
    source = f'{HEADER}extern "C" __global__ void k(u64* y) {{\n{body}\n}}'
    y = np.zeros((4, 32), np.uint64)
    return y, cuda(source).run(4, 32, y, cluster=(4, 1, 1), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("racecheck", [False, True])
def test_a_store_arrives_at_the_wait(racecheck: bool) -> None:
    y, report = run(STORE.format("b64", "%1", 2), "u64", '"l"(v)', racecheck=racecheck)
    assert (y == SENT).all()
    assert total(report, "requests", "dshared", "store") == 4
    assert total(report, "transactions", "dshared", "store") == 4 * 8


def test_vectors_are_stored_whole() -> None:
    y, _ = run(STORE.format("v2.b64", "{%1, %1}", 2), "u64", '"l"(v)', count=2)
    assert (y == np.repeat(SENT, 2, axis=1)[:, :32]).all()
    y, _ = run(STORE.format("v4.u32", "{%1, %2, %1, %2}", 3), "int", '"r"(v), "r"(7)', count=4)
    assert (y == (np.repeat(SENT, 2, axis=1)[:, :32] | 7 << 32)).all()


def test_what_is_not_waited_for_is_poison() -> None:
    y, _ = run(STORE.format("b64", "%1", 2), "u64", '"l"(v)', wait="__syncthreads();", poison=0xA5)
    # A block that runs ahead of its neighbour reads what it wrote itself.
    assert set(np.unique(y)) <= {0, 0xA5A5A5A5A5A5A5A5}


REDUCTIONS = [
    ("add.u32", "unsigned", "5", lambda sent: 5 + sent.sum(1)),
    ("min.s32", "int", "100", lambda sent: np.minimum(100, sent.min(1))),
    ("max.u32", "unsigned", "100", lambda sent: np.maximum(100, sent.max(1))),
    ("or.b32", "unsigned", "4096", lambda sent: 4096 | np.bitwise_or.reduce(sent, axis=1)),
    ("inc.u32", "unsigned", "5", lambda sent: [_incremented(5, row) for row in sent]),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "kind", "start", "expected"), REDUCTIONS)
def test_reductions_combine_all_values(
    operation: str, kind: str, start: str, expected: Callable[[np.ndarray], object]
) -> None:
    y, _ = run(REDUCE.format(operation), kind, '"r"(v)', start=start, spread=False)
    assert (y[:, 0] == np.array(expected(SENT), np.uint64)).all()
    assert (y[:, 1:] == int(start)).all()


def _incremented(value: int, bounds: np.ndarray) -> int:
    for bound in bounds:
        value = 0 if value >= bound else value + 1
    return value


def test_sums_of_64_bits() -> None:
    y, _ = run(REDUCE.format("add.u64"), "u64", '"l"(v)', start="1ull << 40", spread=False)
    assert (y[:, 0] == (1 << 40) + SENT.sum(1)).all()


@pytest.mark.parametrize(
    ("instruction", "address", "barrier", "kind"),
    [
        (STORE.format("b64", "%1", 2), "at(data)", "at(&b)", None),
        (STORE.format("b64", "%1", 2), "at(data)", "at(data)", "no_mbarrier"),
        (STORE.format("b64", "%1", 2), "at(data) + 4", "at(&b)", "misaligned"),
        (STORE.format("b64", "%1", 2), "at(data) + (7 << 24)", "at(&b)", "out_of_bounds"),
        (REDUCE.format("add.u64"), "at(data) + 1024", "at(&b)", "out_of_bounds"),
        ("st.async.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];", "(u64)y", "(u64)&b", "out_of_bounds"),
        ("st.async.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];", "(u64)data", "(u64)&b", None),
        ("st.async.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];", "(u64)data", "(u64)y", "out_of_bounds"),
    ],
)
def test_misuse_is_a_fault(instruction: str, address: str, barrier: str, kind: str | None) -> None:
    size = "l" if "u64" in address else "r"
    body = f"""
    __shared__ u64 data[4], b;
    init(&b, 1);
    expect(&b, 8);
    data[0] = 0;
    asm volatile("{instruction}" :: "{size}"({address}), "l"(7ull), "{size}"({barrier}) : "memory");
    {"wait(&b, 0);" if kind is None else ""}
    *y = data[0];
    """
    y = np.zeros(1, np.uint64)
    report = cuda(f'{HEADER}extern "C" __global__ void k(u64* y) {{\n{body}\n}}').run(1, 1, y, clean=False)
    assert {fault.kind for fault in report.faults} == ({kind} if kind else set())
    assert kind or y[0] == 7


def test_target_and_barrier_are_in_one_block() -> None:
    elsewhere = '"l"(v), "r"((barrier & 0xffffff) | (rank + 3) % 4 + 1 << 24)'
    _, report = run(STORE.format("b64", "%1", 2), "u64", elsewhere, wait="", clean=False)
    assert {fault.kind for fault in report.faults} == {"out_of_bounds"}


def test_stores_to_global_memory_are_stores() -> None:
    body = """
    ld.param.u64 %d0, [out]; mov.b32 %r1, 5; mov.b16 %h1, 9; mov.b64 %d1, 7;
    st.async.release.gpu.global.b32 [%d0], %r1; st.async.mmio.release.sys.global.b16 [%d0+8], %h1;
    red.async.release.gpu.global.add.s64 [%d0+16], %d1;
    """
    y = np.arange(3, dtype=np.uint64) * 100
    Device(ptx_module(body, target="sm_100a")).run(1, 1, y)
    assert y.tolist() == [5, 9, 207]
