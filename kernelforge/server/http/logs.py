"""Log and Prometheus metrics.

The log has one line a request and one for each job that was evaluated or has no score, as JSON or text, without tokens
and completions. No label of a metric takes a value that callers choose, except the names of the runs that ended a job
last.
"""

from __future__ import annotations

import logging
import re
import secrets
import sys
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import Processor

from kernelforge.client.models import Job
from kernelforge.server.base import LRUCache, RequestRejected
from kernelforge.server.http.errors import problem_response
from kernelforge.server.http.limits import LongPollLimiter, OpenRequests
from kernelforge.server.jobs.service import JobService

LogFormat = Literal["json", "text"]
RequestObserver = Callable[[str, str, int, float], None]
"""Called for every request with method, route template, status and seconds."""
UNKNOWN_ROUTE = "unknown"
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})

_ADDED: list[Processor] = [
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso"),
    structlog.processors.format_exc_info,  # without values of variables, which may be tokens
]
log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("kernelforge.server"),
    processors=[structlog.stdlib.filter_by_level, *_ADDED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)
"""Uses the standard library, so that an embedding application can redirect it."""


def configure_logs(form: LogFormat, stream: TextIO | None = None) -> None:
    """Send the server's log, and warnings of libraries, to a stream; None for stderr."""
    stream = stream or sys.stderr
    renderer: list[Processor] = (
        [structlog.processors.EventRenamer("message"), structlog.processors.JSONRenderer()]
        if form == "json"
        else [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
            foreign_pre_chain=_ADDED,
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("kernelforge.server").setLevel(logging.INFO)


class RequestLog:
    """Assigns request ids, logs and counts requests, and answers 500 after an unexpected error. Pure ASGI."""

    def __init__(self, app: ASGIApp, observe: RequestObserver, requests: OpenRequests) -> None:
        self._app = app
        self._observe = observe
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        began, status, streams = perf_counter(), 0, False
        name = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = name
        header = (b"x-request-id", name.encode())

        async def send_named(message: Message) -> None:
            nonlocal status, streams
            kind = message["type"]
            if kind in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                streams = all(field != b"content-length" for field, _ in message.get("headers", ()))
                message["headers"] = [*message.get("headers", ()), header]
            elif kind == "websocket.accept":
                status = 101
            await send(message)

        try:
            async with self._requests.answering():
                await self._app(scope, receive, send_named)
        except RequestRejected as closing:
            if status == 0 and scope["type"] == "http":
                await problem_response(closing, scope)(scope, receive, send_named)
            elif streams:
                await send({"type": "http.response.body"})
        except Exception:
            log.exception("fault", request_id=name, path=scope["path"])
            if status == 0 and scope["type"] == "http":
                refusal = RequestRejected(500, "internal", "a server error; see its log under this request id")
                await problem_response(refusal, scope)(scope, receive, send_named)
        finally:
            self._note(scope, name, status, perf_counter() - began)

    def _note(self, scope: Scope, name: str, status: int, seconds: float) -> None:
        route = route_of(scope)
        method = scope.get("method", "WS")
        method = method if method in _METHODS or scope["type"] == "websocket" else "OTHER"
        self._observe(method, route, status, seconds)
        caller = scope["state"].get("caller")
        write = log.debug if route in _QUIET else log.info
        write(
            "request",
            request_id=name,
            caller=caller.name if caller else None,
            method=method,
            route=route,
            status=status,
            ms=round(seconds * 1e3, 2),
        )


def log_job(job: Job) -> None:
    """Log the end of a job with its run, task, verdict and reward."""
    result = job.result
    if result is None or job.finished_at is None:
        return
    write = log.debug if result.cached else log.info
    write(
        "job",
        job=job.id,
        run=job.run_id,
        task=job.task,
        status=job.status.value,
        outcome=result.outcome,
        verdict=result.verdict_words,
        stage=result.stage,
        reward=result.reward,
        evaluation=result.evaluation,
        error=None if result.error is None else result.error.code,
        ms=round((job.finished_at - job.submitted_at) * 1e3, 2),
    )


def route_of(scope: Scope) -> str:
    """The template of a request's path, without ids, so that the number of values is bounded."""
    return str(getattr(scope.get("route"), "path", UNKNOWN_ROUTE))


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return str(value.decode())
    return secrets.token_hex(8)


__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

_REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
_JOB_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """Counters of the server, and gauges that are read from the job service on request."""

    def __init__(self, service: JobService, long_polls: LongPollLimiter) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._requests = Counter(
            "kernelforge_http_requests", "Requests.", ("method", "route", "status"), registry=self.registry
        )
        self._request_s = Histogram(
            "kernelforge_http_request_seconds",
            "From a request's headers to the end of its answer, waiting included.",
            ("route",),
            buckets=_REQUEST_SECONDS,
            registry=self.registry,
        )
        self._jobs = Counter(
            "kernelforge_jobs",
            "Jobs that ended, by outcome and how they ended.",
            ("outcome", "status", "cached"),
            registry=self.registry,
        )
        self._verdicts = Counter("kernelforge_verdicts", "Verdicts of jobs.", ("verdict",), registry=self.registry)
        self._readings = Counter(
            "kernelforge_readings",
            "Verdicts of jobs, by how the candidate was read: plan, converted or modelnew.",
            ("reading", "verdict"),
            registry=self.registry,
        )
        self._stages = Counter(
            "kernelforge_stages", "Stages that jobs ended in.", ("stage", "verdict"), registry=self.registry
        )
        self._faults = Counter(
            "kernelforge_faults", "Jobs without a score, by reason.", ("code",), registry=self.registry
        )
        self._job_s = Histogram(
            "kernelforge_job_seconds",
            "From a job's submission to its end.",
            ("cached",),
            buckets=_JOB_SECONDS,
            registry=self.registry,
        )
        self._queued_s = Histogram(
            "kernelforge_job_queued_seconds",
            "From a job's submission to its start.",
            buckets=_JOB_SECONDS,
            registry=self.registry,
        )
        self._runs: LRUCache[str, _RunCounts] = LRUCache(SHOWN_RUNS)
        self.registry.register(_Gauges(service, long_polls))
        self.registry.register(_Runs(service, self._runs))
        service.on_ended(self.observe_job)
        service.on_ended(log_job)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, status).inc()
        self._request_s.labels(route).observe(seconds)

    def observe_job(self, job: Job) -> None:
        """Count a completed job."""
        result = job.result
        if result is None or job.finished_at is None:
            return
        cached = "yes" if result.cached else "no"
        self._jobs.labels(result.outcome, job.status.value, cached).inc()
        self._job_s.labels(cached).observe(max(0.0, job.finished_at - job.submitted_at))
        if job.started_at is not None:
            self._queued_s.observe(max(0.0, job.started_at - job.submitted_at))
        if result.verdict_words is not None:
            self._verdicts.labels(result.verdict_words).inc()
            self._readings.labels("converted" if result.converted else result.lane, result.verdict_words).inc()
            self._stages.labels(result.stage or "none", result.verdict_words).inc()
        if result.error is not None:
            self._faults.labels(result.error.code).inc()
        run = self._runs.get(job.run_id)
        if run is None:
            self._runs.put(job.run_id, run := _RunCounts())
        run.results[result.verdict_words or result.outcome] += 1
        if result.reward is not None:
            run.rewards += 1
            run.reward_sum += result.reward

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


SHOWN_RUNS = 100
"""Runs with metrics of their own: those that ended a job last."""


@dataclass(slots=True)
class _RunCounts:
    """Ended jobs of one run."""

    results: Counts[str] = field(default_factory=Counts)
    """By verdict, or by outcome where nothing was evaluated."""
    rewards: int = 0
    reward_sum: float = 0.0


class _Runs(Collector):
    """Metrics of single runs."""

    def __init__(self, service: JobService, runs: LRUCache[str, _RunCounts]) -> None:
        self._service = service
        self._runs = runs

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        counted = dict(self._runs.items())
        results = CounterMetricFamily("kernelforge_run_results", "Ended jobs of a run.", labels=("run", "verdict"))
        rewards = SummaryMetricFamily("kernelforge_run_reward", "Rewards of a run.", labels=("run",))
        jobs = GaugeMetricFamily("kernelforge_run_jobs", "Jobs of a run now.", labels=("run", "state"))
        lags = HistogramMetricFamily("kernelforge_run_lag", "Versions that admitted jobs were behind.", labels=("run",))
        refused = CounterMetricFamily("kernelforge_run_refused", "Jobs not admitted.", labels=("run", "reason"))
        for run, counts in counted.items():
            for verdict, count in counts.results.items():
                results.add_metric((run, verdict), count)
            rewards.add_metric((run,), counts.rewards, counts.reward_sum)
        for status in self._service.runs():
            if status.run_id in counted:
                jobs.add_metric((status.run_id, "queued"), status.queued)
                jobs.add_metric((status.run_id, "running"), status.running)
            if status.policy_version is not None:  # these runs are as many as administrators set
                lags.add_metric((status.run_id,), _buckets(status.lags), sum(n * lag for lag, n in status.lags.items()))
                for reason, count in status.refused.items():
                    refused.add_metric((status.run_id, reason), count)
        yield from (results, rewards, jobs, lags, refused)


_LAGS = (0, 1, 2, 4, 8, 16, 32)


def _buckets(lags: Mapping[int, int]) -> list[tuple[str, float]]:
    """Cumulative counts of lags, as Prometheus has histograms."""
    counts: list[tuple[str, float]] = [
        (f"{most:.1f}", sum(count for lag, count in lags.items() if lag <= most)) for most in _LAGS
    ]
    return [*counts, ("+Inf", sum(lags.values()))]


class _Gauges(Collector):
    """Gauges that are read from the job service on request."""

    def __init__(self, service: JobService, long_polls: LongPollLimiter) -> None:
        self._service = service
        self._long_polls = long_polls

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        status, health = self._service.status(), self._service.health()
        yield GaugeMetricFamily("kernelforge_ready", "1 if jobs are accepted.", status.state == "ready")
        yield GaugeMetricFamily("kernelforge_jobs_queued", "Jobs that wait.", status.queued)
        yield GaugeMetricFamily("kernelforge_jobs_running", "Jobs that a worker has.", status.running)
        yield GaugeMetricFamily("kernelforge_workers", "Worker processes that are alive.", health.workers)
        yield GaugeMetricFamily("kernelforge_worker_restarts", "Workers replaced since the start.", health.restarts)
        yield GaugeMetricFamily("kernelforge_runs", "Runs that the server knows.", len(self._service.runs()))
        yield GaugeMetricFamily(
            "kernelforge_suspects", "Withheld candidates to decide about.", self._service.open_suspects
        )
        yield GaugeMetricFamily("kernelforge_held_requests", "Requests that wait for jobs.", len(self._long_polls))
        events = CounterMetricFamily("kernelforge_gateway_events", "What the gateway did.", labels=("event",))
        for event, count in self._service.counters.items():
            events.add_metric((event,), count)
        yield events
        for name, value in health.extra.items():
            yield GaugeMetricFamily(f"kernelforge_engine_{re.sub('[^a-zA-Z0-9_]', '_', name)}", "Of the engine.", value)
