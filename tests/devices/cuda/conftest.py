"""Make the helpers of the emulated device's tests importable: sources, plans, requests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "emulated"))
