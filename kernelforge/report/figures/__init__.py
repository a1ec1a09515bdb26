"""Figures of views: what to draw is said once, for pages, PNG and SVG."""

from kernelforge.report.figures.base import Figure

__all__ = ["Figure"]
