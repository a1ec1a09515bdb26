"""Estimates how often warps executed each basic block of machine code, from counts of PTX lines.

The emulated device counts how often warps execute each line of PTX; line tables say which line a machine instruction
comes from. Some instructions correspond one to one (a load, a shuffle, a product): of all copies that ptxas made of
such a line, the executions add up to the line's count. As many warps enter a block as leave it.
Both together are a linear program. What it cannot meet it misses by as little as possible, relative to the counts,
since ptxas may have moved some lines into or out of a loop; of answers that fit equally well it takes the one with the
fewest instructions, because that is what the compiler's unrolled loops and rare paths are for.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from kernelforge.profiling.linear_program import Array, Reduced, solve
from kernelforge.profiling.sass_code import EdgeKind, NoEstimateError, SassFunction, SassInstruction, reachable

DIGITS = 7
"""Of the largest number of executions, and as many places of all."""
MAX_BLOCKS = 1000
MAX_ROWS = 800
"""Constraints of the largest program that is solved; a block or a kind of line is one."""

_MEMORY, _SPECIAL, _ARITHMETIC, _OTHER = 8.0, 4.0, 2.0, 0.05
"""Weights of lines by what they are: ptxas neither merges nor computes again what accesses memory."""
_NEVER = 0.005
"""Weight of lines without executions that are none of these: ptxas may compute ahead of a branch."""
_MOST, _MOST_OF_OTHERS = 16.0, 1.0
"""Weight of all lines together that say the same; that of lines which are no access or arithmetic: less than of one
that is."""
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
_KEPT = 0.9
"""Least share of the executions of stores, atomics, barriers, shuffles and products in the PTX that an estimate has:
ptxas removes none of them, and what it joins keeps the line of one."""
_COVERED = 0.5
"""The same of all lines of the PTX that the code names. What an H100 executed of 116 kernels has 0.74 to 1
(``results/reference/h100/ladder_sass.jsonl``); estimates of those 176 whose totals are right have 0.65 to 1."""
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
    **dict.fromkeys(("ld", "ldu"), (frozenset({"LD", "LDG", "LDS"}), _MEMORY)),
    "st": (frozenset({"ST", "STG", "STS"}), _MEMORY),
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
_LOCAL = {"ld": frozenset({"LDL"}), "st": frozenset({"STL"})}
"""The same of local memory alone: elsewhere these spill registers, and have the line of what they keep."""
_SIDE_EFFECTS = frozenset[str]().union(
    _LOCAL["st"],
    *(_ONE_TO_ONE[opcode][0] for opcode in ("st", "stmatrix", "cp", "atom", "bar", "shfl", "redux", "mma")),
)
"""Machine instructions that ptxas neither removes nor takes out of a loop."""
_DIVISION = frozenset({"MUFU", "CALL"})
"""Of an integer division, of 32 and of 64 bits."""
_BY_TYPE: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "f32": (frozenset({"add", "sub", "mul", "fma", "mad"}), _FLOAT),
    "f32x2": (frozenset({"add", "sub", "mul", "fma"}), _PAIRS),
    "f64": (frozenset({"add", "sub", "mul", "fma", "mad"}), _DOUBLE),
    **dict.fromkeys(("f16x2", "bf16x2"), (frozenset({"add", "sub", "mul", "fma"}), _HALF)),
}
_PTX_BODY = re.compile(r"\s*(?:\.(?:visible|weak|extern)\s+)?\.(?:func|entry)\b")
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
    exact: bool
    """Whether it is of accesses or arithmetic, not of integers that ptxas may compute again elsewhere."""
    rounds: float = math.inf
    """Of the innermost loop of the PTX that the line is in: rounds for each time that it is entered, if known."""
    branch: bool = False
    """Whether it is of the branch that a line of the PTX is, which ptxas leaves where it is executed."""


def block_executions(
    function: SassFunction, ptx: Sequence[str], counts: Mapping[int, float], warps: float
) -> tuple[float, ...]:
    """Estimated executions of each block of a kernel by warps, one number per block.

    Args:
        function: The kernel's machine code.
        ptx: Lines of the PTX that it was compiled from.
        counts: Executions by warps of each line of the PTX, from 1; lines without any may be missing.
        warps: Warps that were launched.

    Raises:
        NoEstimateError: The code has no line table, is recursive or is too large to solve, or the answer contradicts
            the PTX.
    """
    if warps <= 0 or not any(instruction.ptx_line for instruction in function.instructions):
        raise NoEstimateError("its code names no lines of the PTX")
    if len(function.blocks) > MAX_BLOCKS:  # the rows below take time and memory by the square of the blocks
        raise NoEstimateError(f"its code has {len(function.blocks)} basic blocks; at most {MAX_BLOCKS} are solved")
    if _calls_itself(function):
        raise NoEstimateError("a function calls itself: how its warps part and join depends on the depth")
    lines = {(instruction.ptx_line, instruction.opcode) for instruction in function.instructions}
    usual = sum(counts.get(line, 0.0) for line, _ in lines)
    executions = _Program(function, _measures(function, ptx, counts), warps, usual).solve()
    _check(function, ptx, counts, executions)
    return executions


def _calls_itself(function: SassFunction) -> bool:
    """Whether a subroutine calls itself, if only by others."""
    called: dict[int, set[int]] = {}
    for block in function.blocks:
        if block.call is not None and block.call not in called:
            calls = (function.blocks[index].call for index in reachable(function, [block.call]))
            called[block.call] = {call for call in calls if call is not None}
    for _ in called:  # paths of calls, each time up to twice as long
        called = {name: direct.union(*(called[other] for other in direct)) for name, direct in called.items()}
    return any(name in calls for name, calls in called.items())


def _check(
    function: SassFunction, ptx: Sequence[str], counts: Mapping[int, float], executions: Sequence[float]
) -> None:
    """Compare an estimate with the PTX.

    Raises:
        NoEstimateError: It has far fewer executions.
    """
    own: dict[tuple[int, str], float] = {}
    for block, count in zip(function.blocks, executions, strict=True):
        for instruction in function.instructions_of(block):
            key = (instruction.ptx_line, instruction.opcode)
            own[key] = own.get(key, 0.0) + count
    kept: dict[int, float] = {}
    most: dict[int, float] = {}
    for (line, opcode), count in own.items():
        if not 0 < line <= len(ptx) or not counts.get(line):
            continue
        most[line] = max(most.get(line, 0.0), count)
        names, _ = _one_to_one(ptx[line - 1]) or (frozenset(), 0.0)
        name = opcode.partition(".")[0]
        if name in names & _SIDE_EFFECTS:
            kept[line] = kept.get(line, 0.0) + count
    for lines, least, what in (
        (kept, _KEPT, "stores, atomics, barriers, shuffles and matrix products"),
        (most, _COVERED, "instructions of lines that the code names"),
    ):
        expected = sum(counts[line] for line in lines)
        achieved = sum(min(count, counts[line]) for line, count in lines.items())
        if achieved < least * expected:
            raise NoEstimateError(f"of {expected:,.0f} {what} in the PTX it would execute {achieved:,.0f}")


def loops(function: SassFunction) -> list[frozenset[int]]:
    """Loops without loops inside them: the blocks of each, by the blocks between a branch back and its target.

    A branch back to a block that is reached in other ways too, as from code that ptxas put behind, makes none.
    """
    bodies: list[frozenset[int]] = []
    entries = {0, *(block.call for block in function.blocks)}
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
            if not entries & (body - {edge.target}):
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
        if label := _label(text):
            labels[label] = pending = number
            if not jumped:
                before[number] = previous
            continue
        instruction = _PTX.match(text)
        if instruction is None:
            continue
        if pending:
            after[pending], pending = number, 0
        previous, jumped = number, instruction[1] in ("bra", "ret", "exit") and "@" not in text
        target = _branch(text)
        if target in labels:
            ends[labels[target]] = number
    rounds: dict[int, float] = {}
    for start, end in sorted(ends.items(), key=lambda loop: loop[0] - loop[1]):
        entered = counts.get(before.get(start, 0), 0.0)
        average = counts.get(after.get(start, 0), 0.0) / entered if entered else math.inf
        rounds.update(dict.fromkeys(range(start, end + 1), average))
    return rounds


def _label(text: str) -> str:
    """The label of a line; empty for none."""
    label = _PTX_LABEL.match(text) if ":" in text else None
    return label[1] if label is not None else ""


def _branch(text: str) -> str:
    """The label that a line branches to; empty for none."""
    target = _PTX_BRANCH.search(text) if "bra" in text else None
    return target[1] if target is not None else ""


@functools.lru_cache(1024)
def _one_to_one(text: str) -> tuple[frozenset[str], float] | None:
    """Machine instructions of which a line of PTX makes one, and the weight of that."""
    match = _PTX.match(text)
    if match is None:
        return None
    opcode, modifiers = match[1], set(re.split(r"\.|::", match[2]))
    if opcode in ("div", "rem") and not modifiers & {"f32", "f64"}:
        return _DIVISION, _SPECIAL
    if "local" in modifiers and opcode in _LOCAL:
        return _LOCAL[opcode], _MEMORY
    if opcode in _ONE_TO_ONE and not (opcode == "ld" and "param" in modifiers):
        return _ONE_TO_ONE[opcode]
    for kind, (opcodes, names) in _BY_TYPE.items():
        if kind in modifiers and opcode in opcodes:
            return names, _ARITHMETIC
    return None


def _measures(function: SassFunction, ptx: Sequence[str], counts: Mapping[int, float]) -> dict[_Measure, float]:
    """Counts that executions have to meet, by their weights; without ptxas' subroutines, whose lines are of callers."""
    copies: dict[int, list[tuple[int, SassInstruction]]] = {}
    for index in sorted(reachable(function, [0, *_called_functions(function, ptx)])):
        for instruction in function.instructions_of(function.blocks[index]):
            copies.setdefault(instruction.ptx_line, []).append((index, instruction))
    measures: dict[_Measure, float] = {}
    rounds, bodies = loop_rounds(ptx, counts), loops(function)

    def add(
        copied: Sequence[tuple[int, SassInstruction]], line: int, weight: float, short: float, branch: bool = False
    ) -> None:
        blocks = tuple(sorted(block for block, _ in copied))
        beyond, exact = 1.0, weight >= _ARITHMETIC
        if any(instruction.predicated for _, instruction in copied):
            beyond, short, weight = _BEYOND, 1.0, weight * _PREDICATED
        total = _Measure(blocks, counts.get(line, 0.0), beyond, short, exact, rounds.get(line, math.inf), branch)
        for measure in _split(total, bodies) if weight >= _ARITHMETIC else [total]:
            measures[measure] = measures.get(measure, 0.0) + weight

    corresponding: dict[int, tuple[list[tuple[int, SassInstruction]], float, float]] = {}
    for line, places in copies.items():
        if not 0 < line <= len(ptx):
            continue
        names, weight = _one_to_one(ptx[line - 1]) or (frozenset(), 0.0)
        if one_to_one := [copy for copy in places if copy[1].name in names]:
            short = _HOISTED if names == _DIVISION else _MERGED if weight == _MEMORY else 1.0
            corresponding[line] = one_to_one, weight, short
            continue
        likely = [copy for copy in places if copy[1].name in _INTEGER and copy[1].modifier != "HI"]
        for opcode, form in sorted({(instruction.opcode, instruction.form) for _, instruction in likely}):
            weight = _OTHER if counts.get(line) else _NEVER
            short = 0.0 if opcode.startswith(_OVERHEAD) else 1.0
            branch = opcode.startswith("BRA") and bool(_branch(ptx[line - 1]))
            alike = [copy for copy in likely if (copy[1].opcode, copy[1].form) == (opcode, form)]
            add(alike, line, weight, short, branch)
    parts = _parts_of_accesses(ptx, {line: copied for line, (copied, _, _) in corresponding.items()})
    for line, (copied, weight, short) in corresponding.items():
        add([copy for copy in copied if id(copy) not in parts], line, weight, short)
    return measures


def _called_functions(function: SassFunction, ptx: Sequence[str]) -> list[int]:
    """First blocks of functions of the PTX that are called from others; a division of ptxas is in its caller's text."""
    if all(block.call is None for block in function.blocks):
        return []
    bodies = [0, *accumulate(("func" in text or "entry" in text) and bool(_PTX_BODY.match(text)) for text in ptx)]
    called = []
    for block in function.blocks:
        if block.call is None:
            continue
        caller, first = function.instructions[block.end - 1], function.instructions[function.blocks[block.call].first]
        if max(caller.ptx_line, first.ptx_line) < len(bodies) and bodies[caller.ptx_line] != bodies[first.ptx_line]:
            called.append(block.call)
    return called


def _parts_of_accesses(ptx: Sequence[str], copies: Mapping[int, Sequence[tuple[int, SassInstruction]]]) -> set[int]:
    """Ids of copies of loads and stores that are parts of others, which count.

    ptxas joins accesses of several lines, and may make two of them again; both then have the line of the first. So a
    block has twice as many copies of that line as of most others of its basic block of the PTX.
    """
    block, blocks = 0, []
    for text in ptx:
        block += bool(_label(text) or _branch(text))
        blocks.append(block)
    numbers: dict[tuple[int, int], dict[int, int]] = {}
    """By basic block of the PTX and of the machine code: copies of each line."""
    for line, copied in copies.items():
        for index, _ in copied:
            lines = numbers.setdefault((blocks[line - 1], index), {})
            lines[line] = lines.get(line, 0) + 1
    parts: set[int] = set()
    for (_, index), lines in numbers.items():
        usual, votes = Counter(lines.values()).most_common(1)[0]
        for line, number in lines.items():
            if number > usual and number % usual == 0 and 2 * votes > len(lines):
                own = [copy for copy in copies[line] if copy[0] == index and copy[1].name.startswith(("LD", "ST"))]
                parts.update(id(copy) for copy in own[usual:])
    return parts


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
    usual: float
    """Machine instructions of the kernel, about: the unit of their cost."""
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

    def solve(self) -> tuple[float, ...]:
        """Executions of all blocks; those that nothing reaches have none.

        Raises:
            NoEstimateError: The program is too large, or has no solution.
        """
        measures = list(self.measures.items())
        constraints = [*self._flow_constraints()]
        bounds = [*self._bounds()]
        parting = [index for index in self.live if self.function.blocks[index].may_part and not self._ends(index)]
        width = len(self.flows)
        missed, parted = width, width + 2 * len(measures)
        slacks = parted + len(parting)
        count = slacks + len(bounds)
        rows: list[Array] = []
        values: list[float] = []
        cost = np.zeros(count)
        for index in self.live:
            block = self.function.blocks[index]
            into, _ = self.executions[index]
            cost[:width] += _FEWEST * (block.end - block.first) / max(self.usual / self.warps, 1.0) * into
        for number, (_, _, kind) in enumerate(self.flows):
            cost[number] += _DIVERGENT if kind == "divergent" else 0.0
        busiest, most = self._busiest(), max((measure.count for measure, _ in measures), default=0.0)
        for number, (measure, weight) in enumerate(measures):
            row, constant = np.zeros(count), 0.0
            for index in measure.blocks:
                into, offset = self.executions[index]
                row[:width] += into
                constant += offset
            row[missed + 2 * number], row[missed + 2 * number + 1] = 1.0, -1.0
            rows.append(row)
            values.append(measure.count / self.warps - constant)
            weight = min(weight, _MOST if measure.exact else _MOST_OF_OTHERS)
            cost[missed + 2 * number] = weight * measure.short / (measure.count / self.warps + 0.01)
            # What has a predicate is passed as often as its blocks run, which may be as often as any; what is neither
            # an access nor arithmetic may be computed again as often as those of its blocks.
            if measure.beyond < 1.0:
                least = most
            else:
                least = 0.0 if measure.exact else max(busiest.get(index, 0.0) for index in measure.blocks)
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
        reduced = Reduced.of(cost, np.array(rows), np.array(values))
        if len(reduced.values) > MAX_ROWS:
            raise NoEstimateError(f"its code makes {len(reduced.values)} equations; at most {MAX_ROWS} are solved")
        answer = solve(reduced.cost, reduced.rows, reduced.values)
        if answer is None:
            raise NoEstimateError("its equations have no solution")
        solution = reduced.expanded(answer)
        executions = [0.0] * len(self.function.blocks)
        for index in self.live:
            into, offset = self.executions[index]
            executions[index] = self.warps * max(float(into @ solution[:width]) + offset, 0.0)
        # Beyond the solver's tolerance are digits by chance, which must not decide what of equals comes first.
        digits = DIGITS - math.ceil(math.log10(max(*executions, 1.0)))
        return tuple(round(count, digits) for count in executions)

    def _busiest(self) -> dict[int, float]:
        """Blocks, and the largest count of an access, of arithmetic or of a branch in each, by its copies."""
        largest: dict[int, float] = {}
        for measure in self.measures:
            if measure.exact or measure.branch:
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
            for number, barrier in self._joined(index):
                if not self._leaving_early(index, barrier):
                    joined = -into
                    joined[number] += 1.0
                    yield -1, joined, constant

    def _bounds(self) -> Iterator[tuple[Array, float]]:
        """Sums of flows that are at most a value."""
        for index in self.live:
            yield from self._bounds_of_joined(index)
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

    def _bounds_of_joined(self, index: int) -> Iterator[tuple[Array, float]]:
        """Bounds of the warps that are joined after a ``BSSY`` although some may leave in between."""
        into, constant = self.executions[index]
        for number, barrier in self._joined(index):
            early = self._leaving_early(index, barrier)
            if not early:
                continue
            joined = np.zeros(len(self.flows))
            joined[number] = 1.0
            yield joined - into, constant
            departures = [self._departures(block) for block in early]
            without = sum((flows for flows, _ in departures), np.zeros(len(self.flows)))
            yield into - without - joined, sum(offset for _, offset in departures) - constant

    def _joined(self, index: int) -> list[tuple[int, int | None]]:
        """Flows from a block to where lanes join, and the barrier of each."""
        opened = [i for i in self.function.instructions_of(self.function.blocks[index]) if i.name == "BSSY"]
        numbers = [n for n, (source, _, kind) in enumerate(self.flows) if source == index and kind == "joined"]
        barriers = [i.barrier for i in opened] if len(opened) == len(numbers) else [None] * len(numbers)
        return list(zip(numbers, barriers, strict=True))

    def _leaving_early(self, index: int, barrier: int | None) -> list[int]:
        """Blocks between a ``BSSY`` and its ``BSYNC`` in which warps leave the barrier, or the kernel."""
        blocks, early = self.function.blocks, []
        work = [edge.target for edge in blocks[index].edges if edge.kind != "joined"]
        seen = {index}
        while work:
            current = work.pop()
            if current in seen:
                continue
            seen.add(current)
            instructions = self.function.instructions_of(blocks[current])
            ends = any(i.name == "BSYNC" and i.barrier == barrier for i in instructions)
            if instructions[-1].name == "EXIT" or any(i.name == "BREAK" and i.barrier == barrier for i in instructions):
                early.append(current)
            work += () if ends else blocks[current].successors
        return early

    def _departures(self, index: int) -> tuple[Array, float]:
        """Flows of warps that may have left a barrier, or the kernel, in a block."""
        into, constant = self.executions[index]
        block = self.function.blocks[index]
        instructions = self.function.instructions_of(block)
        taken = np.array([float(source == index and kind == "taken") for source, _, kind in self.flows])
        if instructions[-1].name == "EXIT":
            return into - self._leaving(index), constant
        # ptxas gives a BREAK the predicate of the branch behind it.
        return (taken, 0.0) if instructions[-1].conditional and taken.any() else (into, constant)

    def _remainders(self) -> dict[frozenset[int], float]:
        """Innermost loops, and how often each is repeated at most every time that it is entered.

        A copy of a loop of the PTX with several copies of its lines takes that many fewer rounds. Of copies of one loop
        that with the most copies of a line is unrolled the most; the others do what is left over, so they run less
        often than once for each of its copies. Any other loop is entered at all.
        """
        most = 64 * max([measure.count / self.warps + 1.0 for measure in self.measures], default=1.0)
        rounds: dict[frozenset[int], list[float]] = {loop: [] for loop in loops(self.function)}
        remaining: dict[frozenset[int], float] = {}
        for measure in self.measures:
            if not measure.exact:
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
