"""Host checks of ``kernelforge doctor``, each with advice."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from kernelforge.cli.support.output import DEFAULT_RESULTS, JsonOption, ResultsOption, console
from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.utils.shell_hints import install_hint

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from kernelforge.cli.doctor.path import Stage

LEAST_FREE_BYTES = 500_000_000
_COMMAND = "kernelforge.cli.main:main"
"""What our command ``kernelforge`` calls, whatever the distribution is called."""
_PROBE_S = 120.0


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. A ``problem`` keeps the main job from running here; a ``note`` does not."""

    name: str
    status: Literal["ok", "note", "problem"]
    detail: str
    advice: str = ""
    """What to do about it; empty when nothing needs doing."""
    stages: tuple[Stage, ...] = ()
    """Of a path: what became of each."""


def doctor(results: ResultsOption = DEFAULT_RESULTS, as_json: JsonOption = False) -> None:
    """Check what this machine has and say what to do about each lack. Leaves with 1 if runs can't work here."""
    checks = examine(results)
    healthy = all(check.status != "problem" for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": healthy, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks, healthy)
    raise typer.Exit(0 if healthy else 1)


_IMPORTED_FIRST = (
    "kernelforge.cli.doctor.gpu",
    "kernelforge.cli.doctor.path",
    "kernelforge.devices.cuda.device",
    "kernelforge.devices.cuda.discovery",
    "kernelforge.devices.cuda.tools.ncu",
    "kernelforge.devices.emulated.device",
    "kernelforge.evaluation.stages.full_size",
    "kernelforge.evaluation.timing.candidate_timer",
    "kernelforge.evaluation.pool",
    "kernelforge.llm.spec",
    "kernelforge.profiling.model",
)
"""What checks import, with all that it imports. A package imports its own modules: two threads that begin at different
ends of one would wait for each other, and Python ends that with an error."""


def examine(results: Path) -> list[Check]:
    """Every check, the slow ones side by side."""
    from concurrent.futures import ThreadPoolExecutor

    probes: list[Callable[[], Check | list[Check]]] = [
        check_python, check_install, check_torch, check_nvrtc, check_emulator, check_jail, check_gpus, check_device,
        check_paths, check_keys, lambda: check_folder("results", results), check_cache,
    ]  # fmt: skip
    for name in _IMPORTED_FIRST:
        with suppress(ImportError):  # the check that needs it says so
            import_module(name)
    with ThreadPoolExecutor(max_workers=len(probes)) as pool:
        return [check for found in pool.map(_guarded, probes) for check in found]


def _guarded(select_tier: Callable[[], Check | list[Check]]) -> list[Check]:
    """A check whose own tools are missing is a problem with a name, not the end of the examination."""
    try:
        found = select_tier()
        return found if isinstance(found, list) else [found]
    except (KernelForgeError, ImportError, OSError) as error:
        name = getattr(select_tier, "__name__", "check").removeprefix("check_")
        advice = f"reinstall KernelForge: {install_hint(reinstall=True)}"
        return [Check(name, "problem", f"{error}", advice)]


def _print(checks: list[Check], healthy: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from kernelforge.report.formatting import printable

    styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
    body = Table.grid(padding=(0, 2, 0, 0))
    for check in checks:
        words = printable(check.detail) + (f"\n→ {printable(check.advice)}" if check.advice else "")
        body.add_row(
            Text(check.name, style="bold"), Text(check.status, style=styles[check.status]), Text(words, overflow="fold")
        )
    out = console()
    out.print(body)
    out.print()
    out.print("Ready: 'kernelforge run' works here." if healthy else "Not ready: mend the problems above.")


def check_python() -> Check:
    told = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check("python", "problem", told, "use Python 3.11, 3.12 or 3.13")
    if platform.machine() != "x86_64":
        # GH200, GB200 and DGX Spark are arm64, too.
        return Check("python", "note", told, "only x86-64 is supported: nothing was ever tried on this processor")
    return Check("python", "ok", told)


def check_install() -> Check:
    """Whether another distribution brings a package or a command of the same name: which of the two runs is chance."""
    from importlib.metadata import distributions

    ours, others = [], []
    for found in distributions():
        name = found.metadata["Name"]
        told = f"{name} {found.version}"
        commands = [point.value for point in found.entry_points.select(group="console_scripts", name="kernelforge")]
        if _COMMAND in commands:
            ours.append(told)
        elif commands or "kernelforge" in (found.read_text("top_level.txt") or "").split() or _brings(found):
            others.append(told)
    told = ", ".join(dict.fromkeys(ours)) or "not installed: run from its folder"
    if not others:
        return Check("install", "ok", told)
    clash = ", ".join(dict.fromkeys(others))
    return Check(
        "install",
        "note",
        f"{told}; {clash} has a package or a command named kernelforge too",
        "install the two in separate environments: which of them 'kernelforge' starts or imports is chance",
    )


def _brings(found: Distribution) -> bool:
    """Whether a distribution installs a module or package ``kernelforge``: it is in the list of its files."""
    return re.search(r"^kernelforge(/|\.py,)", found.read_text("RECORD") or "", re.MULTILINE) is not None


def check_torch() -> Check:
    found = probe_python("import torch; print(torch.__version__)")
    if found.ok:
        return Check("torch", "ok", f"{found.text} (references run with it, in a process of their own)")
    return Check("torch", "problem", found.text, found.advice("pip install 'torch>=2.9,<2.14'; a CPU build is enough"))


def check_nvrtc() -> Check:
    from kernelforge.compile import installed_toolchain

    try:
        known = installed_toolchain()
    except KernelForgeError as error:
        return Check("nvrtc", "problem", "not installed", str(error))
    found = probe_python(
        "from kernelforge.compile import supported_architectures; known = supported_architectures(); "
        "print(f'sm_{known[0]} to sm_{known[-1]}')"
    )
    if found.ok:
        told = f"{known.name}, with CUDA's headers, builds for {found.text}; no CUDA toolkit is needed"
        return Check("nvrtc", "ok", told)
    return Check("nvrtc", "problem", found.text, found.advice(f"reinstall it: {known.install} --force-reinstall"))


def check_emulator() -> Check:
    found = probe_python("import llvmlite, numba; print(f'llvmlite {llvmlite.__version__}, numba {numba.__version__}')")
    if found.ok:
        return Check("emulator", "ok", found.text)
    return Check("emulator", "problem", found.text, found.advice("pip install 'llvmlite>=0.46' 'numba>=0.63'"))


def check_jail() -> Check:
    from kernelforge.sandbox import select_tier

    report = select_tier()
    if report.tier == "none":
        why = "; ".join(f"{one.tier}: {one.reason}" for one in report.tried)
        return Check("jail", "problem", f"no jail works here ({why})", report.advice)
    status: Literal["ok", "note"] = "note" if report.advice else "ok"
    return Check("jail", status, f"{report.tier}: {', '.join(report.layers)}", report.advice)


def check_gpus() -> list[Check]:
    """GPUs, and what using them takes."""
    from kernelforge.cli.doctor import gpu

    return gpu.check_gpus()


def check_device() -> Check:
    from kernelforge.devices import best_device, device_list

    return Check("device", "ok", f"{best_device()} is the default; there are {device_list()}")


def check_paths() -> list[Check]:
    """One kernel through every stage, on each GPU or on the emulated device."""
    from kernelforge.cli.doctor import path

    return path.check_paths()


def check_keys() -> Check:
    """Whether keys are set, and where; their values are not shown."""
    from kernelforge.llm.spec import KEY_NAMES, key_source

    try:
        found = {name: key_source(provider) for provider, name in KEY_NAMES.items()}
    except UsageError as error:
        return Check("keys", "note", str(error), "only models behind an API need keys")
    said = ", ".join(f"{name} {f'set in {place}' if place else 'not set'}" for name, place in found.items())
    if all(found.values()):
        return Check("keys", "ok", said)
    return Check(
        "keys",
        "ok",
        f"{said}; the built-in agents need none",
        "for a model, set its provider's key in the environment or in .env in the working directory",
    )


def check_cache() -> Check:
    from platformdirs import user_cache_path

    return check_folder("cache", user_cache_path("kernelforge"))


def check_folder(name: str, folder: Path) -> Check:
    """Whether a folder, or the nearest one above it that exists, can be written to and has room."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    try:
        with tempfile.NamedTemporaryFile(dir=there):
            pass
    except OSError as error:
        how = "choose another with --results" if name == "results" else "make it writable, or set XDG_CACHE_HOME"
        return Check(name, "problem", f"{folder} is not writable: {error.strerror}", how)
    free = shutil.disk_usage(there).free
    room = f"{folder}, {free / 1e9:.1f} GB free"
    if free < LEAST_FREE_BYTES:
        return Check(name, "note", room, "make some room: a run keeps every prompt, source and profile")
    return Check(name, "ok", room)


@dataclass(frozen=True)
class Found:
    """What a probe printed, or the last line of what went wrong."""

    ok: bool
    text: str
    late: bool = False
    """There was no answer in time: nothing is known to be wrong with what was probed."""

    def advice(self, mend: str) -> str:
        """What to do, where ``mend`` is the way out of anything but lateness."""
        return LATE if self.late else mend


LATE = (
    "nothing need be missing: try again when the machine has less to do, and without libfaketime or the like, "
    "which makes limits shorter by as much as it speeds the clock up"
)


def probe_python(script: str, *, timeout_s: float = _PROBE_S) -> Found:
    """Run a line of Python in another process of this environment."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired:
        return Found(False, f"no answer in {timeout_s:g} s", late=True)
    if done.returncode == 0:
        return Found(True, done.stdout.strip())
    lines = done.stderr.strip().splitlines()
    return Found(False, lines[-1] if lines else f"it ended with code {done.returncode}")
