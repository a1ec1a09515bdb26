"""Partial execution: run only the blocks that given elements of a plan's outputs depend on.

From the last launch back to the first: which blocks write the requested elements (:mod:`..ptx.store_slice` gives
them exactly), which values of earlier launches those blocks read, and so on. Then the selected blocks run in the plan's
order, on the real inputs. An element counts as final only where the block that writes it last was run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelforge.candidate.resolved import Fill, Launch, TensorArg, TensorMapArg
from kernelforge.devices.base import OutputPart
from kernelforge.devices.emulated.errors import UnsupportedInstruction
from kernelforge.devices.emulated.execute.loaded_module import writer_entry
from kernelforge.devices.emulated.execute.plan_execution import Execution, LaunchFailed
from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.devices.emulated.ptx.store_slice import NotSliceable
from kernelforge.devices.emulated.runtime.cache import CacheModel
from kernelforge.profiling.counts import SECTOR_BYTES

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.int64]
"""Offsets in a buffer, in units of four bytes; sorted, each once."""

WORD = 4
MAP_INSTRUCTIONS = 20_000_000_000
"""Limit on the thread instructions of all store slices of a plan."""
RUN_INSTRUCTIONS = 8_000_000_000
"""Limit on the thread instructions of the selected blocks."""
MOST_ELEMENTS = 1 << 20
"""Elements of one output that are returned at most."""
MOST_OWNERS = 8
"""Blocks that may add to one element by atomics."""
_TRACE_BYTES = 64 << 20
"""Footprint of one block that is traced to see what it reads."""
_PIECE = 1 << 22
"""Elements that are handled at a time: temporaries of a large output would take several times its memory."""

_UNWRITTEN, _NOT_RUN, _FINAL = 0, 1, 2


class NotPartial(Exception):
    """Blocks of this plan cannot run by themselves; the message gives the Coder the reason."""


@dataclass(frozen=True)
class _Owners:
    """The block of a launch that writes each unit of its buffers."""

    blocks: int
    """Blocks of the grid."""
    granule: int
    """Bytes of a unit."""
    atomic: bool
    """Several blocks may add to one unit; the last is named."""
    reread: frozenset[int]
    """Written buffers that the kernel may also load from."""
    units: dict[int, npt.NDArray[np.uint32]]
    """By buffer: the number of each unit's block, plus one; 0 where none writes. They may be views of the device's
    memory, valid until the next launch."""

    def at(self, buffer: int, words: Words) -> npt.NDArray[np.uint32]:
        """Blocks that write some words of a buffer."""
        return _units_of(self.units[buffer], words, self.granule)

    def words(self, buffer: int, blocks: Indices) -> Words:
        """Words of a buffer that some blocks write."""
        selected = np.zeros(self.blocks + 1, np.bool_)
        selected[blocks + 1] = True
        return np.flatnonzero(selected[self.units[buffer]]) // (WORD // self.granule)


def _units_of(units: npt.NDArray[np.uint32], words: Words, granule: int) -> npt.NDArray[np.uint32]:
    """The units, each ``granule`` bytes, that make up some words."""
    per_word = WORD // granule
    positions = (words[:, None] * per_word + np.arange(per_word)).reshape(-1)
    selected: npt.NDArray[np.uint32] = units[positions[positions < units.size]]
    return selected


@dataclass
class _Step:
    """A launch and the blocks of it that will run."""

    step: Launch
    blocks: Indices | None = None
    """Linear ids; None for all."""
    instructions: float = 0.0
    """Thread instructions of one block."""


class _Demand:
    """The buffers' words that must hold their final values before a step. ``sizes``: bytes by buffer."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._sizes = sizes
        self._words: dict[int, npt.NDArray[np.bool_]] = {}
        self.complete: set[int] = set()
        """Buffers that are needed completely."""

    def add(self, buffer: int, words: Words) -> None:
        if words.size:
            needed = self._words.setdefault(buffer, np.zeros(-(-self._sizes[buffer] // WORD), np.bool_))
            needed[words] = True

    def of(self, buffer: int) -> Words:
        return np.flatnonzero(self._words[buffer]) if buffer in self._words else np.zeros(0, np.int64)

    def touches(self, buffer: int) -> bool:
        return buffer in self.complete or buffer in self._words


class PartialRun:
    """One plan on one set of inputs, run for some elements of its outputs.

    Args:
        execution: The run; its poison fills workspace and outputs.
        elements: Flat indices of elements by output, the most important first.
    """

    def __init__(self, execution: Execution, elements: Mapping[int, Sequence[int]]) -> None:
        self._execution = execution
        self._machine = execution.build.machine
        self._requested = elements
        self._plan = execution.request.plan
        self._buffers = {buffer.id: buffer for buffer in self._plan.buffers}
        self._elements: dict[int, Indices] = {}
        """The affordable ones of the requested elements, by output."""
        self._status: dict[int, npt.NDArray[np.uint8]] = {}
        """State of every element of the outputs."""
        self._slice_instructions = 0

    def run(self) -> tuple[OutputPart, ...]:
        """Part of each output.

        Raises:
            NotPartial: the blocks behind the elements are unknown or take too long.
            LaunchFailed: a block failed that read nothing but the task's own tensors.
        """
        if not self._execution.set_up(Budget.of_setup(sum(isinstance(step, Launch) for step in self._plan.setup))):
            raise NotPartial("its setup takes too long to be run whole")
        steps = self._affordable_steps()
        self._execution.poison()
        return self._values(steps)

    # Selection of blocks

    def _affordable_steps(self) -> dict[int, _Step]:
        """The launches behind as many elements as are affordable, by their position in the plan."""
        most = max((len(indices) for indices in self._requested.values()), default=0)
        while True:
            self._elements = {output: np.array(ids[:most], np.int64) for output, ids in self._requested.items()}
            try:
                steps, cost = self._backwards()
            except LaunchFailed as error:
                raise NotPartial(f"while it was found out which blocks write what: {error}") from error
            if cost <= RUN_INSTRUCTIONS:
                return steps
            if most <= 1:
                raise NotPartial(
                    f"the blocks behind one element of the output take {cost:.2g} thread instructions, over "
                    f"{RUN_INSTRUCTIONS:.2g}"
                )
            most = max(1, min(most - 1, int(most * RUN_INSTRUCTIONS / cost)))

    def _backwards(self) -> tuple[dict[int, _Step], float]:
        """The launches behind the elements, and their thread instructions."""
        demand = self._no_demand()
        for position, output in enumerate(self._plan.outputs):
            size = output.dtype.itemsize
            self._status[position] = np.zeros(output.nbytes // size, np.uint8)
            elements = self._elements.get(position, np.zeros(0, np.int64))
            if elements.size:
                first = output.offset_bytes + elements * size
                demand.add(output.buffer, np.concatenate([first // WORD, (first + size - 1) // WORD]))
        steps: dict[int, _Step] = {}
        cost = 0.0
        for position in reversed(range(len(self._plan.steps))):
            step = self._plan.steps[position]
            if isinstance(step, Fill):
                self._fill(step)
            elif isinstance(step, Launch):
                selected = self._launch(position, step, demand)
                if selected is not None:
                    steps[position] = selected
                    count = math.prod(step.grid) if selected.blocks is None else selected.blocks.size
                    cost += count * selected.instructions
        return steps, cost

    def _no_demand(self) -> _Demand:
        return _Demand({buffer.id: buffer.nbytes for buffer in self._plan.buffers})

    def _fill(self, step: Fill) -> None:
        for position, output in enumerate(self._plan.outputs):
            if output.buffer == step.buffer:
                size = output.dtype.itemsize
                first = max(step.offset_bytes - output.offset_bytes, 0) // size
                end = min(step.offset_bytes + step.nbytes - output.offset_bytes, output.nbytes) // size
                if end > first:
                    part = self._status[position][first:end]
                    part[part == _UNWRITTEN] = _FINAL

    def _launch(self, position: int, step: Launch, demand: _Demand) -> _Step | None:
        """The blocks of a launch that the demand needs; what they read is added to the demand."""
        written = self._writable(step)
        outputs = {output.buffer for output in self._plan.outputs}
        if not any(demand.touches(buffer) or buffer in outputs for buffer in written):
            return None
        self._execution.check(step)
        earlier = self._written_before(position) & {
            arg.buffer for arg in step.args if isinstance(arg, TensorArg | TensorMapArg)
        }
        try:
            owners = self._owners(step, written)
        except (NotSliceable, UnsupportedInstruction) as error:
            return self._complete_launch(step, demand, earlier, str(error))
        blocks = self._needed(step, demand, owners)
        self._mark(step, demand, owners, blocks)
        if not blocks.size:
            return None
        for buffer in earlier & owners.units.keys():
            # A block may add to what is there: everything that it writes must have been right before.
            demand.add(buffer, owners.words(buffer, blocks))
        foreign = {buffer: owners.units[buffer].copy() for buffer in owners.reread}
        several = blocks if earlier or foreign else blocks[:1]
        return _Step(step, blocks, self._probe(step, several, demand, earlier, foreign, owners.granule))

    def _writable(self, step: Launch) -> set[int]:
        """Buffers that a launch could write."""
        args = {arg.buffer for arg in step.args if isinstance(arg, TensorArg | TensorMapArg)}
        return {b for b in args if self._buffers[b].kind == "workspace"}

    def _written_before(self, position: int) -> set[int]:
        """Buffers that launches before a step could write."""
        return {b for step in self._plan.steps[:position] if isinstance(step, Launch) for b in self._writable(step)}

    def _owners(self, step: Launch, written: set[int], ctas: Sequence[int] | None = None) -> _Owners:
        """The block, of some or of all, that writes each unit.

        Raises:
            NotSliceable: it depends on what the kernel computes.
        """
        entry = self._execution.build.entry(step.expression)
        if self._execution.waits(step):
            raise NotSliceable("its blocks may wait for one another")
        slices = self._machine.writers(entry.name)
        args = {param.offset: arg for param, arg in zip(entry.params, step.args, strict=True)}
        through = {
            arg.buffer
            for offset in slices.loads_through
            if isinstance(arg := args.get(offset), TensorArg | TensorMapArg)
        }
        if any(self._buffers[buffer].kind == "workspace" for buffer in through):
            raise NotSliceable("where it writes depends on what earlier launches computed")
        if slices.answers:
            raise NotSliceable("the result of an atomic tells a block which others ran before")
        read = {
            arg.buffer
            for offset in slices.reads_through
            if isinstance(arg := args.get(offset), TensorArg | TensorMapArg)
        }
        owners: dict[int, npt.NDArray[np.uint32]] = {}
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[slices.granule]
        for plane in range(slices.planes):
            for buffer in written:
                self._execution.clear(buffer)
            limit = MAP_INSTRUCTIONS - self._slice_instructions
            if limit <= 0:
                raise NotPartial(f"finding out which blocks write what takes over {MAP_INSTRUCTIONS:.2g} instructions")
            report = self._execution.run_blocks(step, ctas, entry=writer_entry(entry.name, plane), limit=limit)
            self._slice_instructions += report.work
            for buffer in written:
                content = self._execution.content(buffer)
                content = content[: content.size - content.size % slices.granule]
                units = content.view(kind)
                if slices.atomic or slices.planes > 1:
                    units = np.left_shift(units, np.uint32(8 * slices.granule * plane), dtype=np.uint32)
                owners[buffer] = units if plane == 0 else owners[buffer] | units
        units_of = {buffer: units for buffer, units in owners.items() if units.any()}
        return _Owners(math.prod(step.grid), slices.granule, slices.atomic, frozenset(read & units_of.keys()), units_of)

    def _needed(self, step: Launch, demand: _Demand, owners: _Owners) -> Indices:
        """Linear ids of the blocks that write what is needed."""

        def among(owners: _Owners) -> Indices:
            needed = np.zeros(owners.blocks + 1, np.bool_)
            for buffer, units in owners.units.items():
                needed[units if buffer in demand.complete else owners.at(buffer, demand.of(buffer))] = True
            return np.flatnonzero(needed[1:])

        def complete(blocks: Indices) -> Indices:
            """With the other blocks of their clusters."""
            units = self._execution.units_of(step, blocks)
            return np.sort(np.asarray(self._execution.blocks(step, units.tolist()), np.int64))

        blocks = complete(among(owners))
        if not owners.atomic or not blocks.size:
            return blocks
        all_blocks = np.arange(math.prod(step.grid))
        for _ in range(MOST_OWNERS):
            others = np.delete(all_blocks, blocks)
            if not others.size:
                return blocks
            more = among(self._owners(step, self._writable(step), others.tolist()))
            if not more.size:
                return blocks
            blocks = np.union1d(blocks, complete(more))
        raise NotPartial(f"more than {MOST_OWNERS} blocks add to one element of the result of {step.expression!r}")

    def _mark(self, step: Launch, demand: _Demand, owners: _Owners, blocks: Indices) -> None:
        """Mark the outputs' elements by whether the block that writes them last will run."""
        runs = np.full(math.prod(step.grid) + 1, _NOT_RUN, np.uint8)
        runs[0] = _UNWRITTEN
        if not owners.atomic:
            runs[blocks + 1] = _FINAL
        for position, output in enumerate(self._plan.outputs):
            if output.buffer not in owners.units:
                continue
            size, unit = output.dtype.itemsize, owners.granule
            units = owners.units[output.buffer]
            status = self._status[position]
            for start in range(0, status.size, _PIECE):
                piece = status[start : start + _PIECE]
                if size == unit:
                    first = output.offset_bytes // unit + start
                    marks = runs[units[first : first + piece.size]]
                else:
                    positions = (output.offset_bytes + np.arange(start, start + piece.size) * size) // unit
                    marks = runs[units[np.minimum(positions, units.size - 1)]]
                np.copyto(piece, marks, where=piece == _UNWRITTEN)
            if owners.atomic:
                elements = (demand.of(output.buffer) * WORD - output.offset_bytes) // size
                elements = elements[(elements >= 0) & (elements < status.size)]
                status[elements[status[elements] == _NOT_RUN]] = _FINAL

    def _complete_launch(self, step: Launch, demand: _Demand, earlier: set[int], reason: str) -> _Step:
        """All blocks of a launch with unknown writers; it needs everything that it may read."""
        count = math.prod(step.grid)
        if self._execution.waits(step):
            raise NotPartial(f"blocks of {step.expression!r} wait for one another, so that none can be run alone")
        instructions = self._probe(step, np.array([count // 2]), self._no_demand(), set())
        if instructions * count > RUN_INSTRUCTIONS:
            raise NotPartial(f"{step.expression!r} takes too long to be run whole, and not in part: {reason}")
        demand.complete |= earlier
        for position, output in enumerate(self._plan.outputs):
            if output.buffer in self._writable(step):
                # Whether it wrote an element is unknown; its value is final all the same.
                status = self._status[position]
                status[status == _UNWRITTEN] = _FINAL
        return _Step(step, None, instructions)

    def _probe(
        self,
        step: Launch,
        blocks: Indices,
        demand: _Demand,
        earlier: set[int],
        foreign: Mapping[int, npt.NDArray[np.uint32]] | None = None,
        granule: int = WORD,
    ) -> float:
        """Run blocks on arbitrary memory; add what they read of ``earlier`` buffers to the demand.

        Returns:
            Thread instructions of one block.

        Raises:
            NotPartial: a block reads a unit that another block of the launch writes, by ``foreign``: the number of each
                unit's block, plus one. It could tell by that how many of them run.
        """
        execution = self._execution
        before = execution.work
        cache = CacheModel(SECTOR_BYTES, _TRACE_BYTES)
        foreign = foreign or {}
        extents = [extent for extent in execution.extents() if extent.buffer in earlier | foreign.keys()]
        ran = 0
        for unit in execution.units_of(step, blocks).tolist():
            together = execution.blocks(step, [unit])
            ran += len(together)
            if execution.work - before > RUN_INSTRUCTIONS:
                raise NotPartial("the blocks behind the chosen elements of the output take too long")
            if not extents:
                execution.run_blocks(step, together, strict=False)
                continue
            cache.reset()
            execution.run_blocks(step, together, cache=cache, strict=False)
            cached, dirty = cache.sectors()
            # Of a sector that was read and then written only the number is known: as many as that may be any of them.
            all_clean = cache.counts.dram_read_sectors <= cached.size - dirty.size
            read = np.setdiff1d(cached, dirty, assume_unique=True) if all_clean else cached
            for extent in extents:
                first, end = extent.address // SECTOR_BYTES, -(-(extent.address + extent.nbytes) // SECTOR_BYTES)
                inside = read[(read >= first) & (read < end)] - first
                words = (inside[:, None] * (SECTOR_BYTES // WORD) + np.arange(SECTOR_BYTES // WORD)).reshape(-1)
                words = words[words < -(-extent.nbytes // WORD)]
                if extent.buffer in earlier and words.size:
                    demand.add(extent.buffer, words)
                if extent.buffer in foreign:
                    owner = _units_of(foreign[extent.buffer], words, granule)
                    if not np.isin(owner, [0, *(block + 1 for block in together)]).all():
                        raise NotPartial(f"blocks of {step.expression!r} read what other blocks of it write")
        return (execution.work - before) / max(ran, 1)

    # Values

    def _values(self, steps: Mapping[int, _Step]) -> tuple[OutputPart, ...]:
        for position, step in enumerate(self._plan.steps):
            if isinstance(step, Fill):
                self._execution.step(step)
            elif isinstance(step, Launch) and position in steps:
                blocks = steps[position].blocks
                try:
                    self._execution.run_blocks(step, None if blocks is None else blocks.tolist())
                except LaunchFailed as error:
                    if not self._written_before(position):
                        raise
                    raise NotPartial(f"a block that was run by itself faulted: {error}") from error
        return tuple(map(self._part, self._status))

    def _part(self, position: int) -> OutputPart:
        output, status = self._plan.outputs[position], self._status[position]
        first = self._elements.get(position, np.zeros(0, np.int64))
        first = first[status[first] == _FINAL]
        rest = np.flatnonzero(status == _FINAL)
        if rest.size > MOST_ELEMENTS:
            rest = rest[:: -(-rest.size // MOST_ELEMENTS)]
        missing = np.setdiff1d(first, rest[np.minimum(np.searchsorted(rest, first), max(rest.size - 1, 0))])
        elements = np.sort(np.append(rest, missing))
        content = self._execution.content(output.buffer)[output.offset_bytes : output.offset_bytes + output.nbytes]
        data = content.reshape(-1, output.dtype.itemsize)[elements].tobytes()
        return OutputPart(elements.tobytes(), data, int(np.count_nonzero(status == _UNWRITTEN)))
