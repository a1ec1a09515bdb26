"""``evaluate``: one candidate against one task, from Python."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from pathlib import Path

from kernelforge.candidate import parse_reply
from kernelforge.devices import default_device
from kernelforge.errors import CandidateError
from kernelforge.evaluation.evaluator import EvaluationResult
from kernelforge.evaluation.remote.machines import open_pool
from kernelforge.evaluation.stages.full_size_measured import check_measure
from kernelforge.records import Candidate, MeasureSettings, Task
from kernelforge.tasks import load_task

_LOG = logging.getLogger(__name__)


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
    """Evaluate one candidate for one task: build it, check it at every size, profile it and time it.

    Args:
        task: a task, ``suite/name``, a name within suite ``core``, or the path of a task file.
        candidate: a candidate, or the text of a reply with two fenced blocks: CUDA source and launch plan.
        choices: values of the plan's ``# tune:`` names; they replace those of the candidate.
        device: where to run, such as ``cuda:0``, ``emulated:h100`` or, on another machine, ``ssh://host/cuda:0``.
            None selects the first GPU that starts, else an emulated device; a warning is logged for each GPU that is
            passed over.
        profile: whether to profile the candidate at the full size.
        seed: secret integer seed of the inputs; None draws one.
        measure: how a GPU is used; None for the defaults. An emulated device accepts the defaults only.
        allow_unconfined: continue where no jail works; the fingerprint of the evaluation records it.

    Returns:
        The evaluation (verdict, errors at every size, time in microseconds with its origin) and, for a correct
        candidate, its profile. A wrong candidate has another verdict than ``OK``; it raises nothing.

    Raises:
        UsageError: an unknown task or device, or measure settings that an emulated device does not support.
        KernelForgeError: the task cannot be loaded or run, or this machine lacks something.

    Example:
        >>> import kernelforge
        >>> source = '''
        ... __global__ void swish(const float* x, float* out, int n) {
        ...     int i = blockIdx.x * blockDim.x + threadIdx.x;
        ...     if (i < n) out[i] = x[i] / (1.0f + expf(-x[i]));
        ... }'''
        >>> plan = '''
        ... def forward(x):
        ...     out = empty_like(x)
        ...     swish[ceil_div(x.numel(), 256), 256](x, out, i32(x.numel()))
        ...     return out'''
        >>> candidate = kernelforge.records.Candidate(source=source, plan=plan)
        >>> result = kernelforge.evaluate("core/swish", candidate, device="emulated:h100", seed=1)
        >>> result.evaluation.verdict.value, result.evaluation.performance.origin.value
        ('OK', 'modelled')
    """
    loaded = task if isinstance(task, Task) else load_task(task)
    device_name = device or default_device(measure, allow_unconfined=allow_unconfined)
    check_measure(measure or MeasureSettings(), device_name)
    pool = open_pool(device_name, measure=measure, allow_unconfined=allow_unconfined, tell=_LOG.warning)
    with pool as workshop:
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
            evaluator.close()
