"""Exceptions, one type per boundary.

A wrong candidate is data: it becomes a :class:`~kernelforge.records.Verdict`, never an exception that ends a run.
The exceptions are for all other errors. Each message says what happened, where, and what to do next. The CLI prints
the message and exits with :attr:`KernelForgeError.exit_code`.
"""

from __future__ import annotations

from typing import Any


class KernelForgeError(Exception):
    """Base class of the errors that this package raises."""

    exit_code: int = 1
    messages: tuple[Any, ...] = ()
    """Messages of a conversation that this error ended, to be journalled: they may have cost tokens."""


class UsageError(KernelForgeError):
    """Invalid request by the caller: an unknown suite, a missing file, a bad option."""

    exit_code = 2


class TaskError(KernelForgeError):
    """A task file or a suite is malformed, or its reference does not run."""

    exit_code = 2


class BaselineError(TaskError):
    """A baseline is not available: it does not build, cannot be captured, or is wrong. A note, never a failure."""


class CandidateError(KernelForgeError):
    """A reply or a candidate cannot be read; the message is for its Coder."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        """1-based line in the plan or the reply, if known."""


class PlanError(CandidateError):
    """The launch plan uses an unknown construct or exceeds a limit of its language."""


class PlanGuard(CandidateError):
    """An ``assert`` of the plan refused a size: lost generality, not a mistake."""


class SandboxError(KernelForgeError):
    """The jail could not be built, or a confined child violated the protocol of its channel. Never a score."""


class ChildTimeout(SandboxError):
    """A confined child did not answer in time and was killed."""


class ChildDied(SandboxError):
    """A confined child ended without answering.

    ``signal`` and ``exit_code`` come from the kernel; at most one is set.
    """

    def __init__(self, message: str, *, signal: int | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        self.child_exit_code = exit_code


class DeviceError(KernelForgeError):
    """A device is missing or unusable; the message says what to install or to choose."""

    exit_code = 2


class UnsupportedError(KernelForgeError):
    """This device cannot do something legal, such as an instruction or a launch option: verdict ``INFRA``."""


class TimingError(KernelForgeError):
    """Impossible timing: not positive, not finite, or within the noise of the flush. An infrastructure error."""


class StoreError(KernelForgeError):
    """The results database is locked, full, corrupt or of a newer version."""


class EvaluationCancelled(KernelForgeError):
    """The caller cancelled the evaluation; partial results must be discarded."""


class BudgetExhausted(KernelForgeError):
    """A budget of the run is spent. The run stops in good order."""


class TaskBudgetExhausted(BudgetExhausted):
    """A task's own budget is spent. The task ends; the run goes on."""


class ProviderError(KernelForgeError):
    """A call of a model failed: no key, refused key, unknown model, server down, retries used up.

    Never a candidate's verdict: there is no attempt, and ``resume`` calls again.
    """

    def __init__(self, message: str, *, passing: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.passing = passing
        """Whether the same call may succeed later."""
        self.retry_after_s = retry_after_s
        """Wait requested by the server, in seconds."""


class ServerError(KernelForgeError):
    """A reward server refused a request, sent an invalid answer, or could not be reached.

    A failed evaluation is not such an error: it is a result with the outcome ``infra_error``.
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
        """HTTP status, if there was an answer."""
        self.code = code
        """Error code: ``unknown_task``, ``queue_full``, ``unauthorised``, ``unreachable``..."""
        self.message = message
        self.retry_after_s = retry_after_s
        """Wait requested by the server, in seconds."""
        self.request_id = request_id
        """Id of the request in the server's log."""

    def copy(self) -> ServerError:
        """A copy to raise in another task: one exception raised in many would collect all their tracebacks."""
        return type(self)(
            self.message,
            status=self.status,
            code=self.code,
            retry_after_s=self.retry_after_s,
            request_id=self.request_id,
        )


class ServerUnreachable(ServerError):
    """Every try failed to connect, or lost the connection before the answer."""


class InvalidServerResponse(ServerError):
    """The answer is not from a reward server of this version: not JSON, or JSON of another shape."""


class MissingRewardError(KernelForgeError):
    """A result has no reward because of a failure of the server."""

    def __init__(self, message: str, *, code: str = "internal", retryable: bool = False) -> None:
        # Keyword defaults let pickle rebuild the exception from its message.
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        """Whether the same job may succeed when it is submitted again."""
