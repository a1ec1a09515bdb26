"""Fixtures of the tests of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import pytest

from kernelforge.evaluate.workshop import Workshop
from kernelforge.run import loop


@pytest.fixture(scope="session")
def kept_workshops(open_warm: Callable[..., Workshop]) -> Iterator[Callable[..., Workshop]]:
    """Opens workshops, and gives the one that it has to whoever asks for the like again."""
    kept: dict[str, Workshop] = {}
    with ExitStack() as stack:

        def open_once(device: str, *, tell: Any = None, **how: Any) -> Workshop:
            # Whom it tells of a wait for a GPU differs from run to run and makes no other workshop.
            name = f"{device} {sorted(how.items())}"
            if name not in kept:
                kept[name] = stack.enter_context(open_warm(Workshop, device, **how))
            return kept[name]

        yield open_once


@pytest.fixture(scope="module")
def warm_workshop(kept_workshops: Callable[..., Workshop]) -> Iterator[None]:
    """Runs of a module share helper processes: to start them takes longer than most of these runs."""
    with pytest.MonkeyPatch.context() as patch:

        def warm(device: str, **how: Any) -> AbstractContextManager[Workshop]:
            return nullcontext(kept_workshops(device, **how))

        patch.setattr(loop, "Workshop", warm)
        yield
