"""The tools: the judge's word reaches a client whole, only submissions are journalled, and nothing secret gets out."""

from __future__ import annotations

import json
import os
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from mcp import Client
from mcp_types import TextResourceContents

import kernelforge.mcp.server
from kernelforge.agents.prompting.skill import skill_files
from kernelforge.errors import SandboxError, UsageError
from kernelforge.evaluation.evaluator import EvaluationResult, Evaluator
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.stages.compile_stage import BuildState
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.mcp.candidates import MAX_NOTE_CHARS
from kernelforge.mcp.server import build_server
from kernelforge.mcp.service import Service
from kernelforge.records import (
    UNCOMPARED,
    Budget,
    Candidate,
    Correctness,
    Operator,
    RunState,
    SizeCheck,
    Verdict,
)
from kernelforge.report import RunRecords, export_object, leaderboard, run_view
from kernelforge.run import StopSignal, resume_run
from kernelforge.store import Store
from kernelforge.tasks.suites import Catalogue
from tests.mcp.mcp_talk import (
    BROKEN,
    CODER,
    HIDDEN_COLS,
    ME,
    PLAN,
    RIGHT,
    VISIBLE_COLS,
    WRONG,
    Call,
    Refused,
    ask,
    talk,
)  # fmt: skip


def test_every_tool_is_described_and_typed(service: Service) -> None:
    async def listed() -> list[Any]:
        return await build_server(service).list_tools()

    tools = {tool.name: tool for tool in anyio.run(listed)}
    assert set(tools) == {
        "list_tasks",
        "show_task",
        "plan_language",
        "notes",
        "compile",
        "show_code",
        "evaluate",
        "evaluate_batch",
        "tune",
        "profile",
        "submit",
        "start",
        "attempts",
        "show_attempt",
        "go_on",
        "diff",
    }
    for tool in tools.values():
        assert tool.description
        assert tool.output_schema
        described = [
            description for description in tool.input_schema["properties"].values() if description.get("description")
        ]
        assert len(described) == len(tool.input_schema["properties"])
    listing = json.dumps([tool.model_dump(mode="json", exclude_none=True) for tool in tools.values()])
    assert len(listing) < 35_000, "a client's model may have to read all of it"
    assert all(tool.title for tool in tools.values())
    assert [name for name, tool in tools.items() if not tool.annotations.read_only_hint] == [
        "submit", "start", "go_on",
    ]  # fmt: skip


@pytest.mark.slow
def test_recorded_sessions_open_files_and_call_tools_that_exist(service: Service) -> None:
    async def listed() -> list[Any]:
        return await build_server(service).list_tools()

    schemas = {tool.name: tool.input_schema for tool in anyio.run(listed)}
    recording = Path(__file__).parents[2] / "results" / "reference" / "skill-core.jsonl"
    _, *sessions = map(json.loads, recording.read_text(encoding="utf-8").splitlines())
    assert len({session["task"] for session in sessions}) * 2 == len(sessions)
    for session in sessions:
        for step in session["steps"]:
            if "read" in step:
                assert step["read"] in skill_files()
                assert session["guide"] == "skill"
                continue
            arguments = {name: value for name, value in step["arguments"].items() if name != "parent"}
            jsonschema.validate(arguments, {**schemas[step["tool"]], "additionalProperties": False})


@pytest.mark.slow
def test_answers_fit_the_short_schemas_and_the_complete_ones(service: Service) -> None:
    texts = {"source": RIGHT, "plan": PLAN}

    async def main() -> None:
        async with Client(build_server(service), client_info=ME) as client:
            listed = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
            calls: list[tuple[str, dict[str, Any]]] = [
                ("evaluate_batch", {"candidates": [texts, {"source": WRONG, "plan": PLAN}]}),
                ("profile", texts),
                ("submit", texts),
                ("attempts", {}),
            ]
            for name, arguments in calls:
                answer = (await client.call_tool(name, {"task": "tiny/gelu", **arguments})).structured_content
                (complete,) = (await client.read_resource(f"kernelforge://answers/{name}")).contents
                assert isinstance(complete, TextResourceContents)
                full = json.loads(complete.text)
                assert len(json.dumps(listed[name])) < len(json.dumps(full))
                for schema in (listed[name], full):
                    jsonschema.validate(answer, schema)

    anyio.run(main)
    service.close()


def test_the_page_names_every_tool_with_its_arguments(service: Service) -> None:
    async def listed() -> list[Any]:
        return await build_server(service).list_tools()

    tools = {
        tool.name: [
            name if name in tool.input_schema.get("required", ()) else f"{name}?"
            for name in tool.input_schema["properties"]
        ]
        for tool in anyio.run(listed)
    }
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)\(([^)]*)\)` \|", page, re.MULTILINE)
    assert {name: arguments.split(", ") for name, arguments in rows} == tools


@pytest.mark.slow
def test_a_task_is_shown_without_its_hidden_sizes(service: Service) -> None:
    page = ask(service, "show_task", task="tiny/gelu")
    assert page["task"] == "tiny/gelu"
    assert "F.gelu" in page["prompt"]
    assert "ceil_div" in page["prompt"]
    assert all(f"{cols}" in page["prompt"] for cols in VISIBLE_COLS)
    assert "hidden_" not in page["prompt"]
    assert all(f", {cols}]" not in page["prompt"] for cols in HIDDEN_COLS)


@pytest.mark.slow
def test_compile_gives_registers_or_diagnostics_and_takes_no_evaluation(
    catalogue: Catalogue, pool: EvaluatorPool, store: Store
) -> None:
    service = Service(catalogue, pool, store, Budget(evaluations=1))
    good = ask(service, "compile", task="tiny/gelu", source=RIGHT, plan=PLAN)
    assert (good["ok"], good["verdict"]) == (True, None)
    assert good["kernels"][0]["kernel"] == "gelu"
    assert good["kernels"][0]["registers_per_thread"] > 0
    bad = ask(service, "compile", task="tiny/gelu", source=BROKEN, plan=PLAN)
    assert (bad["ok"], bad["verdict"], bad["stage"]) == (False, "BUILD", "compile")
    assert "no_such_name" in bad["reason"]
    assert ask(service, "evaluate", task="tiny/gelu", source=RIGHT, plan=PLAN)["evaluations_left"] == 0
    with pytest.raises(Refused, match="budget of 1 evaluations is spent"):
        ask(service, "evaluate", task="tiny/gelu", source=RIGHT, plan=PLAN)


@pytest.mark.slow
def test_an_evaluation_and_a_profile_are_not_journalled(service: Service, store: Store) -> None:
    answer = ask(service, "evaluate", task="tiny/gelu", source=RIGHT, plan=PLAN)
    assert (answer["verdict"], answer["reason"]) == ("OK", "")
    time = answer["time"]
    assert (time["origin"], time["speedup"]) == ("modelled", None)
    predicted = time["predicted"]
    assert predicted["low"] < predicted["speedup"] < predicted["high"]
    assert predicted["speedup"] == pytest.approx(predicted["eager_us"] / time["time_us"])
    assert predicted["eager_origin"] == "predicted"
    profile = ask(service, "profile", task="tiny/gelu", source=RIGHT, plan=PLAN, metrics="full")
    names = {metric["name"] for metric in profile["metrics"]}
    assert {"dram__bytes.sum", "ptx__warp_inst_executed.sum"} <= names
    assert profile["dram_ratio"] == pytest.approx(1.0, abs=0.2)
    assert profile["finding"]["kind"] in ("optimise", "stop")
    bottleneck = profile["finding"]["bottleneck"]
    assert bottleneck is None or ask(service, "notes", bottleneck=bottleneck)["total"] > 0
    assert store.runs() == []


@pytest.mark.slow
def test_hidden_sizes_are_one_row_and_what_tells_their_extents_is_left_out(service: Service) -> None:
    answer = ask(service, "evaluate", task="tiny/gelu", source=RIGHT, plan=PLAN)
    assert [check["size"] for check in answer["checks"]] == ["small", "hidden", "full"]
    assert [check["launches"] for check in answer["checks"]] == [1, None, 1]
    hidden = answer["checks"][1]
    assert (hidden["status"], hidden["error"], hidden["families"]) == ("passed", None, [])


@pytest.mark.slow
def test_after_so_many_failures_at_hidden_sizes_a_client_is_not_told_how(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.compile_stage.HIDDEN_FAILURES", 2)
    condition = " || ".join(f"cols == {cols}" for cols in VISIBLE_COLS)
    trap = RIGHT.replace("const float v", f'if (!({condition})) asm volatile("trap;"); const float v')
    trap = trap.replace("long long n)", "long long n, int cols)")
    plan = PLAN.replace("i64(x.numel()))", "i64(x.numel()), i32(x.shape[1]))")
    answers = [ask(service, "evaluate", task="tiny/gelu", source=trap, plan=plan) for _ in range(3)]
    assert [answer["verdict"] for answer in answers] == ["CRASH", "CRASH", "WRONG"]
    assert "not even how it fails" in answers[2]["reason"]
    assert ask(service, "evaluate", task="tiny/gelu", source=RIGHT, plan=PLAN)["verdict"] == "OK"


@pytest.mark.slow
def test_a_build_that_fails_at_a_hidden_size_alone_does_not_tell_its_extents(service: Service) -> None:
    condition = " || ".join(f"COLS == {cols}" for cols in VISIBLE_COLS)
    source = RIGHT.replace('extern "C"', "template <int COLS>").replace(
        "const float v", f'static_assert({condition}, "no"); const float v'
    )
    plan = PLAN.replace("gelu[", 'kernel(f"gelu<{x.shape[1]}>")[')
    compiled = ask(service, "compile", task="tiny/gelu", source=source, plan=plan)
    assert compiled["ok"], "what costs nothing must not tell whether hidden sizes compile"
    for tool in ("evaluate", "profile", "submit"):
        answer = ask(service, tool, task="tiny/gelu", source=source, plan=plan)
        judged = answer.get("evaluation", answer)
        assert (judged["verdict"], judged["stage"]) == ("BUILD", "compile")
        assert "hidden size" in judged["reason"]
        assert_nothing_secret_in(answer)
    service.close()


@pytest.mark.slow
def test_values_that_are_wrong_at_a_hidden_size_alone_do_not_tell_its_extents(service: Service) -> None:
    plan = PLAN.replace("i64(x.numel())", "i64(x.numel() if x.shape[1] % 4 == 0 else x.numel() - 1)")
    answer = ask(service, "submit", task="tiny/gelu", source=RIGHT, plan=plan)
    assert (answer["evaluation"]["verdict"], answer["evaluation"]["stage"]) == ("WRONG", "hidden")
    assert answer["finding"]["kind"] == "repair"
    assert_nothing_secret_in(answer)
    service.close()


def assert_nothing_secret_in(answer: dict[str, Any]) -> None:
    text = json.dumps(answer)
    assert "hidden_" not in text
    numbers = set(re.findall(r"(?<![\w.])\d+(?![\w.])", text.replace(",", "")))  # not digits of an error or of an id
    assert numbers.isdisjoint(str(cols) for cols in HIDDEN_COLS)


@pytest.mark.slow
def test_a_full_size_that_was_not_compared_is_told_with_every_verdict(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Evaluator.evaluate

    def partly(*args: Any, **options: Any) -> EvaluationResult:
        result = evaluate(*args, **options)
        correctness = result.evaluation.correctness
        assert correctness is not None
        skipped = SizeCheck(size="full", status="skipped", message="values not compared: too large")
        sizes = tuple(skipped if check.size == "full" else check for check in correctness.sizes)
        changed = result.evaluation.model_copy(update={"correctness": Correctness(sizes=sizes)})
        return result._replace(evaluation=changed)

    monkeypatch.setattr(Evaluator, "evaluate", partly)

    async def session(call: Call) -> list[dict[str, Any]]:
        first, second = [await call("submit", task="tiny/gelu", source=RIGHT, plan=PLAN) for _ in range(2)]
        return [first, await call("diff", attempt_a=first["attempt"], attempt_b=second["attempt"])]

    first, diff = talk(service, session, mode="legacy")
    assert (first["evaluation"]["verdict"], first["evaluation"]["outcome"]) == ("OK", UNCOMPARED)
    assert first["evaluation"]["checks"][-1]["message"] == "values not compared: too large"
    assert first["reward"] == 0
    assert (diff["outcome_before"], diff["outcome_after"]) == (UNCOMPARED, UNCOMPARED)
    service.close()


@pytest.mark.slow
def test_trouble_of_ours_is_no_fault_of_the_candidate_and_passes(service: Service) -> None:
    task = service._catalogue.task("tiny/gelu")[1]
    service._evaluator(task).oracle.close()
    answer = ask(service, "submit", task="tiny/gelu", source=RIGHT, plan=PLAN)
    assert (answer["evaluation"]["verdict"], answer["reward"], answer["accepted"]) == ("INFRA", None, False)
    repeated = ask(service, "submit", task="tiny/gelu", source=RIGHT, plan=PLAN)
    assert (repeated["evaluation"]["verdict"], repeated["accepted"]) == ("OK", True)
    service.close()


@pytest.mark.slow
def test_tasks_take_turns_where_few_are_kept_warm(
    service: Service, pool: EvaluatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.evaluators, "_max_tasks", 1)
    verdicts = [
        ask(service, "evaluate", task=f"tiny/{name}", source=RIGHT, plan=PLAN)["verdict"]
        for name in ("gelu", "other", "gelu")
    ]
    assert verdicts == ["OK"] * 3


@pytest.mark.slow
def test_submissions_become_a_run_that_everything_can_read(service: Service, store: Store) -> None:
    async def session(call: Call) -> list[dict[str, Any]]:
        page = await call("show_task", task="tiny/gelu")
        first = await call("submit", task="tiny/gelu", source=WRONG, plan=PLAN, note="ReLU ``` is close")
        second = await call("submit", task="tiny/gelu", source=RIGHT, plan=PLAN)
        third = await call("submit", task="tiny/gelu", source=RIGHT + "// the same", plan=PLAN, follows_finding=False)
        compared = await call("diff", attempt_a=first["attempt"], attempt_b=second["attempt"])
        return [page, first, second, third, compared]

    page, first, second, third, compared = talk(service, session, mode="legacy")
    assert (first["evaluation"]["verdict"], first["accepted"], first["reward"]) == ("WRONG", False, 0.0)
    assert first["finding"]["kind"] == "repair"
    assert (second["parent"], second["operator"], second["accepted"]) == (first["attempt"], "repair", True)
    assert second["reward"] > 0
    assert (third["parent"], third["operator"], third["accepted"]) == (second["attempt"], "optimise", False)
    assert third["best"] == third["next_parent"] == second["attempt"]
    assert "+        y[i] = 0.5f" in compared["source_diff"]
    assert compared["plan_diff"] == ""
    assert "dram__bytes.sum" in {metric["name"] for metric in compared["metrics"]}

    run = store.run("latest")
    assert (run.config.strategy, run.config.coder, run.state) == ("external", CODER, RunState.RUNNING)
    assert store.is_live(run.id)
    service.close()
    run = store.run("latest")
    assert (run.state, store.is_live(run.id)) == (RunState.FINISHED, False)
    attempts = store.attempts(run.id)
    assert [attempt.id for attempt in attempts] == [attempt["attempt"] for attempt in (first, second, third)]
    assert [attempt.operator for attempt in attempts] == [Operator.SEED, Operator.REPAIR, Operator.OPTIMISE]
    assert attempts[1].finding is not None
    assert attempts[2].finding is None
    exported = [export_object(attempt) for attempt in attempts]
    assert exported[0]["prompt"] == page["prompt"]
    assert exported[0]["reply"].startswith("ReLU ''' is close")
    assert json.loads(exported[1]["prompt"]) == first
    records = RunRecords.load(store, run)
    view = run_view(records)
    assert (view.tasks_ok, view.tasks_total, view.verdicts) == (1, 2, {Verdict.OK: 2, Verdict.WRONG: 1})
    assert leaderboard([records]).boards[0].entries[0].coder == CODER


def test_a_run_from_outside_cannot_be_resumed(service: Service, store: Store) -> None:
    ask(service, "submit", task="tiny/gelu", source=BROKEN, plan=PLAN)
    run = store.run("latest")
    with pytest.raises(UsageError, match=f"cannot be resumed: its candidates were submitted by {CODER}"):
        resume_run(run.id, store, _Nobody(), StopSignal())
    service.close()
    assert store.run("latest").state is RunState.FINISHED


class _Nobody:
    def on_event(self, event: object) -> None:
        raise AssertionError("nothing may happen")


@pytest.mark.slow
def test_a_submission_that_takes_up_another_attempt_says_so(service: Service) -> None:
    async def session(call: Call) -> dict[str, Any]:
        first = await call("submit", task="tiny/gelu", source=RIGHT, plan=PLAN)
        await call("submit", task="tiny/gelu", source=WRONG, plan=PLAN)
        last = await call("submit", task="tiny/gelu", source=BROKEN, plan=PLAN, parent=first["attempt"])
        assert last["parent"] == first["attempt"]
        with pytest.raises(Refused, match="another task"):
            await call("submit", task="tiny/other", source=WRONG, plan=PLAN, parent=first["attempt"])
        return last

    assert talk(service, session)["operator"] == "optimise"
    service.close()


@pytest.mark.slow
def test_calls_at_once_wait_for_each_other(service: Service) -> None:
    async def session(call: Call) -> list[str]:
        verdicts: list[str] = []

        async def evaluate_one(source: str) -> None:
            verdicts.append((await call("evaluate", task="tiny/gelu", source=source, plan=PLAN))["verdict"])

        async with anyio.create_task_group() as group:
            for source in (RIGHT, WRONG, BROKEN):
                group.start_soon(evaluate_one, source)
        return verdicts

    assert sorted(talk(service, session)) == ["BUILD", "OK", "WRONG"]


def test_calls_beyond_those_that_may_wait_are_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernelforge.mcp.server, "MAX_WAITING", 2)
    prepare, gate = Evaluator.prepare, threading.Event()

    def slow(evaluator: Evaluator, candidate: Candidate, preparation: BuildState) -> None:
        assert gate.wait(60)
        prepare(evaluator, candidate, preparation)

    monkeypatch.setattr(Evaluator, "prepare", slow)

    async def session(call: Call) -> list[str]:
        refusals: list[str] = []

        async def evaluate_one() -> None:
            try:
                await call("compile", task="tiny/gelu", source=RIGHT, plan=PLAN)
            except Refused as refused:
                refusals.append(str(refused))
                if len(refusals) == 3:
                    gate.set()

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(evaluate_one)
        return refusals

    refusals = talk(service, session)
    assert len(refusals) == 3
    assert all("2 calls are waiting already" in refusal for refusal in refusals)


@pytest.mark.slow
def test_a_call_that_is_cancelled_while_it_waits_takes_no_evaluation(
    catalogue: Catalogue, pool: EvaluatorPool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(catalogue, pool, store, Budget(evaluations=9))
    evaluate, begun, gate = Evaluator.evaluate, threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> EvaluationResult:
        begun.set()
        assert gate.wait(60)
        return evaluate(*args, **options)

    monkeypatch.setattr(Evaluator, "evaluate", slow)

    async def session(call: Call) -> int:
        async def evaluate_one() -> None:
            await call("evaluate", task="tiny/gelu", source=RIGHT, plan=PLAN)

        async with anyio.create_task_group() as first:
            first.start_soon(evaluate_one)
            await anyio.to_thread.run_sync(begun.wait)
            async with anyio.create_task_group() as second:
                second.start_soon(evaluate_one)
                await anyio.wait_all_tasks_blocked()
                second.cancel_scope.cancel()
            gate.set()
        return int((await call("evaluate", task="tiny/gelu", source=RIGHT, plan=PLAN))["evaluations_left"])

    assert talk(service, session) == 7


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_a_client_hears_how_far_a_call_is(
    service: Service, pool: EvaluatorPool, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(pool.evaluators, "_max_tasks", 1)
    ask(service, "show_task", task="tiny/other")
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    texts = {"source": RIGHT, "plan": PLAN}

    async def main() -> None:
        async with Client(build_server(service), client_info=ME, mode=mode) as client:
            for name, arguments in (("evaluate", texts), ("evaluate_batch", {"candidates": [texts, texts]})):
                await client.call_tool(name, {"task": "tiny/gelu", **arguments}, progress_callback=hear)

    anyio.run(main)
    assert heard == [
        (0, "0 calls ahead"), (0.5, "starting the task's reference"), (1, "compiling"),
        (2, "checking small and hidden sizes"), (3, "running the full size"),
        (0, "0 calls ahead"), (1, "1 of 2 evaluated"), (2, "2 of 2 evaluated"),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_a_call_that_is_cancelled_at_work_ends_and_its_evaluation_is_counted(
    catalogue: Catalogue, pool: EvaluatorPool, store: Store, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    service = Service(catalogue, pool, store, Budget(evaluations=9))
    begun, interrupted, interrupt = threading.Event(), threading.Event(), pool.interrupt
    check = CorrectnessStage.check_all

    def endless(stage: CorrectnessStage, *arguments: Any) -> None:
        if not begun.is_set():
            begun.set()
            assert interrupted.wait(240)
        check(stage, *arguments)

    def interrupts(*, oracles: bool) -> None:
        interrupt(oracles=oracles)
        interrupted.set()

    monkeypatch.setattr(CorrectnessStage, "check_all", endless)
    monkeypatch.setattr(pool, "interrupt", interrupts)

    async def session(call: Call) -> dict[str, Any]:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(call, "submit", task="tiny/gelu", source=RIGHT, plan=PLAN))
            await anyio.to_thread.run_sync(begun.wait)
            group.cancel_scope.cancel()
        return await call("evaluate", task="tiny/gelu", source=RIGHT, plan=PLAN)

    answer = talk(service, session, mode)
    assert (answer["verdict"], answer["evaluations_left"]) == ("OK", 7)
    assert store.runs() == []


@pytest.mark.slow
def test_a_batch_is_evaluated_side_by_side_and_answered_in_order(
    catalogue: Catalogue, pool: EvaluatorPool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(catalogue, pool, store, Budget(evaluations=4))
    evaluate, both, calls = Evaluator.evaluate, threading.Barrier(2), iter(range(9))

    def together(evaluator: Evaluator, candidate: Candidate, **options: Any) -> EvaluationResult:
        if next(calls) < 2:
            both.wait(240)
        if "no_such_name" in candidate.source:
            raise SandboxError("the child is gone")
        return evaluate(evaluator, candidate, **options)

    monkeypatch.setattr(Evaluator, "evaluate", together)
    sources = [WRONG, BROKEN, "", RIGHT, RIGHT + "// the same", RIGHT + "// beyond the budget"]
    candidates = [{"source": source, "plan": PLAN} for source in sources]
    answer = ask(service, "evaluate_batch", task="tiny/gelu", candidates=candidates)
    outcomes = [row["outcome"] for row in answer["results"]]
    assert outcomes == ["WRONG", "INFRA", "not evaluated", "OK", "OK", "not evaluated"]
    assert "source is empty" in answer["results"][2]["reason"]
    assert "budget of 4 evaluations is spent" in answer["results"][5]["reason"]
    assert answer["fastest"] in (3, 4)
    assert answer["evaluations_left"] == 0


def test_no_evaluation_begins_after_the_wall_time(catalogue: Catalogue, pool: EvaluatorPool, store: Store) -> None:
    service = Service(catalogue, pool, store, Budget(wall_seconds=1e-6))
    with pytest.raises(Refused, match="wall time is spent"):
        ask(service, "submit", task="tiny/gelu", source=RIGHT, plan=PLAN)
    assert store.runs() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["", "no_such_task", "../../etc/passwd", "/etc/passwd", "/etc/passwd.py", "core/../core/gelu", "core", "gelu\0",
     "tiny/matmul", "tasks/core/gelu.py", "x" * 100_000],
)  # fmt: skip
def test_only_tasks_that_are_offered_exist(service: Service, name: str) -> None:
    for tool in ("show_task", "submit"):
        rest = {} if tool == "show_task" else {"source": RIGHT, "plan": PLAN}
        with pytest.raises(Refused, match="there is no task") as refused:
            ask(service, tool, task=name, **rest)
        assert len(str(refused.value)) < 500


@pytest.mark.slow
def test_only_suites_that_are_offered_exist(service: Service, tmp_path: Path) -> None:
    for name in ("../core", os.fspath(tmp_path), "/etc", "\0"):
        with pytest.raises(Refused, match="there is no suite"):
            ask(service, "list_tasks", suite=name)
    with pytest.raises(UsageError):
        Catalogue(["no_such_suite"])
    with pytest.raises(UsageError):
        Catalogue(tasks=["no_such_task"])
    narrow = Catalogue(tasks=["gelu"])
    assert (narrow.names, [task.name for task in narrow.tasks("core")]) == (("core",), ["gelu"])
    with pytest.raises(UsageError, match="there is no task 'core/matmul'"):
        narrow.task("core/matmul")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"source": "x" * (1 << 20)}, "source has 1,048,576 bytes; the limit is 262,144"),
        ({"plan": "x" * (1 << 20)}, "plan has 1,048,576 bytes"),
        ({"source": RIGHT + "\0"}, "source holds a NUL"),
        ({"plan": ""}, "plan is empty"),
        ({"plan": "\n \n"}, "plan is empty"),
        ({"note": "x" * (MAX_NOTE_CHARS + 1)}, "note has 2,001 characters"),
        ({"choices": {f"T{n}": n for n in range(100)}}, "100 choices are too many"),
        ({"choices": {"../x": 1}}, "not a '# tune:' name"),
        ({"choices": {"T": 1 << 70}}, "not a '# tune:' name"),
        ({"parent": "../../etc/passwd"}, "submitted no attempt"),
        ({"source": 7}, "valid string"),
    ],
)
def test_what_is_no_candidate_is_refused_and_not_journalled(
    service: Service, store: Store, changes: dict[str, Any], complaint: str
) -> None:
    arguments = {"task": "tiny/gelu", "source": RIGHT, "plan": PLAN, **changes}
    with pytest.raises(Refused, match=complaint):
        ask(service, "submit", **arguments)
    assert store.runs() == []


@pytest.mark.slow
def test_attempts_of_other_clients_cannot_be_compared(service: Service) -> None:
    attempt = ask(service, "submit", task="tiny/gelu", source=BROKEN, plan=PLAN)["attempt"]
    with pytest.raises(UsageError, match="submitted no attempt"):
        service.diff("mcp:another", attempt, attempt)
    service.close()


def test_a_name_of_a_client_becomes_a_plain_word() -> None:
    from kernelforge.run.submissions import external_coder

    assert external_coder("", "") == "mcp:unknown"
    assert external_coder("a,b\n\x1b[31m/../c", "1,0") == "mcp:a-b-31m-..-c/1-0"
    assert len(external_coder("x" * 10_000, "y" * 10_000)) < 100
