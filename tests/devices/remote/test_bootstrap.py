"""Installations on another machine: old ones are removed when a new one comes, unless a worker uses them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelforge.devices.remote import bootstrap

DAY_S = 86400.0
RELAY = "def frames_socket():\n    return 0\n"
WORKER = "import os\ndef main(descriptor):\n    os.write(1, b'at work\\n')\n    os.read(descriptor, 1)\n"


def package(version: str) -> bytes:
    """A package whose worker ends with its input."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for folder in ("kernelforge", "kernelforge/devices", "kernelforge/devices/remote"):
            archive.writestr(f"{folder}/__init__.py", "")
        archive.writestr("kernelforge/devices/remote/relay.py", RELAY)
        archive.writestr("kernelforge/worker.py", WORKER + f"# {version}\n")
    return buffer.getvalue()


@contextmanager
def worker(home: Path, version: str) -> Iterator[None]:
    """A worker of a version, at work."""
    content = package(version)
    command = [sys.executable, "-I", bootstrap.__file__]
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"entry": "kernelforge.worker", "package": version, "python": sys.executable}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() + process.stdout.readline() == b"\n" + bootstrap.MARK
        answer = process.stdout.readline()
        if b"need" in answer:
            process.stdin.write(json.dumps({"bytes": len(content)}).encode() + b"\n" + content)
            process.stdin.flush()
            answer = process.stdout.readline()
        assert json.loads(answer) == {"start": sys.executable}
        assert process.stdout.readline() == b"at work\n"
        yield
        process.stdin.close()
        assert process.wait() == 0


def aged(path: Path, days: float) -> Path:
    """A file or folder that was last used so long ago."""
    at = time.time() - days * DAY_S
    os.utime(path, (at, at))
    return path


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """The folder of what is installed for a home."""
    return tmp_path / ".cache/kernelforge/hosts"


@pytest.mark.slow
def test_packages_go_with_a_newer_one_unless_a_worker_uses_them(tmp_path: Path, hosts: Path) -> None:
    def packages() -> set[str]:
        return {path.name for path in hosts.iterdir() if path.name != "lock"}

    with worker(tmp_path, "ended"):
        pass
    with worker(tmp_path, "busy"), worker(tmp_path, "late"):
        for name in ("ended", "busy"):
            aged(hosts / f"package-{name}" / "lease", 2)
        with worker(tmp_path, "late"):
            assert packages() == {"package-ended", "package-busy", "package-late"}, "nothing was installed"
        with worker(tmp_path, "new"):
            assert packages() == {"package-busy", "package-late", "package-new"}
    aged(hosts / "package-busy" / "lease", 2)
    with worker(tmp_path, "busy"), worker(tmp_path, "newer"):
        assert "package-busy" in packages(), "its last use was now"


def test_what_an_earlier_version_uses_and_environments_are_kept_for_a_month(tmp_path: Path, hosts: Path) -> None:
    kept, gone = {"package-early": 20, "environment-late": 20}, {"package-earliest": 40, "environment-old": 40}
    for name, days in (kept | gone).items():
        (hosts / name).mkdir(parents=True)
        if name.startswith("environment"):
            lease = hosts / name / "lease"
            lease.touch()
            aged(lease, days)
        aged(hosts / name, days)
    with worker(tmp_path, "new"):
        pass
    assert {path.name for path in hosts.iterdir()} == {"lock", "package-new", *kept}


def test_a_removal_that_was_interrupted_is_done_later(tmp_path: Path, hosts: Path) -> None:
    (hosts / "unused-package-ended" / "kernelforge").mkdir(parents=True)
    with worker(tmp_path, "new"):
        pass
    assert {path.name for path in hosts.iterdir()} == {"lock", "package-new"}
