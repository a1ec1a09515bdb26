"""A C candidate is machine code in a jail: a test plants a canary, and a candidate that reaches it is wrong."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import pytest

from kernelforge.records import Task, Verdict
from tests.translation.conftest import Judge

HEAD = "void heat_step(int rows, int cols, float r, const float *u, float *next)\n"
INCLUDES = """
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <unistd.h>
extern char **environ;
"""


def reaching(task: Task, door: str) -> str:
    """A right function that writes nothing where the body ``door`` of a function returns 1."""
    before, _, body = task.c_source.partition(HEAD)
    opened = f"static int reached(void)\n{{\n{door}\n}}\n"
    return f"{INCLUDES}{before}{opened}{HEAD}{{ if (reached()) return;\n{body.partition('{')[2]}"


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    text = f"canary-{secrets.token_hex(8)}"
    monkeypatch.setenv("KERNELFORGE_CANARY", text)
    return text


@pytest.mark.slow
def test_a_door_that_is_open_would_be_seen(judge: Judge, heat_step: Task) -> None:
    judge(reaching(heat_step, 'return open("/usr/bin", O_RDONLY) >= 0;'), Verdict.WRONG)


def test_the_environment_holds_no_variable_of_the_parent(judge: Judge, heat_step: Task, canary: str) -> None:
    search = f'for (char **at = environ; *at; at++) if (strstr(*at, "{canary}") || strstr(*at, "KEY")) return 1;'
    judge(reaching(heat_step, f'{search}\nreturn getenv("KERNELFORGE_CANARY") != 0;'))


def test_results_and_files_of_the_machine_cannot_be_opened(
    judge: Judge, heat_step: Task, canary: str, tmp_path: Path
) -> None:
    database = tmp_path / "kernelforge.db"
    database.write_text(canary)
    database.chmod(0o666)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    paths = (database, Path("/etc/passwd"), Path(f"/proc/{os.getpid()}/environ"), Path("/proc/1/environ"))
    tries = "\n".join(f'if (open("{path}", O_RDONLY) >= 0) return 1;' for path in paths)
    judge(reaching(heat_step, f'{tries}\nreturn open("{database}", O_WRONLY) >= 0;'))
    assert database.read_text() == canary


def test_one_descriptor_is_open_beside_the_standard_ones(
    judge: Judge, heat_step: Task, canary: str, tmp_path: Path
) -> None:
    (tmp_path / "open").write_text(canary)
    descriptor = os.open(tmp_path / "open", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        count = "int open = 0; for (int fd = 3; fd < 256; fd++) open += fcntl(fd, F_GETFD) >= 0; return open != 1;"
        judge(reaching(heat_step, count))
    finally:
        os.close(descriptor)


@pytest.mark.slow
def test_neither_the_network_nor_another_process_is_in_reach(judge: Judge, heat_step: Task) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        dial = (
            "struct sockaddr_in to = {.sin_family = AF_INET};\n"
            f"to.sin_port = htons({port});\n"
            'inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);\n'
            "int call = socket(AF_INET, SOCK_STREAM, 0);\n"
            "if (call >= 0 && connect(call, (void *)&to, sizeof to) == 0) return 1;\n"
        )
        judge(reaching(heat_step, f"{dial}return kill({os.getpid()}, 0) == 0 || ptrace(PTRACE_TRACEME, 0, 0, 0) == 0;"))
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_candidate_cannot_say_that_the_machine_lacks_something(judge: Judge, heat_step: Task) -> None:
    forged = r"""
    static const char text[] = "{\"ok\":true,\"unsupported\":\"f\"}";
    struct { char magic[4]; unsigned text, blobs, files; unsigned long long bytes; } head = {
        {'K', 'F', 'F', '2'}, sizeof text - 1, 0, 0, 0};
    for (int fd = 3; fd < 256; fd++) if (write(fd, &head, sizeof head) == sizeof head) write(fd, text, sizeof text - 1);
    return 0;
    """
    judge(reaching(heat_step, forged), Verdict.POLICY, "a reply that its worker never sends")
