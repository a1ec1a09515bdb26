"""Images are built from what a wheel needs and nothing else; the job script keeps results and passes signals on; the
server's service, proxies, dashboard and cluster fit the server."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_command

from kernelforge.cli.main import app
from kernelforge.cli.serve import DEFAULT_PORT
from kernelforge.client.models import Fault, Job, JobStatus, RewardResult
from kernelforge.server.http.limits import Limits, LongPollLimiter
from kernelforge.server.http.logs import Metrics
from kernelforge.server.http.process import DRAIN_S
from kernelforge.server.http.routes.jobs import MAX_SCORE_S
from tests.support.minimal_service import MinimalService

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILES = [ROOT / "sandbox" / name for name in ("Dockerfile", "Dockerfile.gpu")]
SLURM = ROOT / "sandbox" / "slurm.sh"


SERVE = ROOT / "sandbox" / "serve"
SLURM_SERVE = SERVE / "slurm.sh"


def in_context(path: str) -> bool:
    """Whether an image is built with this path of the checkout: the last pattern that fits decides."""
    inside = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if not pattern or line.startswith("#"):
            continue
        parts = Path(path).parts
        heads = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        if any(fnmatch(head, pattern) for head in heads) or fnmatch(f"/{path}", pattern.replace("**/", "*/")):
            inside = line.startswith("!")
    return inside


@pytest.mark.parametrize(
    "path",
    [
        "pyproject.toml",
        "constraints.txt",
        "constraints-gpu12.txt",
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
        "kernelforge/cli/main.py",
        "tasks/core/suite.toml",
        "sandbox/jail.toml",
        *PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"],
    ],
)
def test_an_image_gets_what_the_wheel_needs(path: str) -> None:
    assert (ROOT / path).exists()
    assert in_context(path)


@pytest.mark.parametrize(
    "path",
    [".env", "kernelforge/.env", ".git/config", ".venv/bin/python", "results/kernelforge.db", "tests/conftest.py"],
)
def test_an_image_gets_no_key_no_result_and_no_environment(path: str) -> None:
    assert not in_context(path)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_names_what_exists(dockerfile: Path) -> None:
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    extras = set(PROJECT["project"]["optional-dependencies"])
    assert set(defaults["EXTRAS"].split(",")) <= extras
    files = re.findall(r"/src/([^\s\"]+)", re.sub(r"\$\{(\w+)\}", lambda name: defaults[name[1]], text))
    assert files
    assert all((ROOT / name).is_file() and in_context(name) for name in files)
    stages = set(re.findall(r"^FROM \S+ AS (\w+)", text, re.MULTILINE))
    assert set(re.findall(r"--from=(\w+)", text)) <= stages


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_as_an_ordinary_user_who_can_read_its_python(dockerfile: Path) -> None:
    last = dockerfile.read_text().rpartition("\nFROM ")[2]
    user = re.search(r"^USER (\w+)$", last, re.MULTILINE)
    assert user
    assert re.search(rf"useradd --uid [1-9]\d+ .*\b{user[1]}$", last, re.MULTILINE)
    assert "/root" not in dockerfile.read_text()


@pytest.mark.parametrize(
    "script", [SLURM, SLURM_SERVE, *(ROOT / ".ci" / name for name in ("run", "matrix"))], ids=lambda p: p.name
)
def test_a_shell_takes_the_script(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize(
    ("script", "needed"),
    [(SLURM, {"gpus", "time", "signal", "output"}), (SLURM_SERVE, {"nodes", "gpus-per-node", "signal", "exclusive"})],
    ids=["run", "serve"],
)
def test_slurm_reads_the_options_of_the_script(script: Path, needed: set[str]) -> None:
    """It stops at the first line that is neither a comment nor empty."""
    head = script.read_text().partition("\nset -euo")[0]
    options = re.findall(r"^#SBATCH --([\w-]+)(?:=\S+)?$", head, re.MULTILINE)
    assert len(options) == script.read_text().count("\n#SBATCH ")
    assert needed <= set(options)
    assert all(line.startswith("#") for line in head.splitlines())


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """Environment of a Slurm job, with a ``kernelforge`` program that records its arguments in the results folder."""
    programs = tmp_path / "submit" / ".venv" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    program = programs / "kernelforge"
    program.write_text(
        "#!/bin/bash\n"
        'trap "echo drained >> $KERNELFORGE_RESULTS/kernelforge.db; exit 5" TERM\n'
        'echo "$* $XDG_CACHE_HOME $TMPDIR" >> "$KERNELFORGE_RESULTS/kernelforge.db"\n'
        'if [ "$1" = wait ]; then echo ready; while :; do sleep 0.05; done; fi\n'
        "exit 3\n"
    )
    program.chmod(0o755)
    return {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "77",
        "SLURM_SUBMIT_DIR": str(tmp_path / "submit"),
        "KERNELFORGE_SCRATCH": str(tmp_path / "scratch"),
    }


def test_a_job_leaves_its_results_and_nothing_on_the_node(job: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run([SLURM], env=job, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    words = (tmp_path / "submit/results/77/kernelforge.db").read_text().split()
    assert words[0] == "run"
    assert all(word.startswith(str(tmp_path / "scratch")) for word in words[1:])
    assert not list((tmp_path / "scratch").iterdir())


def test_a_job_goes_on_with_the_results_of_another(job: dict[str, str], tmp_path: Path) -> None:
    subprocess.run([SLURM], env=job, capture_output=True, check=False)
    earlier = tmp_path / "submit/results/77"
    job |= {"SLURM_JOB_ID": "78", "KERNELFORGE_RESULTS": str(earlier)}
    done = subprocess.run([SLURM, "resume", "latest"], env=job, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    lines = (earlier / "kernelforge.db").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["run", "resume"]
    assert [path.name for path in earlier.parent.iterdir()] == ["77"]


def test_a_job_whose_time_is_nearly_over_is_drained_and_saved(job: dict[str, str], tmp_path: Path) -> None:
    with subprocess.Popen([SLURM, "wait"], env=job, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 5
    assert (tmp_path / "submit/results/77/kernelforge.db").read_text().splitlines()[-1] == "drained"


def test_a_job_without_an_environment_says_how_to_name_one(job: dict[str, str], tmp_path: Path) -> None:
    job["KERNELFORGE_VENV"] = str(tmp_path / "nowhere")
    done = subprocess.run([SLURM], env=job, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "KERNELFORGE_VENV" in done.stderr
    assert not (tmp_path / "submit/results").exists()


def test_a_server_on_many_nodes_has_a_cluster_and_a_token_of_its_own_and_leaves_neither(
    job: dict[str, str], tmp_path: Path
) -> None:
    submit, log = tmp_path / "submit", tmp_path / "log"
    (submit / "sandbox").symlink_to(ROOT / "sandbox")
    programs = {
        submit / ".venv/bin/ray": (
            f'echo "ray $* $(cat "$RAY_AUTH_TOKEN_PATH")" >> {log}; [[ "$*" != *--block ]] || exec sleep 60'
        ),
        submit / ".venv/bin/kernelforge": (
            f'echo "$*" >> "$KERNELFORGE_RESULTS/kernelforge.db"; [ "$1" = token ] && exit 0; '
            f"until grep -q ^ray.*--block {log}; do sleep 0.05; done; exit 3"
        ),
        tmp_path / "bin/srun": f'echo "srun $*" >> {log}; shift 3; exec "$@"',
    }
    for path, text in programs.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    job |= {"PATH": f"{tmp_path / 'bin'}:{job['PATH']}", "SLURM_JOB_NUM_NODES": "8"}
    done = subprocess.run([SLURM_SERVE, "--suite", "core"], env=job, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    head, srun, worker, stop = log.read_text().splitlines()
    address = re.search(r"--address=(\S+:6379)", worker)[1]
    assert "--nodes=8" in srun
    assert {len(line.split()[-1]) for line in (head, worker, stop)} == {64}
    assert len({line.split()[-1] for line in (head, worker, stop)}) == 1
    saved = submit / "results/77"
    token_command, serve_command = (saved / "kernelforge.db").read_text().splitlines()
    assert token_command.startswith("token create trainer")
    words = serve_command.split()
    context = get_command(app).commands["serve"].make_context("serve", words[1:])
    assert (context.params["address"], context.params["device"], context.params["suite"]) == (address, "cuda", ["core"])
    assert not [path for path in submit.iterdir() if path.name.startswith(".kernelforge-ray")]


def test_the_service_starts_the_server_with_options_that_it_has() -> None:
    unit = (SERVE / "kernelforge.service").read_text()
    (words,) = re.findall(r"^ExecStart=/opt/kernelforge/bin/kernelforge (.*)$", unit, re.MULTILINE)
    assert words.split()[:2] == ["serve", "--config"]
    context = get_command(app).commands["serve"].make_context("serve", ["--config", str(SERVE / "serve.toml")])
    assert (context.params["port"], context.params["suite"]) == (DEFAULT_PORT, ["core", "level1"])
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > DRAIN_S
    assert not re.search(r"^(RestrictNamespaces|SystemCallFilter|MemoryDenyWriteExecute)=", unit, re.MULTILINE)


def test_proxies_let_through_what_the_server_takes() -> None:
    caddy, nginx = ((SERVE / name).read_text() for name in ("Caddyfile", "nginx.conf"))
    assert f"reverse_proxy 127.0.0.1:{DEFAULT_PORT}" in caddy
    assert f"proxy_pass http://127.0.0.1:{DEFAULT_PORT};" in nginx
    assert int(re.search(r"client_max_body_size (\d+)m;", nginx)[1]) << 20 >= Limits().batch_bytes
    assert int(re.search(r"proxy_read_timeout (\d+)s;", nginx)[1]) > MAX_SCORE_S
    assert "flush_interval -1" in caddy
    assert "proxy_buffering off;" in nginx


def test_the_dashboard_shows_metrics_that_the_server_has() -> None:
    metrics = Metrics(MinimalService(), LongPollLimiter(1))
    metrics.observe_request("GET", "/", 200, 0.1)
    for result in (
        RewardResult(outcome="scored", reward=0.3, verdict="OK", stage="done"),
        RewardResult(outcome="infra_error", error=Fault(code="internal", message="")),
    ):
        ended = {"status": JobStatus.FINISHED, "submitted_at": 1.0, "started_at": 1.5, "finished_at": 2.0}
        metrics.observe_job(Job(id="j1", task="t", run_id="r1", result=result, **ended))
    families = text_string_to_metric_families(metrics.render().decode())
    labels: dict[str, set[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        labels.setdefault(sample.name, set()).update(sample.labels)
    board = json.loads((SERVE / "grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) >= 15
    for expression in expressions:
        names = set(re.findall(r"kernelforge_\w+", expression))
        assert names <= labels.keys()
        for by in re.findall(r"by \(([^)]*)\)", expression):
            assert set(by.split(", ")) <= set.union(*(labels[name] for name in names))
        for label in re.findall(r"\{(\w+)=", expression):
            assert all(label in labels[name] for name in names)


def test_the_cluster_serves_where_its_service_and_probes_look() -> None:
    cluster, claim, service = yaml.safe_load_all((SERVE / "kuberay.yaml").read_text())
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    (container,) = head["containers"]
    (worker,) = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports[service["spec"]["ports"][0]["targetPort"]] == DEFAULT_PORT
    assert str(DEFAULT_PORT) in container["readinessProbe"]["exec"]["command"][-1]
    assert head["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert [item for item in container["env"] if item in worker["env"]] == container["env"]
    (line,) = re.findall(r"exec kernelforge (.*)$", container["args"][0], re.MULTILINE)
    words = shlex.split(line.replace("$(hostname -i)", "10.0.0.1"))
    context = get_command(app).commands["serve"].make_context("serve", words[1:])
    assert (context.params["engine"], context.params["address"]) == ("ray", "10.0.0.1:6379")
    pinned = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert cluster["spec"]["rayVersion"] == pinned[1]
