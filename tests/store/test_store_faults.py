"""A results database under bad conditions: clear errors, and never half an attempt."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import StoreError
from kernelforge.records import Attempt, Message, Verdict
from kernelforge.store import Store
from kernelforge.store.database import RESULTS
from kernelforge.store.live_runs import read_status, write_status
from tests.support.recorded_run import fill, golden_attempts, make_attempt, make_facts, make_run, make_task


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "kernelforge.db"


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Run a script in another process that finds this folder's modules; its stdout is a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )


def insert_for_ever(path: Path, report: int) -> None:
    store = Store.open(path)
    run, task = make_run(), make_task()
    if not store.runs():
        store.start_run(run)
        store.put_task(run.id, task, make_facts(task), None)
    os.write(report, b"ready\n")
    for number in itertools.count(len(store.attempts(run.id))):
        store.add_attempt(numbered(number))
        os.write(report, b"%d\n" % number)


def numbered(number: int) -> Attempt:
    verdict = list(Verdict)[number % len(Verdict)]
    return make_attempt(make_run(), make_task(), number, verdict, parent=number - 1 if number else None, move="m")


@pytest.mark.slow
def test_twenty_kills_leave_only_whole_attempts(path: Path):
    chance = random.Random(20)
    reported = -1
    for _ in range(20):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                insert_for_ever(path, writer)
            finally:
                os._exit(1)
        os.close(writer)
        with open(reader) as reports:
            assert reports.readline() == "ready\n"
            numbers = [int(reports.readline()) for _ in range(chance.randint(1, 2))]
            time.sleep(chance.uniform(0.0, 0.02))
            os.kill(pid, signal.SIGKILL)
            numbers += [int(line) for line in reports]
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        reported = max(numbers)
        with Store.open(path, create=False) as store:
            attempts = store.attempts("r1")
        assert attempts == [numbered(number) for number in range(len(attempts))]
        assert len(attempts) >= reported + 1, "an attempt that was reported is gone"
        with sqlite3.connect(path) as plain:
            assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert plain.execute("PRAGMA foreign_key_check").fetchall() == []
    assert reported >= 20


def test_a_write_waits_for_a_lock_that_is_let_go(path: Path):
    with Store.open(path) as store:
        store.start_run(make_run())
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(store.start_run, make_run("r2"))
            with pytest.raises(TimeoutError):
                writing.result(timeout=0.3)
            other.execute("COMMIT")
            writing.result(timeout=60)
        other.close()
        assert len(store.runs()) == 2


def test_a_locked_database_names_who_holds_it(path: Path):
    with Store.open(path, busy_timeout_s=0.1) as store:
        store.start_run(make_run())
        holder = child(
            """
            import sqlite3, sys
            connection = sqlite3.connect(sys.argv[1], isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            print("locked", flush=True)
            sys.stdin.read()
            """,
            str(path),
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(StoreError, match=rf"locked by process {holder.pid} \(python") as caught:
                store.start_run(make_run("r2"))
            assert "--results" in str(caught.value)
            assert [run.id for run in store.runs()] == ["r1"], "runs can be read while another process writes"
        finally:
            holder.communicate()
        store.start_run(make_run("r2"))


def test_a_full_disk_keeps_what_was_there(path: Path):
    with Store.open(path) as store:
        written = fill(store, make_run())
        pages = store._database.rows("PRAGMA page_count")[0]["page_count"]
        store._database.rows(f"PRAGMA max_page_count = {pages + 2}")
        big = make_attempt(make_run(), make_task(), 9, Verdict.OK)
        with pytest.raises(StoreError, match="disk is full"):
            store.add_attempt(big.model_copy(update={"note": "x" * 200_000}))
        assert len(store.attempts("r1")) == len(written)
    with Store.open(path) as store:
        store.add_attempt(make_attempt(make_run(), make_task(), 9, Verdict.OK))


@pytest.mark.slow
def test_a_file_size_limit_reads_as_a_full_disk(path: Path):
    Store.open(path).close()
    process = child(
        """
        import resource, signal, sys
        from pathlib import Path
        from tests.support.recorded_run import fill, make_run
        from kernelforge.errors import StoreError
        from kernelforge.store import Store

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = Path(sys.argv[1]).stat().st_size
        with Store.open(Path(sys.argv[1])) as store:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 4, size // 4))
            try:
                fill(store, make_run())
            except StoreError as error:
                print(error)
        """,
        str(path),
    )
    output, _ = process.communicate(timeout=60)
    assert "the disk is full" in output
    with Store.open(path) as store:
        complete = golden_attempts(make_run())
        assert all(attempt in complete for attempt in store.attempts("r1"))


def test_a_full_disk_at_the_first_opening_is_one_clear_error(tmp_path: Path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(StoreError):
        Store.open(full)


@pytest.mark.parametrize("content", [b"this is not a database, it is a text file of some length\n" * 90, b"{}"])
def test_another_kind_of_file_is_refused(path: Path, content: bytes):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not an intact results database"):
        Store.open(path)
    assert path.read_bytes() == content


def test_a_damaged_database_is_one_clear_error(path: Path):
    with Store.open(path) as store:
        fill(store, make_run())
        store._database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    for offset in range(4096, len(data), 64):
        data[offset : offset + 32] = b"\xff" * 32
    path.write_bytes(data)
    with pytest.raises(StoreError, match=str(path)):
        with Store.open(path) as store:
            store.attempts("r1")


def test_a_database_of_another_program_is_refused(path: Path):
    path.parent.mkdir()
    with sqlite3.connect(path) as plain:
        plain.execute("CREATE TABLE things (x)")
    with pytest.raises(StoreError, match="another program"):
        Store.open(path)


_VERSION_1 = """
DROP VIEW evaluations;
CREATE VIEW evaluations AS SELECT id AS attempt, json_extract(record, '$.evaluation.verdict') AS verdict FROM attempts;
DROP VIEW message_texts;
DROP VIEW messages;
ALTER TABLE task_messages DROP COLUMN reasoning;
CREATE VIEW messages AS SELECT a.id AS attempt, e.key AS position, json_extract(e.value, '$.agent') AS agent,
  json_extract(e.value, '$.content') AS content FROM attempts a, json_each(a.record, '$.messages') e;
CREATE VIEW message_texts AS SELECT m.attempt, b.content FROM messages m JOIN blobs b ON b.sha256 = m.content;
PRAGMA user_version = 1;
"""


def test_a_database_without_reasoning_is_read_as_it_is_and_brought_up_to_date_when_written(path: Path):
    prompt = Message(agent="judge", role="prompt", provider="m", content="why?")
    with Store.open(path) as store:
        fill(store, make_run())
        attempts = store.attempts("r1")
        store.add_task_messages("r1", "softmax", [prompt])
    with sqlite3.connect(path) as plain:
        plain.executescript(_VERSION_1)
    with Store.open(path, read_only=True) as store:
        assert store.attempts("r1") == attempts
        assert store.task_messages("r1", "softmax")[-1] == prompt
    thought = Message(agent="judge", role="reply", provider="m", content="so", reasoning="hm")
    with Store.open(path) as store:
        store.add_task_messages("r1", "softmax", [thought])
        assert store.task_messages("r1", "softmax")[-2:] == (prompt, thought)
        assert store.task_messages("r1", "softmax", texts=False)[-1].reasoning is None
    with sqlite3.connect(path) as plain:
        assert plain.execute("PRAGMA user_version").fetchone() == (RESULTS.version,)
        assert plain.execute("SELECT count(reasoning) FROM message_texts").fetchone() == (0,)
        assert plain.execute("SELECT count(*), count(equals) FROM evaluations").fetchone() == (len(attempts), 0)


def test_a_newer_database_is_refused(path: Path):
    Store.open(path).close()
    with sqlite3.connect(path) as plain:
        plain.execute(f"PRAGMA user_version = {RESULTS.version + 1}")
    for read_only in (True, False):
        with pytest.raises(StoreError, match="newer KernelForge"):
            Store.open(path, read_only=read_only)


@pytest.mark.parametrize(
    "record",
    [
        "json_set(record, '$.evaluation.stage', 'elsewhere')",
        "json_set(record, '$.evaluation.performance.timing', json('[]'))",
        "json_set(record, '$.messages[0].content', 7)",
        "json_set(record, '$.messages[0].content', hex(zeroblob(1000000)))",
        "json_set(record, '$.id', 'r1/softmax/01')",
    ],
)
def test_a_record_that_cannot_be_read_is_one_clear_error(path: Path, record: str):
    with Store.open(path) as store:
        fill(store, make_run())
        with sqlite3.connect(path) as plain:
            plain.execute(f"UPDATE attempts SET record = {record} WHERE id = 'r1/softmax/00'")
        with pytest.raises(StoreError, match="cannot read") as error:
            store.attempts("r1")
        assert len(str(error.value)) < 500


TOO_DEEP = "[" * 100_000 + "]" * 100_000
"""Valid JSON, and deeper than a reader that calls itself can follow."""


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            "UPDATE attempts SET record = json_set(record, '$.profile.kernels[0].grid', 1) WHERE id = 'r1/softmax/01'",
            "attempt r1/softmax/01",
        ),
        ("UPDATE attempts SET record = ? WHERE id = 'r1/matmul/02'", "attempt r1/matmul/02"),
        ("UPDATE runs SET config = ?", "run r1"),
        ("UPDATE tasks SET search = ? WHERE name = 'argmax'", "the search at task argmax of run r1"),
        ("UPDATE tasks SET record = ? WHERE name = 'argmax'", "task"),
        ("UPDATE runs SET id = x'c328'", "run b"),
        (
            "UPDATE tasks SET facts = replace(facts, '\"compulsory_bytes\":8388608', '\"compulsory_bytes\":0.5')",
            "facts",
        ),
        ("UPDATE runs SET config = '[1]'", "run r1"),
        ("UPDATE attempts SET record = CAST(x'ff' AS TEXT)", "cannot read"),
        ("UPDATE attempts SET record = x'00' WHERE id = 'r1/softmax/00'", "attempt r1/softmax/00"),
        *(
            (f"UPDATE attempts SET record = {record} WHERE id = 'r1/softmax/00'", "attempt r1/softmax/00")
            for record in (
                "'[1]'",
                "json_remove(record, '$.reward')",
                "json_remove(record, '$.evaluation')",
                "json_set(record, '$.profile.metrics[0].value', 'x')",
                "json_set(record, '$.seconds', 9e999)",
                "json_set(record, '$.evaluation.seconds.build', 9e999)",
                "json_set(record, '$.candidate.source', 'no such text')",
            )
        ),
    ],
)
def test_damage_of_any_kind_names_the_rows_and_says_what_to_do(path: Path, change: str, named: str):
    with Store.open(path) as store:
        fill(store, make_run())
    with sqlite3.connect(path) as plain:
        plain.execute("PRAGMA ignore_check_constraints = ON")
        plain.execute(change, (TOO_DEEP,) * change.count("?"))
    before = path.read_bytes()
    with Store.open(path, read_only=True) as store, pytest.raises(StoreError, match=named) as result:
        read_all(store)
    assert "\n" not in str(result.value)
    assert "cannot read" in str(result.value)
    assert path.read_bytes() == before


def test_a_schema_that_is_no_text_is_one_clear_error(path: Path):
    with Store.open(path) as store:
        fill(store, make_run())
        store._database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    data, column = path.read_bytes(), b"kernelforge TEXT NOT NULL,\n  suite TEXT"
    assert data.count(column) == 1
    path.write_bytes(data.replace(column, b"\x80" + column[1:]))
    with Store.open(path, read_only=True) as store, pytest.raises(StoreError, match="not an intact results database"):
        store.runs()


def read_all(store: Store) -> None:
    for run in store.runs():
        store.tasks(run.id)
        store.compulsory_bytes(run.id)
        for task in run.config.tasks:
            store.search_state(run.id, task)
        store.attempts(run.id)


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
def test_a_missing_database_says_how_to_make_one(path: Path, options: dict[str, bool]):
    with pytest.raises(StoreError, match="kernelforge run"):
        Store.open(path, **options)
    assert not path.parent.exists()


def test_a_folder_or_a_file_in_the_way_is_one_clear_error(tmp_path: Path):
    with pytest.raises(StoreError, match="cannot open"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="is a folder"):
        Store.open(tmp_path, create=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open"):
        Store.open(tmp_path / "file" / "kernelforge.db")


def test_a_read_only_store_reads_and_refuses_to_write(path: Path):
    with Store.open(path) as store:
        written = fill(store, make_run())
        with Store.open(path, read_only=True) as reader:
            assert len(reader.attempts("r1")) == len(written)
            with pytest.raises(StoreError, match="not writable"):
                reader.start_run(make_run("r2"))


@pytest.mark.slow
def test_reading_needs_no_writable_folder():
    # Not below pytest's folder, which every session that starts closes to other users.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results" / "kernelforge.db"
        with Store.open(path) as store:
            fill(store, make_run())
        path.parent.chmod(0o555)
        path.chmod(0o444)
        script = """
            import os, sys
            import urllib.parse  # what pathlib imports late, from a Python that the other user may not see
            from pathlib import Path
            import kernelforge.store
            if os.getuid() == 0:
                os.setresuid(65534, 65534, 65534)
            with kernelforge.store.Store.open(Path(sys.argv[1]), read_only=True) as store:
                print(len(store.attempts("r1")))
            """
        for outer in (Path(folder), Path(folder).parent):
            outer.chmod(outer.stat().st_mode | 0o055)
        process = child(script, str(path))
        output, _ = process.communicate(timeout=60)
        path.parent.chmod(0o755)
        assert output == f"{len(golden_attempts(make_run()))}\n"


def test_a_live_run_cannot_be_taken_twice(path: Path):
    with Store.open(path) as store:
        store.start_run(make_run())
        assert not store.is_live("r1")
        with store.lock_run("r1"):
            assert store.is_live("r1")
            with pytest.raises(StoreError, match="this process"), store.lock_run("r1"):
                pass
            with store.lock_run("r2"):
                pass
        assert not store.is_live("r1")
        assert list((path.parent / "locks").iterdir()) == []


LOCK = """
    import sys
    from pathlib import Path
    from kernelforge.store import Store

    with Store.open(Path(sys.argv[1])) as store, store.lock_run("r1"):
        print("locked", flush=True)
        sys.stdin.read()
"""


@pytest.mark.slow
def test_the_lock_of_a_live_process_holds_and_that_of_a_dead_one_is_taken_over(path: Path):
    with Store.open(path) as store:
        store.start_run(make_run())
        other = child(LOCK, str(path))
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert store.is_live("r1")
        with pytest.raises(StoreError, match=rf"another process \(process {other.pid}\)"), store.lock_run("r1"):
            pass
        other.send_signal(signal.SIGKILL)
        other.communicate()
        assert not store.is_live("r1")
        with store.lock_run("r1"):
            assert store.is_live("r1")


def test_what_a_killed_process_told_is_not_how_the_next_one_stands(path: Path):
    with Store.open(path) as store:
        write_status(path.parent, "r1", "40 workers")
        with store.lock_run("r1"):
            assert read_status(path.parent, "r1") is None
            write_status(path.parent, "r1", "2 workers")
            assert read_status(path.parent, "r1") == "2 workers"


@pytest.mark.slow
def test_two_processes_may_write_two_runs_at_once(path: Path):
    script = """
        import sys
        from pathlib import Path
        from tests.support.recorded_run import fill, make_run
        from kernelforge.store import Store

        with Store.open(Path(sys.argv[1])) as store:
            fill(store, make_run(sys.argv[2]))
        """
    processes = [child(script, str(path), f"r{number}") for number in range(2)]
    assert [process.communicate(timeout=60) and process.returncode for process in processes] == [0, 0]
    with Store.open(path) as store:
        for number in range(2):
            run = store.run(f"r{number}")
            assert len(store.attempts(run.id)) == len(golden_attempts(run))


def test_a_database_that_another_process_makes_meanwhile_is_ours(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its mark may come between our look at the mark and our look at the tables."""
    path.parent.mkdir()

    class Overtaken(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if "sqlite_master" in sql:
                monkeypatch.setattr(sqlite3, "connect", connect)
                with contextlib.suppress(StoreError):  # locked, where it has to wait for us
                    Store.open(path, busy_timeout_s=0.1).close()
            return super().execute(sql, *arguments)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Overtaken))
    with Store.open(path) as store:
        store.start_run(make_run())


def test_people_can_query_it_with_plain_sqlite(path: Path):
    with Store.open(path) as store:
        fill(store, make_run())
    with sqlite3.connect(path) as plain:
        best = plain.execute(
            "SELECT a.task, a.number, p.dram_bytes / p.compulsory_bytes FROM attempts a JOIN profiles p "
            "ON p.attempt = a.id WHERE a.accepted ORDER BY a.task, a.number"
        ).fetchall()
        assert best[-1] == ("softmax", 1, 1.0)
        components = plain.execute("SELECT components FROM rewards WHERE attempt = 'r1/softmax/01'").fetchone()[0]
        assert json.loads(components)["correct"] == 1.0
        assert plain.execute("SELECT plan FROM attempt_sources WHERE id = 'r1/argmax/02'").fetchone() == (None,)


def test_documented_views_and_queries_work(path: Path):
    page = (Path(__file__).parents[2] / "docs/results.md").read_text()
    views = re.findall(r"^\| `(\w+)` \|", page.partition("## Views")[2].partition("Columns of")[0], re.MULTILINE)
    with Store.open(path) as store:
        fill(store, make_run(device="cuda:0"))
    with sqlite3.connect(path) as plain:
        assert sorted(views) == [
            name for (name,) in plain.execute("SELECT name FROM sqlite_master WHERE type = 'view' ORDER BY name")
        ]
        for name in set(views) - {"trials"}:  # the constructed run was not tuned
            assert plain.execute(f"SELECT * FROM {name}").fetchall(), name
        for query in re.findall(r"```sql\n(.*?)```", page, re.DOTALL):
            plain.execute(query).fetchall()


def test_a_task_is_what_the_database_says_not_what_the_caller_remembers(path: Path):
    with Store.open(path) as store:
        store.start_run(make_run())
        task = make_task()
        store.put_task("r1", task, make_facts(task), None)
        with Store.open(path, read_only=True) as reader:
            assert reader.task("r1", task.name).digest == task.digest
