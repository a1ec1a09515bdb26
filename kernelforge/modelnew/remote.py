"""``ModelNew`` candidates on another machine: the evaluators here, and the process that serves them there.

A candidate runs there in the jail that it would have here: roles ``modelnew`` and ``gpu-modelnew``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Unpack

from kernelforge.devices.remote.address import is_remote
from kernelforge.errors import SandboxError
from kernelforge.evaluation.evaluator import EvaluationResult
from kernelforge.evaluation.remote.connection import MachineOptions, RemoteMachine
from kernelforge.evaluation.remote.far_end import Requests, serve
from kernelforge.evaluation.remote.settings import FarSettings
from kernelforge.modelnew.evaluator import ModelNewEvaluators, modelnew_device
from kernelforge.records import Candidate, Evaluation, MeasureSettings, Task

ENTRY: Final = "kernelforge.modelnew.remote"
"""This module, whose :func:`main` serves there."""


def open_modelnew(
    device: str | None = None,
    *,
    measure: MeasureSettings | None = None,
    allow_unconfined: bool = False,
    tell: Callable[[str], None] | None = None,
) -> ModelNewEvaluators | RemoteModelNewEvaluators:
    """Evaluators of ``ModelNew`` candidates by the name of their device; the caller closes them.

    Args:
        device: as of :class:`ModelNewEvaluators`, or of another machine: ``ssh://host/cuda:0``, ``ssh://host/cpu``.
        measure, allow_unconfined: as of :class:`ModelNewEvaluators`.
        tell: receives messages about the other machine.

    Raises:
        UsageError: the device runs no Python.
        DeviceError: there is no such device, or the machine cannot be used.
        SandboxError: no jail works there and ``allow_unconfined`` is false.
    """
    if device is None or not is_remote(device):
        return ModelNewEvaluators(device, measure=measure, allow_unconfined=allow_unconfined)
    return RemoteModelNewEvaluators(device, measure=measure, allow_unconfined=allow_unconfined, tell=tell)


class RemoteModelNewEvaluators(RemoteMachine):
    """Evaluates ``ModelNew`` candidates on another machine. Close it when done.

    Args:
        url: of a GPU of one machine, or of torch on its CPU.
        options: of :class:`RemoteMachine`.

    Raises:
        UsageError: it is no such address.
        DeviceError: the machine cannot be reached, lacks something or has no such device.
        SandboxError: no jail works there and ``allow_unconfined`` is false.
    """

    def __init__(self, url: str, **options: Unpack[MachineOptions]) -> None:
        super().__init__(modelnew_device(url), ENTRY, **options)

    def evaluate(
        self, task: Task, candidate: Candidate, *, seed: int, sizes: Sequence[str] | None = None
    ) -> EvaluationResult:
        """See :meth:`ModelNewEvaluators.evaluate`."""
        content: dict[str, Any] = {
            "task": task.model_dump(mode="json"),
            "candidate": candidate.model_dump(mode="json"),
            "seed": seed,
            "sizes": None if sizes is None else list(sizes),
        }
        evaluation = self.retry(
            lambda connection: Evaluation.model_validate(connection.request("evaluate", **content)["evaluation"])
        )
        if (evaluation.candidate, evaluation.task) != (candidate.hash, task.digest):
            raise SandboxError(f"{self.name} sent the evaluation of another candidate")
        return EvaluationResult(evaluation, None)


def main(descriptor: int) -> None:
    """Serve at the other end of a socket."""
    serve(descriptor, _open)


def _open(settings: FarSettings, tell: Callable[[str], None]) -> tuple[dict[str, Any], Requests]:
    evaluators = ModelNewEvaluators(
        settings.device, measure=settings.measure, allow_unconfined=settings.allow_unconfined
    )
    return {"fingerprint": evaluators.fingerprint.model_dump(mode="json")}, _Requests(evaluators)


class _Requests(Requests):
    """Requests to evaluators of classes, one at a time.

    Args:
        evaluators: closed with this.
    """

    def __init__(self, evaluators: ModelNewEvaluators) -> None:
        super().__init__()
        self._evaluators = evaluators
        self._turn = threading.Lock()

    def close(self) -> None:
        """End the evaluators' processes."""
        self._evaluators.close()

    def _do_evaluate(
        self, request: int, task: dict[str, Any], candidate: dict[str, Any], seed: int, sizes: list[str] | None
    ) -> dict[str, Any]:
        with self._turn:
            judged = self._evaluators.evaluate(
                Task.model_validate(task), Candidate.model_validate(candidate), seed=seed, sizes=sizes
            )
        return {"evaluation": judged.evaluation.model_dump(mode="json")}
