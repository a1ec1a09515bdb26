"""A site as a folder, or as one file. The old one stays whole until the new one is."""

from __future__ import annotations

import shutil
from pathlib import Path

from kernelforge.report.html.site import Site

MARK = "report.json"
"""Its presence in a folder says that the folder is a report of ours, which a new one may replace."""


def write_folder(site: Site, folder: Path) -> int:
    """Write every page, file of data and asset; gives back the size in bytes."""
    size = 0
    for path in (*site.pages(), *site.data()):
        text = site.render(path)
        assert text is not None
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        target.write_bytes(data)
        size += len(data)
    (folder / "assets").mkdir(exist_ok=True)
    for name, source in site.assets().items():
        shutil.copyfile(source, folder / "assets" / name)
        size += source.stat().st_size
    return size
