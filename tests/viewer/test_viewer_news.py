"""Events for open pages: the state of a run, and news, for any writer and any time of connecting."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import StoreError, UsageError
from kernelforge.records import Attempt, RunState
from kernelforge.report.views.progress import ProgressView, RunProgress
from kernelforge.report.views.run_records import RunRecords
from kernelforge.run.events import Event
from kernelforge.store import Store
from kernelforge.store.live_runs import remove_status, write_status
from kernelforge.viewer.app import live_context
from kernelforge.viewer.event_stream import EventBroadcaster
from kernelforge.viewer.run_cache import RunCache
from tests.support.recorded_run import (
    HOSTILE,
    TASKS,
    fill,
    golden_attempts,
    make_facts,
    make_graph,
    make_run,
    make_task,
)
from tests.viewer.page_tree import text_of, tree, with_class
from tests.viewer.viewer_tools import listening, opened, until


def begun(folder: Path, run_id: str = "r1") -> tuple[Store, list[Attempt]]:
    """A run with its tasks and the first two attempts at softmax; and all attempts that it is going to make."""
    run = make_run(run_id)
    store = Store.open(folder / "kernelforge.db")
    store.start_run(run)
    for name in TASKS:
        store.put_task(run_id, make_task(name), make_facts(make_task(name)), make_graph())
    attempts = golden_attempts(run)
    for attempt in attempts[:2]:
        store.add_attempt(attempt)
    return store, attempts


def standing_at(*events: Event) -> RunProgress:
    fold = RunProgress(make_run().config, pid=1)
    for event in (Event("run_started", message="r1"), *events):
        fold.on_event(event, datetime.now(UTC))
    return fold


def rows_of(page: str, name: str) -> list[str]:
    """Text of each row of a table."""
    (table,) = with_class(page, "data", name)
    return [" ".join(text_of(*row).split()) for row in table.iterfind("tbody/tr")]


@pytest.mark.slow
async def test_a_page_hears_of_an_attempt_and_then_shows_it(tmp_path: Path) -> None:
    store, attempts = begun(tmp_path)
    with store:
        async with opened(tmp_path) as viewer, listening(viewer.client) as next_one:
            first = await next_one("progress")
            assert first.data["progress"]["funnel"]["generated"] == 2
            assert (await viewer.client.get("/runs/r1/softmax/02.html")).status_code == 404
            await next_one("changed")
            store.add_attempt(attempts[2])
            await next_one("changed")
            page = await viewer.client.get("/runs/r1/softmax/02.html")
            assert "CRASH" in page.text
            store.add_attempt(attempts[3])
            assert (await next_one("progress")).data["progress"]["funnel"]["generated"] == 4


async def test_what_a_live_run_tells_is_on_the_page_and_in_the_events(tmp_path: Path) -> None:
    store, attempts = begun(tmp_path)
    with store, store.lock_run("r1"):
        fold = standing_at(
            Event("stage", task="softmax", round=2, stage="evaluate"),
            Event("attempt", task="softmax", attempt=attempts[1]),
        )
        write_status(tmp_path, "r1", fold.view(datetime.now(UTC)).model_dump_json())
        async with opened(tmp_path) as viewer, listening(viewer.client) as next_one:
            news = (await next_one("progress")).data
            view = ProgressView.model_validate(news["progress"])
            assert (view.state, view.lanes[0].task, view.lanes[0].stage) == ("running", "softmax", "evaluate")
            assert news["links"] == {
                "softmax": "runs/r1/softmax/index.html",
                attempts[1].id: "runs/r1/softmax/01.html",
            }
            for path in news["links"].values():
                assert (await viewer.client.get(f"/{path}")).status_code == 200
            page = (await viewer.client.get("/live.html")).text
            working, idle = rows_of(page, "lanes")
            assert re.fullmatch(r"0 softmax evaluate (\d+ min )?\d+ s 2", working)
            assert idle == "1 idle"
            assert rows_of(page, "gains")[0].startswith("softmax vectorise 8.39 MB DRAM, 1.00x the least ")
            fold.on_event(Event("warning", task="softmax", message=HOSTILE), datetime.now(UTC))
            write_status(tmp_path, "r1", fold.view(datetime.now(UTC)).model_dump_json())
            assert (await next_one("progress")).data["progress"]["error"].startswith("softmax: \\x1b[31mred")
            page = (await viewer.client.get("/live.html")).text
            assert "</script> | `tick`" in text_of(*with_class(page, "notice", "bad"))
            remove_status(tmp_path, "r1")
            store.update_run("r1", RunState.FINISHED, "2026-11-21T06:10:00+00:00")
            while (await next_one("progress")).data["progress"]["state"] != "finished":
                pass
            page = (await viewer.client.get("/live.html")).text
            assert text_of(*with_class(page, "state")) == "finished"
            assert not with_class(page, "lanes")
            assert not [bar for bar in tree(page).iter("progress") if "data-since" in bar.attrib]


async def test_a_stalled_worker_is_called_so(tmp_path: Path) -> None:
    store, _ = begun(tmp_path)
    with store, store.lock_run("r1"):
        fold = RunProgress(make_run().config, pid=1)
        fold.on_event(Event("run_started", message="r1"), datetime(2026, 1, 1, tzinfo=UTC))
        fold.on_event(Event("stage", task="matmul", round=1, stage="evaluate"), datetime(2026, 1, 1, tzinfo=UTC))
        write_status(tmp_path, "r1", fold.view(datetime.now(UTC)).model_dump_json())
        async with opened(tmp_path) as viewer:
            page = (await viewer.client.get("/live.html")).text
    assert len(with_class(page, "stalled")) == 1
    assert re.fullmatch(r"0 matmul evaluate \d+ h \d\d min stalled 1", rows_of(page, "lanes")[0])


@pytest.mark.parametrize("content", ["{", "[]", '{"run": "r1"}', "\x00" * 10])
def test_what_a_killed_run_or_another_version_left_is_not_shown(tmp_path: Path, content: str) -> None:
    store, _ = begun(tmp_path)
    with store, RunCache(store, None)._store as reader:
        write_status(tmp_path, "r1", standing_at().view(datetime.now(UTC)).model_dump_json())
        killed = RunCache(reader, None).progress(None).progress
        assert (killed.state, killed.pid, killed.lanes) == ("interrupted", 0, ())
        with store.lock_run("r1"):
            write_status(tmp_path, "r1", content)
            other = RunCache(reader, None).progress(None).progress
            assert (other.state, other.pid) == ("running", 0)


@pytest.mark.parametrize("started", ["no time", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", ""])
def test_a_run_from_elsewhere_whose_times_are_none_is_shown(tmp_path: Path, started: str) -> None:
    """Nothing but a database's rows says when it was; the page of what goes on must not end by it."""
    with Store.open(tmp_path / "kernelforge.db") as store:
        fill(store, make_run())
        with store._database.transaction() as rows:
            rows.execute("UPDATE runs SET started = ?, state = 'finished', ended = ?", (started, started))
            rows.execute(
                "UPDATE attempts SET record = json_set(record, '$.started', ?, '$.seconds', 1e300)", (started,)
            )
        live = RunCache(store, None).progress(None)
    assert sum(live.progress.funnel.values()) > 0
    context = live_context(live, selected=False)
    assert context["elapsed"] == "0 s"


def test_a_database_that_is_replaced_is_not_shown_as_it_was(results: Path) -> None:
    path = results / "kernelforge.db"
    with Store.open(path, read_only=True) as reader:
        journal = RunCache(reader, None)
        assert journal.render("index.html")
        other = results / "other.db"
        other.write_bytes(path.read_bytes())
        other.replace(path)
        with pytest.raises(StoreError, match="start 'kernelforge view' again"):
            journal.render("index.html")
        path.unlink()
        with pytest.raises(StoreError, match="was removed"):
            journal.look(None)


async def test_whoever_comes_back_is_told_what_was_missed(tmp_path: Path) -> None:
    store, attempts = begun(tmp_path)
    with store:
        async with opened(tmp_path) as viewer:
            async with listening(viewer.client) as next_one:
                last_id = (await next_one("changed")).id
            await until(lambda: viewer.viewer.news.listeners == 0)
            assert f'<body data-live="{last_id}">' in (await viewer.client.get("/index.html")).text
            async with listening(viewer.client, last=last_id) as next_one:
                assert (await next_one("progress")).id == ""  # who leaves now comes back with what they knew
                store.add_attempt(attempts[2])
                missed = await next_one("changed")
                assert int(missed.id) > int(last_id)
            async with listening(viewer.client, last=last_id) as next_one:
                assert (await next_one("changed")).id == missed.id
            async with listening(viewer.client, f"/events?last={last_id}") as next_one:
                assert (await next_one("changed")).id == missed.id


async def test_listeners_are_bounded_and_leave_nothing_behind(tmp_path: Path) -> None:
    store, _ = begun(tmp_path)
    with store:
        async with opened(tmp_path, most=2) as viewer:
            async with listening(viewer.client) as first, listening(viewer.client, "/events?run=r1") as second:
                await first("progress")
                await second("progress")
                refused = await viewer.client.get("/events")
                assert refused.status_code == 503
                assert refused.headers["retry-after"]
                assert (await viewer.client.get("/")).status_code == 200
            await until(lambda: viewer.viewer.news.listeners == 0)
            async with listening(viewer.client) as later:
                await later("progress")


async def test_without_news_there_is_a_beat(tmp_path: Path) -> None:
    store, _ = begun(tmp_path)
    with store:
        async with opened(tmp_path, beat_s=0.05) as viewer, listening(viewer.client) as next_one:
            await next_one("progress")
            assert (await next_one("")).data == ": nothing new"
            assert (await next_one("")).data == ": nothing new"


async def test_a_stream_ends_with_the_viewer(tmp_path: Path) -> None:
    store, _ = begun(tmp_path)
    with store:
        async with opened(tmp_path) as viewer, listening(viewer.client) as next_one:
            await next_one("progress")
            viewer.stop.requested.set()
            with pytest.raises(AssertionError, match="the stream ended"):
                await next_one("none of that kind")


async def test_an_unknown_run_is_refused_before_a_stream_begins(tmp_path: Path) -> None:
    store, _ = begun(tmp_path)
    with store:
        async with opened(tmp_path) as viewer:
            for route in ("/events?run=none", "/live.html?run=none", "/live.html?run=%3Cscript%3E"):
                answer = await viewer.client.get(route)
                assert answer.status_code == 404
                assert answer.headers["content-type"].startswith("text/plain")


def test_a_run_that_begins_is_shown_unless_one_was_asked_for(tmp_path: Path) -> None:
    store, _ = begun(tmp_path)
    with store, Store.open(tmp_path / "kernelforge.db", read_only=True) as reader:
        every, only = RunCache(reader, None), RunCache(reader, "r1")
        assert every.progress(None).progress.run == "r1"
        news = every.look(None).news
        store.start_run(make_run("r2", started="2026-11-22T06:00:00+00:00"))
        assert every.progress(None).progress.run == "r2"
        assert every.look(None).news == news + 1
        assert only.progress(None).progress.run == "r1"
        assert only.render("runs/r2/index.html") is None
        assert every.render("runs/r2/index.html") is not None
        with store.lock_run("r1"):
            assert every.progress(None).progress.run == "r1"
        with pytest.raises(UsageError):
            only.look("r2")


class Reading(Store):
    """Remembers what attempts were read of."""

    read: list[str | None]

    def attempts(self, run_id: str, task: str | None = None, **how: Any) -> list[Attempt]:
        self.read.append(task)
        return super().attempts(run_id, task, **how)


def test_only_tasks_with_news_are_read_again(tmp_path: Path) -> None:
    store, attempts = begun(tmp_path)
    with store, Reading.open(tmp_path / "kernelforge.db", read_only=True) as reader:
        assert isinstance(reader, Reading)
        reader.read = []
        journal = RunCache(reader, None)
        looks = [journal.look(None)]
        assert reader.read == [None]
        looks.append(journal.look(None))
        store.add_attempt(attempts[4])
        looks.append(journal.look(None))
        assert reader.read == [None, "matmul"]
        store.finish_task("r1", "softmax", "nothing more to try")
        looks.append(journal.look(None))
        assert reader.read == [None, "matmul", "softmax"]
        assert [look.news for look in looks] == [1, 1, 2, 3]
        kept = journal._runs["r1"].records
        assert kept == RunRecords.load(reader, reader.run("r1"), texts=False)


async def test_a_database_that_is_locked_for_a_while_ends_no_stream() -> None:
    calls: list[str | None] = []

    def look(which: str | None) -> None:
        calls.append(which)
        raise UsageError("locked")

    news = EventBroadcaster(look, beat_s=0.05)  # type: ignore[arg-type]
    stream = news.stream(None, None)
    chunks = [await anext(stream) for _ in range(3)]
    assert chunks[1:] == [": nothing new\n\n"] * 2
    await stream.aclose()  # type: ignore[attr-defined]
    assert news.listeners == 0
    assert calls
