"""Evaluations on another machine: the pool that a run has here, and the process that serves it there."""
