"""Partial execution: run only the blocks that given elements of a plan's outputs depend on.

From the last launch back to the first: which blocks write the requested elements (:mod:`..ptx.store_slice` gives
them exactly), which values of earlier launches those blocks read, and so on. Then the selected blocks run in the plan's
order, on the real inputs. An element counts as final only where the block that writes it last was run.

Of a large buffer only the windows around the requested elements are looked at: the host's memory would not hold the
number of a block for each of its words. Every block of the grid takes part in the search all the same, unless the
request is ``nearby``: then those that lie in the grid where the windows lie in the buffer come first, and where these
write every unit of the windows, the others are left out. That another block writes there too goes unseen then.

Where the threads of a launch do nothing together, and nothing that they write is an output, only the threads behind the
elements run: a thread for each row of a sum would else read hundreds of rows, of which one is needed. So it is for
outputs too, where the blocks behind a single element take too long: then nothing but the elements is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernelforge.candidate.resolved import Fill, Launch, Output, TensorArg, TensorMapArg
from kernelforge.devices.base import OutputPart
from kernelforge.devices.emulated.errors import OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.execute.memory import WINDOW_BYTES
from kernelforge.devices.emulated.execute.plan_execution import Execution, LaunchFailed
from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.devices.emulated.profile.traffic import Extent, keep_footprint, sectors_of
from kernelforge.devices.emulated.ptx.store_slice import NotSliceable, writer_entry
from kernelforge.devices.emulated.report import LaunchReport
from kernelforge.devices.emulated.runtime.cache import CacheModel, Sectors
from kernelforge.profiling.counts import SECTOR_BYTES

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.int64]
"""Offsets in a buffer, in units of four bytes; sorted, each once."""

WORD = 4
MAP_INSTRUCTIONS = 400_000_000_000
"""Limit on the thread instructions of all store slices of a plan; a core executes some ten billions in a second."""
RUN_INSTRUCTIONS = 8_000_000_000
"""Limit on the thread instructions of the selected blocks."""
MOST_BYTES = 3 << 29
"""Limit on what the selected blocks store, and on the windows of large buffers that are looked at: the host holds it,
and as much again for the numbers of the blocks that write there."""
MOST_ELEMENTS = 1 << 20
"""Elements of one output that are returned at most."""
MOST_OWNERS = 8
"""Blocks that may add to one element by atomics."""
_TRACE_BYTES = 64 << 20
"""Cache of a traced block: what it stores counts as read where it reads that again after more bytes than these."""
DENSE_BYTES = 1 << 30
"""Buffers up to this size are looked at completely, larger ones only around the requested elements."""
NEARBY_DENSE_BYTES = 4 << 20
"""The same where only blocks near the elements are looked at."""
_WINDOW = WINDOW_BYTES // WORD
"""Words of such a window."""
_PIECE = 1 << 22
"""Elements that are handled at a time: temporaries of a large output would take several times its memory."""
_PIECE_WORDS = 1 << 20
"""The same for words and sectors, of which there are several temporaries of eight bytes each."""
_MEASURED = 8
"""Blocks that tell the cost of a launch that reads no results of earlier ones."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_MOST_TRACED = 4096
"""Blocks that are traced together at most."""
_KEPT_BYTES = 64 << 20
"""Numbers of writers that are kept for the case that fewer elements are tried."""
_TRIED_BYTES = 256 << 20
"""The same of what blocks read that were tried; they are as many bits as their buffers have words."""
_MOST_NUMBERS = (1 << 32) - 2
"""Blocks, or threads, of a grid whose numbers fit into 32 bits."""

_UNWRITTEN, _NOT_RUN, _FINAL = 0, 1, 2


class NotPartial(Exception):
    """Blocks of this plan cannot run by themselves; the message gives the Coder the reason."""


class _TooDear(Exception):
    """The blocks behind the elements take over a limit; ``times`` it, as far as that was counted. ``with_others``:
    those of one launch do together with those of later launches."""

    def __init__(self, what: str, amount: float, limit: float, unit: str, *, with_others: bool = False) -> None:
        super().__init__(f"{what} over {limit:.2g} {unit}")
        self.times = amount / limit
        self.with_others = with_others


@dataclass(frozen=True)
class _Selection:
    """Blocks of a launch that run, completely or some threads of each."""

    blocks: Indices
    """Linear ids, ascending."""
    lanes: npt.NDArray[np.uint32] | None = None
    """Of each block and each of its warps, the lanes that run, a bit each; None for all."""
    threads: int = 1
    """Threads of a block."""

    def is_same(self, other: _Selection) -> bool:
        """Whether another selection of the same launch is the same."""
        if not np.array_equal(self.blocks, other.blocks):
            return False
        if self.lanes is None or other.lanes is None:
            return self.lanes is other.lanes
        return np.array_equal(self.lanes, other.lanes)

    def has(self, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Whether each number, plus one, is that of a selected block, or thread; 0 is of none."""
        if self.lanes is None or not self.blocks.size:
            runs_of = np.zeros(int(self.blocks.max(initial=0)) + 2, np.bool_)
            runs_of[self.blocks + 1] = True
            selected: npt.NDArray[np.bool_] = runs_of[np.where(numbers < runs_of.size, numbers, 0)]
            return selected
        block, thread = np.divmod(numbers.astype(np.int64) - 1, self.threads)
        at = np.minimum(np.searchsorted(self.blocks, block), self.blocks.size - 1)
        lanes = self.lanes[at, thread // 32] >> (thread % 32).astype(np.uint32)
        runs: npt.NDArray[np.bool_] = (numbers > 0) & (self.blocks[at] == block) & ((lanes & 1) == 1)
        return runs


@dataclass(frozen=True)
class _Units:
    """The number of the block, or thread, plus one, that writes each unit of a buffer; 0 where none does."""

    numbers: npt.NDArray[np.uint32]
    granule: int
    """Bytes of a unit."""
    windows: Indices | None = None
    """Places of the buffer that ``numbers`` are of, one after the other, ascending; None for all of it."""

    def at(self, units: Indices) -> npt.NDArray[np.uint32]:
        """Numbers of some units, which must be in the windows."""
        if self.windows is not None:
            per_window = WINDOW_BYTES // self.granule
            windows = units // per_window
            first = np.append(True, windows[1:] != windows[:-1])[: windows.size]
            row = np.searchsorted(self.windows, windows[first])[np.cumsum(first) - 1]
            units = row * per_window + units % per_window
        return self.numbers[np.minimum(units, self.numbers.size - 1)]

    def of_words(self, words: Words) -> npt.NDArray[np.uint32]:
        """Numbers of the units that make up some words."""
        per_word = WORD // self.granule
        return self.at((words[:, None] * per_word + np.arange(per_word)).reshape(-1))

    def words(self, selected: _Selection) -> Iterator[Words]:
        """Words that selected blocks write, some at a time; of the windows alone."""
        per_word = WORD // self.granule
        for start in range(0, self.numbers.size, _PIECE):
            written = np.flatnonzero(selected.has(self.numbers[start : start + _PIECE])) + start
            words = _each_once(written // per_word)
            yield words if self.windows is None else self.windows[words // _WINDOW] * _WINDOW + words % _WINDOW


@dataclass(frozen=True)
class _Owners:
    """The block, or thread, of a launch that writes each unit of its buffers."""

    atomic: bool
    """Several blocks may add to one unit; the last is named."""
    reread: frozenset[int]
    """Written buffers that the kernel may also load from."""
    units: dict[int, _Units]
    """By buffer. Of a whole buffer they may be a view of the device's memory, valid until the next launch."""


@dataclass
class _Step:
    """A launch and the blocks of it that will run."""

    step: Launch
    selected: _Selection | None = None
    """None for all."""

    @property
    def count(self) -> int:
        """Blocks that run."""
        return math.prod(self.step.grid) if self.selected is None else self.selected.blocks.size


class _Cost(NamedTuple):
    """Work and memory of one block, on average."""

    instructions: float
    """Thread instructions."""
    stored_bytes: float


class _Tried(NamedTuple):
    """Blocks of a launch that were tried."""

    selected: _Selection
    needs: _Demand
    """What they read of earlier launches."""
    outcome: _Cost | _TooDear


class _Bits:
    """A set of numbers below ``count``, a bit for each; the host's memory is taken only around those that are there."""

    def __init__(self, count: int) -> None:
        self._bits = np.zeros((-(-count // _WINDOW), _WINDOW // 8), np.uint8)

    def add(self, numbers: Indices) -> None:
        """Add numbers, which ascend."""
        for start in range(0, numbers.size, _PIECE_WORDS >> 4):
            part = numbers[start : start + (_PIECE_WORDS >> 4)]
            rows = part // _WINDOW
            first = np.append(True, rows[1:] != rows[:-1])
            there = np.zeros((np.count_nonzero(first), _WINDOW), np.bool_)
            there[np.cumsum(first) - 1, part % _WINDOW] = True
            self._bits[rows[first]] |= np.packbits(there, axis=1, bitorder="little")

    def join(self, other: _Bits) -> None:
        """Add the numbers of another set of as many."""
        self._bits |= other._bits

    @property
    def nbytes(self) -> int:
        return self._bits.nbytes

    def windows(self) -> Indices:
        """Numbers divided by :data:`_WINDOW`, each once."""
        return np.flatnonzero(self._bits.view(np.uint64).any(axis=1))

    def pieces(self) -> Iterator[Indices]:
        """The numbers, ascending, some at a time."""
        windows = self.windows()
        for start in range(0, windows.size, _PIECE_WORDS // _WINDOW):
            rows = windows[start : start + _PIECE_WORDS // _WINDOW]
            at, within = np.nonzero(np.unpackbits(self._bits[rows], axis=1, bitorder="little"))
            yield rows[at] * _WINDOW + within


class _Demand:
    """The buffers' words that must hold their final values before a step. ``sizes``: bytes by buffer."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._sizes = sizes
        self._words: dict[int, _Bits] = {}
        self.complete: set[int] = set()
        """Buffers that are needed completely."""

    def add(self, buffer: int, words: Words) -> None:
        if not words.size:
            return
        if buffer not in self._words:
            self._words[buffer] = _Bits(-(-self._sizes[buffer] // WORD))
        self._words[buffer].add(words)

    def join(self, other: _Demand) -> None:
        """Add what another demand of the same buffers has."""
        self.complete |= other.complete
        for buffer, words in other._words.items():
            self._words.setdefault(buffer, _Bits(-(-self._sizes[buffer] // WORD))).join(words)

    @property
    def nbytes(self) -> int:
        return sum(words.nbytes for words in self._words.values())

    def pieces(self, buffer: int) -> Iterator[Words]:
        """The words of a buffer, some at a time."""
        return self._words[buffer].pieces() if buffer in self._words else iter(())

    def windows(self, buffer: int) -> Indices:
        """The windows of a buffer that have some."""
        return self._words[buffer].windows() if buffer in self._words else np.zeros(0, np.int64)

    def touches(self, buffer: int) -> bool:
        return buffer in self.complete or buffer in self._words


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
        self._nearby = execution.request.nearby
        self._plan = execution.request.plan
        self._buffers = {buffer.id: buffer for buffer in self._plan.buffers}
        self._elements: dict[int, Indices] = {}
        """The affordable ones of the requested elements, by output."""
        self._states: dict[int, _States] = {}
        """By output."""
        self._windows: dict[int, Indices] = {}
        """By large buffer that holds outputs: its windows with the elements."""
        self._slice_instructions = 0
        self._single = False
        """Whether single threads of launches that write outputs run too."""
        self._may_try_fewer = False
        """Whether more than one element is tried."""
        self._instructions = 0.0
        """Thread instructions of the launches, from the last one back, whose blocks are selected."""
        self._tried: dict[int, _Tried] = {}
        """By position of a launch: its blocks that were tried last."""
        self._found: dict[int, tuple[dict[int, Indices], bool, _Owners]] = {}
        """By position of a launch: the windows of large buffers that were looked at, whether for single threads, and
        what writes there."""

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
        most = longest = max((len(indices) for indices in self._requested.values()), default=0)
        while True:
            self._elements = {output: np.array(ids[:most], np.int64) for output, ids in self._requested.items()}
            self._may_try_fewer = most > 1
            try:
                return self._backwards()
            except LaunchFailed as error:
                if _is_timeout(error):
                    most_work = self._execution.request.max_thread_instructions or 0
                    raise NotPartial(f"to try its blocks takes over {most_work:.2g} thread instructions") from error
                raise NotPartial(f"while it was found out which blocks write what: {error}") from error
            except _TooDear as error:
                if most > 1:
                    most = max(1, min(most // 2, int(most / error.times)))
                elif not self._single:
                    self._single, most = True, longest
                else:
                    raise NotPartial(f"the blocks behind one element of the output {error}") from error

    def _backwards(self) -> dict[int, _Step]:
        """The launches behind the elements.

        Raises:
            _TooDear: they take too long, or store too much.
        """
        demand = self._no_demand()
        for position, output in enumerate(self._plan.outputs):
            size = output.dtype.itemsize
            first = output.offset_bytes + self._elements.get(position, np.zeros(0, np.int64)) * size
            words = np.unique(np.concatenate([first // WORD, (first + size - 1) // WORD]))
            demand.add(output.buffer, _with_sectors(words, output) if self._single else words)
        self._windows = {
            output.buffer: demand.windows(output.buffer)
            for output in self._plan.outputs
            if self._is_large(output.buffer)
        }
        self._states = {position: self._states_of(output) for position, output in enumerate(self._plan.outputs)}
        steps: dict[int, _Step] = {}
        self._instructions = stored = 0.0
        for position in reversed(range(len(self._plan.steps))):
            step = self._plan.steps[position]
            if isinstance(step, Fill):
                self._fill(step)
            elif isinstance(step, Launch) and (ran := self._launch(position, step, demand)) is not None:
                steps[position], cost = ran
                self._instructions += steps[position].count * cost.instructions
                stored += steps[position].count * cost.stored_bytes
                if self._instructions > RUN_INSTRUCTIONS:
                    raise _TooDear("take", self._instructions, RUN_INSTRUCTIONS, "thread instructions")
                if stored > MOST_BYTES:
                    raise _TooDear("store", stored, MOST_BYTES, "bytes, which this machine would have to hold")
        return steps

    def _is_large(self, buffer: int) -> bool:
        return self._buffers[buffer].nbytes > (NEARBY_DENSE_BYTES if self._nearby else DENSE_BYTES)

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

    def _launch(self, position: int, step: Launch, demand: _Demand) -> tuple[_Step, _Cost] | None:
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
            threads = self._has_single_threads(step, demand.complete if self._single else outputs | demand.complete)
            owners = self._owners_near(position, step, written, demand, threads=threads)
        except (NotSliceable, UnsupportedInstruction) as error:
            return self._complete_launch(step, demand, earlier, str(error))
        selected = self._needed_threads(step, demand, owners) if threads else self._needed(step, demand, owners)
        self._mark(demand, owners, selected)
        if not selected.blocks.size:
            return None
        for buffer in earlier & owners.units.keys():
            # A block may add to what is there: everything that it writes must have been right before.
            for words in owners.units[buffer].words(selected):
                demand.add(buffer, words)
        foreign = {
            buffer: replace(units, numbers=units.numbers.copy())
            for buffer, units in owners.units.items()
            if buffer in owners.reread and units.windows is None
        }
        reads: dict[int, list[tuple[Sequence[int], Sectors]]] = {b: [] for b in owners.reread - foreign.keys()}
        several = None if earlier or owners.reread else _MEASURED
        if owners.reread:
            cost = self._probe(step, selected, demand, earlier, several, foreign, reads)
        else:
            cost = self._probe_once(position, step, selected, demand, earlier, several)
        extents = {extent.buffer: extent for extent in self._execution.extents()}
        if any(reads.values()):
            windows = {
                buffer: np.unique(np.concatenate([_windows_of(sectors, extents[buffer]) for _, sectors in of_blocks]))
                for buffer, of_blocks in reads.items()
                if of_blocks
            }
            others = self._owners(step, written, windows=windows).units
            for buffer, of_blocks in reads.items():
                for together, sectors in of_blocks if buffer in others else ():
                    for words in _words_of(sectors, extents[buffer]):
                        _refuse_foreign(step, together, others[buffer].of_words(words))
        return _Step(step, selected), cost

    def _has_single_threads(self, step: Launch, complete: set[int]) -> bool:
        """Whether single threads of a launch may run: each does what it does among the others, and what they write is
        not read, and in none of some buffers: outputs, whose other elements are compared too, or needed completely.

        Raises:
            NotSliceable: where they write depends on what the kernel computes.
        """
        entry = self._execution.build.entry(step.expression)
        slices = self._machine.writers(entry.name)
        return (
            slices.alone
            and not entry.static_shared_bytes + step.dynamic_shared_bytes
            and self._execution.cluster(step) == (1, 1, 1)
            and math.prod(step.grid) * math.prod(step.block) <= _MOST_NUMBERS
            and self._buffers_at(step, slices.stores_through).isdisjoint(
                complete | self._buffers_at(step, slices.reads_through)
            )
        )

    def _buffers_at(self, step: Launch, offsets: frozenset[int]) -> set[int]:
        """Buffers that a launch has as its parameters at some offsets."""
        params = self._execution.build.entry(step.expression).params
        return {
            arg.buffer
            for param, arg in zip(params, step.args, strict=True)
            if param.offset in offsets and isinstance(arg, TensorArg | TensorMapArg)
        }

    def _owners_near(
        self, position: int, step: Launch, written: set[int], demand: _Demand, *, threads: bool
    ) -> _Owners:
        """The block, or thread, that writes each unit; of large buffers in the demand and at the requested elements.

        Raises:
            NotSliceable: it depends on what the kernel computes.
            _TooDear: that is too much of them.
        """
        none = np.zeros(0, np.int64)
        windows = {
            buffer: np.union1d(demand.windows(buffer), self._windows.get(buffer, none))
            for buffer in written
            if self._is_large(buffer)
        }
        nbytes = WINDOW_BYTES * sum(map(len, windows.values()))
        if nbytes > MOST_BYTES:
            raise _TooDear(
                "read", nbytes, MOST_BYTES, "bytes of earlier results, which this machine would have to hold"
            )
        if position in self._found:
            looked_at, by_threads, owners = self._found[position]
            if by_threads == threads and all(
                np.isin(windows[buffer], looked_at[buffer], assume_unique=True).all() for buffer in windows
            ):
                return owners
        if self._nearby and not threads and windows.keys() == written:
            blocks = self._blocks_near(step, windows)
            if blocks.size < math.prod(step.grid) // 4:
                owners = self._owners(step, written, blocks.tolist(), windows=windows)
                if not owners.atomic and self._complete(owners, windows):
                    return owners
        owners = self._owners(step, written, windows=windows, threads=threads)
        if windows.keys() == written and sum(units.numbers.nbytes for units in owners.units.values()) <= _KEPT_BYTES:
            self._found[position] = windows, threads, owners
        return owners

    def _blocks_near(self, step: Launch, windows: Mapping[int, Indices]) -> Indices:
        """Blocks that lie in the grid where the windows lie in their buffers, with all blocks of the same row."""
        count = math.prod(step.grid)
        row = step.grid[0] if step.grid[0] < count else 1
        near = [np.zeros(0, np.int64)]
        for buffer, of_buffer in windows.items():
            per_byte = count / self._buffers[buffer].nbytes
            first = np.floor(of_buffer * WINDOW_BYTES * per_byte / row).astype(np.int64) - 1
            end = np.ceil((of_buffer + 1) * WINDOW_BYTES * per_byte / row).astype(np.int64) + 1
            most = int((end - first).max(initial=0))
            rows = np.unique(np.minimum(first[:, None] + np.arange(most), end[:, None] - 1))
            near.append((rows[:, None] * row + np.arange(row)).reshape(-1))
        blocks = np.unique(np.concatenate(near))
        return blocks[(blocks >= 0) & (blocks < count)]

    def _complete(self, owners: _Owners, windows: Mapping[int, Indices]) -> bool:
        """Whether the writer of every unit of some windows is known."""
        for buffer, of_buffer in windows.items():
            if not of_buffer.size:
                continue
            if buffer not in owners.units:
                return False
            units = owners.units[buffer]
            beyond = max((int(of_buffer[-1]) + 1) * WINDOW_BYTES - self._buffers[buffer].nbytes, 0)
            if not units.numbers[: units.numbers.size - -(-beyond // units.granule)].all():
                return False
        return True

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
        threads: bool = False,
    ) -> _Owners:
        """The block, of some or of all, or thread that writes each unit; of large buffers those in some ``windows``.

        Raises:
            NotSliceable: it depends on what the kernel computes.
        """
        entry = self._execution.build.entry(step.expression)
        if self._execution.waits(step):
            raise NotSliceable("its blocks may wait for one another")
        slices = self._machine.writers(entry.name, threads=threads)
        if any(self._buffers[b].kind == "workspace" for b in self._buffers_at(step, slices.loads_through)):
            raise NotSliceable("where it writes depends on what earlier launches computed")
        if slices.answers:
            raise NotSliceable("the result of an atomic tells a block which others ran before")
        read = self._buffers_at(step, slices.reads_through)
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
                raise NotPartial(_search_too_dear())
            name = writer_entry(entry.name, plane, threads=threads)
            try:
                report = self._execution.run_blocks(step, ctas, entry=name, limit=limit)
            except LaunchFailed as error:
                if _is_timeout(error):
                    raise NotPartial(_search_too_dear()) from error
                raise
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
        return _Owners(slices.atomic, frozenset(read & units_of.keys()), units_of)

    def _needed_threads(self, step: Launch, demand: _Demand, owners: _Owners) -> _Selection:
        """The threads that write what is needed."""
        threads = math.prod(step.block)
        needed = _Bits(math.prod(step.grid) * threads)
        for numbers in _writers(demand, owners):
            needed.add(numbers)
        warps: list[Indices] = [np.zeros(0, np.int64)]
        lanes: list[npt.NDArray[np.uint32]] = [np.zeros(0, np.uint32)]
        for numbers in needed.pieces():
            block, thread = np.divmod(numbers, threads)
            warp = block * -(-threads // 32) + thread // 32
            first = np.flatnonzero(np.append(True, warp[1:] != warp[:-1]))
            bits = np.left_shift(np.uint32(1), (thread % 32).astype(np.uint32))
            warps.append(warp[first])
            lanes.append(np.bitwise_or.reduceat(bits, first))
        warp = np.concatenate(warps)
        block, within = np.divmod(warp, -(-threads // 32))
        blocks, at = np.unique(block, return_inverse=True)
        lanes_of = np.zeros((blocks.size, -(-threads // 32)), np.uint32)
        np.bitwise_or.at(lanes_of, (at, within), np.concatenate(lanes))
        return _Selection(blocks, lanes_of, threads)

    def _needed(self, step: Launch, demand: _Demand, owners: _Owners) -> _Selection:
        """The blocks that write what is needed."""
        all_blocks = np.arange(math.prod(step.grid))

        def among(owners: _Owners) -> Indices:
            if any(buffer in demand.complete and units.windows is not None for buffer, units in owners.units.items()):
                return all_blocks
            return _sorted(np.concatenate([np.zeros(0, np.int64), *_writers(demand, owners)]))

        def complete(blocks: Indices) -> Indices:
            """With the other blocks of their clusters."""
            units = self._execution.units_of(step, blocks)
            return np.sort(np.asarray(self._execution.blocks(step, units.tolist()), np.int64))

        blocks = complete(among(owners))
        if not owners.atomic or not blocks.size:
            return _Selection(blocks)
        for _ in range(MOST_OWNERS):
            others = np.delete(all_blocks, blocks)
            if not others.size:
                return _Selection(blocks)
            windows = {buffer: units.windows for buffer, units in owners.units.items() if units.windows is not None}
            more = among(self._owners(step, self._writable(step), others.tolist(), windows=windows))
            if not more.size:
                return _Selection(blocks)
            blocks = np.union1d(blocks, complete(more))
        raise NotPartial(f"more than {MOST_OWNERS} blocks add to one element of the result of {step.expression!r}")

    def _mark(self, demand: _Demand, owners: _Owners, selected: _Selection) -> None:
        """Mark the outputs' elements by whether the block, or thread, that writes them last will run."""
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
                written = (numbers > 0) & (states == _UNWRITTEN)
                states[written] = _NOT_RUN
                if not owners.atomic:
                    states[written & selected.has(numbers)] = _FINAL
            if owners.atomic:
                for words in demand.pieces(output.buffer):
                    added = (words * WORD - output.offset_bytes) // size
                    self._states[position].confirm(added[(added >= 0) & (added < output.nbytes // size)])

    def _complete_launch(self, step: Launch, demand: _Demand, earlier: set[int], reason: str) -> tuple[_Step, _Cost]:
        """All blocks of a launch with unknown writers; it needs everything that it may read."""
        count = math.prod(step.grid)
        if self._execution.waits(step):
            raise NotPartial(f"blocks of {step.expression!r} wait for one another, so that none can be run alone")
        refusal = NotPartial(f"{step.expression!r} takes too long to be run whole, and not in part: {reason}")
        try:
            cost = self._probe(step, _Selection(np.array([count // 2])), self._no_demand(), set())
        except _TooDear as error:
            raise refusal from error
        if cost.instructions * count > RUN_INSTRUCTIONS:
            raise refusal
        demand.complete |= earlier
        for position, output in enumerate(self._plan.outputs):
            if output.buffer in self._writable(step):
                # Whether it wrote an element is unknown; its value is final all the same.
                self._states[position].finish(0, output.nbytes // output.dtype.itemsize)
        return _Step(step), cost

    def _probe_once(
        self, position: int, step: Launch, selected: _Selection, demand: _Demand, earlier: set[int], most: int | None
    ) -> _Cost:
        """The result of :meth:`_probe`, from the last time where the same blocks were tried: where a network joins the
        images of a batch, fewer elements need as many blocks of its first layers.

        Raises:
            _TooDear: they take too long.
        """
        tried = self._tried.get(position)
        if tried is None or not tried.selected.is_same(selected):
            needs = self._no_demand()
            try:
                cost = self._probe(step, selected, needs, earlier, most)
            except _TooDear as error:
                if not error.with_others:
                    self._tried[position] = _Tried(selected, needs, error)
                raise
            tried = _Tried(selected, needs, cost)
            self._tried.pop(position, None)
            if sum(other.needs.nbytes for other in self._tried.values()) + needs.nbytes <= _TRIED_BYTES:
                self._tried[position] = tried
        if isinstance(tried.outcome, _TooDear):
            raise tried.outcome
        demand.join(tried.needs)
        return tried.outcome

    def _probe(
        self,
        step: Launch,
        selected: _Selection,
        demand: _Demand,
        earlier: set[int],
        most: int | None = None,
        foreign: Mapping[int, _Units] | None = None,
        reads: Mapping[int, list[tuple[Sequence[int], Sectors]]] | None = None,
    ) -> _Cost:
        """Run blocks on arbitrary memory; add what they read of ``earlier`` buffers to the demand.

        Args:
            step: The launch.
            selected: Its blocks.
            demand: What the blocks read is added to it.
            earlier: Buffers that earlier launches may have written.
            most: Run only so many of them, spread over all.
            foreign: By buffer, the block that writes each unit.
            reads: Takes, by buffer, what the blocks of each cluster read.

        Returns:
            What one block takes, on average.

        Raises:
            NotPartial: a block reads a unit that another block of the launch writes, by ``foreign``. It could tell by
                that how many of them run.
            _TooDear: they take too long.
        """
        execution = self._execution
        foreign, reads = foreign or {}, reads or {}
        traced = earlier | foreign.keys() | reads.keys()
        extents = [extent for extent in execution.extents() if extent.buffer in traced]
        cache = CacheModel(SECTOR_BYTES, _TRACE_BYTES, footprint_only=True) if extents else None
        if cache is not None:
            keep_footprint(cache, extents)
        units, lanes_of = execution.units_of(step, selected.blocks), selected.lanes
        if most is not None and most < units.size:
            # Spread unevenly: of blocks at the ends of rows or images perhaps only a few threads run.
            some = np.unique((np.arange(1, most + 1) * _GOLDEN % 1 * units.size).astype(np.int64))
            units, lanes_of = units[some], None if lanes_of is None else lanes_of[some]
        cost, ran, start, batch = _Cost(0, 0), 0, 0, 1
        while start < units.size:
            part = units[start : start + batch]
            together = execution.blocks(step, part.tolist())
            if cache is not None:
                cache.reset()
            lanes = None if lanes_of is None else lanes_of[start : start + part.size]
            before = execution.work
            report = execution.run_blocks(step, together, cache=cache, strict=False, lanes=lanes)
            cost = _Cost(cost.instructions + execution.work - before, cost.stored_bytes + _stored_bytes(report))
            start, ran = start + part.size, ran + len(together)
            expected = cost.instructions / start * units.size
            if cost.instructions > RUN_INSTRUCTIONS or expected > 2 * RUN_INSTRUCTIONS:
                raise _TooDear("take", expected, RUN_INSTRUCTIONS, "thread instructions")
            total = self._instructions + expected
            if self._may_try_fewer and total > 1.1 * RUN_INSTRUCTIONS and 16 * start >= units.size:
                raise _TooDear("take", total, RUN_INSTRUCTIONS, "thread instructions", with_others=True)
            for extent, sectors in () if cache is None else _read_of(cache, extents):
                if extent.buffer in earlier:
                    for words in _words_of(sectors, extent, cache):
                        demand.add(extent.buffer, words)
                if extent.buffer in foreign:
                    for words in _words_of(sectors, extent):
                        _refuse_foreign(step, together, foreign[extent.buffer].of_words(words))
                if extent.buffer in reads and sectors.size:
                    reads[extent.buffer].append((together, sectors))
            if not foreign and not reads:
                # What each of them reads does not matter. A batch is no large part of the limit.
                batch = min(max(int(RUN_INSTRUCTIONS / 64 * start / max(cost.instructions, 1)), 1), _MOST_TRACED)
        return _Cost(cost.instructions / max(ran, 1), cost.stored_bytes / max(ran, 1))

    # Values

    def _values(self, steps: Mapping[int, _Step]) -> tuple[OutputPart, ...]:
        for position, step in enumerate(self._plan.steps):
            if isinstance(step, Fill):
                self._execution.step(step)
            elif isinstance(step, Launch) and position in steps:
                selected = steps[position].selected
                try:
                    if selected is None:
                        self._execution.run_blocks(step, None)
                    else:
                        self._execution.run_blocks(step, selected.blocks.tolist(), lanes=selected.lanes)
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


def _is_timeout(error: LaunchFailed) -> bool:
    return any(fault.kind == "timeout" for fault in error.faults)


def _search_too_dear() -> str:
    return f"finding out which blocks write what takes over {MAP_INSTRUCTIONS:.2g} thread instructions"


def _read_of(cache: CacheModel, extents: Sequence[Extent]) -> list[tuple[Extent, Sectors]]:
    """The sectors of each buffer that were read."""
    read = cache.footprint().read
    return [(extent, sectors_of(read, extent)) for extent in extents]


def _each_once(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers without those that are equal to the one before."""
    once: npt.NDArray[Any] = numbers[np.append(True, numbers[1:] != numbers[:-1])[: numbers.size]]
    return once


def _sorted(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers ascending, each once; of a million ten times as fast as ``np.unique``, which makes a table of them."""
    return _each_once(np.sort(numbers) if (numbers[1:] < numbers[:-1]).any() else numbers)


def _writers(demand: _Demand, owners: _Owners) -> Iterator[Indices]:
    """Numbers of the blocks, or threads, that write what is needed: each part ascending, and some in several parts."""
    for buffer, units in owners.units.items():
        if buffer in demand.complete:
            pieces = (units.numbers[start : start + _PIECE] for start in range(0, units.numbers.size, _PIECE))
        else:
            pieces = (units.of_words(words) for words in demand.pieces(buffer))
        for numbers in pieces:
            ascending = _sorted(_each_once(numbers)).astype(np.int64)
            yield ascending[ascending > 0] - 1


def _words_of(sectors: Sectors, extent: Extent, cache: CacheModel | None = None) -> Iterator[Words]:
    """The words of a buffer that are in some of its sectors, some at a time; of those in a cache, the words read."""
    per_sector, first = SECTOR_BYTES // WORD, extent.address // WORD
    for start in range(0, sectors.words.size, _PIECE_WORDS >> 9):
        end = start + (_PIECE_WORDS >> 9)
        inside = Sectors(sectors.words[start:end], sectors.bits[start:end]).numbers()
        if cache is None:
            words = (inside[:, None] * per_sector + np.arange(per_sector)).reshape(-1) - first
        else:
            words = cache.words_of(inside) - first
        yield words[words < -(-extent.nbytes // WORD)]


def _with_sectors(words: Words, output: Output) -> Words:
    """Words of an output with the others of their sectors, which what reads one of them in a later launch needs too."""
    per_sector = SECTOR_BYTES // WORD
    complete = (np.unique(words // per_sector)[:, None] * per_sector + np.arange(per_sector)).reshape(-1)
    first, end = output.offset_bytes // WORD, (output.offset_bytes + output.nbytes) // WORD
    return complete[(complete >= first) & (complete < end)]


def _windows_of(sectors: Sectors, extent: Extent) -> Indices:
    """The windows of a buffer that some of its sectors are in."""
    return np.concatenate([np.zeros(0, np.int64), *(_each_once(w // _WINDOW) for w in _words_of(sectors, extent))])


def _stored_bytes(report: LaunchReport) -> int:
    """Bytes that threads stored to global memory."""
    return sum(
        op.threads * op.bytes_per_thread for op in report.memory if op.space == "global" and op.access == "store"
    )


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
