"""The Ray actors of a node: one for each worker, which forwards requests and reports as JSON, and one for the oracle
host that its workers share.

A worker is a separate process, as on a single machine, with a scrubbed environment and one socket. Ray's token and
connections stay in Ray's process, out of reach of the process that forks jailed children. So is the oracle host.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
from typing import Any

from kernelforge.compile import installed_toolchain
from kernelforge.errors import EvaluationCancelled, KernelForgeError
from kernelforge.sandbox import syscalls
from kernelforge.version import __version__
from kernelforge.workers.base import WorkerDied
from kernelforge.workers.roles import WorkerSettings
from kernelforge.workers.slot import OracleHostProcess, Worker, resolved_address


class WorkerActor:
    """Reserves a GPU, or CPUs, for one worker, and ends with the raylet that started it.

    Ray runs its methods concurrently on one event loop. Replies are those of the worker, with ``died`` if it has ended,
    ``interrupted`` if the order was interrupted, and ``error`` if the worker raised an error.
    """

    def __init__(self) -> None:
        _end_with_raylet()
        self._worker: Worker | None = None
        self._numbers: dict[int, int] = {}
        self._latest = 0
        self._interrupted: set[int] = set()

    async def start(self, name: str, settings: str) -> str:
        """Start the worker: ``{"ready": target, "toolchain": ..., "pid": ...}``, or ``error``."""
        parsed = _settings(settings)
        try:
            if parsed.device == "cuda":
                parsed = parsed.model_copy(update={"device": _assigned_gpu()})
            self._worker = await Worker.start(name, parsed)
        except KernelForgeError as error:
            return json.dumps({"error": _serialised(error)})
        assert self._worker.target is not None
        return json.dumps(
            {
                "ready": self._worker.target.model_dump(mode="json"),
                "toolchain": _toolchain(),
                "pid": self._worker.pid,
            }
        )

    async def ask(self, number: int, op: str, content: str) -> str:
        """Send a request to the worker and wait for its reply."""
        assert self._worker is not None
        self._latest = number
        if number in self._interrupted:
            self._interrupted.discard(number)
            return json.dumps({"interrupted": True, "warm": sorted(self._worker.cached_tasks)})
        worker_number, reply = self._worker.send(op, **json.loads(content))
        self._numbers[number] = worker_number
        answer: dict[str, Any]
        try:
            answer = dict(await reply)
        except WorkerDied as error:
            return json.dumps({"died": str(error)})
        except EvaluationCancelled:
            answer = {"interrupted": True}
        except KernelForgeError as error:
            answer = {"error": _serialised(error)}
        finally:
            del self._numbers[number]
        return json.dumps({**answer, "warm": sorted(self._worker.cached_tasks)})

    async def interrupt(self, number: int) -> None:
        """End an abandoned request."""
        assert self._worker is not None
        if number in self._numbers:
            self._worker.interrupt(self._numbers[number])
        elif number > self._latest:  # it arrived before its request
            self._interrupted.add(number)

    async def ended(self) -> str:
        """Return when the worker has ended."""
        assert self._worker is not None
        await self._worker.ended()
        return "{}"

    async def close(self) -> str:
        """End the worker."""
        if self._worker is not None:
            await self._worker.close()
        return "{}"


class OracleHostActor:
    """Keeps the oracle host of a node running, and ends with the raylet that started it. It reserves nothing.

    Workers that connect while it is replaced wait for the next, which has the same address.
    """

    def __init__(self) -> None:
        _end_with_raylet()
        self._host: OracleHostProcess | None = None

    async def start(self, name: str, settings: str) -> str:
        """Start the host: ``{"ready": null, "toolchain": ..., "pid": ...}``, the process being this one.

        Args:
            name: for operators.
            settings: of the node's workers; ``warm_bytes`` are those of the host.
        """
        parsed = _settings(settings)
        assert parsed.oracles is not None
        self._host = OracleHostProcess(
            parsed.oracles, allow_unconfined=parsed.allow_unconfined, most_bytes=parsed.warm_bytes
        )
        self._host.open()
        return json.dumps({"ready": None, "toolchain": {}, "pid": os.getpid()})

    async def ended(self) -> str:
        """Does not return: a host that ends is replaced."""
        await asyncio.Event().wait()
        return "{}"

    async def close(self) -> str:
        """End the host and its oracles."""
        if self._host is not None:
            await self._host.close()
        return "{}"


def _end_with_raylet() -> None:
    # Otherwise Ray's process waits for its calls to end, possibly for ever, and keeps the GPU.
    syscalls.prctl("prctl(PDEATHSIG)", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)


def _settings(text: str) -> WorkerSettings:
    """Settings of a worker, with the address of the oracle host on this machine."""
    settings = WorkerSettings.model_validate_json(text)
    assert settings.oracles is not None
    return settings.model_copy(update={"oracles": resolved_address(settings.oracles)})


def _serialised(error: KernelForgeError) -> dict[str, str]:
    return {"kind": type(error).__name__, "message": str(error)}


def _toolchain() -> dict[str, str]:
    """Versions on this node, by the names of a fingerprint."""
    return {
        "kernelforge": __version__,
        "toolchain": installed_toolchain().name,
        "python": platform.python_version(),
    }


def _assigned_gpu() -> str:
    """The GPU that Ray assigned to this actor, by the driver's number."""
    import ray

    ids = ray.get_gpu_ids()
    if len(ids) != 1 or not str(ids[0]).isdigit():
        raise KernelForgeError(
            f"Ray assigned GPU {ids}, but one with a number is needed: start its nodes without "
            "CUDA_VISIBLE_DEVICES, or with numbers in it"
        )
    return f"cuda:{ids[0]}"
