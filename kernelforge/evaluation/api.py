"""``evaluate``: one candidate against one task, from Python."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from kernelforge.candidate import parse_reply
from kernelforge.devices import default_device
from kernelforge.errors import CandidateError
from kernelforge.evaluation.evaluator import EvaluationResult
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.stages.full_size_measured import check_measure
from kernelforge.records import Candidate, MeasureSettings, Task
from kernelforge.tasks import load_task


def evaluate(
    task: Task | str | Path,
    candidate: Candidate | str,
    *,
    choices: Mapping[str, int] | None = None,
    device: str | None = None,
    profile: bool = True,
    seed: int | None = None,
    measure: MeasureSettings | None = None,
    allow_unconfined: bool = False,
) -> EvaluationResult:
    """Evaluate one candidate.

    Args:
        task: a task, ``suite/name``, or the path of a task file.
        candidate: a candidate, or the text of a reply with its two fenced blocks.
        choices: values of the plan's ``# tune:`` names, before those that the candidate has.
        device: where to run; None for the first GPU here that starts, else an emulated device. Why a GPU is passed
            over is logged as a warning.
        profile: also profile at the full size.
        seed: secret seed of the inputs; None draws a fresh one.
        measure: how a GPU is used; None for the defaults. An emulated device has no use for it.
        allow_unconfined: go on where no jail works (recorded in the fingerprint).

    Raises:
        UsageError: something is asked of an emulated device that only one that measures can do.
        KernelForgeError: the task cannot be loaded or run, or this machine lacks something. A candidate that is
            wrong in any way is a verdict, never an exception.
    """
    loaded = task if isinstance(task, Task) else load_task(task)
    chosen = device or default_device(measure, allow_unconfined=allow_unconfined)
    check_measure(measure or MeasureSettings(), chosen)
    with EvaluatorPool(chosen, threads=2, measure=measure, allow_unconfined=allow_unconfined) as workshop:
        evaluator = workshop.evaluator(loaded)
        try:
            if isinstance(candidate, str):
                try:
                    proposed = parse_reply(candidate)
                except CandidateError as error:
                    return EvaluationResult(evaluator.rejected(error, candidate), None)
            else:
                proposed = candidate
            if choices:
                proposed = proposed.model_copy(update={"choices": {**proposed.choices, **choices}})
            secret = secrets.randbits(63) if seed is None else seed
            return evaluator.evaluate(proposed, seed=secret, profile=profile)
        finally:
            evaluator.oracle.close()
