"""The confined child: receives a candidate's text, constructor arguments, weights and inputs, and runs it.

It holds no reference, no expected outputs and no seed, and is presumed to be the candidate's from the first line of
that on: what it answers is bytes to be compared, and how long it took is read from the parent's clock.

Requests are frames ``{"op": ...}``; a reply is ``{"ok": true, ...}`` or ``{"ok": false, "failure": {...}}``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import seeded
from kernelforge.modelnew.candidate_host import CandidateHost, Refused, describe_exception
from kernelforge.modelnew.values import decode, encode, raw
from kernelforge.modelnew.weights import Unmatched
from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.shared_memory import Blob

_Reply = tuple[dict[str, Any], Sequence[memoryview]]


def warm_up(options: Mapping[str, Any]) -> None:
    """Import torch and what it imports lazily; never touch a GPU here, for its context would not survive a fork."""
    torch.set_num_threads(int(options.get("threads", 1)))
    torch.set_num_interop_threads(1)
    with torch.no_grad():
        raw(torch.softmax(nn.Linear(4, 4)(torch.ones(2, 4)), 1))


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel."""
    server = _Server()
    for frame in channel.requests():
        data, blobs = server.answer(frame)
        channel.send(data, blobs)


class _Server:
    """One task's constructor arguments, or one candidate."""

    def __init__(self) -> None:
        self._host = CandidateHost("cpu")

    def answer(self, frame: Frame) -> _Reply:
        operation: Callable[[dict[str, Any], tuple[Blob, ...]], _Reply] = getattr(self, f"_op_{frame.data['op']}")
        host = self._host
        try:
            data, blobs = operation(frame.data, frame.blobs)
        except (Refused, Unmatched, SyntaxError) as error:
            failure = describe_exception(error, host.filename, host.device.type == "cuda")
            return {"ok": False, "failure": {**failure, "kind": "policy"}}, ()
        except BaseException as error:
            return {"ok": False, "failure": describe_exception(error, host.filename, host.device.type == "cuda")}, ()
        return {"ok": True, **data}, blobs

    def _op_init(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        """Arguments of the constructor as a task file gives them. Never in a child that a candidate is loaded in."""
        module = types.ModuleType("kernelforge_task")
        with seeded(0):
            exec(compile(data["source"], "task.py", "exec"), module.__dict__)
        with seeded(0):
            init = module.get_init_inputs()
        if not isinstance(init, list | tuple | dict):
            raise TaskError("get_init_inputs() must return a list or a dict")
        out: list[memoryview] = []
        return {"init": encode(init, out, "get_init_inputs()")}, out

    def _op_start(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        torch.set_num_threads(int(data["threads"]))
        self._host = CandidateHost(data["device"])
        return {}, ()

    def _op_load(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._host.load(data["source"])
        return {}, ()

    def _op_construct(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        notes = self._host.construct(decode(data["init"], blobs), data["weights"], int(data["copies"]))
        return {"notes": notes}, ()

    def _op_weights(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._host.give(data["set"], blobs)
        return {}, ()

    def _op_place(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._host.bind(data["sets"], blobs)
        return {}, ()

    def _op_run(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._host.run()
        return self._op_outputs({**data, "set": 0}, blobs)

    def _op_window(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._host.window(int(data["calls"]))
        return {}, ()

    def _op_outputs(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        specs, out = self._host.outputs(data["set"])
        positions, inputs = self._host.inputs(data["set"], data["elements"])
        return {"outputs": specs, "inputs": positions}, [*out, *inputs]
