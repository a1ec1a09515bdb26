"""The suites that ship, each read once for all tests of a process: a dozen test files are made of their tasks."""

from __future__ import annotations

from functools import cache

from kernelforge.tasks import Suite, load_suite


@cache
def shipped(name: str) -> Suite:
    return load_suite(name)
