"""From CUDA C++ or Triton text to a build: cache, confined compilation, diagnostics, policy gate."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from kernelforge.candidate.plan import LaunchSignature
from kernelforge.compile import policy_gate
from kernelforge.compile.cache import Artifact, BuildCache
from kernelforge.compile.cubin import CubinFacts, read_cubin
from kernelforge.compile.diagnostics import (
    MAX_MESSAGE_CHARACTERS,
    PtxasFacts,
    launch_bounds,
    parse_log,
    parse_ptxas,
    too_much_static_shared,
)
from kernelforge.compile.header_sets import SLOW_BUILD_S, Headers, HeaderSets
from kernelforge.compile.nvrtc import INVALID_OPTION
from kernelforge.compile.ptx_text import ptx_hash
from kernelforge.compile.source import CANDIDATE_FILE, check_expression, compose
from kernelforge.compile.toolchain import Toolchain, installed_toolchain, warm_up_options
from kernelforge.compile.triton_build import compiled_launch, error_in_source, installed_triton, triton_request
from kernelforge.compile.triton_source import TRITON_FILE
from kernelforge.compile.worker import MAX_PRECOMPILED_BYTES
from kernelforge.errors import CandidateError, ChildDied, ChildTimeout, DeviceError, SandboxError
from kernelforge.records import Build, CompiledLaunch, Diagnostic, KernelFacts, Language, content_hash, language_of
from kernelforge.sandbox import ExitReport, Frame, Limits, Zygote, role_policy
from kernelforge.sandbox.jail import Tier
from kernelforge.sandbox.shared_memory import Blob

COMPILE_LIMITS = Limits(
    wall_s=60.0,
    cpu_s=60.0,
    memory_bytes=3 << 30,
    tmp_bytes=64 << 20,
    processes=8,
    file_bytes=64 << 20,
    reply_bytes=128 << 20,
)
_FORMAT, _TRITON_FORMAT = "build/2", "triton-build/1"
_ROLES: Mapping[Language, str] = {"cuda": "compiler", "triton": "triton-compiler"}
_FILES: Mapping[Language, str] = {"cuda": CANDIDATE_FILE, "triton": TRITON_FILE}
_STATIC_SHARED_LIMIT_BYTES = 48 << 10


@dataclass(frozen=True)
class _Work:
    """One compilation."""

    language: Language
    request: dict[str, Any]
    names: tuple[str, ...]
    signatures: Sequence[LaunchSignature]
    facts: dict[str, Any]
    """Those of the build that are known before it: key, architecture, toolchain."""

    @property
    def file(self) -> str:
        return _FILES[self.language]


class Compiler:
    """Builds candidates in confined children of a warm zygote per language. Safe to use from several threads.

    Args:
        cache: a cache, or the folder of one; None keeps builds in memory.
        allow_unconfined: see :class:`~kernelforge.sandbox.Zygote`.
        limits: of one compilation.
        tier: force a jail tier.
        toolchain: compiler and headers; by default those of the installed packages.
        slow_build_s: headers of builds that take longer are precompiled when they have been read three times.
    """

    def __init__(
        self,
        cache: BuildCache | Path | None,
        *,
        allow_unconfined: bool = False,
        limits: Limits = COMPILE_LIMITS,
        tier: Tier | None = None,
        toolchain: Toolchain | None = None,
        slow_build_s: float = SLOW_BUILD_S,
    ) -> None:
        self.cache = cache if isinstance(cache, BuildCache) else BuildCache(cache)
        self.limits = limits
        self._allow_unconfined = allow_unconfined
        self._tier = tier
        self._toolchain = toolchain
        self._zygotes: dict[Language, Zygote] = {}
        self._lock = threading.Lock()
        self.header_sets = HeaderSets(self._precompiled, slow_build_s=slow_build_s)
        self._slots = threading.BoundedSemaphore(max(2, os.cpu_count() or 2))

    @property
    def toolchain(self) -> Toolchain:
        """Compiler and headers.

        Raises:
            DeviceError: a wheel is missing.
        """
        return self._toolchain or installed_toolchain()

    def start(self) -> None:
        """Warm CUDA's zygote up now rather than at the first build."""
        self._running_zygote("cuda").start()

    def build(
        self,
        source: str,
        expressions: Sequence[str],
        *,
        arch: str = "sm_90a",
        signatures: Sequence[LaunchSignature] = (),
        constants: Mapping[str, int] | None = None,
        scored: bool = True,
    ) -> Artifact | Build:
        """Compile ``source`` for the kernels the plan launches.

        Args:
            source: device code in CUDA C++ or Triton.
            expressions: kernels as the plan names them: ``softmax`` or ``softmax<float, 256>``.
            arch: real architecture.
            signatures: argument types the plan passes; each is checked against the kernel's own.
            constants: integers the source sees as ``constexpr int`` after its last leading ``#include``; in Triton as
                ``tl.constexpr``.
            scored: refuse what may only be used while debugging (``printf``, ``assert``).

        Returns:
            An artifact, or the record of a build that failed, was refused, or hit a limit.

        Raises:
            CandidateError: an expression, a constant or an argument type is malformed.
            DeviceError: NVRTC is missing, failed, or builds nothing for ``arch``.
            SandboxError: the jail cannot be built.
        """
        names = tuple(dict.fromkeys([*expressions, *(signature.expression for signature in signatures)]))
        if not names:
            raise CandidateError("the plan launches no kernel")
        if "\0" in source:
            raise CandidateError("the source holds a NUL character")
        if language_of(source) == "triton":
            work = self._triton_work(source, names, arch, signatures, constants or {})
        else:
            work = self._cuda_work(source, names, arch, signatures, constants or {})
        if isinstance(work, Build):
            return work
        key = work.facts["key"]

        compiled = self.cache.get(key)
        fresh = compiled is None
        if compiled is None:
            with self.cache.exclusive(key):
                compiled = self.cache.get(key)
                fresh = compiled is None
                if compiled is None:
                    compiled = self._compile(work)
                    if compiled.build.limit is None:
                        self.cache.put(key, compiled)
        return _judge(compiled, source, scored, fresh)

    def interrupt(self) -> None:
        """End every compilation that another thread waits for; it raises :class:`~kernelforge.errors.ChildDied`."""
        with self._lock:
            zygotes = list(self._zygotes.values())
        for zygote in zygotes:
            zygote.interrupt()

    def close(self) -> None:
        """End the zygotes."""
        with self._lock:
            zygotes, self._zygotes = list(self._zygotes.values()), {}

        def interrupt() -> None:
            for zygote in zygotes:
                zygote.interrupt()

        self.header_sets.close(interrupt)
        for zygote in zygotes:
            zygote.close()

    def __enter__(self) -> Compiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cuda_work(
        self,
        source: str,
        names: tuple[str, ...],
        arch: str,
        signatures: Sequence[LaunchSignature],
        constants: Mapping[str, int],
    ) -> _Work:
        for name in names:
            check_expression(name)
        text = compose(source, constants, signatures)
        options = self.toolchain.options(arch)
        stable = [option for option in options if not option.startswith("-I")]
        key = content_hash(_FORMAT, text, stable, list(names), self.toolchain.digest, self.toolchain.name)
        request = {"source": text, "name": CANDIDATE_FILE, "options": list(options), "expressions": list(names)}
        facts = {"key": key, "arch": arch, "toolchain": self.toolchain.name}
        return _Work("cuda", request, names, signatures, facts)

    def _triton_work(
        self,
        source: str,
        names: tuple[str, ...],
        arch: str,
        signatures: Sequence[LaunchSignature],
        constants: Mapping[str, int],
    ) -> _Work | Build:
        toolchain = installed_triton() or "triton, not installed"
        request, mistakes = triton_request(source, signatures, constants, arch)
        facts = {"key": content_hash(_TRITON_FORMAT, request, toolchain), "arch": arch, "toolchain": toolchain}
        if mistakes:
            return Build(ok=False, diagnostics=tuple(mistakes), seconds=0.0, **facts)
        return _Work("triton", request, names, signatures, facts)

    def _running_zygote(self, language: Language) -> Zygote:
        with self._lock:
            if language not in self._zygotes:
                role = _ROLES[language]
                policy = role_policy(role)
                options: dict[str, Any] = {"arch": "sm_90a"}
                if language == "cuda":
                    options = warm_up_options(self.toolchain)
                    includes = self.toolchain.includes
                    granted = [path for path in policy.mounts if any(i.is_relative_to(path) for i in includes)]
                    # Another toolchain's headers are out of reach: a build's key does not name their versions.
                    policy = replace(policy, mounts=(*granted, str(self.header_sets.folder)))
                self._zygotes[language] = Zygote(
                    role,
                    options=options,
                    policy=policy,
                    tier=self._tier,
                    allow_unconfined=self._allow_unconfined,
                )
            return self._zygotes[language]

    def _compile(self, work: _Work) -> Artifact:
        """One compilation in a new child; the build may have failed or hit a limit."""
        frame = self._ask_with_headers(work) if work.language == "cuda" else self._ask(work, work.request)
        if isinstance(frame, Artifact):
            return frame
        try:
            return self._read_triton_reply(frame, work) if work.language == "triton" else self._read_reply(frame, work)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise SandboxError(f"the compiler child sent a reply that cannot be read: {error!r}") from error

    def _ask_with_headers(self, work: _Work) -> Frame | Artifact:
        """The reply to a compilation in CUDA C++, which reads a precompiled header if there is one."""
        headers, source = Headers.of(work.request["source"], work.facts["arch"])
        file = self.header_sets.file(headers, self._running_zygote("cuda").pid)
        if file is not None:
            options = [*work.request["options"], f"--use-pch={file}"]
            frame = self._ask(work, work.request | {"source": source, "options": options})
            if isinstance(frame, Artifact):
                return frame
            was_read = f'"{CANDIDATE_FILE}": using precompiled header file "{file}"\n'
            log = str(frame.data.get("log"))
            if was_read in log:
                frame.data["log"] = log.replace(was_read, "")
                return frame
            # The zygote died, or the file was removed: the child could not read it.
        frame = self._ask(work, work.request)
        if isinstance(frame, Frame) and frame.data.get("status") == 0:
            self.header_sets.count(headers, float(frame.data["seconds"]))
        return frame

    def _ask(
        self, work: _Work, request: dict[str, Any], blobs: Sequence[bytes] = (), *, retried: bool = False
    ) -> Frame | Artifact:
        """The reply of a new child, or the failed build that its end, or a limit that it met, stands for."""
        with self._slots, self._running_zygote(work.language).spawn(self.limits) as child:
            try:
                frame = child.call(request, blobs)
                if "limit" in frame.data:
                    return _limited(work, "memory" if frame.data["limit"] == "memory" else "output", self.limits)
                return frame
            except ChildTimeout:
                return _limited(work, "time", self.limits)
            except ChildDied as error:
                death = child.death()
                if retried or death is None or not death.may_be_foreign or self._starved(death):
                    return self._after_death(work, death, error)
            except SandboxError:
                return _limited(work, "output", self.limits)
        return self._ask(work, request, blobs, retried=True)

    def _precompiled(self, headers: Headers) -> tuple[Blob, int | None]:
        """The precompiled header of some headers, made in a child that is given nothing else, and its zygote.

        Raises:
            SandboxError: it could not be made.
        """
        options = self.toolchain.options(headers.arch)
        request = {"source": headers.text, "name": CANDIDATE_FILE, "options": list(options), "expressions": []}
        limits = replace(
            self.limits,
            tmp_bytes=MAX_PRECOMPILED_BYTES,
            file_bytes=MAX_PRECOMPILED_BYTES,
            reply_bytes=MAX_PRECOMPILED_BYTES,
        )
        zygote = self._running_zygote("cuda")
        with self._slots, zygote.spawn(limits) as child:
            if self.header_sets.closed:
                raise SandboxError("the compiler is closed")
            frame = child.call(request | {"precompile": True})
            if "error" in frame.data:
                raise SandboxError(f"the headers could not be precompiled: {frame.data['error']}")
            if len(frame.blobs) != 1:
                raise SandboxError("the headers could not be precompiled: a reply without a file")
            return frame.blobs[0], zygote.pid

    def _read_triton_reply(self, lowered: Frame, work: _Work) -> Artifact:
        """The build of PTX that comes from a child that ran a candidate's Python: it may hold anything.

        Another child, which has seen none of it, makes the cubin, so that this is the cubin of this PTX.
        """
        if "error" in lowered.data:
            return _failed_triton([lowered], work)
        (ptx,) = (bytes(blob) for blob in lowered.blobs)
        assembled = self._ask(work, {"arch": work.facts["arch"]}, [ptx])
        if isinstance(assembled, Artifact):
            return assembled
        if "error" in assembled.data:
            return _failed_triton([lowered, assembled], work)
        reply = lowered.data
        (cubin,) = (bytes(blob) for blob in assembled.blobs)
        launches, too_large = [], []
        for expression, raw in zip(work.names, reply["launches"], strict=True):
            launch, error = compiled_launch(raw, expression)
            launches.append(launch)
            too_large += [] if error is None else [error]
        symbols = [str(name) for name in reply["lowered"]]
        kernels = _kernels(
            work.names, symbols, parse_ptxas(str(assembled.data["log"])), ptx, read_cubin(cubin), launches
        )
        build = Build(
            ok=not too_large,
            ptx_hash=ptx_hash(ptx),
            kernels=kernels,
            diagnostics=tuple(too_large),
            seconds=_seconds([lowered, assembled]),
            **work.facts,
        )
        return Artifact(build, ptx, cubin)

    def _read_reply(self, frame: Frame, work: _Work) -> Artifact:
        """The build in a reply. A candidate may control the child, so the reply is not trusted."""
        reply, names, signatures, facts = frame.data, work.names, work.signatures, work.facts
        log, seconds = str(reply["log"]), max(0.0, float(reply["seconds"]))
        if reply["status"] == INVALID_OPTION:
            raise DeviceError(self._refusal(facts["arch"], log))
        succeeded = reply["status"] == 0 and len(frame.blobs) == 2
        diagnostics = parse_log(
            log,
            succeeded=succeeded,
            signatures=signatures,
            paths=self.toolchain.shown_paths(),
            missing_headers=self.toolchain.missing_headers(),
        )
        if not succeeded:
            if not any(diagnostic.severity == "error" for diagnostic in diagnostics):
                message = f"the compiler failed without a message: {log[:400]}"
                diagnostics = (*diagnostics, Diagnostic(file=CANDIDATE_FILE, severity="error", message=message))
            return Artifact(Build(ok=False, diagnostics=diagnostics, seconds=seconds, **facts), b"", b"")
        ptx, cubin = (bytes(blob) for blob in frame.blobs)
        kernels = _kernels(names, [str(name) for name in reply["lowered"]], parse_ptxas(log), ptx, read_cubin(cubin))
        too_large = [
            Diagnostic(
                file=CANDIDATE_FILE,
                severity="error",
                message=too_much_static_shared(
                    kernel.expression, kernel.static_shared_bytes, _STATIC_SHARED_LIMIT_BYTES
                ),
            )
            for kernel in kernels
            if kernel.static_shared_bytes > _STATIC_SHARED_LIMIT_BYTES
        ]
        build = Build(
            ok=not too_large,
            ptx_hash=ptx_hash(ptx),
            kernels=kernels,
            diagnostics=(*too_large, *diagnostics),
            seconds=seconds,
            **facts,
        )
        return Artifact(build, ptx, cubin)

    def _refusal(self, arch: str, log: str) -> str:
        """Message for options that NVRTC refuses, for which no candidate is to blame."""
        number = re.fullmatch(r"(?:sm|compute)_(\d+)[af]?", arch)
        if number is None or int(number[1]) not in self.toolchain.architectures():
            return self.toolchain.refusal(arch)
        return f"{self.toolchain.name} refuses the options of a build for {arch}: {log[:400]}"

    def _after_death(self, work: _Work, death: ExitReport | None, error: ChildDied) -> Artifact:
        if death is None or death.cause in ("killed", "disk"):
            raise error
        if death.cause == "cpu":
            return _limited(work, "time", self.limits)
        # An allocation that failed inside NVRTC; Triton's compiler also aborts where one of its assertions fails.
        aborted = death.signal == 6 and work.language == "cuda"
        if death.cause == "memory" or aborted or (death.cause == "signal" and self._starved(death)):
            return _limited(work, "memory", self.limits)
        if death.cause != "signal":
            raise error
        message = f"the compiler crashed on this source ({death}); simplify it"
        crash = Diagnostic(file=work.file, severity="error", message=message)
        return Artifact(Build(ok=False, diagnostics=(crash,), seconds=death.cpu_s or 0.0, **work.facts), b"", b"")

    def _starved(self, death: ExitReport) -> bool:
        """Whether a child had used much of its memory limit."""
        return (death.max_rss_bytes or 0) > self.limits.memory_bytes // 2


def _seconds(frames: Sequence[Frame]) -> float:
    return sum(max(0.0, float(frame.data["seconds"])) for frame in frames)


def _failed_triton(frames: Sequence[Frame], work: _Work) -> Artifact:
    """The build whose last child sent an error."""
    reply = frames[-1].data
    line = reply["line"] if isinstance(reply["line"], int) and reply["line"] > 0 else None
    error = error_in_source(str(reply["error"])[:MAX_MESSAGE_CHARACTERS], line)
    return Artifact(Build(ok=False, diagnostics=(error,), seconds=_seconds(frames), **work.facts), b"", b"")


def _limited(work: _Work, limit: Literal["time", "memory", "output"], limits: Limits) -> Artifact:
    allowed = {
        "time": f"{limits.wall_s:g} s",
        "memory": f"{limits.memory_bytes >> 20} MiB of memory",
        "output": f"{limits.reply_bytes >> 20} MiB of code",
    }[limit]
    message = f"the compilation took more than the allowed {allowed} and was stopped"
    diagnostic = Diagnostic(file=work.file, severity="error", message=message)
    seconds = limits.wall_s if limit == "time" else 0.0
    return Artifact(Build(ok=False, limit=limit, diagnostics=(diagnostic,), seconds=seconds, **work.facts), b"", b"")


def _kernels(
    names: Sequence[str],
    lowered: Sequence[str],
    ptxas: Mapping[str, PtxasFacts],
    ptx: bytes,
    cubin: CubinFacts,
    launches: Sequence[CompiledLaunch] = (),
) -> tuple[KernelFacts, ...]:
    """Facts of the launched kernels. Registers come from the cubin: a candidate can write into the log.

    Raises:
        KeyError: a kernel that is an entry point has no figures.
    """
    kernels = []
    bounds = launch_bounds(ptx.decode("ascii", "replace"))
    for number, (expression, symbol) in enumerate(zip(names, lowered, strict=True)):
        is_entry = symbol in cubin.entries
        facts = ptxas[symbol] if is_entry else PtxasFacts(0, 0, 0, 0)  # the gate refuses a kernel that is no entry
        kernels.append(
            KernelFacts(
                expression=expression,
                symbol=symbol,
                registers_per_thread=cubin.registers[symbol] if is_entry else 0,
                static_shared_bytes=facts.static_shared_bytes,
                spill_store_bytes=facts.spill_store_bytes,
                spill_load_bytes=facts.spill_load_bytes,
                stack_frame_bytes=facts.stack_bytes,
                max_threads_per_block=bounds.get(symbol),
                launch=launches[number] if launches else None,
            )
        )
    return tuple(kernels)


def _judge(compiled: Artifact, source: str, scored: bool, fresh: bool) -> Artifact | Build:
    """Apply the policy gate to a compilation, fresh or from the cache."""
    update: dict[str, Any] = {} if fresh else {"cached": True, "seconds": 0.0}
    if not compiled.build.ok:
        return compiled.build.model_copy(update=update)
    launched = [(kernel.expression, kernel.symbol) for kernel in compiled.build.kernels]
    judged = policy_gate.check(compiled.ptx, compiled.cubin, source, launched, scored=scored)
    update["diagnostics"] = (*compiled.build.diagnostics, *judged.notes)
    if judged.refused is not None:
        return compiled.build.model_copy(update={**update, "ok": False, "refused": judged.refused})
    return Artifact(compiled.build.model_copy(update=update), compiled.ptx, compiled.cubin)
