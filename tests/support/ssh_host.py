"""Another machine: an SSH server in this process, whose commands run here with an environment of their own."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from kernelforge.devices.emulated.codegen.llvm_jit import cache_folder
from kernelforge.devices.remote.shipment import package_shipment
from tests.workers.engine_orders import family_of, running

CLIENT = shutil.which("ssh")
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
"""OpenSSH's server, which Debian has in ``openssh-server``."""
_SSHD_CONFIG = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/identity.pub
PidFile {folder}/pid
SetEnv HOME={folder}/home PIP_NO_INDEX=1
StrictModes no
UsePAM no
PermitRootLogin yes
"""
_CLIENT_CONFIG = """
IdentityFile {folder}/identity
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
"""


class SshHost:
    """A server on loopback with keys of its own, and an ``ssh`` whose configuration knows it and nothing else.

    Args:
        folder: for keys, the client's configuration, and the home of the other side.
        client_of: a host whose ``ssh`` is to know this one too.
    """

    def __init__(self, folder: Path, client_of: SshHost | None = None) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.search_path = os.environ["PATH"]
        """``PATH`` of commands there."""
        self.processes: list[Process] = []
        """What was started there, the latest last."""
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self._write_client(folder if client_of is None else client_of.folder)

    @property
    def bin(self) -> Path:
        """Folder of the ``ssh`` to put first on the path."""
        return self.folder / "bin"

    def url(self, device: str = "emulated:h100", *, python: str = "") -> str:
        return f"ssh://tester@127.0.0.1:{self.port}/{device}{f'?python={python}' if python else ''}"

    @property
    def pids(self) -> list[int]:
        """Processes that were started there, the latest last."""
        return [process.pid for process in self.processes]

    def take_machine_code(self) -> None:
        take_machine_code(self.home)

    def forget_key(self) -> None:
        (self.folder / "known_hosts").write_text("")

    def disappear(self) -> None:
        """End the server and what runs there, as a machine does whose power fails."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self.port = 0

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._own = asyncssh.generate_private_key("ssh-ed25519")
        user = asyncssh.generate_private_key("ssh-ed25519")
        identity = self.folder / "identity"
        user.write_private_key(str(identity))
        identity.chmod(0o600)
        accepted = self.folder / "authorized"
        user.write_public_key(str(accepted))
        self._server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[self._own],
            authorized_client_keys=str(accepted),
            process_factory=self._serve,
            encoding=None,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, session: asyncssh.SSHServerProcess[bytes]) -> None:
        command = session.command or ""
        environment = {"HOME": str(self.home), "PATH": self.search_path, "PIP_NO_INDEX": "1"}
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", f"echo welcome; {command}",
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, cwd=self.home, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        arriving = asyncio.create_task(_copy(session.stdin, process.stdin))
        await asyncio.gather(_copy(process.stdout, session.stdout), _copy(process.stderr, session.stderr))
        session.exit(max(await process.wait(), 0))
        arriving.cancel()

    def _write_client(self, folder: Path) -> None:
        key = self._own.export_public_key().decode().strip()
        hosts, configuration = folder / "known_hosts", folder / "config"
        with hosts.open("a") as keys, configuration.open("a") as options:
            keys.write(f"[127.0.0.1]:{self.port} {key}\n")
            options.write(f"IdentityFile {self.folder / 'identity'}\n")
            if folder != self.folder:
                return
            options.write(
                f"UserKnownHostsFile {hosts}\nGlobalKnownHostsFile /dev/null\nIdentitiesOnly yes\nSendEnv *\n"
            )
        self.bin.mkdir()
        client = self.bin / "ssh"
        client.write_text(f'#!/bin/sh\nexec {CLIENT} -F {configuration} "$@"\n')
        client.chmod(0o755)

    async def _end(self) -> None:
        self._server.close()
        await self._server.wait_closed()
        for process in self.processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _copy(source: Any, target: Any) -> None:
    """Copy a stream to its end; a process's input is closed then, a cut connection's too."""
    try:
        with suppress(OSError, asyncssh.Error):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
    finally:
        if isinstance(target, asyncio.StreamWriter):
            target.close()


def take_machine_code(home: Path) -> None:
    """Give the other side the emulated device's machine code from here, which takes long to make."""
    package = home / ".cache/kernelforge/hosts" / f"package-{package_shipment().digest}"
    there = sha256(bytes(package / "kernelforge/devices/emulated")).hexdigest()[:16]
    code = home / ".cache/kernelforge/numba" / f"emulated-{there}"
    shutil.copytree(cache_folder(), code, dirs_exist_ok=True)


def ssh_clients() -> set[int]:
    """This process's own children that are clients of ssh."""
    own = family_of(os.getpid()) - {os.getpid()}
    return {pid for pid in running(own) if b"BatchMode=yes" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@contextmanager
def reachable_host(folder: Path) -> Iterator[SshHost]:
    """A host that the ``ssh`` on the path reaches."""
    if CLIENT is None:
        pytest.skip("OpenSSH's client is not installed")
    with pytest.MonkeyPatch.context() as patch, closing(SshHost(folder)) as there:
        patch.setenv("PATH", f"{there.bin}:{os.environ['PATH']}")
        yield there


@contextmanager
def openssh_server(folder: Path, device: str) -> Iterator[tuple[str, int]]:
    """OpenSSH's server on loopback: URL of the device behind it, and its process; ``ssh`` on the path knows it."""
    (folder / "home").mkdir()
    take_machine_code(folder / "home")
    for name in ("host", "identity"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(_SSHD_CONFIG.format(folder=folder, port=port))
    (folder / "config").write_text(_CLIENT_CONFIG.format(folder=folder))
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    client = folder / "bin" / "ssh"
    client.parent.mkdir()
    client.write_text(f'#!/bin/sh\nexec {CLIENT} -F {folder}/config "$@"\n')
    client.chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    path = os.environ["PATH"]
    server = subprocess.Popen([str(SSHD), "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.DEVNULL)
    try:
        os.environ["PATH"] = f"{client.parent}:{path}"
        end = time.monotonic() + 60
        while time.monotonic() < end and server.poll() is None:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"ssh://{getpass.getuser()}@127.0.0.1:{port}/{device}?python={sys.executable}", server.pid
    finally:
        os.environ["PATH"] = path
        server.terminate()
        server.wait()
