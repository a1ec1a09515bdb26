"""Show kernels with planted faults to the built-in Judge, and see whether it names them.

The kernels in ``tests/planted`` are correct and slow for one known reason each. They were written, with the names that
count as right, by a person who had not read the Judge's code. Each is evaluated on the emulated device and given to
the Judge as any candidate is. Exits with 1 when fewer than ``--least`` are named.

    python benchmarks/judge.py [--least 28]
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from kernelforge.agents.base import JudgeRequest
from kernelforge.agents.builtin import BuiltinJudge
from kernelforge.candidate import parse_reply
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Attempt, Finding, Operator, Verdict
from kernelforge.rewards import DEFAULT_POLICY, reward
from kernelforge.run.task_loop import make_task_context
from kernelforge.tasks import load_task

PLANTED = Path(__file__).resolve().parents[1] / "tests" / "planted"
DEVICE = "emulated:h100"


class Judged(NamedTuple):
    """One kernel, its fault, and what the Judge made of it."""

    file: str
    fault: str
    verdict: Verdict
    finding: Finding | None
    """None when the kernel is not OK, which is a fault of the kernel's and counts as missed."""
    named: bool


def kernels() -> list[dict[str, Any]]:
    """The table of planted kernels."""
    table: list[dict[str, Any]] = tomllib.loads((PLANTED / "planted.toml").read_text())["planted"]
    return table


def judge_all() -> Iterator[Judged]:
    """Evaluate and judge every planted kernel."""
    with EvaluatorPool(DEVICE, threads=2) as workshop:
        for kernel in kernels():
            yield judge(kernel, workshop)


def _task(name: str) -> str:
    """A task of the table as the loader takes it: paths are from the root of the repository."""
    return str(PLANTED.parents[1] / name) if name.endswith(".py") else name


def judge(kernel: dict[str, Any], workshop: EvaluatorPool) -> Judged:
    """Evaluate and judge one."""
    task = load_task(_task(kernel["task"]))
    evaluator = workshop.evaluator(task)
    with closing(evaluator.oracle):
        candidate = parse_reply((PLANTED / kernel["file"]).read_text())
        result = evaluator.evaluate(candidate, seed=secrets.randbits(48))
        if result.evaluation.verdict is not Verdict.OK:
            return Judged(kernel["file"], kernel["fault"], result.evaluation.verdict, None, named=False)
        attempt = Attempt(
            id=f"planted/{task.name}/00",
            run="planted",
            task=task.name,
            number=0,
            operator=Operator.SEED,
            coder="planted",
            candidate=candidate,
            evaluation=result.evaluation,
            profile=result.profile,
            reward=reward(DEFAULT_POLICY, result.evaluation),
            accepted=True,
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            seconds=0.0,
        )
        brief = make_task_context(evaluator)
        finding = BuiltinJudge().find(JudgeRequest(brief, attempt, (attempt,), attempt))
    right = [*kernel["accept"], *kernel["also_right"]]
    return Judged(kernel["file"], kernel["fault"], result.evaluation.verdict, finding, is_named(finding, right))


def is_named(finding: Finding, right: list[str]) -> bool:
    """Whether a finding names a fault: its text holds one of the names that count as right, or every word of its
    bottleneck's name stands in one of them (``uncoalesced`` in "uncoalesced global access"). Case, hyphens and plurals
    do not matter."""
    text = " ".join(_words(finding.headline))
    bottleneck = set(_words(finding.bottleneck or ""))
    for name in right:
        words = _words(name)
        if " ".join(words) in text or (bottleneck and bottleneck <= set(words)):
            return True
    return False


def _words(text: str) -> list[str]:
    return [word if word.endswith("ss") else word.removesuffix("s") for word in re.findall(r"\w+", text.lower())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--least", type=int, default=28)
    options = parser.parse_args()
    named = 0
    judged = 0
    for case in judge_all():
        judged += 1
        named += case.named
        finding = case.finding
        headline = case.verdict.value if finding is None else finding.headline
        print(f"{'named ' if case.named else 'MISSED'}  {case.file:<48} {case.fault:<40} {headline}", flush=True)
    print(f"{named} of {judged} planted bottlenecks named")
    return 0 if named >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
