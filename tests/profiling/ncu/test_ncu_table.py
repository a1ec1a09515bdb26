"""ncu's CSV: exact numbers, units kept, kernels as they are named; what is no table is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.errors import DeviceError
from kernelforge.profiling.ncu.parse import Value, normalise, number, parse_table

CAPTURES = Path(__file__).parent / "captures"

HEAD = '"ID","Process ID","Kernel Name","Block Size","Grid Size","CC","dram__bytes.sum","gpu__time_duration.sum"\n'
UNITS = '"","","","","","","byte","nsecond"\n'


def by_hand(*rows: str) -> str:
    return HEAD + UNITS + "".join(row + "\n" for row in rows)


def test_a_captured_table_gives_exact_names_shapes_and_units() -> None:
    (row,) = parse_table((CAPTURES / "transposeCoalesced_ncu2024.1_rtx_a4500.csv").read_text())
    assert (row.symbol, row.grid, row.block) == ("_Z18transposeCoalescedPfS_ii", (256, 256, 1), (32, 8, 1))
    assert row.metrics["dram__bytes_read.sum"] == Value(268457472.0, "byte")
    assert row.metrics["gpu__time_duration.sum"] == Value(1420832.0, "ns")
    assert row.metrics["dram__bytes.sum.per_second"].unit == "byte/s"
    assert row.metrics["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] == Value(2097152.0, "request")
    assert row.metrics["launch__occupancy_limit_warps"] == Value(6.0, "block")


def test_scaled_units_come_to_the_same_numbers_as_base_units() -> None:
    (base,) = parse_table((CAPTURES / "sobelDouble_ncu2024.1_rtx_a4500.csv").read_text())
    (scaled,) = parse_table((CAPTURES / "sobelDouble_auto_units_ncu2024.1_rtx_a4500.csv").read_text())
    assert scaled.symbol == "void Sobel<double>(uchar4 *, uchar4 *, int, int)"
    assert base.metrics.keys() == scaled.metrics.keys()
    for name, metric in base.metrics.items():
        assert scaled.metrics[name].unit == metric.unit, name
        assert scaled.metrics[name].value == pytest.approx(metric.value, rel=1e-3, abs=0.006), name


def test_kernel_names_with_commas_quotes_and_templates_stay_whole() -> None:
    name = "void scan<float, Op<2, 'c'>, \"x\">(float *, int)"
    quoted = name.replace('"', '""')
    (row,) = parse_table(by_hand(f'"0","1","{quoted}","(32, 1, 1)","(7, 2, 1)","9.0","1e9","1,345,542.89"'))
    assert row.symbol == name
    assert row.grid == (7, 2, 1)
    assert row.metrics["dram__bytes.sum"].value == 1e9
    assert row.metrics["gpu__time_duration.sum"].value == 1345542.89


def test_what_the_program_and_ncu_print_before_and_after_is_passed_over() -> None:
    text = "==PROF== Connected to process 1\nhello\n" + by_hand('"0","1","f","(1, 1, 1)","(1, 1, 1)","9.0","4","5"')
    (row,) = parse_table(text + "==PROF== Disconnected\n")
    assert row.symbol == "f"


@pytest.mark.parametrize("cell", ["n/a", "", "nan", "inf", "NVIDIA H200", "1e999", "12abc", "1,23"])
def test_a_cell_that_is_no_number_gives_no_metric(cell: str) -> None:
    (row,) = parse_table(by_hand(f'"0","1","f","(1, 1, 1)","(1, 1, 1)","9.0","{cell}","5"'))
    assert set(row.metrics) == {"gpu__time_duration.sum"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "nothing"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "ERR_NVGPUCTRPERM"),
        (by_hand('"0","1","f","(1, 1, 1)"'), "breaks off"),
        (by_hand('"0","1","f","(1, 1, 1)","(1, 1, 1)","9.0","4","5'), "breaks off"),
        (by_hand('"0","1","f","(1, 1, 1)","1","9.0","4","5"'), "grid or a block"),
        ('"ID","Kernel Name"\n"",""\n', "without"),
        (HEAD, "row of units"),
        (HEAD + '"0","1","f","(1, 1, 1)","(1, 1, 1)","9.0","4","5"\n', "row of units"),
    ],
)
def test_a_broken_table_is_refused_with_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(DeviceError, match=says):
        parse_table(text)


def test_units_lose_their_scale_and_times_are_nanoseconds() -> None:
    assert normalise("a.sum", 2.0, "usecond") == Value(2000.0, "ns")
    assert normalise("a.sum", 1.5, "Mbyte") == Value(1.5e6, "byte")
    assert normalise("a.sum.per_second", 3.0, "Gbyte/second") == Value(3e9, "byte/s")
    assert normalise("a.sum", 3.0, "sectors") == Value(3.0, "sector")
    assert normalise("launch__grid_size", 3.0, "") == Value(3.0, "block")
    assert normalise("a.ratio", 3.0, "") == Value(3.0, "1")


def test_numbers_are_read_as_the_c_locale_writes_them() -> None:
    assert number("-1.5e-3") == -0.0015
    assert number("12,345,678") == 12345678
    assert number("1.234,5") is None
    assert number("0x10") is None
