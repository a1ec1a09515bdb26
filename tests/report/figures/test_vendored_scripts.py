"""Vendored scripts are the published files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import kernelforge.report.html

VENDOR = Path(kernelforge.report.html.__file__).parent / "static" / "vendor"
ROW = re.compile(r"^\| `([\w.-]+)` \| .* \| (\d+\.\d+\.\d+) \| [\w-]+ \| `([0-9a-f]{64})` \|$", re.MULTILINE)


def test_every_script_has_the_hash_that_its_table_gives() -> None:
    expected = {name: digest for name, _, digest in ROW.findall((VENDOR / "README.md").read_text())}
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.glob("*.js")} == expected


def test_every_script_comes_with_its_licence() -> None:
    for path in VENDOR.glob("*.js"):
        assert "Redistribution" in (VENDOR / path.name.replace(".min.js", ".LICENSE")).read_text(), path.name


def test_the_table_names_the_version_that_a_script_says_it_is() -> None:
    versions = {name: version for name, version, _ in ROW.findall((VENDOR / "README.md").read_text())}
    assert f"Highlight.js v{versions['highlight.min.js']}" in (VENDOR / "highlight.min.js").read_text()[:200]
    for name in ("vega", "vega-lite"):
        assert f'"{versions[f"{name}.min.js"]}"' in (VENDOR / f"{name}.min.js").read_text()
