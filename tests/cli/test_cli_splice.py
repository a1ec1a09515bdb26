"""``kernelforge splice``, end to end in its jails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.capture.client import Source
from kernelforge.errors import UsageError
from kernelforge.packaging import splice_check
from kernelforge.packaging.splice_check import Splice
from tests.packaging.two_blocks import TWO_BLOCKS, norm_package

__all__ = ["norm_package"]


@pytest.fixture
def command() -> tuple[str, ...]:
    Path("net.py").write_text(TWO_BLOCKS)
    return "splice", "net.py:make_model", "--inputs", "make_inputs"


@pytest.mark.slow
def test_the_gain_of_the_model_stands_with_the_speedup_of_the_kernel(
    cli, command: tuple[str, ...], norm_package: Callable[..., Path]
) -> None:
    done = cli(*command, "--package", str(norm_package()), "--json")
    assert done.code == 0, done.err
    result = Splice.model_validate(json.loads(done.out))
    assert (result.check.verdict, result.check.operator_calls, result.check.elements) == ("equal", 2, 2050)
    (package,) = result.packages
    assert (package.calls, package.replaced, package.speedup and package.speedup.value) == (2, 2, 2.0)
    after = result.graph.before_us.value - 2 * package.group_us + 2 * 2.0
    assert result.graph.after_us.value == pytest.approx(after)
    assert result.graph.gain.value < 1 < 2, "the kernel is slower in the model than what it replaces"
    assert package.graph == result.graph


@pytest.mark.slow
def test_an_operator_that_is_a_little_wrong_is_refused_with_its_error(
    cli, command: tuple[str, ...], norm_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = str(norm_package("1e-4f"))
    done = cli(*command, "--package", wrong)
    assert done.code == 1, done.err
    assert "outputs   wrong, largest error" in done.out
    assert "output 0 (shape 4x16x32)" in done.out
    monkeypatch.setattr(splice_check, "MOST_INSTRUCTIONS", 10_000)
    done = cli(*command, "--package", wrong)
    assert (done.code, "outputs   not compared" in done.out) == (1, True), "over budget nothing is called equal"


def test_a_gpu_is_refused_with_what_to_name_in_its_place() -> None:
    source = Source(Path("net.py"), "make_model", TWO_BLOCKS)
    with pytest.raises(UsageError, match="leave out --device, or name the one that they were evaluated on"):
        splice_check.splice_model(source, source, [Path("g01")], "cuda:0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["net.py:make_model"], "add --inputs"),
        (["net.py:make_model", "--inputs", "make_inputs"], "add --package FOLDER"),
        (["net.py:make_model", "--inputs", "make_inputs", "--package", "."], "is no package: it has no package.json"),
        (
            ["net.py:make_model", "--inputs", "make_inputs", "--package", "PACKAGE", "--device", "emulated:a100"],
            "was evaluated for emulated:h100 (NVIDIA H100 80GB HBM3), not for emulated:a100",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    cli, command: tuple[str, ...], arguments: list[str], reason: str, norm_package: Callable[..., Path]
) -> None:
    folder = str(norm_package())
    done = cli("splice", *(folder if word == "PACKAGE" else word for word in arguments))
    assert done.code == 2
    assert reason in " ".join(done.err.split())
    assert "Traceback" not in done.err
