"""The sums of a Hopper GPU's tensor cores in NumPy, one block of products after another."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
SMALLEST = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "e2m3": 0, "e3m2": -2, "e2m1": 0,
            "f32": -126}  # fmt: skip


def exponents(values: Array, kind: str) -> Array:
    """Exponents as a tensor core sees them; a zero's is far below any other."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.frexp(values)[1] - 1
    return np.where(values == 0, -10000, np.maximum(exponent, SMALLEST[kind]))


def toward_zero(values: Array, bits: int) -> Array:
    """f32 with ``bits`` bits after the leading one."""
    _, exponent = np.frexp(values)
    unit = np.ldexp(1.0, np.maximum(exponent - 1 - bits, -149))
    return np.where(np.isfinite(values), np.trunc(values / unit) * unit, values)


def block_sum(a: Array, b: Array, c: Array, kinds: tuple[str, str, str], aligned: int) -> Array:
    """``a b + c``, every term cut off ``aligned`` bits below the largest exponent."""
    with np.errstate(invalid="ignore", over="ignore"):
        products = a[:, :, None] * b[None]
        largest = (exponents(a, kinds[0])[:, :, None] + exponents(b, kinds[1])[None]).max(axis=1)
        largest = np.maximum(largest, exponents(c, kinds[2]))
        unit = np.ldexp(1.0, np.where(largest < -5000, 0, largest) - aligned)
        total = (np.trunc(products / unit[:, None]).sum(axis=1) + np.trunc(c / unit)) * unit
        plain = products.sum(axis=1) + c
    return np.where(np.isfinite(plain), total, plain) + 0.0


def tensor_core_sum(
    a: Array, b: Array, c: Array, kinds: tuple[str, str, str], *, group: bool = False, sparse: bool = False
) -> Array:
    """``a b + c`` of values (m, k), (k, n) and (m, n) in f64, with types of A, B and D; D as f16 or f32.

    ``group``: of ``wgmma`` and not ``mma``; ``sparse``: two of four elements of ``a`` are stored.
    """
    narrow, result = kinds[0] in ("e4m3", "e5m2"), np.float16 if kinds[2] == "f16" else np.float32
    c = c.astype(np.float64)

    def rounded(values: Array, bits: int) -> Array:
        with np.errstate(over="ignore"):
            return values.astype(np.float16) if kinds[2] == "f16" else toward_zero(values, bits).astype(np.float32)

    if not narrow or group:
        bits = 13 if narrow else 23
        return rounded(block_sum(a, b, c, kinds, 13 if narrow else 25), bits)
    index = np.arange(a.shape[1])
    part_of = index // (4 if sparse else 2) % 2
    parts = [index[part_of == pair] for pair in (0, 1)] if len(index) > 16 else [index]
    total = np.zeros(c.shape)
    for part in parts:
        total = rounded(block_sum(a[:, part], b[part], total, kinds, 25), 23).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        summed: Array = total.astype(result) + c.astype(result)
    return summed
