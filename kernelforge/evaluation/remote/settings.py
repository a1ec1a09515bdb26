"""Records that both sides of a connection exchange when it begins."""

from __future__ import annotations

from kernelforge.devices.base import Capabilities
from kernelforge.records import Fingerprint, MeasureSettings, Record

ENTRY = "kernelforge.evaluation.remote.far_end"
"""Module of the process on the other machine."""


class FarSettings(Record):
    """Settings of the process on the other machine."""

    device: str
    jobs: int = 1
    """Tasks worked on at a time, which share the machine's processors."""
    measure: MeasureSettings = MeasureSettings()
    allow_unconfined: bool = False


class FarDevice(Record):
    """The device there, and the fingerprint of evaluations on it."""

    name: str
    arch: str
    spec: str
    """Key of its figures: see :func:`kernelforge.hardware.specs.spec_by_key`."""
    capabilities: dict[str, bool]
    description: dict[str, str]
    fingerprint: Fingerprint

    def known_capabilities(self) -> Capabilities:
        """As of the device itself."""
        return Capabilities(**self.capabilities)
