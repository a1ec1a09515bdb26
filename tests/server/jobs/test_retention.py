"""Retention in the background: it survives what fails, and keeps no keys of what was deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.server.jobs import retention
from tests.server.service_tools import serving, until


async def test_a_failure_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    async def prune(self: retention.Retention) -> int:
        tries.append(self)
        raise ValueError("a row that cannot be")

    monkeypatch.setattr(retention, "_EVERY_S", 0.001)
    monkeypatch.setattr(retention.Retention, "prune", prune)
    async with serving(tmp_path):
        await until(lambda: len(tries) > 1, 20.0)
    assert "a row that cannot be" in caplog.text


async def test_keys_of_deleted_evaluations_are_dropped(tmp_path: Path) -> None:
    async with serving(tmp_path, keep_jobs=1, keep_evaluations=1) as service:
        cache = service._state.cache
        filters = (service._state.completed.key_filter, cache.key_filter, cache.shared_filter)
        for key_filter in filters:
            for number in range(3):
                key_filter.add(f"gone {number}")
        await service._retention._refresh()
        assert [len(key_filter) for key_filter in filters] == [0, 0, 0]
