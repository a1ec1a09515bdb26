"""Faults that a launch records: invalid accesses, divergent barriers, and races on shared memory.

A race: two threads access the same bytes in no defined order, and one of them writes.

The record of a CTA (``CTX_SHADOW``) has a cell of 40 bytes for each 4-byte word: its last writer and its last reader,
with the epoch, which each barrier of the whole block raises. A barrier of some warps orders these alone: of each pair
of warps there is the moment up to which the one comes after the other (``CTX_ORDER``), as in a vector clock. An access
to a part of a word splits the word for the rest of its epoch: four cells after those of the words, one for each byte,
then hold its accesses, because two warps may write neighbouring bytes.

Of one warp the cell names the lanes and the moment, a count of the warps' accesses and synchronisations. From Volta on
the lanes of a warp need not run in step (CUDA C++ Programming Guide, Independent Thread Scheduling): an access comes
after another lane's only where ``bar.warp.sync`` or a barrier of the block is between them. The collectives
``shfl.sync``, ``vote.sync``, ``match.sync``, ``redux.sync``, ``mma.sync`` and ``ldmatrix.sync`` promise no order of
memory, but wait for the lanes of their mask: they count as well, so that only accesses that no lane waits for are
reported. These are no races:

- Lanes write the same bytes in one instruction: one of them wins, here the last.
- Stores write the value that another store has put there: the result is the same in every order. A thread that reads
  those bytes, or stores another value, must be ordered after all of the stores. Of lanes that store the result of one
  butterfly (see ``agreed_lanes``) the value of the one that wins counts: warps of a Triton program that have the same
  elements store one sum from all their lanes, each rounded in its own order.
- A load whose value most lanes may discard (see ``speculative_loads``): the source has no such access, or not in all of
  these lanes.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    native,
    store_i64,
    store_u32,
    trailing_zeros,
)

_SAME_SITE_FAULTS = 8


@native
def record_fault(ctx: int, kind: int, site: int, lane_id: int, address: int, size: int, space: int) -> None:
    """Count a fault; store it while there is room, at most eight per kind and instruction."""
    count = load_i64(ctx + lay.CTX_FAULT_COUNT)
    base = load_i64(ctx + lay.CTX_FAULTS)
    stored = load_i64(base)
    store_i64(ctx + lay.CTX_FAULT_COUNT, count + 1)
    if stored >= lay.FAULT_CAPACITY:
        return
    same = 0
    for k in range(stored):
        f = base + 8 + k * lay.FAULT_RECORD
        if load_i32(f + lay.FAULT_KIND) == kind and load_i32(f + lay.FAULT_SITE) == site:
            same += 1
    if same >= _SAME_SITE_FAULTS:
        return
    f = base + 8 + stored * lay.FAULT_RECORD
    store_u32(f + lay.FAULT_KIND, kind)
    store_u32(f + lay.FAULT_SITE, site)
    store_u32(f + lay.FAULT_LANE, lane_id)
    store_u32(f + lay.FAULT_WARP, load_i32(ctx + lay.CTX_WARP))
    store_i64(f + lay.FAULT_CTA, load_i64(ctx + lay.CTX_CTA))
    store_i64(f + lay.FAULT_ADDRESS, address)
    store_u32(f + lay.FAULT_BYTES, size)
    store_u32(f + lay.FAULT_SPACE, space)
    store_i64(base, stored + 1)


@exported
def fault_here(ctx: int, kind: int, site: int, mask: int) -> None:
    """Record a fault that is not a memory access, for the lowest lane of ``mask``."""
    lane_id = trailing_zeros(mask) if mask != 0 else 0
    record_fault(ctx, kind, -1 - site, lane_id, 0, 0, lay.GENERIC)


CELL_BYTES = 40
_WRITER = 0  # epoch, marks and warp, i64
_READER = 8
_WRITER_LANES = 16
_WRITER_MOMENT = 20
_READER_LANES = 24
_READER_MOMENT = 28
_READER_LAST = 32

_WARP = 0x3F
_ATOMIC_MARK = 0x40
_MANY_READERS = 0x80
"""Several warps have read: the lanes are theirs, and both moments are those of the first and of the last one."""
_MANY_WRITERS = _WARP
"""In place of a warp: several have stored one value, the lanes are theirs, and the moment is that of the first one."""
_SPLIT = 0x80
"""In place of a writer: the cells of the word's bytes are valid in this epoch."""

_BETWEEN_WARPS = 1
_WITHIN_WARP = 2


def shadow_bytes(shared_bytes: int) -> int:
    """Size of the record of one CTA: the words' cells, then four for the bytes of each; zero before the first CTA."""
    return 5 * CELL_BYTES * (shared_bytes // 4 + 2)


@native
def behind_cells(ctx: int, shadow: int) -> int:
    """Address of what follows the cells in a CTA's record: of what was written, or else of stores to be fenced.

    A launch has one of the two at most: the first where no instruction is asynchronous, the second where some are.
    """
    return shadow + 5 * CELL_BYTES * (load_i64(ctx + lay.CTX_SHARED_BYTES) // 4 + 2)


@native
def next_moment(ctx: int) -> int:
    """Advance the clock of accesses, and return its time."""
    moment = load_i64(ctx + lay.CTX_MOMENT) + 1
    store_i64(ctx + lay.CTX_MOMENT, moment)
    return moment


@native
def check_race(
    ctx: int, op: int, site: int, addresses: int, mask: int, size: int, access: int, values: int, width: int
) -> None:
    """Compare a shared access with other threads' accesses to the same bytes, then record it.

    ``values`` holds the values of a store, elements of ``width`` bytes element-major; 0 where they are unknown.
    """
    if load_i32(op + lay.OP_SPECULATIVE):
        return
    next_moment(ctx)
    if access == lay.LOAD:
        visit(ctx, site, addresses, mask, size, access, 0, 1, 0, True, True)
    else:
        agreed = load_i32(op + lay.OP_AGREED) if access == lay.STORE else 0
        # Compare all lanes first: a lane that writes overwrites the record that the next one needs.
        visit(ctx, site, addresses, mask, size, access, values, width, agreed, True, False)
        visit(ctx, site, addresses, mask, size, access, values, width, agreed, False, True)


@native
def visit(
    ctx: int,
    site: int,
    addresses: int,
    mask: int,
    size: int,
    access: int,
    values: int,
    width: int,
    agreed: int,
    compare: bool,
    record: bool,
) -> None:
    """Go through the cells of an access, lane by lane; ``agreed``: see ``OP_AGREED``."""
    shadow = load_i64(ctx + lay.CTX_SHADOW)
    byte_cells = shadow + CELL_BYTES * (load_i64(ctx + lay.CTX_SHARED_BYTES) // 4 + 2)
    split = (load_i64(ctx + lay.CTX_EPOCH) << 8) | _SPLIT
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane_id)
        end = address + size
        word = address >> 2
        race = 0
        while 4 * word < end:
            cell = shadow + CELL_BYTES * word
            first = max(address, 4 * word)
            last = min(end, 4 * word + 4)
            if last - first == 4 and load_i64(cell) != split:
                same = repeats(ctx, cell, lane_id, rest, agreed, addresses, first, last, values, width)
                if compare:
                    race |= racing(ctx, cell, lane_id, access, same)
                if record:
                    record_access(ctx, cell, lane_id, access, same)
            else:
                if load_i64(cell) != split:
                    for byte in range(4 * word, 4 * word + 4):
                        for part in range(0, CELL_BYTES, 8):
                            store_i64(byte_cells + CELL_BYTES * byte + part, load_i64(cell + part))
                    store_i64(cell, split)
                for byte in range(first, last):
                    part_cell = byte_cells + CELL_BYTES * byte
                    same = repeats(ctx, part_cell, lane_id, rest, agreed, addresses, byte, byte + 1, values, width)
                    if compare:
                        race |= racing(ctx, part_cell, lane_id, access, same)
                    if record:
                        record_access(ctx, part_cell, lane_id, access, same)
            word += 1
        if race & _BETWEEN_WARPS:
            record_fault(ctx, lay.FAULT_SHARED_RACE, site, lane_id, address, size, lay.SHARED)
        elif race:
            record_fault(ctx, lay.FAULT_WARP_RACE, site, lane_id, address, size, lay.SHARED)


@native
def repeats(
    ctx: int,
    cell: int,
    lane_id: int,
    later: int,
    agreed: int,
    addresses: int,
    first: int,
    last: int,
    values: int,
    width: int,
) -> bool:
    """Whether a store of this epoch is in bytes ``first`` to ``last``, and an instruction leaves its value there.

    The instruction stores in ``lane_id`` and in the lanes ``later``. The last one at the same address wins, which
    matters where it and this lane differ in the bits ``agreed`` alone. False where ``cell`` has no such store, or
    ``values`` are unknown.
    """
    if values == 0 or load_i64(cell + _WRITER) >> 8 != load_i64(ctx + lay.CTX_EPOCH):
        return False
    address = load_i64(addresses + 8 * lane_id)
    shared = load_i64(ctx + lay.CTX_SHARED)
    if is_there(shared, lane_id, address, first, last, values, width):
        return True
    winner = lane_id
    while agreed != 0 and later != 0:
        other = trailing_zeros(later)
        later &= later - 1
        if load_i64(addresses + 8 * other) == address:
            winner = other
    if winner == lane_id or (winner ^ lane_id) & ~agreed != 0:
        return False
    return is_there(shared, winner, address, first, last, values, width)


@native
def is_there(shared: int, lane_id: int, address: int, first: int, last: int, values: int, width: int) -> bool:
    """Whether bytes ``first`` to ``last`` hold what a lane stores there, of a value that begins at ``address``."""
    for byte in range(first, last):
        k = byte - address
        value = values + (k // width * lay.LANES + lane_id) * width + k % width
        if load_u8(shared + byte) != load_u8(value):
            return False
    return True


@native
def racing(ctx: int, cell: int, lane_id: int, access: int, same: bool) -> int:
    """The races of an access to a cell, as flags; ``same``: it stores the value that is there."""
    epoch = load_i64(ctx + lay.CTX_EPOCH)
    warp = load_i32(ctx + lay.CTX_WARP)
    writer = load_i64(cell + _WRITER)
    race = 0
    harmless = access == lay.ATOMIC if writer & _ATOMIC_MARK else same
    if writer >> 8 == epoch and not harmless:
        if writer & _WARP == _MANY_WRITERS:
            if not warps_before(ctx, load_u32(cell + _WRITER_LANES), load_u32(cell + _WRITER_MOMENT)):
                race = _BETWEEN_WARPS
        elif writer & _WARP != warp:
            if load_u32(cell + _WRITER_MOMENT) >= ordered_up_to(ctx, writer & _WARP):
                race = _BETWEEN_WARPS
        else:
            lanes = load_u32(cell + _WRITER_LANES)
            if lanes >> lane_id & 1:
                # Of lanes that stored at once, each may read its own value again; atomics of others matter.
                lanes = lanes & ~(1 << lane_id) if writer & _ATOMIC_MARK else 0
            if not ordered(ctx, lanes, load_u32(cell + _WRITER_MOMENT), lane_id):
                race = _WITHIN_WARP
    reader = load_i64(cell + _READER)
    if access != lay.LOAD and reader >> 8 == epoch:
        if reader & _MANY_READERS:
            if not warps_before(ctx, load_u32(cell + _READER_LANES), load_u32(cell + _READER_MOMENT)):
                race |= _BETWEEN_WARPS
        elif reader & _WARP != warp:
            if load_u32(cell + _READER_MOMENT) >= ordered_up_to(ctx, reader & _WARP):
                race |= _BETWEEN_WARPS
        else:
            lanes = load_u32(cell + _READER_LANES) & ~(1 << lane_id)
            if not ordered(ctx, lanes, load_u32(cell + _READER_MOMENT), lane_id):
                race |= _WITHIN_WARP
    return race


@native
def record_access(ctx: int, cell: int, lane_id: int, access: int, same: bool) -> None:
    """Write an access into a cell; ``same``: it stores the value that is there."""
    epoch = load_i64(ctx + lay.CTX_EPOCH)
    moment = load_i64(ctx + lay.CTX_MOMENT)
    me = (epoch << 8) | load_i32(ctx + lay.CTX_WARP)
    bit = 1 << lane_id
    if access != lay.LOAD:
        if access == lay.ATOMIC:
            me |= _ATOMIC_MARK
        writer = load_i64(cell + _WRITER)
        if same and writer >> 8 == epoch and writer & _ATOMIC_MARK == 0 and writer != me:
            warps = load_u32(cell + _WRITER_LANES) if writer & _WARP == _MANY_WRITERS else 1 << (writer & _WARP)
            first = load_u32(cell + _WRITER_MOMENT)
            if not warps_before(ctx, warps, first):
                me = (epoch << 8) | _MANY_WRITERS
                bit = warps | 1 << load_i32(ctx + lay.CTX_WARP)
                moment = first
        elif writer == me and (same or load_u32(cell + _WRITER_MOMENT) == moment):
            bit |= load_u32(cell + _WRITER_LANES)
        store_i64(cell + _WRITER, me)
        store_u32(cell + _WRITER_LANES, bit)
        store_u32(cell + _WRITER_MOMENT, moment)
        return
    reader = load_i64(cell + _READER)
    if reader >> 8 == epoch and reader != me:
        many = reader & _MANY_READERS != 0
        warps = load_u32(cell + _READER_LANES) if many else 1 << (reader & _WARP)
        if not warps_before(ctx, warps, load_u32(cell + _READER_LAST if many else cell + _READER_MOMENT)):
            store_i64(cell + _READER, me | _MANY_READERS)
            store_u32(cell + _READER_LANES, warps | 1 << load_i32(ctx + lay.CTX_WARP))
            store_u32(cell + _READER_LAST, moment)
            return
    # Lanes that read since the warp's last synchronisation stay recorded; earlier ones are not needed.
    if reader == me and load_u32(cell + _READER_MOMENT) > load_i64(load_i64(ctx + lay.CTX_STATE) + lay.W_MET):
        bit |= load_u32(cell + _READER_LANES)
    store_i64(cell + _READER, me)
    store_u32(cell + _READER_LANES, bit)
    store_u32(cell + _READER_MOMENT, moment)


@native
def ordered_up_to(ctx: int, other: int) -> int:
    """The moment before which all accesses of another warp of the CTA come before those of the running one now."""
    pair = lay.LANES * load_i32(ctx + lay.CTX_WARP) + other
    return max(load_u32(load_i64(ctx + lay.CTX_ORDER) + 4 * pair), load_i64(ctx + lay.CTX_EPOCH_MOMENT))


@native
def warps_before(ctx: int, warps: int, then: int) -> bool:
    """Whether accesses of some warps at moment ``then`` always come before those of the running warp now."""
    warps &= ~(1 << load_i32(ctx + lay.CTX_WARP))
    while warps != 0:
        other = trailing_zeros(warps)
        warps &= warps - 1
        if then >= ordered_up_to(ctx, other):
            return False
    return True


@native
def release_warp(ctx: int, name: int) -> None:
    """The running warp arrives at a barrier of some warps: warps that wait there come after its accesses so far."""
    moment = next_moment(ctx)
    warp = load_i32(ctx + lay.CTX_WARP)
    released = load_i64(ctx + lay.CTX_ORDER) + lay.ORDER_RELEASED + 4 * lay.LANES * name
    for other in range(lay.LANES):
        bound = moment if other == warp else ordered_up_to(ctx, other)
        store_u32(released + 4 * other, max(load_u32(released + 4 * other), bound))


@native
def acquire_warp(ctx: int, state: int, name: int) -> None:
    """The running warp, of a state, leaves a barrier of some warps: it comes after all that arrived."""
    order = load_i64(ctx + lay.CTX_ORDER)
    released = order + lay.ORDER_RELEASED + 4 * lay.LANES * name
    row = order + 4 * lay.LANES * load_i32(ctx + lay.CTX_WARP)
    for other in range(lay.LANES):
        store_u32(row + 4 * other, max(load_u32(row + 4 * other), load_u32(released + 4 * other)))
    moment = next_moment(ctx)
    store_i64(state + lay.W_MET, moment)
    store_i64(state + lay.W_TOGETHER, moment)


@native
def ordered(ctx: int, lanes: int, then: int, lane_id: int) -> bool:
    """Whether the accesses of ``lanes`` at moment ``then`` always come before those of ``lane_id`` now."""
    if lanes == 0 or then < load_i64(load_i64(ctx + lay.CTX_STATE) + lay.W_TOGETHER):
        return True
    met = load_i64(ctx + lay.CTX_MET) + lay.MET_BYTES * load_i32(ctx + lay.CTX_WARP) + 4 * lay.LANES * lane_id
    while lanes != 0:
        other = trailing_zeros(lanes)
        lanes &= lanes - 1
        if then >= load_u32(met + 4 * other):
            return False
    return True


@native
def raise_epoch(ctx: int) -> None:
    """Order all later accesses of the running CTA after its earlier ones."""
    moment = next_moment(ctx)
    store_i64(ctx + lay.CTX_EPOCH_MOMENT, moment)
    store_i64(ctx + lay.CTX_EPOCH, load_i64(ctx + lay.CTX_EPOCH) + 1)


@native
def raise_epoch_of(ctx: int, slot: int) -> None:
    """The same for a resident CTA that does not run now, by its slot."""
    moment = next_moment(ctx)
    store_i64(slot + lay.SLOT_EPOCH_MOMENT, moment)
    store_i64(slot + lay.SLOT_EPOCH, load_i64(slot + lay.SLOT_EPOCH) + 1)


@native
def latest_met(met: int, members: int, other: int) -> int:
    """The moment up to which accesses of lane ``other`` come before those of some lane of ``members`` now."""
    latest = 0
    while members != 0:
        member = trailing_zeros(members)
        members &= members - 1
        latest = max(latest, load_u32(met + 4 * (lay.LANES * member + other)))
    return latest


@native
def meet(ctx: int, state: int, members: int) -> None:
    """Order the lanes of ``members`` after each other's accesses, and after those that each of them came after."""
    moment = next_moment(ctx)
    store_i64(state + lay.W_MET, moment)
    if members == load_u32(state + lay.W_LIVE):
        store_i64(state + lay.W_TOGETHER, moment)
        return
    met = load_i64(ctx + lay.CTX_MET) + lay.MET_BYTES * load_i32(ctx + lay.CTX_WARP)
    for lane_id in range(lay.LANES):
        latest = latest_met(met, members, lane_id)
        if members >> lane_id & 1:
            latest = moment
        rest = members
        while rest != 0:
            member = trailing_zeros(rest)
            rest &= rest - 1
            store_u32(met + 4 * (lay.LANES * member + lane_id), latest)


@exported
def cluster_arrive(ctx: int, state: int, site: int, mask: int) -> None:
    """``barrier.cluster.arrive`` by the lanes of ``mask``; it is a fault of lanes that arrive twice without a wait."""
    arrived = load_u32(state + lay.W_CLUSTER_ARRIVED)
    twice = (arrived | load_u32(state + lay.W_CLUSTER_PASSED)) & mask
    if twice != 0:
        record_fault(ctx, lay.FAULT_CLUSTER_BARRIER, -1 - site, trailing_zeros(twice), 0, 0, lay.GENERIC)
    store_u32(state + lay.W_CLUSTER_ARRIVED, arrived | mask)
    store_i64(ctx + lay.CTX_CLUSTER_ARRIVED, 1)


@exported
def sync_lanes(ctx: int, state: int, masks: int, mask: int) -> None:
    """Synchronise the lanes of ``mask``, each with the lanes of its own word at ``masks``."""
    if load_i64(ctx + lay.CTX_MODE) & lay.MODE_RACECHECK == 0:
        return
    while mask != 0:
        lane_id = trailing_zeros(mask)
        members = (load_u32(masks + 4 * lane_id) & mask) | (1 << lane_id)
        meet(ctx, state, members)
        mask &= ~members
