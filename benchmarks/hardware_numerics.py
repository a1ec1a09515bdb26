"""Results of a real GPU for PTX instructions that are not defined bit for bit, next to those of the emulated device.

    python benchmarks/hardware_numerics.py prepare FOLDER            # no GPU: cubins, PTX and inputs
    python benchmarks/hardware_numerics.py run FOLDER --output OUT   # on a GPU of sm_90a, with NumPy and CuPy alone
    python benchmarks/hardware_numerics.py compare FOLDER OUT        # no GPU: the same probes on the emulated device

Probes: tensor cores (``mma``, ``mma.sp``, ``wgmma``) on random and designed tiles, approximate functions over a sample
of inputs and, on the GPU alone, their largest error over all float32 inputs, float reductions, conversions, and
minimum and maximum. ``run`` writes ``numerics.npz`` and ``numerics.json``; ``compare`` prints how many results differ
and writes ``compared.json``. A probe that fails is recorded, and the others run.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
CTYPES = {"b16": "unsigned short", "b32": "unsigned", "b64": "unsigned long long"}
DTYPES = {"b16": "<u2", "b32": "<u4", "b64": "<u8"}
CONSTRAINTS = {"b16": "h", "b32": "r", "b64": "l", "f32": "f", "f64": "d"}


class Probes:
    """Kernels, their inputs, and how to launch them."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.inputs: dict[str, Array] = {}
        self.random = np.random.default_rng(20250)

    def add(self, name: str, source: str, inputs: list[str], out: tuple[str, int], **more: Any) -> None:
        self.items.append({"name": name, "source": source, "inputs": inputs, "out": out, "scalars": [], **more})

    def map(self, name: str, code: str, out: str, inputs: dict[str, str], group: str, **more: Any) -> None:
        """One instruction over arrays: ``code`` names its operands %0 (result), %1, ..."""
        count = len(self.inputs[next(iter(inputs))])
        params = "".join(f", const {CTYPES[kind]}* in{i}" for i, kind in enumerate(inputs.values()))
        operands = ", ".join(f'"{CONSTRAINTS[kind]}"(in{i}[n])' for i, kind in enumerate(inputs.values()))
        source = f"""extern "C" __global__ void k({CTYPES[out]}* out{params}, unsigned count) {{
unsigned n = blockIdx.x * 128 + threadIdx.x; if (n >= count) return; {CTYPES[out]} d;
asm volatile("{{{code}}}" : "={CONSTRAINTS[out]}"(d) : {operands}); out[n] = d; }}"""
        self.add(name, source, list(inputs), (out, count), scalars=[count], grid=-(-count // 128), block=128,
                 group=group, **more)  # fmt: skip


def float32_sample(random: np.random.Generator) -> Array:
    """Float32 bits: every sign and exponent with random mantissas, and edges."""
    high = np.arange(512, dtype=np.uint32) << 23
    mantissas = random.integers(0, 1 << 23, (512, 252), dtype=np.uint32)
    edges = np.array([0, 1, (1 << 23) - 1, 1 << 22], np.uint32)
    mantissas = np.concatenate([np.broadcast_to(edges, (512, 4)), mantissas], axis=1)
    return (high[:, None] | mantissas).reshape(-1).astype(np.uint32)


def functions(probes: Probes) -> None:
    random, inputs = probes.random, probes.inputs
    inputs["f32"] = float32_sample(random)
    inputs["f32 second"] = random.permutation(inputs["f32"])
    inputs["all 16"] = np.arange(65536, dtype=np.uint16)
    inputs["all 16 twice"] = (np.arange(65536, dtype=np.uint32) << 16) | np.arange(65536, dtype=np.uint32)[::-1]
    high = random.integers(0, 1 << 32, 65536, dtype=np.uint64)
    high[:4096] = np.arange(4096, dtype=np.uint64) << 20
    inputs["f64"] = high << np.uint64(32) | random.integers(0, 1 << 32, 65536, dtype=np.uint64)
    unary = ["ex2.approx", "lg2.approx", "sin.approx", "cos.approx", "rcp.approx", "rsqrt.approx", "sqrt.approx"]
    for name in [*(f"{f}{z}.f32" for f in unary for z in ("", ".ftz")), "tanh.approx.f32"]:
        probes.map(name, f"{name} %0, %1;".replace("%0, %1", "x, a").join(
            (".reg .f32 x, a; mov.b32 a, %1; ", " mov.b32 %0, x;")), "b32", {"f32": "b32"}, "function")  # fmt: skip
    for name in ("div.approx.f32", "div.full.f32", "div.approx.ftz.f32", "div.full.ftz.f32"):
        code = f".reg .f32 x, a, b; mov.b32 a, %1; mov.b32 b, %2; {name} x, a, b; mov.b32 %0, x;"
        probes.map(name, code, "b32", {"f32": "b32", "f32 second": "b32"}, "function")
    for name in ("tanh.approx.f16", "tanh.approx.bf16", "ex2.approx.f16", "ex2.approx.ftz.bf16"):
        probes.map(name, f"{name} %0, %1;", "b16", {"all 16": "b16"}, "function")
    for name in ("tanh.approx.f16x2", "tanh.approx.bf16x2", "ex2.approx.f16x2", "ex2.approx.ftz.bf16x2"):
        probes.map(name, f"{name} %0, %1;", "b32", {"all 16 twice": "b32"}, "function")
    for name in ("rcp.approx.ftz.f64", "rsqrt.approx.f64", "rsqrt.approx.ftz.f64"):
        code = f".reg .f64 x, a; mov.b64 a, %1; {name} x, a; mov.b64 %0, x;"
        probes.map(name, code, "b64", {"f64": "b64"}, "function")


def conversions(probes: Probes) -> None:
    random, inputs = probes.random, probes.inputs
    edges = [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FC12345, 0x7FFFFFFF]
    halves = (np.arange(256, dtype=np.uint32) << 23)[:, None]  # ties and their neighbours at every width of mantissa
    ties = [1 << bit for bit in range(23)] + [3 << bit for bit in range(22)]
    patterns = np.array([t + d for t in ties for d in (-1, 0, 1)], np.int64).astype(np.uint32) & 0x7FFFFF
    positive = np.concatenate([np.array(edges, np.uint32), (halves | patterns).reshape(-1)])
    sample = np.unique(np.concatenate([positive, positive | 0x80000000]).astype(np.uint32))
    inputs["special"] = sample
    inputs["special second"] = random.permutation(sample)
    with np.errstate(invalid="ignore"):
        wide = sample.view(np.float32).astype(np.float64) * (1 + 2.0**-40)
    inputs["f64 special"] = wide.view(np.uint64)
    a = ".reg .f32 a; mov.b32 a, %1; "
    for kind in ("f16", "bf16"):
        for mode in ("rn", "rz"):
            probes.map(f"cvt.{mode}.{kind}.f32", f"{a}cvt.{mode}.{kind}.f32 %0, a;", "b16", {"special": "b32"}, "exact")
    probes.map("cvt.rna.tf32.f32", f"{a}cvt.rna.tf32.f32 %0, a;", "b32", {"special": "b32"}, "exact")
    for kind in ("e4m3x2", "e5m2x2"):
        code = f".reg .f32 a, b; mov.b32 a, %1; mov.b32 b, %2; cvt.rn.satfinite.{kind}.f32 %0, a, b;"
        probes.map(f"cvt.rn.satfinite.{kind}.f32", code, "b16", {"special": "b32", "special second": "b32"}, "exact")
        code = f"cvt.rn.f16x2.{kind} %0, %1;"
        probes.map(f"cvt.rn.f16x2.{kind}", code, "b32", {"all 16": "b16"}, "exact")
    for width, letter in ((8, "b32"), (16, "b32"), (32, "b32"), (64, "b64")):
        for sign in "su":
            for mode in ("rni", "rzi"):
                name = f"cvt.{mode}.{sign}{width}.f32"
                probes.map(name, f"{a}{name} %0, a;", letter, {"special": "b32"}, "exact")
                name = f"cvt.{mode}.{sign}{width}.f64"
                code = f".reg .f64 a; mov.b64 a, %1; {name} %0, a;"
                probes.map(name, code, letter, {"f64 special": "b64"}, "exact")
    for name in ("min.f32", "max.f32", "min.NaN.f32", "max.NaN.f32", "max.xorsign.abs.f32", "add.f32", "mul.f32"):
        code = f".reg .f32 x, a, b; mov.b32 a, %1; mov.b32 b, %2; {name} x, a, b; mov.b32 %0, x;"
        probes.map(name, code, "b32", {"special": "b32", "special second": "b32"}, "exact")
    inputs["pairs"] = random.integers(0, 1 << 32, 16384, dtype=np.uint32)
    inputs["pairs second"] = random.integers(0, 1 << 32, 16384, dtype=np.uint32)
    pairs = {"pairs": "b32", "pairs second": "b32"}
    for kind in ("f16x2", "bf16x2"):
        for name in (f"min.{kind}", f"max.NaN.{kind}", f"fma.rn.{kind}"):
            probes.map(name, f"{name} %0, %1, %2{', %1' if 'fma' in name else ''};", "b32", pairs, "exact")
    tiny = random.integers(0, 1 << 24, 4096, dtype=np.uint32) | random.integers(0, 2, 4096, dtype=np.uint32) << 31
    inputs["tiny"] = np.concatenate([tiny, sample[::8]]).astype(np.uint32)
    inputs["tiny second"] = random.permutation(inputs["tiny"])
    small = {"tiny": "b32", "tiny second": "b32"}
    for space in ("global", "shared"):
        for op in ("red.{}.add.f32", "atom.{}.add.f32", "red.{}.add.noftz.f16x2", "red.{}.add.noftz.bf16x2",
                   "atom.{}.add.noftz.f16x2", "atom.{}.add.noftz.bf16x2"):  # fmt: skip
            name = op.format(space)
            kind, data = ("f", small) if op.endswith("f32") else ("r", pairs)
            count = len(inputs[next(iter(data))])
            old = "" if name.startswith("red") else ("f32 x; " if kind == "f" else "b32 x; ")
            value = "__uint_as_float(b[n])" if kind == "f" else "b[n]"
            where = '"l"(out + n)' if space == "global" else '"r"((unsigned)__cvta_generic_to_shared(s + threadIdx.x))'
            source = f"""extern "C" __global__ void k(unsigned* out, const unsigned* a, const unsigned* b,
unsigned count) {{ __shared__ unsigned s[128]; unsigned n = blockIdx.x * 128 + threadIdx.x; if (n >= count) return;
out[n] = a[n]; s[threadIdx.x] = a[n]; __threadfence();
asm volatile("{{{".reg ." + old if old else ""}{name} {"x, " if old else ""}[%0], %1;}}"
:: {where}, "{kind}"({value}) : "memory");
{"out[n] = s[threadIdx.x];" if space == "shared" else ""} }}"""
            probes.add(name, source, list(data), ("b32", count), scalars=[count], grid=-(-count // 128), block=128,
                       group="reduction")  # fmt: skip


# Tensor cores -------------------------------------------------------------------------------------------------------

FORMATS = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 10), "e4m3": (4, 3), "e5m2": (5, 2)}
WIDTH = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f64": 64, "f32": 32, "s32": 32}


def encode(values: Array, kind: str) -> Array:
    """Bits of values in a type, rounded to nearest even; too large becomes the largest finite value."""
    if kind in ("f64", "f32", "f16"):
        with np.errstate(over="ignore"):
            return values.astype(f"f{WIDTH[kind] // 8}").view(f"u{WIDTH[kind] // 8}")
    if kind in ("s8", "u8", "s32"):
        return values.astype(np.int64).astype(f"u{WIDTH[kind] // 8}")
    exponent_bits, mantissa_bits = FORMATS[kind]
    if kind in ("bf16", "tf32"):
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        drop = 23 - mantissa_bits
        special = ~np.isfinite(values)
        rounded = (bits + (1 << (drop - 1)) - 1 + (bits >> np.uint64(drop) & np.uint64(1))) >> np.uint64(drop)
        rounded = np.where(special, bits >> np.uint64(drop), rounded)
        return rounded.astype(np.uint16) if kind == "bf16" else (rounded << np.uint64(drop)).astype(np.uint32)
    bias = (1 << (exponent_bits - 1)) - 1
    top = 448.0 if kind == "e4m3" else 57344.0
    size = np.minimum(np.abs(values), top)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.maximum(np.floor(np.log2(np.where(size > 0, size, 1e-30))), 1 - bias)
        steps = np.rint(np.nan_to_num(size) / 2.0 ** (exponent - mantissa_bits)).astype(np.int64)
        code = steps + ((np.nan_to_num(exponent).astype(np.int64) + bias - 1) << mantissa_bits)
    code = np.where(np.isinf(values), 0x7C if kind == "e5m2" else 0x7E, code)
    code = np.where(np.isnan(values), 0x7F, code)
    coded: Array = (code | np.signbit(values).astype(np.int64) << 7).astype(np.uint8)
    return coded


def tiles(probes: Probes, m: int, n: int, k: int, kind: str) -> tuple[Array, Array, Array, list[str]]:
    """A, B and C of random and designed tiles, as values, and a name for each tile."""
    random, names = probes.random, []
    a, b, c = [], [], []
    z: Array

    def tile(name: str, x: Array, y: Array, z: Array) -> None:
        names.append(name)
        a.append(np.broadcast_to(x, (m, k)).astype(np.float64))
        b.append(np.broadcast_to(y, (k, n)).astype(np.float64))
        c.append(np.broadcast_to(z, (m, n)).astype(np.float64))

    if kind in ("s8", "u8"):
        low, high = (-128, 128) if kind == "s8" else (0, 256)
        for i in range(8):
            z = random.integers(-(1 << 31), 1 << 31, (m, n)) if i % 2 else random.integers(-999, 999, (m, n))
            tile(f"random {i}", random.integers(low, high, (m, k)), random.integers(low, high, (k, n)), z)
        return np.array(a), np.array(b), np.array(c), names

    def spread(*shape: int) -> Array:
        result: Array = np.exp2(random.uniform(-12, 12, shape)) * random.choice([-1.0, 1.0], shape)
        return result

    for i in range(8):
        tile(f"normal, C normal {i}", *(random.standard_normal(s) for s in ((m, k), (k, n), (m, n))))
        tile(f"normal, C spread {i}", random.standard_normal((m, k)), random.standard_normal((k, n)), spread(m, n))
        tile(f"spread, C spread {i}", spread(m, k), spread(k, n), spread(m, n))
        tile(f"normal, C zero {i}", random.standard_normal((m, k)), random.standard_normal((k, n)), np.zeros((m, n)))
    columns, rows = np.arange(n) % 8, np.arange(m) % 16
    for a_power in (1, 5, 8):
        for big in sorted({0, k // 4, k // 2, k - 1}):
            x = np.zeros((m, k))
            for row in range(m):
                places = [p for p in range(k) if p != big]
                count = {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: k}[rows[row] % 8]
                x[row, places[:count] if row % 2 else places[-count:]] = 2.0**-6 * (-1 if rows[row] >= 8 else 1)
            x[:, big] = 2.0**a_power
            y = np.full((k, n), 2.0**-8)
            y[big] = 2.0**columns
            product = np.broadcast_to(2.0 ** (a_power + columns), (m, n))
            for label, z in (
                ("0", 0 * product),
                ("-big", -product),
                ("big", product),
                ("2^-14", 0 * product + 2.0**-14),
            ):
                tile(f"one 2^{a_power}+column at {big}, others 2^-14, C {label}", x, y, z)
    small = 2.0**-6
    for power in range(8):  # C alone is large
        z = np.broadcast_to(2.0 ** (power + np.arange(n) % 8), (m, n)).copy()
        z[m // 2 :] *= -1
        x = np.where(np.arange(k)[None, :] <= np.arange(m)[:, None] % 16, small, 0)
        tile(f"C 2^{power}+column, products 2^-14", x, np.full((k, n), 2.0**-8), z)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-9, 2.0**-24, 448.0, 57344.0, 65504.0, 1.0, -1.0])
    for i in range(8):
        x, y, z = random.standard_normal((m, k)), random.standard_normal((k, n)), random.standard_normal((m, n))
        for values in (x, y, z):
            chance = random.random(values.shape) < (0.02, 0.1)[i % 2]
            values[chance] = random.choice(edges, values.shape)[chance]
        tile(f"specials {i}", x, y, z)
    tile("large", np.full((m, k), 240.0), np.full((k, n), 240.0), random.standard_normal((m, n)))
    tile("subnormal", 2.0**-9 * random.integers(-3, 4, (m, k)), 2.0**-9 * random.integers(-3, 4, (k, n)),
         2.0**-24 * random.integers(-3, 4, (m, n)))  # fmt: skip
    return np.array(a), np.array(b), np.array(c), names


def packed(bits: Array) -> Array:
    """Words of 32 bits from the last axis of elements."""
    return np.ascontiguousarray(bits).view(np.uint32)


def fragments(a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    """Registers of each lane for tiles' bits, as ``mma.m16n8`` lays them out: [tile, lane, register]."""
    thread = np.arange(32)
    group, quad = thread >> 2, thread & 3
    wide = a.itemsize == 8
    per = 1 if wide else 4 // a.itemsize
    element, k = np.arange(per), a.shape[2]
    if a.shape[1] == 8:  # m8n8k4 of f64
        return a[:, group, quad][..., None], b[:, quad, group][..., None], np.stack(
            [c[:, group, 2 * quad + i] for i in range(2)], axis=-1)  # fmt: skip
    regs_b = k // (4 * per)
    column = quad[:, None] * per + element
    fa = [a[:, (group + 8 * (r & 1))[:, None], column + (r >> 1) * 4 * per] for r in range(2 * regs_b)]
    fb = [b[:, column + r * 4 * per, group[:, None]] for r in range(regs_b)]
    if c.itemsize == 2:
        fc = [c[:, (group + 8 * r)[:, None], quad[:, None] * 2 + np.arange(2)] for r in range(2)]
    else:
        fc = [c[:, (group + 8 * (r >> 1))[:, None], (quad * 2 + (r & 1))[:, None]] for r in range(4)]
    join = [np.stack(f, axis=2) for f in (fa, fb, fc)]
    return tuple(j[..., 0] if j.itemsize == 8 else packed(j)[..., 0] for j in join)  # type: ignore[return-value]


def registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


def tensor_cores(probes: Probes) -> None:
    cases = [("m16n8k8", "f16", "f32"), ("m16n8k16", "f16", "f32"), ("m16n8k8", "f16", "f16"),
             ("m16n8k16", "f16", "f16"), ("m16n8k8", "bf16", "f32"), ("m16n8k16", "bf16", "f32"),
             ("m16n8k4", "tf32", "f32"), ("m16n8k8", "tf32", "f32"), ("m16n8k32", "e4m3", "f32"),
             ("m16n8k32", "e5m2", "f32"), ("m16n8k32", "e4m3", "f16"), ("m16n8k32", "e5m2", "f16"),
             ("m16n8k32", "s8", "s32"), ("m16n8k32", "u8", "s32"), ("m8n8k4", "f64", "f64"),
             ("m16n8k4", "f64", "f64"), ("m16n8k8", "f64", "f64"), ("m16n8k16", "f64", "f64"),
             ("sp", "f16", "f32")]  # fmt: skip
    for shape, kind, accumulator in cases:
        sparse = shape == "sp"
        m, n, k = (
            (16, 8, 32) if sparse else tuple(int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
        )
        a, b, c, names = tiles(probes, m, n, k, kind)
        if sparse:  # metadata 0x44444444 selects the elements 0 and 1 of every four
            a = a.reshape(len(a), m, k // 4, 4)[..., :2].reshape(len(a), m, k // 2)
        bits = encode(a, kind), encode(b, kind), encode(c, accumulator)
        if sparse:
            fa, _, fc = fragments(bits[0], bits[1][:, :16], bits[2])
            fb = np.concatenate([fragments(bits[0], bits[1][:, h : h + 16], bits[2])[1] for h in (0, 16)], axis=2)
        else:
            fa, fb, fc = fragments(*bits)
        ra, rb, rc = fa.shape[2], fb.shape[2], fc.shape[2]
        word, letter = ("b64", "d") if kind == "f64" else ("b32", "r")
        if sparse:
            name = "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32"
        else:
            name = f"mma.sync.aligned.{shape}.row.col.{accumulator}.{kind}.{kind}.{accumulator}"
        extra = ', "r"(0x44444444)' if sparse else ""
        tail = f", %{2 * rc + ra + rb}, 0x0" if sparse else ""
        register_type = "double" if kind == "f64" else ("float" if accumulator == "f32" else "unsigned")
        mark = {"double": "d", "float": "f", "unsigned": "r"}[register_type]
        loads = "".join(f"{register_type} d{i}, c{i} = (({register_type}*)c)[n * {rc} + {i}];" for i in range(rc))
        source_type = "double" if kind == "f64" else "unsigned"
        outs = ", ".join(f'"={mark}"(d{i})' for i in range(rc))
        ins = ", ".join([f'"{letter}"((({source_type}*)a)[n * {ra} + {i}])' for i in range(ra)]
                        + [f'"{letter}"((({source_type}*)b)[n * {rb} + {i}])' for i in range(rb)]
                        + [f'"{mark}"(c{i})' for i in range(rc)])  # fmt: skip
        lists = ", ".join([registers(0, rc), registers(rc, ra), registers(rc + ra, rb), registers(rc + ra + rb, rc)])
        stores = "".join(f"(({register_type}*)out)[n * {rc} + {i}] = d{i};" for i in range(rc))
        source = f"""extern "C" __global__ void k(void* out, const void* a, const void* b, const void* c) {{
unsigned n = blockIdx.x * 32 + threadIdx.x; {loads}
asm volatile("{name} {lists}{tail};" : {outs} : {ins}{extra}); {stores} }}"""
        for part, data in (("a", fa), ("b", fb), ("c", fc)):
            probes.inputs[f"{name} {part}"] = np.ascontiguousarray(data).reshape(-1)
        probes.add(name, source, [f"{name} {p}" for p in "abc"], (word, fc.size), grid=len(a), block=32,
                   group="tensor", tiles=names, accumulator=accumulator)  # fmt: skip
    for kind, k in (("f16", 16), ("bf16", 16), ("tf32", 8), ("e4m3", 32), ("e5m2", 32)):
        group_matrices(probes, kind, k)


def group_matrices(probes: Probes, kind: str, k: int) -> None:
    """``wgmma`` of 64 x 16 outputs, both operands in shared memory without swizzling."""
    a, b, c, names = tiles(probes, 64, 16, k, kind)
    keep = [i for i, name in enumerate(names) if not name.startswith("normal") or name.endswith(("0", "1", "2"))]
    a, b, c, names = a[keep], b[keep], c[keep], [names[i] for i in keep]
    count = len(names)

    def cores(bits: Array) -> Array:  # [tile, rows, 32 bytes]: matrices of 8 rows x 16 bytes, the two of a row adjacent
        raw = np.ascontiguousarray(bits).view(np.uint8).reshape(count, -1, 8, 2, 16)
        return np.ascontiguousarray(raw.transpose(0, 1, 3, 2, 4)).reshape(-1).view(np.uint32)

    thread = np.arange(128)
    row, quad = (thread >> 5) * 16 + (thread >> 2 & 7), thread & 3
    fc = np.stack([c[:, row + 8 * (i >> 1 & 1), 8 * (i >> 2) + 2 * quad + (i & 1)] for i in range(8)], axis=2)
    types = f"f32.{kind}.{kind}"
    name = f"wgmma.mma_async.sync.aligned.m64n16k{k}.{types}"
    tail = "p, 1, 1, 0, 0" if kind in ("f16", "bf16") else "p, 1, 1"
    loads = "".join(f"float d{i} = c[n * 8 + {i}];" for i in range(8))
    outs = ", ".join(f'"+f"(d{i})' for i in range(8))
    stores = "".join(f"out[n * 8 + {i}] = d{i};" for i in range(8))
    source = f"""extern "C" __global__ void k(float* out, const unsigned* a, const unsigned* b, const float* c) {{
__shared__ __align__(1024) unsigned sa[512]; __shared__ __align__(1024) unsigned sb[128];
unsigned t = threadIdx.x, n = blockIdx.x * 128 + t;
for (int i = 0; i < 4; i++) sa[i * 128 + t] = a[blockIdx.x * 512 + i * 128 + t];
sb[t] = b[n]; asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads(); {loads}
unsigned long long flags = (8ull << 16) | (16ull << 32);
unsigned long long x = flags | (((unsigned)__cvta_generic_to_shared(sa) & 0x3ffff) >> 4);
unsigned long long y = flags | (((unsigned)__cvta_generic_to_shared(sb) & 0x3ffff) >> 4);
asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
asm volatile("{{.reg .pred p; setp.eq.u32 p, 0, 0; {name} {registers(0, 8)}, %8, %9, {tail};}}"
: {outs} : "l"(x), "l"(y));
asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory"); {stores} }}"""
    probes.inputs[f"{name} a"] = cores(encode(a, kind))
    probes.inputs[f"{name} b"] = cores(encode(np.ascontiguousarray(b.transpose(0, 2, 1)), kind))
    probes.inputs[f"{name} c"] = encode(fc, "f32").reshape(-1)
    probes.add(name, source, [f"{name} {p}" for p in "abc"], ("b32", fc.size), grid=count, block=128, group="tensor",
               tiles=names, accumulator="f32")  # fmt: skip


# Largest errors over all inputs -------------------------------------------------------------------------------------

EXACT = {"ex2.approx": "exp2(x)", "lg2.approx": "log2(x)", "sin.approx": "sin(x)", "cos.approx": "cos(x)",
         "tanh.approx": "tanh(x)", "rcp.approx": "1.0 / x", "rsqrt.approx": "1.0 / sqrt(x)",
         "sqrt.approx": "sqrt(x)"}  # fmt: skip


def full_ranges(probes: Probes) -> None:
    for function, exact in EXACT.items():
        step = 16 if function[:3] in ("sin", "cos") else 1
        source = f"""__device__ void largest(unsigned long long* table, double error, unsigned bits) {{
float e = (float)error; unsigned long long key = ((unsigned long long)__float_as_uint(e) << 32) | bits;
if (key > *(volatile unsigned long long*)table) atomicMax(table, key); }}
extern "C" __global__ void k(unsigned long long* out) {{
unsigned bin = blockIdx.x >> 4, part = blockIdx.x & 15; double worst[3] = {{-1, -1, -1}}; unsigned at[3] = {{0, 0, 0}};
int large = (bin & 255) >= 148; unsigned step = large ? {step} : 1;
for (unsigned m = (part * 256 + threadIdx.x) * step; m < (1u << 23); m += 4096 * step) {{
  unsigned bits = bin << 23 | m; float a = __uint_as_float(bits), r; double x = a;
  asm("{function}.f32 %0, %1;" : "=f"(r) : "f"(a));
  double y = {exact}; float near = (float)y; double e[3];
  if (isnan(y) || isinf(near) || isnan(r) || isinf(r)) {{
    bool same = isnan(y) ? isnan(r) : near == r; double bad = same ? 0.0 : __longlong_as_double(0x7ff0000000000000ll);
    e[0] = e[1] = e[2] = bad;
  }} else {{
    double gap = fabs((double)r - y); int exponent = max(ilogb(y == 0 ? 1e-300 : y), -126);
    e[0] = ldexp(gap, 23 - exponent); e[1] = gap == 0 ? 0 : gap / fabs(y); e[2] = gap; }}
  for (int i = 0; i < 3; i++) if (e[i] > worst[i]) {{ worst[i] = e[i]; at[i] = bits; }}
}}
for (int i = 0; i < 3; i++) if (worst[i] >= 0) largest(out + bin * 3 + i, worst[i], at[i]); }}"""
        probes.add(f"largest error of {function}.f32", source, [], ("b64", 512 * 3), grid=8192, block=256,
                   group="range", tiles=["ulp", "relative", "absolute"])  # fmt: skip


# The verbs ----------------------------------------------------------------------------------------------------------


def compiled(source: str, arch: str) -> bytes:
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"probe.cu", 0, [], [])
    flags = [f"--gpu-architecture={arch}".encode(), b"-default-device"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if int(status):
        log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    size, get = (
        (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) if arch[0] == "s" else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    )
    data = bytearray(size(program)[1])
    get(program, data)
    return bytes(data)


def prepare(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    probes = Probes()
    for make in (functions, conversions, tensor_cores, full_ranges):
        make(probes)
    files: dict[str, Array] = {}
    kept, failed = [], 0
    for number, item in enumerate(probes.items):
        try:
            source = item.pop("source")
            files[f"cubin {number}"] = np.frombuffer(compiled(source, "sm_90a"), np.uint8)
            files[f"ptx {number}"] = np.frombuffer(compiled(source, "compute_90a"), np.uint8)
        except Exception as error:
            failed += 1
            print(f"{item['name']}: {str(error)[-1500:]}")
            continue
        kept.append({**item, "number": number})
    np.savez_compressed(folder / "code.npz", **files)  # type: ignore[arg-type]
    order = {name: f"input {i}" for i, name in enumerate(probes.inputs)}
    np.savez_compressed(folder / "inputs.npz", **{order[n]: v for n, v in probes.inputs.items()})  # type: ignore[arg-type]
    (folder / "probes.json").write_text(json.dumps({"inputs": order, "probes": kept}))
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{len(kept)} probes, {failed} failed to compile, {size / 1e6:.1f} MB in {folder}")
    return int(failed > 0)


def load(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Array], dict[str, Array]]:
    manifest = json.loads((folder / "probes.json").read_text())
    with np.load(folder / "inputs.npz") as data:
        inputs = {name: data[key] for name, key in manifest["inputs"].items()}
    with np.load(folder / "code.npz") as data:
        code = {key: data[key] for key in data.files}
    return manifest["probes"], inputs, code


def child(folder: Path, output: Path, first: int) -> int:
    """Run the probes from one on; each result is a file, so that a crash loses one probe."""
    import cupy  # type: ignore[import-not-found,import-untyped,unused-ignore]

    probes, inputs, code = load(folder)
    for index in range(first, len(probes)):
        probe, started = probes[index], time.perf_counter()
        (output / "at").write_text(str(index))
        signal.alarm(8)  # ends the process if a kernel hangs
        try:
            image = output / f"{index}.cubin"  # cupy keeps a module by its path
            image.write_bytes(code[f"cubin {probe['number']}"].tobytes())
            kernel = cupy.RawModule(path=str(image)).get_function("k")
            out = cupy.zeros(probe["out"][1], DTYPES[probe["out"][0]])
            arguments = [out, *(cupy.asarray(inputs[n]) for n in probe["inputs"])]
            arguments += [np.uint32(s) for s in probe["scalars"]]
            kernel((probe["grid"],), (probe["block"],), tuple(arguments))
            result = out.get()
        except Exception as error:
            record = {"error": f"{type(error).__name__}: {error}"[:500]}
            (output / f"{index}.json").write_text(json.dumps(record))
            try:
                cupy.cuda.runtime.deviceSynchronize()
            except Exception:
                return 3  # the context is lost
            continue
        np.save(output / f"{index}.npy", result)
        (output / f"{index}.json").write_text(json.dumps({"seconds": round(time.perf_counter() - started, 4)}))
    return 0


def run(folder: Path, output: Path) -> int:
    import tempfile

    output.mkdir(parents=True, exist_ok=True)
    probes = json.loads((folder / "probes.json").read_text())["probes"]
    started, first, limit, log = time.monotonic(), 0, 36.0, ""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        while first < len(probes):
            remaining = limit - (time.monotonic() - started)
            if remaining < 1:
                break
            command = [sys.executable, __file__, "child", str(folder), "--output", name, "--first", str(first)]
            try:
                done = subprocess.run(command, timeout=remaining, capture_output=True, text=True)
                log = done.stderr[-2000:]
                if done.returncode == 0:
                    break
            except subprocess.TimeoutExpired:
                log = "out of time"
            at = int((work / "at").read_text()) if (work / "at").exists() else -1
            if at < first:  # it never began
                break
            record = work / f"{at}.json"
            if not record.exists():
                record.write_text(json.dumps({"error": f"the process ended: {log[-400:]}"}))
            first = at + 1
        arrays, records = {}, []
        for index, probe in enumerate(probes):
            path = work / f"{index}.json"
            record_of = json.loads(path.read_text()) if path.exists() else {"error": "not run"}
            if "error" not in record_of:
                arrays[probe["name"]] = np.load(work / f"{index}.npy")
            records.append({"name": probe["name"], **record_of})
    (output / "numerics.json").write_text(json.dumps({"log": log, "probes": records}, indent=1))
    np.savez_compressed(output / "numerics.npz", **{f"{i}": v for i, v in enumerate(arrays.values())},
                        names=np.array(list(arrays)))  # fmt: skip
    bad = [r for r in records if "error" in r]
    for record_of in bad[:20]:
        print(f"{record_of['name']}: {record_of['error'][:200]}")
    print(f"{len(arrays)} of {len(probes)} probes in {time.monotonic() - started:.1f} s; "
          f"numerics.npz {(output / 'numerics.npz').stat().st_size / 1e6:.1f} MB; {log[-300:]}")  # fmt: skip
    return int(bool(bad))


def emulated(probe: dict[str, Any], inputs: dict[str, Array], code: dict[str, Array], variation: int) -> Array:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.devices.emulated.harness import Device

    ptx = code[f"ptx {probe['number']}"].tobytes().rstrip(b"\0").decode()
    out = np.zeros(probe["out"][1], DTYPES[probe["out"][0]])
    arrays = [np.ascontiguousarray(inputs[n]) for n in probe["inputs"]]
    Device(ptx, threads=2).run(probe["grid"], probe["block"], out, *arrays, *probe["scalars"], variation=variation)
    return out


def ordered(bits: Array, kind: str) -> Array:
    """Floats' bits as integers in the floats' order."""
    width = 8 * bits.itemsize
    signed = bits.astype(np.uint64).astype(np.int64)
    if kind == "f64":
        signed = bits.view(np.int64)
        return np.where(signed < 0, np.int64(-(2**63)) - signed, signed)
    return np.where(signed >> (width - 1) & 1, (1 << (width - 1)) - signed, signed)


LIMITS = {"ex2": ("ulp", 2.5), "rcp": ("ulp", 1.0), "div": ("ulp", 2.5), "sqrt": ("relative", 2.0**-23),
          "rsqrt": ("relative", 2.0**-22.9), "tanh": ("relative", 2.0**-11), "sin": ("absolute", 2.0**-20.5),
          "cos": ("absolute", 2.0**-20.5), "lg2": ("relative", 2.0**-22)}  # fmt: skip
"""Errors that the PTX ISA documents for float32, and half a unit where it counts from the rounded result."""


def outside(name: str, operands: list[Array], result: Array) -> dict[str, Any] | None:
    """Results of a float32 function outside the documented error, counted among normal operands and results."""
    function = name.split(".")[0]
    if not name.endswith(".f32") or function not in LIMITS:
        return None
    x, *others = (bits.view(np.float32).astype(np.float64) for bits in operands)
    exact: dict[str, Any] = {"ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
             "sqrt": np.sqrt, "rcp": np.reciprocal, "rsqrt": lambda v: 1 / np.sqrt(v)}  # fmt: skip
    with np.errstate(all="ignore"):
        truth = x / others[0] if function == "div" else exact[function](x)
        value = result.view(np.float32).astype(np.float64)
        normal = (np.abs(truth) >= 2.0**-126) & (np.abs(truth) < 2.0**128) & (np.abs(x) >= 2.0**-126)
        if function == "div":
            normal &= (np.abs(others[0]) >= 2.0**-126) & (np.abs(others[0]) <= 2.0**126)
        error, (unit, limit) = np.abs(value - truth), LIMITS[function]
        if function in ("sin", "cos"):
            normal &= np.abs(x) <= 2 * np.pi
        ulp = np.exp2(np.floor(np.log2(np.abs(truth))) - 23)
        scale = {"ulp": ulp, "relative": np.abs(truth), "absolute": np.ones_like(x)}[unit]
        if function == "lg2":
            scale = np.where((x > 0.5) & (x < 2), 1.0, scale)
        shares = np.where(np.isnan(value), np.inf, error / scale / limit)[normal]
    return {"checked": len(shares), "outside": int((shares > 1).sum()), "largest_share": float(shares.max(initial=0))}


def compare(folder: Path, output: Path) -> int:
    probes, inputs, code = load(folder)
    with np.load(output / "numerics.npz") as data:
        hardware = {str(name): data[str(i)] for i, name in enumerate(data["names"])}
    rows = []
    for probe in probes:
        name = probe["name"]
        if name not in hardware:
            continue
        there = hardware[name]
        if probe["group"] == "range":
            table = there.reshape(512, 3)
            errors = (table >> np.uint64(32)).astype(np.uint32).view(np.float32)
            finite = np.where(np.isfinite(errors), errors, -1)
            at = [int(table[finite[:, i].argmax(), i] & np.uint64(0xFFFFFFFF)) for i in range(3)]
            row = {"name": name, "largest": [float(x) for x in finite.max(axis=0)], "at": [f"{x:08x}" for x in at],
                   "disagree": [f"{b:03x}" for b in np.flatnonzero(~np.isfinite(errors[:, 0]))]}  # fmt: skip
            print(json.dumps(row))
            rows.append(row)
            continue
        try:
            here = emulated(probe, inputs, code, 0)
        except BaseException as error:
            rows.append({"name": name, "error": f"{type(error).__name__}: {str(error)[:300]}"})
            print(json.dumps(rows[-1]))
            continue
        narrow = name.endswith("16x2") or probe.get("accumulator") == "f16"
        near, far = (here.view("u2"), there.view("u2")) if narrow else (here, there)
        kind = "f64" if near.itemsize == 8 else "f32"
        wrong = np.flatnonzero(near != far)
        distance = np.abs(ordered(near, kind).astype(np.float64) - ordered(far, kind).astype(np.float64))
        row = {"name": name, "results": len(near), "equal": len(near) - len(wrong), "differ": len(wrong),
               "worst_ulp": float(distance.max(initial=0)), "first": []}  # fmt: skip
        row["bound"] = outside(name, [inputs[n] for n in probe["inputs"]], there)
        per = len(near) // len(inputs[probe["inputs"][0]]) if "tiles" not in probe else 0
        for index in wrong[:4]:
            where = probe["tiles"][index * len(probe["tiles"]) // len(near)] if "tiles" in probe else [
                f"{int(inputs[n][index // max(per, 1)]):x}" for n in probe["inputs"]]  # fmt: skip
            row["first"].append([where, f"hardware {int(far[index]):x}", f"emulated {int(near[index]):x}"])
        if "tiles" in probe and len(wrong):
            share = np.bincount(wrong * len(probe["tiles"]) // len(near), minlength=len(probe["tiles"]))
            row["tiles"] = {t: int(s) for t, s in zip(probe["tiles"], share, strict=True) if s}
        rows.append(row)
        print(json.dumps({k: v for k, v in row.items() if k != "tiles"}))
    (output / "compared.json").write_text(json.dumps(rows, indent=1))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("verb", choices=["prepare", "run", "child", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    output = arguments.output or arguments.out
    if arguments.verb == "prepare":
        return prepare(arguments.folder)
    if output is None:
        parser.error("OUT is missing")
    if arguments.verb == "child":
        return child(arguments.folder, output, arguments.first)
    return run(arguments.folder, output) if arguments.verb == "run" else compare(arguments.folder, output)


if __name__ == "__main__":
    sys.exit(main())
