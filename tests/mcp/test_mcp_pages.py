"""Tools that a client reads by: lists with filters and pages, names without a suite, launch plans, notes and code."""

from __future__ import annotations

import builtins
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import TextResourceContents

from kernelforge.agents.diagnosis.diagnose import all_notes
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.hardware.specs import SPECS
from kernelforge.mcp.pages import note_page
from kernelforge.mcp.server import build_server
from kernelforge.mcp.service import Service
from kernelforge.records import Budget, Graph, Node
from kernelforge.store import Store
from kernelforge.tasks.suites import Catalogue
from tests.agents.prompt_samples import BRIEF
from tests.mcp.mcp_talk import BROKEN, ME, PLAN, RIGHT, Call, Refused, ask, talk, write_suite

MOST_BYTES = 12_000
"""Of a page of a list, as JSON."""


@pytest.fixture(scope="module")
def large() -> Catalogue:
    return Catalogue(["core", "hgemm", "hgemm-f16"])


@pytest.fixture
def readers(large: Catalogue, pool: EvaluatorPool, store: Store) -> Service:
    return Service(large, pool, store, Budget())


@pytest.mark.slow
def test_a_suite_of_a_thousand_tasks_is_read_in_short_pages(readers: Service) -> None:
    async def session(call: Call) -> list[dict[str, Any]]:
        pages = [await call("list_tasks", suite="hgemm", limit=200)]
        while pages[-1]["next_offset"] is not None:
            pages.append(await call("list_tasks", suite="hgemm", limit=200, offset=pages[-1]["next_offset"]))
        return [await call("list_tasks", suite="hgemm"), *pages]

    first, *pages = talk(readers, session)
    assert (len(first["tasks"]), first["next_offset"], first["total"]) == (50, 50, 1000)
    assert len(json.dumps(first)) < MOST_BYTES
    assert {row["suite"]: row["tasks"] for row in first["suites"]} == {"core": 16, "hgemm": 1000, "hgemm-f16": 1000}
    names = [row["task"] for page in pages for row in page["tasks"]]
    assert len(names) == len(set(names)) == 1000


MOST_BYTES_OF_A_TASK = {
    "show_task": 9_000,
    "notes": 9_000,
    "compile": 1_000,
    "show_code": 8_000,
    "evaluate": 3_000,
    "profile": 6_000,
    "submit": 4_000,
    "attempts": 1_000,
}
"""Of an answer about a candidate of one kernel, as JSON; the message repeats it as text for clients that read that."""


@pytest.mark.slow
def test_answers_about_a_task_are_short(service: Service) -> None:
    texts = {"source": RIGHT, "plan": PLAN}
    for tool, most in MOST_BYTES_OF_A_TASK.items():
        takes_texts = tool not in ("show_task", "notes", "attempts")
        answer = ask(service, tool, task="tiny/gelu", **(texts if takes_texts else {}))
        size = len(json.dumps(answer, separators=(",", ":")))
        assert size < most, (tool, size)
    service.close()


@pytest.mark.slow
def test_a_list_takes_filters(readers: Service) -> None:
    def listed(**filters: Any) -> list[str]:
        return [row["task"] for row in ask(readers, "list_tasks", **filters)["tasks"]]

    assert listed(select=["*softmax*"]) == ["core/softmax"]
    assert listed(suite="hgemm", select=["m64_n64_k*"], limit=2) == ["hgemm/m64_n64_k64", "hgemm/m64_n64_k128"]
    rows = ask(readers, "list_tasks")["tasks"]
    tag, level = rows[0]["tags"][0], rows[0]["level"]
    assert listed(tag=tag) == [row["task"] for row in rows if tag in row["tags"]]
    assert listed(level=level) == [row["task"] for row in rows if row["level"] == level]
    assert listed(tag="no such tag") == []
    with pytest.raises(Refused, match="did you mean softmax"):
        listed(select=["sofmax"])


@pytest.mark.slow
def test_a_name_without_a_suite_is_enough_where_one_suite_has_it(readers: Service, service: Service) -> None:
    assert ask(service, "show_task", task="other")["task"] == "tiny/other"
    with pytest.raises(Refused, match="hgemm/m64_n64_k64, hgemm-f16/m64_n64_k64"):
        ask(readers, "show_task", task="m64_n64_k64")
    with pytest.raises(Refused, match="did you mean softmax"):
        ask(readers, "show_task", task="sofmax")


@pytest.mark.slow
def test_the_reference_of_launch_plans_is_read_by_section(service: Service) -> None:
    page = ask(service, "show_task", task="tiny/gelu")
    sections = page["plan_sections"]
    assert "Constants and tuning" in sections
    part = ask(service, "plan_language", task="tiny/gelu", section="Constants and tuning")
    assert part["sections"] == sections
    assert "# tune:" in part["text"]
    assert part["text"] in ask(service, "plan_language", task="tiny/gelu")["text"]
    with pytest.raises(Refused, match=r"no section 'Cooking'.*Constants and tuning"):
        ask(service, "plan_language", task="tiny/gelu", section="Cooking")


def test_notes_leave_out_what_the_tasks_device_lacks() -> None:
    product = Node(name="product", kind="op", op="aten.mm")
    hopper = replace(BRIEF, graph=Graph(size="full", nodes=(product,)))
    older = replace(hopper, spec=SPECS["a100"])
    ids = [{note.id for note in note_page(context, None, 0, 200).notes} for context in (hopper, older, None)]
    lacking = {note.id for note in all_notes() if note.capabilities[0] > (8, 0)}
    assert {"wgmma", "tma"} <= ids[0] - ids[1] <= lacking
    assert ids[1].isdisjoint(lacking)
    assert ids[0] < ids[2]


@pytest.mark.slow
def test_notes_are_about_a_bottleneck_and_the_operators_of_a_task(service: Service) -> None:
    every = ask(service, "notes", limit=200)
    assert (len(every["notes"]), every["next_offset"]) == (every["total"], None)
    page = ask(service, "notes", offset=2)
    assert (page["notes"], page["next_offset"]) == (every["notes"][2:12], 12)
    assert all(note["text"] and note["source"] for note in every["notes"])
    some = ask(service, "notes", bottleneck="bank-conflict", task="tiny/gelu")["notes"]
    assert 0 < len(some) < len(every["notes"])
    assert all("bank-conflict" in note["bottlenecks"] for note in some)
    places = [note["bottlenecks"].index("bank-conflict") for note in some]
    assert places == sorted(places)
    assert "attention-tiles" not in {note["id"] for note in ask(service, "notes", task="tiny/gelu", limit=200)["notes"]}
    with pytest.raises(Refused, match="no note is about 'weather'; there are notes about dram-bound"):
        ask(service, "notes", bottleneck="weather")


@pytest.mark.slow
def test_pages_notes_and_tasks_are_resources(service: Service) -> None:
    async def main() -> None:
        async with Client(build_server(service), client_info=ME) as client:

            async def read(address: str) -> str:
                (content,) = (await client.read_resource(address)).contents
                assert isinstance(content, TextResourceContents)
                return content.text

            listed = [resource.uri for resource in (await client.list_resources()).resources]
            pages = {address: await read(address) for address in listed}
            assert "## Launches" in pages["kernelforge://docs/launch-plan"]
            assert "`memory_l1_wavefronts_shared`" in pages["kernelforge://docs/metrics"]
            templates = (await client.list_resource_templates()).resource_templates
            about = {template.uri_template: template.description or "" for template in templates}
            for template, name in (("docs/launch-plan/{section}", "launches"), ("notes/{bottleneck}", "bank-conflict")):
                assert name in about[f"kernelforge://{template}"]
                assert await read(f"kernelforge://{template.partition('{')[0]}{name}")
            prompt = (await client.call_tool("show_task", {"task": "other"})).structured_content
            assert prompt is not None
            assert await read("kernelforge://tasks/tiny/other") == prompt["prompt"]
            for address in (
                "notes/weather",
                "docs/launch-plan/..%2F..%2FSKILL",
                "tasks/tiny/none",
                "answers/none",
                "x",
            ):
                with pytest.raises(MCPError):
                    await read(f"kernelforge://{address}")

    anyio.run(main)


@pytest.mark.slow
def test_code_is_shown_page_by_page(service: Service, pool: EvaluatorPool) -> None:
    code: dict[str, Any] = {"task": "tiny/gelu", "source": RIGHT, "plan": PLAN}
    machine = ask(service, "show_code", **code)
    assert (machine["kernel"], machine["kernels"], machine["arch"]) == ("gelu", ["gelu"], pool.device.arch)
    lines = machine["text"].split("\n")
    assert len(lines) == machine["total_lines"]
    source_line = 1 + RIGHT.split("\n").index("        const float v = x[i];")
    assert any("LDG" in line and line.endswith(f"line {source_line}") for line in lines)
    assert any("EXIT" in line for line in lines)
    part = ask(service, "show_code", **code, offset=3, limit=4)
    assert (part["text"].split("\n"), part["next_offset"]) == (lines[3:7], 7)
    ptx = ask(service, "show_code", **code, kind="ptx")["text"]
    assert ptx.startswith(".visible .entry gelu(")
    assert ptx.endswith("}")
    assert "ld.global" in ptx
    with pytest.raises(Refused, match="no kernel 'ghost'; it has: gelu"):
        ask(service, "show_code", **code, kernel="ghost")
    idle = "def forward(x):\n    return empty_like(x)\n"
    with pytest.raises(Refused, match="the plan launches no kernel"):
        ask(service, "show_code", task="tiny/gelu", source=RIGHT, plan=idle)
    with pytest.raises(Refused, match=r"there is no code: BUILD at stage compile: .*no_such_name"):
        ask(service, "show_code", task="tiny/gelu", source=BROKEN, plan=PLAN)


@pytest.mark.parametrize("tool", ["show_task", "plan_language", "compile", "show_code", "evaluate", "tune", "submit"])
def test_no_code_of_others_runs_in_the_process_of_the_server(
    tmp_path: Path, pool: EvaluatorPool, store: Store, tool: str
) -> None:
    folder = write_suite(tmp_path / "hostile")
    planted = "import builtins\nbuiltins.canary_of_a_task = True\n"
    (folder / "gelu.py").write_text(planted + (folder / "gelu.py").read_text())
    plan = PLAN.replace(
        "    out", "    # tune: T = 1 | 2\n    __import__('builtins').canary_of_a_plan = True\n    out", 1
    )
    service = Service(Catalogue([os.fspath(folder)]), pool, store, Budget())
    texts = {} if tool in ("show_task", "plan_language") else {"source": RIGHT, "plan": plan}
    try:
        answer = ask(service, tool, task="gelu", **texts)
    except Refused:
        pass  # a task or a plan may be refused as well
    else:
        assert not texts or "OK" not in json.dumps(answer)
    service.close()
    assert not hasattr(builtins, "canary_of_a_task")
    assert not hasattr(builtins, "canary_of_a_plan")
