"""Fixtures of the tests of runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import pytest

from kernelforge.evaluate.workshop import Workshop
from kernelforge.run import loop


@pytest.fixture(scope="module")
def warm_workshop() -> Iterator[None]:
    """Runs of a module share helper processes: to start them takes longer than most of these runs."""
    kept: dict[str, Workshop] = {}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:

        def warm(device: str, **how: Any) -> AbstractContextManager[Workshop]:
            name = f"{device} {sorted(how.items())}"
            if name not in kept:
                kept[name] = stack.enter_context(Workshop(device, **how))
            return nullcontext(kept[name])

        patch.setattr(loop, "Workshop", warm)
        yield
