"""Replies in which a candidate's process says that a call has failed."""

from __future__ import annotations

from typing import Any, NoReturn

from kernelforge.sandbox.channel import Channel


def failure(kind: str, text: str, *, type: str = "", line: int | None = None) -> dict[str, Any]:
    """The reply for a candidate that failed.

    Args:
        kind: decides the verdict, as that of a :class:`~kernelforge.modelnew.client.ModelNewFault`.
        text: what happened.
        type: of the exception, where the candidate raised one.
        line: of the candidate's file, from 1.
    """
    return {"ok": False, "failure": {"kind": kind, "text": text, "type": type, "line": line}}


def unsupported(text: str) -> dict[str, Any]:
    """The reply for a candidate that needs what is not there."""
    return {"ok": True, "unsupported": text}


def end_call(channel: Channel, reply: dict[str, Any]) -> NoReturn:
    """Answer for a call as a whole from within it, and wait until the parent ends this process."""
    channel.send(reply)
    while True:
        channel.receive()
