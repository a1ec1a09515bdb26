"""Barriers that only some warps of a block wait at, and the races that they leave."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from tests.devices.emulated.harness import Device, ptx_module


def faults(*warps: str, count: int | None = None, extra: str = "") -> set[str]:
    """Kinds of faults of a block whose warps run these instructions; ``%a`` is a word of each lane, ``%b`` another."""
    branches = "".join(f"setp.eq.u32 %p0, %r1, {w}; @%p0 bra W{w};" for w in range(len(warps)))
    bodies = "".join(f"W{w}: {body} bra END;" for w, body in enumerate(warps))
    body = f"""
    .reg .b32 %a, %b, %v;
    mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31; shl.b32 %r2, %r2, 2; mov.u32 %a, s;
    add.u32 %a, %a, %r2; add.u32 %b, %a, 128; mov.u32 %v, 0; {branches} bra END; {bodies}
    END: {extra}
    """
    module = ptx_module(body.replace("READ", "ld.volatile.shared.u32 %r9,").replace("WRITE", "st.shared.u32"),
                        declarations=".shared .align 16 .b8 s[1024];")  # fmt: skip
    threads = 32 * (count or len(warps))
    report = Device(module).machine.launch("k", (1, 1, 1), (threads, 1, 1), 0, bytes(8), racecheck=True)
    return {fault.kind for fault in report.faults}


STORE, OTHER, LOAD = "WRITE [%a], %r0;", "WRITE [%a], %r1;", "READ [%a];"
ONE, TWO, THREE = "bar.sync 1, 64;", "bar.sync 2, 64;", "bar.sync 3, 96;"

CLEAN = {
    "two of three": (f"{STORE} {ONE}", f"{ONE} {LOAD}", "READ [%b];"),
    "a chain": (f"{STORE} {ONE}", f"{ONE} {TWO}", f"{TWO} {LOAD}"),
    "a chain of writers": (f"{STORE} {ONE}", f"{ONE} {OTHER} {TWO}", f"{TWO} {STORE}"),
    "two readers before a writer": (f"{LOAD} {THREE}", f"{LOAD} {THREE}", f"{THREE} {STORE}"),
    "two readers after a writer": (f"{STORE} {THREE}", f"{THREE} {LOAD}", f"{THREE} {LOAD}"),
    "readers that one after another give way": (
        f"{LOAD} {ONE}", f"{ONE} {LOAD} {TWO}", f"{TWO} {OTHER} bar.sync 4, 64;", f"bar.sync 4, 64; {LOAD}",
    ),
    "a reader that reads again": (
        f"{LOAD} {THREE} {ONE}", f"{LOAD} {THREE} {LOAD} {ONE} {TWO}", f"{THREE} {TWO} {STORE}",
    ),
    "an arrival": (f"{STORE} bar.arrive 1, 64;", f"{ONE} {LOAD}", "READ [%b];"),
    "the whole block": (f"{STORE} bar.sync 1, 96;", f"bar.sync 1, 96; {LOAD}", "bar.sync 1, 96;"),
    "a barrier of the block afterwards": (f"{STORE} {ONE} bar.sync 0;", f"{ONE} bar.sync 0;", f"bar.sync 0; {LOAD}"),
    "lanes of one warp": (
        "WRITE [%a], %r0; bar.sync 1, 32; sub.u32 %r3, 124, %r2; mov.u32 %r4, s; add.u32 %r3, %r3, %r4; READ [%r3];",
        "",
    ),
    "one value, then a reader after both": (f"WRITE [%a], 7; {THREE}", f"WRITE [%a], 7; {THREE}", f"{THREE} {LOAD}"),
}  # fmt: skip
RACES = {
    "a third warp": (f"{STORE} {ONE}", f"{ONE} {LOAD}", LOAD),
    "another number": (f"{STORE} bar.sync 1, 32;", f"bar.sync 2, 32; {LOAD}"),
    "one of two readers": (f"{LOAD} {ONE}", LOAD, f"{ONE} {STORE}"),
    "a reader that reads again": (f"{LOAD} {THREE} {LOAD}", f"{LOAD} {THREE}", f"{THREE} {STORE}"),
    "a store after an arrival": (f"bar.arrive 1, 64; {STORE}", f"{ONE} {LOAD}", ""),
    "a load before an arrival": (f"bar.arrive 1, 64; {LOAD}", f"{ONE} {STORE}", ""),
    "an end of a chain that comes too early": (f"{STORE} {ONE}", f"{TWO} {ONE}", f"{TWO} {LOAD}"),
    "one value, and a reader after one": (f"WRITE [%a], 7; {ONE}", "WRITE [%a], 7;", f"{ONE} {LOAD}"),
}


@pytest.mark.parametrize("case", CLEAN)
def test_what_a_barrier_orders_is_no_race(case: str) -> None:
    assert faults(*CLEAN[case]) == set()


@pytest.mark.parametrize("case", RACES)
def test_what_it_does_not_order_is_a_race(case: str) -> None:
    assert faults(*RACES[case]) == {"shared_race"}


class Access(NamedTuple):
    """One access of a random program, with the vector clock of its warp."""

    warp: int
    word: int
    writes: bool
    time: int
    clock: tuple[int, ...]


def program(rng: np.random.Generator, warps: int, first: int) -> tuple[list[str], set[int]]:
    """Instructions of each warp in a random program without deadlocks, and the words that race by definition."""
    code = [""] * warps
    clocks = np.zeros((warps, warps), int)
    accesses: list[Access] = []
    barriers = 0
    for step in range(int(rng.integers(6, 18))):
        if rng.random() < 0.4 and barriers < 12:
            barriers += 1
            members = rng.permutation(warps)[: rng.integers(2, warps + 1)]
            arrivals = members[1 : rng.integers(1, len(members) + 1)] if rng.random() < 0.4 else []
            together = clocks[members].max(axis=0)
            for warp in members:
                verb = "arrive" if warp in arrivals else "sync"
                code[warp] += f"bar.{verb} {barriers}, {32 * len(members)}; "
                if warp not in arrivals:
                    clocks[warp] = np.maximum(clocks[warp], together)
            continue
        warp, word, writes = int(rng.integers(warps)), int(rng.integers(2)), bool(rng.random() < 0.4)
        clocks[warp, warp] += 1
        accesses.append(Access(warp, word, writes, int(clocks[warp, warp]), tuple(clocks[warp])))
        at = f"[%a+{4 * (first + word)}]"
        code[warp] += f"@%p9 WRITE {at}, {1000 * first + step}; " if writes else f"@%p9 READ {at}; "
    racing = set()
    for k, access in enumerate(accesses):
        for other in accesses[:k]:
            conflict = access.word == other.word and access.warp != other.warp and (access.writes or other.writes)
            if conflict and access.clock[other.warp] < other.time:
                racing.add(first + access.word)
    return code, racing


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_race_where_their_vector_clocks_say_so(seed: int) -> None:
    """No word is reported that has no race, and of those that have one nearly all."""
    rng = np.random.default_rng(seed)
    warps = 4
    code, racing = [""] * warps, set()
    programs = 10
    for number in range(programs):
        parts, words = program(rng, warps, 2 * number)
        racing |= words
        for warp in range(warps):
            code[warp] += parts[warp] + "bar.sync 0; "
    branches = "".join(f"setp.eq.u32 %p0, %r1, {w}; @%p0 bra W{w};" for w in range(warps))
    bodies = "".join(f"W{w}: {text} bra END;" for w, text in enumerate(code))
    body = f"""
    .reg .b32 %a;
    mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31; setp.eq.u32 %p9, %r2, 0; mov.u32 %a, s;
    {branches} {bodies} END:
    """
    body = body.replace("READ", "ld.volatile.shared.u32 %r9,").replace("WRITE", "st.shared.u32")
    device = Device(ptx_module(body, declarations=".shared .align 16 .b8 s[1024];"))
    report = device.machine.launch("k", (1, 1, 1), (32 * warps, 1, 1), 0, bytes(8), racecheck=True)
    assert {fault.kind for fault in report.faults} <= {"shared_race"}
    reported = {fault.address // 4 for fault in report.faults}
    assert reported <= racing
    assert len(reported) >= 0.8 * len(racing)
