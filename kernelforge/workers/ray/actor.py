"""The Ray actor of a worker: forwards requests and reports as JSON.

The worker is a process of its own, as on a single machine: with a scrubbed environment and one socket. Ray's token and
its connections stay in Ray's process, out of the reach of what forks the jailed children.
"""

from __future__ import annotations

import json
import platform
import signal
from typing import Any

from kernelforge.compile import installed_toolchain
from kernelforge.errors import EvaluationCancelled, KernelForgeError
from kernelforge.sandbox import syscalls
from kernelforge.version import __version__
from kernelforge.workers.base import WorkerDied
from kernelforge.workers.process import Worker
from kernelforge.workers.worker_main import WorkerSettings


class Lease:
    """Holds a GPU, or CPUs, for one worker, and ends with the raylet that started it.

    Its methods run side by side on one event loop, as Ray runs async actors. Replies are those of the worker, with
    ``died`` where it is gone, ``interrupted`` where the order was, and ``error`` where the worker raised one.
    """

    def __init__(self) -> None:
        # Ray's process would first wait for its calls to end, maybe for ever, and keep the GPU that long.
        syscalls.prctl("prctl(PDEATHSIG)", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        self._worker: Worker | None = None
        self._numbers: dict[int, int] = {}
        self._latest = 0
        self._unwanted: set[int] = set()

    async def start(self, name: str, settings: str) -> str:
        """Start the worker: ``{"ready": target, "toolchain": ..., "pid": ...}``, or why there is none."""
        chosen = WorkerSettings.model_validate_json(settings)
        try:
            if chosen.device == "cuda":
                chosen = chosen.model_copy(update={"device": _leased_gpu()})
            self._worker = await Worker.start(name, chosen)
        except KernelForgeError as error:
            return json.dumps({"error": _told(error)})
        assert self._worker.target is not None
        return json.dumps(
            {
                "ready": self._worker.target.model_dump(mode="json"),
                "toolchain": _toolchain(),
                "pid": self._worker.pid,
            }
        )

    async def ask(self, number: int, op: str, content: str) -> str:
        """Give the worker a request and wait for its reply."""
        assert self._worker is not None
        self._latest = number
        if number in self._unwanted:
            self._unwanted.discard(number)
            return json.dumps({"interrupted": True, "warm": sorted(self._worker.warm)})
        own, reply = self._worker.send(op, **json.loads(content))
        self._numbers[number] = own
        answer: dict[str, Any]
        try:
            answer = dict(await reply)
        except WorkerDied as error:
            return json.dumps({"died": str(error)})
        except EvaluationCancelled:
            answer = {"interrupted": True}
        except KernelForgeError as error:
            answer = {"error": _told(error)}
        finally:
            del self._numbers[number]
        return json.dumps({**answer, "warm": sorted(self._worker.warm)})

    async def interrupt(self, number: int) -> None:
        """Have a request ended whose reply nobody wants."""
        assert self._worker is not None
        if number in self._numbers:
            self._worker.interrupt(self._numbers[number])
        elif number > self._latest:  # it has overtaken its request
            self._unwanted.add(number)

    async def ended(self) -> str:
        """Answer when the worker has ended."""
        assert self._worker is not None
        await self._worker.ended()
        return "{}"

    async def close(self) -> str:
        """End the worker in good order."""
        if self._worker is not None:
            await self._worker.close()
        return "{}"


def _told(error: KernelForgeError) -> dict[str, str]:
    return {"kind": type(error).__name__, "message": str(error)}


def _toolchain() -> dict[str, str]:
    """What this node evaluates with, also where its worker was told whom to prepare for."""
    return {
        "kernelforge": __version__,
        "toolchain": installed_toolchain().name,
        "python": platform.python_version(),
    }


def _leased_gpu() -> str:
    """The GPU that Ray gave this actor, by the number that the driver knows it by."""
    import ray

    ids = ray.get_gpu_ids()
    if len(ids) != 1 or not str(ids[0]).isdigit():
        raise KernelForgeError(
            f"Ray leased GPU {ids} where one with a number was asked for: start its nodes without "
            "CUDA_VISIBLE_DEVICES, or with numbers in it"
        )
    return f"cuda:{ids[0]}"
