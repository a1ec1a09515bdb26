"""Attempts of a client so far and the best, earlier sessions, batches, tuning; no hidden size in any of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernelforge.errors import StoreError, UsageError
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.mcp.service import MAX_BATCH, Service
from kernelforge.records import Budget, RunState
from kernelforge.store import Store
from kernelforge.tasks.suites import Catalogue
from tests.mcp.mcp_talk import BROKEN, CODER, PLAN, RIGHT, VISIBLE_COLS, WRONG, Call, Refused, ask, talk

TUNED = PLAN.replace("def forward", "# tune: BLOCK = 32 | 256\ndef forward").replace("256), 256]", "BLOCK), BLOCK]")
WHOLE_WARPS = RIGHT.replace("if (i < n)", "if (i < n / 32 * 32)")
TRAP = RIGHT.replace("const float v", 'if (cols % 32) asm volatile("trap;"); const float v').replace(
    "long long n)", "long long n, int cols)"
)
WITH_COLS = PLAN.replace("i64(x.numel()))", "i64(x.numel()), i32(x.shape[1]))")


@pytest.mark.slow
def test_attempts_so_far_and_the_best_are_told(service: Service) -> None:
    async def session(call: Call) -> list[dict[str, Any]]:
        before = await call("attempts")
        wrong = await call("submit", task="tiny/gelu", source=WRONG, plan=PLAN, note="ReLU first")
        right = await call("submit", task="tiny/gelu", source=RIGHT, plan=PLAN)
        await call("submit", task="tiny/other", source=BROKEN, plan=PLAN)
        page_of_one = await call("show_attempt", attempt=right["attempt"])
        of_task, page = await call("attempts", task="tiny/gelu"), await call("attempts", limit=1, offset=1)
        return [before, wrong, right, page_of_one, of_task, page]

    before, wrong, right, page_of_one, of_task, page = talk(service, session, mode="legacy")
    assert (before["total"], before["progress"]) == (0, [])
    assert [row["attempt"] for row in of_task["attempts"]] == [wrong["attempt"], right["attempt"]]
    first, second = of_task["attempts"]
    assert (first["client_note"], first["verdict"], first["time_us"]) == ("ReLU first", "WRONG", None)
    assert (second["parent"], second["accepted"], second["origin"]) == (wrong["attempt"], True, "modelled")
    assert second["predicted_speedup"] == right["evaluation"]["time"]["predicted"]["speedup"]
    (progress,) = of_task["progress"]
    assert (progress["task"], progress["attempts"], progress["best"]) == ("tiny/gelu", 2, right["attempt"])
    assert progress["best_time_us"] == second["time_us"]
    assert (page["total"], page["next_offset"], page["attempts"]) == (3, 2, [second])
    assert len(page["progress"]) == 2
    assert (page_of_one["source"], page_of_one["plan"], page_of_one["attempt"]) == (RIGHT, PLAN, second)
    with pytest.raises(UsageError, match="submitted no attempt"):
        service.show_attempt("mcp:another", right["attempt"])
    service.close()


@pytest.mark.slow
def test_a_client_goes_on_with_its_earlier_session(
    catalogue: Catalogue, pool: EvaluatorPool, store: Store, service: Service
) -> None:
    first = ask(service, "submit", task="tiny/gelu", source=WRONG, plan=PLAN)
    run = store.run("latest")
    second = Service(catalogue, pool, store, Budget(evaluations=7))
    with pytest.raises(StoreError, match="already going on"):
        second.go_on(CODER, "tiny", None)
    service.close()
    with pytest.raises(Refused, match="no earlier session of this client"):
        ask(second, "go_on")  # of suite core
    with pytest.raises(UsageError, match="no earlier session of this client"):
        second.go_on("mcp:another", "tiny", None)

    async def session(call: Call) -> list[dict[str, Any]]:
        answer = await call("go_on", suite="tiny")
        assert store.run(run.id).state is RunState.RUNNING
        page = await call("show_attempt", attempt=answer["progress"][0]["next_parent"])
        assert (page["source"], page["finding"]["kind"]) == (WRONG, "repair")
        return [
            answer,
            await call("submit", task="tiny/gelu", source=RIGHT, plan=PLAN),
            await call("attempts"),
        ]

    answer, repaired, attempts = talk(second, session)
    assert (answer["run"], answer["progress"][0]["next_parent"]) == (run.id, first["attempt"])
    assert (repaired["parent"], repaired["operator"], repaired["accepted"]) == (first["attempt"], "repair", True)
    assert [row["attempt"] for row in attempts["attempts"]] == [first["attempt"], repaired["attempt"]]
    with pytest.raises(Refused, match=f"has a run of tiny already: {run.id}"):
        ask(second, "go_on", suite="tiny")
    second.close()
    assert [stored.id for stored in store.runs()] == [run.id]
    assert store.run(run.id).state is RunState.FINISHED
    journalled = store.attempts(run.id)
    assert [attempt.id for attempt in journalled] == [first["attempt"], repaired["attempt"]]
    assert journalled[1].finding is not None
    assert journalled[1].finding.kind == "repair"
    assert WRONG in json.loads(journalled[1].messages[0].content)["source"]


@pytest.mark.slow
def test_attempts_of_another_evaluator_are_not_gone_on_with(
    catalogue: Catalogue, pool: EvaluatorPool, store: Store, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(service, "submit", task="tiny/gelu", source=BROKEN, plan=PLAN)
    service.close()
    monkeypatch.setattr(pool, "_evaluator_version", "0")
    with pytest.raises(Refused, match=r"was judged by evaluator .*, and this is 0"):
        ask(Service(catalogue, pool, store, Budget()), "go_on", suite="tiny")


@pytest.mark.slow
def test_failures_at_hidden_sizes_are_counted_on_in_a_later_session(
    catalogue: Catalogue, pool: EvaluatorPool, store: Store, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.compile_stage.HIDDEN_FAILURES", 1)
    trapped = {"task": "tiny/gelu", "source": TRAP, "plan": WITH_COLS}
    assert ask(service, "submit", **trapped)["evaluation"]["verdict"] == "CRASH"
    service.close()

    async def session(call: Call) -> dict[str, Any]:
        await call("go_on", suite="tiny")
        return await call("evaluate", **trapped)

    second = Service(catalogue, pool, store, Budget())
    answer = talk(second, session)
    assert (answer["verdict"], answer["reason"][:9]) == ("WRONG", "it fails ")
    assert answer["visible_failure"]["verdict"] == "CRASH", "this it was free to find out at any visible size"
    second.close()


@pytest.mark.slow
def test_a_failure_at_a_hidden_size_is_shown_at_a_visible_one(service: Service) -> None:
    answer = ask(service, "evaluate", task="tiny/gelu", source=WHOLE_WARPS, plan=PLAN)
    assert (answer["verdict"], answer["stage"]) == ("WRONG", "hidden")
    failure = answer["visible_failure"]
    assert (failure["verdict"], failure["constants"]) == ("WRONG", {"ROWS": 8, "COLS": 3})
    assert failure["reason"].startswith("at the visible size, task inputs: ")
    only_listed = " || ".join(f"cols == {cols}" for cols in (*VISIBLE_COLS, 3, 33, 7, 129, 20, 257, 68))
    source = TRAP.replace("cols % 32", f"cols > 512 && !({only_listed})")
    answer = ask(service, "evaluate", task="tiny/gelu", source=source, plan=WITH_COLS)
    assert (answer["verdict"], answer["visible_failure"]) == ("CRASH", None)


@pytest.mark.slow
def test_a_batch_is_judged_in_order_within_the_budget(catalogue: Catalogue, pool: EvaluatorPool, store: Store) -> None:
    service = Service(catalogue, pool, store, Budget(evaluations=3))
    slow = PLAN.replace("256), 256]", "32), 32]")
    texts = [(WRONG, PLAN), (RIGHT, slow), (RIGHT, PLAN), (RIGHT, PLAN)]
    candidates = [{"source": source, "plan": plan} for source, plan in texts]
    answer = ask(service, "evaluate_batch", task="tiny/gelu", candidates=candidates)
    rows = answer["results"]
    assert [row["verdict"] for row in rows] == ["WRONG", "OK", "OK", None]
    assert (rows[3]["outcome"], rows[3]["stage"]) == ("not evaluated", None)
    assert "budget of 3 evaluations is spent" in rows[3]["reason"]
    times = [row["time"]["time_us"] for row in rows[1:3]]
    assert answer["fastest"] == 1 + times.index(min(times))
    assert answer["evaluations_left"] == 0
    with pytest.raises(Refused, match="budget of 3 evaluations is spent"):
        ask(service, "evaluate_batch", task="tiny/gelu", candidates=candidates)
    with pytest.raises(Refused, match="16"):
        ask(service, "evaluate_batch", task="tiny/gelu", candidates=candidates[:1] * (MAX_BATCH + 1))
    assert store.runs() == []


@pytest.mark.slow
def test_tuning_values_are_searched_at_the_full_size(service: Service, store: Store) -> None:
    answer = ask(service, "tune", task="tiny/gelu", source=RIGHT, plan=TUNED)
    assert answer["evaluation"]["verdict"] == "OK"
    assert [trial["choices"] for trial in answer["trials"]] == [{"BLOCK": 32}, {"BLOCK": 256}]
    assert all(trial["time_us"] > 0 and not trial["problem"] for trial in answer["trials"])
    assert answer["winner"] in (None, {"BLOCK": 256})
    wrong = ask(service, "tune", task="tiny/gelu", source=WRONG, plan=TUNED)
    assert (wrong["evaluation"]["verdict"], wrong["trials"], wrong["winner"]) == ("WRONG", [], None)
    with pytest.raises(Refused, match="offers no choice"):
        ask(service, "tune", task="tiny/gelu", source=RIGHT, plan=PLAN)
    assert store.runs() == []


@pytest.mark.slow
def test_tuning_does_not_tell_which_values_support_hidden_sizes(service: Service) -> None:
    guard = "    assert x.shape[1] <= MOST\n    out = empty_like(x)\n"
    plan = PLAN.replace("    out = empty_like(x)\n", guard).replace("def ", "# tune: MOST = 8000 | 6000 | 600\ndef ", 1)
    answer = ask(service, "tune", task="tiny/gelu", source=RIGHT, plan=plan)
    assert answer["evaluation"]["verdict"] == "OK"
    assert {trial["problem"] for trial in answer["trials"]} == {""}
    assert len({trial["time_us"] for trial in answer["trials"]}) == 1


@pytest.mark.slow
def test_a_session_starts_from_a_text_or_from_an_attempt_of_another_run(
    catalogue: Catalogue, pool: EvaluatorPool, store: Store
) -> None:
    service = Service(catalogue, pool, store, Budget(evaluations=1))

    async def session(call: Call) -> list[dict[str, Any]]:
        return [
            await call("start", task="tiny/gelu", text=f"/* plan:\n{PLAN}*/\n{WRONG}"),
            await call("show_attempt", attempt=store.attempts(store.run("latest").id)[0].id),
            await call("submit", task="tiny/gelu", source=RIGHT, plan=PLAN),
            await call("attempts"),
        ]

    first, page, second, attempts = talk(service, session)
    (row,) = first["progress"]
    assert (row["attempts"], row["best"]) == (1, None)
    assert (page["attempt"]["operator"], page["attempt"]["parent"]) == ("start", None)
    assert (page["attempt"]["verdict"], page["finding"]["kind"]) == ("WRONG", "repair")
    assert (second["operator"], second["parent"], second["accepted"]) == ("repair", row["next_parent"], True)
    assert second["evaluation"]["evaluations_left"] == 0
    assert len(attempts["attempts"]) == 2
    with pytest.raises(Refused, match="has attempts at gelu already"):
        ask(service, "start", task="tiny/gelu", text=RIGHT)
    for arguments, words in (
        ({}, "give either the text"),
        ({"text": "x", "attempt": "y"}, "give either the text"),
        ({"text": "no kernel"}, "it holds no kernel"),
        ({"text": "\ud800"}, "surrogate"),
        ({"attempt": "nothing/gelu/0"}, "nothing"),
    ):
        with pytest.raises(UsageError, match=words):
            service.start(CODER, "tiny/other", **{"text": None, "attempt": None, **arguments})
    service.close()
    begun, repaired = store.attempts(store.run("latest").id)
    assert begun.start is not None
    assert (begun.coder, begun.messages, begun.start.attempt) == ("", (), None)

    other = Service(catalogue, pool, store, Budget())
    answer = other.start("mcp:other", "tiny/other", None, repaired.id)
    assert answer.progress[0].best == f"{answer.run}/other/00"
    other.close()
    (started,) = store.attempts(store.run("latest").id)
    assert started.start is not None
    assert (started.start.attempt, started.candidate) == (repaired.id, repaired.candidate)
