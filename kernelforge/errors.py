"""Exceptions, one type per boundary.

A candidate that is wrong is data: it becomes a :class:`~kernelforge.records.Verdict`, never an exception that
ends a run. The exceptions here are for everything else, and each message says what happened, where, and what to
do next. The CLI prints the message alone and leaves with :attr:`KernelForgeError.exit_code`.
"""

from __future__ import annotations

from typing import Any


class KernelForgeError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code: int = 1
    messages: tuple[Any, ...] = ()
    """Records of what was said in a conversation that this error ended: to be journalled, for it may have cost."""


class UsageError(KernelForgeError):
    """The caller asked for something that cannot be: an unknown suite, a missing file, a bad option."""

    exit_code = 2


class TaskError(KernelForgeError):
    """A task file or a suite is malformed, or its reference does not run."""

    exit_code = 2


class BaselineError(TaskError):
    """A baseline cannot be had here: it does not build, cannot be captured, or is wrong. A note, never a failure."""


class CandidateError(KernelForgeError):
    """A reply or a candidate cannot be read; the message is written for the Coder who sent it."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        """1-based line in the plan or the reply, where one is known."""


class PlanError(CandidateError):
    """The launch plan uses something the language does not have, or breaks one of its limits."""


class PlanGuard(CandidateError):
    """An ``assert`` of the plan refused a size: lost generality, not a mistake."""


class SandboxError(KernelForgeError):
    """The jail could not be built or a confined child misbehaved on its channel. Never the candidate's score."""


class ChildTimeout(SandboxError):
    """A confined child did not answer in time and was killed."""


class ChildDied(SandboxError):
    """A confined child ended without answering.

    ``signal`` and ``exit_code`` are what the kernel reported; at most one is set.
    """

    def __init__(self, message: str, *, signal: int | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        self.child_exit_code = exit_code


class DeviceError(KernelForgeError):
    """A device is missing or unusable; the message says what to install or to choose."""

    exit_code = 2


class UnsupportedError(KernelForgeError):
    """Something legal that this device cannot do (an emulated instruction, a launch option): verdict ``INFRA``."""


class TimingError(KernelForgeError):
    """Times that cannot be: not positive, not finite, or hidden by the flush. Ours, and never a candidate's score."""


class StoreError(KernelForgeError):
    """The results database is locked, full, corrupt or of a newer version."""


class EvaluationCancelled(KernelForgeError):
    """Somebody who no longer wants the answer ended the work on it. Nothing that came of it may be used."""


class BudgetExhausted(KernelForgeError):
    """A budget of the run is spent. The run stops in good order."""


class TaskBudgetExhausted(BudgetExhausted):
    """A task's own budget is spent. The task ends; the run goes on."""


class ProviderError(KernelForgeError):
    """A model could not be asked: no key, refused key, unknown model, server down, retries used up.

    Never a candidate's verdict: the attempt is not made, and ``resume`` asks again.
    """

    def __init__(self, message: str, *, passing: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.passing = passing
        """Whether the same call may well succeed later."""
        self.retry_after_s = retry_after_s
        """What the server asked to wait, in seconds."""


class ServerError(KernelForgeError):
    """A reward server refused a request, answered with something else, or could not be reached.

    Trouble with the evaluation of a candidate is no such error: it is a result with the outcome ``infra_error``.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "",
        retry_after_s: float | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, where there was an answer."""
        self.code = code
        """A word for programs: ``unknown_task``, ``queue_full``, ``unauthorised``, ``unreachable``..."""
        self.message = message
        self.retry_after_s = retry_after_s
        """What the server asked to wait, in seconds."""
        self.request_id = request_id
        """Names the request in the server's log."""

    def again(self) -> ServerError:
        """The same error for another task: one exception raised in many would gather all their tracebacks."""
        return type(self)(
            self.message,
            status=self.status,
            code=self.code,
            retry_after_s=self.retry_after_s,
            request_id=self.request_id,
        )


class ServerUnreachable(ServerError):
    """No connection, or one that broke before the answer, as often as it was tried."""


class InvalidServerResponse(ServerError):
    """What answered is no reward server, or one of another version: not JSON, or JSON of another shape."""


class MissingRewardError(KernelForgeError):
    """A result was required to have a reward, and trouble of the server's kept it from having one."""

    def __init__(self, message: str, *, code: str = "internal", retryable: bool = False) -> None:
        # Defaults, for it crosses processes: unpickling makes it of its message, and sets the attributes after.
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        """Whether the same job may well succeed when it is submitted again."""
