"""Tiles of matrix products: predicted times and energies, without a GPU."""

from kernelforge.tiles.energy import energy_mj
from kernelforge.tiles.products import TILES, ProductPrediction, TilePrediction, predict_product

__all__ = ["TILES", "ProductPrediction", "TilePrediction", "energy_mj", "predict_product"]
