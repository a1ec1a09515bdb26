"""Command lines of ncu: exact kernels, only metrics of the chip, unchanged settings of the card."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelforge.devices.cuda.tools.tool_process import ask_tool, find_tool, run_tool
from kernelforge.errors import DeviceError
from kernelforge.profiling.ncu.catalogue import OF_SECTIONS, default_metrics, select
from kernelforge.profiling.ncu.command import (
    ProfileCommand,
    base_names,
    chip,
    import_arguments,
    kernel_filter,
    query_arguments,
    version,
)
from kernelforge.profiling.ncu.parse import trouble

CAPTURES = Path(__file__).parent / "captures"


def command(**changes: object) -> list[str]:
    settings: dict[str, object] = {
        "ncu": "/opt/ncu", "symbols": ["_Z1fPf", "g"], "report": "/t/r.ncu-rep", "log": "/t/log",
        "metrics": ["dram__bytes.sum", "gpu__time_duration.sum"], "launches": 3, "program": ["python", "-I", "x"],
    }  # fmt: skip
    return ProfileCommand(**(settings | changes)).arguments()  # type: ignore[arg-type]


def test_the_default_command_is_exactly_this() -> None:
    assert command() == [
        "/opt/ncu", "--config-file", "no", "--target-processes", "application-only", "--profile-from-start", "off",
        "--replay-mode", "kernel", "--clock-control", "none", "--cache-control", "all", "--kernel-name-base", "mangled",
        "--kernel-name", "regex:^(?:_Z1fPf|g)$", "--launch-count", "3",
        "--section", "LaunchStats", "--section", "Occupancy", "--section", "SourceCounters",
        "--metrics", "dram__bytes.sum,gpu__time_duration.sum", "--apply-rules", "no",
        "--log-file", "/t/log", "--export", "/t/r.ncu-rep", "--force-overwrite", "python", "-I", "x",
    ]  # fmt: skip


def test_the_full_set_asks_for_the_set_and_no_names() -> None:
    line = command(counters="full", source_folder="/t/source")
    assert line[line.index("--set") + 1] == "full"
    assert "--metrics" not in line
    assert line[line.index("--import-source") : line.index("--import-source") + 4] == [
        "--import-source", "yes", "--source-folders", "/t/source",
    ]  # fmt: skip


def test_a_filter_matches_its_kernels_and_no_other() -> None:
    pattern = re.compile(kernel_filter(["foo", "_Z3barIfEvPT_", "a$b.c"]).removeprefix("regex:"))
    assert all(pattern.search(name) for name in ("foo", "_Z3barIfEvPT_", "a$b.c"))
    assert not any(pattern.search(name) for name in ("foo_bar", "xfoo", "a$bxc", "_Z3barIdEvPT_"))


@pytest.mark.parametrize("symbols", [[], ["f g"], ["f|.*"], ["f\n--help"], [""], ["ké"]])
def test_what_is_no_symbol_never_reaches_the_command_line(symbols: list[str]) -> None:
    with pytest.raises(ValueError, match=r"symbol|no kernel"):
        kernel_filter(symbols)


def test_nothing_to_collect_is_refused() -> None:
    with pytest.raises(ValueError, match="no metric"):
        command(metrics=[])


def test_gh100_lacks_two_of_cudaforges_metrics_and_the_profile_says_so() -> None:
    listed = base_names((CAPTURES / "query_metrics_gh100_ncu2024.1_excerpt.txt").read_text())
    selection = select(default_metrics(), listed)
    assert selection.absent == (
        "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active",
        "smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct",
    )
    note = selection.note("gh100")
    assert note is not None
    assert all(name in note for name in selection.absent)
    assert not set(selection.requested) & set(OF_SECTIONS)
    # Every name is asked for, computed by ncu, or said to be absent: none is lost.
    computed = {name for name in default_metrics() if name.startswith("launch__")}
    assert {*selection.requested, *selection.absent, *computed} == set(default_metrics())


def test_a_name_that_begins_like_another_is_not_taken_for_it() -> None:
    assert select(["dram__bytes_read.sum"], frozenset({"dram__bytes"})).absent == ("dram__bytes_read.sum",)


def test_a_query_that_lists_nothing_is_an_error_with_what_ncu_said() -> None:
    with pytest.raises(DeviceError, match="stub libcuda"):
        base_names("==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).")


def test_queries_name_a_chip_where_one_is_known() -> None:
    assert query_arguments(chip((9, 0))) == ["--query-metrics", "--chips", "gh100"]
    assert query_arguments(chip((10, 0))) == ["--query-metrics", "--chips", "gb100"]
    assert query_arguments(chip((12, 0))) == ["--query-metrics", "--chips", "gb202"]
    assert query_arguments(chip((11, 0))) == ["--query-metrics"]


def test_versions_are_read_as_the_tools_print_them() -> None:
    assert version("NVIDIA (R) Nsight Compute\nVersion 2024.1.1.0 (build 33998838) (public-release)\n") == (
        2024,
        1,
        1,
        0,
    )
    assert version("nonsense") is None


def test_a_report_is_printed_with_mangled_names_and_base_units() -> None:
    line = import_arguments("ncu", "r.ncu-rep")
    assert line[line.index("--print-units") + 1] == "base"
    assert line[line.index("--print-kernel-base") + 1] == "mangled"
    assert line[line.index("--page") + 1] == "raw"


def test_denied_counters_say_what_to_do() -> None:
    problem = trouble("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU counters")
    assert problem is not None
    assert problem.problem == "denied"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in problem.message


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ("==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).", "no driver"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "no driver"),
        ("==WARNING== No kernels were profiled.", "nothing profiled"),
        ("==ERROR== Failed to find metric nosuch__thing.sum", "metric"),
        ("==ERROR== The application returned an error code (1).", "other"),
    ],
)
def test_other_troubles_have_names(log: str, problem: str) -> None:
    reported = trouble(log)
    assert reported is not None
    assert reported.problem == problem
    assert reported.message


def test_a_log_without_an_error_is_no_trouble() -> None:
    assert trouble("==PROF== Connected to process 7\n==PROF== Disconnected from process 7\n") is None


@pytest.mark.skipif(find_tool("ncu") is None, reason="ncu is not installed")
@pytest.mark.parametrize("counters", ["default", "full"])
def test_the_real_ncu_takes_every_option(counters: str, tmp_path: Path) -> None:
    ncu = find_tool("ncu")
    assert ncu is not None
    report, log = str(tmp_path / "r.ncu-rep"), str(tmp_path / "log")
    line = command(ncu=ncu, report=report, log=log, counters=counters, program=["/bin/true"])
    ended = run_tool(line, folder=tmp_path, deadline_s=60)
    output = ended.output + (tmp_path / "log").read_text()
    assert not any(word in output for word in ("unrecognised", "argument for option", "did not match"))
    assert "No kernels were profiled" in output


@pytest.mark.skipif(find_tool("ncu") is None, reason="ncu is not installed")
def test_the_real_ncu_lists_what_the_default_set_asks_of_gh100() -> None:
    ncu = find_tool("ncu")
    assert ncu is not None
    listed = base_names(ask_tool([ncu, *query_arguments("gh100")]).output)
    assert len(listed) > 1000
    assert set(select(default_metrics(), listed).absent) == {
        "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active",
        "smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct",
    }
