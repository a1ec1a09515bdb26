"""Shared by all tests: the paths to ``builders.py`` and to ``fake_server.py``, which speaks as providers do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "llm")]
