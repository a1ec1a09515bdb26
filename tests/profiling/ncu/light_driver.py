"""The software driver for processes that call no torch operator: they start a good deal faster without torch."""

from __future__ import annotations

from kernelforge.devices.emulated.execute import loaded_module
from tests.devices.cuda.software import SoftwareDriver


def warm_up() -> None:
    loaded_module.warm_up()


def create(ordinal: int) -> SoftwareDriver:
    return SoftwareDriver(ordinal)
