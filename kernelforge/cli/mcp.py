"""``kernelforge mcp``: serve the evaluator as tools for a coding agent."""

from __future__ import annotations

from contextlib import closing
from importlib.util import find_spec
from typing import Annotated

import typer

from kernelforge.cli.support.options import (
    DEFAULT_RESULTS,
    DeviceOption,
    OfferedSuites,
    OfferedTasks,
    ResultsOption,
    UnconfinedOption,
    budget_of,
    default_device,
    open_store,
    warn,
)
from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import install_hint


def mcp(
    suite: OfferedSuites = None,
    task: OfferedTasks = None,
    device: DeviceOption = None,
    http: Annotated[
        int | None,
        typer.Option(
            "--http",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve over HTTP on 127.0.0.1 instead of stdio; 0: any port.",
        ),
    ] = None,
    evaluations: Annotated[
        int | None, typer.Option("--evaluations", min=1, help="Make at most this many evaluations.")
    ] = None,
    wall_minutes: Annotated[
        float | None, typer.Option("--wall-minutes", help="Start no evaluation after this many minutes.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            max=16,
            help="Candidates of a batch evaluated at a time; as many as cores, up to 4, if left out.",
        ),
    ] = None,
    allow_unconfined: UnconfinedOption = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Serve tasks and judge to a coding agent as MCP tools, over stdio; its submissions are journalled as a run."""
    if find_spec("mcp") is None:
        raise UsageError(f"the MCP server needs a package that is not installed: {install_hint('mcp')}")
    budget = budget_of(None, evaluations, wall_minutes, None, None, None)
    from kernelforge.devices import check_device
    from kernelforge.devices.remote.address import is_remote
    from kernelforge.evaluation.remote.machines import open_pool
    from kernelforge.mcp import transport
    from kernelforge.mcp.service import Service
    from kernelforge.records import MeasureSettings
    from kernelforge.tasks.suites import Catalogue
    from kernelforge.utils.machine import usable_cpus

    token = transport.token_from_environment() if http is not None else None
    catalogue = Catalogue(suite or (), task or ())
    if device is None:
        device = default_device(opens=True, measure=MeasureSettings(), allow_unconfined=allow_unconfined)
    name = device if is_remote(device) else check_device(device)
    warn(f"judging on {name}, submissions go to {results.resolve()}")
    with (
        open_store(results) as store,
        open_pool(name, threads=usable_cpus(), allow_unconfined=allow_unconfined, tell=warn) as pool,
        closing(Service(catalogue, pool, store, budget, jobs or min(usable_cpus(), 4))) as service,
    ):
        if http is None:
            transport.serve_stdio(service)
            return

        def ready(address: str) -> None:
            warn(f"serving on {address}")
            if token is None:
                warn(f"clients send the header 'Authorization: Bearer {bearer}'")

        bearer = token or transport.new_token()
        transport.serve_http(service, http, bearer, ready)
