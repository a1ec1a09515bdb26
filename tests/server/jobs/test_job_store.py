"""The journal: batches are written as a whole, in order, and share transactions."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import StoreError
from kernelforge.server.jobs.job_store import (
    SERVER,
    Batch,
    JobEnd,
    JobStore,
    NewJob,
    NewKey,
    NewTask,
    NewText,
    TaskEnd,
)
from kernelforge.store.database import Database


def new_task(number: int = 1, **changes: Any) -> NewTask:
    fields: dict[str, Any] = {
        "id": number,
        "key": f"key{number}",
        "state": "open",
        "task": "core/gelu",
        "task_digest": "t",
        "candidate": "c",
        "source": "s",
        "plan": "p",
        "choices": "{}",
        "profiled": False,
    }
    return NewTask(**(fields | changes))


def new_job(number: int, **changes: Any) -> NewJob:
    fields: dict[str, Any] = {
        "seq": number,
        "id": f"job{number}",
        "caller": "local",
        "work": 1,
        "task": "core/gelu",
        "run": "default",
        "policy": "kernelforge/1",
        "policy_version": None,
        "priority": 0,
        "deadline_at": None,
        "profile": False,
        "tag": "",
        "completion": None,
        "status": "queued",
        "submitted_at": 1.0,
        "started_at": None,
        "finished_at": None,
        "tries": 0,
        "evaluated_at": None,
        "result": None,
        "group_id": None,
        "prompt": None,
    }
    return NewJob(**(fields | changes))


def end(number: int, status: str = "finished", result: str = "{}") -> JobEnd:
    return JobEnd(f"job{number}", status, 1.5, 2.0, 1, result)


async def test_batches_that_gather_share_a_transaction(tmp_path: Path) -> None:
    journal = JobStore(tmp_path)
    await journal.commit(Batch(tasks=[new_task()]))
    before = journal.transactions
    commits = [journal.commit(Batch(jobs=[new_job(number)])) for number in range(1, 301)]
    await asyncio.gather(*commits)
    assert journal.transactions - before < 100
    assert journal.read("SELECT count(*) FROM jobs") == [(300,)]
    journal.close()


async def test_a_batch_that_cannot_be_written_leaves_nothing_and_fails_no_other(tmp_path: Path) -> None:
    journal = JobStore(tmp_path)
    good = journal.commit(Batch(tasks=[new_task()], jobs=[new_job(1)]))
    bad = journal.commit(Batch(texts=[NewText("t", "x")], jobs=[new_job(2), new_job(1)]))
    also_good = journal.commit(Batch(jobs=[new_job(3)]))
    await good
    await also_good
    with pytest.raises(StoreError):
        await bad
    assert journal.read("SELECT id FROM jobs ORDER BY seq") == [("job1",), ("job3",)]
    assert journal.read("SELECT count(*) FROM texts") == [(0,)]
    await journal.commit(Batch(texts=[NewText("t", "x")], jobs=[new_job(4, completion="t")]))
    journal.close()


async def test_a_job_ends_once(tmp_path: Path) -> None:
    journal = JobStore(tmp_path)
    await journal.commit(Batch(tasks=[new_task()], jobs=[new_job(1)]))
    await journal.commit(Batch(ended_jobs=[end(1)], ended_tasks=[TaskEnd(1, "done", 2.0, "{}")]))
    await journal.commit(Batch(ended_jobs=[end(1, "cancelled", "[]")]))
    await journal.commit(Batch(ended_tasks=[TaskEnd(1, "dropped", 3.0)]))
    assert journal.read("SELECT status, result FROM jobs") == [("finished", "{}")]
    assert journal.read("SELECT state, evaluation FROM works") == [("done", "{}")]
    journal.close()


async def test_what_was_handed_in_is_written_before_the_journal_closes(tmp_path: Path) -> None:
    journal = JobStore(tmp_path)
    commits = [journal.commit(Batch(tasks=[new_task(number)])) for number in range(1, 50)]
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        await journal.commit(Batch(tasks=[new_task(99)]))
    await asyncio.gather(*commits)
    with sqlite3.connect(tmp_path / "server.db") as database:
        assert database.execute("SELECT count(*) FROM works").fetchone() == (49,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_what_is_handed_in_while_another_thread_closes_the_journal_is_written_or_refused(tmp_path: Path) -> None:
    journal = JobStore(tmp_path)
    closing = threading.Thread(target=journal.close)
    put = journal._waiting.put

    class Waiting:
        """Begins to close the journal between the look whether it is closed and the handing in."""

        def put(self, item: Any) -> None:
            if item is not None:
                closing.start()
                closing.join(0.2)
            put(item)

        def __getattr__(self, name: str) -> Any:
            return getattr(waiting, name)

    waiting, journal._waiting = journal._waiting, Waiting()  # type: ignore[assignment]
    async with asyncio.timeout(60):
        await journal.commit(Batch(tasks=[new_task()]))
    await asyncio.to_thread(closing.join)
    with pytest.raises(StoreError, match="closed"):
        await journal.commit(Batch(tasks=[new_task(2)]))


async def test_pruning_takes_a_job_with_its_key_and_its_text_unless_another_job_has_it(tmp_path: Path) -> None:
    journal = JobStore(tmp_path)
    texts = [NewText("a", "text"), NewText("b", "more")]
    jobs = [new_job(1, completion="a"), new_job(2, completion="a"), new_job(3, completion="b"), new_job(4)]
    keys = [NewKey("local", "k1", "job1", "r"), NewKey("local", "k2", "job2", "r")]
    await journal.commit(Batch(texts=texts, tasks=[new_task()], jobs=jobs, keys=keys))
    ends = [end(1), end(2), end(3)]
    await journal.commit(Batch(ended_jobs=ends, ended_tasks=[TaskEnd(1, "done", 2.0, "{}")]))
    await journal.commit(Batch(pruned_jobs=[1, 3, 4], pruned_tasks=[1]))
    assert journal.read("SELECT id FROM jobs ORDER BY seq") == [("job2",), ("job4",)]
    assert journal.read("SELECT key FROM keys") == [("k2",)]
    assert journal.read("SELECT sha256 FROM texts") == [("a",)]
    assert journal.read("SELECT id FROM works") == [(1,)]
    await journal.commit(Batch(texts=[NewText("b", "more")], jobs=[new_job(5, completion="b")]))
    assert journal.read("SELECT content FROM texts WHERE sha256 = 'b'") == [("more",)]
    journal.close()


async def test_texts_are_kept_as_they_are(tmp_path: Path) -> None:
    journal = JobStore(tmp_path)
    text = "'; DROP TABLE jobs; -- \0 \U0001f600 \r\n"
    await journal.commit(Batch(texts=[NewText("t", text)]))
    assert journal.read("SELECT content FROM texts") == [(text,)]
    journal.close()


def test_the_file_survives_the_process_and_says_whose_it_is(tmp_path: Path) -> None:
    JobStore(tmp_path).close()
    JobStore(tmp_path).close()
    with sqlite3.connect(tmp_path / "server.db") as database:
        assert database.execute("PRAGMA application_id").fetchone() == (0x4B465356,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer KernelForge"):
        JobStore(tmp_path)


def test_a_database_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    async def write(number: int) -> None:
        store = JobStore(tmp_path)
        try:
            await store.commit(Batch(texts=[NewText("p", "prompt")], tasks=[new_task(number)], jobs=[new_job(number)]))
        finally:
            store.close()

    asyncio.run(write(1))
    with sqlite3.connect(tmp_path / "server.db") as plain:
        for trigger in ("job_answered", "job_ended", "job_deleted"):
            plain.execute(f"DROP TRIGGER {trigger}")
        for table in ("tasks", "exemplars", "suspects", "leases", "consumers", "experiences"):
            plain.execute(f"DROP TABLE {table}")
        for column in ("policy_version", "max_staleness", "batch_size", "trajectories", "training", "owner"):
            plain.execute(f"ALTER TABLE runs DROP COLUMN {column}")
        plain.execute("DROP INDEX works_shared")
        for column in ("shared_key", "program", "sizes"):
            plain.execute(f"ALTER TABLE works DROP COLUMN {column}")
        plain.execute("DROP INDEX jobs_group")
        plain.execute("ALTER TABLE jobs DROP COLUMN training_stage")
        plain.execute("ALTER TABLE jobs DROP COLUMN reading")
        plain.execute("DROP INDEX jobs_prompt")
        plain.execute("ALTER TABLE jobs DROP COLUMN prompt")
        plain.execute("ALTER TABLE jobs DROP COLUMN group_id")
        plain.execute("PRAGMA user_version = 1")
    with pytest.raises(StoreError, match="older KernelForge"):
        Database(tmp_path / "server.db", SERVER, create=False, read_only=True)
    asyncio.run(write(2))
    with sqlite3.connect(tmp_path / "server.db") as plain:
        assert plain.execute("PRAGMA user_version").fetchone() == (12,)
        assert plain.execute("SELECT seq, group_id, prompt FROM jobs ORDER BY seq").fetchall() == [
            (1, None, None), (2, None, None),
        ]  # fmt: skip
