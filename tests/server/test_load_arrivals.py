"""The moments at which the load test of ``benchmarks/server.py`` sends its requests."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.server_parts.arrivals import gamma_arrivals, trace_arrivals

HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_gamma_gaps_have_the_mean_of_the_rate_and_burst_as_the_shape_says() -> None:
    gaps = [after - before for before, after in pairwise(gamma_arrivals(200.0, 100.0, 0.25, seed=3))]
    assert statistics.fmean(gaps) == pytest.approx(1 / 200, rel=0.05)
    # A gamma distribution of shape k has a standard deviation of 1 / sqrt(k) means.
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(2.0, rel=0.05)


def test_a_trace_keeps_its_bursts_at_the_rate_that_is_offered(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADER + "".join(f"{moment},ChatGPT,9,9,18,API log\n" for moment in (100, 100, 101, 140, 999)))
    assert trace_arrivals(trace, 2.0, 2.0) == pytest.approx([0.0, 0.0, 1.5 / 40, 1.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER.replace("Timestamp", "Time") + "1,a,1,1,2,b\n", "a number in a column Timestamp"),
        (HEADER + "soon,a,1,1,2,b\n", "a number in a column Timestamp"),
        (HEADER + "1,a,1,1,2,b\n", "4 ascending timestamps are needed; it has 1"),
        (HEADER + "3,a\n2,a\n1,a\n0,a\n", "4 ascending timestamps are needed"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    with pytest.raises(SystemExit, match=message):
        trace_arrivals(trace, 2.0, 2.0)
