"""Web pages of views: a folder of files or a single file, without network access."""

from kernelforge.report.html.site import Page, Site

__all__ = ["Page", "Site"]
