"""Views as web pages: a folder of files, or one file, that needs no network."""

from kernelforge.report.html.site import Page, Site

__all__ = ["Page", "Site"]
