"""Hostile Python in the jail of Triton's front end, past the gate: each door has a canary that must not come back."""

import os
import secrets
import socket
from dataclasses import replace

import pytest

from kernelforge.candidate.plan import LaunchSignature
from kernelforge.candidate.resolved import Specialisation
from kernelforge.compile import COMPILE_LIMITS, Artifact, Compiler, triton_build
from kernelforge.compile.triton_source import Parameter, TritonSource
from kernelforge.errors import CandidateError
from kernelforge.sandbox.self_test import run_self_test
from tests.compile.test_triton_build import SOURCE, THREE, launch_of

pytestmark = pytest.mark.skipif(triton_build.installed_triton() is None, reason="the extra triton is not installed")

REPORT = """
import os, socket, sys
def report(action):
    try:
        found = action()
    except BaseException as error:
        found = f"closed: {type(error).__name__}"
    raise RuntimeError(found)
"""


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def jailed(request):
    report = run_self_test(request.param)
    if not report.works:
        pytest.skip(f"no tier {request.param} here: {report.reason}")
    limits = replace(COMPILE_LIMITS, wall_s=240, cpu_s=120)
    with Compiler(None, tier=request.param, limits=limits) as compiler:
        yield compiler


@pytest.fixture
def attack(jailed, monkeypatch):
    """Build source that the gate would refuse; all that comes back, as text."""

    def run(source: str) -> str:
        parameters = tuple(Parameter(name, name == "BLOCK", False) for name in ("x", "out", "n", "BLOCK"))
        with monkeypatch.context() as patch:
            gate = TritonSource({"double": parameters}, frozenset())
            patch.setattr(triton_build, "read_source", lambda text: gate)
            launch = launch_of()
            result = jailed.build(source, (), arch="sm_80", signatures=[LaunchSignature(str(launch), (), launch)])
        if isinstance(result, Artifact):
            return f"{result.ptx!r} {result.cubin!r}"
        return result.refused or str(result.errors[0])

    return run


def host(action: str) -> str:
    return f"{SOURCE}\n{REPORT}\nreport(lambda: {action})\n"


@pytest.mark.slow
def test_the_report_of_an_attack_comes_back(attack):
    """Without this the other tests could pass because nothing ran."""
    assert "seen 42" in attack(host("f'seen {6 * 7}'"))


def test_a_file_outside_is_out_of_reach(attack, tmp_path):
    canary = f"canary{secrets.token_hex(8)}"
    file = tmp_path / "secret"
    file.write_text(canary)
    for path in [file, *file.parents]:
        if path.stat().st_uid == os.getuid() and "pytest" in str(path):
            path.chmod(0o755)
    report = attack(host(f"open({str(file)!r}).read()"))
    assert canary not in report
    assert "closed: " in report


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/1/environ", "/root/.bashrc"])
def test_a_file_of_the_system_is_out_of_reach(attack, path):
    assert "root:" not in attack(host(f"open({path!r}).read()"))


def test_the_environment_holds_no_key(attack, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    report = attack(host("sorted(os.environ)"))
    assert "OPENAI_API_KEY" not in report
    assert "LC_ALL" in report
    assert "sk-canary" not in attack(host("open('/proc/self/environ').read()"))


def test_there_is_no_network(attack):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        report = attack(host(f"socket.create_connection(('127.0.0.1', {port}), timeout=5).send(b'canary')"))
        assert "closed: " in report
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_memory_of_the_parent_is_out_of_reach(attack):
    canary = f"canary{secrets.token_hex(8)}"
    here = id(canary)
    action = f"os.pread(os.open('/proc/{os.getpid()}/mem', os.O_RDONLY), 200, {here}).decode('latin-1')"
    report = attack(host(action))
    assert canary not in report
    assert "closed: " in report


def test_nothing_but_the_channel_is_inherited(attack):
    report = attack(host("{os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in os.listdir('/proc/self/fd')}"))
    assert ".db" not in report
    assert "closed: " in report or "socket" in report


def test_what_one_child_leaves_behind_the_next_does_not_find(attack):
    path = "os.environ['HOME'] + '/path'"
    assert "closed: " not in attack(host(f"open({path}, 'w').write('x')"))
    assert "False" in attack(host(f"os.path.exists({path})"))


FORGED = """
import kernelforge.compile.triton_worker as worker
joined, assemble = worker._joined, worker._assemble
def with_clock(ptx):
    return ptx.replace("ret;", "{ .reg .b64 %now; mov.u64 %now, %clock64; } ret;")
"""


def test_ptx_that_a_candidate_forges_ends_at_the_gate(attack):
    report = attack(f"{SOURCE}\n{FORGED}\nworker._joined = lambda modules: with_clock(joined(modules))\n")
    assert "a kernel must not read the time: %clock64" in report


def test_a_candidate_cannot_give_its_ptx_the_cubin_of_another(attack):
    """A child that ran its Python assembles nothing."""
    forge = "worker._assemble = lambda ptx, arch: assemble(with_clock(ptx.decode()).encode(), arch)\n"
    assert attack(f"{SOURCE}\n{FORGED}\n{forge}") == attack(f"{SOURCE}\n{FORGED}\n{'#' * len(forge)}")


def test_the_gate_refuses_all_of_this(jailed):
    launch = Specialisation("double", THREE, (("BLOCK", 256),), 4, 3)
    with pytest.raises(CandidateError, match="Triton source, line"):
        jailed.build(host("1"), (), arch="sm_80", signatures=[LaunchSignature(str(launch), (), launch)])
