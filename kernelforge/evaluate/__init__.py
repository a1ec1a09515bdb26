"""Evaluation: the cascade from a reply to a verdict, with expected outputs kept where no candidate can reach them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelforge.evaluate.api import evaluate
    from kernelforge.evaluate.evaluator import EvaluationResult, Evaluator
    from kernelforge.evaluate.workshop import Workshop

__all__ = ["EvaluationResult", "Evaluator", "Workshop", "evaluate"]

_HOMES = {"EvaluationResult": "evaluator", "Evaluator": "evaluator", "Workshop": "workshop", "evaluate": "api"}


def __getattr__(name: str) -> Any:
    """Import on first use: naming this package must not cost what running an evaluation costs."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


class _CallableModule(ModuleType):
    """``kernelforge.evaluate`` is this package and also the public function of that name.

    Importing a submodule binds it in its parent, so the two cannot be told apart there; calling the package works
    whichever way it was reached.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from kernelforge.evaluate.api import evaluate

        return evaluate(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
