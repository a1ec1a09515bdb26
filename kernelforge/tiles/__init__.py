"""Tiles of matrix products: predicted times and energies, without a GPU."""

from kernelforge.tiles.products import TILES, ProductPrediction, TilePrediction, predict_product

__all__ = ["TILES", "ProductPrediction", "TilePrediction", "predict_product"]
