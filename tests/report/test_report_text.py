"""Text of others is escaped, never obeyed."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.report.formatting import (
    byte_count,
    change,
    clock,
    csv_text,
    duration,
    format_fingerprint,
    format_note,
    json_printable,
    markdown,
    moment,
    number,
    one_line,
    percent,
    printable,
    times,
)
from kernelforge.report.tables.base import Column, Table
from tests.support.factories import make_build, make_fingerprint
from tests.support.recorded_run import HOSTILE


@given(st.text() | st.text(alphabet='\x7f\x9b\u202e\U000e0041\n"\\a'))
def test_json_on_a_terminal_means_the_same_and_moves_no_cursor(text: str):
    escaped = json_printable(json.dumps({"a": text}, ensure_ascii=False, indent=1))
    assert json.loads(escaped) == {"a": text}
    assert printable(escaped) == escaped


@given(st.text())
def test_printable_leaves_nothing_that_moves_a_cursor_or_hides(text: str):
    escaped = printable(text)
    assert all(
        letter in "\n\t" or letter.isprintable() or letter.isspace() for letter in escaped if ord(letter) < 0x250
    )
    for hidden in "\x1b\x07\x9b\u202e\u2066\u200b\ufeff\x7f":
        assert hidden not in escaped


def test_printable_keeps_what_people_write():
    assert printable("naïve 你好 ✓\tx\ny\r\nz") == "naïve 你好 ✓\tx\ny\nz"
    assert printable("a\x1b[2Jb\rc") == "a\\x1b[2Jb\\x0dc"


@given(st.text())
def test_one_line_is_one_line(text: str):
    assert len(one_line(text).splitlines()) <= 1
    assert len(one_line(text, 10)) <= 10


def test_markdown_shows_markup_as_text():
    text = markdown(HOSTILE)
    assert "<" not in text
    assert "\n" not in text
    assert "\\`tick\\`" in text
    assert "\\[link\\](x)" in text
    assert "\\|" in text
    assert "\x1b" not in text


@given(st.text())
def test_a_markdown_table_keeps_its_shape_whatever_a_cell_holds(text: str):
    class Row:
        a, b = text, "end"

    table = Table.of("t", [Column("a", "a"), Column("b", "b")], [Row])
    lines = table.to_markdown().splitlines()
    assert len(lines) == 3
    bare = lines[2].replace("\\\\", "").replace("\\|", "")
    assert bare.count("|") == 3


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1+1", "\uff201"])
def test_no_csv_field_is_a_formula(text: str):
    assert csv_text(text)[0] in "'\\"


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.text(), st.floats(), st.booleans()), min_size=1, max_size=3))
def test_csv_reads_back_as_one_row_of_its_fields(values: list[object]):
    columns = tuple(Column(str(i), str(i)) for i in range(len(values)))
    text = Table("t", columns, (tuple(values),)).to_csv()
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    assert len(rows[0]) == len(values)
    if values != [None] and values != [""]:
        assert len(rows) == 2
        assert len(rows[1]) == len(values)


def test_csv_numbers_are_numbers_and_negative_ones_stay_so():
    text = Table("t", (Column("a", "a"), Column("b", "b")), ((-0.5, "-0.5"),)).to_csv()
    assert text == "a,b\n-0.5,'-0.5\n"


def test_numbers_beyond_belief_stay_short():
    """They come from files of others; the table around them must stay one."""
    assert (number(1.5e300), times(1.5e300), percent(1.5e300)) == ("1.5e+300", "1.5e+300x", "1.5e+302 %")
    assert (duration(math.inf), clock(math.inf)) == ("inf s", "inf")


def test_a_note_tells_large_counters_in_millions():
    note = "accepted: dram__bytes.sum 5.03316e+07 -> 655,360 byte (-98.7%); 2.5e+09 inst"
    assert format_note(note) == "dram__bytes.sum 50.33 M -> 655,360 byte (-98.7%); 2.5 G inst"


def test_a_moment_is_told_in_utc_and_what_is_none_as_it_is():
    assert moment("2026-11-20T12:00:05.250+02:00") == "2026-11-20 10:00:05 UTC"
    assert [moment(text) for text in ("soon", "2026-11-20T12:00:05")] == ["soon", "2026-11-20T12:00:05"]


def test_numbers_for_people():
    assert number(None) == "–"
    assert number(1234567) == "1,234,567"
    assert number(0.123456) == "0.1235"
    assert number(26_444.4) == "26,444"
    assert number(9_999.7) == "10,000"
    assert number(math.inf) == "inf"
    assert number(math.nan) == "nan"
    assert times(1.256) == "1.26x"
    assert percent(2 / 3) == "67 %"
    assert change(-0.476) == "-47.6 %"
    assert [byte_count(value) for value in (0.0, 999.0, 8388608.0, 2e12, None)] == [
        "0 B",
        "999 B",
        "8.39 MB",
        "2 TB",
        "–",
    ]
    assert [duration(s) for s in (0.84, 125, 3725, None)] == ["0.84 s", "2 min 05 s", "1 h 02 min", "–"]


def test_where_names_the_toolchain_that_made_the_build():
    fingerprint = make_fingerprint()
    assert fingerprint.toolchain in format_fingerprint(fingerprint)
    triton = format_fingerprint(fingerprint, make_build(toolchain="triton 3.9.0"))
    assert "triton 3.9.0" in triton
    assert fingerprint.toolchain not in triton
