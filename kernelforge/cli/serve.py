"""``kernelforge serve`` and ``kernelforge token``: a reward server for RL trainers, and the tokens it accepts."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shlex
import sys
from contextlib import closing
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.support.options import (
    DEFAULT_RESULTS,
    DeviceOption,
    JsonOption,
    MeasureOption,
    OfferedSuites,
    OfferedTasks,
    ResultsOption,
    ScreenOption,
    UnconfinedOption,
    console,
    default_device,
    measure_settings,
)
from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import install_hint

if TYPE_CHECKING:
    import socket

    from kernelforge.server.http.auth import TokenLimits, Tokens
    from kernelforge.server.jobs.service import JobService
    from kernelforge.server.jobs.state import JobServiceSettings
    from kernelforge.server.sessions.service import Sessions
    from kernelforge.workers.base import Engine


token_app = typer.Typer(no_args_is_help=True, help="Make, list and revoke the tokens of a reward server.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its user; shown in the server's log.")]
ShareOption = Annotated[
    float | None,
    typer.Option(
        "--share",
        min=0.01,
        max=100,
        help="Share of the devices, relative to other tokens with queued jobs; 1 if left out.",
    ),
]
MaxJobsOption = Annotated[
    int | None, typer.Option("--max-jobs", min=0, help="Jobs that may wait or run at a time; 0: as many as one run.")
]
RateOption = Annotated[
    float | None,
    typer.Option("--jobs-per-minute", min=0, help="Jobs that may be submitted in a minute; 0: any number."),
]
DaysOption = Annotated[
    float | None, typer.Option("--expires", metavar="DAYS", min=0, help="Days until it ends, from now; 0: never.")
]
_DAY_S = 86_400.0


class TokenScope(StrEnum):
    """Values of ``--scope``."""

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


@token_app.command("create")
def create_token(
    name: NameArgument,
    scope: Annotated[
        list[TokenScope] | None,
        typer.Option("--scope", help="Permission; repeat for more. submit and read if left out."),
    ] = None,
    share: ShareOption = None,
    max_jobs: MaxJobsOption = None,
    jobs_per_minute: RateOption = None,
    expires: DaysOption = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Make a token and print it once: only its hash is kept. A server on the same folder accepts it within a second."""
    scopes = [item.value for item in scope or (TokenScope.SUBMIT, TokenScope.READ)]
    with closing(_tokens(results)) as tokens:
        token = tokens.create(name, scopes, _limits(share, max_jobs, jobs_per_minute, expires))
    typer.echo(token)
    typer.echo(f"kernelforge: token {name!r} may {', '.join(scopes)}; it is not shown again", err=True)


@token_app.command("limit")
def limit_token(
    name: NameArgument,
    share: ShareOption = None,
    max_jobs: MaxJobsOption = None,
    jobs_per_minute: RateOption = None,
    expires: DaysOption = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Change what the holder of a token may take. A running server applies it within a second, a share from
    its next job on."""
    limits = _limits(share, max_jobs, jobs_per_minute, expires)
    if not any(value is not None for value in limits):
        raise UsageError("name what to change: --share, --max-jobs, --jobs-per-minute or --expires")
    with closing(_tokens(results)) as tokens:
        tokens.limit(name, limits)
    typer.echo(f"kernelforge: token {name!r} has new limits", err=True)


@token_app.command("rotate")
def rotate_token(
    name: NameArgument,
    keep: Annotated[
        float, typer.Option("--keep", metavar="HOURS", min=0, help="How long its earlier secret is accepted.")
    ] = 1.0,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Give a token another secret and print it once. Name, scopes, limits and jobs stay."""
    with closing(_tokens(results)) as tokens:
        token = tokens.rotate(name, keep * 3600)
    typer.echo(token)
    typer.echo(f"kernelforge: the earlier secret of {name!r} is accepted for {keep:g} more hours", err=True)


def _limits(
    share: float | None, max_jobs: int | None, jobs_per_minute: float | None, days: float | None
) -> TokenLimits:
    import time

    from kernelforge.server.http.auth import TokenLimits

    return TokenLimits(share, max_jobs, jobs_per_minute, time.time() + days * _DAY_S if days else days)


@token_app.command("list")
def list_tokens(as_json: JsonOption = False, results: ResultsOption = DEFAULT_RESULTS) -> None:
    """List the tokens of a results folder: name, scopes, age, limits, whether it was revoked. Never the token."""
    import json
    from dataclasses import asdict

    from kernelforge.server.base import DATABASE_NAME

    rows = []
    if (results / DATABASE_NAME).exists():  # listing must not create a database
        with closing(_tokens(results)) as tokens:
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

    def limit(most: float | None) -> str:
        return "" if most is None else f"{most:g}"

    headings = ("name", "scopes", "made", "ends", "revoked", "share", "jobs", "jobs/min")
    table = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        times = (day(at) for at in (row.created_at, row.expires_at, row.revoked_at))
        limits = (limit(most) for most in (row.share, row.max_jobs, row.jobs_per_minute))
        table.add_row(row.name, " ".join(row.scopes), *times, *limits)
    console().print(table)


@token_app.command("revoke")
def revoke_token(name: NameArgument, results: ResultsOption = DEFAULT_RESULTS) -> None:
    """Take a token back. A running server refuses it within a second."""
    with closing(_tokens(results)) as tokens:
        tokens.revoke(name)
    typer.echo(f"kernelforge: token {name!r} is revoked", err=True)


def _tokens(results: Path) -> Tokens:
    require_server_packages()
    from kernelforge.server.http.auth import Tokens

    return Tokens(results)


DEFAULT_PORT = 8765


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the options of a file the defaults of the command.

    Raises:
        UsageError: it cannot be read, or names no option of this command.
    """
    if path is None:
        return None
    import tomllib
    from difflib import get_close_matches

    try:
        options = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--config {path} cannot be read: {error}") from error
    names = {option.removeprefix("--"): str(param.name) for param in context.command.params for option in param.opts}
    names = {name: param for name, param in names.items() if name not in ("config", "help")}
    for name in options:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"did you mean '{near[0]}'?" if near else "'kernelforge serve --help' lists them"
            raise UsageError(f"{path}: 'kernelforge serve' has no option '{name}'; {hint}")
    context.default_map = {**(context.default_map or {}), **{names[name]: value for name, value in options.items()}}
    return path


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_read_config,
        help="TOML file of these options, without dashes before the name; the command line goes first.",
    ),
]


class EngineName(StrEnum):
    """Values of ``--engine``."""

    LOCAL = "local"
    RAY = "ray"


class CheckedSizes(StrEnum):
    """Values of ``--sizes``."""

    ALL = "all"
    TRAIN = "train"
    ANY = "any"


class ModelNewReplies(StrEnum):
    """Values of ``--modelnew``."""

    CONVERT = "convert"
    RUN = "run"


class LogFormat(StrEnum):
    """Values of ``--log-format``."""

    JSON = "json"
    TEXT = "text"


def serve(
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; any but a loopback one needs tokens.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Where to listen; 0: any free port.")
    ] = DEFAULT_PORT,
    suite: OfferedSuites = None,
    task: OfferedTasks = None,
    device: DeviceOption = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="Workers of this machine, or of a Ray cluster.")
    ] = EngineName.LOCAL,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Head node of the Ray cluster."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", min=1, help="Candidates evaluated at a time on an emulated device.")
    ] = None,
    compilers: Annotated[
        int | None, typer.Option("--compilers", min=1, help="Candidates compiled at a time ahead of a slot.")
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option(
            "--resource", metavar="NAME", help="Only nodes of the Ray cluster with this resource, a slot per unit."
        ),
    ] = None,
    autoscale: Annotated[
        str | None,
        typer.Option("--autoscale", metavar="MIN:MAX", help="Slots that Ray's autoscaler is asked for, by the queue."),
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option("--queue", min=1, help="Jobs that may wait or run at a time; others must wait."),
    ] = None,
    reward: Annotated[
        str | None, typer.Option("--reward", metavar="POLICY", help="Reward policy of jobs that name none.")
    ] = None,
    timing_max_age: Annotated[
        float | None,
        typer.Option("--timing-max-age", metavar="HOURS", min=0, help="Oldest measured time given from the cache."),
    ] = None,
    run_limit: Annotated[
        float | None,
        typer.Option("--run-limit", metavar="SECONDS", help="Longest that one run of a candidate may take."),
    ] = None,
    compile_limit: Annotated[
        float | None,
        typer.Option("--compile-limit", metavar="SECONDS", help="Longest that a candidate's compilation may take."),
    ] = None,
    sizes: Annotated[
        CheckedSizes,
        typer.Option(
            "--sizes",
            help="On an emulated device: all as ever; train: the full size in part, and shared draws of the others; "
            "any: all, or train where a job or a run asks for it.",
        ),
    ] = CheckedSizes.ALL,
    modelnew: Annotated[
        ModelNewReplies,
        typer.Option(
            "--modelnew",
            help="A ModelNew that cannot be converted: refused by convert; by run, it runs as it is, in a jail.",
        ),
    ] = ModelNewReplies.CONVERT,
    measure: MeasureOption = None,
    screen: ScreenOption = True,
    allow_unconfined: UnconfinedOption = False,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="One line per request on stderr; text on a terminal, else JSON."),
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    config: ConfigOption = None,
) -> None:
    """Serve rewards for completions over HTTP, until Ctrl-C or SIGTERM.

    A signal ends what runs in good order and leaves the rest queued for the next start; a second one ends at once.
    """
    require_server_packages()
    if (address is not None) != (engine is EngineName.RAY):
        raise UsageError("--engine ray needs --address, and nothing else takes it")
    for option, value in (("--resource", resource), ("--autoscale", autoscale)):
        if value is not None and engine is not EngineName.RAY:
            raise UsageError(f"{option} is about a Ray cluster: give --engine ray and --address, or leave it out")
    for option, seconds in (("--run-limit", run_limit), ("--compile-limit", compile_limit)):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise UsageError(f"{option} needs a number of seconds above 0")
    measuring = measure_settings(None, None, False, measure, screen=screen)
    measuring = measuring.model_copy(update={"sizes": "train" if sizes is CheckedSizes.TRAIN else "all"})
    from kernelforge.evaluation.stages.full_size_measured import check_measure
    from kernelforge.server.http.auth import Tokens
    from kernelforge.server.http.logs import configure_logs
    from kernelforge.server.http.process import is_loopback, listen, run
    from kernelforge.server.jobs.service import JobService
    from kernelforge.tasks.suites import Catalogue

    settings = _service_settings(reward, queue, timing_max_age, train_on_request=sizes is CheckedSizes.ANY)
    configure_logs((log_format or (LogFormat.TEXT if sys.stderr.isatty() else LogFormat.JSON)).value)
    catalogue = Catalogue(suite or (), task or ())
    with listen(host, port) as listener, closing(Tokens(results)) as tokens:
        if not is_loopback(listener) and not tokens.any():
            raise UsageError(
                f"{host} can be reached from other machines, so it needs a token: "
                f"kernelforge token create NAME --results {shlex.quote(str(results))}"
            )
        if device is None:  # the GPUs of a cluster are other machines'
            local = engine is EngineName.LOCAL
            device = _all_of(default_device(opens=local, measure=measuring, allow_unconfined=allow_unconfined))
        if sizes is CheckedSizes.ANY:
            check_measure(measuring.model_copy(update={"sizes": "train"}), device)
        workers = _engine(
            engine,
            address,
            device,
            slots=slots,
            compilers=compilers,
            resource=resource,
            autoscale=autoscale,
            run_limit_s=run_limit,
            compile_limit_s=compile_limit,
            measure=measuring,
            allow_unconfined=allow_unconfined,
            modelnew=modelnew is ModelNewReplies.RUN,
        )
        service = JobService(
            workers,
            catalogue,
            results,
            settings=settings,
            shares=tokens.shares(),
            allow_unconfined=allow_unconfined,
        )
        code = run(_serve(service, tokens, listener, results))
    if code:
        sys.stderr.flush()
        os._exit(code)  # dropped work may still hold threads; accepted jobs are in the database


def _all_of(device: str) -> str:
    """Widen one GPU to all: a server uses every GPU unless ``--device`` names one."""
    return "cuda" if device.startswith("cuda:") else device


def _service_settings(
    reward: str | None, queue: int | None, timing_max_age: float | None, *, train_on_request: bool
) -> JobServiceSettings:
    from kernelforge.rewards import find_policy
    from kernelforge.server.jobs.state import JobServiceSettings

    values: dict[str, Any] = {"train_on_request": train_on_request}
    if reward is not None:
        values["policy"] = find_policy(reward).name
    if queue is not None:
        values["max_jobs"] = queue
    if timing_max_age is not None:
        values["max_measured_age_s"] = timing_max_age * 3600
    return JobServiceSettings(**values)


def _engine(name: EngineName, address: str | None, device: str, **options: Any) -> Engine:
    set_options = {option: value for option, value in options.items() if value is not None}
    if name is EngineName.LOCAL:
        from kernelforge.workers.pool import LocalEngine

        return LocalEngine(device, **set_options)
    if find_spec("ray") is None:
        raise UsageError(f"--engine ray needs a package that is not installed: {install_hint('ray')}")
    from kernelforge.workers.ray.autoscaling import Autoscaling
    from kernelforge.workers.ray.engine import RayEngine

    if "autoscale" in set_options:
        set_options["autoscale"] = Autoscaling.of(set_options["autoscale"])
    return RayEngine(device, address=address, **set_options)


async def _serve(service: JobService, tokens: Tokens, listener: socket.socket, results: Path) -> int:
    """Start the workers, serve, and end in good order. Returns the exit code: 0 unless a second signal came."""
    from kernelforge.server import protocols
    from kernelforge.server.base import DATABASE_NAME
    from kernelforge.server.http.app import create_app
    from kernelforge.server.http.limits import Limits
    from kernelforge.server.http.process import Stop, address, allow_connections, is_loopback, serve
    from kernelforge.server.sessions import routes as session_routes
    from kernelforge.server.sessions.service import Sessions

    limits, url = allow_connections(Limits()), address(listener)

    def ready() -> None:
        devices = ", ".join(sorted(set(service.status().devices)))
        typer.echo(f"kernelforge: serving on {url}, judging on {devices}, results in {results.resolve()}", err=True)

    with Stop() as stop:
        waiting = asyncio.create_task(_tell_start())
        started = await stop.unless(service.start())
        waiting.cancel()
        if not started:
            await service.close()
            return 0
        sessions = Sessions(service, results / DATABASE_NAME)
        app = create_app(
            service,
            tokens=tokens,
            public=not is_loopback(listener),
            limits=limits,
            routers=[*protocols.routers(service, sessions), session_routes.router(sessions)],
        )
        # These objects stay. A garbage collection over them would delay requests by tens of milliseconds.
        gc.collect()
        gc.freeze()
        # The thread that writes the journal then releases the interpreter sooner than after the default 5 ms.
        sys.setswitchinterval(0.001)
        ending = await serve(app, service, listener, stop, limits=limits, ready=ready)
        if not await stop.unless(_close(sessions, service), at_once=True) or ending.at_once:
            return 128 + stop.signal
    return 0


async def _tell_start() -> None:
    """Say that workers are starting, and every few seconds that they still are."""
    typer.echo("kernelforge: starting workers", err=True)
    for seconds in itertools.count(_TELL_S, _TELL_S):
        await asyncio.sleep(_TELL_S)
        typer.echo(f"kernelforge: workers are starting, {seconds} s so far", err=True)


_TELL_S = 5


async def _close(sessions: Sessions, service: JobService) -> None:
    await sessions.close()
    await service.close()
