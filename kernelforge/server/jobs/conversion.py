"""Conversion of ``ModelNew`` replies to device code and a launch plan, in a confined process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pydantic import ValidationError

from kernelforge.errors import ChildDied, SandboxError
from kernelforge.modelnew.convert import Conversion
from kernelforge.modelnew.convert.worker import CONVERSION
from kernelforge.records.task import Language, language_of
from kernelforge.sandbox import Zygote
from kernelforge.sandbox.policy import Limits
from kernelforge.server.base import LRUCache, RequestRejected

_LIMITS = Limits(wall_s=60.0, cpu_s=5.0, memory_bytes=512 << 20)
_CACHED = 500
_SHOWN = 3
"""Problems of a conversion that a refusal names."""


class Unconverted(NamedTuple):
    """A ``ModelNew`` that could not be made device code and a plan."""

    problems: tuple[str, ...]
    language: Language = "cuda"
    """Of its kernels."""
    readable: bool = True
    """Whether the confined process could read it to the end."""

    @property
    def refusal(self) -> str:
        """For its author, where a server takes nothing else."""
        more = len(self.problems) - _SHOWN
        why = "; ".join(self.problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        otherwise = ", or a ModelNew whose host code only allocates, reads shapes and launches"
        return (
            f"the ModelNew cannot be made device code and a launch plan: {why}; send a ```{self.language} block and a "
            f"```python block with the launch plan{otherwise if self.language == 'cuda' else ''}"
        )


class ReplyConverter:
    """Converts texts one after the other, each in a child of its own. The warm process starts with the first.

    Args:
        allow_unconfined: run with resource limits alone where no jail works.
    """

    def __init__(self, *, allow_unconfined: bool = False) -> None:
        self._zygote = Zygote("converter", allow_unconfined=allow_unconfined)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="conversion")
        self._converted: LRUCache[str, Conversion | Unconverted] = LRUCache(_CACHED)

    async def convert(self, key: str, text: str) -> Conversion | Unconverted:
        """The conversion of a file with a class ``ModelNew``, or why there is no candidate.

        Args:
            key: hash of the reply, by which conversions are cached.

        Raises:
            RequestRejected: 503: the confined process does not start, or does not get to answer.
        """
        if language_of(text) == "triton":
            return Unconverted(("it launches Triton kernels",), "triton")
        conversion = self._converted.get(key)
        if conversion is None:
            conversion = await asyncio.get_running_loop().run_in_executor(self._thread, self._convert, text)
            self._converted.put(key, conversion)
        return conversion

    def close(self) -> None:
        """End the process; conversions in progress fail."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._zygote.interrupt()
        self._zygote.close()

    def _convert(self, text: str) -> Conversion | Unconverted:
        try:
            child = self._zygote.spawn(_LIMITS)
        except SandboxError as error:
            raise _not_now(error) from error
        try:
            conversion = CONVERSION.validate_python(child.call({"text": text}).data.get("conversion"))
        except ChildDied as error:
            death = child.death()
            if death is None or death.may_be_foreign or death.cause == "killed":
                raise _not_now(error) from error
            return Unconverted((f"reading it ended with {death}",), readable=False)
        except SandboxError as error:  # a busy machine is not the text's fault: its CPU time has a limit of its own
            raise _not_now(error) from error
        except ValidationError as error:
            return Unconverted((f"what came out is no candidate: {error.errors()[0]['msg']}",))
        finally:
            child.close()
        if conversion.candidate is not None:
            return conversion
        return Unconverted(tuple(str(problem) for problem in conversion.problems))


def _not_now(error: SandboxError) -> RequestRejected:
    return RequestRejected(503, "converter", f"a ModelNew cannot be converted now: {error}", retry_after_s=30.0)
