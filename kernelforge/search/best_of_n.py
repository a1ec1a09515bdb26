"""``best-of-n``: independent samples; the best is kept.

KernelBench's repeated sampling: every sample is a seed that does not depend on the others, so all of them can be asked
for at once. In a search that was started from a kernel, every sample is another revision of that one. How often ``k``
samples hold a correct one is then :func:`pass_at_k`.
"""

from __future__ import annotations

from math import prod
from random import Random
from typing import ClassVar

from pydantic import Field

from kernelforge.records import Operator
from kernelforge.search.base import Proposal, Strategy, StrategyOptions, is_correct


class BestOfNOptions(StrategyOptions):
    """Options of ``best-of-n``."""

    samples: int = Field(default=10, ge=1)
    """Independent samples of a task. Ten is the budget at which KernelBench compares repeated sampling with refinement;
    its curves go on to 100."""


class BestOfN(Strategy[BestOfNOptions]):
    """One task's samples. Mixed Coders take turns."""

    name: ClassVar[str] = "best-of-n"
    source: ClassVar[str] = "KernelBench (arXiv 2502.10517)"
    open_ended: ClassVar[bool] = False
    cascades: ClassVar[bool] = False
    Options = BestOfNOptions

    @classmethod
    def default_rounds(cls, options: BestOfNOptions) -> int:
        return options.samples

    def _stop_reason(self) -> str | None:
        samples = self.options.samples
        return f"all {samples} samples are drawn" if len(self.steps) >= samples else None

    def _propose(self, step: int, rng: Random) -> Proposal | None:
        if step >= self.options.samples:
            return None
        if self.start is None:
            return Proposal(Operator.SEED, coder=self.turn(step), sample=step)
        operator = Operator.OPTIMISE if is_correct(self.start) else Operator.REPAIR
        return Proposal(operator, parent=self.start.number, coder=self.turn(step), sample=step)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that ``k`` of ``samples`` independent samples, drawn without replacement, hold a correct one.

    The unbiased estimator 1 - C(n-c, k) / C(n, k) of Chen et al. (arXiv 2107.03374, section 2.1), as the product of
    1 - k/i for i from n-c+1 to n, which neither overflows nor cancels. ``correct`` may count anything that a sample
    passes or fails: correct and faster than a threshold gives the fast_p at k of KernelBench.

    Raises:
        ValueError: not 0 <= correct <= samples, or not 1 <= k <= samples.
    """
    if not 0 <= correct <= samples:
        raise ValueError(f"{correct} of {samples} samples cannot be correct")
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} cannot be estimated from {samples} samples")
    failed = samples - correct
    if failed < k:
        return 1.0
    return 1.0 - prod(1.0 - k / i for i in range(failed + 1, samples + 1))
