"""Tokens are shown once, kept as hashes, and taken back by name."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kernelforge.cli.main import app
from kernelforge.errors import StoreError, UsageError
from kernelforge.server.base import DATABASE_NAME
from kernelforge.server.http.auth import MAX_TOKENS, TokenLimits, Tokens


def kernelforge(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_token_has_256_random_bits_and_is_found_again(tmp_path: Path) -> None:
    book = Tokens(tmp_path)
    token, other = book.create("one", ["read", "submit"]), book.create("other", ["admin"])
    assert token != other
    assert len(token.removeprefix("kf_")) == 43  # 32 bytes in base64
    caller = Tokens(tmp_path).caller(token.encode())
    assert (caller.name, caller.scopes) == ("one", {"read", "submit"})


def test_a_token_is_nowhere_in_the_folder(tmp_path: Path) -> None:
    token = Tokens(tmp_path).create("one", ["read"])
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"one" in kept
    assert token.encode() not in kept
    assert token.removeprefix("kf_").encode() not in kept


def test_only_their_owner_reads_the_hashes(tmp_path: Path) -> None:
    Tokens(tmp_path).create("one", ["read"])
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir() if path.name.startswith(DATABASE_NAME))


def test_a_token_has_limits_that_can_be_changed_and_removed(tmp_path: Path) -> None:
    book = Tokens(tmp_path)
    token = book.create("one", ["read"], TokenLimits(share=2.0, max_jobs=10, jobs_per_minute=60.0)).encode()
    caller = Tokens(tmp_path).caller(token)
    assert (caller.share, caller.max_jobs, caller.jobs_per_minute) == (2.0, 10, 60.0)
    book.limit("one", TokenLimits(share=0.5, max_jobs=0))
    caller = Tokens(tmp_path).caller(token)
    assert (caller.share, caller.max_jobs, caller.jobs_per_minute) == (0.5, None, 60.0)
    assert book.shares() == {"one": 0.5}
    book.revoke("one")
    assert book.shares() == {}
    for change in (lambda: book.limit("one", TokenLimits(share=1.0)), lambda: book.rotate("one", 0.0)):
        with pytest.raises(UsageError, match="no valid token"):
            change()


def test_a_token_ends_at_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Tokens(tmp_path)
    token = book.create("one", ["read"], TokenLimits(expires_at=1000.0)).encode()
    monkeypatch.setattr(time, "time", lambda: 999.0)
    assert Tokens(tmp_path).caller(token) is not None
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert Tokens(tmp_path).caller(token) is None
    book.limit("one", TokenLimits(expires_at=0))
    assert Tokens(tmp_path).caller(token).name == "one"


def test_a_rotated_token_has_another_secret_and_keeps_the_earlier_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Tokens(tmp_path)
    first = book.create("one", ["read"], TokenLimits(share=3.0)).encode()
    second = book.rotate("one", 60.0).encode()
    at = time.time()
    for later, valid in ((30.0, [first, second]), (61.0, [second])):
        monkeypatch.setattr(time, "time", lambda later=later: at + later)
        callers = [Tokens(tmp_path).caller(token) for token in (first, second)]
        assert [caller.share for caller in callers if caller is not None] == [3.0] * len(valid)


def test_tokens_of_an_earlier_version_are_valid_and_take_limits(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / DATABASE_NAME) as plain:
        plain.execute(
            "create table tokens (name text primary key, sha256 blob not null unique, scopes text not null, "
            "created_at real not null, revoked_at real) strict"
        )
        digest = hashlib.sha256(b"kf_old").digest()
        plain.execute("insert into tokens values ('old', ?, 'submit read', 1.0, null)", (digest,))
    book = Tokens(tmp_path)
    assert (book.caller(b"kf_old").name, book.caller(b"kf_old").share) == ("old", 1.0)
    book.limit("old", TokenLimits(share=2.0))
    assert Tokens(tmp_path).caller(b"kf_old").share == 2.0


@pytest.mark.parametrize("wrong", ["", "kf_", "one", "x" * 46])
def test_anything_else_is_nobodys(tmp_path: Path, wrong: str) -> None:
    book = Tokens(tmp_path)
    token = book.create("one", ["read"])
    assert book.caller(token.encode()) is not None
    for near in (wrong, token[:-1], token + "a", token.upper()):
        assert book.caller(near.encode()) is None


def test_a_name_is_used_once_even_after_it_was_revoked(tmp_path: Path) -> None:
    book = Tokens(tmp_path)
    book.create("one", ["read"])
    with pytest.raises(UsageError, match="choose another name"):
        book.create("one", ["read"])
    book.revoke("one")
    with pytest.raises(UsageError, match="no valid token"):
        book.revoke("one")
    with pytest.raises(UsageError, match="choose another name"):
        book.create("one", ["read"])


@pytest.mark.parametrize(
    ("name", "scopes"), [("", ["read"]), ("a b", ["read"]), ("a" * 65, ["read"]), ("a", []), ("a", ["root"])]
)
def test_bad_names_and_scopes_are_refused(tmp_path: Path, name: str, scopes: list[str]) -> None:
    with pytest.raises(UsageError):
        Tokens(tmp_path).create(name, scopes)


def test_there_is_an_end_to_tokens(tmp_path: Path) -> None:
    book = Tokens(tmp_path)
    for number in range(MAX_TOKENS):
        book.create(f"t{number}", ["read"])
    with pytest.raises(UsageError, match="revoke one"):
        book.create("more", ["read"])
    book.revoke("t0")
    book.create("more", ["read"])


@pytest.mark.slow
def test_the_command_prints_the_token_alone_and_lists_it_without(tmp_path: Path) -> None:
    folder = ["--results", str(tmp_path / "results")]
    empty = kernelforge("token", "list", *folder)
    assert "kernelforge token create" in empty.stdout
    assert not (tmp_path / "results").exists()
    made = kernelforge("token", "create", "trainer", "--scope", "submit", *folder)
    token = made.stdout.strip()
    assert made.exit_code == 0
    assert token.startswith("kf_")
    assert "\n" not in token
    (row,) = json.loads(kernelforge("token", "list", "--json", *folder).stdout)
    assert (row["name"], row["scopes"], row["revoked_at"]) == ("trainer", ["submit"], None)
    assert kernelforge("token", "revoke", "trainer", *folder).exit_code == 0
    listed = kernelforge("token", "list", *folder).stdout
    assert "trainer" in listed
    assert token not in listed
    second = kernelforge("token", "revoke", "trainer", *folder)
    assert isinstance(second.exception, UsageError)
    assert "no valid token" in str(second.exception)


@pytest.mark.slow
def test_the_commands_set_limits_and_rotate(tmp_path: Path) -> None:
    folder = ["--results", str(tmp_path)]
    limits = ["--share", "2", "--max-jobs", "10", "--jobs-per-minute", "30", "--expires", "7"]
    first = kernelforge("token", "create", "trainer", *limits, *folder).stdout.strip()
    second = kernelforge("token", "rotate", "trainer", "--keep", "0", *folder).stdout.strip()
    assert Tokens(tmp_path).caller(first.encode()) is None
    assert Tokens(tmp_path).caller(second.encode()).jobs_per_minute == 30
    assert kernelforge("token", "limit", "trainer", "--max-jobs", "0", *folder).exit_code == 0
    (row,) = json.loads(kernelforge("token", "list", "--json", *folder).stdout)
    assert (row["share"], row["max_jobs"], row["jobs_per_minute"]) == (2.0, None, 30.0)
    assert 6.9 * 86_400 < row["expires_at"] - row["created_at"] < 7.1 * 86_400
    nothing = kernelforge("token", "limit", "trainer", *folder)
    assert "name what to change" in str(nothing.exception)


def test_tokens_that_cannot_be_read_let_nobody_in(tmp_path: Path) -> None:
    """The table is strict, so it takes a file that was damaged."""
    tokens = Tokens(tmp_path)
    token = tokens.create("trainer", ("submit",))
    tokens.close()
    with sqlite3.connect(tmp_path / "server.db") as plain:
        plain.execute("PRAGMA writable_schema = ON")
        plain.execute("UPDATE sqlite_schema SET sql = replace(sql, 'scopes text not null', 'scopes text')")
    with sqlite3.connect(tmp_path / "server.db") as plain:
        plain.execute("UPDATE tokens SET scopes = NULL")
    tokens = Tokens(tmp_path)
    with pytest.raises(StoreError, match=r"holds tokens that .* cannot read"):
        tokens.rows()
    with pytest.raises(StoreError, match=r"holds tokens that .* cannot read"):
        tokens.caller(token.encode())
    tokens.close()
