"""Predictions for matrix products: the kernel is right, choices are ordered by time, energies are the sum of parts."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from kernelforge import emulate
from kernelforge.errors import DeviceError, UsageError
from kernelforge.tiles import TILES, predict_product
from kernelforge.tiles.products import Tile


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "tile", [TILES[1], *(pytest.param(tile, marks=pytest.mark.slow) for tile in (TILES[0], *TILES[2:]))], ids=str
)
def test_the_kernel_computes_the_product_at_sizes_that_no_tile_divides(tile: Tile) -> None:
    m, n, k = 67, 93, 37
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    source = files("kernelforge.tiles").joinpath("kernels/product.cu").read_text().partition('extern "C"')[0]
    expression = f"product<{', '.join(map(str, tile))}>"
    grid = (-(-n // tile.columns), -(-m // tile.rows))
    plan = f"""
def forward(a, b):
    c = empty(({m}, {n}), dtype=float32)
    kernel("{expression}")[{grid}, {tile.threads}](a, b, c, i32({m}), i32({n}), i32({k}))
    return c
"""
    result = emulate(source, None, {"a": a, "b": b}, plan=plan, profile=False).check()
    product = next(values for name, values in result.tensors.items() if name not in ("a", "b"))
    assert np.allclose(product, a @ b, atol=1e-4)


@pytest.mark.slow
def test_choices_are_ordered_by_time_and_large_tiles_win_a_large_product() -> None:
    prediction = predict_product(2048, 2048, 256, device="emulated:rtx-4090")
    assert prediction.device == "emulated:rtx-4090"
    assert (prediction.origin, prediction.protocol[:9]) == ("modelled", "emulated/")
    assert len(prediction.tiles) == len(TILES)
    times = [tile.time_us for tile in prediction.tiles]
    assert times == sorted(times)
    by_name = {tile.tile: tile for tile in prediction.tiles}
    smallest, larger = by_name[str(TILES[0])], by_name[str(TILES[3])]
    assert larger.time_us < smallest.time_us
    assert larger.energy_mj < smallest.energy_mj
    for tile in prediction.tiles:
        assert tile.energy_mj == pytest.approx(sum(tile.energy_parts_mj.values()))
        # 2048 x 2048 x 256 multiply-adds of 4.6 pJ, for all tiles.
        assert tile.energy_parts_mj["fp32"] == pytest.approx(2048 * 2048 * 256 * 4.6e-9, rel=0.05)
        assert tile.blocks * 1.0 == np.ceil(2048 / int(tile.tile.split()[0])) * np.ceil(
            2048 / int(tile.tile.split()[2])
        )


@pytest.mark.parametrize("extents", [(0, 1, 1), (1, -1, 1), (1, 1, 1 << 15)])
def test_extents_that_cannot_be_are_refused(extents: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="give a number from 1 to 16384"):
        predict_product(*extents)


def test_only_an_emulated_device_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="there is no device"):
        predict_product(1, 1, 1, device="emulated:h1000")
    monkeypatch.setattr("kernelforge.tiles.products.check_device", lambda name: name)
    with pytest.raises(UsageError, match="predictions need no GPU"):
        predict_product(1, 1, 1, device="cuda:0")
