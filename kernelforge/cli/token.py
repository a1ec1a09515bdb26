"""``kernelforge token``: manage reward-server tokens."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.output import DEFAULT_RESULTS, JsonOption, ResultsOption, console
from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import install_hint

if TYPE_CHECKING:
    from kernelforge.server.http.tokens import Tokens

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke the tokens of a reward server.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Who it is for; shown in the server's log.")]


class TokenScope(StrEnum):
    """What ``--scope`` may be."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"


def require_server_packages() -> None:
    """
    Raises:
        UsageError: the extra is not installed.
    """
    missing = [name for name in ("fastapi", "uvicorn", "structlog", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the reward server needs packages that are not installed ({', '.join(missing)}): {install_hint('server')}"
        )


@app.command("create")
def create(
    name: NameArgument,
    scope: Annotated[
        list[TokenScope] | None,
        typer.Option("--scope", help="What it is for; repeat for more. submit and read if left out."),
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Make a token and print it, once: only its hash is kept. A server on the same folder takes it within a second."""
    scopes = [one.value for one in scope or (TokenScope.SUBMIT, TokenScope.READ)]
    with closing(_open(results)) as tokens:
        token = tokens.create(name, scopes)
    typer.echo(token)
    typer.echo(f"kernelforge: token {name!r} may {', '.join(scopes)}; it is not shown again", err=True)


@app.command("list")
def list_tokens(as_json: JsonOption = False, results: ResultsOption = DEFAULT_RESULTS) -> None:
    """List the tokens of a results folder: name, scopes, age, and whether it was revoked. Never the token."""
    import json
    from dataclasses import asdict

    from kernelforge.server.base import DATABASE_NAME

    rows = []
    if (results / DATABASE_NAME).exists():  # to list makes nothing
        with closing(_open(results)) as tokens:
            rows = tokens.rows()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    if not rows:
        typer.echo("no tokens; make one with: kernelforge token create NAME")
        return
    from datetime import UTC, datetime

    from rich.table import Table

    def day(at: float | None) -> str:
        return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"

    table = Table("name", "scopes", "made", "revoked", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.name, " ".join(row.scopes), day(row.created_at), day(row.revoked_at))
    console().print(table)


@app.command("revoke")
def revoke(name: NameArgument, results: ResultsOption = DEFAULT_RESULTS) -> None:
    """Take a token back. A running server refuses it within a second."""
    with closing(_open(results)) as tokens:
        tokens.revoke(name)
    typer.echo(f"kernelforge: token {name!r} is revoked", err=True)


def _open(results: Path) -> Tokens:
    require_server_packages()
    from kernelforge.server.http.tokens import Tokens

    return Tokens(results)
