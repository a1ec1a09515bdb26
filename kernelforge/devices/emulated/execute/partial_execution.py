"""Partial execution: runs only the blocks that given elements of a plan's outputs depend on.

From the last launch back to the first: which blocks write the wanted elements (:mod:`.writers` tells exactly), what
those blocks read that earlier launches wrote, and so on. Then the chosen blocks run in the plan's order, on the real
inputs. An element counts as final only where the block that writes it last was run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kernelforge.candidate.resolved import Fill, Launch, TensorArg
from kernelforge.devices.emulated.errors import UnsupportedInstruction
from kernelforge.devices.emulated.execute.loaded_module import writer_entry
from kernelforge.devices.emulated.execute.plan_execution import Execution, LaunchFailed, PlanRun
from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.devices.emulated.profile.traffic import TracedCache
from kernelforge.devices.emulated.ptx.store_slice import NotSliceable
from kernelforge.profiling.counts import SECTOR_BYTES

if TYPE_CHECKING:
    from kernelforge.devices.emulated.execute.plan_runner import Runner

Words = npt.NDArray[np.int64]
"""Offsets in a buffer, in units of four bytes; sorted, each once."""

WORD = 4
MAP_INSTRUCTIONS = 20_000_000_000
"""Thread instructions that finding out who writes what may take, over all launches of a plan."""
RUN_INSTRUCTIONS = 8_000_000_000
"""Thread instructions that the chosen blocks may take."""
MOST_ELEMENTS = 1 << 20
"""Elements of one output that are given back."""
MOST_OWNERS = 8
"""Blocks that may add to one element by atomics."""
_TRACE_BYTES = 64 << 20
"""Footprint of one block that is followed while it is found out what it reads."""

_PIECE = 1 << 22
"""Elements that are worked on at a time: temporaries of a large output would take several times its memory."""

_UNWRITTEN, _NOT_RUN, _FINAL = 0, 1, 2


class NotPartial(Exception):
    """Blocks of this plan cannot be run by themselves; the message says why, for a Coder."""


@dataclass(frozen=True)
class Part:
    """Some elements of one output, as chosen blocks left them."""

    elements: npt.NDArray[np.int64]
    """Flat indices, ascending."""
    data: bytes
    """The elements, in that order."""
    unwritten: int
    """Elements that no block of any launch writes, and no memset."""


@dataclass(frozen=True)
class _Owners:
    """Which block of a launch writes what."""

    blocks: int
    """Blocks of the grid."""
    granule: int
    """Bytes of a unit."""
    atomic: bool
    """Several blocks may add to one unit; the last is named."""
    reread: frozenset[int]
    """Written buffers that the kernel may also load from."""
    units: dict[int, npt.NDArray[np.uint32]]
    """By buffer: the number of each unit's block, plus one; 0 where none writes. They may lie in the device's memory,
    and then hold until something runs there again."""

    def at(self, buffer: int, words: Words) -> npt.NDArray[np.uint32]:
        """Blocks that write some words of a buffer."""
        per_word = WORD // self.granule
        places = (words[:, None] * per_word + np.arange(per_word)).reshape(-1)
        units = self.units[buffer]
        found: npt.NDArray[np.uint32] = units[places[places < units.size]]
        return found

    def words(self, buffer: int, blocks: npt.NDArray[np.int64]) -> Words:
        """Words of a buffer that some blocks write."""
        theirs = np.zeros(self.blocks + 1, np.bool_)
        theirs[blocks + 1] = True
        return np.flatnonzero(theirs[self.units[buffer]]) // (WORD // self.granule)


@dataclass
class _Step:
    """A launch, with what is known of it so far."""

    step: Launch
    blocks: npt.NDArray[np.int64] | None = None
    """Linear ids that will run; None for all."""
    instructions: float = 0.0
    """Thread instructions of one block."""


class _Demand:
    """What must hold its final value before a step, by buffer."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        """Args:
        sizes: Bytes by buffer.
        """
        self._sizes = sizes
        self._words: dict[int, npt.NDArray[np.bool_]] = {}
        self.whole: set[int] = set()
        """Buffers of which everything is needed."""

    def add(self, buffer: int, words: Words) -> None:
        if words.size:
            known = self._words.setdefault(buffer, np.zeros(-(-self._sizes[buffer] // WORD), np.bool_))
            known[words] = True

    def of(self, buffer: int) -> Words:
        return np.flatnonzero(self._words[buffer]) if buffer in self._words else np.zeros(0, np.int64)

    def touches(self, buffer: int) -> bool:
        return buffer in self.whole or buffer in self._words


class PartialRun:
    """One plan on one set of inputs, run for some elements of its outputs.

    Args:
        runner: Has the build.
        work: The run; its poison fills workspace and outputs.
        wanted: Flat indices of elements by output, in the order of their importance.
    """

    def __init__(self, runner: Runner, work: PlanRun, wanted: Mapping[int, Sequence[int]]) -> None:
        self._runner = runner
        self._work = work
        self._wanted = wanted
        self._plan = work.plan
        self._buffers = {buffer.id: buffer for buffer in work.plan.buffers}
        self._mapped = 0
        self.thread_instructions = 0

    def run(self) -> tuple[Part, ...]:
        """The outputs' parts.

        Raises:
            NotPartial: it cannot be told which blocks the elements need, they take too long, or the plan changes an
                input in place.
            LaunchFailed: a block went wrong that read nothing but the task's own tensors.
        """
        if self._work.mutable:
            raise NotPartial("it changes an input in place")
        execution = Execution(self._runner, self._work)
        try:
            if not execution.set_up(Budget.of_setup(sum(isinstance(step, Launch) for step in self._plan.setup))):
                raise NotPartial("its setup takes too long to be run whole")
            wanted, steps, status = self._choose(execution)
            execution.poison()
            return self._values(execution, steps, status, wanted)
        finally:
            self.thread_instructions = execution.thread_instructions
            execution.close()

    # Which blocks

    def _choose(
        self, execution: Execution
    ) -> tuple[dict[int, npt.NDArray[np.int64]], dict[int, _Step], dict[int, npt.NDArray[np.uint8]]]:
        """The elements that are affordable, the launches behind them by their place in the plan, and the state of every
        element of the outputs."""
        most = max((len(indices) for indices in self._wanted.values()), default=0)
        while True:
            wanted = {output: np.array(indices[:most], np.int64) for output, indices in self._wanted.items()}
            try:
                steps, status, cost = self._backwards(execution, wanted)
            except LaunchFailed as faulted:
                raise NotPartial(f"while it was found out which blocks write what: {faulted}") from faulted
            if cost <= RUN_INSTRUCTIONS:
                return wanted, steps, status
            if most <= 1:
                raise NotPartial(
                    f"the blocks behind one element of the output take {cost:.2g} thread instructions, over "
                    f"{RUN_INSTRUCTIONS:.2g}"
                )
            most = max(1, min(most - 1, int(most * RUN_INSTRUCTIONS / cost)))

    def _backwards(
        self, execution: Execution, wanted: Mapping[int, npt.NDArray[np.int64]]
    ) -> tuple[dict[int, _Step], dict[int, npt.NDArray[np.uint8]], float]:
        demand = self._no_demand()
        status: dict[int, npt.NDArray[np.uint8]] = {}
        for position, output in enumerate(self._plan.outputs):
            size = output.dtype.itemsize
            status[position] = np.zeros(output.nbytes // size, np.uint8)
            elements = wanted.get(position, np.zeros(0, np.int64))
            if elements.size:
                first = output.offset_bytes + elements * size
                demand.add(output.buffer, np.concatenate([first // WORD, (first + size - 1) // WORD]))
        chosen: dict[int, _Step] = {}
        cost = 0.0
        for place in reversed(range(len(self._plan.steps))):
            step = self._plan.steps[place]
            if isinstance(step, Fill):
                self._fill(step, status)
            elif isinstance(step, Launch):
                found = self._launch(execution, place, step, demand, status)
                if found is not None:
                    chosen[place] = found
                    count = math.prod(step.grid) if found.blocks is None else found.blocks.size
                    cost += count * found.instructions
        return chosen, status, cost

    def _no_demand(self) -> _Demand:
        return _Demand({buffer.id: buffer.nbytes for buffer in self._plan.buffers})

    def _fill(self, step: Fill, status: Mapping[int, npt.NDArray[np.uint8]]) -> None:
        for position, output in enumerate(self._plan.outputs):
            if output.buffer == step.buffer:
                size = output.dtype.itemsize
                first = max(step.offset_bytes - output.offset_bytes, 0) // size
                end = min(step.offset_bytes + step.nbytes - output.offset_bytes, output.nbytes) // size
                if end > first:
                    part = status[position][first:end]
                    part[part == _UNWRITTEN] = _FINAL

    def _launch(
        self,
        execution: Execution,
        place: int,
        step: Launch,
        demand: _Demand,
        status: Mapping[int, npt.NDArray[np.uint8]],
    ) -> _Step | None:
        """The blocks of a launch that the demand needs, which then grows by what they read."""
        written = self._writable(step)
        outputs = {output.buffer for output in self._plan.outputs}
        if not any(demand.touches(buffer) or buffer in outputs for buffer in written):
            return None
        execution.check(step)
        earlier = self._written_before(place) & {arg.buffer for arg in step.args if isinstance(arg, TensorArg)}
        try:
            owners = self._owners(execution, step, written)
        except (NotSliceable, UnsupportedInstruction) as error:
            return self._whole(execution, step, demand, status, earlier, str(error))
        blocks = self._needed(execution, step, demand, owners)
        self._mark(step, demand, status, owners, blocks)
        if not blocks.size:
            return None
        for buffer in earlier & owners.units.keys():
            # A block may add to what is there: everything that it writes must have been right before.
            demand.add(buffer, owners.words(buffer, blocks))
        foreign = {buffer: owners.units[buffer].copy() for buffer in owners.reread}
        found = _Step(step, blocks)
        several = blocks if earlier or foreign else blocks[:1]
        found.instructions = self._probe(execution, step, several, demand, earlier, foreign, owners.granule)
        return found

    def _writable(self, step: Launch) -> set[int]:
        """Buffers that a launch could write."""
        args = {arg.buffer for arg in step.args if isinstance(arg, TensorArg)}
        return {b for b in args if self._buffers[b].kind == "workspace"}

    def _written_before(self, place: int) -> set[int]:
        """Buffers that launches before a step could write."""
        return {b for step in self._plan.steps[:place] if isinstance(step, Launch) for b in self._writable(step)}

    def _owners(
        self, execution: Execution, step: Launch, written: set[int], ctas: Sequence[int] | None = None
    ) -> _Owners:
        """Which of the blocks, or of all, write what.

        Raises:
            NotSliceable: that depends on what the kernel computes.
        """
        entry = self._runner.entry(step.expression).name
        if execution.waits(step):
            raise NotSliceable("its blocks may wait for one another")
        slices = self._runner.machine.writers(entry)
        parameters = self._runner.machine.entries[entry].params
        args = {param.offset: arg for param, arg in zip(parameters, step.args, strict=True)}
        through = {arg.buffer for offset in slices.loads_through if isinstance(arg := args.get(offset), TensorArg)}
        if any(self._buffers[buffer].kind == "workspace" for buffer in through):
            raise NotSliceable("where it writes depends on what earlier launches computed")
        if slices.answers:
            raise NotSliceable("the result of an atomic tells a block which others ran before")
        read = {arg.buffer for offset in slices.reads_through if isinstance(arg := args.get(offset), TensorArg)}
        found: dict[int, npt.NDArray[np.uint32]] = {}
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[slices.granule]
        for plane in range(slices.planes):
            for buffer in written:
                execution.clear(buffer)
            left = MAP_INSTRUCTIONS - self._mapped
            if left <= 0:
                raise NotPartial(f"finding out which blocks write what takes over {MAP_INSTRUCTIONS:.2g} instructions")
            self._mapped += execution.writers(step, writer_entry(entry, plane), ctas, left)
            for buffer in written:
                content = execution.content(buffer)
                content = content[: content.size - content.size % slices.granule]
                units = content.view(kind)
                if slices.atomic or slices.planes > 1:
                    units = np.left_shift(units, np.uint32(8 * slices.granule * plane), dtype=np.uint32)
                found[buffer] = units if plane == 0 else found[buffer] | units
        units_of = {buffer: units for buffer, units in found.items() if units.any()}
        return _Owners(math.prod(step.grid), slices.granule, slices.atomic, frozenset(read & units_of.keys()), units_of)

    def _needed(self, execution: Execution, step: Launch, demand: _Demand, owners: _Owners) -> npt.NDArray[np.int64]:
        """Linear ids of the blocks that write what is needed."""

        def among(found: _Owners) -> npt.NDArray[np.int64]:
            needed = np.zeros(found.blocks + 1, np.bool_)
            for buffer, units in found.units.items():
                needed[units if buffer in demand.whole else found.at(buffer, demand.of(buffer))] = True
            return np.flatnonzero(needed[1:])

        blocks = among(owners)
        if not owners.atomic or not blocks.size:
            return blocks
        everyone = np.arange(math.prod(step.grid))
        for _ in range(MOST_OWNERS):
            others = np.delete(everyone, blocks)
            if not others.size:
                return blocks
            more = among(self._owners(execution, step, self._writable(step), others.tolist()))
            if not more.size:
                return blocks
            blocks = np.sort(np.append(blocks, more))
        raise NotPartial(f"more than {MOST_OWNERS} blocks add to one element of the result of {step.expression!r}")

    def _mark(
        self,
        step: Launch,
        demand: _Demand,
        status: Mapping[int, npt.NDArray[np.uint8]],
        owners: _Owners,
        blocks: npt.NDArray[np.int64],
    ) -> None:
        """Note in the outputs' elements whether the block that writes them last will run."""
        runs = np.full(math.prod(step.grid) + 1, _NOT_RUN, np.uint8)
        runs[0] = _UNWRITTEN
        if not owners.atomic:
            runs[blocks + 1] = _FINAL
        for position, output in enumerate(self._plan.outputs):
            if output.buffer not in owners.units:
                continue
            size, unit = output.dtype.itemsize, owners.granule
            units = owners.units[output.buffer]
            for start in range(0, status[position].size, _PIECE):
                state = status[position][start : start + _PIECE]
                if size == unit:
                    first = output.offset_bytes // unit + start
                    mine = runs[units[first : first + state.size]]
                else:
                    places = (output.offset_bytes + np.arange(start, start + state.size) * size) // unit
                    mine = runs[units[np.minimum(places, units.size - 1)]]
                np.copyto(state, mine, where=state == _UNWRITTEN)
            if owners.atomic:
                wanted = (demand.of(output.buffer) * WORD - output.offset_bytes) // size
                wanted = wanted[(wanted >= 0) & (wanted < status[position].size)]
                status[position][wanted[status[position][wanted] == _NOT_RUN]] = _FINAL

    def _whole(
        self,
        execution: Execution,
        step: Launch,
        demand: _Demand,
        status: Mapping[int, npt.NDArray[np.uint8]],
        earlier: set[int],
        reason: str,
    ) -> _Step:
        """A launch whose blocks cannot be told apart runs whole, and needs all that it may read."""
        found = _Step(step)
        count = math.prod(step.grid)
        if execution.waits(step):
            raise NotPartial(f"blocks of {step.expression!r} wait for one another, so that none can be run alone")
        found.instructions = self._probe(execution, step, np.array([count // 2]), self._no_demand(), set())
        if found.instructions * count > RUN_INSTRUCTIONS:
            raise NotPartial(f"{step.expression!r} takes too long to be run whole, and not in part: {reason}")
        demand.whole |= earlier
        for position, output in enumerate(self._plan.outputs):
            if output.buffer in self._writable(step):
                # Whether it wrote an element is not known; what it left there is final all the same.
                status[position][status[position] == _UNWRITTEN] = _FINAL
        return found

    def _probe(
        self,
        execution: Execution,
        step: Launch,
        blocks: npt.NDArray[np.int64],
        demand: _Demand,
        earlier: set[int],
        foreign: Mapping[int, npt.NDArray[np.uint32]] | None = None,
        granule: int = WORD,
    ) -> float:
        """Run blocks on what memory happens to hold, to see what they read of ``earlier`` buffers and their cost.

        Raises:
            NotPartial: a block reads what another one of the launch writes, by ``foreign``: the number of each unit's
                block, plus one. It could tell by that how many of them run.
        """
        before = execution.thread_instructions
        cache = TracedCache(SECTOR_BYTES, _TRACE_BYTES)
        foreign = foreign or {}
        extents = [extent for extent in execution.extents() if extent.buffer in earlier | foreign.keys()]
        for block in blocks.tolist():
            if execution.thread_instructions - before > RUN_INSTRUCTIONS:
                raise NotPartial("the blocks behind the chosen elements of the output take too long")
            if not extents:
                execution.some_blocks(step, [block], strict=False)
                continue
            cache.reset()
            execution.profiled(step, [block], cache, strict=False)
            held, dirty = cache.sectors()
            # Of a sector that was read and then written only the number is known: as many as that may be any of them.
            all_clean = cache.dram_read_sectors <= held.size - dirty.size
            read = np.setdiff1d(held, dirty, assume_unique=True) if all_clean else held
            for extent in extents:
                first, end = extent.address // SECTOR_BYTES, -(-(extent.address + extent.nbytes) // SECTOR_BYTES)
                mine = read[(read >= first) & (read < end)] - first
                words = (mine[:, None] * (SECTOR_BYTES // WORD) + np.arange(SECTOR_BYTES // WORD)).reshape(-1)
                words = words[words < -(-extent.nbytes // WORD)]
                if extent.buffer in earlier and words.size:
                    demand.add(extent.buffer, words)
                if extent.buffer in foreign:
                    places = (words[:, None] * (WORD // granule) + np.arange(WORD // granule)).reshape(-1)
                    owner = foreign[extent.buffer][places[places < foreign[extent.buffer].size]]
                    if bool(((owner != 0) & (owner != block + 1)).any()):
                        raise NotPartial(f"blocks of {step.expression!r} read what other blocks of it write")
        return (execution.thread_instructions - before) / max(blocks.size, 1)

    # What they compute

    def _values(
        self,
        execution: Execution,
        steps: Mapping[int, _Step],
        status: Mapping[int, npt.NDArray[np.uint8]],
        wanted: Mapping[int, npt.NDArray[np.int64]],
    ) -> tuple[Part, ...]:
        for place, step in enumerate(self._plan.steps):
            if isinstance(step, Fill):
                execution.step(step)
            elif isinstance(step, Launch) and place in steps:
                blocks = steps[place].blocks
                try:
                    execution.some_blocks(step, None if blocks is None else blocks.tolist())
                except LaunchFailed as faulted:
                    if not self._written_before(place):
                        raise
                    raise NotPartial(f"a block that was run by itself faulted: {faulted}") from faulted
        return tuple(self._part(execution, position, status[position], wanted) for position in status)

    def _part(
        self,
        execution: Execution,
        position: int,
        status: npt.NDArray[np.uint8],
        wanted: Mapping[int, npt.NDArray[np.int64]],
    ) -> Part:
        output = self._plan.outputs[position]
        first = wanted.get(position, np.zeros(0, np.int64))
        first = first[status[first] == _FINAL]
        rest = np.flatnonzero(status == _FINAL)
        if rest.size > MOST_ELEMENTS:
            rest = rest[:: -(-rest.size // MOST_ELEMENTS)]
        missing = np.setdiff1d(first, rest[np.minimum(np.searchsorted(rest, first), max(rest.size - 1, 0))])
        elements = np.sort(np.append(rest, missing))
        content = execution.content(output.buffer)[output.offset_bytes : output.offset_bytes + output.nbytes]
        data = content.reshape(-1, output.dtype.itemsize)[elements].tobytes()
        return Part(elements, data, int(np.count_nonzero(status == _UNWRITTEN)))
