"""A results database: tables and views, and one SQLite file opened safely.

Records are JSON, with a column for each value that is searched for; the views show their parts as tables.
``docs/results.md`` describes both for people who open the file with plain ``sqlite3``. The file has a WAL, foreign keys
and one guarded connection; errors say what to do.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import sqlite_utils

from kernelforge.errors import StoreError

OPEN_TIMEOUT_S = 10.0
"""Wait for another program's lock when the file is opened; short, so that a mistake shows soon."""
WRITE_TIMEOUT_S = 60.0
"""Wait of a later write; long, so that a backup or a query does not end a run of hours."""

_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Schema(NamedTuple):
    """Identity and tables of one kind of SQLite file."""

    application_id: int
    """``PRAGMA application_id``, which SQLite tools show."""
    script: str
    """Statements that create the tables and views of the newest version."""
    synchronous: Literal["FULL", "NORMAL"]
    """In WAL mode either survives the kill of every process; ``FULL`` also survives a power cut, at one fsync for each
    transaction."""
    guests: frozenset[str] = frozenset()
    """Tables that other code keeps in the file over its own connections, and may create before the schema exists."""
    readable_from: int | None = None
    """The oldest version that can be read without a change; None for the newest alone."""
    changes: tuple[str, ...] = ()
    """Scripts that make the next version of a file, in order: the first makes version 2 of version 1."""

    @property
    def version(self) -> int:
        """``PRAGMA user_version`` of the files that this version of the package writes."""
        return 1 + len(self.changes)


class Database:
    """A connection shared by threads; a lock serialises the statements."""

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        create: bool,
        read_only: bool,
        busy_timeout_s: float | None = None,
    ) -> None:
        self.path = path
        self.schema = schema
        self.read_only = read_only
        self._guard = threading.RLock()
        self._pid = os.getpid()
        if not create or read_only:
            self._must_exist()
        with self._explained("open"):
            if create and not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._connect(OPEN_TIMEOUT_S if busy_timeout_s is None else busy_timeout_s)
        self._db = sqlite_utils.Database(self._connection, execute_plugins=False)
        try:
            with self._explained("open"):
                self._prepare()
                patience = WRITE_TIMEOUT_S if busy_timeout_s is None else busy_timeout_s
                self._connection.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
        except BaseException:
            self._connection.close()
            raise

    def _must_exist(self) -> None:
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder, not a results database")
        if not self.path.exists():
            raise StoreError(
                f"there is no results database at {self.path}: start one with 'kernelforge run', "
                "or name another results folder with --results"
            )

    def _connect(self, busy_timeout_s: float) -> sqlite3.Connection:
        mode = "ro" if self.read_only else "rwc"
        if self.read_only and not os.access(self.path.parent, os.W_OK) and not self._sibling("-wal").exists():
            mode = "ro&immutable=1"  # WAL needs a writable folder for its index; an immutable file needs no index
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(
            uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False, cached_statements=256
        )

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA foreign_keys = ON")
        execute("BEGIN")  # read one state of the file: another process may be creating its schema
        try:
            version = execute("PRAGMA user_version").fetchone()[0]
            owner = execute("PRAGMA application_id").fetchone()[0]
            tables = {name for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        finally:
            if self._connection.in_transaction:
                execute("ROLLBACK")
        fresh = version == 0 and owner == 0 and tables <= self.schema.guests
        if owner != self.schema.application_id and not fresh:
            raise StoreError(f"{self.path} is an SQLite file of another program: name another folder with --results")
        if version > self.schema.version:
            raise StoreError(
                f"{self.path} was written by a newer KernelForge (schema {version}, this one reads up to "
                f"{self.schema.version}): upgrade KernelForge, or name another results folder with --results"
            )
        if self.read_only:
            if version == 0:
                raise StoreError(f"{self.path} has no complete schema: start a run in its folder first")
            if version < (self.schema.readable_from or self.schema.version):
                raise StoreError(
                    f"{self.path} was written by an older KernelForge (schema {version}, this one reads "
                    f"{self.schema.version}): start what wrote it once more, which brings it up to date"
                )
            return
        execute("PRAGMA journal_mode = WAL")
        execute(f"PRAGMA synchronous = {self.schema.synchronous}")
        if version < self.schema.version:
            self._create_tables()

    def _create_tables(self) -> None:
        """Create the tables of a new file, or bring an older one up to date."""
        with self.transaction() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]  # another process may have been faster
            scripts = self.schema.changes[version - 1 :] if version else (self.schema.script,)
            for statement in (statement for script in scripts for statement in _statements(script)):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {self.schema.application_id}")
            db.execute(f"PRAGMA user_version = {self.schema.version}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite_utils.Database]:
        """One transaction: commits all of the block, or rolls it back.

        Raises:
            StoreError: locked, full, corrupt or not writable; the file is unchanged.
        """
        with self._guard, self._explained("write to"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        """Rows of a query, as dicts by column."""
        with self._guard, self._explained("read"):
            cursor = self._connection.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def tuples(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query as tuples, which is faster."""
        with self._guard, self._explained("read"):
            return self._connection.execute(sql, parameters).fetchall()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Within the block, queries see one state of the file."""
        with self._guard, self._explained("read"):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        if os.getpid() == self._pid:  # a forked child must not checkpoint its parent's file
            with self._guard:
                self._connection.close()

    @contextlib.contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(self._explain(error, action)) from error
        except UnicodeDecodeError as error:  # of a name in the schema; sqlite3 reports values itself
            raise StoreError(f"cannot {action} {self.path}: {self._not_intact(error)}") from error
        except OSError as error:
            hint = "; choose another folder with --results" if isinstance(error, PermissionError) else ""
            raise StoreError(f"cannot {action} {self.path}: {error.strerror or error}{hint}") from error

    def _not_intact(self, error: Exception) -> str:
        return (
            f"it is not an intact results database ({error}). Move it away and start again, or try "
            f"'sqlite3 {self.path} .recover'"
        )

    def _explain(self, error: sqlite3.Error, action: str) -> str:
        extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        code = extended & 0xFF
        where = f"cannot {action} {self.path}"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            who = _holders([self.path, self._sibling("-wal"), self._sibling("-shm")])
            by = f" by {', '.join(who)}" if who else " by another process"
            return f"{where}: the results database is locked{by}; wait for it, stop it, or use another --results folder"
        if code in _FULL or extended in _FULL:
            return f"{where}: the disk is full; this write was rolled back. Free some space and run it again"
        if code in _CORRUPT:
            return f"{where}: {self._not_intact(error)}"
        if code == sqlite3.SQLITE_READONLY:
            return f"{where}: it is not writable for you; check its permissions and those of its folder"
        if code == sqlite3.SQLITE_CANTOPEN:
            return f"{where}: it cannot be opened or created; check the folder, or choose another with --results"
        return f"{where}: {error}"


@contextlib.contextmanager
def readable(path: Path, what: str = "a record") -> Iterator[None]:
    """Turn every error of decoding rows into one sentence.

    Args:
        what: the rows of the file at ``path`` that the block reads, such as ``attempt r1/softmax/3``.

    Raises:
        StoreError: the rows are not valid records.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        first = str(error).partition("\n")[0][:200] or type(error).__name__
        raise StoreError(
            f"{path} holds {what} that this version of KernelForge cannot read ({first}); unless a newer version wrote "
            "it, it is damaged: restore the file from a copy, or delete those rows with 'sqlite3'"
        ) from error


def as_text(value: object) -> str:
    """Check the value of a text column, whose type SQLite does not enforce.

    Raises:
        TypeError: it is not text.
    """
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in place of text")
    return value


def _holders(paths: Sequence[Path]) -> list[str]:
    """Other processes with a lock on one of the files, as ``process 4711 (python)``; empty if unknown."""
    inodes = set()
    for path in paths:
        with contextlib.suppress(OSError):
            inodes.add(path.stat().st_ino)
    try:
        table = Path("/proc/locks").read_text()
    except OSError:
        return []
    names = []
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 6 or "->" in fields or not fields[4].isdigit():
            continue
        pid, inode = int(fields[4]), fields[5].rsplit(":", 1)[-1]
        if pid > 0 and pid != os.getpid() and inode.isdigit() and int(inode) in inodes:
            names.append(_describe_process(pid))
    return list(dict.fromkeys(names))


def _describe_process(pid: int) -> str:
    try:
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return f"process {pid}"


def _statements(script: str) -> Iterator[str]:
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


_FIELDS_OF_PARTS = {
    "fingerprint": (
        "device device_kind arch toolchain kernelforge evaluator torch python host jail gpu gpu_uuid driver runtime"
    ),
    "performance": (
        "time_us origin interval_us samples protocol bound speedup speedup_lower speedup_eager quarantined timing"
    ),
    "roofline": "flops dram_bytes compulsory_bytes arithmetic_intensity ridge bound time_us time_origin",
}
"""Fields of objects inside an evaluation or a profile, which its view shows among its own."""

_OBJECTS = {
    "evaluations": ("evaluation", "verdict stage reason lane equals fingerprint performance"),
    "builds": ("evaluation.build", "key ok refused limit arch toolchain ptx_hash seconds cached kernels diagnostics"),
    "profiles": ("profile", "size device notes roofline"),
    "findings": ("finding", "kind headline why action move metrics bottleneck"),
    "rewards": ("reward", "policy value components"),
}
"""Views with at most one row for each attempt: path of an object in its record, and the object's fields."""

_LISTS = {
    "size_checks": ("evaluation.correctness.sizes", "size status families message error launches"),
    "profile_kernels": ("profile.kernels", "kernel launches grid block sampled hot_spots"),
    "trials": ("trials", "choices rung time_us problem"),
    "messages": ("messages", "agent role provider content usage reasoning"),
}
"""Views with a row for each element of a list: path of the list in an attempt's record, and the elements' fields."""


def _columns(json: str, fields: str, prefix: str = "$") -> str:
    return ", ".join(
        _columns(json, _FIELDS_OF_PARTS[field], f"{prefix}.{field}")
        if field in _FIELDS_OF_PARTS
        else f"json_extract({json}, '{prefix}.{field}') AS \"{field}\""
        for field in fields.split()
    )


_VIEWS = [
    *(
        f"CREATE VIEW {name} AS SELECT id AS attempt, {_columns('record', fields, f'$.{path}')} "
        f"FROM attempts WHERE json_extract(record, '$.{path}') IS NOT NULL;\n"
        for name, (path, fields) in _OBJECTS.items()
    ),
    *(
        f"CREATE VIEW {name} AS SELECT a.id AS attempt, e.key AS position, {_columns('e.value', fields)} "
        f"FROM attempts a, json_each(a.record, '$.{path}') e;\n"
        for name, (path, fields) in _LISTS.items()
    ),
]

_SCRIPT = Path(__file__).with_name("results.sql").read_text(encoding="utf-8") + "".join(_VIEWS)


def _made_again(*views: str) -> str:
    """Statements that replace views by those of the newest version."""
    begins = tuple(f"CREATE VIEW {name} " for name in views)
    drops = "".join(f"DROP VIEW {name};\n" for name in views)
    return drops + "".join(text for text in _statements(_SCRIPT) if text.lstrip().startswith(begins))


_REASONING = "ALTER TABLE task_messages ADD COLUMN reasoning TEXT REFERENCES blobs(sha256);\n" + _made_again(
    "message_texts", "messages"
)
"""Makes version 2: messages carry reasoning."""

_EQUALS = _made_again("evaluations")
"""Makes version 3: evaluations say which one they share."""

RESULTS = Schema(
    application_id=0x4B464F47,  # "KFOG"
    script=_SCRIPT,
    synchronous="FULL",  # an attempt that was reported must outlive a power cut
    readable_from=1,
    changes=(_REASONING, _EQUALS),
)
