"""CTA scheduler: warps in turn, barriers, preemption, deadlock and budget checks. Compiled; runs without the GIL."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    call_turn,
    exported,
    fill_bytes,
    load_i32,
    load_i64,
    load_u32,
    native,
    store_i64,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.runtime import record_fault
from kernelforge.devices.emulated.runtime.faults import acquire_warp, raise_epoch, raise_epoch_of, release_warp
from kernelforge.devices.emulated.runtime.proxies import begin_records
from kernelforge.devices.emulated.runtime.tensor_memory import check_leaks
from kernelforge.devices.emulated.runtime.transfers import complete_grouped

BACK_EDGES_PER_TURN = 4096
"""Back edges that a warp may take before the next one runs."""
CACHED_BACK_EDGES_PER_TURN = 1
"""The same where the caches are modelled: warps of an SM share lines that each would meet evicted if it ran alone."""
SPIN_BACK_EDGES_PER_TURN = 64
TURNS_PER_COUNT = 64
"""Turns of CTAs between two counts of executed instructions; a count is a pass over the basic blocks."""

# Arguments of run_ctas: an array of i64.
ARG_FUNCTION = 0
ARG_FIRST = 1
ARG_END = 2
ARG_LIST = 3  # host address of linear CTA ids, or 0 for the ids themselves
ARG_STATE = 4
ARG_STATE_BYTES = 5  # per warp
ARG_CLEAR_BYTES = 6  # part of it that is written when a CTA starts: zeros, then undefined registers
ARG_BLOCKS = 7
ARG_SHARED = 8
ARG_SHARED_STRIDE = 9
ARG_LOCAL = 10
ARG_LOCAL_STRIDE = 11  # per warp
ARG_WARPS = 12
ARG_THREADS = 13
ARG_RESIDENT = 14  # CTAs that run side by side
ARG_SPINS = 15
ARG_POISON = 16
ARG_STATUS = 17  # i32 per resident warp
ARG_SLOTS = 18  # per resident CTA
ARG_L1_TAGS = 19
ARG_L1_BYTES = 20
ARG_COPIES = 21  # asynchronous copies that have not arrived, or 0
ARG_COPIES_STRIDE = 22  # per warp
ARG_HEADER_BYTES = 23  # per warp, the part that is zero when a CTA starts
ARG_UNDEFINED = 24  # byte of registers that were never written
ARG_COOPERATIVE = 25  # 1: every CTA of the grid is resident, and a wait that nothing can end is a fault
ARG_CLUSTER = 26  # three: CTAs of a cluster per axis; those of one cluster are listed one after another
ARG_SITES = 29  # memory records
ARG_SHADOW = 30
ARG_SHADOW_STRIDE = 31  # per resident CTA
ARG_MET = 32
ARG_PHASES_ONLY = 33  # 1: CTAs of a cluster have no means to wait for one another but its barrier
ARG_ROTATES = 34  # 1: lanes of one warp may have to take turns
ARG_ASYNC = 35  # records of mbarriers and bulk copies
ARG_ASYNC_STRIDE = 36  # per resident CTA, or 0 where the kernel has none
ARG_TENSOR = 37  # tensor memory
ARG_TENSOR_STRIDE = 38  # per resident CTA, or 0 where the kernel has none
ARG_ORDER = 39  # records of barriers between some warps, per resident CTA
ARG_LANES = 40  # host address of a u32 per listed CTA and warp: the lanes that run; 0 for all
ARG_COUNT = 41

IDLE_SWEEPS = 64
"""Turns of all CTAs with nothing but polls of unchanged memory, after which no lane of any warp can continue."""

PATIENT = 0
ROTATING = 1
EXPIRING = 2
"""What waits at mbarriers do, as sweeps of all CTAs go by in which nothing continues: stop their warp; let its other
lanes run first; end, as a ``try_wait`` may at any time, so that the thread sees that the phase is not complete."""
SWEEPS_PER_IMPATIENCE = 64
"""Such sweeps for each of the two: more than the groups of lanes of a warp. After both, the wait is a fault."""
BACK_EDGES_OF_THE_IMPATIENT = 4

END_COMPLETE = lay.END_COMPLETE
END_TIMEOUT = lay.END_TIMEOUT


@native
def _arg(args: int, index: int) -> int:
    return load_i64(args + 8 * index)


@native
def cluster_size(args: int) -> int:
    """CTAs of a cluster."""
    return _arg(args, ARG_CLUSTER) * _arg(args, ARG_CLUSTER + 1) * _arg(args, ARG_CLUSTER + 2)


@native
def cta_at(ctx: int, args: int, position: int) -> int:
    """Linear id of the CTA at a position of the launch: its list, or all clusters in order and each CTA by its rank."""
    listed = _arg(args, ARG_LIST)
    if listed:
        return load_i64(listed + 8 * position)
    size = cluster_size(args)
    if size == 1:
        return position
    x = _arg(args, ARG_CLUSTER)
    y = _arg(args, ARG_CLUSTER + 1)
    z = _arg(args, ARG_CLUSTER + 2)
    wide = load_u32(ctx + lay.CTX_NCLUSTERID)
    high = load_u32(ctx + lay.CTX_NCLUSTERID + 4)
    cluster = position // size
    rank = position % size
    at_x = cluster % wide * x + rank % x
    at_y = cluster // wide % high * y + rank // x % y
    at_z = cluster // wide // high * z + rank // (x * y)
    return (at_z * high * y + at_y) * wide * x + at_x


@native
def start_cta(ctx: int, args: int, slot: int, position: int) -> None:
    """Prepare the memory and the warps of the CTA at a position of the launch."""
    cta = cta_at(ctx, args, position)
    selected = _arg(args, ARG_LANES)
    warps = _arg(args, ARG_WARPS)
    threads = _arg(args, ARG_THREADS)
    poison = _arg(args, ARG_POISON)
    shared = load_i64(ctx + lay.CTX_SHARED_BYTES)
    if shared:
        fill_bytes(_arg(args, ARG_SHARED) + slot * _arg(args, ARG_SHARED_STRIDE), poison, shared)
    stride = _arg(args, ARG_LOCAL_STRIDE)
    if stride:
        fill_bytes(_arg(args, ARG_LOCAL) + slot * warps * stride, poison, warps * stride)
    if load_i64(ctx + lay.CTX_MODE) & lay.MODE_CACHE:
        fill_bytes(_arg(args, ARG_L1_TAGS), 0, _arg(args, ARG_L1_BYTES))
    size = _arg(args, ARG_STATE_BYTES)
    clear = _arg(args, ARG_CLEAR_BYTES)
    header = _arg(args, ARG_HEADER_BYTES)
    live = warps
    for warp in range(warps):
        state = _arg(args, ARG_STATE) + (slot * warps + warp) * size
        fill_bytes(state, 0, header)
        if clear > header:
            fill_bytes(state + header, _arg(args, ARG_UNDEFINED), clear - header)
        lanes = min(threads - warp * lay.LANES, lay.LANES)
        mask = (1 << lanes) - 1
        if selected:
            mask &= load_u32(selected + 4 * (position * warps + warp))
        store_u32(state + lay.W_MASK, mask)
        store_u32(state + lay.W_LIVE, mask)
        store_u32(state + lay.W_WAITING, lay.NO_BLOCK)
        status = lay.WARP_READY
        if mask == 0:
            status = lay.WARP_DONE
            live -= 1
        store_u32(_arg(args, ARG_STATUS) + 4 * (slot * warps + warp), status)
        copies = _arg(args, ARG_COPIES)
        if copies:
            fill_bytes(copies + (slot * warps + warp) * _arg(args, ARG_COPIES_STRIDE), 0, lay.COPIES_HEADER)
    if _arg(args, ARG_ASYNC_STRIDE):
        fill_bytes(_arg(args, ARG_ASYNC) + slot * _arg(args, ARG_ASYNC_STRIDE), 0, lay.ASYNC_CLEAR)
    if load_i64(ctx + lay.CTX_MODE) & lay.MODE_RACECHECK:
        fill_bytes(_arg(args, ARG_ORDER) + slot * lay.ORDER_BYTES, 0, lay.ORDER_BYTES)
    if load_i64(ctx + lay.CTX_MODE) & lay.MODE_PROXIES:
        begin_records(ctx, _arg(args, ARG_SHADOW) + slot * _arg(args, ARG_SHADOW_STRIDE))
    if _arg(args, ARG_TENSOR_STRIDE):
        fill_bytes(_arg(args, ARG_TENSOR) + slot * _arg(args, ARG_TENSOR_STRIDE), 0, lay.TENSOR_CLEAR)
    entry = _arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES
    store_i64(entry + lay.SLOT_CTA, cta)
    store_i64(entry + lay.SLOT_LIVE, live)
    # Epochs are of one CTA, so that the record of races needs no clearing.
    raise_epoch_of(ctx, entry)
    store_i64(entry + lay.SLOT_CLOCK, 0)
    store_i64(entry + lay.SLOT_PHASE, 0)
    store_i64(entry + lay.SLOT_TOUCHED, 0)


@native
def enter_cta(ctx: int, args: int, slot: int) -> None:
    """Point the context at a resident CTA."""
    entry = _arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES
    cta = load_i64(entry)
    store_i64(ctx + lay.CTX_CTA, cta)
    # Divisions are the larger part of what a small CTA costs.
    at = cta
    for axis in range(3):
        wide = load_u32(ctx + lay.CTX_NCTAID + 4 * axis)
        over = 0 if at < wide else at // wide
        store_u32(ctx + lay.CTX_CTAID + 4 * axis, at - over * wide)
        at = over
    shared = _arg(args, ARG_SHARED) + slot * _arg(args, ARG_SHARED_STRIDE)
    store_i64(ctx + lay.CTX_SHARED, shared)
    store_i64(ctx + lay.CTX_EPOCH, load_i64(entry + lay.SLOT_EPOCH))
    store_i64(ctx + lay.CTX_EPOCH_MOMENT, load_i64(entry + lay.SLOT_EPOCH_MOMENT))
    store_i64(ctx + lay.CTX_CLOCK, load_i64(entry + lay.SLOT_CLOCK))
    for axis in range(3):
        size = _arg(args, ARG_CLUSTER + axis)
        at = load_u32(ctx + lay.CTX_CTAID + 4 * axis)
        cluster = at if size == 1 else at // size
        store_u32(ctx + lay.CTX_CLUSTERID + 4 * axis, cluster)
        store_u32(ctx + lay.CTX_CLUSTER_CTAID + 4 * axis, at - cluster * size)
    if load_i64(ctx + lay.CTX_MODE) & lay.MODE_RESIDENT == 0:
        return
    rank = slot % cluster_size(args)
    store_u32(ctx + lay.CTX_CLUSTER_CTARANK, rank)
    store_i64(ctx + lay.CTX_PEERS, entry - rank * lay.SLOT_BYTES)
    store_i64(ctx + lay.CTX_PEER_SHARED, shared - rank * _arg(args, ARG_SHARED_STRIDE))
    store_i64(ctx + lay.CTX_ASYNC, _arg(args, ARG_ASYNC) + (slot - rank) * _arg(args, ARG_ASYNC_STRIDE))
    store_i64(ctx + lay.CTX_TENSOR, _arg(args, ARG_TENSOR) + (slot - rank) * _arg(args, ARG_TENSOR_STRIDE))
    store_i64(ctx + lay.CTX_SHADOW, _arg(args, ARG_SHADOW) + slot * _arg(args, ARG_SHADOW_STRIDE))
    store_i64(ctx + lay.CTX_MET, _arg(args, ARG_MET) + slot * _arg(args, ARG_WARPS) * lay.MET_BYTES)
    store_i64(ctx + lay.CTX_ORDER, _arg(args, ARG_ORDER) + slot * lay.ORDER_BYTES)
    # Patterns of shared accesses hold the host address of the CTA that ran before.
    for site in range(_arg(args, ARG_SITES)):
        op = load_i64(ctx + lay.CTX_OPS) + site * lay.OP_RECORD
        if load_i32(op + lay.OP_SPACE) == lay.SHARED:
            store_i64(op + lay.OP_DELTA, shared)


@native
def leave_cta(ctx: int, args: int, slot: int) -> None:
    """Save the state with which the CTA continues later."""
    entry = _arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES
    store_i64(entry + lay.SLOT_EPOCH, load_i64(ctx + lay.CTX_EPOCH))
    store_i64(entry + lay.SLOT_EPOCH_MOMENT, load_i64(ctx + lay.CTX_EPOCH_MOMENT))
    store_i64(entry + lay.SLOT_CLOCK, load_i64(ctx + lay.CTX_CLOCK))


@native
def rotate_lanes(state: int, blocks: int, turn: int) -> None:
    """Let the next group of waiting lanes of the warp run, so that lanes that wait for them can continue.

    ``turn`` chooses where the search starts when no group was running.
    """
    if load_i32(state + lay.W_WAITING) == lay.NO_BLOCK:
        return
    current = load_i32(state + lay.W_RESUME)
    waiting = state + lay.W_HEADER
    if current < blocks:
        store_u32(waiting + 4 * current, load_u32(waiting + 4 * current) | load_u32(state + lay.W_MASK))
    else:
        current = turn
    block = (current + 1) % blocks
    while load_u32(waiting + 4 * block) == 0:
        block = (block + 1) % blocks
    store_u32(state + lay.W_RESUME, block)
    store_u32(state + lay.W_MASK, load_u32(waiting + 4 * block))
    store_u32(waiting + 4 * block, 0)
    lowest = 0
    while lowest < blocks and load_u32(waiting + 4 * lowest) == 0:
        lowest += 1
    store_u32(state + lay.W_WAITING, lowest if lowest < blocks else lay.NO_BLOCK)


@native
def executed(ctx: int) -> int:
    """Work that this thread's context has counted so far, in instructions of a warp."""
    total = load_i64(ctx + lay.CTX_PRODUCT_WORK)
    counts = load_i64(ctx + lay.CTX_COUNTS)
    costs = load_i64(ctx + lay.CTX_BLOCK_COST)
    for k in range(load_i64(ctx + lay.CTX_BLOCKS)):
        total += load_i64(counts + 16 * k) * load_i64(costs + 8 * k)
    return total


@native
def must_end(ctx: int, count: bool) -> int:
    """END_COMPLETE while the launch may continue. ``count``: compare executed instructions with the budget."""
    stopped = load_i64(load_i64(ctx + lay.CTX_STOP))
    if stopped != 0:
        return stopped
    limit = load_i64(ctx + lay.CTX_MAX_INSTRUCTIONS)
    if count and limit > 0 and executed(ctx) > limit:
        return END_TIMEOUT
    return END_COMPLETE


@native
def end_launch(ctx: int, args: int, state: int, code: int) -> int:
    """Record the reason for a launch's early end, at the position of the warp ``state``; returns ``code``."""
    if code == END_TIMEOUT:
        record_position(ctx, args, state, lay.FAULT_TIMEOUT)
    return code


@native
def record_position(ctx: int, args: int, state: int, kind: int) -> None:
    """Record a fault at the position of the warp ``state``."""
    block = load_i32(state + lay.W_RESUME)
    if block >= _arg(args, ARG_BLOCKS):
        block = load_i32(state + lay.W_WAITING)
    mask = load_u32(state + lay.W_MASK)
    lane_id = trailing_zeros(mask) if mask != 0 else 0
    record_fault(ctx, kind, -1000000 - block, lane_id, 0, 0, lay.GENERIC)


@native
def unfinished_warp(ctx: int, args: int, slot: int) -> int:
    """State of the CTA's first warp that has not ended (the first warp if all have); makes it the current one."""
    warps = _arg(args, ARG_WARPS)
    unfinished = 0
    for warp in range(warps):
        if load_i32(_arg(args, ARG_STATUS) + 4 * (slot * warps + warp)) != lay.WARP_DONE:
            unfinished = warp
            break
    store_u32(ctx + lay.CTX_WARP, unfinished)
    return _arg(args, ARG_STATE) + (slot * warps + unfinished) * _arg(args, ARG_STATE_BYTES)


@native
def release_barriers(ctx: int, args: int, slot: int) -> bool:
    """Release the warps of every complete barrier; True when there were some.

    A barrier counts the warps that wait at it by its number, wherever in the code each of them is.
    """
    warps = _arg(args, ARG_WARPS)
    status = _arg(args, ARG_STATUS) + 4 * slot * warps
    size = _arg(args, ARG_STATE_BYTES)
    first_state = _arg(args, ARG_STATE) + slot * warps * size
    live = load_i64(_arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES + lay.SLOT_LIVE)
    released = False
    for leader in range(warps):
        if load_i32(status + 4 * leader) != lay.WARP_AT_BARRIER:
            continue
        state = first_state + leader * size
        name = load_i32(state + lay.W_BARRIER_ID)
        if name == lay.CLUSTER_BARRIER:
            continue
        threads = load_i32(state + lay.W_BARRIER_THREADS)
        needed = live if threads == 0 else (threads + lay.LANES - 1) // lay.LANES
        arrived = 0
        votes = 0
        members = 0
        for warp in range(warps):
            other = first_state + warp * size
            code = load_i32(status + 4 * warp)
            if code == lay.WARP_AT_BARRIER and load_i32(other + lay.W_BARRIER_ID) == name:
                arrived += 1
                votes += load_i32(other + lay.W_BARRIER_VALUE)
                members += load_i32(other + lay.W_BARRIER_RED_THREADS)
        covers_block = threads == 0 or arrived == warps
        arrived += pending_arrivals(args, slot, name)
        if arrived < needed:
            continue
        clear_arrivals(args, slot, name)
        if load_i64(ctx + lay.CTX_MODE) & lay.MODE_RACECHECK and not covers_block:
            order_warps(ctx, args, slot, name)
        else:
            raise_epoch(ctx)
        for warp in range(warps):
            other = first_state + warp * size
            if load_i32(status + 4 * warp) == lay.WARP_AT_BARRIER and load_i32(other + lay.W_BARRIER_ID) == name:
                store_u32(status + 4 * warp, lay.WARP_READY)
                store_u32(other + lay.W_BARRIER_RESULT, votes)
                store_u32(other + lay.W_BARRIER_RED_THREADS, members)
                store_u32(other + lay.W_BARRIER_VALUE, 0)
        store_i64(ctx + lay.CTX_BARRIERS, load_i64(ctx + lay.CTX_BARRIERS) + 1)
        released = True
    return released


@native
def order_warps(ctx: int, args: int, slot: int, name: int) -> None:
    """Order the accesses of the warps that took part in a barrier of some warps: those that wait come after all."""
    warps = _arg(args, ARG_WARPS)
    status = _arg(args, ARG_STATUS) + 4 * slot * warps
    size = _arg(args, ARG_STATE_BYTES)
    first_state = _arg(args, ARG_STATE) + slot * warps * size
    for acquires in range(2):
        for warp in range(warps):
            state = first_state + warp * size
            if load_i32(status + 4 * warp) == lay.WARP_AT_BARRIER and load_i32(state + lay.W_BARRIER_ID) == name:
                store_u32(ctx + lay.CTX_WARP, warp)
                if acquires:
                    acquire_warp(ctx, state, name)
                else:
                    release_warp(ctx, name)
    released = load_i64(ctx + lay.CTX_ORDER) + lay.ORDER_RELEASED + 4 * lay.LANES * name
    fill_bytes(released, 0, 4 * lay.LANES)
    store_i64(ctx + lay.CTX_ROUNDS, load_i64(ctx + lay.CTX_ROUNDS) + 1)


@native
def pending_arrivals(args: int, slot: int, name: int) -> int:
    """Warps that executed ``bar.arrive`` and did not wait."""
    return load_i32(_arg(args, ARG_STATUS) - 4 * 16 * (slot + 1) + 4 * name)


@native
def clear_arrivals(args: int, slot: int, name: int) -> None:
    """Clear the arrivals of one barrier."""
    store_u32(_arg(args, ARG_STATUS) - 4 * 16 * (slot + 1) + 4 * name, 0)


@native
def begin_turn(ctx: int, args: int, slot: int, budget: int) -> None:
    """Tell the generated code where the warps of a CTA are, and how many back edges each may take."""
    warps = _arg(args, ARG_WARPS)
    size = _arg(args, ARG_STATE_BYTES)
    stride = _arg(args, ARG_LOCAL_STRIDE)
    store_i64(ctx + lay.CTX_TURN_STATE, _arg(args, ARG_STATE) + slot * warps * size)
    store_i64(ctx + lay.CTX_TURN_STATE_BYTES, size)
    store_i64(ctx + lay.CTX_TURN_STATUS, _arg(args, ARG_STATUS) + 4 * slot * warps)
    store_i64(ctx + lay.CTX_TURN_LOCAL, _arg(args, ARG_LOCAL) + slot * warps * stride)
    store_i64(ctx + lay.CTX_TURN_LOCAL_STRIDE, stride)
    store_i64(ctx + lay.CTX_TURN_COPIES, _arg(args, ARG_COPIES) + slot * warps * _arg(args, ARG_COPIES_STRIDE))
    store_i64(ctx + lay.CTX_TURN_WARPS, warps)
    store_i64(ctx + lay.CTX_TURN_BUDGET, budget)
    store_i64(ctx + lay.CTX_TURN_ENDED, 0)
    store_i64(ctx + lay.CTX_TURN_RAN, 0)


@native
def run_turn(ctx: int, args: int, slot: int) -> int:
    """Give every ready warp of a CTA one turn. Returns END_COMPLETE, or why the launch must end."""
    warps = _arg(args, ARG_WARPS)
    size = _arg(args, ARG_STATE_BYTES)
    status = _arg(args, ARG_STATUS) + 4 * slot * warps
    entry = _arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES
    spins = _arg(args, ARG_SPINS)
    function = _arg(args, ARG_FUNCTION)
    impatience = load_i64(ctx + lay.CTX_IMPATIENCE)
    budget = BACK_EDGES_PER_TURN
    if impatience == EXPIRING:
        budget = BACK_EDGES_OF_THE_IMPATIENT
    elif spins:
        budget = SPIN_BACK_EDGES_PER_TURN
    elif load_i64(ctx + lay.CTX_MODE) & lay.MODE_CACHE:
        budget = CACHED_BACK_EDGES_PER_TURN
    begin_turn(ctx, args, slot, budget)
    warp = -1
    while True:
        result = call_turn(function, ctx, warp + 1)
        if result < 0:
            break
        # A warp stopped for a reason that the generated code leaves to the code below.
        warp = result & 0xFFFFFFFF
        code = result >> 32
        state = _arg(args, ARG_STATE) + (slot * warps + warp) * size
        if code == lay.RETURN_BARRIER:
            if load_i32(state + lay.W_BARRIER_ARRIVE):
                name = load_i32(state + lay.W_BARRIER_ID)
                cell = _arg(args, ARG_STATUS) - 4 * 16 * (slot + 1) + 4 * name
                store_u32(cell, load_i32(cell) + 1)
                store_u32(state + lay.W_BARRIER_ARRIVE, 0)
                if load_i64(ctx + lay.CTX_MODE) & lay.MODE_RACECHECK:
                    release_warp(ctx, name)
            else:
                store_u32(status + 4 * warp, lay.WARP_AT_BARRIER)
                if load_i32(state + lay.W_BARRIER_ID) == lay.CLUSTER_BARRIER:
                    pass_cluster_barrier(ctx, args, slot, warp)
        if code == lay.RETURN_WAIT:
            if impatience != PATIENT and _arg(args, ARG_ROTATES):
                rotate_lanes(state, _arg(args, ARG_BLOCKS), 0)
        elif code != lay.RETURN_POLL:
            store_i64(ctx + lay.CTX_PROGRESS, 1)
        if code == lay.RETURN_YIELD or code == lay.RETURN_POLL:
            yields = load_i64(ctx + lay.CTX_YIELDS) + 1
            store_i64(ctx + lay.CTX_YIELDS, yields)
            if spins or (impatience != PATIENT and _arg(args, ARG_ROTATES)):
                rotate_lanes(state, _arg(args, ARG_BLOCKS), yields)
            code = must_end(ctx, True)
            if code != END_COMPLETE:
                return end_launch(ctx, args, state, code)
    store_i64(entry + lay.SLOT_LIVE, load_i64(entry + lay.SLOT_LIVE) - load_i64(ctx + lay.CTX_TURN_ENDED))
    if release_barriers(ctx, args, slot):
        store_i64(ctx + lay.CTX_PROGRESS, 1)
        return END_COMPLETE
    if load_i64(ctx + lay.CTX_TURN_RAN) == 0 and load_i64(entry + lay.SLOT_LIVE) > 0:
        for warp in range(warps):
            state = _arg(args, ARG_STATE) + (slot * warps + warp) * size
            if load_i32(status + 4 * warp) == lay.WARP_AT_BARRIER and (
                load_i32(state + lay.W_BARRIER_ID) == lay.CLUSTER_BARRIER
            ):
                return END_COMPLETE  # other CTAs of the cluster may end the wait
        report_stuck(ctx, args, slot, lay.FAULT_DEADLOCK)
    return END_COMPLETE


@native
def report_stuck(ctx: int, args: int, slot: int, kind: int) -> None:
    """Record a fault at the first warp of a CTA that waits at a barrier, and end the CTA."""
    warps = _arg(args, ARG_WARPS)
    for warp in range(warps):
        if load_i32(_arg(args, ARG_STATUS) + 4 * (slot * warps + warp)) == lay.WARP_AT_BARRIER:
            state = _arg(args, ARG_STATE) + (slot * warps + warp) * _arg(args, ARG_STATE_BYTES)
            store_u32(ctx + lay.CTX_WARP, warp)
            mask = load_u32(state + lay.W_LIVE)
            lane_id = trailing_zeros(mask) if mask != 0 else 0
            site = load_i32(state + lay.W_BARRIER_SITE)
            record_fault(ctx, kind, -1 - site, lane_id, 0, 0, lay.GENERIC)
            break
    store_i64(_arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES + lay.SLOT_LIVE, 0)


@native
def pass_cluster_barrier(ctx: int, args: int, slot: int, warp: int) -> None:
    """Let a warp that waits at the cluster's barrier continue if the phase that its lanes arrived for is complete."""
    state = _arg(args, ARG_STATE) + (slot * _arg(args, ARG_WARPS) + warp) * _arg(args, ARG_STATE_BYTES)
    live = load_u32(state + lay.W_LIVE)
    passed = load_u32(state + lay.W_CLUSTER_PASSED)
    absent = live & ~(passed | load_u32(state + lay.W_CLUSTER_ARRIVED))
    if absent != 0:
        store_u32(ctx + lay.CTX_WARP, warp)
        site = load_i32(state + lay.W_BARRIER_SITE)
        record_fault(ctx, lay.FAULT_CLUSTER_BARRIER, -1 - site, trailing_zeros(absent), 0, 0, lay.GENERIC)
    if live & ~passed == 0 or absent != 0:
        store_u32(state + lay.W_CLUSTER_PASSED, 0)
        store_u32(_arg(args, ARG_STATUS) + 4 * (slot * _arg(args, ARG_WARPS) + warp), lay.WARP_READY)


@native
def release_cluster(ctx: int, args: int, slot: int) -> None:
    """Complete the phase of the barrier of a CTA's cluster if every thread of the cluster has arrived or ended."""
    warps = _arg(args, ARG_WARPS)
    slots = _arg(args, ARG_SLOTS)
    first = slot - slot % cluster_size(args)
    arrived = 0
    for other in range(first, first + cluster_size(args)):
        if load_i64(slots + other * lay.SLOT_BYTES) < 0:
            continue
        for warp in range(other * warps, (other + 1) * warps):
            if load_i32(_arg(args, ARG_STATUS) + 4 * warp) == lay.WARP_DONE:
                continue
            state = _arg(args, ARG_STATE) + warp * _arg(args, ARG_STATE_BYTES)
            here = load_u32(state + lay.W_CLUSTER_ARRIVED)
            arrived |= here
            if load_u32(state + lay.W_LIVE) & ~here != 0:
                return
    if arrived == 0:
        return
    store_i64(ctx + lay.CTX_PROGRESS, 1)
    for other in range(first, first + cluster_size(args)):
        entry = slots + other * lay.SLOT_BYTES
        if load_i64(entry) < 0:
            continue
        store_i64(entry + lay.SLOT_PHASE, load_i64(entry + lay.SLOT_PHASE) + 1)
        raise_epoch_of(ctx, entry)
        store_i64(ctx + lay.CTX_BARRIERS, load_i64(ctx + lay.CTX_BARRIERS) + 1)
        for warp in range(warps):
            if load_i32(_arg(args, ARG_STATUS) + 4 * (other * warps + warp)) == lay.WARP_DONE:
                continue
            state = _arg(args, ARG_STATE) + (other * warps + warp) * _arg(args, ARG_STATE_BYTES)
            passed = load_u32(state + lay.W_CLUSTER_PASSED) | load_u32(state + lay.W_CLUSTER_ARRIVED)
            store_u32(state + lay.W_CLUSTER_PASSED, passed)
            store_u32(state + lay.W_CLUSTER_ARRIVED, 0)
            waits = load_i32(_arg(args, ARG_STATUS) + 4 * (other * warps + warp)) == lay.WARP_AT_BARRIER
            if waits and load_i32(state + lay.W_BARRIER_ID) == lay.CLUSTER_BARRIER:
                pass_cluster_barrier(ctx, args, other, warp)


@native
def end_cta(ctx: int, args: int, slot: int) -> None:
    """Free a CTA's slot. Another CTA's access to its shared memory in the present phase may come after its end."""
    entry = _arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES
    if _arg(args, ARG_ASYNC_STRIDE):
        complete_grouped(ctx, _arg(args, ARG_ASYNC) + slot * _arg(args, ARG_ASYNC_STRIDE))
    if _arg(args, ARG_TENSOR_STRIDE):
        check_leaks(ctx, _arg(args, ARG_TENSOR) + slot * _arg(args, ARG_TENSOR_STRIDE))
    touched = load_i64(entry + lay.SLOT_TOUCHED)
    if touched and touched == load_i64(entry + lay.SLOT_PHASE) + 1 and _arg(args, ARG_PHASES_ONLY):
        store_i64(ctx + lay.CTX_CTA, load_i64(entry + lay.SLOT_TOUCH_CTA))
        store_u32(ctx + lay.CTX_WARP, load_i32(entry + lay.SLOT_TOUCH_WARP))
        site = load_i32(entry + lay.SLOT_TOUCH_SITE)
        lane_id = load_i32(entry + lay.SLOT_TOUCH_LANE)
        address = load_i64(entry + lay.SLOT_TOUCH_ADDRESS)
        size = load_i32(load_i64(ctx + lay.CTX_OPS) + site * lay.OP_RECORD + lay.OP_BYTES)
        record_fault(ctx, lay.FAULT_PEER_ENDED, site, lane_id, address, size, lay.SHARED_CLUSTER)
    store_i64(entry + lay.SLOT_CTA, -1)
    if cluster_size(args) > 1:
        # Threads that have ended hold no thread of another CTA back.
        store_i64(ctx + lay.CTX_CLUSTER_ARRIVED, 1)


@native
def blocked(args: int, slot: int) -> bool:
    """Whether no warp of a CTA can run."""
    warps = _arg(args, ARG_WARPS)
    ready = 0
    for warp in range(slot * warps, (slot + 1) * warps):
        ready += load_i32(_arg(args, ARG_STATUS) + 4 * warp) == lay.WARP_READY
    return ready == 0


@native
def report_polling(ctx: int, args: int) -> None:
    """Record that the resident CTAs wait for memory that none of them will write, at the first warp that polls."""
    for slot in range(_arg(args, ARG_RESIDENT)):
        if load_i64(_arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES) < 0:
            continue
        enter_cta(ctx, args, slot)
        status = _arg(args, ARG_STATUS) + 4 * slot * _arg(args, ARG_WARPS)
        for warp in range(_arg(args, ARG_WARPS)):
            if load_i32(status + 4 * warp) == lay.WARP_READY:
                state = _arg(args, ARG_STATE) + (slot * _arg(args, ARG_WARPS) + warp) * _arg(args, ARG_STATE_BYTES)
                store_u32(ctx + lay.CTX_WARP, warp)
                record_position(ctx, args, state, lay.FAULT_GRID_DEADLOCK)
                return


@native
def report_waiting(ctx: int, args: int) -> None:
    """Record that the resident CTAs wait for mbarriers, or tensor memory, that nothing completes: the first warp."""
    for slot in range(_arg(args, ARG_RESIDENT)):
        if load_i64(_arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES) < 0:
            continue
        enter_cta(ctx, args, slot)
        for warp in range(_arg(args, ARG_WARPS)):
            if load_i32(_arg(args, ARG_STATUS) + 4 * (slot * _arg(args, ARG_WARPS) + warp)) != lay.WARP_READY:
                continue
            state = _arg(args, ARG_STATE) + (slot * _arg(args, ARG_WARPS) + warp) * _arg(args, ARG_STATE_BYTES)
            site = load_i32(state + lay.W_WAIT_SITE) - 1
            if site >= 0:
                store_u32(ctx + lay.CTX_WARP, warp)
                mask = load_u32(state + lay.W_MASK)
                lane_id = trailing_zeros(mask) if mask != 0 else 0
                space = lay.SHARED if load_i32(state + lay.W_WAIT_FAULT) == lay.FAULT_MBARRIER_DEADLOCK else lay.TENSOR
                record_fault(ctx, load_i32(state + lay.W_WAIT_FAULT), site, lane_id, 0, 8, space)
                return


@native
def give_up(ctx: int, args: int) -> None:
    """End the resident CTAs."""
    for slot in range(_arg(args, ARG_RESIDENT)):
        store_i64(_arg(args, ARG_SLOTS) + slot * lay.SLOT_BYTES, -1)


@exported
def run_ctas(ctx: int, args: int) -> int:
    """Run a range of CTAs to their end; returns END_COMPLETE or END_TIMEOUT."""
    resident = _arg(args, ARG_RESIDENT)
    following = _arg(args, ARG_FIRST)
    end = _arg(args, ARG_END)
    slots = _arg(args, ARG_SLOTS)
    size = cluster_size(args)
    spins = _arg(args, ARG_SPINS)
    turns = 0
    idle = 0
    stalled = 0
    store_i64(ctx + lay.CTX_IMPATIENCE, PATIENT)
    for slot in range(resident):
        store_i64(slots + slot * lay.SLOT_BYTES, -1)
    running = 0
    while True:
        swept = 0
        store_i64(ctx + lay.CTX_WAITS, 0)
        yields = load_i64(ctx + lay.CTX_YIELDS)
        reported = 0
        for first in range(0, resident, size):
            free = following < end
            for slot in range(first, first + size):
                free = free and load_i64(slots + slot * lay.SLOT_BYTES) < 0
            if not free:
                continue
            for slot in range(first, first + size):
                start_cta(ctx, args, slot, following)
                fill_bytes(_arg(args, ARG_STATUS) - 4 * 16 * (slot + 1), 0, 4 * 16)
                following += 1
                running += 1
        if running == 0:
            return END_COMPLETE
        for slot in range(resident):
            entry = slots + slot * lay.SLOT_BYTES
            if load_i64(entry) < 0:
                continue
            enter_cta(ctx, args, slot)
            while True:
                store_i64(ctx + lay.CTX_PROGRESS, 0)
                code = run_turn(ctx, args, slot)
                if code != END_COMPLETE:
                    return code
                # Warps that end or wait at barriers never yield, so the budgets are checked between turns too.
                turns += 1
                code = must_end(ctx, turns % TURNS_PER_COUNT == 0)
                if code != END_COMPLETE:
                    return end_launch(ctx, args, unfinished_warp(ctx, args, slot), code)
                swept |= load_i64(ctx + lay.CTX_PROGRESS)
                if load_i64(entry + lay.SLOT_LIVE) == 0 or (resident > 1 and spins) or blocked(args, slot):
                    break
                if load_i64(ctx + lay.CTX_PROGRESS) == 0:
                    break
            leave_cta(ctx, args, slot)
            if load_i64(entry + lay.SLOT_LIVE) == 0:
                end_cta(ctx, args, slot)
                running -= 1
            if load_i64(ctx + lay.CTX_CLUSTER_ARRIVED):
                store_i64(ctx + lay.CTX_CLUSTER_ARRIVED, 0)
                store_i64(ctx + lay.CTX_PROGRESS, 0)
                release_cluster(ctx, args, slot)
                swept |= load_i64(ctx + lay.CTX_PROGRESS)
        if swept:
            stalled = 0
            idle = 0
            store_i64(ctx + lay.CTX_IMPATIENCE, PATIENT)
        elif running == 0:
            continue
        elif stalled or load_i64(ctx + lay.CTX_WAITS):
            stalled += 1
            patience = ROTATING if stalled <= SWEEPS_PER_IMPATIENCE else EXPIRING
            store_i64(ctx + lay.CTX_IMPATIENCE, patience)
            if stalled > 2 * SWEEPS_PER_IMPATIENCE:
                report_waiting(ctx, args)
                give_up(ctx, args)
                running = 0
                stalled = 0
                store_i64(ctx + lay.CTX_IMPATIENCE, PATIENT)
        elif load_i64(ctx + lay.CTX_YIELDS) == yields:
            for slot in range(resident):
                if load_i64(slots + slot * lay.SLOT_BYTES) >= 0:
                    enter_cta(ctx, args, slot)
                    if reported == 0:
                        report_stuck(ctx, args, slot, lay.FAULT_CLUSTER_DEADLOCK)
                    reported += 1
            give_up(ctx, args)
            running = 0
        else:
            idle += 1
        if idle > IDLE_SWEEPS and _arg(args, ARG_COOPERATIVE):
            report_polling(ctx, args)
            return END_COMPLETE
