"""The software driver for processes that call no torch operator: they start a good deal faster without torch."""

from __future__ import annotations

from devices.cuda.software import SoftwareDriver

from kernelforge.devices.emulated import machine


def warm_up() -> None:
    machine.warm_up()


def create(ordinal: int) -> SoftwareDriver:
    return SoftwareDriver(ordinal)
