"""docs/server.md names routes, metrics and limits as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelforge.client.models import MAX_BATCH, MAX_WAIT_S
from kernelforge.server.http.errors import CODES
from kernelforge.server.http.limits import Limits, LongPollLimiter
from kernelforge.server.http.logs import Metrics
from kernelforge.server.http.process import DRAIN_S
from kernelforge.server.http.routes.jobs import DEFAULT_SCORE_S, MAX_SCORE_S
from kernelforge.server.jobs.state import JobServiceSettings
from tests.server.http.test_auth_http import full_app, routes_of
from tests.support.minimal_service import MinimalService

PAGE = (Path(__file__).parents[3] / "docs" / "server.md").read_text()


@pytest.mark.slow
def test_every_route_on_the_page_exists(tmp_path: Path) -> None:
    served = {
        (method, re.sub(r"\{.*?\}", "{}", route.path))
        for route in routes_of(full_app(MinimalService(), tmp_path))
        for method in getattr(route, "methods", ())
    }
    named = {(method, re.sub(r"\{.*?\}", "{}", path)) for method, path in re.findall(r"`([A-Z]+) (/[^`?]*)`", PAGE)}
    assert len(named) > 15
    assert named <= served


@pytest.mark.slow
def test_every_native_route_is_on_the_page(tmp_path: Path) -> None:
    named = set(re.findall(r"`[A-Z]+ (/[^`?]*)`", PAGE))
    for route in routes_of(full_app(MinimalService(), tmp_path)):
        if route.path.startswith("/v1/") and "session" not in route.path:
            assert re.sub(r"\{job_id\}", "{id}", route.path).replace(":path", "") in named


def test_the_page_has_every_metric_and_no_other() -> None:
    service = MinimalService()
    metrics = Metrics(service, LongPollLimiter(1))
    service.counters["submitted"] += 1
    families = {family.name + ("_total" if family.type == "counter" else "") for family in metrics.registry.collect()}
    named = set(re.findall(r"kernelforge_\w+", PAGE.partition("## Operating it")[2]))
    engine = {name for name in families if name.startswith("kernelforge_engine_")}
    assert engine
    assert named - {"kernelforge_engine_"} == families - engine


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    limits, settings = Limits(), JobServiceSettings()
    for statement in (
        f"up to {MAX_SCORE_S:.0f}, {DEFAULT_SCORE_S:.0f} if left out",
        f"Up to {MAX_BATCH} jobs",
        f"up to {MAX_WAIT_S:.0f} holds",
        f"longer than {limits.body_s:.0f} s; it has more than {limits.body_bytes >> 20} MiB",
        f"or {limits.batch_bytes >> 20} MiB for a batch",
        f"{limits.connections} connections, {limits.long_polls} held requests, "
        f"{limits.bodies_bytes >> 20} MiB of bodies",
        f"{limits.head_bytes >> 10} KiB and {limits.head_s:.0f} s for a request's head",
        f"{settings.max_jobs:,} jobs that wait or run",
        f"{settings.max_jobs_per_run:,} of one run",
        f"for up to {DRAIN_S:.0f} s",
    ):
        assert statement in PAGE.replace("\n", " "), statement


def test_every_status_on_the_page_has_a_word() -> None:
    table = PAGE.partition("| Status | Meaning |")[2].partition("\n\n")[0]
    named = {int(status) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for status in row.split(",")}
    assert named == CODES.keys() - {405}
