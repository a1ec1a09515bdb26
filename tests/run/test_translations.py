"""Translations of CUDA into C: asked for with the CUDA alone, judged, and counted by task."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from kernelforge.candidate import parse_reply
from kernelforge.errors import UsageError
from kernelforge.evaluation.timing.candidate_timer import performance
from kernelforge.llm.base import Answer, Question
from kernelforge.records import CpuConditions, Ratio, SideTimes, Task, Timing, Verdict
from kernelforge.report.terminal.translation import translation_lines
from kernelforge.run.translations import Reversals, Translation, scores, translate
from tests.support.factories import make_evaluation, make_fingerprint
from tests.support.shipped_prompts import shipped
from tests.support.terminal import drawn

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler `cc`")


class Scripted:
    """An answerer with fixed replies, which keeps what it was asked."""

    name = "scripted"

    def __init__(self, replies: Sequence[str]) -> None:
        self._replies = list(replies)
        self.asked: list[Question] = []

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return Answer(self._replies[question.sample], ())


@pytest.fixture(scope="module")
def horner() -> Task:
    task = next(task for task in shipped("translate") if task.name == "horner")
    sizes = tuple(size for size in task.sizes if size.name in ("full", "small", "hidden_tiny"))
    return task.model_copy(update={"sizes": sizes})


@pytest.mark.slow
@needs_cc
def test_each_sample_gets_its_verdict_and_the_prompt_shows_no_c(horner: Task) -> None:
    right = f"Here it is.\n```c\n{horner.c_source}```\n"
    unbuilt = right.replace("float sum", "flaot sum")
    coder = Scripted([right, unbuilt, right.replace("terms - 2", "terms - 3"), "I cannot."])
    made = list(translate([horner], coder, samples=4, seed=3))
    assert [item.evaluation.verdict for item in made] == [Verdict.OK, Verdict.BUILD, Verdict.WRONG, Verdict.POLICY]
    assert [item.compiled for item in made] == [True, False, True, False]
    assert [item.evaluation.lane for item in made] == ["c"] * 4
    assert made[3].source is None
    assert made[0].evaluation.uncompared
    prompt = coder.asked[0].prompt.text
    assert "blockIdx.x * blockDim.x" in prompt
    assert "horner[ceil_div(n, 256), 256]" in prompt
    assert "void horner(int terms, int n, const float *coefficient, const float *x, float *value);" in prompt
    assert horner.c_source not in prompt
    assert "torch" not in prompt
    assert f"[{horner.size('hidden_tiny').constants['N']}]" not in prompt.split("Sizes that you may see")[1]


def made(task: Task, sample: int, verdict: Verdict, stage: str, source: str | None = "x") -> Translation:
    evaluation = make_evaluation(verdict, stage=stage)
    return Translation(task=task.name, sample=sample, source=source, evaluation=evaluation)


def test_scores_are_means_over_tasks_and_leave_out_what_was_not_judged(horner: Task) -> None:
    other = horner.model_copy(update={"name": "other"})
    rows = [made(horner, 0, Verdict.OK, "done", horner.c_source), made(horner, 1, Verdict.WRONG, "small")]
    rows += [made(other, 0, Verdict.BUILD, "compile"), made(other, 1, Verdict.CRASH, "hidden")]
    rows += [made(other, 2, Verdict.INFRA, "compile"), made(other, 3, Verdict.POLICY, "parse", None)]
    counted = scores(rows, [horner, other])
    assert (counted.tasks, counted.samples, counted.compile_rate) == (2, 5, 0.6)
    assert counted.pass_at_k == {1: 0.25}
    assert counted.likeness is not None
    assert counted.likeness.texts == 4
    alone = scores(rows[:1], [horner]).likeness
    assert alone is not None
    assert alone.bleu == pytest.approx(1.0)
    assert 0 < counted.likeness.bleu < 1
    with pytest.raises(UsageError, match="nothing to count"):
        scores(rows[4:5], [other])


def test_a_task_without_known_cuda_is_refused(horner: Task) -> None:
    with pytest.raises(UsageError, match="has no CUDA to translate"):
        list(translate([horner.model_copy(update={"translation": ""})], Scripted([]), samples=1, seed=1))


@pytest.mark.slow
@needs_cc
def test_right_translations_are_rows_in_the_other_direction_too(horner: Task, warm_zygotes: None) -> None:
    horner = horner.model_copy(update={"source": horner.source.replace("N = 33554432", "N = 32768")})
    other = horner.c_source.replace("float sum", "float total").replace("sum ", "total ").replace("sum;", "total;")
    with Reversals(allow_unconfined=False, seed=5) as reversals:
        into_cuda = reversals.from_c(horner, other, 2)
        into_c = reversals.from_cuda(horner, parse_reply(horner.translation))
        wrong = horner.model_copy(update={"c_source": horner.c_source.replace("terms - 2", "terms - 3")})
        assert reversals.from_cuda(wrong, parse_reply(horner.translation)) is None
    assert into_cuda is not None
    assert into_c is not None
    assert (into_cuda["direction"], into_cuda["verdict"], into_cuda["lane"]) == ("c-to-cuda", "OK", "plan")
    assert other in into_cuda["messages"][0]["content"]
    assert into_cuda["messages"][1]["content"] == horner.translation
    assert (into_cuda["written_by"], into_cuda["sample"]) == ("suite", 2)
    assert (into_c["direction"], into_c["verified"], into_c["lane"]) == ("cuda-to-c", True, "c")
    assert horner.c_source.strip() in into_c["messages"][1]["content"]
    assert parse_reply(horner.translation).source.strip() in into_c["messages"][0]["content"]


def timed_translation(task: str, sample: int, speedup: float, empty_us: float = 0.5) -> Translation:
    """A right translation with a measured speedup over the suite's function, and half of it over PyTorch."""
    sides = [
        SideTimes(name=name, samples_us=(2.0, 2.0), median_us=2.0, interval_us=(1.9, 2.1), captured=False)
        for name in ("candidate", "c", "eager")
    ]
    ratios = tuple(
        Ratio(baseline=name, speedup=value, interval=(0.9 * value, 1.1 * value), blocks=4)
        for name, value in (("c", speedup), ("eager", speedup / 2))
    )
    cpu = CpuConditions(name="a processor", cpus=2, threads=2, command="cc -O2", overhead_us=empty_us)
    timing = Timing(
        protocol="cpu/1", sets=1, set_bytes=8, flush_bytes=0, candidate=sides[0], baselines=tuple(sides[1:]),
        ratios=ratios, fastest="eager", settled=True, budget_s=1.0, cpu=cpu,
    )  # fmt: skip
    fingerprint = make_fingerprint(device="cpu", device_kind="cpu", arch="cpu", toolchain="cc")
    measured = performance(timing, None, None)
    evaluation = make_evaluation(lane="c", build=None, fingerprint=fingerprint, performance=measured)
    return Translation(task=task, sample=sample, source="void f(void);", evaluation=evaluation)


def test_the_speedup_is_the_geometric_mean_of_each_tasks_best(horner: Task) -> None:
    other = horner.model_copy(update={"name": "other"})
    made = [
        timed_translation("horner", 0, 2.0),
        timed_translation("horner", 1, 8.0),
        timed_translation("other", 0, 2.0, empty_us=137.0),
    ]
    counted = scores(made, [horner, other])
    assert counted.mean_speedup == pytest.approx(4.0)
    assert [time.sample for time in counted.times] == [0, 1, 0]
    text = drawn(translation_lines(counted))
    assert "4.00x over the suite's C" in text
    assert "8.00x (7.20x to 8.80x)" in text
    assert "a processor, 2 CPUs, 2 threads" in text
    rows = [line.split() for line in text.splitlines() if line.lstrip().startswith(("horner", "other"))]
    assert [row[:4] for row in rows] == [
        ["horner", "1", "2", "0.5"], ["horner", "2", "2", "0.5"], ["other", "1", "2", "137"],
    ]  # fmt: skip


def test_a_measured_time_of_a_cpu_is_of_a_c_function_alone() -> None:
    timed = timed_translation("horner", 0, 2.0).evaluation
    with pytest.raises(ValidationError, match="a C function alone"):
        timed.model_copy(update={"lane": "modelnew"})
