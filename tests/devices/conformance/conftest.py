"""Every device that the suite is run on: emulated, the CUDA lane on a software driver, and a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices import check_device, make_device
from kernelforge.devices.base import Device
from kernelforge.devices.cuda.discovery import missing_packages
from kernelforge.errors import DeviceError
from kernelforge.records import MeasureSettings
from kernelforge.sandbox import select_tier
from tests.devices.cuda.plans import Make, Weights, build, resolve
from tests.devices.cuda.software import SoftwareDevice

DEVICES = [
    "emulated:h100",
    "software",
    pytest.param("cupy", marks=pytest.mark.gpu),
    pytest.param("pycuda", marks=pytest.mark.gpu),
]


def gpu(runtime: str) -> Device:
    """The first GPU, or a skip that says what is missing."""
    settings = MeasureSettings.model_validate({"runtime": runtime})
    try:
        check_device("cuda:0")
    except DeviceError as error:
        pytest.skip(str(error))
    missing = missing_packages(settings.runtime)
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    return make_device("cuda:0", measure=settings)


@pytest.fixture(scope="package", params=DEVICES)
def device(request: pytest.FixtureRequest, open_warm: Callable[..., Device]) -> Iterator[Device]:
    if select_tier().tier == "none":
        pytest.skip("no jail tier works on this machine")
    made: Device
    if request.param == "software":
        made = open_warm(SoftwareDevice)
    elif request.param in ("cupy", "pycuda"):
        made = gpu(request.param)
    else:
        made = open_warm(make_device, request.param, threads=2)
    yield made
    made.close()


@pytest.fixture
def make(compiler: Compiler, device: Device) -> Make:
    """From source, plan text and arrays to a resolved plan and a build for the device."""

    def made(
        source: str, text: str, *arrays: object, weights: Weights | None = None, library: tuple[str, ...] = ()
    ) -> tuple[ResolvedPlan, Artifact]:
        plan = resolve(text, arrays, weights, library)  # type: ignore[arg-type]
        return plan, build(compiler, source, plan, device.arch)

    return made


@pytest.fixture
def timing(device: Device) -> None:
    """Skips where the device measures no time."""
    if not device.capabilities.measures_time:
        pytest.skip(f"{device.name} measures no time")
