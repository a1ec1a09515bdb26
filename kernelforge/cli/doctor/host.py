"""Host checks of ``kernelforge doctor``, each with advice."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from kernelforge.cli.doctor.checks import Check, probe_python
from kernelforge.cli.support.options import DEFAULT_RESULTS, JsonOption, ResultsOption, console
from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.utils.shell_hints import install_hint

if TYPE_CHECKING:
    from importlib.metadata import Distribution


LEAST_FREE_BYTES = 500_000_000
_COMMAND = "kernelforge.cli.main:main"
"""Entry point of this project's ``kernelforge`` command, under any distribution name."""


def doctor(results: ResultsOption = DEFAULT_RESULTS, as_json: JsonOption = False) -> None:
    """Check what this machine has, with advice for each problem. Leaves with 1 if runs can't work here."""
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
    "kernelforge.profiling.sass_executions",
    "kernelforge.evaluation.pool",
    "kernelforge.llm.spec",
    "kernelforge.profiling.model",
)
"""Modules that the checks import, imported before the threads start: two threads that import parts of one package in
different order can deadlock, which Python reports as an error."""


def examine(results: Path) -> list[Check]:
    """Run every check, in parallel."""
    from concurrent.futures import ThreadPoolExecutor

    probes: list[Callable[[], Check | list[Check]]] = [
        check_python, check_install, check_torch, check_nvrtc, check_emulator, check_jail, check_gpus, check_device,
        check_paths, check_keys, lambda: check_folder("results", results), check_cache,
    ]  # fmt: skip
    for name in _IMPORTED_FIRST:
        with suppress(ImportError):  # the check that needs it reports it
            import_module(name)
    with ThreadPoolExecutor(max_workers=len(probes)) as pool:
        return [check for outcomes in pool.map(_guarded, probes) for check in outcomes]


def _guarded(check: Callable[[], Check | list[Check]]) -> list[Check]:
    """Results of a check; a check that raises an error is a problem, and the others still run."""
    try:
        result = check()
        return result if isinstance(result, list) else [result]
    except Exception as error:  # also those that only a broken installation raises
        name = getattr(check, "__name__", "check").removeprefix("check_")
        advice = f"reinstall KernelForge: {install_hint(reinstall=True)}"
        return [Check(name, "problem", f"{type(error).__name__}: {error}", advice)]


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
    out.print("Ready: 'kernelforge run' works here." if healthy else "Not ready: fix the problems above.")


def check_python() -> Check:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check("python", "problem", detail, "use Python 3.11, 3.12 or 3.13")
    if platform.machine() != "x86_64":
        # GH200, GB200 and DGX Spark are arm64, too.
        return Check("python", "note", detail, "only x86-64 is supported and tested")
    return Check("python", "ok", detail)


def check_install() -> Check:
    """Check for another distribution with a package or a command of the same name."""
    from importlib.metadata import distributions

    own, others = [], []
    for installed in distributions():
        name = installed.metadata["Name"]
        label = f"{name} {installed.version}"
        commands = [point.value for point in installed.entry_points.select(group="console_scripts", name="kernelforge")]
        if _COMMAND in commands:
            own.append(label)
        elif commands or "kernelforge" in (installed.read_text("top_level.txt") or "").split() or _brings(installed):
            others.append(label)
    detail = ", ".join(dict.fromkeys(own)) or "not installed: run from its folder"
    if not others:
        return Check("install", "ok", detail)
    clash = ", ".join(dict.fromkeys(others))
    return Check(
        "install",
        "note",
        f"{detail}; {clash} has a package or a command named kernelforge too",
        "install the two in separate environments: 'kernelforge' may start or import either of them",
    )


def _brings(installed: Distribution) -> bool:
    """Whether a distribution's list of files has a module or package ``kernelforge``."""
    return re.search(r"^kernelforge(/|\.py,)", installed.read_text("RECORD") or "", re.MULTILINE) is not None


def check_torch() -> Check:
    probe = probe_python("import torch; print(torch.__version__)")
    if probe.ok:
        return Check("torch", "ok", f"{probe.text} (references run with it, in a process of their own)")
    return Check("torch", "problem", probe.text, probe.advice("pip install 'torch>=2.9,<2.14'; a CPU build is enough"))


def check_nvrtc() -> Check:
    from kernelforge.compile import installed_toolchain

    try:
        toolchain = installed_toolchain()
    except KernelForgeError as error:
        return Check("nvrtc", "problem", "not installed", str(error))
    probe = probe_python(
        "from kernelforge.compile import supported_architectures; known = supported_architectures(); "
        "print(f'sm_{known[0]} to sm_{known[-1]}')"
    )
    if probe.ok:
        detail = f"{toolchain.name}, with CUDA's headers, builds for {probe.text}; no CUDA toolkit is needed"
        return Check("nvrtc", "ok", detail)
    return Check("nvrtc", "problem", probe.text, probe.advice(f"reinstall it: {toolchain.install} --force-reinstall"))


def check_emulator() -> Check:
    probe = probe_python("import llvmlite, numba; print(f'llvmlite {llvmlite.__version__}, numba {numba.__version__}')")
    if probe.ok:
        return Check("emulator", "ok", probe.text)
    return Check("emulator", "problem", probe.text, probe.advice("pip install 'llvmlite>=0.46' 'numba>=0.63'"))


def check_jail() -> Check:
    from kernelforge.sandbox import select_tier

    report = select_tier()
    if report.tier == "none":
        why = "; ".join(f"{attempt.tier}: {attempt.reason}" for attempt in report.tried)
        return Check("jail", "problem", f"no jail works here ({why})", report.advice)
    status: Literal["ok", "note"] = "note" if report.advice else "ok"
    return Check("jail", status, f"{report.tier}: {', '.join(report.layers)}", report.advice)


def check_gpus() -> list[Check]:
    """Check GPUs and what using them needs."""
    from kernelforge.cli.doctor import gpu

    return gpu.check_gpus()


def check_device() -> Check:
    from kernelforge.devices import best_device, device_list

    return Check("device", "ok", f"{best_device()} is the default; there are {device_list()}")


def check_paths() -> list[Check]:
    """Take one kernel through every stage, on each GPU or on the emulated device."""
    from kernelforge.cli.doctor import path

    return path.check_paths()


def check_keys() -> Check:
    """Check whether API keys are set, and where, without their values."""
    from kernelforge.llm.spec import KEY_NAMES, key_source

    try:
        sources = {name: key_source(provider) for provider, name in KEY_NAMES.items()}
    except UsageError as error:
        return Check("keys", "note", str(error), "only models behind an API need keys")
    detail = ", ".join(f"{name} {f'set in {source}' if source else 'not set'}" for name, source in sources.items())
    if all(sources.values()):
        return Check("keys", "ok", detail)
    return Check(
        "keys",
        "ok",
        f"{detail}; the built-in agents need none",
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
        return Check(name, "note", room, "free some space: a run keeps every prompt, source and profile")
    return Check(name, "ok", room)
