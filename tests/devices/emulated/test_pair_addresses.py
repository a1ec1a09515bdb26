"""Addresses in shared memory in kernels for pairs of blocks: a register has the rank of the block from bit 24 on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import Device
from tests.devices.emulated.nvrtc import compile_ptx

KERNEL = """
typedef unsigned long long u64;
__device__ unsigned at(const void* p) {{ return (unsigned)__cvta_generic_to_shared(p); }}
extern "C" __global__ void k(unsigned* out, unsigned way, int never) {{
  __shared__ alignas(16) unsigned inbox[32];
  __shared__ u64 b;
  extern __shared__ unsigned dynamic[];
  unsigned rank, t = threadIdx.x;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (never)
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(at(&b)));
  inbox[t] = 0;
  dynamic[t] = 100 * rank + t;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  unsigned own = at(inbox + t), there = 0, read = 0, owner = 0;
  u64 generic = 0;
  {way}
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(owner) : "r"(there));
  asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(there), "r"(10 * rank + 1) : "memory");
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(read) : "r"(at(dynamic + t)) : "memory");
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  asm volatile("cvta.shared.u64 %0, %1;" : "=l"(generic) : "l"((u64)there));
  atomicAdd((unsigned*)generic, 1000u);
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  unsigned* row = out + 128 * rank + t;
  row[0] = inbox[t], row[32] = read, row[64] = owner, row[96] = own >> 24;
}}"""
WAYS = {
    "mapa": ('asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank ^ 1));', 1),
    "its lowest bit": ("there = own ^ 1u << 24;", 1),
    "arithmetic": ("there = own - (rank << 24) + ((rank ^ 2) << 24);", 2),
    "a mask in a register": ("there = (own & ~(way << 24)) | (~rank & way) << 24;", 1),
    "itself": ("there = own;", 0),
    "a generic address": (
        'asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(inbox + t), "r"(rank ^ 3));'
        "there = at((void*)generic);",
        3,
    ),
    "an address that differs between lanes": ("there = own ^ (t % 4) << 24;", -1),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_programs_compute_the_address_in_another_block(way: str) -> None:
    statement, other = WAYS[way]
    device = Device(compile_ptx(KERNEL.format(way=statement), arch="compute_100a"))
    out = np.zeros((4, 4, 32), np.uint32)
    device.run(4, 32, out, 1, 0, cluster=(4, 1, 1), shared=128)
    lanes = np.arange(32)
    for rank in range(4):
        peer = rank ^ (lanes % 4 if other < 0 else np.full(32, other))
        np.testing.assert_array_equal(out[rank], [10 * peer + 1001, 100 * rank + lanes, peer, np.full(32, rank)])


def test_an_address_of_another_block_is_none_of_this_one() -> None:
    ways = KERNEL.format(way="there = own;").replace('"r"(at(dynamic + t))', '"r"(at(dynamic + t) ^ 1u << 24)')
    device = Device(compile_ptx(ways, arch="compute_100a"))
    report = device.run(4, 32, np.zeros((4, 4, 32), np.uint32), 1, 0, cluster=(4, 1, 1), shared=128, clean=False)
    assert {fault.kind for fault in report.faults} == {"out_of_bounds"}
    assert "only ld.shared::cluster and generic accesses reach another block" in str(report.faults[0])
