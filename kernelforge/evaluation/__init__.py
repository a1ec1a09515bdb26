"""Evaluation: from a reply to a verdict. Expected outputs stay where no candidate can reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelforge.evaluation.api import evaluate
    from kernelforge.evaluation.evaluator import EvaluationResult, Evaluator
    from kernelforge.evaluation.pool import EvaluatorPool

__all__ = ["EvaluationResult", "Evaluator", "EvaluatorPool", "evaluate"]

_HOMES = {"EvaluationResult": "evaluator", "Evaluator": "evaluator", "EvaluatorPool": "pool", "evaluate": "api"}


def __getattr__(name: str) -> Any:
    """Import on first use: naming this package must not cost what running an evaluation costs."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
