"""Devices on every kind of software driver, with one helper process for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kernelforge.sandbox import Child, Limits, Zygote, role_policy
from tests.devices.cuda.software import DeviceOf, SoftwareDevice


class Naming:
    """Children of a helper process; each receives the name of its driver."""

    def __init__(self, zygote: Zygote, driver: str) -> None:
        self._zygote, self._driver = zygote, driver

    def spawn(self, limits: Limits) -> Child:
        child = self._zygote.spawn(limits)
        child.call({"driver": self._driver})
        return child

    def close(self) -> None:
        """Left warm for the next."""


@pytest.fixture(scope="module")
def device(open_warm: Callable[..., Any]) -> Iterator[SoftwareDevice]:
    with open_warm(SoftwareDevice) as made:
        yield made


@pytest.fixture(scope="session")
def device_of(kept_zygotes: Callable[..., Zygote]) -> DeviceOf:
    """Makes a device on the driver that a factory of ``software.py`` makes."""

    def make(factory: str) -> SoftwareDevice:
        device = SoftwareDevice(factory)
        policy = replace(role_policy("gpu-runner"), module="tests.devices.cuda.named_driver")
        options = {"driver": "tests.devices.cuda.software:create", "ordinal": 0}
        zygote = kept_zygotes("gpu-runner", policy=policy, options=options)
        device._zygote = Naming(zygote, device.driver_options["driver"])  # type: ignore[assignment]
        return device

    return make
