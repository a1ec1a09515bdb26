"""Search for a better kernel for one task with the built-in Coder and Judge, and list the attempts."""

import tempfile

import kernelforge

with tempfile.TemporaryDirectory() as results:
    outcome = kernelforge.optimize(
        "core/rmsnorm", device="emulated:h100", budget=kernelforge.Budget(rounds=3), seed=1, results=results
    )

for attempt in outcome.attempts:
    print(f"{attempt.number:02d} {attempt.operator} {attempt.evaluation.verdict} reward {attempt.reward.value}")
assert outcome.best is not None
print(f"best: attempt {outcome.best.number:02d}")
print(outcome.best.candidate.source)
