"""Rows of JSON lines are on the disk, each on a line of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelforge.records import HostClock
from kernelforge.utils.json_lines import append_rows, json_lines


def test_rows_and_records_are_added_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    record = HostClock(slope_us=2.0, events_us=2.0, agrees=True)
    append_rows([{"text": "a\u2028b\n"}], path)
    append_rows([record, {"text": "µ"}], path)
    lines = path.read_bytes().split(b"\n")
    assert [json.loads(line) for line in lines[:-1]] == [{"text": "a\u2028b\n"}, record.model_dump(), {"text": "µ"}]
    assert lines[-1] == b""


def test_half_of_a_surrogate_pair_is_written_as_its_escape() -> None:
    assert json_lines([{"text": "\ud800"}]) == b'{"text": "\\ud800"}\n'


def test_a_row_that_json_cannot_hold_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows([{"a": 1}], path)
    with pytest.raises(ValueError, match="JSON compliant"):
        append_rows([{"a": 2}, {"a": float("nan")}], path)
    assert path.read_text() == '{"a": 1}\n'
