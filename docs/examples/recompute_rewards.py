"""Score the attempts of a stored run again under other reward policies."""

import tempfile
from pathlib import Path

import kernelforge
from kernelforge.rewards import reward
from kernelforge.store import DATABASE_NAME, Store

with tempfile.TemporaryDirectory() as results:
    kernelforge.optimize(
        "core/swish", device="emulated:h100", budget=kernelforge.Budget(rounds=1), seed=1, results=results
    )
    with Store.open(Path(results) / DATABASE_NAME, read_only=True) as store:
        attempts = store.attempts(store.run("latest").id)

for attempt in attempts:
    for policy in ("kernelforge/1", "kevin/1", "cuda-agent/1"):
        print(f"attempt {attempt.number}: {policy} {reward(policy, attempt.evaluation).value}")
