"""Partial execution: run only the blocks that given elements of a plan's outputs depend on.

From the last launch back to the first: which blocks write the requested elements (:mod:`..ptx.store_slice` gives
them exactly), which values of earlier launches those blocks read, and so on. Then the selected blocks run in the plan's
order, on the real inputs. An element counts as final only where the block that writes it last was run.

Of a large buffer only the windows around the requested elements are looked at: the host's memory would not hold the
number of a block for each of its words. Every block of the grid takes part in the search all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernelforge.candidate.resolved import Fill, Launch, Output, TensorArg, TensorMapArg
from kernelforge.devices.base import OutputPart
from kernelforge.devices.emulated.errors import OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.execute.loaded_module import writer_entry
from kernelforge.devices.emulated.execute.memory import WINDOW_BYTES
from kernelforge.devices.emulated.execute.plan_execution import Execution, LaunchFailed
from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.devices.emulated.profile.traffic import keep_footprint, sectors_of
from kernelforge.devices.emulated.ptx.store_slice import NotSliceable
from kernelforge.devices.emulated.runtime.cache import CacheModel
from kernelforge.profiling.counts import SECTOR_BYTES

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.int64]
"""Offsets in a buffer, in units of four bytes; sorted, each once."""

WORD = 4
MAP_INSTRUCTIONS = 400_000_000_000
"""Limit on the thread instructions of all store slices of a plan; a core executes some ten billions in a second."""
RUN_INSTRUCTIONS = 8_000_000_000
"""Limit on the thread instructions of the selected blocks."""
MOST_ELEMENTS = 1 << 20
"""Elements of one output that are returned at most."""
MOST_OWNERS = 8
"""Blocks that may add to one element by atomics."""
_TRACE_BYTES = 64 << 20
"""Cache of a traced block: what it stores counts as read where it reads that again after more bytes than these."""
DENSE_BYTES = 1 << 30
"""Buffers up to this size are looked at completely, larger ones only around the requested elements."""
_WINDOW = WINDOW_BYTES // WORD
"""Words of such a window."""
_PIECE = 1 << 22
"""Elements that are handled at a time: temporaries of a large output would take several times its memory."""

_UNWRITTEN, _NOT_RUN, _FINAL = 0, 1, 2


class NotPartial(Exception):
    """Blocks of this plan cannot run by themselves; the message gives the Coder the reason."""


@dataclass(frozen=True)
class _Units:
    """The number of the block, plus one, that writes each unit of a buffer; 0 where none does."""

    numbers: npt.NDArray[np.uint32]
    granule: int
    """Bytes of a unit."""
    windows: Indices | None = None
    """Places of the buffer that ``numbers`` are of, one after the other, ascending; None for all of it."""

    def at(self, units: Indices) -> npt.NDArray[np.uint32]:
        """Numbers of some units, which must be in the windows."""
        if self.windows is not None:
            per_window = WINDOW_BYTES // self.granule
            units = np.searchsorted(self.windows, units // per_window) * per_window + units % per_window
        return self.numbers[np.minimum(units, self.numbers.size - 1)]

    def of_words(self, words: Words) -> npt.NDArray[np.uint32]:
        """Numbers of the units that make up some words."""
        per_word = WORD // self.granule
        return self.at((words[:, None] * per_word + np.arange(per_word)).reshape(-1))

    def words(self, blocks: npt.NDArray[np.bool_]) -> Words:
        """Words that some blocks write, selected by their numbers; of the windows alone."""
        per_word = WORD // self.granule
        words = np.flatnonzero(blocks[self.numbers]) // per_word
        return words if self.windows is None else self.windows[words // _WINDOW] * _WINDOW + words % _WINDOW


@dataclass(frozen=True)
class _Owners:
    """The block of a launch that writes each unit of its buffers."""

    blocks: int
    """Blocks of the grid."""
    atomic: bool
    """Several blocks may add to one unit; the last is named."""
    reread: frozenset[int]
    """Written buffers that the kernel may also load from."""
    units: dict[int, _Units]
    """By buffer. Of a whole buffer they may be a view of the device's memory, valid until the next launch."""

    def words(self, buffer: int, blocks: Indices) -> Words:
        """Words of a buffer that some blocks write."""
        selected = np.zeros(self.blocks + 1, np.bool_)
        selected[blocks + 1] = True
        return self.units[buffer].words(selected)


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
        self._masks: dict[int, npt.NDArray[np.bool_]] = {}
        self._lists: dict[int, list[Words]] = {}
        """Of buffers whose masks would be large."""
        self.complete: set[int] = set()
        """Buffers that are needed completely."""

    def add(self, buffer: int, words: Words) -> None:
        if not words.size:
            return
        if self._sizes[buffer] > DENSE_BYTES:
            self._lists.setdefault(buffer, []).append(words)
        else:
            needed = self._masks.setdefault(buffer, np.zeros(-(-self._sizes[buffer] // WORD), np.bool_))
            needed[words] = True

    def of(self, buffer: int) -> Words:
        if buffer in self._masks:
            return np.flatnonzero(self._masks[buffer])
        if buffer not in self._lists:
            return np.zeros(0, np.int64)
        words = np.unique(np.concatenate(self._lists[buffer]))
        self._lists[buffer] = [words]
        return words

    def touches(self, buffer: int) -> bool:
        return buffer in self.complete or buffer in self._masks or buffer in self._lists


class _States:
    """Whether each element of an output, or of some windows of it, is written, and by a block that will run.

    Args:
        count: Elements of the output.
        elements: Flat indices of those that are looked at, ascending; None for all.
    """

    def __init__(self, count: int, elements: Indices | None) -> None:
        self._elements = elements
        self._states = np.zeros(count if elements is None else elements.size, np.uint8)

    def pieces(self) -> Iterator[tuple[Indices | range, npt.NDArray[np.uint8]]]:
        """The elements, and their states to be changed, some at a time; a range where all are looked at."""
        for start in range(0, self._states.size, _PIECE):
            states = self._states[start : start + _PIECE]
            end = start + states.size
            yield range(start, end) if self._elements is None else self._elements[start:end], states

    def in_state(self, state: int) -> Indices:
        """Elements in a state, ascending."""
        positions = np.flatnonzero(self._states == state)
        return positions if self._elements is None else self._elements[positions]

    def finish(self, first: int, end: int) -> None:
        """Mark elements from ``first`` to ``end`` as final where no later block writes them."""
        if self._elements is not None:
            first, end = np.searchsorted(self._elements, (first, end)).tolist()
        part = self._states[first:end]
        part[part == _UNWRITTEN] = _FINAL

    def confirm(self, elements: Indices) -> None:
        """Mark as final those of some elements that a block writes: it will run."""
        at = elements if self._elements is None else np.flatnonzero(np.isin(self._elements, elements))
        self._states[at[self._states[at] == _NOT_RUN]] = _FINAL


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
        self._states: dict[int, _States] = {}
        """By output."""
        self._windows: dict[int, Indices] = {}
        """By large buffer that holds outputs: its windows with the elements."""
        self._slice_instructions = 0
        self._found: dict[int, tuple[dict[int, Indices], _Owners]] = {}
        """By position of a launch: the windows of large buffers that were looked at, and what writes there."""

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
            first = output.offset_bytes + self._elements.get(position, np.zeros(0, np.int64)) * size
            demand.add(output.buffer, np.concatenate([first // WORD, (first + size - 1) // WORD]))
        self._windows = {
            output.buffer: np.unique(demand.of(output.buffer) // _WINDOW)
            for output in self._plan.outputs
            if self._is_large(output.buffer)
        }
        self._states = {position: self._states_of(output) for position, output in enumerate(self._plan.outputs)}
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

    def _is_large(self, buffer: int) -> bool:
        return self._buffers[buffer].nbytes > DENSE_BYTES

    def _states_of(self, output: Output) -> _States:
        """States of an output's elements, those in the windows of a large buffer."""
        size = output.dtype.itemsize
        count = output.nbytes // size
        if not self._is_large(output.buffer):
            return _States(count, None)
        begins = self._windows[output.buffer] * WINDOW_BYTES - output.offset_bytes
        elements = (-(-begins // size)[:, None] + np.arange(WINDOW_BYTES // size)).reshape(-1)
        return _States(count, elements[(elements >= 0) & (elements < count)])

    def _no_demand(self) -> _Demand:
        return _Demand({buffer.id: buffer.nbytes for buffer in self._plan.buffers})

    def _fill(self, step: Fill) -> None:
        for position, output in enumerate(self._plan.outputs):
            if output.buffer == step.buffer:
                size = output.dtype.itemsize
                first = max(step.offset_bytes - output.offset_bytes, 0) // size
                end = min(step.offset_bytes + step.nbytes - output.offset_bytes, output.nbytes) // size
                if end > first:
                    self._states[position].finish(first, end)

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
            owners = self._owners_near(position, step, written, demand)
        except (NotSliceable, UnsupportedInstruction) as error:
            return self._complete_launch(step, demand, earlier, str(error))
        blocks = self._needed(step, demand, owners)
        self._mark(step, demand, owners, blocks)
        if not blocks.size:
            return None
        for buffer in earlier & owners.units.keys():
            # A block may add to what is there: everything that it writes must have been right before.
            demand.add(buffer, owners.words(buffer, blocks))
        foreign = {
            buffer: replace(units, numbers=units.numbers.copy())
            for buffer, units in owners.units.items()
            if buffer in owners.reread and units.windows is None
        }
        reads: dict[int, list[tuple[Sequence[int], Words]]] = {b: [] for b in owners.reread - foreign.keys()}
        several = blocks if earlier or owners.reread else blocks[:1]
        instructions = self._probe(step, several, demand, earlier, foreign, reads)
        if any(reads.values()):
            windows = {
                buffer: np.unique(np.concatenate([words // _WINDOW for _, words in of_blocks]))
                for buffer, of_blocks in reads.items()
                if of_blocks
            }
            others = self._owners(step, written, windows=windows).units
            for buffer, of_blocks in reads.items():
                for together, words in of_blocks if buffer in others else ():
                    _refuse_foreign(step, together, others[buffer].of_words(words))
        return _Step(step, blocks, instructions)

    def _owners_near(self, position: int, step: Launch, written: set[int], demand: _Demand) -> _Owners:
        """The block that writes each unit; of large buffers those of the demand and around the requested elements.

        Raises:
            NotSliceable: it depends on what the kernel computes.
        """
        none = np.zeros(0, np.int64)
        windows = {
            buffer: np.union1d(demand.of(buffer) // _WINDOW, self._windows.get(buffer, none))
            for buffer in written
            if self._is_large(buffer)
        }
        if position in self._found:
            looked_at, owners = self._found[position]
            if all(np.isin(windows[buffer], looked_at[buffer], assume_unique=True).all() for buffer in windows):
                return owners
        owners = self._owners(step, written, windows=windows)
        if windows.keys() == written:
            self._found[position] = windows, owners
        return owners

    def _writable(self, step: Launch) -> set[int]:
        """Buffers that a launch could write."""
        args = {arg.buffer for arg in step.args if isinstance(arg, TensorArg | TensorMapArg)}
        return {b for b in args if self._buffers[b].kind == "workspace"}

    def _written_before(self, position: int) -> set[int]:
        """Buffers that launches before a step could write."""
        return {b for step in self._plan.steps[:position] if isinstance(step, Launch) for b in self._writable(step)}

    def _owners(
        self,
        step: Launch,
        written: set[int],
        ctas: Sequence[int] | None = None,
        *,
        windows: Mapping[int, Indices],
    ) -> _Owners:
        """The block, of some or of all, that writes each unit; of large buffers those in some ``windows``.

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
        none = np.zeros(0, np.int64)
        windows = {buffer: windows.get(buffer, none) for buffer in written if self._is_large(buffer)}
        owners: dict[int, npt.NDArray[np.uint32]] = {}
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[slices.granule]
        for plane in range(slices.planes):
            for buffer in written:
                try:
                    self._execution.clear(buffer, windows.get(buffer))
                except OutOfDeviceMemory as error:
                    raise NotPartial(f"too much of a large buffer would have to be looked at: {error}") from error
            limit = MAP_INSTRUCTIONS - self._slice_instructions
            if limit <= 0:
                raise NotPartial(f"finding out which blocks write what takes over {MAP_INSTRUCTIONS:.2g} instructions")
            report = self._execution.run_blocks(step, ctas, entry=writer_entry(entry.name, plane), limit=limit)
            self._slice_instructions += report.work
            for buffer in written:
                content = self._execution.content(buffer)
                content = _of_windows(content, windows[buffer]) if buffer in windows else content
                content = content[: content.size - content.size % slices.granule]
                units = content.view(kind)
                if slices.atomic or slices.planes > 1:
                    units = np.left_shift(units, np.uint32(8 * slices.granule * plane), dtype=np.uint32)
                owners[buffer] = units if plane == 0 else owners[buffer] | units
        units_of = {
            buffer: _Units(numbers, slices.granule, windows.get(buffer))
            for buffer, numbers in owners.items()
            if numbers.any()
        }
        return _Owners(math.prod(step.grid), slices.atomic, frozenset(read & units_of.keys()), units_of)

    def _needed(self, step: Launch, demand: _Demand, owners: _Owners) -> Indices:
        """Linear ids of the blocks that write what is needed."""

        def among(owners: _Owners) -> Indices:
            needed = np.zeros(owners.blocks + 1, np.bool_)
            for buffer, units in owners.units.items():
                if buffer not in demand.complete:
                    needed[units.of_words(demand.of(buffer))] = True
                elif units.windows is None:
                    needed[units.numbers] = True
                else:
                    needed[:] = True
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
            windows = {buffer: units.windows for buffer, units in owners.units.items() if units.windows is not None}
            more = among(self._owners(step, self._writable(step), others.tolist(), windows=windows))
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
            size, units = output.dtype.itemsize, owners.units[output.buffer]
            for elements, states in self._states[position].pieces():
                if isinstance(elements, range) and size == units.granule:
                    first = output.offset_bytes // size
                    numbers = units.numbers[first + elements.start : first + elements.stop]
                else:
                    numbers = units.at((output.offset_bytes + np.asarray(elements) * size) // units.granule)
                np.copyto(states, runs[numbers], where=states == _UNWRITTEN)
            if owners.atomic:
                added = (demand.of(output.buffer) * WORD - output.offset_bytes) // size
                self._states[position].confirm(added[(added >= 0) & (added < output.nbytes // size)])

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
                self._states[position].finish(0, output.nbytes // output.dtype.itemsize)
        return _Step(step, None, instructions)

    def _probe(
        self,
        step: Launch,
        blocks: Indices,
        demand: _Demand,
        earlier: set[int],
        foreign: Mapping[int, _Units] | None = None,
        reads: Mapping[int, list[tuple[Sequence[int], Words]]] | None = None,
    ) -> float:
        """Run blocks on arbitrary memory; add what they read of ``earlier`` buffers to the demand.

        Args:
            step: The launch.
            blocks: Linear ids.
            demand: What the blocks read is added to it.
            earlier: Buffers that earlier launches may have written.
            foreign: By buffer, the block that writes each unit.
            reads: Takes, by buffer, what the blocks of each cluster read.

        Returns:
            Thread instructions of one block.

        Raises:
            NotPartial: a block reads a unit that another block of the launch writes, by ``foreign``. It could tell by
                that how many of them run.
        """
        execution = self._execution
        before = execution.work
        foreign, reads = foreign or {}, reads or {}
        traced = earlier | foreign.keys() | reads.keys()
        extents = [extent for extent in execution.extents() if extent.buffer in traced]
        cache = CacheModel(SECTOR_BYTES, _TRACE_BYTES)
        keep_footprint(cache, extents)
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
            read = cache.footprint().read
            for extent in extents:
                inside = sectors_of(read, extent).numbers() - extent.address // SECTOR_BYTES
                words = (inside[:, None] * (SECTOR_BYTES // WORD) + np.arange(SECTOR_BYTES // WORD)).reshape(-1)
                words = words[words < -(-extent.nbytes // WORD)]
                if extent.buffer in earlier and words.size:
                    demand.add(extent.buffer, words)
                if extent.buffer in foreign:
                    _refuse_foreign(step, together, foreign[extent.buffer].of_words(words))
                if extent.buffer in reads and words.size:
                    reads[extent.buffer].append((together, words))
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
        return tuple(map(self._part, self._states))

    def _part(self, position: int) -> OutputPart:
        output, states = self._plan.outputs[position], self._states[position]
        elements = states.in_state(_FINAL)
        if elements.size > MOST_ELEMENTS:
            requested = np.intersect1d(elements, self._elements.get(position, np.zeros(0, np.int64)))
            elements = np.union1d(elements[:: -(-elements.size // MOST_ELEMENTS)], requested)
        content = self._execution.content(output.buffer)[output.offset_bytes : output.offset_bytes + output.nbytes]
        data = content.reshape(-1, output.dtype.itemsize)[elements].tobytes()
        return OutputPart(elements.tobytes(), data, states.in_state(_UNWRITTEN).size)


def _of_windows(content: npt.NDArray[np.uint8], windows: Indices) -> npt.NDArray[np.uint8]:
    """The bytes of some windows of a buffer, one window after the other; zeros beyond its end."""
    parts = np.zeros((windows.size, WINDOW_BYTES), np.uint8)
    for part, window in zip(parts, windows.tolist(), strict=True):
        piece = content[window * WINDOW_BYTES : (window + 1) * WINDOW_BYTES]
        part[: piece.size] = piece
    return parts.reshape(-1)


def _refuse_foreign(step: Launch, together: Sequence[int], numbers: npt.NDArray[np.uint32]) -> None:
    """Raise :class:`NotPartial` where units that blocks read, by the number of each one's writer, are of others."""
    if not np.isin(numbers, [0, *(block + 1 for block in together)]).all():
        raise NotPartial(f"blocks of {step.expression!r} read what other blocks of it write")
