"""Replay of recorded blocks side by side: through one L1, for what goes on to the L2, or through the L2."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import exported, load_i64, native, store_i64
from kernelforge.devices.emulated.runtime.cache import (
    CACHE_COUNTERS,
    HEADER_ALONE,
    HEADER_COUNT,
    HEADER_MASKED,
    HEADER_REQUEST,
    HEADER_WARP,
    REPLAY_RESULT,
    REPLAY_RESULTS,
    WARPS_OF_A_SLOT,
    l1_access,
    l2_read,
    l2_write,
    send_all_begun,
)

# Arguments of replay after those that the cache's functions read: i64 words. Offsets in bytes.
REPLAY_TRACE = 40  # the block that is recorded
REPLAY_WORDS = 48
REPLAY_SHIFTS = 56  # three per request: sectors that it moves by per block of each axis, times SHIFT_ONE
REPLAY_JOBS = 64  # three per job: blocks of each axis that it is away from the recorded one
REPLAY_JOB_COUNT = 72
REPLAY_SLOTS = 80  # blocks side by side
REPLAY_STATE = 88  # three per slot
REPLAY_TURN = 96  # time of a block's turn, in that of one word of the trace
REPLAY_SPREAD = 104  # turns over which the first blocks start
REPLAY_THROUGH_L1 = 112
REPLAY_MASK = 120  # lines whose hash has none of these bits are followed
REPLAY_FIRST = 128  # what is read while more jobs than this have started, and not all, is measured; or -1: all
REPLAY_EXTENTS = 136  # first sector and end of each buffer, then sectors of it that are read from DRAM
REPLAY_EXTENT_COUNT = 144
REPLAY_SCRATCH = 152  # sectors of one request
REPLAY_STARTED = 160  # jobs
REPLAY_BEYOND = 168  # time of a sector that the L1 asks the L2 for, or sends there, beyond that of its word
REPLAY_SENT_BY = 176  # two per word of the trace: sectors that a request there sent beyond the L1, and how many did
REPLAY_BYTES = 184
SHIFT_ONE = 1024
JOB = 24
SLOT = 24  # job + 1, words that it has done, turns until the slot is free
EXTENT = 24


@native
def moved_by(replay: int, job: int, request: int) -> int:
    """Sectors by which a request of a job lies beyond that of the recorded block."""
    shifts = load_i64(replay + REPLAY_SHIFTS) + 24 * request
    blocks = load_i64(replay + REPLAY_JOBS) + JOB * job
    moved = 0
    for axis in range(3):
        moved += load_i64(shifts + 8 * axis) * load_i64(blocks + 8 * axis)
    return (moved + SHIFT_ONE // 2) // SHIFT_ONE


@native
def is_followed(sector: int, mask: int) -> bool:
    """Whether a sector is of the lines that are followed."""
    return mask == 0 or (((sector >> 2) * 0x9E3779B1) >> 16) & mask == 0


@native
def is_measured(replay: int) -> bool:
    """Whether what is read now is measured."""
    first = load_i64(replay + REPLAY_FIRST)
    started = load_i64(replay + REPLAY_STARTED)
    return first < 0 or (started > first and started < load_i64(replay + REPLAY_JOB_COUNT))


@native
def through_l1(cache: int, replay: int, job: int, slot: int, at: int) -> None:
    """Send one request through the L1."""
    header = load_i64(at)
    access = header & 7
    count = header >> HEADER_COUNT & 0xFF
    masks = 0
    if header & HEADER_MASKED:
        count //= 2
        masks = at + 8 * count + 8
    request = header >> HEADER_REQUEST & 0xFFFFFFFF
    warp = slot * WARPS_OF_A_SLOT + (header >> HEADER_WARP & 0x3F)
    sectors = load_i64(replay + REPLAY_SCRATCH)
    moved = moved_by(replay, job, request)
    for k in range(count):
        store_i64(sectors + 8 * k, load_i64(at + 8 * k + 8) + moved)
    l1_access(cache, replay, sectors, masks, count, access, warp, job, request)


@native
def through_l2(cache: int, replay: int, at: int, moved: int) -> None:
    """Send one sector through the L2. ``moved``: by how many it lies beyond that of the recorded block."""
    header = load_i64(at)
    access = header & 7
    sector = load_i64(at + 8) + moved
    if not is_followed(sector, load_i64(replay + REPLAY_MASK)):
        return
    fetched = cache + CACHE_COUNTERS + 40
    before = load_i64(fetched)
    if access != lay.STORE:
        l2_read(cache, sector, header & HEADER_ALONE != 0)
    if access != lay.LOAD:
        l2_write(cache, sector, load_i64(at + 16))
    new = load_i64(fetched) - before
    if new == 0 or not is_measured(replay):
        return
    extent = load_i64(replay + REPLAY_EXTENTS)
    for _ in range(load_i64(replay + REPLAY_EXTENT_COUNT)):
        if sector >= load_i64(extent) and sector < load_i64(extent + 8):
            store_i64(extent + 16, load_i64(extent + 16) + new)
            return
        extent += EXTENT


@native
def sectors_sent(replay: int, job: int) -> int:
    """Sectors that a job has asked the L2 for so far, or sent there."""
    result = load_i64(replay + REPLAY_RESULTS) + REPLAY_RESULT * job
    return load_i64(result) + load_i64(result + 8)


@native
def advance(cache: int, replay: int, slot: int, state: int) -> bool:
    """Let the block of a slot take its turn; whether it ended."""
    job = load_i64(state) - 1
    words = load_i64(replay + REPLAY_WORDS)
    at = load_i64(state + 8)
    trace = load_i64(replay + REPLAY_TRACE)
    l1 = load_i64(replay + REPLAY_THROUGH_L1)
    beyond = load_i64(replay + REPLAY_BEYOND)
    turn = load_i64(replay + REPLAY_TURN)
    request = -1
    moved = 0
    while at < words and turn > 0:
        length = 1 + (load_i64(trace + 8 * at) >> HEADER_COUNT & 0xFF)
        turn -= length
        if l1:
            before = sectors_sent(replay, job)
            through_l1(cache, replay, job, slot, trace + 8 * at)
            if beyond:
                by_request = load_i64(replay + REPLAY_SENT_BY) + 16 * at
                store_i64(by_request, load_i64(by_request) + sectors_sent(replay, job) - before)
                store_i64(by_request + 8, load_i64(by_request + 8) + 1)
                turn -= beyond * load_i64(by_request) // load_i64(by_request + 8)
        else:
            # The sectors of a request follow each other.
            number = load_i64(trace + 8 * at) >> HEADER_REQUEST & 0xFFFFFFFF
            if number != request:
                request = number
                moved = moved_by(replay, job, request)
            through_l2(cache, replay, trace + 8 * at, moved)
        at += length
    store_i64(state + 8, at)
    if at < words:
        return False
    store_i64(state, 0)
    return True


@exported
def replay(cache: int, arguments: int) -> int:
    """Replay jobs in order, each where a slot is free; returns 0."""
    slots = load_i64(arguments + REPLAY_SLOTS)
    count = load_i64(arguments + REPLAY_JOB_COUNT)
    spread = load_i64(arguments + REPLAY_SPREAD)
    states = load_i64(arguments + REPLAY_STATE)
    for slot in range(slots):
        state = states + SLOT * slot
        store_i64(state, 0)
        store_i64(state + 16, slot * spread // slots)
    started = 0
    ended = 0
    while ended < count:
        for slot in range(slots):
            state = states + SLOT * slot
            wait = load_i64(state + 16)
            if wait > 0:
                store_i64(state + 16, wait - 1)
                continue
            if load_i64(state) == 0:
                if started == count:
                    continue
                started += 1
                store_i64(arguments + REPLAY_STARTED, started)
                store_i64(state, started)
                store_i64(state + 8, 0)
            if advance(cache, arguments, slot, state):
                ended += 1
    send_all_begun(cache, arguments)
    return 0
