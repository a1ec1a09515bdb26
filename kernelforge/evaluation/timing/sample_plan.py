"""Plan of one timing sample: the number of tensor sets, and whether the L2 is flushed between them."""

from __future__ import annotations

from dataclasses import dataclass

from kernelforge.errors import TimingError
from kernelforge.records import SizeFacts, TensorSpec

MAX_SETS = 64
"""Most sets that are worth their trouble: each is drawn, copied in and checked on its own, and costs a node or more in
the graph. Sets of 2 MB and more exceed twice an L2 of 60 MB, so that one flush per sample is enough."""

FLUSHED_SETS = 8
"""Sets where each execution is preceded by a flush: enough to spread the cost of the events over several executions.
More would add no information per second, for the flushes take most of a sample."""


@dataclass(frozen=True)
class SamplePlan:
    """Plan of a sample: one execution on each of ``sets`` disjoint sets of inputs, weights and outputs."""

    sets: int
    flush_bytes: int
    """Read in every sample, to empty the L2; 0 where it stays warm."""
    flush_each: bool = False
    """Before each execution; else once, before the first, where going through the sets empties the L2 for the rest."""


def tensor_bytes(facts: SizeFacts) -> int:
    """Bytes of inputs, weights and outputs together."""
    tensors = [*facts.inputs, *(weight.spec for weight in facts.weights), *facts.outputs]
    return sum(spec.nbytes for spec in tensors if isinstance(spec, TensorSpec))


def plan_sets(set_bytes: int, l2_bytes: int, free_bytes: int, *, limit: int = MAX_SETS) -> SamplePlan:
    """As many sets as exceed twice the L2 together; a flush before each where memory or ``limit`` allows too few.

    Every sample begins with a flush, so that both sides and all samples find the same L2. Twice the L2, because a cache
    that is not strictly least-recently-used keeps a part of what is only a little larger than itself. flashinfer's
    ``bench_gpu_time_with_cudagraph`` rotates buffers by the same rule.

    Args:
        set_bytes: Inputs, weights, outputs and workspace of one execution.
        l2_bytes: Size of the L2.
        free_bytes: Device memory that the sets of one side may take. Candidate and baselines each hold their own.
        limit: Most sets. 1 makes each sample one execution, which server mode needs.

    Raises:
        ValueError: a size is not positive.
        TimingError: not even one set fits.
    """
    if set_bytes < 1 or l2_bytes < 0 or limit < 1:
        raise ValueError(f"no sample can be made of sets of {set_bytes} bytes, an L2 of {l2_bytes}, limit {limit}")
    if set_bytes > free_bytes:
        raise TimingError(
            f"one set of tensors takes {set_bytes:,} bytes, and {free_bytes:,} bytes of memory are at hand"
        )
    needed = 2 * l2_bytes // set_bytes + 1
    affordable = free_bytes // set_bytes
    if needed <= min(limit, affordable):
        return SamplePlan(sets=needed, flush_bytes=2 * l2_bytes)
    return SamplePlan(sets=min(FLUSHED_SETS, limit, affordable), flush_bytes=2 * l2_bytes, flush_each=True)
