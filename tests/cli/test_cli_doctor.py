"""``doctor`` says what is there and what to do about what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from kernelforge.cli.doctor import gpu, host
from kernelforge.cli.doctor.checks import Check, ProbeResult, probe_python


def test_doctor_reports_every_part(cli, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-not-to-be-shown")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    done = cli("doctor", "--json")
    data = done.json()
    names = [check["name"] for check in data["checks"]]
    assert [check for check in data["checks"] if check["status"] == "problem"] == []
    assert names == [
        "python", "install", "torch", "nvrtc", "emulator", "jail", "gpu", "device", "path emulated:h100", "keys",
        "results", "cache",
    ]  # fmt: skip
    path = data["checks"][names.index("path emulated:h100")]
    assert [stage["name"] for stage in path["stages"]] == ["runner", "oracle", "build", "check", "profile"]
    assert all(stage["seconds"] > 0 for stage in path["stages"] if stage["status"] == "ok")
    assert done.code == (0 if data["ok"] else 1)
    for check in data["checks"]:
        assert check["status"] == "ok" or check["advice"], check
    keys = data["checks"][names.index("keys")]["detail"]
    assert "OPENAI_API_KEY set" in keys
    assert "ANTHROPIC_API_KEY not set" in keys
    assert "canary" not in done.out


@pytest.mark.slow
def test_its_threads_import_nothing_of_the_package(tmp_path):
    """Two threads that come to a package and to a module of it at once end with a deadlock error of importlib's."""
    script = """
import sys, threading
from pathlib import Path

class Recorder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("kernelforge") and threading.current_thread() is not threading.main_thread():
            print(name)

from kernelforge.cli.doctor import host as doctor
sys.meta_path.insert(0, Recorder())
assert len(doctor.examine(Path(sys.argv[1]))) > 10
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout


def test_keys_in_a_file_are_found_and_not_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    Path(".env").write_text("OPENAI_API_KEY=sk-canary-not-to-be-shown\n")
    result = host.check_keys()
    assert "OPENAI_API_KEY set in .env, ANTHROPIC_API_KEY not set" in result.detail
    assert "canary" not in result.detail + result.advice
    Path(".env").write_bytes(b"OPENAI_API_KEY=\xff\n")
    assert host.check_keys().status == "note"


def test_a_missing_package_is_a_problem_with_advice(monkeypatch):
    monkeypatch.setattr(host, "probe_python", lambda script, **_: ProbeResult(False, "ModuleNotFoundError: No module"))
    for check in (host.check_torch(), host.check_nvrtc(), host.check_emulator()):
        assert check.status == "problem"
        assert "pip install" in check.advice


def test_another_processor_is_told(monkeypatch):
    assert host.check_python().status == "ok"
    monkeypatch.setattr(host.platform, "machine", lambda: "aarch64")
    check = host.check_python()
    assert check.status == "note"
    assert "aarch64" in check.detail
    assert "x86-64" in check.advice


@pytest.mark.slow
@pytest.mark.parametrize("how", ["command", "top level", "files"])
def test_another_distribution_with_our_name_is_told(tmp_path, monkeypatch, how):
    for name, command in (("kernelforge-amd", "amd.cli:main"), ("ours-renamed", "kernelforge.cli.main:main")):
        folder = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        if name == "ours-renamed" or how == "command":
            (folder / "entry_points.txt").write_text(f"[console_scripts]\nkernelforge = {command}\n")
        elif how == "top level":
            (folder / "top_level.txt").write_text("tools\nkernelforge\n")
        else:
            (folder / "RECORD").write_text("kernelforge/__init__.py,,\n")
    assert host.check_install().status == "ok"
    monkeypatch.syspath_prepend(str(tmp_path))
    check = host.check_install()
    assert check.status == "note"
    assert "ours-renamed 1.2" in check.detail
    assert "; kernelforge-amd 1.2 has a package" in check.detail


def test_a_check_that_breaks_is_a_problem_not_a_traceback(monkeypatch):
    def check_torch() -> Check:
        raise ImportError("libtorch.so: cannot open")

    monkeypatch.setattr(host, "check_torch", check_torch)
    monkeypatch.setattr(host, "check_paths", list)
    monkeypatch.setattr(gpu, "check_gpus", list)
    monkeypatch.setattr(host, "probe_python", lambda script, **_: ProbeResult(True, "fine"))
    result = {check.name: check for check in host.examine(Path("results"))}
    assert result["torch"].status == "problem"
    assert "libtorch" in result["torch"].detail


def test_a_problem_makes_the_exit_code_1(cli, monkeypatch):
    bad = Check("jail", "problem", "no jail works here", "allow user namespaces")
    monkeypatch.setattr(host, "examine", lambda results: [bad])
    done = cli("doctor")
    assert done.code == 1
    assert "allow user namespaces" in done.out
    assert "Not ready" in done.out


def test_a_probe_that_hangs_or_dies_is_answered():
    assert probe_python("import time; time.sleep(60)", timeout_s=0.2).text == "no answer in 0.2 s"
    assert probe_python("import os; os._exit(3)").text == "it ended with code 3"
    assert probe_python("raise ValueError('why')").text == "ValueError: why"
    assert probe_python("print('x')") == ProbeResult(True, "x")


@pytest.mark.parametrize("check", [host.check_torch, host.check_nvrtc, host.check_emulator])
def test_what_did_not_answer_in_time_is_not_to_be_installed_again(check, monkeypatch):
    monkeypatch.setattr(host, "probe_python", partial(probe_python, timeout_s=0.01))
    result = check()
    assert (result.status, result.detail) == ("problem", "no answer in 0.01 s")
    assert "less load" in result.advice
    assert "install" not in result.advice


def test_a_results_folder_that_cannot_be_written_is_a_problem(tmp_path: Path):
    (tmp_path / "file").write_text("")
    check = host.check_folder("results", tmp_path / "file")
    assert check.status == "problem"
    assert "--results" in check.advice
    assert host.check_folder("results", tmp_path / "not" / "yet").status == "ok"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    assert host.check_folder("results", tmp_path).status == "problem"
