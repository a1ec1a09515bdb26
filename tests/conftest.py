"""Shared by all tests: settings of the process, and helper processes that tests share."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

if TYPE_CHECKING:
    from kernelforge.evaluation.pool import EvaluatorPool
    from kernelforge.sandbox import Zygote

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs ignore it, and hand that down to every child: none would end at Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Waiting threads of torch sleep instead of spinning, which took two thirds of the time of tests of tensors."""

for _name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"):
    os.environ.pop(_name, None)
for _name in ("RESULTS", "SERVER", "TOKEN", "MCP_TOKEN", "DEBUG"):
    os.environ.pop(f"KERNELFORGE_{_name}", None)
os.environ["COLUMNS"] = "80"
"""Output of commands does not depend on the terminal or on settings of the shell."""

gc.set_threshold(20_000, 20, 50)
"""Tests make much and keep little: with Python's own thresholds a twentieth of their time went into searches."""

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
"""The same examples in every run, however slow the machine is, so that a commit passes or fails for good;
``--hypothesis-profile search`` draws new ones."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw no constants of the product's modules in profile ``same``.

    Hypothesis mixes those of all modules that are imported into its examples, so that these would change with the
    tests that run before, and with any constant anywhere. To read them took a tenth of the time of collection in each
    worker."""
    if settings.get_current_profile_name() == "same":
        replaced = getattr(providers, "_get_local_constants", None)
        assert callable(replaced), "this Hypothesis takes constants of modules in another way: replace that instead"
        providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without searching for garbage: collection keeps all that it makes, and the search took a third of
    its time in each worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-cases", action="store_true", help="run tests marked slow, and every case of those marked one_in"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests and cases that are like others, and set the order.

    All of them run with ``--all-cases``, and where ``-k`` or ``::`` name them. Tests marked ``slow`` also run where
    files or folders of ``tests`` are named, or ``-m`` names the marker. Files with slow tests come first, then those
    with a browser: of several workers none is then left alone with one at the end. A browser takes memory until the
    session ends, which the quick tests behind it do not need."""
    if not config.getoption("--all-cases"):
        # Workers of pytest-xdist get the default folder as an argument: Config.args_source says nothing there.
        arguments = [argument for argument in config.args if Path(argument).resolve() != config.rootpath / "tests"]
        by_name = bool(config.option.keyword) or any("::" in argument for argument in arguments)
        slow = by_name or bool(arguments) or "slow" in config.option.markexpr
        left_out = set(cases_left_out(items, slow=slow, by_name=by_name))
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    markers: dict[Path, set[str]] = {}
    for item in items:
        markers.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    items.sort(key=lambda item: ("slow" not in markers[item.path], "browser" not in markers[item.path]))


def cases_left_out(items: list[pytest.Item], *, slow: bool = False, by_name: bool = False) -> list[pytest.Item]:
    """Tests marked ``slow``, unless these are wanted; and cases of tests marked ``one_in(N)``, unless tests are
    selected by name, but for one in N, evenly spread: the first, and every Nth after it."""
    left_out = [] if slow else [item for item in items if item.get_closest_marker("slow")]
    if by_name:
        return left_out
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("one_in"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_test in cases.values():
        (share,) = of_test[0].get_closest_marker("one_in").args
        left_out += [item for number, item in enumerate(of_test) if number % share]
    return left_out


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Hide Playwright's event loop from tests without a browser: it counts as running until the session ends, and
    ``asyncio.run`` would refuse another."""
    loop = asyncio._get_running_loop()
    if loop is None or item.get_closest_marker("browser"):
        return (yield)
    asyncio._set_running_loop(None)
    try:
        return (yield)
    finally:
        asyncio._set_running_loop(loop if loop.is_running() else None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function on the event loop of its fixture ``runner``, or on one of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run = pyfuncitem.funcargs["runner"].run if "runner" in pyfuncitem.funcargs else asyncio.run
    run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session")
def kept_zygotes() -> Iterator[Callable[..., Zygote]]:
    """Return the zygote of a role and its options, started once and kept until the session ends.

    To start one takes seconds of CPU time. Its ``close`` does nothing; children belong to their owners.
    """
    from kernelforge.sandbox import Zygote

    class KeptZygote(Zygote):
        def close(self) -> None:
            """Stay warm for other tests."""

    start, zygotes = Zygote.__init__, dict[str, KeptZygote]()

    def keep(role: str, **options: Any) -> Zygote:
        options = {name: value for name, value in options.items() if value}
        key = f"{role} {sorted(options.items())}"
        if key not in zygotes:
            zygotes[key] = KeptZygote.__new__(KeptZygote)
            start(zygotes[key], role, **options)
        return zygotes[key]

    yield keep
    for zygote in zygotes.values():
        Zygote.close(zygote)


@pytest.fixture(scope="session")
def warmly(kept_zygotes: Callable[..., Zygote]) -> Callable[[], AbstractContextManager[None]]:
    """``with warmly():`` shares kept zygotes, and facts about tasks, with everything that makes its own.

    A zygote that is made in the context takes the state of the kept one with the same arguments. To find the facts of
    tasks again takes a sixth of the time of tests that evaluate.
    """
    from kernelforge.evaluation.oracle.client import KnownTasks
    from kernelforge.sandbox import Zygote

    facts = KnownTasks()

    def share_zygote(zygote: Zygote, role: str, **options: Any) -> None:
        kept = kept_zygotes(role, **options)
        zygote.__class__, zygote.__dict__ = type(kept), kept.__dict__

    def share_facts(tasks: KnownTasks) -> None:
        tasks.__dict__ = facts.__dict__

    @contextmanager
    def sharing() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Zygote, "__init__", share_zygote)
            patch.setattr(KnownTasks, "__init__", share_facts)
            yield

    return sharing


@pytest.fixture
def warm_zygotes(warmly: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Share kept zygotes during the test; evaluators and pools are its own."""
    with warmly():
        yield


@pytest.fixture(scope="session")
def open_warm(warmly: Callable[[], AbstractContextManager[None]]) -> Callable[..., Any]:
    """``open_warm(kind, ...)`` makes a pool or compiler on kept zygotes."""

    def make(kind: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with warmly():
            made = kind(*arguments, **options)
            # Processes that would start at their first use start now.
            for lazy in (made, getattr(made, "compiler", None)):
                if hasattr(lazy, "start"):
                    lazy.start()
            return made

    return make


@pytest.fixture(scope="session")
def workshop(
    tmp_path_factory: pytest.TempPathFactory, open_warm: Callable[..., EvaluatorPool]
) -> Iterator[EvaluatorPool]:
    """A pool on kept zygotes, with an empty build cache."""
    from kernelforge.evaluation.pool import EvaluatorPool

    with open_warm(EvaluatorPool, "emulated:h100", cache=tmp_path_factory.mktemp("builds")) as made:
        yield made


@pytest.fixture(scope="module")
def own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Locks of GPUs in a folder of the module: all software GPUs have one name."""
    folder = tmp_path_factory.mktemp("leases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelforge.evaluation.pool.gpu_lock_folder", lambda: folder)
        yield
