"""Select the strongest jail tier that withstands an escape test on this machine, and start zygotes in it.

The self-test plants canaries (files, sockets, memory, processes of the parent), and a child tries to reach each of
them. It fails closed: a tier counts only if every attempt failed.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from kernelforge.errors import KernelForgeError, SandboxError
from kernelforge.sandbox.jail import Tier
from kernelforge.sandbox.policy import Limits, RolePolicy, role_policy
from kernelforge.sandbox.zygote import Child, ZygoteProcess

_ADVICE = (
    "Allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or "
    "kernel.apparmor_restrict_unprivileged_userns=0), run in a container with a seccomp profile that allows unshare, "
    "or use Linux 5.13 or newer with Landlock."
)
_LIMITS = Limits(wall_s=60, cpu_s=60, memory_bytes=256 << 20, tmp_bytes=1 << 20, file_bytes=1 << 20)
"""Far above the need of any attempt: on a busy machine, a timeout would count as a jail that does not work."""


@dataclass(frozen=True)
class EscapeAttempt:
    """One attempt to escape, and its outcome."""

    name: str
    closed: bool
    detail: str


@dataclass(frozen=True)
class TierReport:
    """Self-test of one tier: the attempts on its ``doors``, or ``error`` if the tier cannot be built."""

    tier: Tier
    layers: tuple[str, ...] = ()
    doors: tuple[EscapeAttempt, ...] = ()
    error: str = ""

    @property
    def works(self) -> bool:
        return not self.error and bool(self.doors) and all(door.closed for door in self.doors)

    @property
    def reason(self) -> str:
        """Reason of a tier that does not work; empty for one that does."""
        return self.error or "; ".join(f"{d.name}: {d.detail}" for d in self.doors if not d.closed)


@dataclass(frozen=True)
class JailReport:
    """The strongest tier that works here, with every tier that was tried, strongest first."""

    tier: Tier
    tried: tuple[TierReport, ...]

    @property
    def layers(self) -> tuple[str, ...]:
        return next((report.layers for report in self.tried if report.tier == self.tier), ())

    @property
    def detail(self) -> str:
        """Layers in force, or the reasons why no tier works."""
        if self.tier != "none":
            return ", ".join(self.layers)
        return "; ".join(f"{report.tier}: {report.reason}" for report in self.tried)

    @property
    def advice(self) -> str:
        """Advice for getting a stronger tier; empty for the strongest."""
        return "" if self.tier == "namespaces" else _ADVICE

    def usable_tier(self, allow_unconfined: bool) -> Tier:
        """The tier to use.

        Raises:
            SandboxError: none works, and ``allow_unconfined`` is false.
        """
        if self.tier == "none" and not allow_unconfined:
            raise SandboxError(
                f"untrusted code is refused: no jail works on this machine ({self.detail}). {_ADVICE} "
                "allow_unconfined runs without a jail; such results are marked and never rewarded."
            )
        return self.tier


_lock = threading.Lock()
_report: JailReport | None = None


def select_tier(*, repeat: bool = False) -> JailReport:
    """Find the strongest tier whose self-test passes; takes about 0.2 s, once per process unless ``repeat``."""
    global _report
    with _lock:
        if _report is None or repeat:
            tried: list[TierReport] = []
            for tier in ("namespaces", "landlock"):
                tried.append(run_self_test(tier))
                if tried[-1].works:
                    break
            _report = JailReport(tried[-1].tier if tried[-1].works else "none", tuple(tried))
        return _report


def run_self_test(tier: Tier, role: str = "probe") -> TierReport:
    """Try every escape from ``tier`` in a child with the grants of ``role``, which may allow some."""
    policy = replace(role_policy(role), module=role_policy("probe").module)
    try:
        zygote = ZygoteProcess(role, lambda: tier, policy=policy)
        with zygote, zygote.spawn(_LIMITS) as child, _canaries() as planted:
            doors = tuple(_try(child, policy, name, *attempt) for name, attempt in _attempts(planted, zygote).items())
            return TierReport(tier, child.layers, doors)
    except (KernelForgeError, OSError) as error:
        return TierReport(tier, error=str(error))


@cache
def gpu_tier() -> Tier | None:
    """The tier for processes that use a GPU, if it differs from the strongest; None if it does not.

    CUDA needs a ``/proc`` to name its threads in, and some containers allow namespaces and no private ``/proc``.

    Raises:
        SandboxError: no tier has a ``/proc`` here.
    """
    if select_tier().tier != "namespaces":
        return None
    policy = replace(role_policy("probe"), gpu=True)
    with ZygoteProcess("probe", lambda: "namespaces", policy=policy) as zygote, zygote.spawn(_LIMITS) as child:
        complete = "private proc" in child.layers
    if complete:
        return None
    landlock = run_self_test("landlock")
    if not landlock.works:
        raise SandboxError(
            "processes with a GPU need a /proc in which CUDA can name its threads. The kernel refuses to mount a "
            "private one, as it does where a container hides parts of /proc, and Landlock does not work "
            f"({landlock.reason}). "
            "Use a host kernel with Landlock (Linux 5.13 or newer), a container with its whole /proc "
            "(--security-opt systempaths=unconfined), or --device emulated."
        )
    return "landlock"


def _tier_for(policy: RolePolicy, allow_unconfined: bool) -> Tier:
    """The strongest tier that works for a role's processes."""
    strongest = select_tier().usable_tier(allow_unconfined)
    return (gpu_tier() if policy.gpu else None) or strongest


class Zygote(ZygoteProcess):
    """A zygote in the strongest jail tier whose self-test passes.

    Args:
        role: See :class:`~kernelforge.sandbox.zygote.ZygoteProcess`, also for the arguments not named here.
        tier: Force a jail tier.
        allow_unconfined: Run with resource limits alone if no tier works, rather than refuse.
    """

    def __init__(
        self,
        role: str,
        *,
        options: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        tier: Tier | None = None,
        allow_unconfined: bool = False,
        policy: RolePolicy | None = None,
    ) -> None:
        policy = policy or role_policy(role)
        find_tier = partial(_tier_for, policy, allow_unconfined) if tier is None else lambda: tier
        super().__init__(role, find_tier, options=options, environment=environment, policy=policy)


@dataclass(frozen=True)
class _Canaries:
    secret: str
    private_file: str
    public_file: str
    unix_path: str
    abstract: str
    tcp_port: int
    udp_port: int
    memory: Any


@contextmanager
def _canaries() -> Iterator[_Canaries]:
    secret = "canary-" + secrets.token_hex(16)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelforge-probe-"))
        os.chmod(folder, 0o755)
        paths = {}
        for name, mode in (("private", 0o600), ("public", 0o644)):
            paths[name] = os.path.join(folder, name)
            with open(paths[name], "w") as file:
                file.write(secret)
            os.chmod(paths[name], mode)
        abstract = "\0" + secret
        sockets = {}
        for name, family, kind, address in (
            ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            ("unix", socket.AF_UNIX, socket.SOCK_STREAM, os.path.join(folder, "socket")),
            ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, abstract),
        ):
            sock = sockets[name] = stack.enter_context(socket.socket(family, kind))
            sock.bind(address)
            if kind == socket.SOCK_STREAM:
                sock.listen()
        os.chmod(os.path.join(folder, "socket"), 0o777)
        yield _Canaries(
            secret=secret,
            private_file=paths["private"],
            public_file=paths["public"],
            unix_path=os.path.join(folder, "socket"),
            abstract=abstract,
            tcp_port=sockets["tcp"].getsockname()[1],
            udp_port=sockets["udp"].getsockname()[1],
            memory=ctypes.create_string_buffer(secret.encode()),
        )


def _attempts(planted: _Canaries, zygote: ZygoteProcess) -> dict[str, tuple[str, list[Any]]]:
    """Name of each attempt → its function in the worker, and arguments."""
    parent = os.getpid()
    others = [pid for pid in (parent, zygote.pid) if pid is not None]
    trials: dict[str, tuple[str, list[Any]]] = {
        "environment": ("environment", []),
        "descriptors": ("descriptors", []),
        "private file": ("read_file", [planted.private_file]),
        "world-readable file": ("read_file", [planted.public_file]),
        "/etc/passwd": ("read_file", ["/etc/passwd"]),
        "own environ": ("read_file", ["/proc/self/environ"]),
        "package source": ("read_file", [os.path.abspath(__file__)]),
        "write outside tmp": ("write_file", [planted.public_file]),
        "truncate a file": ("truncate_file", [planted.private_file]),
        "truncate by opening": ("open_truncating", [planted.private_file]),
        "truncate without access": ("open_truncating_without_access", [planted.private_file]),
        "mode of a file": ("change_mode", [planted.private_file]),
        "times of a file": ("change_times", [planted.private_file]),
        "owner of a file": ("change_owner", [planted.private_file]),
        "attributes of a file": ("change_attributes", [planted.private_file]),
        "tcp": ("tcp", [planted.tcp_port]),
        "udp": ("udp", [planted.udp_port]),
        "unix socket": ("unix", [planted.unix_path]),
        "abstract socket": ("unix", [planted.abstract]),
        "new process": ("fork", []),
        "new program": ("run_program", ["/bin/true"]),
        "gain privileges": ("gain_privileges", []),
        "parent's memory": ("peek_memory", [parent, ctypes.addressof(planted.memory), len(planted.secret)]),
    }
    for pid in others:
        who = "parent" if pid == parent else "zygote"
        trials[f"{who}'s environ"] = ("read_file", [f"/proc/{pid}/environ"])
        trials[f"{who}'s mem"] = ("read_file", [f"/proc/{pid}/mem"])
        trials[f"signal {who}"] = ("signal_process", [pid])
        trials[f"limits of {who}"] = ("limit_process", [pid])
        trials[f"processors of {who}"] = ("schedule_process", [pid])
        trials[f"priority of {who}"] = ("prioritise_process", [pid])
        trials[f"trace {who}"] = ("trace_process", [pid])
    return trials


def _try(child: Child, policy: RolePolicy, name: str, door: str, arguments: list[Any]) -> EscapeAttempt:
    reply = child.call({"door": door, "arguments": arguments}, timeout_s=_LIMITS.wall_s).data
    gave = str(reply["gave"])
    if door == "environment":
        allowed = {*policy.environment, "TMPDIR", "LC_CTYPE"}
        extra = {line.split("=", 1)[0] for line in gave.splitlines()} - allowed
        return EscapeAttempt(name, not extra, f"inherited {', '.join(sorted(extra))}" if extra else "empty")
    if door == "descriptors":
        extra_fds = gave.split()
        return EscapeAttempt(name, len(extra_fds) <= 1, f"open: {gave}")
    return EscapeAttempt(name, not reply["opened"], gave[:200])
