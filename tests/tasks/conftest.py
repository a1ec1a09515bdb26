"""Fixtures of the tests of tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def float64_default() -> Iterator[None]:
    """Torch makes float64 tensors by default."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
