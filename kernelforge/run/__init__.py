"""Runs: strategy and agents on one side, evaluator and journal on the other, one budget over both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelforge.run.events import Event, Observer, StopSignal

if TYPE_CHECKING:
    from kernelforge.run.config import configure
    from kernelforge.run.loop import rebudget, resume, start

__all__ = ["Event", "Observer", "StopSignal", "configure", "rebudget", "resume", "start"]

_HOMES = {"configure": "config", "rebudget": "loop", "resume": "loop", "start": "loop"}


def __getattr__(name: str) -> Any:
    """Import the engine on first use."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
