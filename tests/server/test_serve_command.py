"""``kernelforge serve`` as a process: what it refuses, and a whole life of it from its address to its end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from kernelforge.cli.main import app
from kernelforge.client import Client
from kernelforge.compile.triton_build import installed_triton
from kernelforge.errors import KernelForgeError
from kernelforge.server.http.auth import Tokens
from kernelforge.tasks import load_suite
from kernelforge.utils.shell_hints import install_hint

START_S = 240
COMMAND = (sys.executable, "-m", "kernelforge", "serve", "--port", "0", "--suite", "core", "--task", "swish")

OPTIONS = (
    "--device", "emulated:h100", "--slots", "1", "--compilers", "1", "--queue", "1", "--reward", "kevin/1",
    "--log-format", "json", "--run-limit", "60", "--compile-limit", "60", "--timing-max-age", "1",
)  # fmt: skip


def refusal(*words: str) -> str:
    """The command's message about invalid options."""
    result = CliRunner().invoke(app, ["serve", "--port", "0", *words])
    assert isinstance(result.exception, KernelForgeError), result.output
    assert result.exception.exit_code == 2
    return str(result.exception)


@pytest.mark.slow
def test_a_public_address_needs_a_token(tmp_path: Path) -> None:
    message = refusal("--host", "0.0.0.0", "--results", str(tmp_path))
    assert "kernelforge token create" in message
    assert str(tmp_path) in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--address", "auto"], "--engine ray"),
        (["--reward", "none/1"], "no reward policy"),
        (["--suite", "none"], "none"),
        (["--suite", "core", "--task", "none"], "none"),
        (["--device", "emulated:none"], "emulated:none"),
        (["--run-limit", "0"], "--run-limit"),
        (["--run-limit", "nan"], "--run-limit"),
        (["--compile-limit", "inf"], "--compile-limit"),
        (["--host", "256.1.1.1"], "cannot listen"),
        (["--measure", "none=1"], "none"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(tmp_path: Path, words: list[str], expected: str) -> None:
    message = refusal("--results", str(tmp_path), *words)
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qeue = 3", "did you mean 'queue'?"),
        ("config = 'x'", "no option 'config'"),
        ("suite = [", "cannot be read"),
        ("queue = 'many'", "'--queue'"),
        ("suite = ['none']", "none"),
        ("engine = 'ray'", "--engine ray needs --address"),
    ],
)
def test_a_file_of_options_is_refused_as_the_options_are(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    result = CliRunner().invoke(app, ["serve", "--config", str(file), "--port", "0"])
    assert expected in f"{result.exception} {result.output}"
    assert result.exit_code != 0


@pytest.mark.slow
def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('reward = "none/1"\nhost = "0.0.0.0"\n')
    message = refusal("--config", str(file), "--reward", "kevin/1", "--results", str(tmp_path))
    assert "0.0.0.0 can be reached from other machines" in message


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = refusal("--port", str(port), "--results", str(tmp_path), "--suite", "core")
    assert f"127.0.0.1:{port}" in message


def test_it_names_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.cli.serve.find_spec", lambda name: None if name == "uvicorn" else name)
    message = refusal()
    assert "uvicorn" in message
    assert install_hint("server") in message


@contextmanager
def serving(folder: Path, *options: str, **start: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server with one slot in a process of its own, and where it is."""
    words = [*COMMAND, *OPTIONS, "--results", str(folder), *options]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **start) as process:
        try:
            assert process.stderr is not None
            log = ""
            while (match := re.search(r"serving on (http://127\.0\.0\.1:\d+), judging on emulated:\w+", log)) is None:
                line = process.stderr.readline()
                assert line, log
                log += line
            assert log.startswith("kernelforge: starting workers\n")
            yield process, match[1]
        finally:
            process.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with serving(tmp_path) as started:
        yield started


@pytest.mark.slow
def test_it_serves_and_ends_with_0_at_a_signal(server: tuple[subprocess.Popen[str], str], tmp_path: Path) -> None:
    process, url = server
    with httpx2.Client(base_url=url, timeout=START_S) as client:
        assert client.get("/readyz").json()["state"] == "ready"
        answer = client.post("/v1/rewards", json={"task": "swish", "completion": "no code"}).json()
        assert answer["task"] == "core/swish"
        assert (answer["result"]["outcome"], answer["result"]["components"]["format"]) == ("scored", 0)
        assert answer["result"]["policy"] == "kevin/1"
        assert [row["policy"] for row in client.get("/v1/policies").json() if row["default"]] == ["kevin/1"]
        candidates = [{"source": f"no {n}", "plan": "def forward(x): ..."} for n in range(9)]
        jobs = [{"task": "swish", "run_id": "many", "candidate": candidate} for candidate in candidates]
        items = client.post("/v1/jobs/batch", json={"jobs": jobs}).json()["items"]
        assert "queue_full" in [item["problem"]["code"] for item in items if item["problem"]]
        assert client.get("/v1/jobs/" + answer["id"]).json() == answer
        assert [row["task"] for row in client.get("/v1/tasks").json()] == ["core/swish"]
        with closing(Tokens(tmp_path)) as tokens:
            token = tokens.create("late", ["read"])
        while client.get("/v1/runs").status_code == 200:  # taken up within a second
            time.sleep(0.1)
        headers = {"Authorization": f"Bearer {token}"}
        runs = {run["run_id"]: run["ended"] for run in client.get("/v1/runs", headers=headers).json()}
        assert runs["default"] == 1
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=START_S)
    assert process.returncode == 0
    assert token not in log
    assert '"draining"' in log


TRITON = """```triton
import triton
import triton.language as tl

@triton.jit
def swish(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(out + at, v / (1.0 + tl.exp(-v)), mask=at < n)
```

```python
def forward(x):
    out = empty_like(x)
    swish[ceil_div(x.numel(), 1024)](x, out, i32(x.numel()), BLOCK=1024)
    return out
```
"""


@pytest.mark.slow
@pytest.mark.skipif(installed_triton() is None, reason="the extra triton is not installed")
def test_kernelgyms_client_is_paid_for_right_triton(server: tuple[subprocess.Popen[str], str]) -> None:
    reference = load_suite("core").task("swish").source
    verdicts = {}
    with httpx2.Client(base_url=f"{server[1]}/kernelgym", timeout=START_S) as client:
        for name, constant in (("right", "1.0"), ("wrong", "1.1")):
            code = TRITON.replace("1.0 + tl", f"{constant} + tl")
            request = {"task_id": name, "reference_code": reference, "kernel_code": code, "backend": "triton"}
            posted = client.post("/evaluate", json=request)
            assert posted.status_code == 200, posted.text
            result = client.get(f"/results/{name}").json()
            verdicts[name] = result["compiled"], result["correctness"], result["metadata"]["verdict"]
    assert verdicts == {"right": (True, True, "OK"), "wrong": (True, False, "WRONG")}


SWISH = """## Performance Analysis
Memory bounds it.
## Algorithm Design
1. One thread for each element.
## Code Implementation
```cuda
__global__ void swish(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] / (1.0f + expf(-x[i]));
}
```

```python
def forward(x):
    out = empty_like(x)
    swish[ceil_div(x.numel(), 256), 256](x, out, i32(x.numel()))
    return out
```
"""


@pytest.mark.slow
def test_a_turn_of_a_contrast_session_is_shown_the_kernels_of_earlier_jobs(
    server: tuple[subprocess.Popen[str], str],
) -> None:
    strided = SWISH.replace("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x * gridDim.x + blockIdx.x")
    with Client(server[1], timeout_s=START_S) as client:
        for text in (SWISH, strided):
            result = client.score("swish", text, run_id="l1", profile=True)
            assert result.verdict == "OK", result.feedback
        with closing(client.session("core/swish", kind="contrast", run_id="l1", turns=1)) as session:
            user = session.messages[-1]["content"]
            assert user.count("Score: ") == 2
            assert user.index("blockIdx.x * blockDim.x") < user.index("threadIdx.x * gridDim.x")  # the faster one first
            turn = session.turn(SWISH.replace("256", "128"))
            assert (turn.result.verdict, turn.best) == ("OK", True)
        [prompt] = client.prompts("core/swish", kind="fsr", run_id="l1").prompts
        assert prompt.operator == "fsr"
        assert "blockIdx.x * blockDim.x" in prompt.user


HOST = """torch::Tensor swish_cuda(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "no GPU");
    auto out = torch::empty_like(x);
    int n = x.numel();
    swish<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
"""
LOADED = f'''```python
import torch
from torch.utils.cpp_extension import load_inline

source = r"""{SWISH.split("```cuda")[1].split("```")[0]}
{HOST}"""
extension = load_inline("swish", "torch::Tensor swish_cuda(torch::Tensor x);", source, functions=["swish_cuda"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return extension.swish_cuda(x)
```
'''
"""A reply as KernelBench asks for it, which can be converted."""
TORCH = """```python
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)
```
"""
CANARY = "canary-5c1e9d"
SPY = """```python
import os
import socket
import sys
import torch

def contents(path):
    try:
        return open(path, errors="replace").read(2_000_000)
    except OSError as error:
        return str(error)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        seen = [str(dict(os.environ)), contents("/proc/self/environ"), contents("/proc/1/environ"), str(sys.argv)]
        for fd in os.listdir("/proc/self/fd"):
            seen.append(contents(f"/proc/self/fd/{fd}") if int(fd) > 2 else "")
        for path in PATHS:
            seen.append(contents(path))
        try:
            socket.create_connection(("127.0.0.1", PORT), timeout=2)
            seen.append("CANARY by the network")
        except OSError as error:
            seen.append(str(error))
        leaks = [text for text in seen if "CANARY" in text]
        raise RuntimeError(f"looked at {len(seen)} files, {len(leaks)} leaks: {leaks}"[:500])
```
"""


@pytest.mark.slow
def test_a_model_new_runs_in_its_lane_by_the_client_and_by_protocols_and_learns_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CANARY)
    results = tmp_path / "results"
    descriptor = os.open(secret, os.O_RDONLY)
    environment = {**os.environ, "KERNELFORGE_SECRET": CANARY}
    with (
        serving(results, "--modelnew", "run", env=environment, pass_fds=[descriptor]) as (process, url),
        Client(url, timeout_s=START_S) as client,
    ):
        converted = client.score("swish", LOADED)
        assert (converted.verdict, converted.converted, converted.lane) == ("OK", True, "plan")
        assert converted.policy == "kevin/1"
        assert any("TORCH_CHECK" in note for note in converted.notes)
        host = client.score("swish", TORCH)
        assert (host.verdict, host.reward, host.policy, host.device) == ("OK", 0.1, "modelnew/1", "cpu"), host
        assert (host.lane, host.converted) == ("modelnew", False)
        assert host.notes
        with httpx2.Client(base_url=url, timeout=START_S) as plain:
            for result in (converted, host):
                stored = plain.get(f"/v1/evaluations/{result.evaluation}").json()
                assert stored["notes"] == result.notes
                assert stored["evaluation"]["lane"] == result.lane
            body = {"query": ["p" + TORCH + "<|im_end|>", "p" + LOADED], "prompts": ["p", "p"], "labels": ["swish"] * 2}
            assert plain.post("/openrlhf/reward", json=body).json()["rewards"] == [0.1, converted.reward]
            assert 'kernelforge_readings_total{reading="modelnew",verdict="OK"} 2.0' in plain.get("/metrics").text
        needs_gpu = client.score("swish", LOADED.replace("int n = x.numel();", "int n = x.numel(); cudaDeviceReset();"))
        assert (needs_gpu.outcome, needs_gpu.failure_reward) == ("unsupported", 0), needs_gpu
        assert "needs a GPU and was run on the CPU" in needs_gpu.error.message
        with closing(client.session("core/swish", turns=2, observations="whole")) as session:
            turn = session.turn(TORCH)
            assert (turn.result.lane, turn.result.reward) == ("modelnew", 0.1)
            assert "It ran as it is, not converted" in turn.observation
            assert "return x * torch.sigmoid(x)" in turn.observation
            assert session.turn(SWISH).result.lane == "plan"
        places = [str(secret), str(results / "server.db"), f"/proc/{os.getpid()}/environ"]
        port = url.rpartition(":")[2]
        spy = SPY.replace("PATHS", repr(places)).replace("PORT", port).replace("CANARY", CANARY)
        seen = client.score("swish", spy)
        assert seen.verdict == "CRASH"
        assert "files, 0 leaks: []" in seen.feedback
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
    os.close(descriptor)
