"""Evaluators of other machines.

Begun evaluations, tuning and the sharing of equal candidates live there; what has to survive a cut is kept here: tasks,
generators and evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Unpack

from kernelforge.compile.cache import unpacked_build
from kernelforge.devices.base import Capabilities
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
from kernelforge.evaluation.pool import WarmEvaluators, open_admitted
from kernelforge.evaluation.remote.connection import Connection, ConnectionCut, MachineOptions, RemoteMachine
from kernelforge.evaluation.remote.settings import ENTRY, FarDevice
from kernelforge.evaluation.stages.candidate_runs import EvaluationState
from kernelforge.evaluation.stages.compile_stage import Part, StageFailed
from kernelforge.evaluation.visible_sizes import Reproduction, VisibleBuild
from kernelforge.hardware.specs import DeviceSpec, spec_by_key
from kernelforge.prediction.correction import ModelErrors
from kernelforge.records import (
    Build,
    Candidate,
    Evaluation,
    Fingerprint,
    Graph,
    InputGenerator,
    Profile,
    Screening,
    Task,
    TaskFacts,
    TuneTrial,
    Verdict,
)


@dataclass(frozen=True)
class RemoteDevice:
    """Description of a device of another machine."""

    host: str
    """Address of its machine."""
    name: str
    kind: Literal["cuda", "emulated"]
    arch: str
    spec: DeviceSpec
    capabilities: Capabilities
    description: Mapping[str, str]

    def describe(self) -> Mapping[str, str]:
        """See :meth:`kernelforge.devices.base.Device.describe`."""
        return self.description

    @classmethod
    def of(cls, host: str, there: FarDevice) -> RemoteDevice:
        """The device that a machine has described."""
        return cls(
            host=host,
            name=there.name,
            kind="cuda" if there.fingerprint.device_kind == "cuda" else "emulated",
            arch=there.arch,
            spec=spec_by_key(there.spec),
            capabilities=there.known_capabilities(),
            description=there.description,
        )


class RemotePool(RemoteMachine):
    """Evaluators of the devices of another machine. Safe to share between threads; close it when done.

    Args:
        url: of the devices, as in ``ssh://user@host:2222/cuda:0``.
        options: of :class:`RemoteMachine`.

    Raises:
        UsageError: it is no such address.
        DeviceError: the machine cannot be reached, lacks something or has no such device.
        SandboxError: no jail works there and ``allow_unconfined`` is false.
    """

    def __init__(self, url: str, **options: Unpack[MachineOptions]) -> None:
        super().__init__(url, ENTRY, **options)
        self.device = RemoteDevice.of(self.name, FarDevice.model_validate(self.ready["device"]))
        """The first device there."""
        self.evaluators = WarmEvaluators(partial(open_admitted, self), self.done)
        """Evaluators of admitted tasks, kept open between evaluations and closed with the pool; for one thread."""

    def evaluator(
        self, task: Task, generators: Sequence[InputGenerator] = (), errors: ModelErrors | None = None
    ) -> RemoteEvaluator:
        """See :meth:`kernelforge.evaluation.pool.EvaluatorPool.evaluator`."""
        return RemoteEvaluator(self, task, generators, errors or ModelErrors())

    def done(self, task: Task) -> None:
        """See :meth:`kernelforge.evaluation.pool.EvaluatorPool.done`."""
        with suppress(ConnectionCut, SandboxError, DeviceError):
            self.request_if_alive("done", task=task.model_dump(mode="json"))

    def quarantine(self, device: DeviceFacts, error: DeviceError) -> None:
        """Quarantine one of several devices there: see :meth:`kernelforge.evaluation.pool.EvaluatorPool.quarantine`.

        Raises:
            DeviceError: it was the only one, or the machine cannot be reached.
        """
        if self.ready["devices"] == 1:
            raise error
        self.retry(lambda connection: connection.request("quarantine", device=device.name, why=str(error)))

    def is_quarantined(self, device: DeviceFacts) -> bool:
        """Whether a device is in quarantine: its tasks need another evaluator."""
        if self.ready["devices"] == 1:
            return False
        return device.name in self.retry(lambda connection: connection.request("quarantined")["devices"])

    def interrupt(self, *, oracles: bool) -> None:
        """See :meth:`kernelforge.evaluation.pool.EvaluatorPool.interrupt`."""
        with suppress(ConnectionCut, SandboxError, DeviceError):
            self.request_if_alive("interrupt", oracles=oracles)

    def close(self) -> None:
        """End the process there and the connection."""
        super().close()
        self.evaluators.close()


class _RemoteState(EvaluationState):
    """A begun evaluation that is on the other machine."""

    on: Connection
    number: int


class RemoteEvaluator:
    """An evaluator of another machine: see :class:`kernelforge.evaluation.evaluator.CandidateEvaluator`."""

    def __init__(self, pool: RemotePool, task: Task, generators: Sequence[InputGenerator], errors: ModelErrors) -> None:
        self.task = task
        self.oracle = RemoteOracle(self)
        self._pool = pool
        self._generators = tuple(generators)
        self._errors = errors
        self._told = 0
        """How many outcomes of forecasts the other side has."""
        self._shared: SharedEvaluations | None = None
        self._on: Connection | None = None
        self._number = 0
        self.facts: TaskFacts
        self.fingerprint: Fingerprint
        self.device: DeviceFacts
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

    def evaluate(
        self,
        candidate: Candidate,
        *,
        seed: int,
        profile: bool = True,
        stopped: Callable[[], bool] | None = None,
        on_part: Callable[[Part], None] | None = None,
    ) -> EvaluationResult:
        """See :meth:`kernelforge.evaluation.evaluator.Evaluator.evaluate`."""

        content = {"candidate": candidate.model_dump(mode="json"), "seed": seed, "profile": profile}

        def call(connection: Connection) -> EvaluationResult:
            self._opened(connection)
            news = self._news()
            reply = self._request(connection, "evaluate", stopped=stopped, on_part=on_part, outcomes=news, **content)
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
        self, candidate: Candidate, *, seed: int, stopped: Callable[[], bool] | None = None, hidden: bool = True
    ) -> tuple[TuneTrial, ...]:
        """See :meth:`kernelforge.evaluation.evaluator.Evaluator.tune`."""
        content = {"candidate": candidate.model_dump(mode="json"), "seed": seed, "hidden": hidden}
        return tuple(map(TuneTrial.model_validate, self.ask("tune", stopped=stopped, **content)["trials"]))

    def build(self, candidate: Candidate, *, stopped: Callable[[], bool] | None = None) -> VisibleBuild:
        """See :func:`kernelforge.evaluation.visible_sizes.build`."""
        reply = self.ask("build", stopped=stopped, candidate=candidate.model_dump(mode="json"))
        build = None if reply["build"] is None else Build.model_validate(reply["build"])
        failure = None if reply["failure"] is None else StageFailed(Verdict(reply["failure"][0]), *reply["failure"][1:])
        artifact = None
        if reply["artifact"] is not None:
            key, text = reply["artifact"]
            artifact = unpacked_build(text, key)
            if artifact is None:
                raise SandboxError(f"{self._pool.name} sent a build that is damaged")
        return VisibleBuild(build, artifact, failure)

    def reproduce(self, candidate: Candidate, verdict: Verdict | None, *, seed: int) -> Reproduction | None:
        """See :func:`kernelforge.evaluation.visible_sizes.reproduce`."""
        reply = self.ask("reproduce", candidate=candidate.model_dump(mode="json"), verdict=verdict, seed=seed)
        if reply["constants"] is None:
            return None
        return Reproduction(dict(reply["constants"]), Verdict(reply["verdict"]), str(reply["reason"]))

    def held_bytes(self) -> int:
        """Memory that the oracles' processes hold there."""
        return int(self.ask("held")["bytes"])

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

    def _request(self, connection: Connection, op: str, **content: Any) -> dict[str, Any]:
        self._opened(connection)
        return connection.request(op, evaluator=self._number, **content)

    def _opened(self, connection: Connection) -> None:
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
        there = FarDevice.model_validate(reply["device"])
        self.device, self.fingerprint = RemoteDevice.of(self._pool.name, there), there.fingerprint
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

    def _begin(self, connection: Connection, candidate: Candidate, state: _RemoteState) -> float:
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

        def call(connection: Connection) -> EvaluationResult:
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
