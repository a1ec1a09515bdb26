"""The confined process that converts candidates: it runs none of their text, which may be made to be costly."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from kernelforge.modelnew.convert.converter import Conversion, convert
from kernelforge.sandbox.channel import Channel

CONVERSION = TypeAdapter(Conversion)


def warm_up(options: dict[str, Any]) -> None:
    """Have the converter imported, before children are forked."""


def serve(channel: Channel) -> None:
    """Answer each text with its conversion, until the parent disconnects."""
    for frame in channel.requests():
        channel.send({"conversion": CONVERSION.dump_python(convert(str(frame.data["text"])), mode="json")})
