"""Files of a package: what is written, what is refused, and that pip and Hugging Face's ``kernels`` can load them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernelforge.errors import UsageError
from kernelforge.packaging.manifest import Manifest, read_candidate, read_manifest
from kernelforge.packaging.operator import Operator
from kernelforge.packaging.project import package
from kernelforge.records import Candidate, Verdict
from kernelforge.store import Store
from kernelforge.store.references import resolve
from tests.packaging.conftest import CANDIDATES, RUN, TASKS, attempt_of
from tests.support import factories

INSIDE = Path("build", "torch-universal")


def imported(path: Path, name: str) -> ModuleType:
    """A module by its file, as ``kernels`` and pytest import it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_package_says_what_was_evaluated_and_where(store: Store, packages: dict[str, Path]) -> None:
    folder = packages["softmax"]
    manifest = read_manifest(folder)
    evaluation = store.attempt(f"{RUN}/softmax/00").evaluation
    assert (manifest.name, manifest.module) == ("kernelforge-op-softmax", "kernelforge_op_softmax")
    assert (manifest.device, manifest.arch, manifest.emulated) == ("emulated:h100", "sm_90a", "emulated:h100")
    assert manifest.task.digest == TASKS["softmax"].digest
    assert manifest.provenance.author == "openai:gpt-5"
    assert [(size.name, size.parameters) for size in manifest.sizes] == [
        ("full", {}), ("small", {"ROWS": 8, "COLS": 64}), ("hidden_odd", {"ROWS": 9, "COLS": 65}),
    ]  # fmt: skip
    assert evaluation.performance is not None
    assert manifest.time is not None
    assert (manifest.time.us, manifest.time.origin, manifest.time.low_us) == (
        evaluation.performance.time_us, "modelled", None,
    )  # fmt: skip
    predicted = evaluation.performance.predicted
    assert predicted is not None
    assert manifest.speedup is not None
    assert (manifest.speedup.value, manifest.speedup.origin) == (predicted.speedup, "predicted")
    assert manifest.reference_us is not None
    assert manifest.reference_us.us == predicted.eager_us
    module = folder / INSIDE / manifest.module
    assert json.loads((module / "evaluation.json").read_text()) == evaluation.model_dump(mode="json")
    assert read_candidate(module, manifest) == CANDIDATES["softmax"]
    assert manifest.gpu == "NVIDIA H100 SXM5 80 GB"
    readme = (folder / "README.md").read_text()
    for text in (
        "openai:gpt-5",
        f"`{RUN}/softmax/00`",
        "float32[48, 256]",
        f"{predicted.speedup:.3g}",
        "| Apache-2.0;",
    ):
        assert text in readme
    assert "under Apache-2.0" in (folder / "LICENSE").read_text()
    assert "Its licence is MIT" in (folder / "LICENSE").read_text()


@pytest.mark.slow
def test_pip_installs_it_and_its_tests_pass(
    packages: dict[str, Path], operator_of: Callable[[str], Operator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hatchling")
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", target, packages["linear"]], check=True, timeout=120)
    module = target / "kernelforge_op_linear"
    assert sorted(path.name for path in module.iterdir() if path.suffix != ".pyc" and path.name[:2] != "__") == [
        "evaluation.json", "kernel.cu", "package.json", "plan.txt", "reference.py",
    ]  # fmt: skip
    operator = operator_of("linear")
    monkeypatch.syspath_prepend(str(target))
    before = {path for path in target.rglob("*") if "__pycache__" not in path.parts}
    tests = imported(packages["linear"] / "tests" / "test_kernelforge_op_linear.py", "tests_of_a_package")
    assert tests.operator is operator
    (mark,) = tests.test_operator_equals_reference.pytestmark
    assert mark.args == ("size", ["full", "small", "hidden_odd"])
    for size in mark.args[1]:
        tests.test_operator_equals_reference(size)
    assert {path for path in target.rglob("*") if "__pycache__" not in path.parts} == before
    for name in ("kernelforge_op_linear", "tests_of_a_package"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.slow
def test_the_layout_is_that_of_hugging_faces_kernels(
    packages: dict[str, Path], operator_of: Callable[[str], Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = packages["softmax"]
    metadata = json.loads((folder / INSIDE / "metadata.json").read_text())
    assert metadata["name"] == "kernelforge-op-softmax"
    assert (metadata["license"], metadata["python-depends"]) == ("Apache-2.0", [])
    variant = imported(folder / INSIDE / "__init__.py", metadata["id"])
    assert variant.operator is operator_of("softmax")
    for name in [name for name in sys.modules if name.startswith(metadata["id"])]:
        monkeypatch.delitem(sys.modules, name)


def test_a_folder_with_other_content_is_never_changed(store: Store, tmp_path: Path) -> None:
    named = resolve(store, f"{RUN}/softmax")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, message in (("full", "is not empty"), ("file", "is no folder")):
        with pytest.raises(UsageError, match=message):
            package(store, named, tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "notes.txt"]
    (tmp_path / "new").mkdir()
    package(store, named, tmp_path / "new", "MIT OR BSD-3-Clause")
    assert tomllib.loads((tmp_path / "new" / "pyproject.toml").read_text())["project"]["license"] == (
        "MIT OR BSD-3-Clause"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "new"]
    assert os.stat(tmp_path / "new").st_mode & 0o777 == 0o755


def _wrong() -> dict[str, Any]:
    evaluation = factories.make_evaluation(Verdict.WRONG, candidate=CANDIDATES["softmax"].hash)
    return {"evaluation": evaluation, "accepted": False}


def _class() -> dict[str, Any]:
    candidate = Candidate(source="class ModelNew: ...", plan="", lane="modelnew")
    ok = factories.make_evaluation(candidate=candidate.hash, lane="modelnew", build=None)
    return {"evaluation": ok, "candidate": candidate}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (_wrong, "has the verdict WRONG; only an attempt with OK can be packaged"),
        (_class, "is a class ModelNew, whose host code"),
    ],
)
def test_only_a_correct_plan_is_packaged(tmp_path: Path, changes: Callable[[], dict[str, Any]], message: str) -> None:
    from tests.support.recorded_run import make_run

    with Store.open(tmp_path / "kernelforge.db") as store:
        store.start_run(make_run(RUN, tasks=tuple(TASKS)))
        store.put_task(RUN, TASKS["softmax"])
        store.add_attempt(attempt_of("softmax", **changes()))
        with pytest.raises(UsageError, match=message):
            package(store, resolve(store, f"{RUN}/softmax/0"), tmp_path / "out")
        if changes is _wrong:
            with pytest.raises(UsageError, match="has no correct attempt"):
                package(store, resolve(store, f"{RUN}/softmax"), tmp_path / "out")
        with pytest.raises(UsageError, match="write r1/TASK"):
            package(store, resolve(store, RUN), tmp_path / "out")
        with pytest.raises(UsageError, match="no SPDX expression"):
            package(store, resolve(store, f"{RUN}/softmax/0"), tmp_path / "out", "do what you like")
    assert not (tmp_path / "out").exists()


def test_a_changed_package_is_refused(store: Store, tmp_path: Path) -> None:
    manifest = package(store, resolve(store, f"{RUN}/softmax"), tmp_path / "out")
    module = tmp_path / "out" / INSIDE / manifest.module
    (module / "kernel.cu").write_text("// faster")
    with pytest.raises(UsageError, match=r"kernel.cu was changed after its evaluation"):
        read_manifest(tmp_path / "out")
    raw = json.loads((module / "package.json").read_text())
    with pytest.raises(ValueError, match="differ in the number or kinds"):
        Manifest.model_validate(raw | {"sizes": [raw["sizes"][0], raw["sizes"][1] | {"inputs": []}]})
    (module / "package.json").write_text('{"format": "kernelforge-package/2"}')
    with pytest.raises(UsageError, match="is not of format kernelforge-package/1"):
        read_manifest(module)
