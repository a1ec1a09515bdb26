"""Compare the strategies at equal cost, with a Coder whose skill is known, or with the built-in Coder.

    python benchmarks/strategies.py [--tasks 200] [--rounds 40] [--skill 0.5 0.8] [--picture FILE.svg]
    python benchmarks/strategies.py --builtin core/softmax core/rmsnorm [--seeds 3] [--rounds 20] [--picture FILE.svg]

No kernel is built. A task is a set of features that a kernel may have: each changes the logarithm of its speed, some
only together with another, some make it slower. A Coder's reply is right with a chance, its skill; where it is, an
optimisation adds the feature that the Judge's rank points at in a noisy order of what the features would gain, and a
crossover joins the features of two kernels. What a strategy makes of that is its own: the interface is that of
a run. Printed is the share of the speedup that a task has to give, its logarithm, that is reached after a number of
evaluations: mean over the tasks, and the standard error of the mean.

Tasks, and the draws for the n-th reply about a task, are the same for all strategies. The chances and the sizes of the
gains are chosen, not measured: the figures compare strategies with each other in this world, and predict nothing about
a model.

With ``--builtin`` kernels are real: the built-in agents write and judge them, and each is evaluated on an emulated
device, once for all strategies. The share is that of the logarithm of the modelled speedup from the plain design of the
task to the fastest kernel that any strategy reached. The agents draw nothing at random, so seeds differ only where a
strategy draws. A refused reply counts as an evaluation, as in a run; once a strategy or the Judge stops, its best
stays.
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
from kernelforge.agents.base import CoderRequest, JudgeRequest, TaskContext
from kernelforge.agents.builtin import BuiltinCoder, BuiltinJudge
from kernelforge.candidate import parse_reply
from kernelforge.errors import CandidateError
from kernelforge.evaluation import EvaluatorPool
from kernelforge.evaluation.evaluator import CandidateEvaluator, EvaluationResult, SharedEvaluations
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
from kernelforge.run.task_loop import make_task_context
from kernelforge.search import STRATEGIES, Proposal
from kernelforge.search.base import best_attempt
from kernelforge.tasks import load_task

FEATURES = 10
POINTS = (1, 5, 10, 20, 40)
REAL_POINTS = (1, 2, 3, 5, 8, 20)
"""The same with the built-in Coder, which knows eight moves."""
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


def sampling(name: str, rounds: int) -> dict[str, int]:
    """As many samples as there are rounds, where a strategy counts its own."""
    return {"best-of-n": {"samples": rounds}, "fsr": {"depth": -(-rounds // 5)}}.get(name, {})


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
        strategy = STRATEGIES[self.name].make(sampling(self.name, self.rounds), rounds=self.rounds)
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


def real_times(
    name: str, evaluator: CandidateEvaluator, brief: TaskContext, rounds: int, seed: int
) -> tuple[list[float], str]:
    """Modelled time of the best kernel after each evaluation (infinite before the first), and why it ended."""
    strategy = STRATEGIES[name].make(sampling(name, rounds), rounds=rounds)
    coder, judge = BuiltinCoder(), BuiltinJudge()
    attempts: list[Attempt] = []
    times: list[float] = []
    while (proposal := strategy.ask(Random(f"{seed} {len(strategy.steps)}"))) is not None:
        parent = None if proposal.parent is None else attempts[proposal.parent]
        finding = None
        if proposal.judge and parent is not None:
            finding = judge.find(
                JudgeRequest(brief, parent, attempts, best_attempt(attempts), proposal.rank, proposal.sight)
            )
            if finding.kind == "stop":
                if strategy.ends_on_stop:
                    return times + times[-1:] * (rounds - len(times)), f"judge: {finding.headline}"
                finding = None
        inspirations = tuple(attempts[number] for number in proposal.inspirations)
        request = CoderRequest(
            brief, proposal.operator, parent, finding, tuple(attempts), best_attempt(attempts), inspirations,
            proposal.technique, proposal.sample, proposal.sight,
        )  # fmt: skip
        candidate: Candidate | None = None
        text = coder.propose(request).text
        try:
            candidate = parse_reply(text)
            result = evaluator.evaluate(candidate, seed=seed)
        except CandidateError as error:
            result = EvaluationResult(evaluator.rejected(error, text), None)
        attempt = make_attempt(
            attempts, candidate, result.evaluation, run="compared", task=evaluator.task.name,
            operator=proposal.operator, parent=parent, reward=Reward(policy="none/1", value=0.0, components={}),
            started="2026-01-01T00:00:00.000+00:00", seconds=1.0, profile=result.profile, finding=finding,
            inspirations=tuple(item.id for item in inspirations), technique=proposal.technique or "", coder=coder.name,
        )  # fmt: skip
        attempts.append(attempt)
        strategy.tell(attempt)
        fastest = [past.evaluation.performance.time_us for past in attempts if past.evaluation.performance is not None]
        times.append(min(fastest, default=math.inf))
    return times + times[-1:] * (rounds - len(times)), strategy.stopped or "nothing more to try"


def real_shares(tasks: list[str], rounds: int, seeds: int, device: str) -> dict[str, list[list[float]]]:
    """Shares after each evaluation, of each strategy, by task and seed."""
    curves: dict[str, list[list[float]]] = {name: [] for name in STRATEGIES}
    with EvaluatorPool(device, threads=1) as pool:
        for task in tasks:
            evaluator = pool.evaluator(load_task(task))
            evaluator.shared = SharedEvaluations(())
            brief = make_task_context(evaluator)
            times: dict[tuple[str, int], list[float]] = {}
            for name in STRATEGIES:
                for seed in range(seeds):
                    times[name, seed], reason = real_times(name, evaluator, brief, rounds, seed)
                    last = f"{times[name, seed][-1]:.4g} us"
                    print(
                        f"{task} {name} {seed}: {last} after {rounds} evaluations; {reason}",
                        file=sys.stderr,
                        flush=True,
                    )
            best = min(values[-1] for values in times.values())
            plain = max(values[0] for values in times.values())
            for (name, _), values in times.items():
                curves[name].append([math.log(plain / value) / math.log(plain / best) for value in values])
            print(f"{task}: {plain:.4g} us to {best:.4g} us", file=sys.stderr, flush=True)
            evaluator.close()
    return curves


def print_shares(curves: dict[str, list[list[float]]], title: str, points: list[int]) -> dict[str, list[float]]:
    """Print the table of means; gives them back, after each evaluation."""
    means: dict[str, list[float]] = {}
    table = Table(title=title)
    for column in ("strategy", *(f"after {point}" for point in points)):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for name, values in curves.items():
        steps = list(zip(*values, strict=True))
        means[name] = [fmean(step) for step in steps]
        errors = [stdev(step) / math.sqrt(len(step)) if len(step) > 1 else 0.0 for step in steps]
        table.add_row(name, *(f"{means[name][point - 1]:.0%} ± {errors[point - 1]:.1%}" for point in points))
    Console().print(table)
    return means


def drawn(means: dict[str, list[float]], title: str) -> base.Figure:
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
        title,
        f"Share of the logarithm of the best speedup that is reached at the end: {ends}.",
        [base.layer({"type": "line", "strokeWidth": 2}, rows, x=x, y=y, **look)],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=max(POINTS))
    parser.add_argument("--skill", type=float, nargs="+", default=[0.5, 0.8])
    parser.add_argument("--builtin", nargs="+", metavar="TASK", help="real tasks, with the built-in Coder")
    parser.add_argument("--seeds", type=int, default=3, help="of each strategy, with --builtin")
    parser.add_argument("--device", default="emulated:h100", help="where kernels run, with --builtin")
    parser.add_argument("--picture", type=Path, help="of the last skill")
    options = parser.parse_args()
    points = [point for point in (REAL_POINTS if options.builtin else POINTS) if point <= options.rounds]
    if options.builtin is not None:
        title = "Strategies with the built-in Coder"
        curves = real_shares(options.builtin, options.rounds, options.seeds, options.device)
        means = print_shares(curves, f"{title}: share of the gain that is reached", points)
    else:
        for skill in options.skill:
            with multiprocessing.Pool() as workers:
                curves = {
                    name: workers.map(shares, [(name, task, skill, options.rounds) for task in range(options.tasks)])
                    for name in STRATEGIES
                }
            means = print_shares(curves, f"share of the gain that is reached; replies are right in {skill:.0%}", points)
            title = f"Strategies with a simulated Coder that is right in {skill:.0%} of its replies"
    if options.picture is not None:
        options.picture.write_text(svg(drawn(means, title), width=560), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
