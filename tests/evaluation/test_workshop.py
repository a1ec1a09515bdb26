"""A workshop over several GPUs: which are used, set aside and used again, and what its evaluators say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelforge.devices.base import Device
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.errors import DeviceError
from kernelforge.evaluation.oracle.client import Oracle, OracleFacts
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import MeasureSettings, Task
from kernelforge.sandbox import Zygote, select_tier
from tests.support.axpy import axpy_task

pytestmark = [
    pytest.mark.usefixtures("own_leases", "warm_zygotes"),
    pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine"),
]

TASK = axpy_task()


class Gpu(CudaDevice):
    """A GPU on the software driver, whose next probes fail with the listed complaints."""

    def __init__(self, ordinal: int, factory: str = "create") -> None:
        super().__init__(ordinal, driver=f"tests.devices.cuda.several_gpus:{factory}")
        self.complaints: list[str | None] = []
        probe = self.runners._probe
        self.runners._probe = lambda: self.complaints.pop(0) if self.complaints else probe()  # type: ignore[method-assign]


class SoftwareWorkshop(EvaluatorPool):
    """Its oracles run on the CPU."""

    oracles: Zygote

    def oracle(self, task: Task, device: Device | None = None, cached: OracleFacts | None = None) -> Oracle:
        return Oracle(self.oracles, task, device="cpu", cached=cached)


@pytest.fixture(scope="module", autouse=True)
def oracles(kept_zygotes: Callable[..., Zygote]) -> None:
    SoftwareWorkshop.oracles = kept_zygotes("oracle")


@pytest.fixture
def gpus() -> list[Gpu]:
    return [Gpu(0), Gpu(1)]


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def workshop(gpus: list[Gpu], messages: list[str], tmp_path: Path) -> Iterator[EvaluatorPool]:
    with SoftwareWorkshop("", opened=gpus, cache=tmp_path, tell=messages.append) as made:
        yield made


def assigned_gpu(workshop: EvaluatorPool, name: str = "axpy") -> str:
    """Name of the device that a task's evaluator is on."""
    evaluator = workshop.evaluator(TASK.model_copy(update={"name": name}))
    evaluator.oracle.close()
    assert evaluator.fingerprint.device == evaluator.device.name
    return evaluator.device.name


@pytest.mark.slow
def test_tasks_spread_and_each_keeps_its_gpu(workshop: EvaluatorPool) -> None:
    assert [assigned_gpu(workshop, name) for name in ("a", "b", "a", "b")] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]


@pytest.mark.slow
def test_evaluators_say_which_jail_and_which_gpu_held_the_candidate(workshop: EvaluatorPool) -> None:
    evaluator = workshop.evaluator(TASK)
    evaluator.oracle.close()
    assert evaluator.fingerprint.jail == Zygote("gpu-runner").tier
    assert evaluator.fingerprint.gpu == "Software GPU"
    assert evaluator.screen is not None
    assert evaluator.screen.device.name == "emulated:h100"


def test_an_emulated_device_that_is_switched_off_is_in_the_evaluators_version(gpus: list[Gpu], tmp_path: Path) -> None:
    settings = MeasureSettings(screen=False)
    with SoftwareWorkshop("", opened=gpus, cache=tmp_path, measure=settings) as workshop:
        evaluator = workshop.evaluator(TASK)
        evaluator.close()
    assert evaluator.screen is None
    assert evaluator.fingerprint.evaluator.endswith("+unscreened")


def test_the_emulated_device_in_front_may_have_the_figures_of_another_gpu(gpus: list[Gpu], tmp_path: Path) -> None:
    settings = MeasureSettings(figures="a100")
    with SoftwareWorkshop("", opened=gpus, cache=tmp_path, measure=settings) as workshop:
        evaluator = workshop.evaluator(TASK)
        evaluator.close()
    assert evaluator.screen is not None
    assert evaluator.screen.device.name == "emulated:a100"
    assert not evaluator.screen.exact


@pytest.mark.slow
def test_a_gpu_that_is_set_aside_is_probed_again_when_it_is_due_and_used_when_it_passes(
    workshop: EvaluatorPool, gpus: list[Gpu], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(workshop._gpu_locks, "_clock", lambda: now[0])
    workshop.quarantine(gpus[0], DeviceError("Xid 79"))
    workshop.quarantine(gpus[0], DeviceError("reported once"))
    assert messages == ["cuda:0 is set aside: Xid 79"]
    assert workshop.is_quarantined(gpus[0])
    assert workshop.device is gpus[1]
    assert assigned_gpu(workshop, "a") == "cuda:1"
    now[0] = 601.0
    gpus[0].complaints = ["memory does not hold what was written", None]
    assert assigned_gpu(workshop, "b") == "cuda:1"
    assert workshop.is_quarantined(gpus[0])
    now[0] = 1300.0
    assert assigned_gpu(workshop, "c") == "cuda:0"
    assert messages[1:] == ["cuda:0 passes its probe again, and is used again"]
    assert not workshop.is_quarantined(gpus[0])


def test_tasks_that_fail_on_one_gpu_at_a_time_tell_it_once(
    workshop: EvaluatorPool, gpus: list[Gpu], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked before either set it aside."""
    monkeypatch.setattr(workshop._gpu_locks, "quarantined", dict)
    workshop.quarantine(gpus[0], DeviceError("Xid 79"))
    workshop.quarantine(gpus[0], DeviceError("Xid 79, too"))
    assert messages == ["cuda:0 is set aside: Xid 79"]


def test_a_gpu_that_another_task_has_just_probed_is_not_probed_again(
    workshop: EvaluatorPool, gpus: list[Gpu], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workshop._gpu_locks, "_clock", lambda: 0.0)
    workshop.quarantine(gpus[0], DeviceError("Xid 79"))
    monkeypatch.setattr(workshop._gpu_locks, "_clock", lambda: 601.0)
    hold = workshop._gpu_locks.hold

    @contextmanager
    def after_another(device: str, **how: Any) -> Iterator[None]:
        with hold(device, **how):
            if how["task"] == "its probe":
                assert workshop._gpu_locks.probed(device, None)
            yield

    monkeypatch.setattr(workshop._gpu_locks, "hold", after_another)
    gpus[0].complaints = ["not asked for"]
    assert assigned_gpu(workshop, "a") == "cuda:0"
    assert gpus[0].complaints == ["not asked for"]
    assert len(messages) == 1


@pytest.mark.slow
def test_a_gpu_that_cannot_be_opened_is_left_out(tmp_path: Path, messages: list[str]) -> None:
    with SoftwareWorkshop(
        "", opened=[Gpu(0, "create_fallen"), Gpu(1)], cache=tmp_path, tell=messages.append
    ) as workshop:
        assert assigned_gpu(workshop) == "cuda:1"
        assert workshop.fingerprint.device == "cuda:1"
    (message,) = messages
    assert message.startswith("cuda:0 is set aside: ")


def test_without_any_gpu_there_is_no_workshop(tmp_path: Path) -> None:
    fallen = Gpu(0, "create_fallen")
    with fallen, pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE"):
        SoftwareWorkshop("", opened=[fallen], cache=tmp_path)


def test_the_failure_of_an_only_gpu_is_told_as_it_is(tmp_path: Path) -> None:
    with SoftwareWorkshop("", opened=[Gpu(0)], cache=tmp_path) as workshop, pytest.raises(DeviceError, match="Xid 79"):
        workshop.quarantine(workshop.device, DeviceError("Xid 79"))
