"""The Task page: what is asked, what it is measured against, and how each attempt compares with its parent."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kernelforge.hardware.specs import H100, H200
from kernelforge.records import Origin
from kernelforge.report import task_view
from kernelforge.report.formatting import percent
from kernelforge.report.html import Site
from kernelforge.report.tables.task import baseline_table, lineage_table, size_table
from kernelforge.report.terminal import task_lines
from tests.report.golden.golden_runs import golden_records
from tests.report.html.html_dom import parse
from tests.support.terminal import drawn


def test_a_task_shows_its_reference_and_sizes_with_what_the_oracle_found() -> None:
    records = golden_records("modelled")
    task, facts = records.tasks["softmax"], records.facts["softmax"]
    view = task_view(records, "softmax")
    assert (view.title, view.level, view.tags, view.digest) == (task.title, task.level, task.tags, task.digest)
    assert view.reference == task.source
    assert [size.size for size in view.sizes] == [size.name for size in task.sizes]
    assert [size.constants for size in view.sizes] == [size.constants for size in task.sizes]
    assert [size.compulsory_bytes for size in view.sizes] == [facts.at(s.name).compulsory_bytes for s in task.sizes]
    first = view.sizes[0]
    assert first.outputs == ("float32[1024, 1024]",)
    assert first.flops == facts.at("full").flops


def test_a_task_that_was_not_journalled_has_a_view_all_the_same() -> None:
    records = replace(golden_records("modelled"), tasks={}, facts={})
    view = task_view(records, "softmax")
    assert (view.title, view.level, view.reference, view.sizes) == ("", None, None, ())
    profile = next(attempt.profile for attempt in records.of_task("softmax") if attempt.profile)
    assert view.floor_us == pytest.approx(profile.roofline.compulsory_bytes / H100.dram_bandwidth_gbps / 1e3)
    assert task_view(records, "cumsum").floor_us is None


def test_the_floor_is_the_least_bytes_at_the_peak_of_the_runs_own_device() -> None:
    for name, spec in (("modelled", H100), ("measured-a", H200)):
        records = golden_records(name)
        view = task_view(records, "softmax")
        least = view.sizes[0].compulsory_bytes or next(
            attempt.profile.roofline.compulsory_bytes for attempt in records.of_task("softmax") if attempt.profile
        )
        assert view.floor_us == pytest.approx(least / spec.dram_bandwidth_gbps / 1e3)
        assert view.roofs is not None
        assert (view.roofs.device, view.roofs.ridge) == (spec.title, pytest.approx(spec.ridge_flop_per_byte))


@pytest.mark.parametrize("gpu", ["NVIDIA RTX 9090", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"])
def test_no_figures_of_another_gpu_stand_in_for_one_that_is_unknown(gpu: str) -> None:
    records = golden_records("measured-a")
    unknown = []
    for attempt in records.of_task("softmax"):
        there = attempt.evaluation.fingerprint.model_copy(update={"gpu": gpu})
        evaluation = attempt.evaluation.model_copy(update={"fingerprint": there})
        unknown.append(attempt.model_copy(update={"evaluation": evaluation}))
    view = task_view(replace(records, attempts=tuple(unknown)), "softmax")
    assert view.floor_us is None
    assert view.roofs is None


def test_each_baseline_has_the_best_time_that_was_believed() -> None:
    records = golden_records("measured-a")
    view = task_view(records, "softmax")
    sides = [side for attempt in records.of_task("softmax") for side in attempt.evaluation.performance.timing.baselines]
    for row in view.baselines:
        assert row.median_us == min(side.median_us for side in sides if side.name == row.name)
    assert [row.median_us for row in view.baselines] == sorted(row.median_us for row in view.baselines)
    assert {row.name for row in view.baselines} == {side.name for side in sides}
    quarantined = task_view(records, "attention")
    assert all(attempt.evaluation.performance.quarantined for attempt in records.of_task("attention"))
    assert quarantined.baselines == ()
    assert task_view(golden_records("modelled"), "softmax").baselines == ()


def test_a_measured_attempt_is_compared_with_its_parent_by_time() -> None:
    seed, child = task_view(golden_records("measured-a"), "softmax").lineage
    assert (seed.delta, seed.delta_of, seed.parent) == (None, None, None)
    assert child.delta == pytest.approx(10.0 / 22.0 - 1)
    assert (child.delta_of, child.parent, child.best) == ("time_us", 0, True)
    assert child.low is not None
    assert child.high is not None
    assert child.low <= child.speedup <= child.high


def test_a_modelled_attempt_is_compared_with_its_parent_by_modelled_time_and_has_no_speedup() -> None:
    view = task_view(golden_records("modelled"), "softmax")
    by_number = {node.number: node for node in view.lineage}
    assert (by_number[1].delta, by_number[1].delta_of) == (pytest.approx(19 / 29 - 1), "time_us")
    assert by_number[2].delta is None  # it crashed
    assert {node.speedup for node in view.lineage} == {None}
    assert by_number[5].step == "tune BLOCK = 512"


def test_a_quarantined_time_is_no_ground_for_a_comparison() -> None:
    nodes = task_view(golden_records("measured-a"), "attention").lineage
    assert all(node.delta_of != "time_us" for node in nodes)
    assert {node.speedup for node in nodes} == {None}


def test_tables_hold_the_numbers_of_the_view() -> None:
    view = task_view(golden_records("measured-a"), "softmax")
    table = lineage_table(view.lineage, origin=Origin.MEASURED)
    at = [column.key for column in table.columns].index("speedup")
    assert [row[at] for row in table.rows] == [node.speedup for node in view.lineage]
    assert [row[1] for row in baseline_table(view.baselines).rows] == [row.median_us for row in view.baselines]
    modelled = lineage_table(view.lineage, origin=Origin.MODELLED)
    assert "speedup" not in [column.key for column in modelled.columns]
    assert len(size_table(view.sizes).rows) == len(view.sizes)
    assert json.loads(view.model_dump_json())["lineage"][1]["speedup"] == view.lineage[1].speedup


def test_a_near_copy_is_marked_with_the_earlier_attempt_that_it_is_most_like() -> None:
    records = golden_records("modelled")
    body = "  out[threadIdx.x] += 1.0f;\n" * 30
    attempts = []
    for attempt in records.of_task("softmax"):
        last = {2: "out[0] = 2.0f;", 3: "out[0] = 3.0f; out[1] = 1.0f;"}
        candidate = attempt.candidate
        if attempt.number in last and candidate is not None:
            source = f"__global__ void k{attempt.number}(float* out) {{\n{body}  {last[attempt.number]}\n}}"
            candidate = candidate.model_copy(update={"source": source})
        named = attempt.evaluation.candidate if candidate is None else candidate.hash
        evaluation = attempt.evaluation.model_copy(update={"candidate": named})
        attempts.append(attempt.model_copy(update={"candidate": candidate, "evaluation": evaluation}))
    records = replace(records, attempts=tuple(attempts))
    view = task_view(records, "softmax")
    near = {node.number: node.alike_to for node in view.lineage if node.number in (2, 3)}
    assert near == {2: None, 3: 2}
    assert all(0.9 <= node.alike < 1 for node in view.lineage if node.alike is not None)
    table = lineage_table(view.lineage, origin=Origin.MODELLED)
    assert {column.key for column in table.columns} >= {"alike", "alike_to"}
    words = f"{percent(next(node.alike for node in view.lineage if node.number == 3))} alike 02"
    assert words in drawn(task_lines(view), width=200)
    site = Site([records])
    page = parse(site.render(next(path for path in site.pages() if path.endswith("softmax/index.html"))) or "")
    assert words in " ".join(page.text.split())
