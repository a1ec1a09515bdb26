"""The CUDA builds of torch, cupy, cuda-bindings and Triton on machines like those of users, whose driver is imitated.

Run by ``.ci/cuda-stack``, which installs them; elsewhere these tests skip.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.cuda_stack.machine import HERE, MACHINES, Outcome, buildable, run_in
from tests.test_packaging import REQUIRED_BY_TORCH_ON_PYPI, TORCH_ON_PYPI

torch_cuda = importlib.util.find_spec("torch") and importlib.import_module("torch").version.cuda
pytestmark = [
    pytest.mark.skipif(not torch_cuda, reason="needs the CUDA build of torch: .ci/cuda-stack installs it"),
    pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs cupy"),
    pytest.mark.skipif(bool(buildable()), reason=f"imitating a machine: {buildable()}"),
    pytest.mark.timeout(1200),
]
BY_NAME = {machine.name: machine for machine in MACHINES}
SCRIPT = f"{{checkout}}/{HERE.relative_to(HERE.parents[1])}/stages.py"
NO_GPU = {
    "gpu-runner": "CUDA_ERROR_NO_DEVICE while opening GPU 0",
    "gpu-oracle": "No CUDA GPUs are available",
    "gpu-modelnew": "No CUDA GPUs are available",
    "replay": "CUDA_ERROR_NO_DEVICE while opening GPU 0",
}
"""How each process ends whose library could start CUDA and found no GPU."""
SHOWN = {"IMITATION_GPUS": "1", "IMITATION_COMPUTE_MODE": "0"}
"""Lets processes outside the jail see a GPU that several processes may use."""


@cache
def stages(name: str, *arguments: str) -> tuple[dict[str, Any], Outcome]:
    outcome = run_in(BY_NAME[name], ["{python}", SCRIPT, "--cuda", *arguments], timeout_s=1200)
    assert outcome.status == 0, outcome.output
    return json.loads(outcome.output.splitlines()[-1]), outcome


def test_this_torch_requires_what_the_test_of_the_constraints_says() -> None:
    requirements = [Requirement(line) for line in importlib.metadata.requires("torch") or []]
    environment = {"extra": "", "platform_system": "Linux"}
    always = {
        f"{item.name}{item.specifier}" for item in requirements if not item.marker or item.marker.evaluate(environment)
    }
    assert importlib.metadata.version("torch").partition("+")[0] == TORCH_ON_PYPI
    assert always == {str(Requirement(line)) for line in REQUIRED_BY_TORCH_ON_PYPI}


@pytest.mark.parametrize("name", [machine.name for machine in MACHINES if machine.landlock != 0])
def test_each_role_starts_cuda_in_its_child_and_in_no_helper_process(name: str) -> None:
    reached, outcome = stages(name)
    for stage, answer in NO_GPU.items():
        assert answer in reached[stage].get("answer", reached[stage].get("refused")), (stage, reached[stage])
    assert set(outcome.driver) == {"jailed cuInit reached ok"}
    assert len(outcome.driver) == 7, "two children of each of three roles, and the replay program"


@pytest.mark.parametrize("name", [machine.name for machine in MACHINES if machine.landlock == 0 and machine.container])
def test_without_a_jail_each_role_is_refused_in_a_sentence(name: str) -> None:
    reached, _ = stages(name)
    for role in ("gpu-runner", "gpu-oracle", "gpu-modelnew"):
        assert reached[role]["refused"].startswith("untrusted code is refused")


@pytest.mark.parametrize(
    "command",
    [
        "capture {checkout}/tests/cuda_stack/model.py:make_model --inputs make_inputs",
        "calibrate",
        "run --suite core --task softmax --rounds 1 --measure energy=yes --measure launches=yes",
    ],
)
def test_a_gpu_that_cannot_be_opened_is_refused_in_a_sentence(command: str) -> None:
    machine = replace(BY_NAME["root"], environment=SHOWN)
    outcome = run_in(machine, ["{python}", "-m", "kernelforge", *command.split(), "--device", "cuda:0"])
    assert outcome.status == 2, outcome.output
    assert outcome.output.splitlines()[-1].startswith("error: cuda:0 cannot be used: CUDA_ERROR_"), outcome.output
    assert "--device emulated" in outcome.output
    assert outcome.driver == ("free cuInit reached ok", "jailed cuInit reached ok"), "the list of GPUs, and the runner"


@pytest.mark.parametrize("name", ["root", "Docker, files under /root", "Docker, Landlock 1"])
def test_a_model_is_run_on_the_gpu_in_the_jail(name: str) -> None:
    """As far as the profiler, which sees no kernel of an imitated GPU. Helper processes start no CUDA."""
    machine = replace(BY_NAME[name], runtime=True)
    outcome = run_in(machine, ["{python}", f"{{checkout}}/{HERE.relative_to(HERE.parents[1])}/capture_model.py"])
    assert "model.py: the profiler of PyTorch saw no kernel of the model" in outcome.output, outcome.output
    assert outcome.driver == ("jailed cuInit reached ok",)


@pytest.mark.parametrize("name", ["root", "Docker, files under /root", "Docker, Landlock 1"])
@pytest.mark.parametrize("compiler", ["triton", "load_inline"])
def test_candidates_of_the_modelnew_lane_find_their_compilers(name: str, compiler: str) -> None:
    built, _ = stages(name, compiler)
    assert {tier: answer for tier, answer in built.items() if answer != json.dumps({"ok": True})} == {}
