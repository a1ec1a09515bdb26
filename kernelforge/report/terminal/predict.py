"""Predictions for a matrix product in the terminal."""

from __future__ import annotations

from rich.console import Group

from kernelforge.report.formatting import number
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.terminal.widgets import field
from kernelforge.tiles import ProductPrediction


def product_lines(prediction: ProductPrediction) -> Group:
    """Every choice of tiles with its modelled time and its estimated energy."""
    columns = (
        Column("tile", "tiles"),
        Column("threads", "threads", number, "right"),
        Column("blocks", "blocks", number, "right"),
        Column("registers", "registers", number, "right"),
        Column("time_us", "modelled us", number, "right"),
        Column("bound", "bound"),
        Column("energy_mj", "estimated mJ", number, "right"),
    )
    product = f"{prediction.m} x {prediction.n}, sums of {prediction.k}, FP32"
    return Group(
        field("device", f"{prediction.device}; times are modelled ({prediction.protocol}), energies estimated"),
        field("product", product),
        Table.of("Tiles, the fastest first", columns, prediction.tiles).to_rich(),
    )
