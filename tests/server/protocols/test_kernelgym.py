"""KernelGYM's server, as its reward client talks to it.

Read: drkernel/kernel/rewards/reward_client.py in hkust-nlp/KernelGYM (commit 2f08930), and
kernelgym/server/api/models.py in L-hongbin/KernelGYM (commit 8b75ccc).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.support.scripted_service import ScriptedService, reply


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{url}/kernelgym", timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def source(service: ScriptedService) -> str:
    return service.find_task("core/swish")[1].source


def payload(source: str, task_id: str, code: str, **changes: Any) -> dict[str, Any]:
    """The request of compute_batch_rewards, field by field."""
    return {
        "task_id": task_id,
        "reference_code": source,
        "kernel_code": code,
        "backend": "triton",
        "num_correct_trials": 5,
        "num_perf_trials": 100,
        "timeout": 300,
        "priority": "normal",
        "entry_point": "Model",
        "is_valid": None,
        "verbose_errors": True,
        "enable_profiling": True,
        "detect_decoy_kernel": True,
        "reference_backend": None,
    } | changes


@pytest.mark.slow
def test_its_client_posts_polls_and_fetches(client: httpx2.Client, source: str) -> None:
    task_id = "parallel_task_000001_deadbeef"
    posted = client.post("/evaluate", json=payload(source, task_id, reply("fast class ModelNew")))
    assert posted.status_code == 200, posted.text
    assert client.get(f"/status/{task_id}").json()["status"] == "completed"
    result = client.get(f"/results/{task_id}").json()
    assert {key: posted.json()[key] for key in ("compiled", "correctness", "speedup", "decoy_kernel")} == {
        "compiled": True,
        "correctness": True,
        "speedup": 2.0,
        "decoy_kernel": False,
    }
    assert (result["speedup"], result["kernel_runtime"], result["reference_runtime"]) == (2.0, 0.01, 0.02)
    assert result["metadata"]["verdict"] == "OK"


@pytest.mark.parametrize(
    ("word", "compiled", "correct", "decoy", "code"),
    [
        ("wrong", True, False, False, "CORRECTNESS_ERROR"),
        ("build", False, False, False, "COMPILATION_ERROR"),
        ("policy", False, False, True, "VALIDATION_ERROR"),
        ("uncompared", True, False, False, "CORRECTNESS_ERROR"),
    ],
)
def test_what_the_candidate_did_is_completed_with_its_fault(
    client: httpx2.Client, source: str, word: str, compiled: bool, correct: bool, decoy: bool, code: str
) -> None:
    answer = client.post("/evaluate", json=payload(source, f"fault {word}", reply(word))).json()
    assert (answer["status"], answer["compiled"], answer["correctness"]) == ("completed", compiled, correct)
    assert (answer["decoy_kernel"], answer["error_code"], answer["speedup"]) == (decoy, code, None)
    assert answer["error_message"]


def test_a_modelled_time_is_no_runtime(client: httpx2.Client, source: str) -> None:
    answer = client.post("/evaluate", json=payload(source, "modelled", reply())).json()
    assert (answer["correctness"], answer["kernel_runtime"], answer["speedup"]) == (True, None, None)
    assert answer["metadata"]["origin"] == "modelled"


def test_trouble_of_ours_has_no_numbers_and_the_same_task_is_tried_again(client: httpx2.Client, source: str) -> None:
    sent = payload(source, "lost", reply("lost"))
    assert client.post("/evaluate", json=sent).status_code == 503
    assert client.get("/status/lost").json()["status"] == "failed"
    result = client.get("/results/lost").json()
    assert (result["status"], result["error_code"]) == ("failed", "SYSTEM_ERROR")
    assert all(result[key] is None for key in ("compiled", "correctness", "speedup", "kernel_runtime", "decoy_kernel"))
    assert client.post("/evaluate", json=sent).json()["correctness"] is True  # its client's own second try
    assert client.get("/status/lost").json()["status"] == "completed"


def test_one_task_id_is_one_evaluation(client: httpx2.Client, service: ScriptedService, source: str) -> None:
    sent = payload(source, "once", reply("once"))
    first = client.post("/evaluate", json=sent).json()
    before = len(service.submitted)
    assert client.post("/evaluate", json=sent).json()["metadata"]["job"] == first["metadata"]["job"]
    assert len(service.submitted) == before
    assert client.post("/evaluate", json=payload(source, "once", reply("other"))).status_code == 409
    repeated = client.post("/evaluate", json=sent | {"force_refresh": True}).json()
    assert repeated["metadata"]["job"] != first["metadata"]["job"]
    assert service.submitted[-1].fresh


def test_a_batch_is_evaluated_side_by_side_and_one_failure_is_its_own(client: httpx2.Client, source: str) -> None:
    codes = [
        reply("together 2 fast"),
        reply("together 2 wrong"),
        reply("lost lost batch"),
        "full of nothing",
        "full" * 3,
    ]
    tasks = [payload(source, f"b{number}", code) for number, code in enumerate(codes)]
    answer = client.post("/evaluate/batch", json={"batch_id": "b", "tasks": tasks}).raise_for_status().json()
    assert [result["status"] for result in answer["results"]] == [
        "completed",
        "completed",
        "failed",
        "completed",
        "completed",
    ]
    assert [result["correctness"] for result in answer["results"]] == [True, False, None, False, False]
    assert (answer["total_tasks"], answer["completed_tasks"], answer["failed_tasks"]) == (5, 4, 1)


def test_one_unknown_reference_refuses_the_whole_batch(
    client: httpx2.Client, service: ScriptedService, source: str
) -> None:
    before = len(service.submitted)
    batch = {"batch_id": "h", "tasks": [payload(source, "good", reply()), payload("# " + source, "bad", reply())]}
    answer = client.post("/evaluate/batch", json=batch)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unknown_reference")
    assert len(service.submitted) == before


def test_what_cannot_be_honoured_is_refused_or_reported(client: httpx2.Client, source: str) -> None:
    refused: list[dict[str, Any]] = [
        {"run_correctness": False},
        {"cases_code": "def get_cases(): ..."},
        {"cases": [1]},
        {"workflow": "kernel_simple"},
        {"entry_point": "Other"},
        {"resources": {"gpus": 2}},
        {"device_preference": "cuda:9"},
        {"backend": "tilelang"},
        {"num_perf_trials": 0},
        {"timeout": 5},
        {"misspelt": 1},
        {"kernel_code": "x" * (2 << 20) + "x"},
        {"task_id": ""},
    ]
    for changes in refused:
        assert client.post("/evaluate", json=payload(source, "r", reply()) | changes).status_code == 422, changes
    not_honoured = client.post(
        "/evaluate",
        json=payload(source, "reported", reply("reported"), run_performance=False, use_reference_cache=True),
    ).json()["metadata"]["not_honoured"]
    assert set(not_honoured) == {
        "backend",
        "num_correct_trials",
        "num_perf_trials",
        "run_performance",
        "use_reference_cache",
    }
    plain = {"task_id": "plain", "reference_code": source, "kernel_code": reply("reported")}
    assert "not_honoured" not in client.post("/evaluate", json=plain).json()["metadata"]


TRITON = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(x):\n    pass\n"
TRITON_REPLY = f"```triton\n{TRITON}```\n\n```python\ndef forward(x):\n    return x\n```\n"


@pytest.mark.parametrize(
    ("backend", "code", "honoured"),
    [
        ("triton", TRITON_REPLY, True),
        ("triton", json.dumps({"source": TRITON, "plan": "def forward(x): pass"}), True),
        ("cuda", TRITON_REPLY, False),
        ("triton", reply(), False),
        ("cuda", reply(), True),
        ("triton", "{ no json", False),
    ],
)
def test_a_backend_is_honoured_where_the_candidate_is_written_for_it(
    client: httpx2.Client, service: ScriptedService, source: str, backend: str, code: str, honoured: bool
) -> None:
    answer = client.post("/evaluate", json=payload(source, f"{backend} {hash(code)}", code, backend=backend))
    assert answer.status_code == 200, answer.text
    assert ("backend" not in answer.json()["metadata"]["not_honoured"]) is honoured
    job = service.submitted[-1]
    assert code == job.completion or (job.candidate is not None and job.candidate.source == TRITON)


def test_options_reach_the_gateway(client: httpx2.Client, service: ScriptedService, source: str) -> None:
    sent = payload(source, "options", reply("opts"), priority="high", timeout=77, device_preference="emulated:h100")
    client.post("/evaluate", json=sent).raise_for_status()
    job = service.submitted[-1]
    assert (job.task, job.priority, job.deadline_s, job.profile) == ("core/swish", 5, 77, True)


def test_a_candidate_may_come_in_parts(client: httpx2.Client, service: ScriptedService, source: str) -> None:
    parts = '{"source": "__global__ void k() {}", "plan": "def forward(x):\\n    return x\\n"}'
    client.post("/evaluate", json=payload(source, "parts", parts)).raise_for_status()
    assert service.submitted[-1].candidate is not None


def test_a_task_that_nobody_sent_is_unknown(client: httpx2.Client) -> None:
    for answer in (client.get("/status/none"), client.get("/results/none"), client.delete("/tasks/none")):
        assert answer.status_code == 404
    assert client.get("/health").json()["status"] == "healthy"


def test_a_running_task_is_seen_from_another_connection(
    client: httpx2.Client, service: ScriptedService, source: str
) -> None:
    sent = payload(source, "running", reply("together 7"))
    with ThreadPoolExecutor(7) as pool:
        waiting = [pool.submit(client.post, "/evaluate", json=sent | {"task_id": f"running{n}"}) for n in range(6)]
        while client.get("/status/running0").status_code == 404:
            time.sleep(0.01)
        assert client.get("/status/running0").json()["status"] == "processing"
        assert client.get("/results/running0").status_code == 404
        client.post("/evaluate", json=sent)
        assert [response.result().status_code for response in waiting] == [200] * 6
