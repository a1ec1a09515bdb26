"""Runs: strategy and agents, evaluator and store, within one budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelforge.run.events import Event, Observer, StopSignal

if TYPE_CHECKING:
    from kernelforge.run.config import configure
    from kernelforge.run.runner import extend_budget, resume_run, start_run

__all__ = ["Event", "Observer", "StopSignal", "configure", "extend_budget", "resume_run", "start_run"]

_HOMES = {"configure": "config", "extend_budget": "runner", "resume_run": "runner", "start_run": "runner"}


def __getattr__(name: str) -> Any:
    """Import the engine on first use."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
