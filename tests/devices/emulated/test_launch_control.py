"""``clusterlaunchcontrol``: blocks that ask for the work of blocks that have not started."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import Device
from tests.devices.emulated.nvrtc import compile_ptx
from tests.devices.emulated.test_bulk_copies import HEADER

STEAL = (
    HEADER
    + """
extern "C" __global__ void k(int* y) {
  __shared__ alignas(16) int answer[4];
  __shared__ u64 b;
  int t = threadIdx.x, rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (t == 0) init(&b, 1);
  FENCE;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  unsigned tile = blockIdx.x, parity = 0, more = 1;
  while (more) {
    if (t == 0) expect(&b, 16);
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (t == 0 && rank == 0)
      asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
                   ".multicast::cluster::all.b128 [%0], [%1];" :: "r"(at(answer)), "r"(at(&b)) : "memory");
    y[32 * tile + t] += tile + t;
    wait(&b, parity);
    parity ^= 1;
    unsigned first;
    asm volatile("{.reg .b128 h; .reg .pred p; ld.shared.b128 h, [%2];"
                 "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, h; selp.u32 %0, 1, 0, p;"
                 "mov.u32 %1, 0;"
                 "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%1, _, _, _}, h;}"
                 : "=r"(more), "=r"(first) : "r"(at(answer)) : "memory");
    tile = first + rank;
  }
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}"""
)


@pytest.mark.parametrize("racecheck", [False, True])
def test_every_tile_is_computed_once(racecheck: bool) -> None:
    y = np.zeros((8, 32), np.int32)
    Device(compile_ptx(STEAL, arch="compute_100a")).run(8, 32, y, cluster=(2, 1, 1), racecheck=racecheck)
    assert np.array_equal(y, np.arange(8)[:, None] + np.arange(32))


def test_an_answer_that_is_expected_to_be_longer_never_comes() -> None:
    device = Device(compile_ptx(STEAL.replace("expect(&b, 16)", "expect(&b, 32)"), arch="compute_100a"))
    report = device.run(2, 32, np.zeros((2, 32), np.int32), cluster=(2, 1, 1), clean=False)
    assert report.faults[0].kind == "mbarrier_deadlock"
