"""The process on another machine, in a thread here."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from kernelforge.errors import DeviceError
from kernelforge.evaluation.remote import connection
from kernelforge.evaluation.remote.far_end import serve
from kernelforge.evaluation.remote.settings import FarSettings
from kernelforge.utils.frames import error_from, packed, receive


def test_the_reason_why_it_cannot_start_is_read_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames pass through a thread of its process, which would end with it."""
    monkeypatch.setattr("signal.signal", lambda *_: None)  # for the main thread alone

    def refuse(settings: FarSettings, tell: object) -> Any:
        raise DeviceError(f"no {settings.device}")

    here, there = socket.socketpair()
    process = threading.Thread(target=serve, args=(there.detach(), refuse), daemon=True)
    process.start()
    with here, here.makefile("rb") as frames:
        here.sendall(packed(FarSettings(device="cuda:0").model_dump(mode="json")))
        answer = receive(frames)
        assert answer is not None
        assert str(error_from(answer["failed"])) == "no cuda:0"
        process.join(timeout=0.1)
        assert process.is_alive()
        here.shutdown(socket.SHUT_WR)
        process.join(timeout=30)
        assert not process.is_alive()


def test_what_the_other_machine_says_has_its_name_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lack there does not read as one of this machine."""

    def refuse(*args: object, **options: object) -> Any:
        raise DeviceError("this machine has no GPU")

    monkeypatch.setattr(connection, "RemoteProcess", lambda *args, **options: None)
    monkeypatch.setattr(connection, "Connection", refuse)
    with pytest.raises(DeviceError, match=r"^ssh://box/cuda:0: this machine has no GPU$"):
        connection.RemoteMachine("ssh://box/cuda:0", "entry")
