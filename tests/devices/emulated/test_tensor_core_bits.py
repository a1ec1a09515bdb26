"""Matrix products of the emulated device against those of an H100, bit for bit."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.hardware_numerics import DTYPES, Probes, tensor_cores
from tests.devices.emulated.harness import cuda
from tests.devices.emulated.tensor_core_sums import tensor_core_sum
from tests.devices.emulated.test_matrix_products import matrix_of, raw_bf16, value_bf16

MEASURED = Path(__file__).parents[3] / "results" / "reference" / "h100" / "tensor_cores.npz"
RNG = np.random.default_rng(31)


@functools.cache
def measured() -> dict[str, tuple[list[str], list[np.ndarray]]]:
    """Names of tiles, then A, B, C and D, by instruction."""
    with np.load(MEASURED) as data:
        probes = json.loads(str(data["probes"]))
        return {p["name"]: (p["tiles"], [data[f"{k} {part}"] for part in "abcd"]) for k, p in enumerate(probes)}


@functools.cache
def probes() -> dict[str, dict[str, Any]]:
    """The kernels that the H100 ran, by instruction."""
    made = Probes()
    tensor_cores(made)
    return {item["name"]: item for item in made.items}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", sorted(measured()))
def test_results_are_those_of_an_h100(name: str) -> None:
    tiles, (a, b, c, expected) = measured()[name]
    probe = probes()[name]
    out = np.zeros(len(expected), DTYPES[probe["out"][0]])
    cuda(probe["source"]).run(len(tiles), probe["block"], out, a, b, c)
    wrong = np.flatnonzero(out != expected)
    examples = [(tiles[n * len(tiles) // len(out)], f"{expected[n]:x}", f"{out[n]:x}") for n in wrong[:4]]
    assert not len(wrong), f"{len(wrong)} of {len(out)} differ: tile, H100, emulated: {examples}"


@pytest.mark.parametrize("spread", [12, 60, 127])
def test_exponents_of_the_whole_range(spread: int) -> None:
    """Sums that f32 cannot hold, and subnormal ones, follow the same rules."""
    for _ in range(8):
        a, b = (
            raw_bf16(np.ldexp(RNG.standard_normal(s), RNG.integers(-spread, spread, s))) for s in ((16, 16), (16, 8))
        )
        if spread == 127:
            a[:, RNG.integers(16)] >>= 7  # subnormal
        with np.errstate(over="ignore", under="ignore"):
            c = np.ldexp(RNG.standard_normal((16, 8)), RNG.integers(-149, spread, (16, 8))).astype(np.float32)
        d = matrix_of("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, a, b, c)
        expected = tensor_core_sum(value_bf16(a).astype(float), value_bf16(b).astype(float), c, ("bf16", "bf16", "f32"))
        assert np.array_equal(d.view(np.float32), expected, equal_nan=True)
