"""Every process with a GPU starts CUDA on machines like those of users, or is refused in a sentence.

The driver is an imitation that asks the operating system for what the real one asks for (``imitation_libcuda.c``).
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.cuda_stack.machine import HERE, MACHINES, Machine, Outcome, buildable, run_in

pytestmark = pytest.mark.skipif(bool(buildable()), reason=f"imitating a machine: {buildable()}")

BY_NAME = {machine.name: machine for machine in MACHINES}
ROLES = ("gpu-runner", "gpu-oracle", "gpu-modelnew")
REACHED = "jailed cuInit reached ok"


@cache
def stages(name: str) -> tuple[dict[str, Any], Outcome]:
    outcome = run_in(BY_NAME[name], ["{python}", f"{{checkout}}/{HERE.relative_to(HERE.parents[1])}/stages.py"])
    assert outcome.status == 0, outcome.output
    return json.loads(outcome.output.splitlines()[-1]), outcome


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name",
    [
        "root",
        "ordinary user, no user namespaces",
        "Docker, files under /root",
        "Docker, no capabilities",
        "Docker, Landlock 1",
    ],
)
def test_each_role_and_the_replay_program_start_cuda(name: str) -> None:
    reached, outcome = stages(name)
    answers = {stage: reached[stage].get("answer", reached[stage].get("refused")) for stage in (*ROLES, "replay")}
    assert all("CUDA_ERROR_NO_DEVICE" in answer for answer in answers.values()), (answers, outcome.driver)
    # Two children of each role and one replay: each asked, none was denied a step, and no helper process asked.
    assert outcome.driver == (REACHED,) * (2 * len(ROLES) + 1)


@pytest.mark.slow
def test_the_tier_is_what_the_machine_allows() -> None:
    assert stages("root")[0]["tier"] == "namespaces"
    assert stages("Docker, files under /root")[0]["tier"] == "landlock"
    assert "no privileges" in stages("Docker, Landlock 1")[0]["gpu-runner"]["layers"]
    # Python under /root: another user, who keeps the right to read.
    assert "no privileges but reading" in stages("Docker, files under /root")[0]["gpu-runner"]["layers"]
    assert "no capabilities" in stages("Docker, no capabilities")[0]["gpu-runner"]["layers"]


@pytest.mark.slow
def test_a_machine_without_any_jail_refuses_in_a_sentence() -> None:
    reached, outcome = stages("Docker, no Landlock")
    assert reached["tier"] == "none"
    for role in ROLES:
        assert reached[role]["refused"].startswith("untrusted code is refused: no jail works on this machine")
    assert outcome.driver == (REACHED,), "the replay program holds no secret and needs no jail"


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine",
    [
        Machine("ordinary", user="ordinary", user_namespaces=False, landlock=1),
        Machine("ordinary", user="ordinary", user_namespaces=False, landlock=2),
        Machine("closed", container=True, home="closed"),
        Machine("powerless", container=True, user="powerless root"),
    ],
    ids=lambda machine: f"{machine.name} {machine.landlock or ''}".strip(),
)
def test_files_of_the_same_user_are_not_changed_behind_landlocks_back(machine: Machine) -> None:
    script = (
        "from kernelforge.sandbox.self_test import run_self_test as self_test; report = self_test('landlock'); "
        "print(report.error, [door.name for door in report.doors if not door.closed], report.layers, "
        "sum('truncate' in door.name or ' of ' in door.name for door in report.doors))"
    )
    outcome = run_in(machine, ["{python}", "-c", script])
    privileges = {"ordinary": "no privileges", "closed": "no privileges but reading", "powerless": "no capabilities"}
    assert outcome.output.startswith(f" [] ('{privileges[machine.name]}'"), outcome.output
    # three truncations, four facts of a file; limits, processors and priority of two processes
    assert outcome.output.strip().endswith(" 13")


def test_compilers_can_move_files_between_folders_under_the_first_landlock() -> None:
    reached, _ = stages("Docker, Landlock 1")
    moves = {role: json.loads(reached[role]["answer"])["moves"] for role in ROLES}
    moved = "made, 0 left behind"
    assert moves == {"gpu-runner": "EXDEV", "gpu-oracle": moved, "gpu-modelnew": moved}, (
        "only roles with compilers move"
    )


@pytest.mark.slow
def test_without_a_proc_for_cuda_a_gpu_is_refused_in_a_sentence_and_the_rest_works() -> None:
    script = (
        "from kernelforge.sandbox import Zygote\n"
        "from kernelforge.errors import SandboxError\n"
        "print(Zygote('runner').tier)\n"
        "try: print(Zygote('gpu-runner').tier)\n"
        "except SandboxError as error: print(error)\n"
    )
    machine = Machine("hidden", user="ordinary", hidden_proc=True, landlock=0)
    outcome = run_in(machine, ["{python}", "-c", script])
    tier, refusal = outcome.output.splitlines()
    assert tier == "namespaces"
    assert refusal.startswith("processes with a GPU need a /proc in which CUDA can name its threads.")
    assert "--device emulated" in refusal


@pytest.mark.slow
def test_the_driver_is_told_to_make_no_device_nodes_in_a_private_proc() -> None:
    script = (
        "import os\n"
        "from kernelforge.sandbox import jail\n"
        "os.makedirs('jail/proc/driver/nvidia')\n"
        "path = 'jail/proc/driver/nvidia/params'\n"
        "open(path, 'w').write('ModifyDeviceFiles: 1\\nDeviceFileMode: 438\\n')\n"
        "jail._make_no_devices(os.path.abspath('jail/proc'))\n"
        "print(open(path).read().split('\\n'))\n"
    )
    outcome = run_in(Machine("root"), ["{python}", "-c", script])
    assert outcome.output.strip() == "['ModifyDeviceFiles: 0', 'DeviceFileMode: 438', '']"
