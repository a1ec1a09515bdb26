"""``kernelforge package``: a package on disk, and bad input in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_the_best_attempt_is_packaged(cli: Callable[..., Any], journal: Path, tmp_path: Path) -> None:
    done = cli("package", "newer/softmax", "--output", "op", "--licence", "MIT")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("op: kernelforge_op_softmax, attempt newer/softmax/")
    assert done.out.endswith("install it with: pip install ./op\n")
    assert 'license = "MIT"' in (tmp_path / "op" / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing/softmax", "nothing"),
        ("newer/gelu", "has no task 'gelu'"),
        ("newer/argmax", "has no correct attempt"),
        ("newer", "a package is of one task"),
        ("newer/softmax/02", "only an attempt with OK can be packaged"),
    ],
)
def test_bad_input_is_one_line(cli: Callable[..., Any], journal: Path, tmp_path: Path, what: str, message: str) -> None:
    done = cli("package", what, "--output", "op")
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "op").exists()
