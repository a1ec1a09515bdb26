"""Commands to paste into a shell."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import typer.main

from kernelforge.cli.main import app
from kernelforge.utils import shell_hints
from kernelforge.utils.shell_hints import install_hint, results_option, shell_command
from kernelforge.version import DISTRIBUTION

HOSTILE = "$(touch gone); 'x' \"y\" `z`\n-n"


def test_a_shell_hands_over_what_was_meant(tmp_path: Path) -> None:
    line = shell_command("show", HOSTILE, options=["--messages"], results="my results")
    done = subprocess.run(
        ["sh", "-c", f"kernelforge() {{ printf '%s\\0' \"$@\"; }}; {line}"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split("\0")[:-1] == ["show", HOSTILE, "--messages", "--results", "my results"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("word", ["-x/softmax/0", "--help", "--", "-", "plain"])
def test_an_id_that_looks_like_an_option_is_none(word: str) -> None:
    _, verb, *words = shlex.split(shell_command("show", word, options=["--messages"], results="-r"))
    show = typer.main.get_command(app).commands[verb]
    parsed = show.make_context("show", words).params
    assert (parsed["reference"], parsed["messages"], parsed["results"]) == (word, True, Path("-r"))


def test_the_folder_is_named_as_it_was_written_where_it_has_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELFORGE_RESULTS", raising=False)
    assert results_option(Path("results")) == results_option(Path("./results/")) == ""
    assert results_option(Path("../there")) == "../there"
    monkeypatch.setenv("KERNELFORGE_RESULTS", "")
    assert results_option(Path("results")) == ""


ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PIP = [sys.executable, "-m", "pip", "install"]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metadata folder of a distribution that is imported from no checkout."""
    site = tmp_path / "site"
    metadata = site / f"{DISTRIBUTION.replace('-', '_')}-9.9.9.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {DISTRIBUTION}\nVersion: 9.9.9\n")
    monkeypatch.setattr(shell_hints, "__file__", str(site / "kernelforge" / "utils/shell_hints.py"))
    monkeypatch.syspath_prepend(site)
    return metadata


def test_extras_of_a_checkout_come_from_that_checkout() -> None:
    pinned = ["-c", f"{ROOT}/constraints.txt"]
    assert shlex.split(install_hint("gpu", "pycuda")) == [*PIP, *pinned, "-e", f"{ROOT}[gpu,pycuda]"]
    assert shlex.split(install_hint(reinstall=True)) == [*PIP, "--force-reinstall", *pinned, "-e", str(ROOT)]


@pytest.mark.slow
def test_pip_takes_the_command_for_extras_of_a_checkout() -> None:
    dry = ["--dry-run", "--no-deps", "--no-index", "--no-build-isolation"]
    # Editable builds take a package that only pip's isolated builds have.
    words = [word for word in shlex.split(install_hint("server")) if word != "-e"]
    done = subprocess.run([*words, *dry], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Would install {DISTRIBUTION}-" in done.stdout
    assert "does not provide the extra" not in done.stderr


@pytest.mark.parametrize("pinned", [False, True])
def test_extras_come_from_the_folder_that_was_installed(installed: Path, tmp_path: Path, pinned: bool) -> None:
    folder = tmp_path / "my checkout"
    folder.mkdir()
    (installed / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": {}}))
    if pinned:
        (folder / "constraints.txt").touch()
    options = ["-c", f"{folder}/constraints.txt"] if pinned else []
    assert shlex.split(install_hint("ray")) == [*PIP, *options, f"{folder}[ray]"]


@pytest.mark.parametrize(
    ("record", "requirement"),
    [
        ({"url": "https://host.test/a.whl", "archive_info": {}}, f"{DISTRIBUTION}[mcp] @ https://host.test/a.whl"),
        (
            {"url": "https://host.test/a.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            f"{DISTRIBUTION}[mcp] @ git+https://host.test/a.git@0a1b",
        ),
    ],
    ids=["archive", "repository"],
)
def test_extras_come_from_the_address_that_was_installed(installed: Path, record: object, requirement: str) -> None:
    (installed / "direct_url.json").write_text(json.dumps(record))
    assert shlex.split(install_hint("mcp")) == [*PIP, requirement]


@pytest.mark.parametrize("origin", ["none recorded", "gone"])
def test_what_extras_require_is_named_where_the_package_cannot_be_had_again(
    installed: Path, tmp_path: Path, origin: str
) -> None:
    """Found by its name in a folder of wheels, or installed from a checkout that is gone: it works either way."""
    with (installed / "METADATA").open("a") as metadata:
        for extra, requirements in EXTRAS.items():
            metadata.write(f"Provides-Extra: {extra}\n")
            metadata.writelines(f"Requires-Dist: {requirement}; extra == '{extra}'\n" for requirement in requirements)
        metadata.write("Requires-Dist: torch<2.14,>=2.9\n")
    if origin == "gone":
        (installed / "direct_url.json").write_text(json.dumps({"url": (tmp_path / "gone").as_uri(), "dir_info": {}}))
    for extra, requirements in EXTRAS.items():
        assert shlex.split(install_hint(extra)) == [*PIP, *requirements]
    assert shlex.split(install_hint("gpu", "pycuda")) == [*PIP, *EXTRAS["gpu"], *EXTRAS["pycuda"]]
    reinstalled = install_hint(reinstall=True)
    assert DISTRIBUTION not in reinstalled
    assert reinstalled.endswith("(in a checkout of KernelForge)")


def test_a_name_that_is_on_no_index_is_not_asked_for(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that is gone, as in a container, and a package that is not installed at all."""
    (installed / "direct_url.json").write_text(json.dumps({"url": (tmp_path / "gone").as_uri(), "dir_info": {}}))
    gone = install_hint("gpu")
    (installed / "METADATA").unlink()
    (installed / "direct_url.json").unlink()
    installed.rmdir()

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", missing)
    for hint in (gone, install_hint("gpu")):
        assert DISTRIBUTION not in hint
        assert shlex.split(hint)[: len(PIP) + 3] == [*PIP, "-c", "constraints.txt", ".[gpu]"]
        assert hint.endswith("(in a checkout of KernelForge)")


def test_an_environment_without_pip_is_served_by_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_hints, "find_spec", lambda name: None)
    uv = ["uv", "pip", "install", "--python", sys.executable]
    assert shlex.split(install_hint("gpu"))[: len(uv)] == uv
