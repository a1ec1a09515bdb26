"""Slow paths of generated code: exact checking and counting of memory accesses, atomics, and odd warp operations.

Every function takes host addresses as ``int64``. Areas of the context's scratch hold vectors of 32 lanes.
"""

from __future__ import annotations

from kernelforge.devices.emulated.runtime.access import slow_load, slow_store
from kernelforge.devices.emulated.runtime.async_stores import store_async
from kernelforge.devices.emulated.runtime.atomics import ATOMIC_OPERATIONS, ATOMIC_TYPES, atomic
from kernelforge.devices.emulated.runtime.bulk_copies import box_load, box_store, bulk_copy, prefetch, try_cancel
from kernelforge.devices.emulated.runtime.copies import copy_async, copy_commit, copy_wait
from kernelforge.devices.emulated.runtime.faults import cluster_arrive, fault_here, record_fault, sync_lanes
from kernelforge.devices.emulated.runtime.mbarrier import mbarrier_change, mbarrier_init
from kernelforge.devices.emulated.runtime.products import product_commit, product_operand, product_wait
from kernelforge.devices.emulated.runtime.proxies import proxy_fence
from kernelforge.devices.emulated.runtime.tensor_memory import (
    tensor_alloc,
    tensor_dealloc,
    tensor_load,
    tensor_relinquish,
    tensor_store,
    tensor_wait,
)
from kernelforge.devices.emulated.runtime.tensor_products import tensor_commit, tensor_copy, tensor_multiply
from kernelforge.devices.emulated.runtime.transfers import (
    bulk_commit,
    bulk_wait,
    copy_arrive,
    mbarrier_inval,
    mbarrier_wait,
)
from kernelforge.devices.emulated.runtime.warp import (
    GROUP_OPERATIONS,
    find_set,
    group_reduce,
    ldmatrix,
    match,
    pick,
    shuffle,
    stmatrix,
)

EXPORTS = {
    "kf_ldmatrix": ldmatrix,
    "kf_stmatrix": stmatrix,
    "kf_slow_load": slow_load,
    "kf_slow_store": slow_store,
    "kf_atomic": atomic,
    "kf_store_async": store_async,
    "kf_copy_async": copy_async,
    "kf_copy_commit": copy_commit,
    "kf_copy_wait": copy_wait,
    "kf_copy_arrive": copy_arrive,
    "kf_bulk_copy": bulk_copy,
    "kf_bulk_commit": bulk_commit,
    "kf_bulk_wait": bulk_wait,
    "kf_box_load": box_load,
    "kf_box_store": box_store,
    "kf_prefetch": prefetch,
    "kf_try_cancel": try_cancel,
    "kf_product_operand": product_operand,
    "kf_proxy_fence": proxy_fence,
    "kf_product_commit": product_commit,
    "kf_product_wait": product_wait,
    "kf_mbarrier_init": mbarrier_init,
    "kf_mbarrier_inval": mbarrier_inval,
    "kf_mbarrier_change": mbarrier_change,
    "kf_mbarrier_wait": mbarrier_wait,
    "kf_fault": fault_here,
    "kf_shuffle": shuffle,
    "kf_sync_lanes": sync_lanes,
    "kf_cluster_arrive": cluster_arrive,
    "kf_find_set": find_set,
    "kf_match": match,
    "kf_group_reduce": group_reduce,
    "kf_pick": pick,
}
"""Symbols that generated code may call."""

TENSOR_EXPORTS = {
    "kf_tensor_alloc": tensor_alloc,
    "kf_tensor_dealloc": tensor_dealloc,
    "kf_tensor_relinquish": tensor_relinquish,
    "kf_tensor_load": tensor_load,
    "kf_tensor_store": tensor_store,
    "kf_tensor_wait": tensor_wait,
    "kf_tensor_multiply": tensor_multiply,
    "kf_tensor_copy": tensor_copy,
    "kf_tensor_commit": tensor_commit,
}
"""Those of tensor memory, a part of its own: it takes as long to compile as all others, and few kernels need it."""

__all__ = ["ATOMIC_OPERATIONS", "ATOMIC_TYPES", "EXPORTS", "GROUP_OPERATIONS", "TENSOR_EXPORTS", "record_fault"]
