"""The schedule of one warp alone: cycles that its machine code takes to issue, and those that it waits for results.

The compiler wrote both into the instructions. A stall count says how many cycles later the next one issues at the
earliest; a scoreboard is set by an instruction whose result comes later, and names what has to wait for it (Huerta et
al., *Analyzing Modern NVIDIA GPU Cores*, 2025, section 4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kernelforge.profiling.sass_code import SassFunction, SassInstruction, reachable

Awaited = Literal["memory", "shared", "special", "constant"]
"""What a warp waits for: global and local memory, shared memory and shuffles, other units of variable latency,
constants and special registers."""

_AWAITED: Mapping[str, Awaited] = {
    **dict.fromkeys(("LD", "LDG", "LDL", "ATOM", "ATOMG"), "memory"),
    **dict.fromkeys(("LDS", "LDSM", "ATOMS", "SHFL"), "shared"),
    **dict.fromkeys(("LDC", "LDCU", "S2R", "S2UR", "ULDC"), "constant"),
}
_ROUNDING = 1e-3
"""Of estimated executions."""


class Latencies(NamedTuple):
    """Cycles from an instruction to its result, by what is awaited."""

    memory: float
    shared: float
    special: float
    constant: float
    memory_interval: float = 0.0
    """Least cycles between the results of two accesses to memory that are under way together."""


class Chain(NamedTuple):
    """Cycles of one warp alone, on average over all warps or over those that stay."""

    issue: float
    """Sum of the stall counts."""
    memory: float
    """Waits for global and local memory."""
    shared: float
    special: float
    constant: float


class _Step(NamedTuple):
    """Instructions up to one that waits for scoreboards, or sets one."""

    stall: int
    """Cycles from the step before."""
    waits: tuple[int, ...]
    sets: int | None
    awaited: Awaited


class _Run(NamedTuple):
    """A basic block."""

    executions: float
    """By each warp."""
    staying: float
    """Share of the warps that have not left the kernel before."""
    steps: tuple[_Step, ...]
    last_stall: int
    """Cycles from the last step to the end."""
    repeats: bool
    """Whether it follows itself."""
    ends: bool
    """Whether the next run in memory does not follow."""


@dataclass(frozen=True)
class Schedule:
    """The schedule of a kernel's warps, with executions of each basic block."""

    runs: tuple[_Run, ...]

    @classmethod
    def of(cls, function: SassFunction, executions: Sequence[float], warps: float) -> Schedule:
        """The schedule of a function whose blocks are executed so often by all warps."""
        calls = [block.call for block in function.blocks if block.call is not None]
        live = reachable(function, [0, *calls])
        staying = _staying(function, executions, warps)
        runs = []
        for index, block in enumerate(function.blocks):
            if index not in live:
                continue
            steps, last_stall = _steps(function.instructions_of(block))
            repeats, ends = index in block.successors, index + 1 not in block.successors
            runs.append(_Run(executions[index] / warps, staying[index], steps, last_stall, repeats, ends))
        return cls(tuple(runs))

    def chain(self, latencies: Latencies, *, last: bool = False) -> Chain:
        """Cycles of a warp. A loop's block follows itself, any other one the block before it in memory.

        Args:
            latencies: Of what a warp waits for.
            last: For the warps that leave last, not for the mean over all: what comes behind an end of the kernel that
                some warps take is divided among the others.
        """
        totals = {"issue": 0.0, "memory": 0.0, "shared": 0.0, "special": 0.0, "constant": 0.0}
        state = _State(latencies)
        for run in self.runs:
            if run.repeats:
                state.follow(run)
            for name, cycles in state.follow(run).items():
                totals[name] += run.executions * cycles / (run.staying if last else 1.0)
            if run.ends:
                state = _State(latencies)
        return Chain(**totals)


class _State:
    """Results that are under way, by scoreboard, while steps are followed in order."""

    def __init__(self, latencies: Latencies) -> None:
        self._latency = latencies._asdict()
        self._interval = latencies.memory_interval
        self._pending: dict[int, list[tuple[float, Awaited]]] = {}
        self._now = 0.0
        self._last_access = float("-inf")

    def follow(self, run: _Run) -> dict[str, float]:
        """Cycles that a block takes, those of waits by what is awaited."""
        spent: dict[str, float] = {"issue": float(run.last_stall)}
        for step in run.steps:
            self._now += step.stall
            spent["issue"] += step.stall
            for scoreboard in step.waits:
                for ready, awaited in self._pending.pop(scoreboard, ()):
                    if ready > self._now:
                        spent[awaited] = spent.get(awaited, 0.0) + ready - self._now
                        self._now = ready
            if step.sets is not None:
                ready = self._now + self._latency[step.awaited]
                if step.awaited == "memory":
                    ready = self._last_access = max(ready, self._last_access + self._interval)
                self._pending.setdefault(step.sets, []).append((ready, step.awaited))
        self._now += run.last_stall
        return spent


def _staying(function: SassFunction, executions: Sequence[float], warps: float) -> list[float]:
    """By block: share of the warps that go on at the ends of the kernel which all ways to the block lead through.

    An end that is inside of a loop, or at which no warp goes on, is left out.
    """
    blocks = function.blocks
    before = Counter(target for block in blocks for target in block.successors)
    staying = [1.0] * len(blocks)
    for index, block in enumerate(blocks):
        following = block.successors
        if function.instructions_of(block)[-1].name != "EXIT" or len(following) != 1 or before[following[0]] != 1:
            continue
        passed = executions[following[0]] / warps
        if executions[index] > warps * (1 + _ROUNDING) or not 0.5 / warps < passed < 1:
            continue
        around = _reached_without(function, index)
        for behind in range(len(blocks)):
            if behind not in around:
                staying[behind] = min(staying[behind], passed)
    return staying


def _reached_without(function: SassFunction, avoided: int) -> set[int]:
    """Blocks that are reached by some way that does not lead through one, subroutines included."""
    seen, work = {0, avoided}, [] if avoided == 0 else [0]
    while work:
        block = function.blocks[work.pop()]
        for target in (*block.successors, *(() if block.call is None else (block.call,))):
            if target not in seen:
                seen.add(target)
                work.append(target)
    return seen


def _steps(instructions: Iterable[SassInstruction]) -> tuple[tuple[_Step, ...], int]:
    """Steps of a block, and the stall after the last one."""
    steps = []
    stall = 0
    for instruction in instructions:
        control = instruction.control
        if control.waits or control.write_scoreboard is not None:
            awaited = _AWAITED.get(instruction.name, "special")
            steps.append(_Step(stall, control.waits, control.write_scoreboard, awaited))
            stall = 0
        stall += max(control.stall, 1)
    return tuple(steps), stall
