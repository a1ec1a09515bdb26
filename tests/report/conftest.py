"""Finds the golden run, which lies with the store's tests, and the parser of pages."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "store"))
sys.path.append(str(Path(__file__).resolve().parent / "html"))
