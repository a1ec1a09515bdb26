"""A pool whose evaluators are on another machine.

After a cut the connection is made again, and what was under way is done once more. Begun evaluations, tuning and the
sharing of equal candidates live there; what has to survive a cut is kept here: tasks, generators and evaluations.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from kernelforge.devices.base import Capabilities
from kernelforge.devices.remote.address import parse_address
from kernelforge.devices.remote.relay import BEAT, BEAT_S
from kernelforge.devices.remote.ssh import RemoteProcess
from kernelforge.errors import CandidateError, DeviceError, SandboxError
from kernelforge.evaluation.evaluator import (
    BegunEvaluation,
    DeviceFacts,
    EvaluationResult,
    SharedEvaluations,
    rejection,
)
from kernelforge.evaluation.generators.recipe import Recipe
from kernelforge.evaluation.oracle.client import GeneratorFinding
from kernelforge.evaluation.remote.settings import ENTRY, FarDevice, FarSettings
from kernelforge.evaluation.stages.candidate_runs import EvaluationState
from kernelforge.hardware.specs import DeviceSpec, spec_by_key
from kernelforge.prediction.correction import ModelErrors
from kernelforge.records import (
    Candidate,
    Evaluation,
    Fingerprint,
    Graph,
    InputGenerator,
    MeasureSettings,
    Profile,
    Screening,
    Task,
    TaskFacts,
    TuneTrial,
)
from kernelforge.utils.closing import Closing
from kernelforge.utils.frames import error_from, packed, receive

RECONNECT_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses before the tries to connect again after a cut."""

TRIES = 2
"""How often a request is made: once more after a cut, so that one that ends the connection does not go round."""

_CLOSING_S = 10.0
_STOP_POLL_S = 0.5

T = TypeVar("T")


class ConnectionCut(Exception):
    """The connection ended before the reply."""


class _Connection:
    """Requests and replies of several threads over one process of the other machine."""

    def __init__(self, process: RemoteProcess, settings: FarSettings, tell: Callable[[str], None]) -> None:
        self._process = process
        self._frames = process.connection.makefile("rb")
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._ended = threading.Event()
        beat = threading.Thread(target=self._beat, name="connection", daemon=True)
        beat.start()
        try:
            self._send(packed(settings.model_dump(mode="json")))
            first = self._frame()
            while first is not None and "tell" in first:
                self._tell(first["tell"])
                first = self._frame()
            if first is None:
                raise ConnectionCut
            if "failed" in first:
                raise error_from(first["failed"])
            self.device = FarDevice.model_validate(first["ready"])
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._receive, name="replies", daemon=True).start()

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def request(self, op: str, *, stopped: Callable[[], bool] | None = None, **content: Any) -> dict[str, Any]:
        """Send a request and wait for its reply.

        Args:
            op: what is requested.
            stopped: asked while waiting; once it says True, the other side tries nothing further.
            content: of the request.

        Raises:
            ConnectionCut: the connection ended first.
            KernelForgeError: the error of the other side.
        """
        reply: Future[dict[str, Any]] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = reply
        if not self.alive:
            raise ConnectionCut
        self._send(packed({"id": number, "op": op, **content}))
        waits = stopped is None
        while True:
            try:
                answer = reply.result(timeout=None if waits else _STOP_POLL_S)
                break
            except StillWaiting:
                if stopped is not None and stopped():
                    waits = True
                    self._send(packed({"id": number, "op": "stop"}))
        if "error" in answer:
            raise error_from(answer["error"])
        return answer

    def close(self, wait_s: float = 0.0) -> None:
        self._end()
        self._process.close(wait_s)

    def _send(self, data: bytes) -> None:
        with self._lock:
            try:
                self._process.connection.sendall(data)
            except OSError:
                self._ended.set()
                raise ConnectionCut from None

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(ConnectionCut):
                self._send(BEAT)

    def _frame(self) -> dict[str, Any] | None:
        try:
            return receive(self._frames)
        except (OSError, ValueError):
            return None

    def _receive(self) -> None:
        while (frame := self._frame()) is not None:
            if "tell" in frame:
                self._tell(frame["tell"])
                continue
            with self._lock:
                reply = self._waiting.pop(frame.get("id", 0), None)
            if reply is not None:
                reply.set_result(frame)
        self._end()

    def _end(self) -> None:
        self._ended.set()
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for reply in waiting:
            reply.set_exception(ConnectionCut())


@dataclass(frozen=True)
class RemoteDevice:
    """Description of a device of another machine."""

    name: str
    kind: Literal["cuda", "emulated"]
    arch: str
    spec: DeviceSpec
    capabilities: Capabilities
    description: Mapping[str, str]

    def describe(self) -> Mapping[str, str]:
        """See :meth:`kernelforge.devices.base.Device.describe`."""
        return self.description


class RemotePool(Closing):
    """Evaluators of one device of another machine. Safe to share between threads; close it when done.

    Args:
        url: of the device, as in ``ssh://user@host:2222/cuda:0``.
        jobs: tasks that are worked on at a time.
        measure, allow_unconfined, tell: as of :class:`~kernelforge.evaluation.pool.EvaluatorPool`.

    Raises:
        UsageError: it is no such address.
        DeviceError: the machine cannot be reached, lacks something or has no such device.
        SandboxError: no jail works there and ``allow_unconfined`` is false.
    """

    def __init__(
        self,
        url: str,
        *,
        jobs: int = 1,
        measure: MeasureSettings | None = None,
        allow_unconfined: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._address, device = parse_address(url)
        self.name = self._address.url(device)
        self.allow_unconfined = allow_unconfined
        self.settings = measure or MeasureSettings()
        self._settings = FarSettings(device=device, jobs=jobs, measure=self.settings, allow_unconfined=allow_unconfined)
        self._tell = tell or (lambda message: None)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._connection = self._connected(())
        there = self._connection.device
        self._fingerprint = there.fingerprint
        self.device = RemoteDevice(
            name=there.name,
            kind="cuda" if there.fingerprint.device_kind == "cuda" else "emulated",
            arch=there.arch,
            spec=spec_by_key(there.spec),
            capabilities=there.known_capabilities(),
            description=there.description,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of evaluations there, which is that of a run on that machine."""
        return self._fingerprint

    def connection(self) -> _Connection:
        """The connection, made again after a cut.

        Raises:
            DeviceError: it cannot be made.
            SandboxError: the pool was closed.
        """
        with self._lock:
            if self._closed.is_set():
                raise SandboxError(f"{self.name}: the connection was closed")
            if self._connection is None or not self._connection.alive:
                if self._connection is not None:
                    self._connection.close()
                self._tell(f"the connection to {self.name} was cut: connecting again")
                self._connection = self._connected(RECONNECT_S)
                if self._connection.device.fingerprint != self._fingerprint:
                    raise DeviceError(f"{self.name} is not what it was before the connection was cut")
            return self._connection

    def evaluator(
        self, task: Task, generators: Sequence[InputGenerator] = (), errors: ModelErrors | None = None
    ) -> RemoteEvaluator:
        """See :meth:`kernelforge.evaluation.pool.EvaluatorPool.evaluator`."""
        return RemoteEvaluator(self, task, generators, errors or ModelErrors())

    def done(self, task: Task) -> None:
        """See :meth:`kernelforge.evaluation.pool.EvaluatorPool.done`."""
        with suppress(ConnectionCut, SandboxError, DeviceError):
            if self._connection is not None and self._connection.alive:
                self._connection.request("done", task=task.model_dump(mode="json"))

    def quarantine(self, device: DeviceFacts, error: DeviceError) -> None:
        """Raises the error: there is no other device."""
        raise error

    def is_quarantined(self, device: DeviceFacts) -> bool:
        """Never: see :meth:`quarantine`."""
        return False

    def retry(self, call: Callable[[_Connection], T]) -> T:
        """The result of a call, which is made again after a cut.

        Raises:
            DeviceError: it was cut again, or there is no connection any more.
            SandboxError: the pool was closed, or the reply cannot be read.
        """
        for _ in range(TRIES):
            connection = self.connection()
            try:
                return call(connection)
            except ConnectionCut:
                continue
            except (LookupError, TypeError, ValidationError) as error:
                first = str(error).split("\n")[0][:300]
                raise SandboxError(f"{self.name} sent a reply that cannot be read: {first}") from error
        if self._closed.is_set():
            raise SandboxError(f"{self.name}: the connection was closed")
        raise DeviceError(
            f"the connection to {self.name} was cut {TRIES} times under the same evaluation: see that the network and "
            "the machine are well, then go on with `kernelforge resume`"
        )

    def close(self) -> None:
        """End the process there and the connection."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            connection.close(_CLOSING_S)

    def _connected(self, pauses: Sequence[float]) -> _Connection:
        """A new connection; tries again after each of the pauses."""
        failure: DeviceError | None = None
        gpu = self._settings.device.startswith("cuda")
        for pause in pauses or (0.0,):
            if self._closed.wait(pause):
                raise SandboxError(f"{self.name}: the connection was closed")
            try:
                process = RemoteProcess(self._address, ENTRY, gpu=gpu, tell=self._tell)
            except DeviceError as error:
                failure = error
                continue
            try:
                return _Connection(process, self._settings, self._tell)
            except ConnectionCut:
                why = process.last_message() or "no reason was given"
                failure = DeviceError(f"{self.name} cannot be used: its process ended before it was ready: {why[:300]}")
        assert failure is not None
        raise failure


class _RemoteState(EvaluationState):
    """A begun evaluation that is on the other machine."""

    on: _Connection
    number: int


class RemoteEvaluator:
    """An evaluator of another machine: see :class:`kernelforge.evaluation.evaluator.CandidateEvaluator`."""

    def __init__(self, pool: RemotePool, task: Task, generators: Sequence[InputGenerator], errors: ModelErrors) -> None:
        self.task = task
        self.oracle = RemoteOracle(self)
        self.device = pool.device
        self._pool = pool
        self._generators = tuple(generators)
        self._errors = errors
        self._told = 0
        """How many outcomes of forecasts the other side has."""
        self._shared: SharedEvaluations | None = None
        self._on: _Connection | None = None
        self._number = 0
        self.facts: TaskFacts
        self.fingerprint: Fingerprint
        self._pool.retry(self._opened)

    def gpu_lock(self) -> AbstractContextManager[None]:
        """Nothing: the other side locks its GPU."""
        return nullcontext()

    @property
    def shared(self) -> SharedEvaluations | None:
        """Evaluations that answer for equal candidates; looked for there."""
        return self._shared

    @shared.setter
    def shared(self, shared: SharedEvaluations | None) -> None:
        self._shared = shared
        if shared is not None:
            self.ask("share", shared=self._past())

    def use_generators(self, generators: Sequence[InputGenerator]) -> None:
        """See :meth:`kernelforge.evaluation.evaluator.Evaluator.use_generators`."""
        self._generators = tuple(generators)
        reply = self.ask("generators", generators=_plain(self._generators))
        self.fingerprint = Fingerprint.model_validate(reply["fingerprint"])

    def evaluate(self, candidate: Candidate, *, seed: int, profile: bool = True) -> EvaluationResult:
        """See :meth:`kernelforge.evaluation.evaluator.Evaluator.evaluate`."""

        content = {"candidate": candidate.model_dump(mode="json"), "seed": seed, "profile": profile}

        def call(connection: _Connection) -> EvaluationResult:
            self._opened(connection)
            reply = self._request(connection, "evaluate", outcomes=self._news(), **content)
            return self._result(candidate, reply)

        return self._pool.retry(call)

    def begin(self, candidate: Candidate, *, seed: int) -> BegunEvaluation:
        """See :meth:`kernelforge.evaluation.evaluator.Evaluator.begin`."""
        state = _RemoteState(seed=seed, source=candidate.source)
        seconds = self._pool.retry(lambda connection: self._begin(connection, candidate, state))
        return BegunEvaluation(candidate, state, None, seconds)

    def conclude(self, begun: BegunEvaluation, *, profile: bool = True) -> EvaluationResult:
        """See :meth:`kernelforge.evaluation.evaluator.Evaluator.conclude`."""
        return self._end(begun, "conclude", profile=profile)

    def pass_over(self, begun: BegunEvaluation) -> EvaluationResult:
        """See :meth:`kernelforge.evaluation.evaluator.Evaluator.pass_over`."""
        return self._end(begun, "pass_over")

    def tune(
        self, candidate: Candidate, *, seed: int, stopped: Callable[[], bool] | None = None
    ) -> tuple[TuneTrial, ...]:
        """See :func:`kernelforge.evaluation.stages.tuning.tune`."""
        reply = self.ask("tune", stopped=stopped, candidate=candidate.model_dump(mode="json"), seed=seed)
        return tuple(map(TuneTrial.model_validate, reply["trials"]))

    def rejected(self, reply_error: CandidateError, text: str) -> Evaluation:
        """See :meth:`kernelforge.evaluation.evaluator.Evaluator.rejected`."""
        return rejection(self.task, self.fingerprint, reply_error, text)

    def close(self) -> None:
        """End the evaluator there."""
        on, self._on = self._on, None
        if on is not None and on.alive:
            with suppress(ConnectionCut, SandboxError, DeviceError):
                on.request("close", evaluator=self._number)

    def ask(self, op: str, *, stopped: Callable[[], bool] | None = None, **content: Any) -> dict[str, Any]:
        """The reply to a request to this evaluator; it is made again after a cut."""
        return self._pool.retry(lambda connection: self._request(connection, op, stopped=stopped, **content))

    def _request(self, connection: _Connection, op: str, **content: Any) -> dict[str, Any]:
        self._opened(connection)
        return connection.request(op, evaluator=self._number, **content)

    def _opened(self, connection: _Connection) -> None:
        """See that the evaluator is open on a connection."""
        if self._on is connection:
            return
        outcomes = self._errors.since(0)
        reply = connection.request(
            "open",
            task=self.task.model_dump(mode="json"),
            generators=_plain(self._generators),
            outcomes=_plain(outcomes),
            shared=None if self._shared is None else self._past(),
        )
        self._number = reply["evaluator"]
        self.facts = TaskFacts.model_validate(reply["facts"])
        self.fingerprint = Fingerprint.model_validate(reply["fingerprint"])
        self._told = len(outcomes)
        self._on = connection

    def _past(self) -> list[dict[str, Any]]:
        return [
            {
                "candidate": candidate.model_dump(mode="json"),
                "evaluation": result.evaluation.model_dump(mode="json"),
                "profile": None if result.profile is None else result.profile.model_dump(mode="json"),
            }
            for candidate, result in (() if self._shared is None else self._shared.past)
        ]

    def _news(self) -> list[dict[str, Any]]:
        """Outcomes of forecasts that the other side has not."""
        news = self._errors.since(self._told)
        self._told += len(news)
        return _plain(news)

    def _begin(self, connection: _Connection, candidate: Candidate, state: _RemoteState) -> float:
        rank = None if state.screening is None else state.screening.rank
        content = {"candidate": candidate.model_dump(mode="json"), "seed": state.seed}
        self._opened(connection)
        reply = self._request(connection, "begin", outcomes=self._news(), **content)
        screening = None if reply["screening"] is None else Screening.model_validate(reply["screening"])
        if screening is not None and rank is not None:
            screening = screening.model_copy(update={"rank": rank})
        state.screening, state.number, state.on = screening, reply["begun"], connection
        return float(reply["seconds"])

    def _end(self, begun: BegunEvaluation, op: str, **content: Any) -> EvaluationResult:
        """The result of a begun evaluation, which is begun again after a cut."""
        state = begun.work
        assert isinstance(state, _RemoteState)

        def call(connection: _Connection) -> EvaluationResult:
            self._opened(connection)
            if state.on is not connection:
                self._begin(connection, begun.candidate, state)
            screening = None if state.screening is None else state.screening.model_dump(mode="json")
            reply = self._request(connection, op, begun=state.number, screening=screening, **content)
            return self._result(begun.candidate, reply)

        return self._pool.retry(call)

    def _result(self, candidate: Candidate, reply: dict[str, Any]) -> EvaluationResult:
        """
        Raises:
            SandboxError: the reply is about something else.
        """
        evaluation = Evaluation.model_validate(reply["evaluation"])
        profile = None if reply["profile"] is None else Profile.model_validate(reply["profile"])
        if (evaluation.candidate, evaluation.task) != (candidate.hash, self.task.digest):
            raise SandboxError(f"{self._pool.name} sent the evaluation of another candidate")
        result = EvaluationResult(evaluation, profile)
        if self._shared is not None:
            self._shared.remember(candidate, result)
        return result


class RemoteOracle:
    """Requests to an evaluator's oracle: see :class:`kernelforge.evaluation.evaluator.TaskOracle`."""

    def __init__(self, evaluator: RemoteEvaluator) -> None:
        self._evaluator = evaluator

    def require_admitted(self) -> None:
        """See :meth:`kernelforge.evaluation.oracle.client.Oracle.require_admitted`."""
        self._evaluator.ask("admit")

    def trace(self, size: str = "full") -> Graph:
        """See :meth:`kernelforge.evaluation.oracle.client.Oracle.trace`."""
        return Graph.model_validate(self._evaluator.ask("trace", size=size)["graph"])

    def try_generator(self, name: str, recipe: Recipe, sizes: Sequence[str]) -> tuple[GeneratorFinding, ...]:
        """See :meth:`kernelforge.evaluation.oracle.client.Oracle.try_generator`."""
        reply = self._evaluator.ask("try", name=name, recipe=recipe.model_dump(mode="json"), sizes=list(sizes))
        return tuple(GeneratorFinding(**finding) for finding in reply["findings"])


def _plain(records: Sequence[Any]) -> list[dict[str, Any]]:
    return [record.model_dump(mode="json") for record in records]
