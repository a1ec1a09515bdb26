"""Classify infrastructure failures for the reward server."""

from __future__ import annotations

import logging

from kernelforge.errors import (
    ChildDied,
    ChildTimeout,
    DeviceError,
    KernelForgeError,
    SandboxError,
    TaskError,
    UnsupportedError,
)
from kernelforge.records import Evaluation, Profile, Verdict
from kernelforge.workers.base import EvaluationReport, Trouble

_LOG = logging.getLogger(__name__)


def trouble_of(error: Exception) -> Trouble:
    """Why there is no evaluation. An error that nobody foresaw is logged with its traceback."""
    message = str(error) or type(error).__name__
    match error:
        case UnsupportedError():
            return Trouble(code="unsupported", message=message, retryable=False)
        case TaskError():
            return Trouble(code="oracle", message=message, retryable=False)
        case DeviceError():
            return Trouble(code="device", message=message, retryable=True)
        case ChildDied() | ChildTimeout() if "oracle child" in message:
            return Trouble(code="oracle", message=message, retryable=True)
        case SandboxError():
            return Trouble(code="sandbox", message=message, retryable=True)
        case KernelForgeError():
            return Trouble(code="internal", message=message, retryable=False)
    _LOG.error("an order failed in a way that nobody foresaw", exc_info=error)
    # A full disk or too many open files may pass; a mistake of ours does not.
    told = f"{type(error).__name__}: {message}"
    return Trouble(code="internal", message=told, retryable=isinstance(error, OSError))


def report_of(order: str, evaluation: Evaluation, profile: Profile | None, seconds: float) -> EvaluationReport:
    """The report of an order that came to an evaluation; verdict ``INFRA`` is trouble."""
    if evaluation.verdict is not Verdict.INFRA:
        return EvaluationReport(order=order, evaluation=evaluation, profile=profile, worker_seconds=seconds)
    # Times that cannot be are the device's; anything else is something that this device lacks, now and later.
    timing = evaluation.stage == "timing"
    trouble = Trouble(code="device" if timing else "unsupported", message=evaluation.reason, retryable=timing)
    return EvaluationReport(order=order, trouble=trouble, worker_seconds=seconds)
