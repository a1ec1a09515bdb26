"""Samples, the rows of every kind, and what is left out of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kernelforge.agents import tester
from kernelforge.agents.tester import parse_tests
from kernelforge.datasets.training import (
    KINDS,
    Sample,
    c_translation,
    catching_tests,
    counted_once,
    distinct,
    likeness,
    normalised,
    rows,
    samples_of_attempts,
    scored_tests,
    shingles,
    split,
    translations,
    uncontaminated,
    with_dialogue,
    with_reasoning,
)
from kernelforge.evaluation.audit import results
from kernelforge.evaluation.generators.recipe import TEST_PREFIX
from kernelforge.records import (
    Correctness,
    Evaluation,
    Finding,
    InputGenerator,
    Message,
    Operator,
    PredictedSpeedup,
    SizeCheck,
    Usage,
    Verdict,
)
from tests.support.factories import (
    make_attempt,
    make_build,
    make_evaluation,
    make_fingerprint,
    make_task,
    measured,
    modelled,
)

FINDING = Finding(kind="repair", headline="reads past the end", why="at [7, 33]", action="guard the last block")


def sample(number: int = 0, verdict: Verdict = Verdict.OK, **changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "id": f"r/t/{number:02d}",
        "source": "run",
        "run": "r",
        "task": "core/softmax",
        "dialogue": f"r/t/{number:02d}",
        "turn": 1,
        "group": "g",
        "messages": (("user", "Write it."),),
        "completion": f"reply {number}",
        "evaluation": make_evaluation(verdict),
        "profile": None,
        "candidate": f"__global__ void k{number}(float* x) {{ x[{number}] = {number}.0f + x[1] * x[2]; }}",
        "reward": 0.3 if verdict is Verdict.OK else 0.0,
    }
    return Sample(**(fields | changes))


def predicted(low: float, high: float) -> Evaluation:
    speedup = (low * high) ** 0.5
    forecast = PredictedSpeedup(
        gpu="H100", speedup=speedup, low=low, high=high, eager_us=speedup * 10.0, eager_origin="predicted",
        eager_source="model",
    )  # fmt: skip
    return make_evaluation(performance=modelled(10.0, predicted=forecast))


def timed(time_us: float) -> Evaluation:
    fingerprint = make_fingerprint(device="cuda:0", device_kind="cuda")
    return make_evaluation(fingerprint=fingerprint, performance=measured(time_us))


def test_supervised_rows_are_correct_replies_with_their_prompts() -> None:
    [row] = rows("sft", [sample(0), sample(1, Verdict.WRONG), sample(2, Verdict.INFRA, reward=None)], 0.4)
    assert row["messages"] == [
        {"role": "user", "content": "Write it."},
        {"role": "assistant", "content": "reply 0"},
    ]
    assert (row["verdict"], row["task"], row["reward"]) == ("OK", "core/softmax", 0.3)


def test_a_correct_reply_is_preferred_to_a_wrong_one() -> None:
    [row] = rows("dpo", [sample(0, Verdict.WRONG), sample(1), sample(2, Verdict.INFRA, reward=None)], 0.4)
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"], row["reason"]) == (
        "reply 1",
        "reply 0",
        "correct",
    )


@pytest.mark.parametrize(
    ("first", "second", "preferred"),
    [
        (predicted(2.0, 4.0), predicted(0.5, 1.5), "reply 0"),
        (predicted(0.5, 1.5), predicted(2.0, 4.0), "reply 1"),
        (predicted(1.0, 3.0), predicted(0.5, 1.5), None),
        (timed(10.0), timed(20.0), "reply 0"),
        (timed(10.0), timed(11.0), None),
        (timed(10.0), predicted(0.5, 1.5), None),
        (timed(10.0), timed(20.0).model_copy(update={"lane": "modelnew"}), None),
        (make_evaluation(), make_evaluation(), None),
    ],
)
def test_of_two_correct_replies_only_intervals_that_do_not_meet_make_a_pair(
    first: Evaluation, second: Evaluation, preferred: str | None
) -> None:
    made = rows("dpo", [sample(0, evaluation=first), sample(1, evaluation=second)], 0.4)
    assert [row["chosen"][0]["content"] for row in made] == ([] if preferred is None else [preferred])
    assert all(row["reason"] == "faster" for row in made)


def test_replies_to_different_prompts_are_no_pair() -> None:
    assert rows("dpo", [sample(0), sample(1, Verdict.WRONG, group="other")], 0.4) == []
    assert rows("dpo", [sample(0), sample(1, Verdict.WRONG, messages=(("user", "Repair it."),))], 0.4) == []


def test_labels_groups_and_what_has_no_score() -> None:
    items = [sample(0), sample(1, Verdict.WRONG), sample(2, Verdict.INFRA, reward=None), sample(3, group="alone")]
    assert [row["label"] for row in rows("kto", items, 0.4)] == [True, False, True]
    [group] = rows("grpo", items, 0.4)
    assert (group["completions"], group["rewards"]) == (["reply 0", "reply 1"], [0.3, 0.0])


def test_a_trajectory_is_the_whole_dialogue_with_returns() -> None:
    turns = [
        sample(0, Verdict.WRONG, messages=(("user", "SYSTEM\n\nWrite it."),), policy_version=1, dialogue="s"),
        sample(1, messages=(("user", "Make it faster."),), policy_version=2, dialogue="s"),
    ]
    [row] = rows("trajectories", with_dialogue(turns, "SYSTEM"), 0.5)
    assert [(word["role"], word["content"]) for word in row["messages"]] == [
        ("system", "SYSTEM"), ("user", "Write it."), ("assistant", "reply 0"), ("user", "Make it faster."),
        ("assistant", "reply 1"),
    ]  # fmt: skip
    assert row["returns"] == pytest.approx([0.15, 0.3])
    assert (row["rewards"], row["policy_versions"]) == ([0.0, 0.3], [1, 2])


@pytest.mark.parametrize(("verdict", "helped"), [(Verdict.OK, True), (Verdict.CRASH, False), (Verdict.INFRA, None)])
def test_a_critique_is_a_finding_about_a_reply_and_whether_it_helped(verdict: Verdict, helped: bool | None) -> None:
    words = [
        Message(agent="coder", role="prompt", provider="p", content="Write it."),
        Message(agent="coder", role="reply", provider="p", content="reply 0"),
    ]
    failed = make_attempt(0, Verdict.WRONG, messages=tuple(words))
    repaired = make_attempt(
        1, verdict, operator=Operator.REPAIR, parent=0, finding=FINDING, messages=tuple(words), accepted=bool(helped)
    )
    made = rows("critique", list(samples_of_attempts([failed, repaired], "kernelforge/1")), 0.4)
    assert [row["helped"] for row in made] == ([] if helped is None else [helped])
    if made:
        assert made[0]["messages"][1]["content"] == "reply 0"
        assert made[0]["messages"][-1]["content"].startswith("reads past the end")
        assert made[0]["parent_verdict"] == "WRONG"


def test_marks_of_the_built_in_coder_and_attempts_without_words_are_left_out() -> None:
    reply = '```cuda\n// kernelforge-builtin/1 {"moves": ["fuse"]}\n__global__ void k() {}\n```\n'
    words = (
        Message(agent="coder", role="prompt", provider="builtin", content="Write it."),
        Message(agent="coder", role="reply", provider="builtin", content=reply),
    )
    [made] = samples_of_attempts([make_attempt(0, messages=words), make_attempt(1)], "kernelforge/1")
    assert made.completion == "```cuda\n__global__ void k() {}\n```\n"
    assert (made.written_by, made.reward) == ("builtin", 0.3)


def test_reasoning_is_a_column_or_in_the_reply_or_nowhere() -> None:
    usage = Usage(model="m", output_tokens=90, reasoning_tokens=64, seconds=1.0)
    words = (
        Message(agent="coder", role="prompt", provider="m", content="Write it."),
        Message(agent="coder", role="reply", provider="m", content="the kernel", reasoning="hm", usage=usage),
    )
    samples = list(samples_of_attempts([make_attempt(0, messages=words)], "kernelforge/1"))
    made = {form: rows("sft", with_reasoning(samples, form), 0.4)[0] for form in ("column", "think", "off")}
    replies = {form: row["messages"][-1]["content"] for form, row in made.items()}
    assert replies == {"column": "the kernel", "think": "<think>\nhm\n</think>\n\nthe kernel", "off": "the kernel"}
    lengths = {form: (row["reasoning"], row["reasoning_tokens"]) for form, row in made.items()}
    assert lengths == {"column": ("hm", 64), "think": ("hm", 64), "off": (None, None)}


def test_sources_are_equal_without_comments_and_layout() -> None:
    first = "// one\n__global__ void k(float* x) {\n    x[0] = 1.0f; /* two\n lines */\n}\n"
    assert normalised(first) == normalised("__global__ void k( float *x ){ x[0]=1.0f; }")
    assert normalised(first) != normalised(first.replace("1.0f", "2.0f"))
    assert normalised("#define N 4\nint a = N;") != normalised("int a = N;")
    assert normalised("# a comment of Python\nx = 1\n") == normalised("x = 1")


def test_repeats_of_a_prompt_are_left_out_by_source_ptx_and_likeness() -> None:
    long = "__global__ void k(float* x) { " + " ".join(f"x[{index}] = x[{index + 1}];" for index in range(60)) + " }"
    same_ptx = make_evaluation(build=make_build(ptx_hash="p"))
    items = [
        sample(0, candidate=long),
        sample(1, candidate="// another name\n" + long),
        sample(2, candidate=long.replace("x[7] = x[8]", "x[7] = x[9]")),
        sample(3, evaluation=same_ptx),
        sample(4, evaluation=same_ptx),
        sample(5, candidate=None),
        sample(6, candidate=long, group="other"),
    ]
    assert [item.id[-2:] for item in distinct(items, 0.9)] == ["00", "03", "05", "06"]
    assert [item.id[-2:] for item in distinct(items, 1.0)] == ["00", "02", "03", "05", "06"]
    renamed = [*items, sample(7, candidate=long.replace("x", "values")), sample(8, candidate=long.replace("=", "+="))]
    assert [item.id[-2:] for item in distinct(renamed, 0.9)] == ["00", "03", "05", "06", "07", "08"]
    assert [item.id[-2:] for item in distinct(renamed, 0.9, by_bleu=True)] == ["00", "03", "05", "06", "08"]
    same = sample(1).candidate
    wrong, right, other = sample(1, Verdict.WRONG), sample(2, candidate=same), sample(3, Verdict.WRONG, candidate=same)
    assert distinct([wrong, right, other], 0.9) == [wrong, right]
    assert likeness(shingles(long), shingles(long)) == 1.0
    assert likeness(frozenset(), frozenset()) == 1.0


def test_what_shares_an_evaluation_counts_once_in_all_prompts_or_in_each_group() -> None:
    ran = make_evaluation(candidate="a" * 16)
    shared = make_evaluation(candidate="b" * 16, equals=ran.key)
    items = [
        sample(0, evaluation=make_evaluation(Verdict.INFRA, candidate="a" * 16), reward=None),
        sample(1, evaluation=ran),
        sample(2, evaluation=shared),
        sample(3, evaluation=shared, group="other"),
        sample(4, evaluation=make_evaluation(candidate="c" * 16)),
        sample(5, evaluation=ran, group="other"),
        sample(6, evaluation=ran, candidate=None),
    ]
    assert [item.id[-2:] for item in counted_once(items)] == ["00", "01", "04", "06"]
    assert [item.id[-2:] for item in counted_once(items, by_group=True)] == ["00", "01", "03", "04", "06"]
    assert {row["evaluation"] for row in rows("sft", items[1:4], 0.4)} == {ran.key}
    [group, _] = rows("grpo", items[1:6], 0.4)
    assert group["evaluations"] == [ran.key, ran.key, items[4].shared_key]


def test_tasks_of_a_suite_and_their_likes_are_left_out() -> None:
    excluded = make_task(source="def forward(x):\n    return torch.softmax(x, 1) + torch.relu(x) * 3 - x.sum()\n")
    renamed = make_task(name="other", source="# the same\n" + excluded.source)
    different = make_task(name="third", source="def forward(a, b):\n    return a @ b\n")
    items = [
        sample(number, evaluation=make_evaluation(task=task.digest))
        for number, task in enumerate((excluded, renamed, different))
    ]
    references = {task.digest: task.source for task in (excluded, renamed, different)}
    assert [item.id[-2:] for item in uncontaminated(items, references, [excluded], 0.9)] == ["02"]
    assert [item.id[-2:] for item in uncontaminated(items, {}, [excluded], 0.9)] == ["01", "02"]


def test_all_samples_of_a_task_go_to_one_part() -> None:
    items = [sample(number, evaluation=make_evaluation(task=f"{number % 50:016x}")) for number in range(200)]
    parts = split(items, 0.3)
    tasks = {name: {item.evaluation.task for item in part} for name, part in parts.items()}
    assert not tasks["train"] & tasks["validation"]
    assert 5 <= len(tasks["validation"]) <= 25
    assert split(items, 0.0)["validation"] == []
    assert split(items, 1.0)["train"] == []


def test_every_kind_is_written_and_empty_without_samples() -> None:
    assert [rows(kind, [], 0.4) for kind in KINDS if kind != "tester"] == [[]] * (len(KINDS) - 1)


def wrong_on(caught: str | None) -> Any:
    """An attempt that is wrong on the inputs of a generator, or on others."""
    families = ("task", "normal") if caught is None else ("task", "normal", f"{TEST_PREFIX}{caught}")
    check = SizeCheck(size="small", status="failed", families=families, message="differs")
    made = make_attempt(0, Verdict.WRONG)
    evaluation = made.evaluation.model_copy(update={"correctness": Correctness(sizes=(check,))})
    return made.model_copy(update={"evaluation": evaluation})


def test_a_testers_row_holds_the_generators_that_caught_a_wrong_kernel() -> None:
    forms = [{"name": name, "why": "a fault", "plan": "def inputs(x): return x"} for name in ("far", "flat")]
    reply = f"Two of them:\n```json\n{json.dumps({'generators': forms})}\n```"
    words = [
        Message(agent="tester", role="prompt", provider="p", content="Propose inputs."),
        Message(agent="tester", role="reply", provider="p", content="no JSON"),
        Message(agent="tester", role="prompt", provider="p", content="Again."),
        Message(agent="tester", role="reply", provider="p", content=reply),
    ]
    task = make_task()
    [row] = catching_tests("run", task, words, [wrong_on("far"), wrong_on(None), wrong_on("far")])
    user, answer = row["messages"]
    assert user["content"] == "Propose inputs."
    assert [form.name for form in parse_tests(answer["content"])] == ["far"]
    assert (row["caught"], row["tests"], row["written_by"], row["verdict"]) == (2, 2, "p", None)
    assert not list(catching_tests("run", task, words, [wrong_on(None)]))
    assert not list(catching_tests("run", task, words[:2], [wrong_on("far")]))


def test_a_translators_samples_are_those_of_tasks_that_show_code() -> None:
    plain, translated = make_task(), make_task(c_source="void f(void) {}")
    of_plain, of_translated = (
        replace(sample(number), evaluation=sample(number).evaluation.model_copy(update={"task": task.digest}))
        for number, task in enumerate((plain, translated))
    )
    kept = translations([of_plain, of_translated], {task.digest: task for task in (plain, translated)})
    assert kept == [replace(of_translated, direction="c-to-cuda")]
    assert translations([of_translated], {}) == []
    [row] = rows("translator", kept, 0.4)
    assert (row["direction"], row["verified"]) == ("c-to-cuda", True)
    assert rows("translator", [replace(kept[0], evaluation=make_evaluation(Verdict.WRONG))], 0.4) == []


def test_a_translation_into_c_has_the_columns_of_one_into_cuda() -> None:
    task = make_task(c_source="void f(void) {}", license="MIT")
    [other] = rows(
        "translator", translations([sample(evaluation=make_evaluation(task=task.digest))], {task.digest: task}), 0.4
    )
    words = [
        Message(agent="coder", role="prompt", provider="p:m", content="Translate."),
        Message(agent="coder", role="reply", provider="p:m", content="no C"),
        Message(agent="coder", role="prompt", provider="p:m", content="Again."),
        Message(agent="coder", role="reply", provider="p:m", content="```c\nvoid f() {}\n```", reasoning="One loop."),
    ]
    small = Correctness(sizes=(SizeCheck(size="small", status="passed"),))
    uncompared = make_evaluation(lane="c", build=None, performance=None, correctness=small)
    row = c_translation(task, 1, words, "void f() {}", uncompared)
    assert row.keys() - other.keys() == {"sample", "code", "reason"}
    assert not other.keys() - row.keys()
    assert [turn["role"] for turn in row["messages"]] == ["user", "assistant"] * 2
    assert row["messages"][-1]["content"] == words[-1].content
    assert (row["direction"], row["verified"], row["verdict"]) == ("cuda-to-c", True, uncompared.outcome)
    assert (row["lane"], row["reward"], row["written_by"], row["licence"]) == ("c", None, "p:m", "MIT")
    assert (row["source"], row["code"], row["reasoning"]) == ("translation", "void f() {}", "One loop.")
    wrong = c_translation(task, 2, words[:2], None, make_evaluation(Verdict.POLICY, stage="parse"))
    assert (wrong["verified"], wrong["code"], wrong["reason"]) == (False, None, "it was POLICY")
    assert wrong["group"] == row["group"]
    assert wrong["id"] != row["id"]


def test_a_testers_reply_is_a_row_with_its_score_on_mutants() -> None:
    def mutant(name: str, **rejections: Any) -> results.TestedMutant:
        return results.TestedMutant(mutant=name, fault="removed", **{"by_first": False, "by_check": True, **rejections})

    test = InputGenerator(name="far", plan="p", provider="m", admitted=True, reason="", sizes=("small",))
    refused = InputGenerator(name="nan", plan="p", provider="m", admitted=False, reason="NaN")
    words = [
        Message(agent="tester", role="prompt", provider="m", content="Propose inputs."),
        Message(agent="tester", role="reply", provider="m", content="no JSON"),
        Message(agent="tester", role="prompt", provider="m", content="Again."),
        Message(agent="tester", role="reply", provider="m", content="{}", reasoning="Maxima."),
    ]
    task, visible = make_task(), mutant("a", by_first=True)
    score = tester.TesterScore((test, refused), (visible, mutant("b", by_tests=("far",)), mutant("c")))
    row = scored_tests(task, score, words)
    assert row is not None
    assert [message["content"] for message in row["messages"]] == ["Propose inputs.", "{}"]
    assert (row["reward"], row["counted"], row["rejected"]) == (0.5, 2, 1)
    assert (row["tests"], row["admitted"], row["reasoning"], row["verdict"]) == (2, 1, "Maxima.", None)
    other = scored_tests(task, score, [words[0], words[1]])
    assert other is not None
    assert other["group"] == row["group"]
    assert other["id"] != row["id"]
    assert scored_tests(task, tester.TesterScore((test,), (visible,)), words) is None
    assert scored_tests(task, score, words[:1]) is None
