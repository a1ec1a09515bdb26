"""Finds the golden run, which lies with the store's tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "store"))
