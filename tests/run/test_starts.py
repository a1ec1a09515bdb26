"""Runs that are started from a kernel: what may be one, where it stands in the search, and what the Coder is shown."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kernelforge.api import optimize
from kernelforge.candidate import format_reply
from kernelforge.compile.triton_build import installed_triton
from kernelforge.errors import UsageError
from kernelforge.llm.recording import transcript_lines
from kernelforge.records import Attempt, Budget, Candidate, Limits, LLMSettings, Operator, Run, RunState, Verdict
from kernelforge.run import Event, StopSignal, configure, resume_run, runner
from kernelforge.run.starts import read_start, read_starts, start_from_candidate, start_from_text
from tests.run.run_helpers import Watcher, open_store, quick_config, run_in, small_core
from tests.support.llm_server import FakeLLM, Say

SLOW = """\
__global__ void swish(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float waste = 0.0f;
    for (int k = 0; k < 64; k++) waste += sinf(x[i] + k);
    out[i] = waste == -123456.0f ? 0.0f : x[i] / (1.0f + expf(-x[i]));
}
"""
PLAN = """\
def forward(x):
    out = empty_like(x)
    swish[ceil_div(x.numel(), 256), 256](x, out, i32(x.numel()))
    return out
"""
COMMENTED = f"/* plan:\n{PLAN}*/\n{SLOW}"
HOST = """torch::Tensor run_swish(torch::Tensor x) {
    auto out = torch::empty_like(x);
    int n = x.numel();
    swish<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
"""
EXTENSION = f"#include <torch/extension.h>\n{SLOW}\n{HOST}"
MODEL_NEW = f'''import torch
from torch.utils.cpp_extension import load_inline
source = r"""
{SLOW}
{HOST}"""
declared = "torch::Tensor run_swish(torch::Tensor x);"
extension = load_inline(name="swish", cpp_sources=declared, cuda_sources=source, functions=["run_swish"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return extension.run_swish(x)
'''
TRITON = """\
import triton
import triton.language as tl

# tune: BLOCK = 128 | 256


@triton.jit
def swish(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, value / (1.0 + tl.exp(-value)), mask=at < n)


def forward(x):
    out = empty_like(x)
    swish[ceil_div(x.numel(), BLOCK)](x, out, i32(x.numel()), BLOCK=BLOCK)
    return out
"""


def reply(source: str, plan: str = PLAN) -> str:
    return format_reply(Candidate(source=source, plan=plan))


def config(start: Any, **changes: Any) -> Any:
    return quick_config(tasks=("swish",), tune=False, memory="off", starts=(start,), **changes)


def attempts_in(folder: Path, run: Run) -> list[Attempt]:
    with open_store(folder) as store:
        return store.attempts(run.id)


# What may be a start


@pytest.mark.parametrize(
    ("name", "text", "plan_file"),
    [
        ("reply.md", reply(SLOW), None),
        ("swish.cu", COMMENTED, None),
        ("swish.cu", SLOW, "swish.py"),
        ("swish.cu", SLOW, "swish.plan.py"),
        ("swish.py", MODEL_NEW, None),
        ("swish.cu", EXTENSION, None),
        ("reply.txt", f"Here it is.\n\n```python\n{MODEL_NEW}```\n", None),
    ],
)
def test_each_kind_of_file_gives_the_same_kernel(name: str, text: str, plan_file: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    if plan_file is not None:
        (tmp_path / plan_file).write_text(PLAN)
    start = read_start("swish", tmp_path / name, tmp_path)
    assert start.task == "swish"
    assert (start.origin.file, start.origin.attempt) == (name, None)
    assert len(start.origin.digest) == 64
    assert start.origin.converted == bool(start.model_new) == ("torch::Tensor" in text)
    assert start.candidate.source.strip().startswith(SLOW.strip()[:60])
    assert "def forward(x):" in start.candidate.plan


def test_the_lines_of_a_file_keep_their_numbers_where_its_plan_is_a_comment(tmp_path: Path) -> None:
    (tmp_path / "swish.cu").write_text(COMMENTED)
    start = read_start("swish", tmp_path / "swish.cu", tmp_path)
    assert start.candidate.plan == PLAN
    lines = COMMENTED.splitlines()
    at = lines.index(SLOW.splitlines()[0])
    assert start.candidate.source.splitlines()[at] == lines[at]


def test_a_triton_file_is_kernels_and_a_plan_with_its_choices() -> None:
    candidate = start_from_text("swish", TRITON).candidate
    assert candidate.language == "triton"
    assert "def forward" not in candidate.source
    assert "# tune" not in candidate.source
    assert candidate.plan.startswith("# tune: BLOCK = 128 | 256\ndef forward(x):")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("int main() { return 0; }", "it holds no kernel; a start is a reply with two fenced blocks"),
        (
            SLOW,
            "it has no launch plan, and none can be made because it has no host function that takes and returns",
        ),
        (SLOW, "torch::Tensor: write 'def forward(...)' into a block comment"),
        (
            EXTENSION + HOST.replace("run_swish", "other"),
            "several of its host functions take and return torch::Tensor (r",
        ),
        (
            EXTENSION.replace("int n", "while (true);\nint n"),
            "its host function run_swish cannot be converted to a launch plan (line 13: `while(true);",
        ),
        (
            EXTENSION.replace("swish<<<", "// <<<"),
            "to a launch plan (no kernel of the candidate: torch computes all of it",
        ),
        (f"```cuda\n{SLOW}```\n", "no ```python block"),
        (TRITON.partition("def forward")[0], "it has no launch plan: write 'def forward(...)' below its kernels"),
        (TRITON + "class Model:\n    pass\n", "has a class"),
        (TRITON + "def (\n", "is not Python"),
        (MODEL_NEW.replace("swish<<<", "other<<<"), "its class ModelNew cannot be converted to device code and a plan"),
        ("class ModelNew:\n    pass\n", "its class ModelNew cannot be converted to device code and a plan"),
    ],
)
def test_what_is_no_kernel_is_refused_in_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "start.txt").write_text(text)
    with pytest.raises(UsageError, match=r"cannot start from .*start.txt: ") as refused:
        read_start("swish", tmp_path / "start.txt", tmp_path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_or_an_attempt_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for value in ("missing.cu", "missing/run.cu", "latest/swish/00"):
        with pytest.raises(UsageError):
            read_start("swish", value, tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["{file}"], "this run has 2 tasks; write TASK=FILE with one of swish, gelu"),
        (["other={file}"], "'other' is no task of this run"),
        (["swish={file}", "swish={file}"], "gives task 'swish' two starts"),
    ],
)
def test_each_start_needs_its_task(values: list[str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "swish.cu"
    file.write_text(COMMENTED)
    with pytest.raises(UsageError, match=message):
        read_starts([value.format(file=file) for value in values], ("swish", "gelu"), tmp_path)
    starts = read_starts([f"gelu={file}", f"swish={file}"], ("swish", "gelu"), tmp_path)
    assert [start.task for start in starts] == ["gelu", "swish"]


def test_triton_needs_its_extra_and_a_run_that_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = start_from_text("swish", TRITON)
    if installed_triton() is not None:
        with pytest.raises(UsageError, match="choose --language triton, or any"):
            config(start)
    monkeypatch.setattr(runner, "installed_triton", lambda: None)
    with pytest.raises(UsageError, match="in Triton, which is not installed: "):
        config(start)


def test_a_start_changes_the_digest_of_a_run_and_none_does_not() -> None:
    without = quick_config(tasks=("swish",))
    assert "starts" not in without.model_dump(exclude_defaults=True)
    assert config(start_from_text("swish", COMMENTED)).digest != without.digest


# Where it stands in the search


@pytest.mark.slow
@pytest.mark.usefixtures("warm_workshop")
def test_the_built_in_agents_make_a_better_kernel_and_spend_no_round_on_the_start(tmp_path: Path) -> None:
    start = start_from_text("swish", COMMENTED)
    run = run_in(tmp_path, config(start, budget=Budget(rounds=2, evaluations=2)))
    first, *others = attempts_in(tmp_path, run)
    assert (first.number, first.operator, first.parent, first.coder) == (0, Operator.START, None, "")
    assert first.start == start.origin
    assert first.accepted
    assert first.messages == ()
    assert first.profile is not None
    assert [attempt.operator for attempt in others] == [Operator.OPTIMISE, Operator.OPTIMISE]
    assert others[0].parent == first.id
    assert any(attempt.accepted for attempt in others)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_workshop")
def test_a_stopped_run_goes_on_with_its_start(tmp_path: Path) -> None:
    def stop_at_once(event: Event, stop: StopSignal) -> None:
        if event.kind in ("task_started", "attempt"):
            stop.drain()

    made = config(start_from_text("swish", COMMENTED), budget=Budget(rounds=1, per_task=Limits(evaluations=1)))
    run = run_in(tmp_path, made, stop_at_once)
    with open_store(tmp_path) as store:
        assert [attempt.operator for attempt in store.attempts(run.id)] == [Operator.START]
        assert resume_run(run.id, store, Watcher(), StopSignal()).state is RunState.FINISHED
        attempts = store.attempts(run.id)
    assert [attempt.operator for attempt in attempts] == [Operator.START, Operator.OPTIMISE]
    assert attempts[0].start == made.starts[0].origin


@pytest.mark.slow
@pytest.mark.usefixtures("warm_workshop")
def test_a_model_is_shown_a_wrong_start_with_its_verdict_and_repairs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = SLOW.replace("1.0f + expf", "2.0f + expf")
    with ExitStack() as stack:
        server = stack.enter_context(FakeLLM(Say(reply(SLOW))))
        monkeypatch.setenv("OPENAI_API_KEY", "test-key")
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        settings = LLMSettings(retries=1)
        begun = config(start_from_text("swish", reply(wrong)), coder="openai:coder", llm=settings,
                       budget=Budget(rounds=2))  # fmt: skip
        run = run_in(tmp_path, begun)
    first, second, third = attempts_in(tmp_path, run)
    assert (first.operator, first.evaluation.verdict) == (Operator.START, Verdict.WRONG)
    assert (second.operator, second.parent, second.accepted) == (Operator.REPAIR, first.id, True)
    assert third.operator is Operator.OPTIMISE
    prompt = server.calls[0].prompt
    assert "# Request: repair a candidate" in prompt
    assert "2.0f + expf" in prompt
    assert "Verdict WRONG, at stage `small`" in prompt


@pytest.mark.slow
@pytest.mark.usefixtures("warm_workshop")
def test_an_attempt_of_another_run_is_a_start_and_a_transcript_revises_it(tmp_path: Path) -> None:
    first = run_in(tmp_path, config(start_from_text("swish", COMMENTED), budget=Budget(rounds=1)))
    with open_store(tmp_path) as store:
        best = store.attempts(first.id)[-1]
        lines = transcript_lines([best], {"swish": store.task_messages(first.id, "swish")}, written_by="builtin")
    (tmp_path / "transcript.jsonl").write_text("".join(lines))
    start = read_start("swish", f"{first.id}/swish/0", tmp_path)
    assert start.origin.attempt == f"{first.id}/swish/00"
    spec = f"replay:{tmp_path / 'transcript.jsonl'}"
    run = run_in(tmp_path, config(start, coder=spec, budget=Budget(rounds=1)))
    begun, revised = attempts_in(tmp_path, run)
    assert begun.candidate == start.candidate
    assert begun.start is not None
    assert begun.start.attempt == f"{first.id}/swish/00"
    assert (revised.coder, revised.parent) == (spec, begun.id)
    assert revised.candidate == best.candidate


@pytest.mark.slow
@pytest.mark.usefixtures("warm_workshop")
@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (MODEL_NEW, Verdict.OK),
        (EXTENSION, Verdict.OK),
        (reply(SLOW, PLAN.replace("forward(x)", "forward(x, y)")), Verdict.POLICY),
        (reply(SLOW, PLAN.replace("empty_like(x)", "nothing(x)")), Verdict.POLICY),
        pytest.param(
            TRITON, Verdict.OK,
            marks=pytest.mark.skipif(installed_triton() is None, reason="the extra triton is not installed"),
        ),
    ],
    ids=["modelnew", "extension", "other arguments", "no plan", "triton"],
)  # fmt: skip
def test_a_start_is_evaluated_like_any_candidate(text: str, verdict: Verdict, tmp_path: Path) -> None:
    language = "any" if text == TRITON else "cuda"
    run = run_in(tmp_path, config(start_from_text("swish", text), language=language, budget=Budget(rounds=1)))
    first, second = attempts_in(tmp_path, run)
    assert first.evaluation.verdict is verdict, first.evaluation.reason
    assert second.parent == first.id
    assert run.state is RunState.FINISHED


def test_a_candidate_is_a_start_by_itself() -> None:
    start = start_from_candidate("swish", Candidate(source=SLOW, plan=PLAN))
    assert start.origin.digest == start.candidate.hash
    with pytest.raises(UsageError, match="cannot be converted"):
        start_from_candidate("swish", Candidate(source="class ModelNew:\n    pass\n", plan="", lane="modelnew"))


def test_a_start_belongs_to_a_task_of_the_run() -> None:
    with pytest.raises(ValueError, match="each start belongs to one task of the run"):
        configure(suite=small_core(), tasks=("swish",), starts=(start_from_text("gelu", COMMENTED),))


@pytest.mark.slow
@pytest.mark.usefixtures("warm_workshop")
def test_the_library_takes_a_file_a_candidate_or_an_attempt_of_its_results(tmp_path: Path) -> None:
    (tmp_path / "swish.cu").write_text(COMMENTED)
    budget, task = Budget(rounds=1), Path(small_core()).parent / "core" / "swish.py"
    settings: dict[str, Any] = {"device": "emulated:h100", "budget": budget, "results": tmp_path, "seed": 5}
    stop = StopSignal()
    stop.drain()
    for start in (tmp_path / "swish.cu", str(tmp_path / "swish.cu"), Candidate(source=SLOW, plan=PLAN)):
        result = optimize(task, start=start, stop=stop, **settings)
        assert result.run.config.starts[0].candidate.plan == PLAN
    with pytest.raises(UsageError, match="has no task"):
        optimize(task, start=f"{result.run.id}/swish/0", stop=stop, **settings)
