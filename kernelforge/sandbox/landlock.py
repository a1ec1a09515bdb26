"""Landlock: irrevocably restricts a process's files, TCP and signals. Needs no privilege.

Constants are those of ``include/uapi/linux/landlock.h``.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

from kernelforge.sandbox import syscalls

_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_FS_IOCTL_DEV = 1 << 15
_NET_ALL = 3
_SCOPE_ALL = 3
MOVES_BETWEEN_FOLDERS = 2
"""First version that can allow a file to be moved to another folder."""
CLOSES_TRUNCATION = 3
"""First version that keeps a process from truncating files."""
SCOPES_SIGNALS = 6
"""First version that keeps a process from signalling others."""
_READ = _FS_READ_FILE | _FS_READ_DIR | _FS_EXECUTE


def abi() -> int:
    """Version of the kernel's Landlock; 0 if there is none."""
    try:
        return syscalls.syscall("landlock", syscalls.NR_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def restrict(readable: Sequence[str], writable: Sequence[str], drivable: Sequence[str] = ()) -> int:
    """Confine the calling process (which must have one thread) to reading and writing under the given folders.

    Devices in ``drivable`` may be read, written and driven by ``ioctl``; no other device takes its ``ioctl`` calls.
    Returns the ABI in force, 0 if the kernel has no Landlock. ``no_new_privs`` must be set already.

    Raises:
        OSError: the kernel has Landlock and refused.
    """
    version = abi()
    if version == 0:
        return 0
    handled = _FS_BY_ABI[max(abi_version for abi_version in _FS_BY_ABI if abi_version <= version)]
    net = _NET_ALL if version >= 4 else 0
    scope = _SCOPE_ALL if version >= 6 else 0
    attributes = struct.pack("<QQQ", handled, net, scope)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = syscalls.syscall(
        "landlock_create_ruleset", syscalls.NR_LANDLOCK_CREATE, ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)), ctypes.c_uint(0),
    )  # fmt: skip
    try:
        write = handled & ~_FS_EXECUTE
        for access, folders in ((_READ, readable), (write & ~_FS_IOCTL_DEV, writable), (write, drivable)):
            for folder in folders:
                _allow(ruleset, folder, access & handled)
        syscalls.syscall(
            "landlock_restrict_self", syscalls.NR_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)
        )
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, folder: str, access: int) -> None:
    path = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(folder):
            access &= _FS_READ_FILE | _FS_WRITE_FILE | _FS_EXECUTE | _FS_IOCTL_DEV
        rule = struct.pack("<Qi", access, path)
        syscalls.syscall(
            "landlock_add_rule", syscalls.NR_LANDLOCK_ADD, ctypes.c_int(ruleset), ctypes.c_int(1),
            ctypes.c_char_p(rule), ctypes.c_uint(0),
        )  # fmt: skip
    finally:
        os.close(path)
