"""``kernelforge submit``: replies to a reward server, and results as they come."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.support.options import JsonOption
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.client import Client
    from kernelforge.client.models import JobRequest, RewardResult

MAX_FILE_BYTES = 1 << 30


def submit(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A model's reply, or JSON lines with one request each (a file named *.jsonl, or text that begins "
            "with '{'); - for stdin.",
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="SUITE/NAME, a name of the server's default suite, or a digest."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="Reward policy; the server's own if left out.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="Run whose share of the devices it takes.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also profile correct candidates.")] = False,
    server: Annotated[
        str | None,
        typer.Option("--server", envvar="KERNELFORGE_SERVER", metavar="URL", help="The server's address."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="File with the token; else KERNELFORGE_TOKEN, else none."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Cancel the rest after this time.")
    ] = 1_800.0,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for results, or print the jobs' ids and leave.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Send completions to a reward server, and print results as they come; Ctrl-C or SIGTERM cancels the rest.

    Leaves with 1 if a completion has no reward because of a failure of the server.
    """
    from kernelforge.client import Client

    defaults = {"task": task, "policy": policy, "run_id": run_id, "profile": profile or None}
    requests = _requests(file, {name: value for name, value in defaults.items() if value is not None})
    with leaving_on_sigterm(), Client(server, _token(token_file), timeout_s=timeout) as client:
        if not wait:
            for request, job in zip(requests, client.submit_many(requests), strict=True):
                typer.echo(job.model_dump_json() if as_json else f"{job.id}  {_label(request)}")
            return
        raise typer.Exit(_wait(client, requests, as_json))


@contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM raises an exception as Ctrl-C does, to cancel pending work. Exit code 143."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(client: Client, requests: Sequence[JobRequest], as_json: bool) -> int:
    """Print every result when it arrives. Returns the exit code."""
    from kernelforge.report.formatting import UNCOMPARED_NOTE

    scored = 0
    uncompared = False
    with closing(client.stream(requests)) as results:
        for index, result in results:
            scored += result.outcome == "scored"
            uncompared = uncompared or result.uncompared
            request = requests[index]
            if as_json:
                row = {"index": index, "task": request.task, "tag": request.tag, "result": result.model_dump()}
                print(json.dumps(row), flush=True)
            elif len(requests) == 1:
                print("\n".join(_result_lines(result)), flush=True)
            else:
                print(_line(index, request, result), flush=True)
    if not as_json and len(requests) > 1:
        if uncompared:
            typer.echo(UNCOMPARED_NOTE, err=True)
        typer.echo(f"{scored} of {len(requests)} scored", err=True)
    return 0 if scored == len(requests) else 1


def _line(index: int, request: JobRequest, result: RewardResult) -> str:
    from kernelforge.report.formatting import number, one_line, short_outcome, times

    if result.error is not None:
        what = f"no score  {result.error.code}: {one_line(result.error.message, 200)}"
    else:
        verdict = short_outcome(result.verdict_words or "")
        what = f"{number(result.reward):>9}  {verdict:7}  {times(result.components.speedup):>8}"
        what += "  cached" if result.cached else ""
    return f"{index + 1:>5}  {_label(request):24}  {what}"


def _result_lines(result: RewardResult) -> Iterable[str]:
    """Lines about one result."""
    from kernelforge.report.formatting import number, one_line, printable

    if result.error is not None:
        yield f"no score: {one_line(result.error.message)} ({result.error.code})"
        return
    yield f"reward {number(result.reward)} by {one_line(result.policy)}"
    where = " ".join(part for part in (result.origin, f"on {result.device}" if result.device else None) if part)
    answered = f"an evaluation of {result.age_s or 0:.0f} s ago answered" if result.cached else ""
    yield ", ".join(
        part for part in (f"{result.verdict_words or 'nothing evaluated'}", one_line(where), answered) if part
    )
    for name, value in result.components.numbers().items():
        if value is not None:
            yield f"  {name:19} {number(value):>9}  {one_line(result.components.origins.get(name, ''))}".rstrip()
    if result.feedback:
        yield printable(result.feedback)


def _label(request: JobRequest) -> str:
    """Label of a request: its tag, or its task."""
    from kernelforge.report.formatting import one_line

    return one_line(request.tag or request.task or "by its code", 40)


def _requests(file: Path, defaults: dict[str, Any]) -> list[JobRequest]:
    """
    Raises:
        UsageError: a file or a line that is no request; says which.
    """
    from kernelforge.client.settings import checked_job

    text = _read(file)
    if file.suffix != ".jsonl" and not text.lstrip().startswith("{"):
        if "task" not in defaults:
            raise UsageError("a reply needs a task: give --task SUITE/NAME")
        return [checked_job(defaults | {"completion": text})]
    requests = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise UsageError("not a JSON object")
            requests.append(checked_job(defaults | fields))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{file}, line {number}: not JSON: {error}") from None
        except UsageError as error:
            raise UsageError(f"{file}, line {number}: {error}") from None
    if not requests:
        raise UsageError(f"{file} holds no request")
    return requests


def _read(file: Path) -> str:
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"{file} is larger than {MAX_FILE_BYTES >> 30} GiB; send it in parts")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    token = _read(file).strip()
    if not token:
        raise UsageError(f"{file} holds no token; make one with 'kernelforge token create'")
    return token
