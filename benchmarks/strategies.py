"""Compare the strategies at equal cost, with a Coder whose skill is known.

    python benchmarks/strategies.py [--tasks 200] [--rounds 40] [--skill 0.5 0.8] [--picture FILE.svg]

No kernel is built. A task is a set of features that a kernel may have: each changes the logarithm of its speed, some
only together with another, some make it slower. A Coder's reply is right with a chance, its skill; where it is, an
optimisation adds the feature that the Judge's rank points at in a noisy order of what the features would gain, and a
crossover joins the features of two kernels. What a strategy makes of that is its own: the interface is that of
a run. Printed is the share of the speedup that a task has to give, its logarithm, that is reached after a number of
evaluations: mean over the tasks, and the standard error of the mean.

Tasks, and the draws for the n-th reply about a task, are the same for all strategies. The chances and the sizes of the
gains are chosen, not measured: the figures compare strategies with each other in this world, and predict nothing about
a model.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

from kernelforge.agents.acceptance import make_attempt
from kernelforge.records import (
    Attempt,
    Build,
    Candidate,
    Correctness,
    Evaluation,
    Fingerprint,
    Operator,
    Origin,
    Performance,
    Reward,
    SizeCheck,
    Verdict,
    content_hash,
)
from kernelforge.report.figures import base
from kernelforge.report.render_image import svg
from kernelforge.search import STRATEGIES, Proposal

FEATURES = 10
POINTS = (1, 5, 10, 20, 40)
SLOWEST_US = 1000.0
FINGERPRINT = Fingerprint(
    device="emulated:h100", device_kind="emulated", arch="sm_90a", toolchain="none", kernelforge="0", evaluator="0",
    torch="0", python="3", host="none", jail="namespaces",
)  # fmt: skip


@dataclass(frozen=True)
class World:
    """One task: what features gain by themselves and in pairs, in log speed."""

    alone: tuple[float, ...]
    together: dict[tuple[int, int], float]
    best: float
    """The highest gain of all sets of features."""

    @classmethod
    def draw(cls, rng: Random) -> World:
        """A task whose best kernel is at least 1.5 times as fast as its slowest."""
        every = range(FEATURES)
        while True:
            alone = tuple(rng.gauss(0.15, 0.35) for _ in every)
            together = {pair: rng.gauss(0.0, 0.4) for pair in rng.sample(list(combinations(every, 2)), FEATURES // 2)}
            world = cls(alone, together, 0.0)
            sets = (frozenset(of) for size in range(FEATURES + 1) for of in combinations(every, size))
            best = max(map(world.gain, sets))
            if best > math.log(1.5):
                return cls(alone, together, best)

    def gain(self, features: frozenset[int]) -> float:
        """Log speed of a kernel over one without features."""
        pairs = sum(value for pair, value in self.together.items() if features.issuperset(pair))
        return sum(self.alone[feature] for feature in features) + pairs

    def add(self, features: frozenset[int], rank: int, rng: Random) -> frozenset[int]:
        """Features and one more: that of a rank in a noisy order of what each that is missing would gain."""
        here = self.gain(features)
        gains = {
            feature: self.gain(features | {feature}) - here + rng.gauss(0.0, 0.2)
            for feature in range(FEATURES)
            if feature not in features
        }
        order = sorted(gains, key=lambda feature: -gains[feature])
        return features | {order[min(rank, len(order)) - 1]} if order else features


@dataclass
class Search:
    """One strategy at one task."""

    name: str
    world: World
    task: int
    skill: float
    rounds: int
    attempts: list[Attempt] = field(default_factory=list)
    features: list[frozenset[int]] = field(default_factory=list)
    """Those that each attempt has, or would have if it were right."""
    reached: list[float] = field(default_factory=list)
    """Share of the gain that the best kernel has, after each step."""

    def play(self) -> list[float]:
        """Search to the end; the shares after each step."""
        strategy = STRATEGIES[self.name].make(self._options(), rounds=self.rounds)
        while (proposal := strategy.ask(Random(f"{self.task} {len(strategy.steps)}"))) is not None:
            attempt = self._carry_out(proposal, Random(f"reply {self.task} {len(strategy.steps)}"))
            strategy.tell(attempt)
            gains = [
                self.world.gain(features)
                for features, past in zip(self.features, self.attempts, strict=True)
                if past.evaluation.verdict is Verdict.OK
            ]
            self.reached.append(max(0.0, *gains, 0.0) / self.world.best)
        return self.reached + self.reached[-1:] * (self.rounds - len(self.reached))

    def _options(self) -> dict[str, int]:
        """As many samples as there are rounds, where a strategy counts its own."""
        return {"best-of-n": {"samples": self.rounds}, "fsr": {"depth": -(-self.rounds // 5)}}.get(self.name, {})

    def _carry_out(self, proposal: Proposal, rng: Random) -> Attempt:
        features = self._written(proposal, rng)
        right = rng.random() < self.skill
        text = " ".join(map(str, sorted(features))) if right else f"wrong {len(self.attempts)}"
        candidate = Candidate(source=f"__global__ void k(float* out) {{ /* {text} */ out[0] = {len(text)}; }}",
                              plan="def forward(x):\n    return x\n")  # fmt: skip
        time_us = SLOWEST_US * math.exp(-self.world.gain(features))
        evaluation = Evaluation(
            candidate=candidate.hash,
            task="0" * 16,
            fingerprint=FINGERPRINT,
            verdict=Verdict.OK if right else Verdict.WRONG,
            stage="done" if right else "small",
            reason="" if right else "wrong",
            build=None if not right else _build(text),
            correctness=Correctness(sizes=(SizeCheck(size="full", status="passed"),)) if right else None,
            performance=Performance(time_us=time_us, origin=Origin.MODELLED, protocol="emulated/0", bound="dram")
            if right
            else None,
        )
        attempt = make_attempt(
            self.attempts,
            candidate,
            evaluation,
            run="simulated",
            task="task",
            operator=proposal.operator,
            parent=None if proposal.parent is None else self.attempts[proposal.parent],
            reward=Reward(policy="none/1", value=0.0, components={}),
            started="2026-01-01T00:00:00.000+00:00",
            seconds=1.0,
            inspirations=tuple(self.attempts[number].id for number in proposal.inspirations),
            coder=f"coder {proposal.coder}",
        )
        self.attempts.append(attempt)
        self.features.append(features)
        return attempt

    def _written(self, proposal: Proposal, rng: Random) -> frozenset[int]:
        """Features of what the Coder writes, right or wrong."""
        if proposal.operator is Operator.SEED or proposal.parent is None:
            return frozenset(rng.sample(range(FEATURES), 2))
        parent = self.features[proposal.parent]
        others = [self.features[number] for number in proposal.inspirations]
        if proposal.operator is Operator.REPAIR:
            return parent
        if proposal.operator is Operator.CROSSOVER:
            return parent.union(*others)
        if proposal.operator is Operator.OPTIMISE:
            return self.world.add(parent, proposal.rank, rng)
        # Contrast and FSR: from the fastest of what is in the prompt, one feature on, and some of the others'.
        start = max([parent, *others], key=self.world.gain)
        borrowed = {feature for other in others for feature in other if rng.random() < 0.3}
        return self.world.add(start | borrowed, 1, rng)


def _build(text: str) -> Build:
    return Build(key=content_hash(text), ok=True, arch="sm_90a", toolchain="none", ptx_hash=text, kernels=(),
                 diagnostics=(), seconds=0.0)  # fmt: skip


def shares(case: tuple[str, int, float, int]) -> list[float]:
    """Shares after each step of one strategy at one task."""
    name, task, skill, rounds = case
    return Search(name, World.draw(Random(f"world {task}")), task, skill, rounds).play()


def drawn(means: dict[str, list[float]], skill: float) -> base.Figure:
    rows: list[base.Row] = [
        {"evaluations": step, "share": value, "strategy": name}
        for name, values in means.items()
        for step, value in enumerate(values, 1)
    ]
    x = base.quantity("evaluations", "evaluations", zero=False)
    y = base.quantity("share", "share of the gain that is reached", ticks=".0%")
    look = {"color": base.coloured("strategy", list(means)), "strokeDash": base.dashed("strategy", list(means))}
    ends = ", ".join(f"{name} {values[-1]:.0%}" for name, values in means.items())
    return base.figure(
        "strategies",
        f"Strategies with a simulated Coder that is right in {skill:.0%} of its replies",
        f"Share of the logarithm of the best speedup that is reached at the end: {ends}.",
        [base.layer({"type": "line", "strokeWidth": 2}, rows, x=x, y=y, **look)],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=max(POINTS))
    parser.add_argument("--skill", type=float, nargs="+", default=[0.5, 0.8])
    parser.add_argument("--picture", type=Path, help="of the last skill")
    options = parser.parse_args()
    points = [point for point in POINTS if point <= options.rounds]
    for skill in options.skill:
        means: dict[str, list[float]] = {}
        table = Table(title=f"share of the gain that is reached; replies are right in {skill:.0%}")
        for column in ("strategy", *(f"after {point}" for point in points)):
            table.add_column(column, justify="left" if column == "strategy" else "right")
        with multiprocessing.Pool() as workers:
            for name in STRATEGIES:
                curves = workers.map(shares, [(name, task, skill, options.rounds) for task in range(options.tasks)])
                means[name] = [fmean(values) for values in zip(*curves, strict=True)]
                errors = [stdev(values) / math.sqrt(len(values)) for values in zip(*curves, strict=True)]
                cells = (f"{means[name][point - 1]:.0%} ± {errors[point - 1]:.1%}" for point in points)
                table.add_row(name, *cells)
        Console().print(table)
        if options.picture is not None:
            options.picture.write_text(svg(drawn(means, skill), width=560), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
