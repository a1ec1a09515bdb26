"""Shared by all tests: settings of the process, and helper processes that tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from kernelforge.evaluation.oracle.client import KnownTasks
    from kernelforge.evaluation.pool import EvaluatorPool
    from kernelforge.sandbox import Zygote

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore it, and hand that down to every child: none would end at Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""A thread of torch that waits for another leaves its core to whoever has work: tests of tensors on the CPU took two
thirds of their time to spin, and so did programs that they start."""

for _name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"):
    os.environ.pop(_name, None)
for _name in ("RESULTS", "SERVER", "TOKEN", "MCP_TOKEN", "DEBUG"):
    os.environ.pop(f"KERNELFORGE_{_name}", None)
os.environ["COLUMNS"] = "80"
"""What commands print depends neither on the terminal nor on the settings of whoever runs the tests."""

gc.set_threshold(20_000, 20, 50)
"""Tests make much and keep little: with Python's own thresholds a twentieth of their time went into searches."""

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
"""The same examples in every run, however slow the machine is, so that a commit passes or fails for good;
``--hypothesis-profile search`` draws new ones."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that collection makes is given up before the end: to search it for garbage, again and again as it grows,
    took a third of the time, in each worker, and would take more with every test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: of several workers none is then left alone with one at the end. Those with a
    browser come last: while Playwright is up its event loop counts as running, and ``asyncio.run`` refuses another."""
    slow, browser = ({item.path for item in items if item.get_closest_marker(marker)} for marker in ("slow", "browser"))
    items.sort(key=lambda item: (item.path in browser, item.path not in slow))


SHARERS = (
    "compile.compiler",
    "devices.cuda.device",
    "devices.emulated.device",
    "evaluation.pool",
    "evaluation.size_search.client",
    "modelnew.evaluator",
    "workers.compile_worker",
    "sandbox",
)
"""Modules that start helper processes of their own; the last stands for those that import it where they need it, and
comes last, for what is imported first while it stands in would keep it."""


@pytest.fixture(scope="session")
def kept_zygotes() -> Iterator[Callable[..., Zygote]]:
    """Makes a helper process, or gives the one that was made of the same arguments; none ends before the session."""
    from kernelforge.sandbox import Zygote as Started

    class Kept(Started):
        def close(self) -> None:
            """Left warm for the next who asks; its children are their owners' to close."""

    kept: dict[str, Zygote] = {}

    def make(role: str, **how: Any) -> Zygote:
        how = {option: value for option, value in how.items() if value}
        name = f"{role} {sorted(how.items())}"
        if name not in kept:
            kept[name] = Kept(role, **how)
        return kept[name]

    yield make
    for one in kept.values():
        Started.close(one)


@cache
def shared_knowledge() -> KnownTasks:
    """What oracles of this process found out about tasks: facts, admitted input families, whether wrong answers fail.
    To find it out again takes a sixth of the time of tests that evaluate."""
    from kernelforge.evaluation.oracle.client import KnownTasks

    return KnownTasks()


@contextmanager
def sharing(make: Callable[..., Zygote]) -> Iterator[None]:
    """Who starts a helper process meanwhile gets it from ``make``, and knows what others found out about tasks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("workers.compile_worker", "evaluation.pool"):
            patch.setattr(f"kernelforge.{module}.KnownTasks", shared_knowledge)
        for module in SHARERS:
            patch.setattr(f"kernelforge.{module}.Zygote", make)
        yield


@pytest.fixture(scope="session")
def warmly(kept_zygotes: Callable[..., Zygote]) -> Callable[[], AbstractContextManager[None]]:
    """``with warmly():`` is :func:`warm_zygotes` for a part of a fixture that lasts longer than a test."""
    return partial(sharing, kept_zygotes)


@pytest.fixture
def warm_zygotes(kept_zygotes: Callable[..., Zygote]) -> Iterator[None]:
    """Every workshop of a test is its own, its helper processes are not: to start them takes five seconds of CPU time,
    which is longer than most tests that are not about them."""
    with sharing(kept_zygotes):
        yield


@pytest.fixture(scope="session")
def open_warm(kept_zygotes: Callable[..., Zygote]) -> Callable[..., Any]:
    """``open_warm(kind, ...)`` makes a workshop, bench or compiler on helper processes that others use too."""

    def open_one(kind: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        with sharing(kept_zygotes):
            made = kind(*arguments, **how)
            # What would start a process when it is first asked does so now.
            for lazy in (made, getattr(made, "compiler", None)):
                if hasattr(lazy, "start"):
                    lazy.start()
            return made

    return open_one


@pytest.fixture(scope="session")
def workshop(
    tmp_path_factory: pytest.TempPathFactory, open_warm: Callable[..., EvaluatorPool]
) -> Iterator[EvaluatorPool]:
    """Warm helper processes with an empty build cache: to start them takes seconds."""
    from kernelforge.evaluation.pool import EvaluatorPool

    with open_warm(EvaluatorPool, "emulated:h100", cache=tmp_path_factory.mktemp("builds")) as made:
        yield made


@pytest.fixture(scope="module")
def own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Software GPUs all have one name: tests in other processes must not wait for them."""
    folder = tmp_path_factory.mktemp("leases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelforge.evaluation.pool.lease_folder", lambda: folder)
        yield
