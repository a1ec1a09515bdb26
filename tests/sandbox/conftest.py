"""Zygotes of a hostile role, one per jail tier that works here."""

import pytest

from kernelforge.sandbox import Zygote
from kernelforge.sandbox.self_test import run_self_test
from tests.sandbox.jail_setup import HOSTILE, LIMITS


@pytest.fixture(scope="session", params=["namespaces", "landlock"])
def zygote(request):
    report = run_self_test(request.param)
    if report.error:
        pytest.skip(f"this machine has no tier {request.param}: {report.error}")
    assert report.works, report.reason
    with Zygote("hostile", tier=request.param, policy=HOSTILE) as running:
        yield running


@pytest.fixture
def child(zygote):
    with zygote.spawn(LIMITS) as running:
        yield running


@pytest.fixture
def act(child):
    """Ask the hostile child for one act; gives its reply."""

    def ask(name, *arguments, timeout_s=None):
        return child.call({"act": name, "arguments": list(arguments)}, timeout_s=timeout_s).data["reply"]

    return ask
