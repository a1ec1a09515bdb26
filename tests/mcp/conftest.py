"""A service over a suite of small tasks, and suite ``core`` behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.mcp.service import Service
from kernelforge.records import Budget
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.tasks.suites import Catalogue
from tests.mcp.mcp_talk import write_suite


@pytest.fixture(scope="module")
def pool(warmly: Callable[[], AbstractContextManager[None]]) -> Iterator[EvaluatorPool]:
    with warmly(), EvaluatorPool("emulated:h100", threads=2) as pool:
        yield pool


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / DATABASE_NAME) as store:
        yield store


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return Catalogue([os.fspath(write_suite(tmp_path_factory.mktemp("suites") / "tiny")), "core"])


@pytest.fixture
def service(catalogue: Catalogue, pool: EvaluatorPool, store: Store) -> Service:
    return Service(catalogue, pool, store, Budget())
