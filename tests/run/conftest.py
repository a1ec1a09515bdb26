"""Fixtures of the tests of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import pytest

from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.remote import machines


@pytest.fixture(scope="session")
def kept_workshops(open_warm: Callable[..., EvaluatorPool]) -> Iterator[Callable[..., EvaluatorPool]]:
    """Opens workshops, and returns an open one for the same arguments."""
    kept: dict[str, EvaluatorPool] = {}
    with ExitStack() as stack:

        def open_once(device: str, *, tell: Any = None, **how: Any) -> EvaluatorPool:
            # Whom it tells of a wait for a GPU differs from run to run and makes no other workshop.
            name = f"{device} {sorted(how.items())}"
            if name not in kept:
                kept[name] = stack.enter_context(open_warm(EvaluatorPool, device, **how))
            return kept[name]

        yield open_once


@pytest.fixture(scope="module")
def warm_workshop(kept_workshops: Callable[..., EvaluatorPool]) -> Iterator[None]:
    """Runs of a module share helper processes: to start them takes longer than most of these runs."""
    with pytest.MonkeyPatch.context() as patch:

        def warm(device: str, **how: Any) -> AbstractContextManager[EvaluatorPool]:
            return nullcontext(kept_workshops(device, **how))

        patch.setattr(machines, "EvaluatorPool", warm)
        yield
