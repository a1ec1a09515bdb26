"""The process on another machine that evaluates for a run: frames in, frames out.

It holds a pool and evaluators by number. Each request runs in a thread; requests to one evaluator come one at a time.
It ends when its connection does, and ends every process that it started. It sees tasks and candidates, and neither the
run's database nor a key.
"""

from __future__ import annotations

import itertools
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelforge.compile.cache import packed_build
from kernelforge.devices.base import Device
from kernelforge.errors import DeviceError, KernelForgeError
from kernelforge.evaluation.evaluator import BegunEvaluation, EvaluationResult, Evaluator, SharedEvaluations
from kernelforge.evaluation.generators.recipe import Recipe
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.remote.settings import FarDevice, FarSettings
from kernelforge.prediction.correction import ModelErrors
from kernelforge.records import (
    Candidate,
    Evaluation,
    Fingerprint,
    ForecastOutcome,
    InputGenerator,
    Profile,
    Screening,
    Task,
    Verdict,
)
from kernelforge.utils.closing import Closing
from kernelforge.utils.frames import error_frame, packed, receive
from kernelforge.utils.machine import usable_cpus

_THREADS = 256
"""More than the tasks of a run that are worked on at a time."""

_LOG = logging.getLogger(__name__)


Start = Callable[[FarSettings, Callable[[str], None]], tuple[dict[str, Any], "Requests"]]
"""Starts what answers requests: gives what the process says of itself, and what answers."""


def main(descriptor: int) -> None:
    """Serve the run at the other end of a socket."""
    serve(descriptor, _open)


def _open(settings: FarSettings, tell: Callable[[str], None]) -> tuple[dict[str, Any], Requests]:
    pool = EvaluatorPool(
        settings.device,
        threads=max(1, usable_cpus() // settings.jobs),
        measure=settings.measure,
        allow_unconfined=settings.allow_unconfined,
        tell=tell,
    )
    try:
        ready = {
            "fingerprint": pool.fingerprint.model_dump(mode="json"),
            "device": _described(pool.device, pool.fingerprint),
            "devices": len(pool.devices),
        }
    except BaseException:
        pool.close()
        raise
    return ready, _PoolRequests(pool)


def serve(descriptor: int, start: Start) -> None:
    """Answer the requests at the other end of a socket, until it ends.

    Args:
        descriptor: of the socket.
        start: gets the settings, and may tell the user something.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")
    connection = socket.socket(fileno=descriptor)
    frames = connection.makefile("rb")
    first = receive(frames)
    if first is None:
        return
    writer = _Writer(connection)
    try:
        ready, requests = start(FarSettings.model_validate(first), lambda message: writer.send({"tell": message}))
    except KernelForgeError as error:
        writer.send({"failed": error_frame(error)})
        # A thread carries the frame: the end of this process would end it, and the reason would be lost.
        while receive(frames) is not None:
            pass
        return
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="request")
    with requests:
        requests.send = writer.send
        writer.send({"ready": ready})
        while (frame := receive(frames)) is not None:
            if frame["op"] == "stop":
                requests.stop(frame["id"])
            else:
                requests.begin(frame["id"])
                executor.submit(requests.reply, frame)
        requests.stop_all()
    executor.shutdown(wait=False, cancel_futures=True)


class _Writer:
    """Sends frames from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, frame: dict[str, Any]) -> None:
        with self._lock:
            try:
                self._connection.sendall(packed(frame))
            except OSError:
                return  # the reader of the other direction ends this process


def _described(device: Device, fingerprint: Fingerprint) -> dict[str, Any]:
    return FarDevice(
        name=device.name,
        arch=device.arch,
        spec=device.spec.key,
        capabilities=asdict(device.capabilities),
        description=dict(device.describe()),
        fingerprint=fingerprint,
    ).model_dump(mode="json")


@dataclass
class _Opened:
    """An evaluator, and what belongs to it."""

    evaluator: Evaluator
    errors: ModelErrors
    begun: dict[int, BegunEvaluation] = field(default_factory=dict)


class Requests(Closing):
    """Answers requests, each operation ``NAME`` with the method ``_do_NAME``. Safe to use from several threads."""

    def __init__(self) -> None:
        self._stopped: dict[int, threading.Event] = {}
        self.send: Callable[[dict[str, Any]], None] = lambda frame: None
        """Sends a frame to the other side."""

    def begin(self, request: int) -> None:
        self._stopped[request] = threading.Event()

    def stop(self, request: int) -> None:
        """Have a request try nothing further."""
        event = self._stopped.get(request)
        if event is not None:
            event.set()

    def stop_all(self) -> None:
        for event in list(self._stopped.values()):
            event.set()

    def reply(self, frame: dict[str, Any]) -> None:
        """Answer a request."""
        self.send(self._answer(frame))

    def _answer(self, frame: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request: its result, or an error."""
        content = {name: value for name, value in frame.items() if name not in ("id", "op")}
        try:
            reply = getattr(self, f"_do_{frame['op']}")(request=frame["id"], **content)
        except KernelForgeError as error:
            reply = {"error": error_frame(error)}
        except Exception as error:
            _LOG.exception("request %s failed", frame["op"])
            reply = {"error": error_frame(KernelForgeError(f"{type(error).__name__}: {error}"))}
        finally:
            self._stopped.pop(frame["id"], None)
        return {"id": frame["id"], **reply}


class _PoolRequests(Requests):
    """Requests to the evaluators of a pool.

    Args:
        pool: closed with this.
    """

    def __init__(self, pool: EvaluatorPool) -> None:
        super().__init__()
        self._pool = pool
        self._opened: dict[int, _Opened] = {}
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """End the pool's processes."""
        self._pool.close()

    def _do_open(
        self,
        request: int,
        task: dict[str, Any],
        generators: list[dict[str, Any]],
        outcomes: list[dict[str, Any]],
        shared: list[dict[str, Any]] | None,
    ) -> dict[str, Any]:
        errors = ModelErrors(map(ForecastOutcome.model_validate, outcomes))
        tests = [InputGenerator.model_validate(each) for each in generators]
        evaluator = self._pool.evaluator(Task.model_validate(task), tests, errors)
        number = next(self._numbers)
        self._opened[number] = _Opened(evaluator, errors)
        if shared is not None:
            self._do_share(request, number, shared)
        return {
            "evaluator": number,
            "facts": evaluator.facts.model_dump(mode="json"),
            "device": _described(evaluator.device, evaluator.fingerprint),
        }

    def _do_share(self, request: int, evaluator: int, shared: list[dict[str, Any]]) -> dict[str, Any]:
        self._opened[evaluator].evaluator.shared = SharedEvaluations(
            (Candidate.model_validate(each["candidate"]), _result(each)) for each in shared
        )
        return {}

    def _do_generators(self, request: int, evaluator: int, generators: list[dict[str, Any]]) -> dict[str, Any]:
        opened = self._opened[evaluator].evaluator
        opened.use_generators([InputGenerator.model_validate(each) for each in generators])
        return {"fingerprint": opened.fingerprint.model_dump(mode="json")}

    def _do_admit(self, request: int, evaluator: int) -> dict[str, Any]:
        opened = self._opened[evaluator].evaluator
        with opened.gpu_lock():
            opened.oracle.require_admitted()
        return {}

    def _do_trace(self, request: int, evaluator: int, size: str) -> dict[str, Any]:
        return {"graph": self._opened[evaluator].evaluator.oracle.trace(size).model_dump(mode="json")}

    def _do_try(
        self, request: int, evaluator: int, name: str, recipe: dict[str, Any], sizes: list[str]
    ) -> dict[str, Any]:
        oracle = self._opened[evaluator].evaluator.oracle
        findings = oracle.try_generator(name, Recipe.model_validate(recipe), sizes)
        return {"findings": [finding.model_dump(mode="json") for finding in findings]}

    def _do_evaluate(
        self,
        request: int,
        evaluator: int,
        candidate: dict[str, Any],
        seed: int,
        profile: bool,
        outcomes: list[dict[str, Any]],
    ) -> dict[str, Any]:
        judged = self._updated(evaluator, outcomes).evaluator.evaluate(
            Candidate.model_validate(candidate),
            seed=seed,
            profile=profile,
            stopped=self._stopped[request].is_set,
            on_part=lambda part: self.send({"id": request, "part": part}),
        )
        return _plain(judged)

    def _do_begin(
        self, request: int, evaluator: int, candidate: dict[str, Any], seed: int, outcomes: list[dict[str, Any]]
    ) -> dict[str, Any]:
        opened = self._updated(evaluator, outcomes)
        begun = opened.evaluator.begin(Candidate.model_validate(candidate), seed=seed)
        opened.begun[request] = begun
        screening = begun.work.screening
        return {
            "begun": request,
            "seconds": begun.seconds,
            "screening": None if screening is None else screening.model_dump(mode="json"),
        }

    def _do_conclude(
        self, request: int, evaluator: int, begun: int, screening: dict[str, Any] | None, profile: bool
    ) -> dict[str, Any]:
        opened = self._opened[evaluator]
        return _plain(opened.evaluator.conclude(_taken(opened, begun, screening), profile=profile))

    def _do_pass_over(
        self, request: int, evaluator: int, begun: int, screening: dict[str, Any] | None
    ) -> dict[str, Any]:
        opened = self._opened[evaluator]
        return _plain(opened.evaluator.pass_over(_taken(opened, begun, screening)))

    def _do_tune(
        self, request: int, evaluator: int, candidate: dict[str, Any], seed: int, hidden: bool
    ) -> dict[str, Any]:
        stopped, opened = self._stopped[request].is_set, self._opened[evaluator].evaluator
        trials = opened.tune(Candidate.model_validate(candidate), seed=seed, stopped=stopped, hidden=hidden)
        return {"trials": [trial.model_dump(mode="json") for trial in trials]}

    def _do_build(self, request: int, evaluator: int, candidate: dict[str, Any]) -> dict[str, Any]:
        stopped, opened = self._stopped[request].is_set, self._opened[evaluator].evaluator
        build, artifact, failure = opened.build(Candidate.model_validate(candidate), stopped=stopped)
        return {
            "build": None if build is None else build.model_dump(mode="json"),
            "artifact": None if artifact is None else (artifact.build.key, packed_build(artifact)),
            "failure": None if failure is None else (failure.verdict, failure.stage, failure.reason),
        }

    def _do_reproduce(
        self, request: int, evaluator: int, candidate: dict[str, Any], verdict: str | None, seed: int
    ) -> dict[str, Any]:
        opened, as_before = self._opened[evaluator].evaluator, None if verdict is None else Verdict(verdict)
        failure = opened.reproduce(Candidate.model_validate(candidate), as_before, seed=seed)
        return {"constants": None} if failure is None else failure._asdict()

    def _do_held(self, request: int, evaluator: int) -> dict[str, Any]:
        return {"bytes": self._opened[evaluator].evaluator.held_bytes()}

    def _do_close(self, request: int, evaluator: int) -> dict[str, Any]:
        opened = self._opened.pop(evaluator, None)
        if opened is not None:
            opened.evaluator.close()
        return {}

    def _do_done(self, request: int, task: dict[str, Any]) -> dict[str, Any]:
        self._pool.done(Task.model_validate(task))
        return {}

    def _do_interrupt(self, request: int, oracles: bool) -> dict[str, Any]:
        self._pool.interrupt(oracles=oracles)
        return {}

    def _do_quarantine(self, request: int, device: str, why: str) -> dict[str, Any]:
        facts = next(each for each in self._pool.devices if each.name == device)
        self._pool.quarantine(facts, DeviceError(why))
        return {}

    def _do_quarantined(self, request: int) -> dict[str, Any]:
        return {"devices": [device.name for device in self._pool.devices if self._pool.is_quarantined(device)]}

    def _updated(self, evaluator: int, outcomes: list[dict[str, Any]]) -> _Opened:
        """An evaluator, once it has the outcomes of forecasts that the run has gathered since."""
        opened = self._opened[evaluator]
        for outcome in outcomes:
            opened.errors.add(ForecastOutcome.model_validate(outcome))
        return opened


def _taken(opened: _Opened, begun: int, screening: dict[str, Any] | None) -> BegunEvaluation:
    """A begun evaluation, with the rank that the run has given it since."""
    taken = opened.begun.pop(begun)
    if screening is not None:
        taken.work.screening = Screening.model_validate(screening)
    return taken


def _plain(result: EvaluationResult) -> dict[str, Any]:
    profile = result.profile
    return {
        "evaluation": result.evaluation.model_dump(mode="json"),
        "profile": None if profile is None else profile.model_dump(mode="json"),
    }


def _result(plain: dict[str, Any]) -> EvaluationResult:
    profile = plain["profile"]
    return EvaluationResult(
        Evaluation.model_validate(plain["evaluation"]), None if profile is None else Profile.model_validate(profile)
    )
