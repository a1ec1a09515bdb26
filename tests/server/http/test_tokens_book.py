"""Tokens are shown once, kept as hashes, and taken back by name."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kernelforge.cli.main import app
from kernelforge.errors import StoreError, UsageError
from kernelforge.server.base import DATABASE_NAME
from kernelforge.server.http.auth import MAX_TOKENS, Tokens


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
