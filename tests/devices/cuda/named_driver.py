"""The runner's process on a driver that is named to each child, so that one warm process does for tests of many."""

from __future__ import annotations

from kernelforge.devices.cuda.worker import main
from kernelforge.sandbox.channel import Channel

warm_up = main.warm_up


def serve(channel: Channel) -> None:
    main._options |= channel.receive().data
    channel.send({})
    main.serve(channel)
