"""Makes the builders of the oracle's tests importable here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
