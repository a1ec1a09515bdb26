"""The memory and the launches of a CUDA host program, in the confined child that loaded it.

``host_runtime.h`` is the program's side. Device memory has addresses that the program cannot read or write; its content
goes with each launch to the parent, which runs the kernel on its device, and comes back changed.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, Final

from kernelforge.sandbox.channel import Channel
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.translation.pages import PROT_NONE, address_of, protect
from kernelforge.translation.replies import end_call, failure, unsupported

HOOKS: Final = "host_runtime"
"""Variable of the program that holds the functions here."""
MAX_DEVICE_BYTES: Final = 64 << 20
"""Most memory that a program may have at once."""

_POINTER = 16
_INVALID_VALUE, _INVALID_CONFIGURATION = 1, 9
_NUMBERS: Final[dict[int, tuple[str, Any]]] = {
    1: ("i32", ctypes.c_int32), 2: ("i64", ctypes.c_int64), 3: ("f32", ctypes.c_float), 4: ("f64", ctypes.c_double),
}  # fmt: skip
"""Types of arguments by the kind that the header gives."""
_ELEMENTS: Final = {1: "int32", 2: "int64", 3: "float32", 4: "float64"}
_DEVICE_SIDES: Final = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True)}
"""By the kind of a copy: whether target and origin are device memory."""

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_size_t, ctypes.c_int,
    ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip


class _Hooks(ctypes.Structure):
    _fields_ = (
        ("allocate", _ALLOCATE), ("release", _RELEASE), ("copy", _COPY), ("set", _SET), ("launch", _LAUNCH),
    )  # fmt: skip


class _Allocation:
    """Memory of the device: a range of addresses, and the content.

    Args:
        size: in bytes.
        visible: whether the program may use the addresses itself, as those of managed memory.
        poison: byte that it holds before it is written.
    """

    def __init__(self, size: int, poison: int, *, visible: bool) -> None:
        pages = (size // mmap.PAGESIZE + 1) * mmap.PAGESIZE
        self._area = mmap.mmap(-1, pages, flags=mmap.MAP_PRIVATE)
        self.address = address_of(self._area)
        self.size = size
        self.visible = visible
        if visible:
            self.content = memoryview(self._area)[:size]
        else:
            protect(self._area, 0, pages, PROT_NONE)
            self.content = memoryview(bytearray(size))
        self.content[:] = bytes([poison]) * size


class HostRuntime:
    """Serves one program's calls of the runtime.

    Args:
        library: the program.
        channel: to the parent, which runs kernels.
    """

    def __init__(self, library: ctypes.CDLL, channel: Channel) -> None:
        self._channel = channel
        self._poison = 0
        self._live: dict[int, _Allocation] = {}
        self._freed: list[_Allocation] = []
        self._hooks = _Hooks(
            _ALLOCATE(self._allocate), _RELEASE(self._release), _COPY(self._copy), _SET(self._set),
            _LAUNCH(self._launch),
        )  # fmt: skip
        ctypes.memmove(
            ctypes.addressof(_Hooks.in_dll(library, HOOKS)), ctypes.addressof(self._hooks), ctypes.sizeof(_Hooks)
        )

    def renew(self, poison: int) -> None:
        """Free everything before a call; new memory holds ``poison``."""
        self._poison = poison
        self._live.clear()
        self._freed.clear()

    def _find(self, address: int | None) -> tuple[_Allocation | None, int]:
        """The allocation that an address lies in, or one past its end, and the offset in it."""
        if address:
            for item in self._live.values():
                if item.address <= address <= item.address + item.size:
                    return item, address - item.address
        return None, 0

    def _allocate(self, size: int, visible: int) -> int:
        if sum(item.size for item in (*self._live.values(), *self._freed)) + size > MAX_DEVICE_BYTES:
            return 0
        item = _Allocation(size, self._poison, visible=bool(visible))
        self._live[item.address] = item
        return item.address

    def _release(self, address: int | None) -> int:
        if not address:
            return 0
        item = self._live.pop(address, None)
        if item is None:
            return _INVALID_VALUE
        self._freed.append(item)  # its addresses are not used again
        return 0

    def _copy(self, to: int | None, origin: int | None, size: int, kind: int) -> int:
        (target, first), (source, second) = self._find(to), self._find(origin)
        for item, expected in zip((target, source), _DEVICE_SIDES.get(kind, (None, None)), strict=True):
            if (item is None and expected) or (item is not None and expected is False and not item.visible):
                return _INVALID_VALUE
        for item, offset in ((target, first), (source, second)):
            if item is not None and offset + size > item.size:
                return _INVALID_VALUE
        data = ctypes.string_at(origin or 0, size) if source is None else bytes(source.content[second : second + size])
        if target is None:
            ctypes.memmove(to or 0, data, size)
        else:
            target.content[first : first + size] = data
        return 0

    def _set(self, address: int | None, byte: int, size: int) -> int:
        item, offset = self._find(address)
        if item is None or offset + size > item.size:
            return _INVALID_VALUE
        item.content[offset : offset + size] = bytes([byte & 0xFF]) * size
        return 0

    def _launch(self, name: bytes, sizes: Any, shared: int, count: int, kinds: Any, values: Any) -> int:
        kernel = name.decode(errors="replace")
        x, y, z, *block = sizes[:6]
        threads = block[0] * block[1] * block[2]
        if not (1 <= threads <= 1024 and block[2] <= 64 and 1 <= x < 1 << 31 and 1 <= y < 1 << 16 and 1 <= z < 1 << 16):
            return _INVALID_CONFIGURATION
        used: list[_Allocation] = []
        arguments: list[list[Any]] = []
        for at in range(count):
            kind, address = kinds[at], values[at]
            if kind < _POINTER:
                if kind not in _NUMBERS:
                    text = f"argument {at + 1} of `{kernel}` is no number of 4 or 8 bytes"
                    end_call(self._channel, unsupported(text))
                typed, reader = _NUMBERS[kind]
                value = reader.from_address(address).value
                arguments.append([typed, value.hex() if isinstance(value, float) else value])
                continue
            pointer = ctypes.c_void_p.from_address(address).value
            if pointer is None:
                arguments.append(["i64", 0])
                continue
            item, offset = self._find(pointer)
            if item is None:
                text = f"argument {at + 1} of the launch of `{kernel}` is no address of device memory"
                end_call(self._channel, failure("crash", text))
            if item not in used:
                used.append(item)
            arguments.append(["pointer", used.index(item), offset, _ELEMENTS.get(kind - _POINTER, "uint8")])
        request = {"kernel": kernel, "grid": [x, y, z], "block": block, "shared": shared, "arguments": arguments}
        self._channel.send({"ok": True, "launch": request}, [bytes(item.content) for item in used])
        self._store(used, self._channel.receive().blobs)
        return 0

    def _store(self, used: Sequence[_Allocation], results: Sequence[Blob]) -> None:
        for item, data in zip(used, results, strict=True):
            item.content[:] = memoryview(data).cast("B")
