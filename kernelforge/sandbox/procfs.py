"""``/proc`` for children that need one: CUDA names threads and reads driver settings there.

Where there is a process namespace, it is a private one: it shows the child and what the child started. Elsewhere the
child gets its own folder of the machine's ``/proc``, and the few files below.
"""

from __future__ import annotations

import os

from kernelforge.sandbox import syscalls

_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs")
_HIDDEN = (
    "kcore", "keys", "key-users", "kmsg", "kallsyms", "sched_debug", "timer_list", "slabinfo", "vmallocinfo",
    "kpagecount", "kpageflags", "kpagecgroup", "config.gz",
)  # fmt: skip
_MACHINE = ("driver", "devices", "cpuinfo", "meminfo", "stat", "version", "filesystems", "modules")


def mount_private(folder: str) -> bool:
    """Mount the ``/proc`` of this process's own namespace on ``folder``; false where the kernel refuses.

    A kernel refuses in a user namespace when the ``/proc`` outside is partly hidden, as in most containers.
    What belongs to the machine is read-only there or hidden, as the OCI runtime specification has it by default.
    """
    os.makedirs(folder, exist_ok=True)
    try:
        syscalls.mount("proc", folder, "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    except PermissionError:
        return False
    _make_no_devices(folder)
    for name in _READ_ONLY:
        if os.path.exists(f"{folder}/{name}"):
            syscalls.bind_read_only(f"{folder}/{name}", f"{folder}/{name}")
    for name in _HIDDEN:
        if os.path.exists(f"{folder}/{name}"):
            syscalls.bind_read_only("/dev/null", f"{folder}/{name}")  # without the right to open devices
    return True


def _make_no_devices(folder: str) -> None:
    """Tell the driver's library that it need not make device nodes: the nodes of other GPUs are missing on purpose.

    Source: the driver's README, "ModifyDeviceFiles"; NVIDIA's container toolkit sets it in the same way.
    """
    parameters = f"{folder}/driver/nvidia/params"
    if not os.path.exists(parameters):
        return
    with open(parameters) as file:
        text = file.read()
    changed = f"{os.path.dirname(folder)}/.driver-parameters"
    with open(changed, "w") as file:
        file.write(text.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"))
    syscalls.bind_read_only(changed, parameters)


def readable_paths() -> list[str]:
    """What a child without a private ``/proc`` may read of it: its own process, and facts of the machine."""
    return [path for path in ("/proc/self", *(f"/proc/{name}" for name in _MACHINE)) if os.path.exists(path)]
