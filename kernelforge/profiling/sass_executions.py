"""Estimates how often warps executed each basic block of machine code, from counts of PTX lines.

The emulated device counts how often warps execute each line of PTX; line tables say which line a machine instruction
comes from. Some instructions correspond one to one (a load, a shuffle, a product): of all copies that ptxas made of
such a line, the executions add up to the line's count. As many warps enter a block as leave it.
Both together are a linear program. What it cannot meet it misses by as little as possible, relative to the counts,
since ptxas may have moved some lines into or out of a loop; of answers that fit equally well it takes the one with the
fewest instructions, because that is what the compiler's unrolled loops and rare paths are for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kernelforge.profiling.linear_program import Array, solve
from kernelforge.profiling.sass_code import EdgeKind, SassFunction, SassInstruction, reachable

DIGITS = 6
"""Of the largest number of executions, and as many places of all."""
MAX_ROWS = 400
"""Constraints of the largest program that is solved; a block or a kind of line is one."""

_MEMORY, _SPECIAL, _ARITHMETIC, _OTHER = 8.0, 4.0, 2.0, 0.05
"""Weights of lines by what they are: ptxas neither merges nor computes again what accesses memory."""
_NEVER = 0.005
"""Weight of lines without executions that are none of these: ptxas may compute ahead of a branch."""
_MOST = 16.0
"""Weight of all lines together that say the same."""
_PREDICATED = 0.5
_BEYOND = 0.01
"""Weight of executions beyond a line's count where some copies have a predicate: lanes that branched in the PTX may
pass such an instruction without executing it."""
_MERGED, _HOISTED = 0.1, 0.02
"""Weights of executions short of a line's count: ptxas makes one access of several, and takes parts of a division out
of a loop, but repeats neither."""
_PARTED = 0.05
_DIVERGENT = 1.0
_FEWEST = 0.01
_ANY = 1e-3
"""Least rounds of a loop that a constraint can hold."""

_FLOAT = frozenset({"FADD", "FMUL", "FFMA"})
_PAIRS = frozenset({"FADD2", "FMUL2", "FFMA2"})
_DOUBLE = frozenset({"DADD", "DMUL", "DFMA"})
_HALF = frozenset({"HADD2", "HMUL2", "HFMA2"})
_INTEGER = frozenset({"IADD3", "VIADD", "IMAD", "LOP3", "LEA", "SHF", "ISETP", "UIADD3", "UISETP", "BRA"})
_OVERHEAD = ("BRA", "ISETP", "UISETP")
"""Instructions of which an unrolled loop has fewer."""
_ONE_TO_ONE: Mapping[str, tuple[frozenset[str], float]] = {
    **dict.fromkeys(("ld", "ldu"), (frozenset({"LD", "LDG", "LDS", "LDL"}), _MEMORY)),
    "st": (frozenset({"ST", "STG", "STS", "STL"}), _MEMORY),
    **dict.fromkeys(("atom", "red"), (frozenset({"ATOM", "ATOMG", "ATOMS", "RED", "REDG"}), _MEMORY)),
    "ldmatrix": (frozenset({"LDSM"}), _MEMORY),
    "stmatrix": (frozenset({"STSM"}), _MEMORY),
    "cp": (frozenset({"LDGSTS"}), _MEMORY),
    **dict.fromkeys(("bar", "barrier"), (frozenset({"BAR"}), _MEMORY)),
    "shfl": (frozenset({"SHFL"}), _MEMORY),
    "redux": (frozenset({"REDUX", "CREDUX"}), _MEMORY),
    "mma": (frozenset({"BMMA", "HMMA", "IMMA", "DMMA", "QMMA", "OMMA"}), _MEMORY),
    "vote": (frozenset({"VOTE", "VOTEU"}), _SPECIAL),
    "match": (frozenset({"MATCH"}), _SPECIAL),
    **dict.fromkeys(
        ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div"), (frozenset({"MUFU"}), _SPECIAL)
    ),
}
"""PTX opcodes and the machine instructions of which each makes one."""
_DIVISION = frozenset({"MUFU", "CALL"})
"""Of an integer division, of 32 and of 64 bits."""
_BY_TYPE: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "f32": (frozenset({"add", "sub", "mul", "fma", "mad"}), _FLOAT),
    "f32x2": (frozenset({"add", "sub", "mul", "fma"}), _PAIRS),
    "f64": (frozenset({"add", "sub", "mul", "fma", "mad"}), _DOUBLE),
    **dict.fromkeys(("f16x2", "bf16x2"), (frozenset({"add", "sub", "mul", "fma"}), _HALF)),
}
_PTX_LABEL = re.compile(r"\s*([$\w]+):")
_PTX_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+([$\w]+)\s*;")
_PTX = re.compile(r"\s*(?:\{\s*)?(?:@!?%\w+\s+)?([a-z]\w*)((?:(?:\.|::)\w+)*)")


@dataclass(frozen=True)
class _Measure:
    """Blocks, one for each copy of a line, whose executions add up to a count."""

    blocks: tuple[int, ...]
    count: float
    beyond: float
    """Weight of more executions than that, over the weight of the measure."""
    short: float
    """The same of fewer."""
    rounds: float = math.inf
    """Of the innermost loop of the PTX that the line is in: rounds for each time that it is entered, if known."""


def block_executions(
    function: SassFunction, ptx: Sequence[str], counts: Mapping[int, float], warps: float
) -> tuple[float, ...] | None:
    """Estimated executions of each block of a kernel by warps.

    Args:
        function: The kernel's machine code.
        ptx: Lines of the PTX that it was compiled from.
        counts: Executions by warps of each line of the PTX, from 1; lines without any may be missing.
        warps: Warps that were launched.

    Returns:
        One number per block, or None where the code has no line table or is too large to solve.
    """
    if len(function.blocks) > MAX_ROWS:  # the rows below take time and memory by the square of the blocks
        return None
    if warps <= 0 or not any(instruction.ptx_line for instruction in function.instructions):
        return None
    program = _Program(function, _measures(function, ptx, counts), warps)
    return program.solve()


def loops(function: SassFunction) -> list[frozenset[int]]:
    """Loops without loops inside them: the blocks of each, by the blocks between a branch back and its target."""
    bodies: list[frozenset[int]] = []
    before: dict[int, list[int]] = {}
    for index, block in enumerate(function.blocks):
        for target in block.successors:
            before.setdefault(target, []).append(index)
    for index, block in enumerate(function.blocks):
        for edge in block.edges:
            if edge.kind != "taken" or edge.target > index:
                continue
            body, work = {edge.target, index}, [index]
            while work:
                current = work.pop()
                if current != edge.target:
                    further = [source for source in before.get(current, ()) if source not in body]
                    body.update(further)
                    work += further
            bodies.append(frozenset(body))
    unique = set(bodies)
    return [loop for loop in unique if not any(other < loop for other in unique)]


def loop_rounds(ptx: Sequence[str], counts: Mapping[int, float]) -> dict[int, float]:
    """Lines in loops of the PTX, and how often the innermost one is repeated each time that it is entered.

    A loop is entered from the line before its label, unless that is another branch; then nothing is known.
    """
    labels: dict[str, int] = {}
    ends: dict[int, int] = {}
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    previous, pending = 0, 0
    jumped = False
    for number, text in enumerate(ptx, 1):
        if label := _PTX_LABEL.match(text):
            labels[label[1]] = pending = number
            if not jumped:
                before[number] = previous
            continue
        instruction = _PTX.match(text)
        if instruction is None:
            continue
        if pending:
            after[pending], pending = number, 0
        previous, jumped = number, instruction[1] in ("bra", "ret", "exit") and "@" not in text
        target = _PTX_BRANCH.search(text)
        if target is not None and target[1] in labels:
            ends[labels[target[1]]] = number
    rounds: dict[int, float] = {}
    for start, end in sorted(ends.items(), key=lambda loop: loop[0] - loop[1]):
        entered = counts.get(before.get(start, 0), 0.0)
        average = counts.get(after.get(start, 0), 0.0) / entered if entered else math.inf
        rounds.update(dict.fromkeys(range(start, end + 1), average))
    return rounds


def _one_to_one(text: str) -> tuple[frozenset[str], float] | None:
    """Machine instructions of which a line of PTX makes one, and the weight of that."""
    match = _PTX.match(text)
    if match is None:
        return None
    opcode, modifiers = match[1], set(re.split(r"\.|::", match[2]))
    if opcode in ("div", "rem") and not modifiers & {"f32", "f64"}:
        return _DIVISION, _SPECIAL
    if opcode in _ONE_TO_ONE and not (opcode == "ld" and "param" in modifiers):
        return _ONE_TO_ONE[opcode]
    for kind, (opcodes, names) in _BY_TYPE.items():
        if kind in modifiers and opcode in opcodes:
            return names, _ARITHMETIC
    return None


def _measures(function: SassFunction, ptx: Sequence[str], counts: Mapping[int, float]) -> dict[_Measure, float]:
    """Counts that executions have to meet, by their weights; without subroutines, whose lines are those of callers."""
    copies: dict[int, list[tuple[int, SassInstruction]]] = {}
    for index in sorted(reachable(function, [0])):
        for instruction in function.instructions_of(function.blocks[index]):
            copies.setdefault(instruction.ptx_line, []).append((index, instruction))
    measures: dict[_Measure, float] = {}
    rounds, bodies = loop_rounds(ptx, counts), loops(function)

    def add(copied: Sequence[tuple[int, SassInstruction]], line: int, weight: float, short: float) -> None:
        blocks = tuple(sorted(block for block, _ in copied))
        beyond = 1.0
        if any(instruction.predicated for _, instruction in copied):
            beyond, short, weight = _BEYOND, 1.0, weight * _PREDICATED
        total = _Measure(blocks, counts.get(line, 0.0), beyond, short, rounds.get(line, math.inf))
        for measure in _split(total, bodies) if weight >= _ARITHMETIC else [total]:
            measures[measure] = measures.get(measure, 0.0) + weight

    for line, places in copies.items():
        if not 0 < line <= len(ptx):
            continue
        names, weight = _one_to_one(ptx[line - 1]) or (frozenset(), 0.0)
        if one_to_one := [copy for copy in places if copy[1].name in names]:
            short = _HOISTED if names == _DIVISION else _MERGED if weight == _MEMORY else 1.0
            add(one_to_one, line, weight, short)
            continue
        likely = [copy for copy in places if copy[1].name in _INTEGER and copy[1].modifier != "HI"]
        for opcode, form in sorted({(instruction.opcode, instruction.form) for _, instruction in likely}):
            weight = _OTHER if counts.get(line) else _NEVER
            short = 0.0 if opcode.startswith(_OVERHEAD) else 1.0
            add([copy for copy in likely if (copy[1].opcode, copy[1].form) == (opcode, form)], line, weight, short)
    return measures


def _split(measure: _Measure, bodies: Sequence[frozenset[int]]) -> list[_Measure]:
    """A measure of a loop that is unrolled: its rounds in the largest copy, and those that remain for the others.

    That is known where all warps make as many rounds, so that their average is a whole number.
    """
    copies = {body: sum(block in body for block in measure.blocks) for body in bodies}
    largest = max(copies, key=lambda body: copies[body], default=frozenset[int]())
    number = copies.get(largest, 0)
    if not 1 < number < len(measure.blocks) or measure.rounds % 1 or math.isinf(measure.rounds):
        return [measure]
    share = measure.rounds // number * number / measure.rounds if measure.rounds else 1.0
    inside = tuple(block for block in measure.blocks if block in largest)
    outside = tuple(block for block in measure.blocks if block not in largest)
    return [
        replace(measure, blocks=inside, count=measure.count * share),
        replace(measure, blocks=outside, count=measure.count * (1 - share)),
    ]


@dataclass
class _Program:
    """The linear program: a variable for each edge's flow, and two for how far each measure is missed."""

    function: SassFunction
    measures: Mapping[_Measure, float]
    warps: float
    flows: list[tuple[int, int, EdgeKind]] = field(init=False)
    entered: dict[int, list[int]] = field(init=False)
    """By block: flows that enter it."""
    callers: dict[int, list[int]] = field(init=False)
    """By first block of a subroutine: blocks that call it."""
    live: list[int] = field(init=False)
    executions: dict[int, tuple[Array, float]] = field(init=False)
    """By block: its executions as a sum of flows and a constant, both per warp."""

    def __post_init__(self) -> None:
        blocks = self.function.blocks
        calls = [block.call for block in blocks if block.call is not None]
        self.live = sorted(reachable(self.function, [0, *calls]))
        self.flows = [(index, edge.target, edge.kind) for index in self.live for edge in blocks[index].edges]
        self.entered, self.callers = {}, {}
        for number, (_, target, _) in enumerate(self.flows):
            self.entered.setdefault(target, []).append(number)
        for index in self.live:
            call = blocks[index].call
            if call is not None:
                self.callers.setdefault(call, []).append(index)
        self.executions = {index: self._executions(index) for index in self.live}

    def solve(self) -> tuple[float, ...] | None:
        """Executions of all blocks; those that nothing reaches have none."""
        measures = list(self.measures.items())
        constraints = [*self._flow_constraints()]
        bounds = [*self._bounds()]
        parting = [index for index in self.live if self.function.blocks[index].may_part and not self._ends(index)]
        width = len(self.flows)
        missed, parted = width, width + 2 * len(measures)
        slacks = parted + len(parting)
        if len(measures) + len(constraints) + len(bounds) > MAX_ROWS:
            return None
        count = slacks + len(bounds)
        rows: list[Array] = []
        values: list[float] = []
        cost = np.zeros(count)
        total = sum(len(measure.blocks) * measure.count for measure, _ in measures) / self.warps
        for index in self.live:
            block = self.function.blocks[index]
            into, _ = self.executions[index]
            cost[:width] += _FEWEST * (block.end - block.first) / max(total, 1.0) * into
        for number, (_, _, kind) in enumerate(self.flows):
            cost[number] += _DIVERGENT if kind == "divergent" else 0.0
        busiest = self._busiest()
        for number, (measure, weight) in enumerate(measures):
            row, constant = np.zeros(count), 0.0
            for index in measure.blocks:
                into, offset = self.executions[index]
                row[:width] += into
                constant += offset
            row[missed + 2 * number], row[missed + 2 * number + 1] = 1.0, -1.0
            rows.append(row)
            values.append(measure.count / self.warps - constant)
            weight = min(weight, _MOST)
            cost[missed + 2 * number] = weight * measure.short / (measure.count / self.warps + 0.01)
            # What has a predicate is passed as often as its blocks run; what is neither an access nor arithmetic may be
            # computed again as often.
            fixed = weight >= _ARITHMETIC and measure.beyond == 1.0
            least = 0.0 if fixed else max(busiest.get(index, 0.0) for index in measure.blocks)
            cost[missed + 2 * number + 1] = weight * measure.beyond / (max(measure.count, least) / self.warps + 0.01)
        cost[parted:slacks] = _PARTED
        for index, coefficients, value in constraints:
            row = np.zeros(count)
            row[:width] = coefficients
            if index in parting:
                row[parted + parting.index(index)] = -1.0
            rows.append(row)
            values.append(value)
        for number, (coefficients, value) in enumerate(bounds):
            row = np.zeros(count)
            row[:width] = coefficients
            row[slacks + number] = 1.0
            rows.append(row)
            values.append(value)
        solution = solve(cost, np.array(rows), np.array(values))
        if solution is None:
            return None
        executions = [0.0] * len(self.function.blocks)
        for index in self.live:
            into, offset = self.executions[index]
            executions[index] = self.warps * max(float(into @ solution[:width]) + offset, 0.0)
        # Beyond the solver's tolerance are digits by chance, which must not decide what of equals comes first.
        digits = DIGITS - math.ceil(math.log10(max(*executions, 1.0)))
        return tuple(round(count, digits) for count in executions)

    def _busiest(self) -> dict[int, float]:
        """Blocks, and the largest count of an access or of arithmetic without a predicate in each, by its copies."""
        largest: dict[int, float] = {}
        for measure, weight in self.measures.items():
            if weight >= _ARITHMETIC and measure.beyond == 1.0:
                for index in measure.blocks:
                    largest[index] = max(largest.get(index, 0.0), measure.count / len(measure.blocks))
        return largest

    def _ends(self, index: int) -> bool:
        return self.function.blocks[index].leaves

    def _executions(self, index: int) -> tuple[Array, float]:
        into = np.zeros(len(self.flows))
        constant = 0.0
        work, seen = [index], set()
        while work:
            current = work.pop()
            if current in seen:
                continue
            seen.add(current)
            into[self.entered.get(current, [])] += 1.0
            constant += 1.0 if current == 0 else 0.0
            work += self.callers.get(current, [])
        return into, constant

    def _leaving(self, index: int) -> Array:
        """Flows that leave a block for one that follows it; where the lanes join later does not."""
        out = np.zeros(len(self.flows))
        for number, (source, _, kind) in enumerate(self.flows):
            if source == index and kind != "joined":
                out[number] = 1.0
        return out

    def _flow_constraints(self) -> Iterator[tuple[int, Array, float]]:
        """Equations: the block, coefficients of the flows, and their value."""
        for index in self.live:
            into, constant = self.executions[index]
            out = self._leaving(index)
            if out.any() and not self._ends(index):
                yield index, out - into, constant
            for number, (source, _, kind) in enumerate(self.flows):
                if source == index and kind == "joined":
                    joined = -into
                    joined[number] += 1.0
                    yield -1, joined, constant

    def _bounds(self) -> Iterator[tuple[Array, float]]:
        """Sums of flows that are at most a value."""
        for index in self.live:
            block = self.function.blocks[index]
            if not (block.may_part or block.leaves):
                continue
            into, constant = self.executions[index]
            for number in np.flatnonzero(self._leaving(index)).tolist():
                more = -into
                more[number] += 1.0
                yield more, constant
        for loop, most in self._remainders().items():
            entering, back = np.zeros(len(self.flows)), np.zeros(len(self.flows))
            for number, (source, target, _) in enumerate(self.flows):
                if target in loop:
                    (back if source in loop else entering)[number] = 1.0
            heads = {target for source, target, _ in self.flows if target in loop and source not in loop}
            inside = np.array([1.0 if target in heads else 0.0 for _, target, _ in self.flows])
            yield back * inside / most - entering, 1.0 if 0 in loop else 0.0

    def _remainders(self) -> dict[frozenset[int], float]:
        """Innermost loops, and how often each is repeated at most every time that it is entered.

        A copy of a loop of the PTX with several copies of its lines takes that many fewer rounds. Of copies of one loop
        that with the most copies of a line is unrolled the most; the others do what is left over, so they run less
        often than once for each of its copies. Any other loop is entered at all.
        """
        most = 64 * max([measure.count / self.warps + 1.0 for measure in self.measures], default=1.0)
        rounds: dict[frozenset[int], list[float]] = {loop: [] for loop in loops(self.function)}
        remaining: dict[frozenset[int], float] = {}
        for measure, weight in self.measures.items():
            if weight < _ARITHMETIC:
                continue
            copies = {loop: sum(block in loop for block in measure.blocks) for loop in rounds}
            largest = max(copies.values(), default=0)
            for loop, number in copies.items():
                if 0 < number < largest:
                    remaining[loop] = min(remaining.get(loop, math.inf), largest / number)
                elif number:
                    rounds[loop].append(measure.rounds / number)
        limits = {loop: min(max(rounds[loop], default=most), remaining.get(loop, most), most) for loop in rounds}
        return {loop: max(limit, _ANY) for loop, limit in limits.items()}
