"""Advice for repairing a failed candidate, from its verdict and the evaluator's reason."""

from __future__ import annotations

import re

from kernelforge.agents.builtin.design import Design
from kernelforge.records import Attempt, Finding, Verdict

_ISSUES: tuple[tuple[str, str, str], ...] = (
    (r"out.of.bounds|outside (of )?(the|its|any)|beyond the end", "a thread reads or writes outside its allocation",
     "guard the access by the real extents of this size"),
    (r"misalign|alignment", "a vector access is not aligned to its width",
     "use the vector form only where extents are multiples of it"),
    (r"race|barrier", "threads of a block use shared memory without agreeing on the order",
     "put __syncthreads() between writing and reading it, reached by all threads"),
    (r"uninitiali[sz]ed|poison|never written", "memory is read before anything wrote it",
     "write every element of each output and workspace before reading it"),
    (r"\bnan\b|\binf\b", "a value overflows or is undefined where the reference is finite",
     "subtract the maximum before exp, and treat padding apart"),
)  # fmt: skip

_BY_VERDICT: dict[Verdict, tuple[str, str]] = {
    Verdict.BUILD: ("the source does not compile", "correct the line that the compiler names"),
    Verdict.POLICY: ("the candidate uses what is not allowed", "leave out what the reason names"),
    Verdict.WRONG: ("values differ from the reference", "check index arithmetic and guards at the size named"),
    Verdict.CRASH: ("a kernel faults", "check pointers and extents of the launch named"),
    Verdict.TIMEOUT: ("a kernel does not end in time", "bound its loops by the extents and do less work per thread"),
    Verdict.LIMIT: ("a resource limit is exceeded", "use less memory, smaller templates or fewer launches"),
    Verdict.INFRA: ("this device cannot run the candidate", "use plainer instructions"),
}


def advise(parent: Attempt) -> Finding:
    """The issue behind the verdict of an attempt that failed, why it matters, and the minimal fix."""
    evaluation = parent.evaluation
    design = Design.of(parent.candidate.source) if parent.candidate is not None else None
    reason = evaluation.reason.strip()
    if design is not None and not design.moves:
        why = f"{evaluation.verdict} at stage {evaluation.stage}: {_short(reason)}"
        return Finding(kind="stop", headline="the plainest design already fails", why=why, action="stop here")
    issue, fix = _BY_VERDICT.get(evaluation.verdict, ("the candidate failed", "see the reason"))
    if evaluation.verdict is Verdict.BUILD and evaluation.build is not None and evaluation.build.errors:
        issue = f"the compiler refuses {_short(str(evaluation.build.errors[0]), 160)}"
    elif evaluation.verdict in (Verdict.WRONG, Verdict.CRASH):
        for pattern, known, cure in _ISSUES:
            if re.search(pattern, reason, re.IGNORECASE):
                issue, fix = known, cure
                break
    why = f"verdict {evaluation.verdict} at stage {evaluation.stage}: {_short(reason)}"
    return Finding(kind="repair", headline=issue, why=why, action=fix)


def _short(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
