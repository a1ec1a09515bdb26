"""Output of a terminal."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def drawn(*parts: RenderableType, width: int = 120, colours: bool = False) -> str:
    """The parts as a terminal of that width shows them."""
    file = io.StringIO()
    console = Console(width=width, file=file, markup=False, highlight=False, emoji=False, force_terminal=colours)
    for part in parts:
        console.print(part)
    return file.getvalue()
