"""Finds the parser of pages, and renders the golden runs once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import pytest

from tests.report.html.html_dom import Element, parse


@pytest.fixture(scope="session")
def pages() -> Callable[..., Mapping[str, str]]:
    """``pages("modelled")``: every page of a site of golden runs, by path."""
    from kernelforge.report.html import Site
    from tests.report.golden.golden_runs import golden_records

    @cache
    def rendered(*names: str) -> Mapping[str, str]:
        site = Site([golden_records(name) for name in names])
        return {path: site.render(path) or "" for path in (*site.pages(), *site.data())}

    return rendered


@pytest.fixture(scope="session")
def trees(pages: Callable[..., Mapping[str, str]]) -> Callable[..., Mapping[str, Element]]:
    """The same pages parsed; data left out."""

    @cache
    def parsed(*names: str) -> Mapping[str, Element]:
        return {path: parse(text) for path, text in pages(*names).items() if path.endswith(".html")}

    return parsed
