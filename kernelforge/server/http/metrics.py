"""Prometheus metrics. No label takes a value that callers choose."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from kernelforge.client.models import Job
from kernelforge.server.http.long_poll import LongPollLimiter
from kernelforge.server.jobs.service import JobService

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
        self.registry.register(_Gauges(service, long_polls))
        service.on_ended(self.observe_job)

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
        if result.error is not None:
            self._faults.labels(result.error.code).inc()

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


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
        yield GaugeMetricFamily("kernelforge_held_requests", "Requests that wait for jobs.", len(self._long_polls))
        events = CounterMetricFamily("kernelforge_gateway_events", "What the gateway did.", labels=("event",))
        for event, count in self._service.counters.items():
            events.add_metric((event,), count)
        yield events
        for name, value in health.extra.items():
            yield GaugeMetricFamily(f"kernelforge_engine_{re.sub('[^a-zA-Z0-9_]', '_', name)}", "Of the engine.", value)
