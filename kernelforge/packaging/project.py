"""Makes the files of a package from a correct attempt, and writes them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kernelforge.capture.records import Capture
from kernelforge.capture.suite import CAPTURE
from kernelforge.devices import screen_for
from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.hardware.specs import EMULATED, SPECS
from kernelforge.packaging.manifest import (
    BUILDS,
    EVALUATION,
    KERNELS,
    MANIFEST,
    PLAN,
    REFERENCE,
    Manifest,
    PackagedSize,
    PackagedSpeedup,
    PackagedTask,
    PackagedTime,
    Provenance,
)
from kernelforge.records import Attempt, Correctness, Performance, Run, SizeFacts, Task, TaskFacts, TensorSpec, Verdict
from kernelforge.tasks.suites import suite_folders
from kernelforge.utils.atomic_files import atomic_write
from kernelforge.version import DISTRIBUTION, __version__

if TYPE_CHECKING:
    from kernelforge.store import Store
    from kernelforge.store.references import Reference

LICENCE: Final = "Apache-2.0"
"""Licence of a package where none is named: that of this project."""
_SPDX = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")
_MOST_TESTED = 1 << 16
"""Input elements of the sizes that the packaged test runs; more take the emulated device too long for a test."""


def package(store: Store, named: Reference, folder: Path, licence: str = LICENCE) -> Manifest:
    """Write the package of an attempt, or of a task's best one, to a new or empty folder, whole or not at all.

    Raises:
        UsageError: the attempt is not one that can be packaged, the licence is no SPDX expression, or the folder has
            other content or cannot be written.
    """
    if not _SPDX.fullmatch(licence):
        raise UsageError(f"{licence!r} is no SPDX expression; write one such as Apache-2.0 or MIT")
    _refuse_other_folder(folder)
    attempt = _attempt(store, named)
    task, facts = store.task(attempt.run, attempt.task), store.facts(attempt.run, attempt.task)
    run = store.run(attempt.run)
    manifest, files = _files(attempt, task, facts, run, _author(store, attempt), licence)
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder.absolute(), folder=True) as made:
            for name, text in files.items():
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="")
            made.chmod(0o755)
            made.rename(folder.absolute())  # replaces an empty folder only
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    return manifest


def _refuse_other_folder(folder: Path) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{folder} is no folder; choose another --output")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; choose another --output, or move the folder away")


def _attempt(store: Store, named: Reference) -> Attempt:
    """The attempt that a reference names, or the best one of its task."""
    if named.task is None:
        tasks = ", ".join(named.run.config.tasks[:5])
        raise UsageError(f"a package is of one task: write {named.run.id}/TASK, where TASK is one of {tasks}")
    if named.number is not None:
        return store.attempt_at(named.run.id, named.task, named.number)
    accepted = [attempt for attempt in store.attempts(named.run.id, named.task) if attempt.accepted]
    if not accepted:
        raise UsageError(f"{named.run.id}/{named.task} has no correct attempt; see `kernelforge show {named.task}`")
    return accepted[-1]


def _author(store: Store, attempt: Attempt) -> str:
    """Author of an attempt's kernel: of a tuned one, the Coder of the attempt that it came from."""
    seen = attempt
    while not seen.coder and seen.parent is not None:
        seen = store.attempt(seen.parent)
    return seen.coder or str(seen.start)


def _files(
    attempt: Attempt, task: Task, facts: TaskFacts | None, run: Run, author: str, licence: str
) -> tuple[Manifest, dict[str, str]]:
    """The manifest, and every file by its path in the project."""
    evaluation, candidate = attempt.evaluation, attempt.candidate
    if evaluation.verdict is not Verdict.OK or evaluation.correctness is None:
        raise UsageError(f"{attempt.id} has the verdict {evaluation.verdict}; only an attempt with OK can be packaged")
    if candidate is None or candidate.language is None:
        raise UsageError(
            f"{attempt.id} is a class ModelNew, whose host code an operator would run; only device code with a launch "
            "plan can be packaged (`kernelforge convert` makes one of some classes)"
        )
    if task.policy.mutates:
        raise UsageError(f"{task.name} changes its inputs in place; an operator of a package gives new tensors")
    if task.policy.host_inputs:
        raise UsageError(f"{task.name} reads host memory; an operator of a package takes tensors of the device")
    if facts is None:
        raise UsageError(f"{attempt.run} holds no shapes of {task.name}: it was stopped before its first evaluation")
    sizes = _sizes(attempt.id, task, facts, evaluation.correctness)
    time, reference, speedup = _times(evaluation.performance)
    fingerprint = evaluation.fingerprint
    gpu = fingerprint.gpu or ""
    emulated = fingerprint.device
    if not emulated.startswith(EMULATED) or emulated.endswith(".toml"):
        emulated = EMULATED + screen_for(fingerprint.arch, gpu).spec.key
    slug = re.sub(r"[^a-z0-9]+", "-", task.name.lower()).strip("-")
    name = f"kernelforge-op-{slug}"
    module = name.replace("-", "_")
    texts = {
        KERNELS[candidate.language]: candidate.source,
        PLAN: candidate.plan,
        REFERENCE: task.source,
        EVALUATION: evaluation.model_dump_json(indent=1) + "\n",
    }
    manifest = Manifest(
        name=name,
        module=module,
        task=PackagedTask(**task.model_dump(include=set(PackagedTask.model_fields) - {"digest"}), digest=task.digest),
        language=candidate.language,
        device=fingerprint.device,
        gpu=gpu or _emulated_gpu(fingerprint.device),
        emulated=emulated,
        arch=fingerprint.arch,
        evaluator_version=fingerprint.evaluator,
        candidate=candidate.hash,
        choices=candidate.choices,
        sizes=sizes,
        time=time,
        reference_us=reference,
        speedup=speedup,
        group=_group(run, task),
        licence=licence,
        provenance=Provenance(
            run=attempt.run, attempt=attempt.id, author=author, written=attempt.started, kernelforge=__version__
        ),
        files={name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()},
    )
    inside = f"{BUILDS}/{module}"
    files = {f"{inside}/{name}": text for name, text in texts.items()}
    files[f"{inside}/{MANIFEST}"] = manifest.model_dump_json(indent=1) + "\n"
    files[f"{inside}/__init__.py"] = _INIT.format(title=_plain(task.title), module=module)
    files[f"{BUILDS}/__init__.py"] = _VARIANT.format(module=module)
    files[f"{BUILDS}/metadata.json"] = json.dumps(_metadata(manifest), indent=1) + "\n"
    files["pyproject.toml"] = _pyproject(manifest)
    files["LICENSE"] = _licence_text(manifest)
    files["README.md"] = _readme(manifest)
    files[f"tests/test_{module}.py"] = _test(manifest)
    return manifest, files


def _sizes(attempt: str, task: Task, facts: TaskFacts, correctness: Correctness) -> tuple[PackagedSize, ...]:
    """Sizes where values were compared, the full one first; of equal shapes the first."""
    passed = {check.size for check in correctness.sizes if check.status == "passed"}
    if "full" not in passed:
        raise UsageError(f"no value of {attempt} was compared at the full size, so that nothing vouches for it there")
    sizes: dict[tuple[object, ...], PackagedSize] = {}
    for size in sorted(task.sizes, key=lambda size: size.name != "full"):
        at = next((each for each in facts.sizes if each.size == size.name), None)
        if at is not None and size.name in passed:
            specs = (at.inputs, tuple((weight.name, weight.spec) for weight in at.weights))
            sizes.setdefault(specs, _size(size.constants, at))
    return tuple(sizes.values())


def _size(parameters: dict[str, int | float | bool], facts: SizeFacts) -> PackagedSize:
    return PackagedSize(
        name=facts.size,
        parameters=parameters,
        inputs=facts.inputs,
        weights=facts.weights,
        outputs=tuple(TensorSpec.contiguous(spec.shape, spec.dtype) for spec in facts.outputs),
        attrs=facts.attrs,
    )


def _times(performance: Performance | None) -> tuple[PackagedTime | None, PackagedTime | None, PackagedSpeedup | None]:
    """Time of the kernel, of eager PyTorch, and their ratio."""
    if performance is None or performance.quarantined is not None:
        return None, None, None
    low, high = performance.interval_us or (None, None)
    time = PackagedTime(
        us=performance.time_us, low_us=low, high_us=high, origin=performance.origin.value, source=performance.protocol
    )
    if performance.predicted is not None:
        predicted = performance.predicted
        eager = PackagedTime(us=predicted.eager_us, origin=predicted.eager_origin, source=predicted.eager_source)
        ratio = PackagedSpeedup(value=predicted.speedup, low=predicted.low, high=predicted.high, origin="predicted")
        return time, eager, ratio
    timing = performance.timing
    side = next((side for side in timing.baselines if side.name == "eager"), None) if timing else None
    measured = timing.ratio("eager") if timing else None
    if side is None or measured is None or timing is None:
        return time, None, None
    low, high = side.interval_us
    eager = PackagedTime(us=side.median_us, low_us=low, high_us=high, origin="measured", source=timing.protocol)
    low, high = measured.interval
    return time, eager, PackagedSpeedup(value=measured.speedup, low=low, high=high, origin="measured")


def _group(run: Run, task: Task) -> str:
    """Digest of the captured group that a task stands for; empty where its suite is none of a capture."""
    try:
        for folder in suite_folders(run.config.suite):
            if (folder / CAPTURE).is_file():
                capture = Capture.model_validate_json((folder / CAPTURE).read_bytes())
                return next((group.digest for group in capture.groups if group.task == task.name), "")
    except (OSError, ValueError, KernelForgeError):
        return ""  # the suite was moved or changed since the run
    return ""


def _emulated_gpu(device: str) -> str:
    """Name of the GPU that a device emulates; of one from a file, the device's own."""
    spec = SPECS.get(device.removeprefix(EMULATED))
    return device if spec is None else spec.title


def _metadata(manifest: Manifest) -> dict[str, object]:
    """``metadata.json`` of a build variant, as Hugging Face's ``kernels`` reads it."""
    return {
        "id": f"_{manifest.module}_{manifest.digest[:8]}",
        "name": manifest.name,
        "version": 1,
        "license": manifest.licence,
        "python-depends": [],
        "backend": {"type": "cuda"},
    }


def _plain(text: str) -> str:
    """Text for one line of a file: no quotes, backslashes, or characters that are not printable."""
    return re.sub(r"[\"'\\]|[^\x20-\x7e]", " ", text)[:200].strip()


_INIT = '''"""{title}: a kernel as an operator of torch."""

from pathlib import Path

from kernelforge.packaging.operator import load

operator = load(Path(__file__).parent)

__all__ = ["operator"]
'''

_VARIANT = '''"""The module of this build, for Hugging Face's kernels."""

from .{module} import operator

__all__ = ["operator"]
'''


def _pyproject(manifest: Manifest) -> str:
    return f"""[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{manifest.name}"
version = "1.0.0"
description = "{_plain(manifest.task.title)}: a CUDA kernel as an operator of torch"
readme = "README.md"
license = "{manifest.licence}"
license-files = ["LICENSE"]
requires-python = ">=3.11"
dependencies = ["{DISTRIBUTION}{"[triton]" if manifest.language == "triton" else ""}", "torch>=2.9"]

[tool.hatch.build]
ignore-vcs = true  # "build" is in many a .gitignore

[tool.hatch.build.targets.wheel]
packages = ["{BUILDS}/{manifest.module}"]
"""


def _licence_text(manifest: Manifest) -> str:
    lines = [
        f"SPDX-License-Identifier: {manifest.licence}",
        "",
        f"The kernel and the other files of this package, but for {REFERENCE}, are under {manifest.licence}.",
        "Its text is at https://spdx.org/licenses/.",
        "",
        f"{REFERENCE} is the task {manifest.task.name} of suite {manifest.task.suite}. "
        + (f"Its licence is {manifest.task.license}." if manifest.task.license else "No licence is stated for it."),
    ]
    return "\n".join(lines) + "\n"


def _spec_text(value: TensorSpec | int | float | bool | None) -> str:
    return f"{value.dtype.value}{list(value.shape)}" if isinstance(value, TensorSpec) else repr(value)


def _time_text(time: PackagedTime | None) -> str:
    if time is None:
        return "none"
    interval = "" if time.low_us is None else f" ({time.low_us:,.4g} to {time.high_us:,.4g})"
    return f"{time.us:,.4g} us{interval}, {time.origin} ({_plain(time.source)})"


def _readme(manifest: Manifest) -> str:
    sizes = "\n".join(
        f"| {size.name} | {', '.join(map(_spec_text, size.inputs)) or 'none'} "
        f"| {', '.join(f'{weight.name} {_spec_text(weight.spec)}' for weight in size.weights) or 'none'} "
        f"| {', '.join(map(_spec_text, size.outputs))} |"
        for size in manifest.sizes
    )
    ratio = manifest.speedup
    speedup = "none" if ratio is None else f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g}), {ratio.origin}"
    names = ", ".join(f"w{at}" for at in range(len(manifest.sizes[0].weights)))
    inputs = ", ".join(f"x{at}" for at in range(len(manifest.sizes[0].inputs)))
    arguments = ", ".join(filter(None, [inputs, names]))
    return f"""# {manifest.name}

{_plain(manifest.task.title)}: a kernel in {"Triton" if manifest.language == "triton" else "CUDA C++"} as an operator of
torch, written with KernelForge for the task `{manifest.task.name}` of suite `{manifest.task.suite}`.

```python
import torch
from {manifest.module} import operator

with torch.no_grad():
    outputs = operator({arguments})  # inputs, then weights; always a tuple
model = operator.module()  # the task's Model, whose forward calls the operator
operator.fallbacks  # how often the reference ran instead, by reason
```

It works under `torch.compile` and `torch.export`. The kernel is compiled at its first call, and kept in the user's
cache folder. Shapes, dtypes, strides and devices other than those below, and calls that ask for a gradient, get the
reference, `{REFERENCE}`. Tensors of the CPU are computed by the emulated device `{manifest.emulated}`, slowly: to test.
On a GPU it needs the extra `{DISTRIBUTION}[gpu]`.

## Tested

| size | inputs | weights | outputs |
|---|---|---|---|
{sizes}

| | |
|---|---|
| verdict | OK, by evaluator {manifest.evaluator_version} on `{manifest.device}` ({manifest.gpu}, {manifest.arch}) |
| time at the full size | {_time_text(manifest.time)} |
| PyTorch, eager | {_time_text(manifest.reference_us)} |
| speedup | {speedup} |

`{EVALUATION}` is the whole evaluation. `pytest` repeats the comparison at the smaller sizes.

## Origin

| | |
|---|---|
| kernel and plan written by | {_plain(manifest.provenance.author)}, {manifest.provenance.written} |
| attempt | `{manifest.provenance.attempt}` |
| packaged by | KernelForge {manifest.provenance.kernelforge} |
| licence | {manifest.licence}; of the reference: {_plain(manifest.task.license) or "none stated"} |
"""


def _test(manifest: Manifest) -> str:
    def elements(size: PackagedSize) -> int:
        weights = [weight.spec for weight in size.weights]
        return sum(spec.numel for spec in (*size.inputs, *weights, *size.outputs) if isinstance(spec, TensorSpec))

    small = [size.name for size in manifest.sizes if size.name == "small" or elements(size) <= _MOST_TESTED]
    return f'''"""The operator against its reference, by the comparison that the evaluation made.

On a GPU of compute capability {manifest.arch}, else on the emulated device.
"""

import pytest
import torch
from {manifest.module} import operator

ON_GPU = torch.cuda.is_available() and operator.supports("cuda")


@pytest.mark.parametrize("size", {small!r})
def test_operator_equals_reference(size):
    before = operator.fallbacks.total()
    comparison = operator.check(size, seed=1, device="cuda:0" if ON_GPU else "cpu")
    assert comparison.ok, comparison.message
    assert operator.fallbacks.total() == before, operator.fallbacks
'''
