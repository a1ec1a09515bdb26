"""``doctor`` says what is there and what to do about what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelforge.cli import doctor


def test_doctor_reports_every_part(cli, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-not-to-be-shown")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    done = cli("doctor", "--json")
    data = done.json()
    names = [check["name"] for check in data["checks"]]
    assert names == ["python", "torch", "nvrtc", "emulator", "jail", "gpu", "device", "keys", "results", "cache"]
    assert done.code == (0 if data["ok"] else 1)
    for check in data["checks"]:
        assert check["status"] == "ok" or check["advice"], check
    keys = data["checks"][names.index("keys")]["detail"]
    assert "OPENAI_API_KEY set" in keys
    assert "ANTHROPIC_API_KEY not set" in keys
    assert "canary" not in done.out


def test_keys_in_a_file_are_found_and_not_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    Path(".env").write_text("OPENAI_API_KEY=sk-canary-not-to-be-shown\n")
    found = doctor.check_keys()
    assert "OPENAI_API_KEY set in .env, ANTHROPIC_API_KEY not set" in found.detail
    assert "canary" not in found.detail + found.advice
    Path(".env").write_bytes(b"OPENAI_API_KEY=\xff\n")
    assert doctor.check_keys().status == "note"


def test_a_missing_package_is_a_problem_with_advice(monkeypatch):
    monkeypatch.setattr(
        doctor, "probe_python", lambda script, **_: doctor.Found(False, "ModuleNotFoundError: No module")
    )
    for check in (doctor.check_torch(), doctor.check_nvrtc(), doctor.check_emulator()):
        assert check.status == "problem"
        assert "pip install" in check.advice


def test_a_check_that_breaks_is_a_problem_not_a_traceback(monkeypatch):
    def check_torch() -> doctor.Check:
        raise ImportError("libtorch.so: cannot open")

    monkeypatch.setattr(doctor, "check_torch", check_torch)
    monkeypatch.setattr(doctor, "probe_python", lambda script, **_: doctor.Found(True, "fine"))
    found = {check.name: check for check in doctor.examine(Path("results"))}
    assert found["torch"].status == "problem"
    assert "libtorch" in found["torch"].detail


def test_a_problem_makes_the_exit_code_1(cli, monkeypatch):
    bad = doctor.Check("jail", "problem", "no jail works here", "allow user namespaces")
    monkeypatch.setattr(doctor, "examine", lambda results: [bad])
    done = cli("doctor")
    assert done.code == 1
    assert "allow user namespaces" in done.out
    assert "Not ready" in done.out


def test_a_probe_that_hangs_or_dies_is_answered():
    assert doctor.probe_python("import time; time.sleep(60)", timeout_s=0.2).text == "no answer in 0.2 s"
    assert doctor.probe_python("import os; os._exit(3)").text == "it ended with code 3"
    assert doctor.probe_python("raise ValueError('why')").text == "ValueError: why"
    assert doctor.probe_python("print('x')") == doctor.Found(True, "x")


def test_a_results_folder_that_cannot_be_written_is_a_problem(tmp_path: Path):
    (tmp_path / "file").write_text("")
    check = doctor.check_folder("results", tmp_path / "file")
    assert check.status == "problem"
    assert "--results" in check.advice
    assert doctor.check_folder("results", tmp_path / "not" / "yet").status == "ok"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    assert doctor.check_folder("results", tmp_path).status == "problem"
