"""A memory of their own for regions of OpenMP's target and OpenACC, in the child that loaded the program.

gcc compiles a region as a function of one array: an address for each object that the region uses. Without an offload
compiler the function is the host's; libgomp would call it with the host's addresses, and wrong data clauses would go
unnoticed. ``offload_runtime.c`` takes libgomp's place, and the functions here decide as libgomp does for a device:
which object is present, what is copied when, which address a region gets. Copies lie between unreadable pages, hold
poison before they are written, and can be used in regions alone; within a region, arguments of the program and its heap
cannot be read.

Regions run on the host's threads, when they are reached: ``nowait`` and ``async`` are synchronous.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, NoReturn

from kernelforge.sandbox.channel import Channel
from kernelforge.translation.pages import PROT_NONE, PROT_READ, PROT_WRITE, GuardedArray, protect_pages
from kernelforge.translation.replies import end_call, failure, unsupported

Offload = Literal["openmp", "openacc", "thrust", "kokkos"]
"""What runs in a memory of its own: regions of directives, algorithms of Thrust (``thrust_system.h``), or kernels of
Kokkos (``kokkos_device.h``)."""

RUNTIME_SOURCE: Final = files(__package__).joinpath("offload_runtime.c").read_text()
"""The program's side, read before the jail closes."""
OFFLOAD_FUNCTIONS: Final = frozenset(
    re.findall(r"^LOCAL .*?\b((?:omp_target|acc)_\w+)\(", RUNTIME_SOURCE, re.MULTILINE)
)
"""Functions of both APIs that a program in C or C++ may call."""
MAX_COPIES_BYTES: Final = 256 << 20
"""Most memory of a device at once."""

_OPENACC: Final = 1
_HEAP_BYTES: Final = 512 << 20


class _Operation(IntEnum):
    """Constructs, by the number that the program's side gives."""

    REGION = 0
    HOST_REGION = 1
    DATA = 2
    END_DATA = 3
    UPDATE = 4
    ENTER = 5
    EXIT = 6


class _Function(IntEnum):
    """Functions of the API, likewise."""

    ALLOCATE = 0
    RELEASE = 1
    COPY = 2
    PRESENT = 3
    DEVICE_ADDRESS = 4
    HOST_ADDRESS = 5


_TO_HOST, _FROM_HOST = 1 << 8, 1 << 9
"""Sides of a copy, added to its function."""

# Kinds of objects, as gcc writes them into a construct's array (gomp-constants.h of GCC 12).
_TO, _FROM, _ALWAYS, _FORCE = 0x01, 0x02, 0x10, 0x80
_POINTER, _DESCRIPTOR, _FORCE_PRESENT, _DELETE = 0x04, 0x05, 0x06, 0x07
_DEVICE_POINTER, _IF_PRESENT = 0x08, 0x0B
_FIRSTPRIVATE, _FIRSTPRIVATE_VALUE, _USE_DEVICE_POINTER, _NO_LENGTH = 0x0C, 0x0D, 0x0E, 0x0F
_USE_IF_PRESENT = 0x10
_RELEASE, _STRUCT, _ALWAYS_POINTER, _DELETE_NO_LENGTH = 0x17, 0x1C, 0x1D, 0x1F
_ATTACH, _DETACH, _ATTACH_NO_LENGTH, _FORCE_DETACH = 0x50, 0x51, 0x52, 0xD1
_IMPLICIT: Final = 0x60
_COPIES: Final = frozenset({0, _TO, _FROM, _TO | _FROM})
_WORD: Final = 8


class _Hooks(ctypes.Structure):
    construct = ctypes.CFUNCTYPE(
        None, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_ushort),
    )  # fmt: skip
    call = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
    fault = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t)
    _fields_ = (("construct_", construct), ("call_", call), ("fault_", fault))


class _Heap(ctypes.Structure):
    _fields_ = (("start", ctypes.c_size_t), ("used", ctypes.c_size_t), ("running", ctypes.c_int))


class _Stack(ctypes.Structure):
    _fields_ = (("low", ctypes.c_size_t), ("high", ctypes.c_size_t))


class _Copy:
    """A part of the host's memory that is mapped, with the device's memory for it."""

    def __init__(self, host: int, size: int, memory: GuardedArray) -> None:
        self.host, self.size, self.memory = host, size, memory
        self.references = 0
        self.attached: dict[int, bytes] = {}
        """The host's value of pointers in it that hold a device's address, by offset."""

    def holds(self, address: int, size: int) -> bool:
        return self.host <= address and address + size <= self.host + self.size

    def overlaps(self, address: int, size: int) -> bool:
        return self.host < address + size and address < self.host + self.size

    def device(self, address: int) -> int:
        return self.memory.address + address - self.host


class _Use(NamedTuple):
    """A construct's use of a copy, undone at the construct's end."""

    copy: _Copy
    host: int
    size: int
    back: bool
    """Whether it is copied back when nothing uses it any more."""
    always: bool
    """Whether it is copied back in any case."""


class _Object(NamedTuple):
    """One object of a construct."""

    host: int
    size: int
    kind: int
    implicit: bool
    """Whether no clause names it; a part of it may be mapped then, and the region uses no more."""


class OffloadRuntime:
    """Serves one program's constructs.

    Args:
        library: the program.
        channel: to the parent, which hears of faults.
        offload: what runs in a memory of its own.
    """

    def __init__(self, library: ctypes.CDLL, channel: Channel, offload: Offload) -> None:
        self._channel = channel
        self._thrust = offload == "thrust"
        self._lock = threading.RLock()
        self._arguments: Sequence[GuardedArray] = ()
        self._poison, self._at_end = 0, True
        self._copies: list[_Copy] = []
        self._own: dict[int, GuardedArray] = {}
        self._temporary: list[GuardedArray] = []
        self._open_data: list[list[_Use]] = []
        self._heap = _Heap.in_dll(library, "offload_heap")
        self._stack = _Stack.in_dll(library, "offload_stack")
        hooks = _Hooks.in_dll(library, "offload_hooks")
        self._hooks = _Hooks(_Hooks.construct(self._construct), _Hooks.call(self._call), _Hooks.fault(self._fault))
        ctypes.memmove(ctypes.addressof(hooks), ctypes.addressof(self._hooks), ctypes.sizeof(_Hooks))
        library.offload_start()

    def renew(self, arguments: Sequence[GuardedArray], poison: int, *, at_end: bool) -> None:
        """Forget all that is mapped, before a call.

        Args:
            arguments: arrays of the host that the call passes.
            poison: byte that memory of the device holds before it is written.
            at_end: whether copies end, rather than begin, at an unreadable page.
        """
        self._arguments, self._poison, self._at_end = arguments, poison, at_end
        self._copies.clear()
        self._own.clear()
        self._temporary.clear()
        self._open_data.clear()

    # ---- constructs -------------------------------------------------------------------------------------------------

    def _construct(
        self, operation: int, api: int, threads: int, region: int | None, count: int, hosts: Any, sizes: Any, kinds: Any
    ) -> None:
        objects = [_object(hosts[at], sizes[at], kinds[at] & 0xFF) for at in range(count)]
        with self._lock, self._reported():
            self._open()
            match operation:
                case _Operation.REGION:
                    self._region(region or 0, objects, parallel=bool(threads), pointers=api == _OPENACC)
                case _Operation.HOST_REGION:
                    self._host_region(region or 0, objects)
                case _Operation.DATA:
                    uses, _ = self._map(objects, pointers=False)
                    self._open_data.append(uses)
                    for at, item in enumerate(objects):
                        if item.kind in (_USE_DEVICE_POINTER, _USE_IF_PRESENT):
                            hosts[at] = self._used_pointer(item)
                case _Operation.END_DATA:
                    if self._open_data:
                        self._unmap(self._open_data.pop())
                case _Operation.UPDATE:
                    self._update(objects)
                case _Operation.ENTER:
                    self._map(objects, pointers=False)
                case _Operation.EXIT:
                    self._exit(objects)
            self._close()

    def _region(self, region: int, objects: Sequence[_Object], *, parallel: bool, pointers: bool) -> None:
        first = len(self._temporary)
        uses, addresses = self._map(objects, pointers=pointers)
        host_is_open = parallel  # other threads of the host go on
        if not host_is_open:
            self._protect_host(PROT_NONE)
        self._heap.running = 1
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(region)(_array(addresses))
        self._heap.running = 0
        if not host_is_open:
            self._protect_host(PROT_READ | PROT_WRITE)
        self._unmap(uses)
        del self._temporary[first:]

    def _host_region(self, region: int, objects: Sequence[_Object]) -> None:
        """A region that runs on the host, for its `if` clause is false."""
        private = [
            ctypes.create_string_buffer(ctypes.string_at(item.host, item.size), max(item.size, 1))
            if item.kind == _FIRSTPRIVATE
            else None
            for item in objects
        ]
        addresses = [
            item.host if copy is None else ctypes.addressof(copy) for item, copy in zip(objects, private, strict=True)
        ]
        self._close()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(region)(_array(addresses))
        self._open()

    def _map(self, objects: Sequence[_Object], *, pointers: bool) -> tuple[list[_Use], list[int]]:
        """Map the objects of a construct, and the address that a region gets for each.

        Args:
            objects: of the construct.
            pointers: whether a pointer's value that is mapped becomes the device's, as OpenACC's compilers do with
                pointers that a region names in no clause, or in `present`.
        """
        uses: list[_Use] = []
        addresses: list[int] = []
        fields, structure = 0, False
        for at, item in enumerate(objects):
            kind = item.kind
            if fields:
                fields -= 1
            else:
                structure = False
            if kind == _STRUCT:
                fields = item.size
                last = objects[at + fields]
                start, end = objects[at + 1].host, last.host + last.size
                structure = self._find(start, end - start) is None
                copy = self._mapped(start, end - start)
                uses.append(_Use(copy, start, end - start, False, False))
                addresses.append(copy.device(start) + item.host - start)
            elif kind & ~(_ALWAYS | _FORCE) in _COPIES and kind != _USE_IF_PRESENT:
                addresses.append(self._data(item, uses, new_structure=structure, pointers=pointers))
            elif kind in (_POINTER, _DESCRIPTOR):
                size = _WORD if kind == _POINTER else item.size
                new = self._find(item.host, size) is None
                copy = self._mapped(item.host, size)
                if new and kind == _DESCRIPTOR:
                    self._write(copy, item.host, ctypes.string_at(item.host, size))
                if kind == _POINTER:
                    self._store_pointer(copy, item.host, item.size)
                uses.append(_Use(copy, item.host, size, False, False))
                addresses.append(copy.device(item.host))
            elif kind == _FORCE_PRESENT:
                addresses.append(self._present(item, uses, pointers=pointers))
            elif kind in (_ATTACH, _ATTACH_NO_LENGTH, _ALWAYS_POINTER):
                copy_of_pointer = self._find(item.host, _WORD)
                if copy_of_pointer is not None:
                    self._store_pointer(copy_of_pointer, item.host, item.size)
                addresses.append(item.host if copy_of_pointer is None else copy_of_pointer.device(item.host))
            elif kind == _FIRSTPRIVATE:
                addresses.append(self._private(ctypes.string_at(item.host, item.size)))
            elif kind == _DEVICE_POINTER:
                addresses.append(self._private(ctypes.string_at(item.host, _WORD)))
            elif kind in (_NO_LENGTH, _IF_PRESENT):
                present = self._near(item.host) if kind == _NO_LENGTH else self._find(item.host, item.size)
                addresses.append(item.host if present is None else present.device(item.host))
                if present is not None:
                    present.references += 1
                    uses.append(_Use(present, item.host, 0, False, False))
            elif kind in (_FIRSTPRIVATE_VALUE, _USE_DEVICE_POINTER, _USE_IF_PRESENT):
                addresses.append(item.host)
            elif kind not in (_DETACH, _FORCE_DETACH, _RELEASE, _DELETE, _DELETE_NO_LENGTH):
                self._unsupported(f"a construct maps an object of kind {kind:#x}, which this runtime lacks")
            else:
                addresses.append(item.host)
        return uses, addresses

    def _data(self, item: _Object, uses: list[_Use], *, new_structure: bool, pointers: bool) -> int:
        """Map an object with contents; returns its address on the device."""
        new = self._find(item.host, item.size) is None or new_structure
        value = ctypes.string_at(item.host, item.size) if new and item.kind & _TO else b""
        if pointers and len(value) == _WORD and (target := self._near(int.from_bytes(value, "little"))) is not None:
            value = target.device(int.from_bytes(value, "little")).to_bytes(_WORD, "little")
            return self._private(value)
        part = next((copy for copy in self._copies if copy.overlaps(item.host, item.size)), None)
        if item.implicit and new and part is not None:
            part.references += 1
            uses.append(_Use(part, part.host, 0, False, False))
            return part.device(item.host)
        copy = self._mapped(item.host, item.size)
        always = bool(item.kind & _ALWAYS)
        if item.kind & _TO and (new or always):
            self._write(copy, item.host, value or ctypes.string_at(item.host, item.size))
        back = bool(item.kind & _FROM)
        uses.append(_Use(copy, item.host, item.size, back, back and always))
        return copy.device(item.host)

    def _present(self, item: _Object, uses: list[_Use], *, pointers: bool) -> int:
        present = self._find(item.host, item.size)
        if present is None and pointers and item.size == _WORD:
            value = int.from_bytes(ctypes.string_at(item.host, _WORD), "little")
            if (target := self._near(value)) is not None:
                return self._private(target.device(value).to_bytes(_WORD, "little"))
        if present is None:
            self._fail("a region requires data to be present on the device that is not: no clause before it maps them")
        present.references += 1
        uses.append(_Use(present, item.host, item.size, False, False))
        return present.device(item.host)

    def _used_pointer(self, item: _Object) -> int:
        present = self._near(item.host)
        if present is None and item.kind == _USE_DEVICE_POINTER:
            self._fail("use_device needs data that are mapped, and these are not")
        return item.host if present is None else present.device(item.host)

    def _mapped(self, host: int, size: int) -> _Copy:
        """The copy that holds an object, with one reference more; a new one where there is none."""
        present = self._find(host, size)
        if present is None:
            if any(item.overlaps(host, size) for item in self._copies):
                self._fail("an array is mapped of which another part is mapped already")
            present = _Copy(host, size, self._allocate(size))
            self._copies.append(present)
        present.references += 1
        return present

    def _unmap(self, uses: Sequence[_Use]) -> None:
        own = Counter(use.copy for use in uses)
        last_use = {copy for copy, count in own.items() if copy.references <= count}
        for use in uses:
            last = use.copy in last_use
            if use.always or (use.back and last):
                self._copy_back(use.copy, use.host, use.size)
            self._drop(use.copy, 1)

    def _drop(self, copy: _Copy, references: int) -> None:
        copy.references = max(copy.references - references, 0)
        if not copy.references and copy in self._copies:
            self._copies.remove(copy)

    def _exit(self, objects: Sequence[_Object]) -> None:
        for item in objects:
            kind, size = item.kind, _WORD if item.kind == _POINTER else item.size
            no_length = kind in (_NO_LENGTH, _DELETE_NO_LENGTH)
            present = self._near(item.host) if no_length else self._find(item.host, size)
            if kind in (_DETACH, _FORCE_DETACH, _ATTACH, _STRUCT):
                present = self._find(item.host, _WORD)
                if present is not None and kind != _STRUCT:
                    self._detach(present, item.host)
                continue
            if present is None:
                continue
            gone = kind in (_DELETE, _DELETE_NO_LENGTH, _FORCE | _FROM)
            references = present.references if gone else 1
            back = kind in (_FROM, _FROM | _ALWAYS, _FROM | _FORCE)
            if back and (kind & _ALWAYS or present.references <= references):
                self._copy_back(present, item.host, item.size)
            self._drop(present, references)

    def _update(self, objects: Sequence[_Object]) -> None:
        for item in objects:
            if item.kind & ~(_ALWAYS | _FORCE) not in (_TO, _FROM):
                continue
            present = self._find(item.host, item.size)
            if present is None:
                if item.kind & _FORCE:
                    self._fail("an update is of data that are not on the device")
                continue
            if item.kind & _TO:
                self._write(present, item.host, ctypes.string_at(item.host, item.size))
            else:
                self._copy_back(present, item.host, item.size)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _find(self, host: int, size: int) -> _Copy | None:
        return next((item for item in self._copies if item.holds(host, size)), None)

    def _near(self, host: int) -> _Copy | None:
        """The copy that holds an address, or that ends there."""
        return self._find(host, 1) or self._find(host, 0)

    def _allocate(self, size: int) -> GuardedArray:
        total = sum(item.size for item in self._memories())
        if total + size > MAX_COPIES_BYTES:
            self._fail(f"the device has {MAX_COPIES_BYTES >> 20} MiB, and more is mapped")
        return GuardedArray(size, None, self._poison, at_end=self._at_end)

    def _private(self, value: bytes) -> int:
        """The address of memory with this content, until the construct ends."""
        memory = self._allocate(len(value))
        memory.content()[:] = value
        self._temporary.append(memory)
        return memory.address

    def _write(self, copy: _Copy, host: int, value: bytes) -> None:
        offset = host - copy.host
        copy.memory.content()[offset : offset + len(value)] = value
        for at in [at for at in copy.attached if offset <= at < offset + len(value)]:
            self._store_pointer(copy, copy.host + at, 0)

    def _copy_back(self, copy: _Copy, host: int, size: int) -> None:
        """Copy to the host what differs there: inputs cannot be written, and may be copied back unchanged."""
        offset = host - copy.host
        value = bytearray(copy.memory.content()[offset : offset + size])
        for at, own in copy.attached.items():
            if offset <= at and at + _WORD <= offset + size:
                value[at - offset : at - offset + _WORD] = own
        if bytes(value) != ctypes.string_at(host, size):
            ctypes.memmove(host, bytes(value), size)

    def _store_pointer(self, copy: _Copy, host: int, bias: int) -> None:
        """Put the device's address of what a pointer points to into the pointer's copy."""
        own = ctypes.string_at(host, _WORD)
        value, offset = int.from_bytes(own, "little"), host - copy.host
        target = self._near(value + bias) if value else None
        address = value if target is None else target.device(value)
        copy.memory.content()[offset : offset + _WORD] = (address % (1 << 64)).to_bytes(_WORD, "little")
        copy.attached[offset] = own

    def _detach(self, copy: _Copy, host: int) -> None:
        own = copy.attached.pop(host - copy.host, None)
        if own is not None:
            copy.memory.content()[host - copy.host : host - copy.host + _WORD] = own

    def _memories(self) -> list[GuardedArray]:
        return [*(item.memory for item in self._copies), *self._own.values(), *self._temporary]

    def _open(self) -> None:
        for item in self._memories():
            item.open()

    def _close(self) -> None:
        for item in self._memories():
            item.close()

    def _protect_host(self, protection: int) -> None:
        for item in self._arguments:
            if protection == PROT_NONE:
                item.close()
            else:
                item.open()
        if self._heap.used:
            used = -(-self._heap.used // mmap.PAGESIZE) * mmap.PAGESIZE
            protect_pages(self._heap.start, min(used, _HEAP_BYTES), protection)

    # ---- functions of the API, faults -------------------------------------------------------------------------------

    def _call(self, function: int, first: int, second: int, size: int) -> int:
        with self._lock, self._reported():
            self._open()
            result = self._answer(function, first, second, size)
            self._close()
        return result

    def _answer(self, function: int, first: int, second: int, size: int) -> int:
        match function & 0xFF:
            case _Function.ALLOCATE:
                memory = self._allocate(size)
                self._own[memory.address] = memory
                return memory.address
            case _Function.RELEASE:
                if self._own.pop(first, None) is None:
                    self._fail("memory is freed that is no memory of the device")
            case _Function.COPY:
                for address, host in ((first, function & _TO_HOST), (second, function & _FROM_HOST)):
                    if self._is_of_device(address) == bool(host):
                        self._fail("a copy is given memory of the other side than its function or device number says")
                ctypes.memmove(first, ctypes.string_at(second, size), size)
            case _Function.PRESENT:
                return int(self._find(first, size) is not None)
            case _Function.DEVICE_ADDRESS:
                present = self._near(first)
                return 0 if present is None else present.device(first)
            case _Function.HOST_ADDRESS:
                for item in self._copies:
                    if 0 <= first - item.memory.address < item.size:
                        return item.host + first - item.memory.address
        return 0

    def _is_of_device(self, address: int) -> bool:
        return any(item.address <= address < item.address + item.size for item in self._memories())

    def _fault(self, address: int) -> int:
        """Say what an access outside was, where this runtime knows; does not return then."""
        of_host = (
            0 <= address - self._heap.start < self._heap.used
            or self._stack.low <= address < self._stack.high
            or any(item.address <= address < item.address + item.size for item in self._arguments)
        )
        of_device = self._is_of_device(address)
        if self._heap.running and self._thrust:
            self._fail(
                "an algorithm on the device uses memory of the host: a pointer, a reference or an iterator"
                if of_host
                else "an algorithm on the device reads or writes outside of the device's memory"
            )
        if self._heap.running and of_host:
            self._fail("a region uses memory of the host: no clause maps what it reads or writes there")
        if self._heap.running:
            self._fail("a region reads or writes outside of what its clauses map")
        if of_device:
            self._fail("the host uses an address of the device's memory")
        return 0

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report an error, which no caller in the program's machine code would hear of."""
        try:
            yield
        except (OSError, ValueError, LookupError, OverflowError) as error:
            self._fail(f"a construct cannot be served: {error}")

    def _fail(self, text: str) -> NoReturn:
        """End the call with a fault of the program."""
        end_call(self._channel, failure("crash", text))

    def _unsupported(self, text: str) -> NoReturn:
        end_call(self._channel, unsupported(text))


def _object(host: int, size: int, kind: int) -> _Object:
    implicit = kind & _IMPLICIT == _IMPLICIT and not kind & _ALWAYS
    return _Object(host, size, kind & ~_IMPLICIT if implicit else kind, implicit)


def _array(addresses: Sequence[int]) -> Any:
    return (ctypes.c_size_t * max(len(addresses), 1))(*addresses)
