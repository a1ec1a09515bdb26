"""Damaged files under the commands that read them: results database, server database, leaderboard entries, builds."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# After the path is set: the constructed records live with the tests.
from fuzz_parts.damage import NESTED, of_bytes, of_json
from kernelforge.client.models import Job, RewardResult, SessionRequest, Turn
from kernelforge.compile.cache import (
    Artifact,
    BuildCache,
)
from kernelforge.errors import KernelForgeError
from kernelforge.records import Finding, Message
from kernelforge.run.proposals import AgentReply, messages_of
from kernelforge.server.base import DATABASE_NAME as SERVER_DATABASE
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.http.auth import Tokens
from kernelforge.server.jobs.results import completed_jobs
from kernelforge.server.jobs.service import JobService
from kernelforge.server.jobs.state import JobServiceSettings
from kernelforge.server.sessions.store import SessionRow, SessionStore, TurnRow
from kernelforge.server.sessions.turns import NextTurn
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.store.task_store import Draft
from kernelforge.tasks.suites import Catalogue
from kernelforge.viewer.run_cache import RunCache as ViewedJournal
from tests.report.golden.golden_runs import golden, golden_store
from tests.support.inprocess_engine import InProcessEngine, request

_TEXTS = (b"\xff\xfe", b"", b"x", b"\x00", b"[]", b"{}", b"null", b"NaN", b"-1", b"a/b/../c", b"\xed\xa0\x80", b"1e999")
_CELLS = ("x'c328'", "NULL", "1e999", "-1e999", "9223372036854775807", "-1", "0", "0.5", "zeroblob(70000)")


class Cases:
    """See above."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        os.environ["COLUMNS"] = "100"
        self._results, self._run, self._other = _results(folder / "results")
        self._server = _server(folder / "server")
        self._entry = folder / "entry.json"
        _command("leaderboard", "entry", self._run, "--output", str(self._entry), "--by", "me",
                 "--results", str(self._results))  # fmt: skip
        self._rooms = (
            self._of_results,
            self._of_results,
            self._of_results,
            self._of_server,
            self._of_entry,
            self._of_build,
        )

    def close(self) -> None:
        pass

    def case(self, rng: random.Random) -> bool:
        shutil.rmtree(self._folder / "case", ignore_errors=True)
        folder = self._folder / "case"
        folder.mkdir()
        return rng.choice(self._rooms)(rng, folder)

    def _of_results(self, rng: random.Random, folder: Path) -> bool:
        path = folder / DATABASE_NAME
        shutil.copy(self._results / DATABASE_NAME, path)
        _damage(path, rng)
        before = path.read_bytes()
        reads = rng.choice((self._swept, self._viewed, self._commanded, self._commanded, self._resumed))
        accepted = _reads_as_sentence(lambda: reads(folder, rng))
        if reads == self._resumed:
            return accepted
        if path.read_bytes() != before:
            raise AssertionError("a command that reads has changed the database")
        return accepted

    def _swept(self, folder: Path, rng: random.Random) -> None:
        with Store.open(folder / DATABASE_NAME, read_only=True) as store:
            for run in store.runs():
                for task in store.tasks(run.id):
                    store.facts(run.id, task.name)
                    store.search_state(run.id, task.name)
                    store.task_messages(run.id, task.name)
                    store.generators(run.id, task.name)
                    store.lessons_of(run.id, task.name)
                    for draft in store.drafts(run.id, task.name):
                        messages_of(draft)
                store.lessons(["reduction", "softmax"], None)
                store.compulsory_bytes(run.id)
                store.finished_tasks(run.id)
                store.attempts(run.id)

    def _viewed(self, folder: Path, rng: random.Random) -> None:
        with Store.open(folder / DATABASE_NAME, read_only=True) as store:
            journal = ViewedJournal(store, None)
            site = journal.site()
            for path in ["index.html", *rng.sample([*site.pages(), *site.data()], 3)]:
                journal.render(path)
            journal.look(None)

    def _commanded(self, folder: Path, rng: random.Random) -> None:
        run, task = self._run, golden("measured-a").tasks[0].name
        verb: list[str] = rng.choice(
            [
                ["show"], ["show", run], ["show", run, "--json"], ["show", f"{run}/{task}"],
                ["show", f"{run}/{task}/0", "--messages"], ["show", f"{run}/{task}/0", "--json"], ["show", "latest"],
                ["export", run], ["export", run, "--format", "transcript"], ["compare", run, self._other],
                ["diff", f"{run}/{task}/1"], ["report", "--output", str(folder / "report")],
                ["figure", run, "--list"], ["reward", "recompute", run], ["leaderboard", "show"],
                ["leaderboard", "show", "--json"],
                ["leaderboard", "entry", run, "--output", str(folder / "entry.json"), "--by", "me"],
            ]
        )  # fmt: skip
        _command(*verb, "--results", str(folder))

    def _resumed(self, folder: Path, rng: random.Random) -> None:
        _command("resume", rng.choice((self._run, self._other, "latest")), "--results", str(folder))

    def _of_server(self, rng: random.Random, folder: Path) -> bool:
        path = folder / SERVER_DATABASE
        shutil.copy(self._server / SERVER_DATABASE, path)
        _damage(path, rng)
        reads = rng.choice((_gateway_reads, _rows_are_read, _recomputed))
        return _reads_as_sentence(lambda: reads(folder))

    def _of_entry(self, rng: random.Random, folder: Path) -> bool:
        path = folder / "entry.json"
        data = self._entry.read_bytes()
        path.write_bytes(
            of_bytes(data, rng) if rng.random() < 0.3 else of_json(data.decode(), rng).encode("utf-8", "replace")
        )
        verb = rng.choice((["leaderboard", "build", str(path)], ["leaderboard", "verify", str(path)]))
        if verb[1] == "build":
            verb += ["--output", str(folder / "board")]
        return _reads_as_sentence(lambda: _command(*verb))

    def _of_build(self, rng: random.Random, folder: Path) -> bool:
        from tests.support.recorded_run import make_build

        build = make_build()
        cache = BuildCache(folder / "builds")
        cache.put(build.key, Artifact(build, b"ptx" * 100, b"cubin" * 100))
        path = next((folder / "builds").glob("*/*.build"))
        path.write_bytes(of_bytes(path.read_bytes(), rng))
        return BuildCache(folder / "builds").get(build.key) is not None


def _reads_as_sentence(reads: Callable[[], object]) -> bool:
    """Whether it was read; False where it ended in an error for people, which must say something."""
    try:
        reads()
    except (KernelForgeError, OSError, click.ClickException) as error:
        if isinstance(error, KernelForgeError) and not str(error).strip():
            raise AssertionError("an error says nothing") from error
        return False
    except (SystemExit, click.exceptions.Exit):
        return True
    return True


def _command(*arguments: str) -> None:
    """A command of the command line in this process, as ``main`` calls it, without what it prints."""
    import typer

    from kernelforge.cli.main import app

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        typer.main.get_command(app).main(list(arguments), prog_name="kernelforge", standalone_mode=False)


def _damage(path: Path, rng: random.Random) -> None:
    """Damage a database by bytes of its file or by values of its rows."""
    if rng.random() < 0.2:
        path.write_bytes(of_bytes(path.read_bytes(), rng))
        return
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]
        for _ in range(rng.choice((1, 1, 2))):
            table = rng.choice(tables)
            with contextlib.suppress(sqlite3.Error):  # the schema refuses it: nothing changed
                _damage_row(connection, table, rng)
    finally:
        connection.close()


def _damage_row(connection: sqlite3.Connection, table: str, rng: random.Random) -> None:
    key = "sha256" if table == "texts" else "rowid"
    if table in ("turns", "keys", "runs"):
        key = next(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
    columns: list[str] = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    rows: list[Any] = [name for (name,) in connection.execute(f"SELECT {key} FROM {table} ORDER BY 1")]
    if not rows:
        return
    row, column = rng.choice(rows), rng.choice(columns)
    [old] = connection.execute(f'SELECT "{column}" FROM {table} WHERE {key} = ?', (row,)).fetchone()
    text, value = rng.choice(_TEXTS), "CAST(? AS TEXT)"
    if isinstance(old, str) and old[:1] in ("{", "[") and rng.random() < 0.7:
        text, value = NESTED if rng.random() < 0.2 else of_json(old, rng), "?"
    elif rng.random() < 0.4:
        text, value = None, f"coalesce(?, {rng.choice(_CELLS)})"
    elif rng.random() < 0.1:
        connection.execute(f"DELETE FROM {table} WHERE {key} = ?", (row,))
        return
    connection.execute(f'UPDATE {table} SET "{column}" = {value} WHERE {key} = ?', (text, row))


def _results(folder: Path) -> tuple[Path, str, str]:
    """A results folder with two runs, and with drafts that were not evaluated."""
    names = ("modelled", "measured-a", "measured-b")
    path = golden_store(folder, *names)
    run = golden("measured-a")
    message = Message(agent="coder", role="reply", provider="builtin", content="a reply")
    finding = Finding(kind="optimise", headline="h", why="w", action="a")
    written = AgentReply(
        text="reply",
        finding=finding,
        coder="builtin",
        messages=(message,),
        started="2026-11-20T00:00:00+00:00",
        seconds=1.0,
    )
    with Store.open(path) as store:
        for step in range(2):
            store.put_draft(
                run.run.id, run.tasks[0].name, Draft(step, '{"operator": "seed"}', written.model_dump_json())
            )
    _settle(path)
    return folder, run.run.id, golden("measured-b").run.id


def _settle(path: Path) -> None:
    """All of a database into its one file."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


@contextlib.asynccontextmanager
async def _gateway(folder: Path) -> Any:
    engine = InProcessEngine()
    gateway = JobService(engine, Catalogue(["core"], ["gelu", "softmax"]), folder, JobServiceSettings())
    await gateway.start()
    try:
        yield gateway, engine
    finally:
        await gateway.close()


def _server(folder: Path) -> Path:
    """A server's folder: ended and open jobs, cached evaluations, tokens and a session."""

    async def fill() -> None:
        async with _gateway(folder) as (gateway, engine):
            for text in ("v0", "WRONG", "BUILD", "TROUBLE"):
                jobs = await gateway.submit([request(text, run_id="r", profile=True)], Caller("local"))
                await gateway.wait([job.id for job in jobs if isinstance(job, Job)], None, 20.0)
            engine.gate.clear()
            await gateway.submit(
                [request("open", run_id="r"), request("open too")], Caller("local"), keys=["one", "two"]
            )

    folder.mkdir(parents=True)
    asyncio.run(fill())
    tokens = Tokens(folder)
    tokens.create("trainer", ("submit", "read"))
    tokens.close()
    _add_session(folder / SERVER_DATABASE)
    _settle(folder / SERVER_DATABASE)
    return folder


def _add_session(path: Path) -> None:
    store = SessionStore(path, 1 << 20)
    begun = SessionRow(
        "s1", "local", "core/gelu", "digest", "kernelforge/1", SessionRequest(task="core/gelu"), NextTurn(asked=None)
    )
    store.add(begun, 4, 0.0, ())
    attempt = golden("modelled").attempts[0]
    result = RewardResult(outcome="scored", policy="kernelforge/1", reward=0.3)
    turn = Turn(number=1, completion="text", result=result, observation="", best=True)
    store.add_turn("s1", TurnRow("job", turn, attempt, NextTurn(asked=None)), ())
    store.close()


def _rows_are_read(folder: Path) -> None:
    tokens = Tokens(folder)
    try:
        tokens.rows()
        tokens.caller(b"kf_x")
    finally:
        tokens.close()
    store = SessionStore(folder / SERVER_DATABASE, 1 << 20)
    try:
        store.get("s1")
        store.expire(0.0)
    finally:
        store.close()


def _gateway_reads(folder: Path) -> None:
    """A gateway is started over it, and asked for every job."""

    async def main() -> None:
        async with _gateway(folder) as (gateway, _):
            connection = sqlite3.connect(folder / SERVER_DATABASE)
            try:
                ids = [name for (name,) in connection.execute("SELECT id FROM jobs WHERE typeof(id) = 'text'")]
            except sqlite3.Error:
                ids = []
            finally:
                connection.close()
            for job_id in ids:
                with contextlib.suppress(RequestRejected):
                    gateway.job(job_id)
            for text in ("v0", "WRONG"):
                jobs = await gateway.submit([request(text, run_id="r", profile=True)], Caller("local"))
                await gateway.wait([job.id for job in jobs if isinstance(job, Job)], None, 1.0)
                for job in jobs:
                    if isinstance(job, Exception) and not isinstance(job, KernelForgeError):
                        raise job

    asyncio.run(main())


def _recomputed(folder: Path) -> None:
    for _ in completed_jobs(folder):
        pass
    _command("reward", "recompute", "--jobs", "--results", str(folder))
