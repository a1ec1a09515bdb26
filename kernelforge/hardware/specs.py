"""GPU specifications with their sources, and the lookup of a GPU that the driver names.

The emulated devices model these GPUs. Their figures are in ``gpus.toml``, which explains the wording of sources. This
project measured none of them. Limits and lanes are published by NVIDIA; latencies and attained bandwidths are estimates
from published measurements on one GPU of that compute capability, and their source begins with ``estimate``. Figures
that ``kernelforge calibrate`` measured on a card are in a file of the user, the *parameter file*, which is read here.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from annotated_types import Len
from pydantic import AfterValidator, TypeAdapter, ValidationError, ValidationInfo

from kernelforge.errors import DeviceError
from kernelforge.records.base import Record, content_hash, first_fault


def _with_titles(source: str, info: ValidationInfo) -> str:
    """A source with the titles of the works that it names in braces."""
    return source.format_map(info.context or {})


Source = Annotated[str, AfterValidator(_with_titles)]
Capability = tuple[int, int]


class Figure(Record):
    """A number and where it comes from."""

    value: float
    source: Source


class Multiprocessor(Record):
    """Figures of a streaming multiprocessor (SM) that all GPUs of one compute capability share."""

    compute_capability: Capability
    chip: str
    """Nsight Compute's name of a chip of that compute capability."""
    fp32_lanes: int
    unified_l1_kib: int
    """L1 cache and shared memory together."""
    shared_carveouts_kib: tuple[int, ...]
    """Possible sizes of shared memory in it; the last is the maximum."""
    shared_kib_per_block: int
    """With the opt-in attribute."""
    shared_reserved_bytes_per_block: int
    shared_allocation_bytes: int
    """Granularity of shared memory allocation."""
    warps: int
    blocks: int


class Generation(Record):
    """Other figures that GPUs of one compute capability share."""

    compute_capability: Capability
    arch: str
    """Real architecture that kernels are compiled for: with the architecture's own instructions from Hopper on."""
    l2_bytes_per_cycle_per_sm: Figure
    """Bandwidth that a kernel attains with its data in the L2."""
    dram_sustained_share: Figure
    """Share of the peak bandwidth that a reading kernel attains."""
    figures: Mapping[str, Figure]
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""


class Card(Record):
    """One model of GPU."""

    key: str
    """``rtx-4090`` in ``emulated:rtx-4090``."""
    title: str
    names: tuple[str, ...]
    """Names that the driver reports for it."""
    compute_capability: Capability
    sm_count: int
    max_clock_mhz: int
    """Boost clock, which CUDA reports as the device's clock."""
    dram_gb: float
    """Size in the name of the product; the driver reports another number of bytes."""
    dram_bandwidth_gbps: float
    l2_mib: float
    fp16_tensor_tflops: float | None = None
    """Dense, with FP32 accumulation; by default computed from :attr:`fp16_flops_per_cycle_per_sm` and the clock."""
    tf32_tensor_tflops: float | None = None
    """Dense; 0 for tensor cores without TF32; by default half of the computed peak of FP16."""
    fp16_flops_per_cycle_per_sm: int = 0
    source: Source
    """Source of every figure above that :attr:`sources` does not name."""
    sources: Mapping[str, Source] = {}
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""
    dram_sustained_gbps: Figure | None = None
    """Measured on this card, or estimated otherwise than by its generation."""
    l2_bandwidth_gbps: Figure | None = None
    sustained_clock_mhz: Figure | None = None
    """Measured under load, where it is another than the boost clock by the share of its kind."""
    figures: Mapping[str, Figure] = {}
    """Measured on this card, in place of those of its generation and of every GPU; by field of
    :class:`~kernelforge.hardware.specs.DeviceSpec`."""


class ParameterFile(Record):
    """A file with the figures of one card, as ``kernelforge calibrate`` writes it: a ``card`` as in ``gpus.toml``."""

    card: Annotated[tuple[Card, ...], Len(1, 1)]


class GpuFigures(Record):
    """The whole file, but for ``works``: the titles by name are the context of its validation."""

    every_gpu: Mapping[str, Figure]
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""
    geforce: Mapping[str, Figure]
    """The same for GeForce cards alone."""
    multiprocessor_sources: Mapping[str, Source]
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""
    multiprocessor: tuple[Multiprocessor, ...]
    generation: tuple[Generation, ...]
    card: tuple[Card, ...]
    """The default first."""


def _read() -> GpuFigures:
    table = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))
    works = table.pop("works")
    return GpuFigures.model_validate(table, context=works)


FIGURES = _read()
MULTIPROCESSORS: Mapping[Capability, Multiprocessor] = {sm.compute_capability: sm for sm in FIGURES.multiprocessor}
"""By compute capability; others are unknown."""
GENERATIONS: Mapping[Capability, Generation] = {shared.compute_capability: shared for shared in FIGURES.generation}
"""By compute capability of the known cards."""


KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True)
class DeviceSpec:
    """One GPU. Units are in the names; :attr:`sources` names the source of each figure."""

    key: str
    """Short name: ``h100`` in ``emulated:h100``."""
    title: str
    names: tuple[str, ...]
    """Names that the driver reports."""
    compute_capability: tuple[int, int]
    arch: str
    """Real architecture that kernels are compiled for: ``sm_90a``."""
    sm_count: int
    max_clock_mhz: int
    sustained_clock_share: float
    """Clock under load over the boost clock."""
    fp32_lanes_per_sm: int
    fp64_lanes_per_sm: int
    int32_lanes_per_sm: int
    tf32_tensor_tflops: float
    fp16_tensor_tflops: float
    """Peaks of the tensor cores for dense matrices with FP32 accumulation, in 10^12 operations per second.

    BF16 is as fast as FP16. Volta and Turing have neither BF16 nor TF32: that of TF32 is 0.
    """
    product_share: float
    """Share of those peaks that products of warps reach, without those of warp groups (``wgmma``)."""
    special_lanes_per_sm: int
    """Lanes for reciprocals, square roots, exponentials, sines."""
    schedulers_per_sm: int
    """Warp schedulers, each issuing one warp instruction per cycle; also the register file's partitions."""
    dram_bytes: int
    dram_bandwidth_gbps: float
    """Peak, as on the datasheet or, if that rounds it, by bus width and memory clock."""
    dram_sustained_gbps: float
    """Bandwidth that a reading kernel attains, ECC among the data included."""
    dram_ecc_share: float
    """Bytes of ECC that are moved with a byte of data, where the DRAM has no chips of its own for it."""
    l2_bytes: int
    l2_bandwidth_gbps: float
    """Bandwidth that a kernel attains with its data in the L2."""
    l2_fetch_bytes: int
    """What the L2 fetches for one sector that it lacks."""
    l2_partitions: int
    """Parts of the L2; data that an SM reads of another part are in its own too."""
    l2_keeps_written: int
    """1 where the L2 has its share of written bytes when a launch ends, 0 where it writes them early."""
    l2_to_sm_bytes_per_cycle: int
    l1_bytes_per_cycle: int
    """Width of what one SM's L1 returns to registers."""
    partial_sector_cost: float
    """Time of the L2 for a sector of which a request writes a part, over that for a complete one."""
    unified_l1_bytes_per_sm: int
    """L1 and shared memory together."""
    shared_carveouts_kib: tuple[int, ...]
    """Possible sizes of shared memory in :attr:`unified_l1_bytes_per_sm`."""
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    """With the opt-in attribute."""
    shared_bytes_static: int
    """Without the opt-in attribute."""
    shared_reserved_bytes_per_block: int
    shared_allocation_bytes: int
    """Granularity of shared memory allocation."""
    registers_per_sm: int
    registers_per_block: int
    registers_per_thread: int
    register_allocation: int
    """Registers are allocated to a warp in multiples of this."""
    warps_per_sm: int
    blocks_per_sm: int
    threads_per_block: int
    warp_size: int
    l1_latency_cycles: int
    shared_latency_cycles: int
    l2_latency_cycles: int
    dram_latency_cycles: int
    block_cycles: float
    """Cycles of an SM that the start and end of a block take at least, without its warps' share."""
    block_cycles_per_warp: float
    """The share of each warp."""
    atomic_ns: float
    """From one update of a word of global memory to the next, by integers."""
    atomic_float_ns: float
    """The same by floating-point numbers."""
    atomic_sector_ns: float
    """From one request's update of a sector to the next one of the same line, where only that line is updated."""
    atomic_line_ns: float
    """What it takes longer where other lines are updated in between."""
    host_link_gbps: float
    """Bandwidth of aligned reads of 128 bytes of host memory by a kernel."""
    host_link_raw_gbps: float
    """Rate of the host link in one direction without headers, which no read can exceed: for plausibility."""
    host_request_bytes: float
    """What a read of host memory takes on the link beyond its data."""
    host_requests: int
    """Reads of host memory that may be under way at one time."""
    host_latency_ns: float
    """From a load of host memory to its data."""
    launch_overhead_us: float
    """From the start of one small kernel to the start of the next in a CUDA graph."""
    sources: Mapping[str, str]
    """Source of each figure, by field name."""

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON for a runner's channel."""
        wire: dict[str, Any] = _READER.dump_python(self, mode="json")
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> DeviceSpec:
        """Inverse of :meth:`to_wire`."""
        return _READER.validate_python(wire)

    @property
    def threads_per_sm(self) -> int:
        return self.warps_per_sm * self.warp_size

    @property
    def l2_distinct_bytes(self) -> int:
        """Bytes of different data that the L2 holds at most.

        Of two partitions, every second line on average is of the far one and is in both: it takes the place of two.
        """
        return self.l2_bytes * 2 // (self.l2_partitions + 1)

    @property
    def clock_hz(self) -> float:
        """Clock under load."""
        return self.max_clock_mhz * self.sustained_clock_share * 1e6

    @property
    def fp32_flops_per_s(self) -> float:
        """Peak of multiply-adds, each two operations."""
        return 2.0 * self.fp32_lanes_per_sm * self.sm_count * self.max_clock_mhz * 1e6

    def tensor_flops_per_s(self, a_type: str, sum_type: str) -> float:
        """Peak of the tensor cores for dense products, by PTX types: ``f16`` and ``f32``; ``s8`` and ``s32``.

        The datasheets' ratios to FP16 with FP32 sums: FP8, FP6, FP4 and 8-bit integers twice, 4-bit integers four
        times, single bits sixteen times; all but FP32 sums twice as much again on GeForce cards, where those halve the
        rate. FP64 is twice as fast as without tensor cores on the A100 and on Hopper, and as fast elsewhere.
        """
        if a_type == "f64":
            doubled = 2 if self.compute_capability in ((8, 0), (9, 0)) else 1
            return 2.0 * doubled * self.fp64_lanes_per_sm * self.sm_count * self.max_clock_mhz * 1e6
        if a_type == "tf32":
            return self.tf32_tensor_tflops * 1e12
        ratio = {"f16": 1, "bf16": 1, "s4": 4, "u4": 4, "b1": 16}.get(a_type, 2)
        full = 2 if sum_type != "f32" and "GeForce" in self.title else 1
        return self.fp16_tensor_tflops * 1e12 * ratio * full

    @property
    def tensor_peaks_text(self) -> str:
        """Peaks of the tensor cores for dense products with FP32 sums, in TFLOPS, by the types that they have."""
        types = (("FP16", "f16", (7, 0)), ("BF16", "bf16", (8, 0)), ("TF32", "tf32", (8, 0)), ("FP8", "e4m3", (8, 9)))
        peaks = [
            f"{name} {self.tensor_flops_per_s(a_type, 'f32') / 1e12:,.0f}"
            for name, a_type, since in types
            if self.compute_capability >= since
        ]
        return f"{', '.join(peaks)} TFLOPS" if peaks else ""

    @property
    def ridge_flop_per_byte(self) -> float:
        """Arithmetic intensity above which FP32 arithmetic binds before DRAM."""
        return self.fp32_flops_per_s / (self.dram_bandwidth_gbps * 1e9)


_OF_THE_CARD = (
    "sm_count", "max_clock_mhz", "dram_bytes", "dram_bandwidth_gbps", "l2_bytes", "tf32_tensor_tflops",
    "fp16_tensor_tflops",
)  # fmt: skip
_READER = TypeAdapter(DeviceSpec)


def _spec(card: Card) -> DeviceSpec:
    """All figures of a card, with those that its generation shares."""
    sm, shared = MULTIPROCESSORS[card.compute_capability], GENERATIONS[card.compute_capability]
    figures = {**FIGURES.every_gpu, **shared.figures, **(FIGURES.geforce if "GeForce" in card.title else {})}
    figures.update(card.figures)
    if clock := card.sustained_clock_mhz:
        share = round(clock.value / card.max_clock_mhz, 4)
        figures["sustained_clock_share"] = Figure(value=share, source=clock.source)
    fp16_tflops = card.sm_count * card.max_clock_mhz * card.fp16_flops_per_cycle_per_sm * 1e-6
    attained_gbps = card.dram_bandwidth_gbps * shared.dram_sustained_share.value
    clock_mhz = card.max_clock_mhz * figures["sustained_clock_share"].value
    l2_gbps = shared.l2_bytes_per_cycle_per_sm.value * card.sm_count * clock_mhz * 1e-3
    sustained, l2_bandwidth = card.dram_sustained_gbps, card.l2_bandwidth_gbps
    spec: dict[str, Any] = {  # what has another name or another unit than in a DeviceSpec is left out or replaced
        **dict(sm),
        **dict(card),
        **{name: figure.value for name, figure in figures.items()},
        "arch": shared.arch,
        "fp32_lanes_per_sm": sm.fp32_lanes,
        "tf32_tensor_tflops": fp16_tflops / 2 if card.tf32_tensor_tflops is None else card.tf32_tensor_tflops,
        "fp16_tensor_tflops": fp16_tflops if card.fp16_tensor_tflops is None else card.fp16_tensor_tflops,
        "dram_bytes": int(card.dram_gb * 10**9),
        "dram_sustained_gbps": sustained.value if sustained else float(round(attained_gbps)),
        "l2_bytes": int(card.l2_mib * MIB),
        "l2_bandwidth_gbps": l2_bandwidth.value if l2_bandwidth else float(round(l2_gbps)),
        "unified_l1_bytes_per_sm": sm.unified_l1_kib * KIB,
        "shared_bytes_per_sm": sm.shared_carveouts_kib[-1] * KIB,
        "shared_bytes_per_block": sm.shared_kib_per_block * KIB,
        "warps_per_sm": sm.warps,
        "blocks_per_sm": sm.blocks,
        "sources": {
            **FIGURES.multiprocessor_sources,
            **{name: figure.source for name, figure in figures.items()},
            **{name: card.sources.get(name, card.source) for name in _OF_THE_CARD},
            "dram_sustained_gbps": (sustained or shared.dram_sustained_share).source,
            "l2_bandwidth_gbps": (l2_bandwidth or shared.l2_bytes_per_cycle_per_sm).source,
        },
    }
    return _READER.validate_python(spec)


_OF_THE_GENERATIONS = frozenset(name for shared in FIGURES.generation for name in shared.figures)


def spec_fields() -> Mapping[str, str]:
    """Types of the fields of a :class:`DeviceSpec`, by their names."""
    return {field.name: str(field.type) for field in fields(DeviceSpec)}


SPECS: Mapping[str, DeviceSpec] = MappingProxyType({card.key: _spec(card) for card in FIGURES.card})
"""By key, the default first."""

H100, H200, A100 = SPECS["h100"], SPECS["h200"], SPECS["a100"]

EMULATED = "emulated:"
"""Prefix of the name of an emulated device, before its GPU's key or the path of a parameter file."""
PARAMETER_FILE = ".toml"
"""End of the path of a parameter file: ``emulated:my_gpu.toml``."""
MAX_FILE_BYTES = 1 << 20
SECTOR_BYTES = 32
_WRITTEN_BY = "`kernelforge calibrate` writes such a file"


def spec_by_key(key: str) -> DeviceSpec:
    """Figures of a known GPU, or of the card in a parameter file.

    Args:
        key: A key of :data:`SPECS`, or the path of a parameter file, which becomes the key of its figures.

    Raises:
        DeviceError: there is no such GPU, or the file cannot be read or has no such figures.
    """
    if key in SPECS:
        return SPECS[key]
    if not key.endswith(PARAMETER_FILE):
        raise DeviceError(f"there are no figures of a GPU {key!r}")
    return _measured_card(Path(key))


_HOST_LINK = frozenset(
    ("host_link_gbps", "host_link_raw_gbps", "host_request_bytes", "host_requests", "host_latency_ns")
)
"""Figures that are younger than stored digests."""


def figures_digest(spec: DeviceSpec) -> str:
    """Digest of the figures of a GPU, without its key, their sources, and those of its host link where they are the
    package's."""
    shared = {**FIGURES.every_gpu, **GENERATIONS[spec.compute_capability].figures}
    shipped = spec.key in SPECS
    usual = {name for name in _HOST_LINK if shipped or getattr(spec, name) == shared[name].value}
    names = (field.name for field in fields(spec) if field.name not in ("key", "sources", *usual))
    return content_hash("figures", *(repr(getattr(spec, name)) for name in names))


_MAY_BE_ZERO = frozenset(
    ("tf32_tensor_tflops", "fp16_tensor_tflops", "dram_ecc_share", "l2_keeps_written",
     "shared_reserved_bytes_per_block", "block_cycles", "block_cycles_per_warp", "atomic_line_ns",
     "launch_overhead_us")
)  # fmt: skip


def _impossible(spec: DeviceSpec) -> Iterator[str]:
    """Sentences on figures that no GPU can have."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        if isinstance(value, int | float) and not (0 < value < math.inf or (value == 0 and field.name in _MAY_BE_ZERO)):
            yield f"{field.name} is {value:g}, which no GPU has"
    for name in ("l1_bytes_per_cycle", "l2_fetch_bytes"):
        if getattr(spec, name) % SECTOR_BYTES:
            yield f"{name} is {getattr(spec, name)}, which is no multiple of the {SECTOR_BYTES} bytes of a sector"


def _measured_card(path: Path) -> DeviceSpec:
    """Figures of the card in a parameter file."""
    try:
        if path.exists() and not path.is_file():
            raise DeviceError(f"{path} cannot be read: it is no file; {_WRITTEN_BY}")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise DeviceError(f"{path} is no parameter file of a GPU: it is larger than {MAX_FILE_BYTES} bytes")
        card = ParameterFile.model_validate(tomllib.loads(data.decode())).card[0]
        unknown = sorted(card.figures.keys() - FIGURES.every_gpu.keys() - _OF_THE_GENERATIONS)
        if unknown:
            raise DeviceError(f"{path}: card.figures has {', '.join(unknown)}, which no figure of a GPU is called")
        if card.compute_capability not in GENERATIONS:
            major, minor = card.compute_capability
            raise DeviceError(f"{path}: no figures of GPUs of compute capability {major}.{minor} exist")
        spec = replace(_spec(card), key=str(path))
        wrong = next(_impossible(spec), None)
        if wrong is not None:
            raise DeviceError(f"{path}: {wrong}")
        return spec
    except OSError as error:
        raise DeviceError(f"{path} cannot be read: {error.strerror or error}; {_WRITTEN_BY}") from error
    except ValidationError as error:
        raise DeviceError(f"{path} is no parameter file of a GPU: {first_fault(error)}; {_WRITTEN_BY}") from error
    except (ValueError, LookupError, ArithmeticError) as error:
        raise DeviceError(f"{path} is no parameter file of a GPU: {error}; {_WRITTEN_BY}") from error


_BRANDS = frozenset({"nvidia", "geforce", "tesla"})
"""Words that some versions of the driver put before a name."""


@dataclass(frozen=True)
class NearestSpec:
    """Figures of a GPU, or of the nearest known one."""

    spec: DeviceSpec
    exact: bool
    """Whether the figures are the GPU's own."""

    @property
    def label(self) -> str:
        """Title of the GPU; that of another GPU is marked."""
        return self.spec.title if self.exact else f"nearest known: {self.spec.title}"


def find_spec(name: str, sm_count: int | None = None) -> DeviceSpec | None:
    """Figures of the GPU with a name; None if unknown.

    All words of a name must match: ``NVIDIA RTX A1000`` is no A100, ``NVIDIA GeForce RTX 4090 Laptop GPU`` and ``NVIDIA
    A100-SXM4-80GB MIG 3g.40gb`` differ from the cards whose names they contain.

    Args:
        name: As the driver reports it, or the name of an emulated device.
        sm_count: Its SMs, if known: GPUs of one name may differ in them.
    """
    if name.startswith(EMULATED):
        try:
            return spec_by_key(name.removeprefix(EMULATED))
        except DeviceError:
            return None
    words = _words(name)
    spec = next((spec for spec in SPECS.values() if words in map(_words, spec.names)), None)
    return None if spec is not None and sm_count not in (None, spec.sm_count) else spec


def nearest_spec(
    name: str, arch: str = "", sm_count: int | None = None, among: Iterable[DeviceSpec] | None = None
) -> NearestSpec:
    """Figures of a GPU by its name, else of the nearest known GPU.

    That is the GPU of the closest compute capability, then with the most words of its name in common, then with the
    closest number of SMs, then the first. For an unknown architecture it is the H100.

    Args:
        name: As in :func:`find_spec`.
        arch: Its architecture: ``sm_89``.
        sm_count: Its SMs, if known.
        among: GPUs to choose from; all by default.
    """
    specs = tuple(SPECS.values() if among is None else among)
    exact = find_spec(name, sm_count)
    if exact in specs:
        return NearestSpec(exact, exact=True)
    version = re.fullmatch(r"sm_(\d+)(\d)[a-z]?", arch)
    if version is None:
        return NearestSpec(H100 if H100 in specs else specs[0], exact=False)
    capability, words = 10 * int(version[1]) + int(version[2]), set(_words(name))

    def distance(spec: DeviceSpec) -> tuple[int, int, int]:
        major, minor = spec.compute_capability
        shared = max((len(words.intersection(_words(known_name))) for known_name in spec.names), default=0)
        return abs(10 * major + minor - capability), -shared, 0 if sm_count is None else abs(spec.sm_count - sm_count)

    return NearestSpec(min(specs, key=distance), exact=False)


def _words(name: str) -> tuple[str, ...]:
    words = re.split(r"[\s_-]+", name.strip().lower())
    return tuple(word for word in words if word not in _BRANDS)
