"""How a device that measures is used: whether settings suit it, and how its memory is shared out."""

from __future__ import annotations

from typing import Final

from kernelforge.errors import UsageError
from kernelforge.records import MeasureSettings

GPU_SHARE: Final = 0.6
"""Part of a GPU's memory that torch may take in the oracle's process; the rest is the candidate's runner's."""


def check_measure(settings: MeasureSettings, device: str) -> MeasureSettings:
    """The settings, if the device has a use for them.

    Raises:
        UsageError: an emulated device measures nothing, and something else than the defaults is asked of it.
    """
    changed = settings.model_dump(exclude_defaults=True)
    # Full counters are what an emulated device always gives.
    changed.pop("counters", None)
    if changed and device.startswith("emulated"):
        asked = ", ".join(f"{name}={value}" for name, value in changed.items())
        raise UsageError(f"{device} models time and measures nothing, so {asked} has no use there; name a GPU (cuda:0)")
    return settings
