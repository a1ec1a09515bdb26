"""Runs: strategy and agents, evaluator and store, within one budget."""

from kernelforge.run.budget import StopSignal
from kernelforge.run.events import Event, Observer
from kernelforge.run.runner import configure, extend_budget, resume_run, start_run

__all__ = ["Event", "Observer", "StopSignal", "configure", "extend_budget", "resume_run", "start_run"]
