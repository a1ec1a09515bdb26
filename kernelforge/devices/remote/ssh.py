"""Processes of this package on another machine, started over one connection of the system's ``ssh`` client.

Users have their keys, agents, jump hosts and known hosts there. The client never asks for anything: what it would have
to ask for is an error that says what to do.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelforge.devices.remote import bootstrap
from kernelforge.devices.remote.address import HostAddress
from kernelforge.devices.remote.shipment import needed_environment, package_shipment
from kernelforge.errors import DeviceError
from kernelforge.sandbox.policy import import_path

_OPTIONS = (
    "-T", "-a", "-x",
    "-o", "BatchMode=yes",
    "-o", "ConnectTimeout=20",
    "-o", "ServerAliveInterval=15",
    "-o", "ServerAliveCountMax=4",
    "-o", "ControlMaster=no",
    "-o", "ClearAllForwardings=yes",
    "-o", "PermitLocalCommand=no",
)  # fmt: skip
"""No terminal, no forwarded agent or port; a connection that a user has open may be used, and none is left open."""

_ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TMPDIR",
    "SSH_AUTH_SOCK", "SSH_AGENT_PID", "KRB5CCNAME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""What the client gets: its configuration may send variables, and none of them may be a key of a provider."""

_MODAL_START = (
    "import json, sys; sys.path[:0] = json.loads(sys.argv[2]); "
    "from kernelforge.devices.remote.modal_sandbox import main; main(sys.argv[1])"
)

_MOST_BEFORE_MARK = 1 << 20
_NOTES = 40


class ConnectionEnded(Exception):
    """The connection ended before the process was started."""


def client_command(address: HostAddress) -> list[str]:
    """The command that starts a process there, whose standard input and output are the connection.

    Raises:
        DeviceError: there is no ``ssh``.
    """
    if address.modal:
        gpu = address.host if address.port is None else f"{address.host}:{address.port}"
        return [sys.executable, "-I", "-c", _MODAL_START, gpu, json.dumps(import_path())]
    client = shutil.which("ssh")
    if client is None:
        raise DeviceError(f"{address.url()} cannot be reached: there is no ssh here; install OpenSSH's client")
    program = base64.b64encode(Path(bootstrap.__file__).read_bytes()).decode()
    python = f"exec python3 -I -c \"import base64;exec(base64.b64decode('{program}'))\""
    port = [] if address.port is None else ["-p", str(address.port)]
    return [client, *_OPTIONS, *port, "--", address.destination, python]


def client_environment(address: HostAddress) -> dict[str, str]:
    """Environment of the client. Modal's variables are for Modal's client alone."""
    own = ("MODAL_",) if address.modal else ()
    return {name: text for name, text in os.environ.items() if name in _ENVIRONMENT or name.startswith(own)}


def greet(
    connection: socket.socket, address: HostAddress, entry: str, *, gpu: bool, tell: Callable[[str], None]
) -> None:
    """Have the other side install what it lacks and start a process; its frames follow.

    Args:
        connection: standard input and output of :func:`client_command`, blocking.
        address: of the machine.
        entry: module whose ``main`` gets the descriptor of a socket there.
        gpu: whether it is to use a GPU.
        tell: receives a message where something has to be installed first.

    Raises:
        ConnectionEnded: see the client's messages, with :func:`why_ended`.
        DeviceError: the machine lacks something.
    """
    _skip_to_mark(connection)
    shipment = package_shipment()
    python = bootstrap.OWN if address.modal else address.python
    request: dict[str, Any] = {"entry": entry, "package": shipment.digest, "python": python}
    if not python:
        environment = needed_environment(gpu=gpu)
        request |= {
            "environment": environment.digest,
            "requirements": environment.requirements,
            "constraints": environment.constraints,
        }
    _send(connection, json.dumps(request).encode() + b"\n")
    while True:
        answer = json.loads(_line(connection))
        if "need" in answer:
            size = json.dumps({"bytes": len(shipment.archive)}).encode()
            _send(connection, size + b"\n" + shipment.archive)
        elif "note" in answer:
            tell(f"{address.url()}: {answer['note']}")
        elif "failed" in answer:
            raise DeviceError(f"{address.url()} cannot be used: {answer['failed']}")
        else:
            return


def why_ended(address: HostAddress, messages: Sequence[str]) -> DeviceError:
    """The error of a connection that ended before the process was started.

    Args:
        address: of the machine.
        messages: lines of the client's standard error.
    """
    text, where = "\n".join(messages), address.destination
    last = next((line.strip() for line in reversed(messages) if line.strip()), "the connection ended")
    if address.modal:
        return DeviceError(f"{address.url()} cannot be used: {last[:500]}")
    by_hand = f"ssh {'' if address.port is None else f'-p {address.port} '}{where}"
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in text:
        why = (
            "its host key is another one than the known one: ask its owner whether the key was changed, and then "
            "remove the old one with `ssh-keygen -R`"
        )
    elif "Host key verification failed" in text:
        why = f"its host key is not known here: connect once with `{by_hand}` and compare the key"
    elif "Permission denied" in text:
        why = f"it refuses the login: see that `{by_hand}` works without a password, with a key or an agent"
    elif "python3" in text and ("not found" in text or "No such file" in text):
        why = "it has no python3 on the path of ssh commands: install Python 3.11 to 3.13 there"
    else:
        form = "" if address.port is None else f"; {address.port} is a port there, as in ssh://host[:port]/cuda:N"
        why = f"{last[:300]}: see that `{by_hand}` works{form}"
    return DeviceError(f"{address.url()} cannot be used: {why}")


class RemoteProcess:
    """A process on another machine, and the connection to it.

    Args:
        address: of the machine.
        entry, gpu, tell: as of :func:`greet`.

    Raises:
        DeviceError: it cannot be started; the message says what to do.
    """

    def __init__(self, address: HostAddress, entry: str, *, gpu: bool, tell: Callable[[str], None]) -> None:
        if address.modal:
            tell(f"{address.url()}: starting a sandbox; the first one builds its image, which takes minutes")
        self.connection, other = socket.socketpair()
        self._messages: deque[str] = deque(maxlen=_NOTES)
        try:
            self.client = subprocess.Popen(
                client_command(address),
                stdin=other.fileno(),
                stdout=other.fileno(),
                stderr=subprocess.PIPE,
                env=client_environment(address),
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        except BaseException:
            self.connection.close()
            raise
        finally:
            other.close()
        self._drain = threading.Thread(target=self._read_messages, name="ssh messages", daemon=True)
        self._drain.start()
        try:
            greet(self.connection, address, entry, gpu=gpu, tell=tell)
        except ConnectionEnded:
            self.client.wait()
            self._drain.join(timeout=5.0)
            self.close()
            raise why_ended(address, tuple(self._messages)) from None
        except BaseException:
            self.close()
            raise

    def close(self, wait_s: float = 0.0) -> None:
        """End the connection, and with it the process there; the client is killed where it does not end in time."""
        try:
            self.connection.shutdown(socket.SHUT_WR)
        except OSError:
            wait_s = 0.0  # it has ended
        try:
            self.client.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.client.kill()
            self.client.wait()
        self.connection.close()

    def last_message(self) -> str:
        """The last line of standard error there, once it has ended."""
        self._drain.join(timeout=5.0)
        return next((line.strip() for line in reversed(self._messages) if line.strip()), "")

    def _read_messages(self) -> None:
        assert self.client.stderr is not None
        with self.client.stderr as lines:
            for line in lines:
                self._messages.append(line.decode(errors="replace").rstrip())


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError as error:
        raise ConnectionEnded from error


def _skip_to_mark(connection: socket.socket) -> None:
    """Skip what a login script prints."""
    skipped = b""
    while not skipped.endswith(b"\n" + bootstrap.MARK):
        skipped += _read(connection, 1)
        if len(skipped) > _MOST_BEFORE_MARK:
            raise ConnectionEnded


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        data += _read(connection, 1)
        if len(data) > _MOST_BEFORE_MARK:
            raise ConnectionEnded
    return data


def _read(connection: socket.socket, count: int) -> bytes:
    try:
        data = connection.recv(count)
    except OSError as error:
        raise ConnectionEnded from error
    if not data:
        raise ConnectionEnded
    return data
