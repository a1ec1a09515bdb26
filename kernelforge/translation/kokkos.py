"""Kokkos with a device whose memory is apart from the host's, for candidates that g++ compiles.

Debian's Kokkos is built with the backend Serial alone. Kokkos lists its backends in two headers of its configuration;
the folder that is written here has others in their place, which add the device of ``kokkos_device.h``.
"""

from __future__ import annotations

import ctypes
import re
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from kernelforge.sandbox.channel import Channel
from kernelforge.translation.replies import end_call, failure

PACKAGE: Final = "libtrilinos-kokkos-dev"
"""Debian's, as a part of Trilinos."""
VERSION: Final = "3.4"
"""Debian 12's: the device uses what Kokkos does not promise to keep."""
LIBRARY: Final = "-ltrilinos_kokkoscore"
ENTRY_HEADER: Final = "kokkos_entry.h"
"""What a function of ours that calls a candidate's includes."""
FLAGS: Final = ("-DKOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_CUDA", "-DKOKKOS_ENABLE_DEBUG_BOUNDS_CHECK")
"""Of the compiler: the device is the default, and views check their indices."""
MISSING: Final = f"there is no Kokkos {VERSION}; install it, as with `apt-get install {PACKAGE}` on Debian 12"
"""What to say where there is none."""

_FOLDER: Final = Path("/usr/include/trilinos")
_DEVICE: Final = "kokkos_device.h"
_HEADERS: Final = {name: files(__package__).joinpath(name).read_text() for name in (_DEVICE, ENTRY_HEADER)}
"""Of this package, read before the jail closes."""
_BACKENDS: Final = {
    "KokkosCore_Config_FwdBackend.hpp": "#include <fwd/Kokkos_Fwd_SERIAL.hpp>\nnamespace Kokkos { class Cuda; }\n",
    "KokkosCore_Config_DeclareBackend.hpp": f"#include <decl/Kokkos_Declare_SERIAL.hpp>\n#include <{_DEVICE}>\n",
}
"""Kokkos's lists of backends, with the device in them."""


def header_folder() -> Path | None:
    """Folder of Kokkos's headers; None where there is none of the version that the device is written for."""
    try:
        configuration = (_FOLDER / "KokkosCore_config.h").read_text()
    except OSError:
        return None
    version = re.search(r"^#define KOKKOS_VERSION (\d+)(\d\d)\d\d$", configuration, re.MULTILINE)
    if version is None or f"{version[1]}.{int(version[2])}" != VERSION:
        return None
    return _FOLDER if (_FOLDER / "Kokkos_Core.hpp").is_file() else None


def write_device(into: Path) -> None:
    """Write the headers of the device; the compiler has to look in this folder before it does in Kokkos's."""
    for name, text in _HEADERS.items():
        (into / name).write_text(text)
    for name, text in _BACKENDS.items():
        (into / name).write_text(f"#pragma once\n{text}")


class KokkosRuntime:
    """Kokkos in the child that loaded a program: initialised once, for all calls.

    Args:
        library: the program.
        channel: to the parent, which hears of faults.
    """

    def __init__(self, library: ctypes.CDLL, channel: Channel) -> None:
        self._channel = channel
        self._poison = ctypes.c_ubyte.in_dll(library, "kernelforge_poison")
        self._report: Any = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self._fail)
        hook = ctypes.c_void_p.in_dll(library, "kernelforge_report")
        hook.value = ctypes.cast(self._report, ctypes.c_void_p).value
        library.kernelforge_start()

    def renew(self, poison: int) -> None:
        """Name the byte that memory of views holds before it is written."""
        self._poison.value = poison

    def _fail(self, text: bytes) -> None:
        """End the call with a fault of the program."""
        end_call(self._channel, failure("crash", text.decode(errors="replace")))
