"""Modal's package takes what it is given, and a process's streams are carried; nothing here reaches Modal."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest

from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.devices.remote import modal_sandbox
from kernelforge.devices.remote.address import HostAddress, join_host, parse_address, split_host
from kernelforge.devices.remote.ssh import RemoteProcess, client_command, client_environment
from kernelforge.errors import DeviceError, UsageError
from kernelforge.workers.pool import LocalEngine

needs_modal = pytest.mark.skipif(find_spec("modal") is None, reason="modal is not installed")


@pytest.mark.parametrize(
    ("url", "gpu", "devices"),
    [
        ("modal://H100", "H100", "cuda:0"),
        ("MODAL://A100-80GB/cuda:0", "A100-80GB", "cuda:0"),
        ("modal://L4:2/cuda", "L4:2", "cuda"),
    ],
)
def test_an_address_names_a_gpu_of_modal(url: str, gpu: str, devices: str) -> None:
    address, named = parse_address(url)
    assert named == devices
    assert client_command(address)[-2] == gpu
    assert parse_devices(f"{url},ssh://box") == (address.url(devices), "ssh://box/cuda:0")
    assert join_host(*split_host(url)) == address.url(devices)


@pytest.mark.parametrize("url", ["modal://", "modal://me@H100", "modal://H100/emulated:h100", "modal://H100?python=/x"])
def test_what_is_no_sandbox_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="modal://"):
        parse_devices(url)


def test_a_reward_server_rents_no_sandbox() -> None:
    with pytest.raises(UsageError, match="would rent a sandbox of its own"):
        LocalEngine("modal://H100")


def test_the_client_has_modal_keys_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "own")
    environment = client_environment(HostAddress("H100", modal=True))
    assert environment["MODAL_TOKEN_SECRET"] == "own"
    assert "canary" not in environment.values()


@pytest.mark.slow
@needs_modal
def test_modal_takes_the_image_and_the_options() -> None:
    import modal

    app = modal.App(modal_sandbox.APP)
    options = modal_sandbox.sandbox_options(modal, app, "H100")
    assert isinstance(options["image"], modal.Image)
    inspect.signature(modal.Sandbox.create).bind(**options)
    inspect.signature(modal.Sandbox.exec).bind(None, "python3", "-I", "-c", "", text=False)


@pytest.mark.slow
@needs_modal
def test_without_a_token_the_reason_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MODAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    messages: list[str] = []
    with pytest.raises(DeviceError, match=r"modal://H100 cannot be used: .*[Tt]oken") as refused:
        RemoteProcess(HostAddress("H100", modal=True), "no.module", gpu=True, tell=messages.append)
    assert "\n" not in str(refused.value)
    assert ["starting a sandbox" in message for message in messages] == [True]


class LocalProcess:
    """A process of this machine with the interface of one in a sandbox: writes are buffered, reads come in parts."""

    def __init__(self, program: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe)
        self._buffer, self._ended = b"", False
        self.stdin = self

    def write(self, data: bytes) -> None:
        self._buffer += data

    def write_eof(self) -> None:
        self._ended = True

    def drain(self) -> None:
        stream = self._process.stdin
        assert stream is not None
        stream.write(self._buffer)
        stream.flush()
        self._buffer = b""
        if self._ended:
            stream.close()

    @property
    def stdout(self) -> Iterator[bytes]:
        return self._parts(self._process.stdout)

    @property
    def stderr(self) -> Iterator[bytes]:
        return self._parts(self._process.stderr)

    @staticmethod
    def _parts(stream: IO[bytes] | None) -> Iterator[bytes]:
        assert stream is not None
        while data := os.read(stream.fileno(), 1000):
            yield data

    def wait(self) -> int:
        return self._process.wait()


def test_every_byte_is_carried_and_the_end_too(tmp_path: Path) -> None:
    program = (
        "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1]); "
        "sys.stderr.write('done'); sys.exit(3)"
    )
    sent, paths = os.urandom(300_000), [tmp_path / name for name in ("in", "out", "err")]
    paths[0].write_bytes(sent)
    with paths[0].open("rb") as source, paths[1].open("wb") as target, paths[2].open("wb") as messages:
        code = modal_sandbox.carry(LocalProcess(program), source.fileno(), target.fileno(), messages.fileno())
    assert (code, paths[1].read_bytes(), paths[2].read_bytes()) == (3, sent[::-1], b"done")
