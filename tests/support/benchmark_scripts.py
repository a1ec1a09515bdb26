"""Scripts of ``benchmarks``, which import parts of their folder by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def benchmark_script(name: str) -> ModuleType:
    """A script, or a part of one, by its name in that folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module(name)
