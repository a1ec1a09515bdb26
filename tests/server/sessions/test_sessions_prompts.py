"""A session sends the same prompts as a ``refine`` run; the run's own loop is the reference. Prompts of other
strategies start from exemplars."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kernelforge.agents.base import CoderRequest, TaskContext
from kernelforge.agents.builtin import BuiltinJudge
from kernelforge.agents.prompts import coder_prompt
from kernelforge.candidate import parse_reply
from kernelforge.client.models import PromptKindName
from kernelforge.errors import CandidateError
from kernelforge.evaluation.evaluator import EvaluationResult
from kernelforge.llm.base import Answer
from kernelforge.records import Attempt, Budget, Candidate, Evaluation, Operator, Reward, RunConfig, TaskFacts, Verdict
from kernelforge.run.budget import RunBudget, StopSignal
from kernelforge.run.proposals import TaskAgents
from kernelforge.run.runner import new_run
from kernelforge.run.submissions import external_config
from kernelforge.run.task_loop import TaskLoop, make_task_context
from kernelforge.search import Contrast
from kernelforge.server.sessions.turns import Method, PendingTurn, attempt_of, independent_prompts, next_turn
from kernelforge.store import Store
from kernelforge.tasks.suites import Catalogue
from tests.agents.prompt_samples import BRIEF
from tests.agents.prompt_samples import profile as make_sample_profile
from tests.support.factories import make_attempt, modelled
from tests.support.scripted_service import evaluated, reply

TURNS = 7
TASK = Catalogue(["core"], ["softmax"]).task("softmax")[1]
FACTS = TaskFacts(task_digest=TASK.digest, sizes=BRIEF.facts.sizes)


class Scripted:
    """A Coder with scripted replies that keeps the prompts it received."""

    name = "scripted:model"

    def __init__(self, replies: list[str]) -> None:
        self.asked: list[str] = []
        self._replies = replies

    def propose(self, request: CoderRequest) -> Answer:
        self.asked.append(coder_prompt(request).text)
        return Answer(self._replies[len(self.asked) - 1], ())


class Bench:
    """Stands where evaluator, oracle and device do; verdicts come from the candidate's first line."""

    task = TASK
    facts = FACTS

    def __init__(self) -> None:
        self.oracle = self.device = self
        self.gpu_lock = nullcontext

    def require_admitted(self) -> None: ...

    def trace(self, size: str) -> Any:
        return BRIEF.graph

    def describe(self) -> dict[str, str]:
        return dict(BRIEF.device)

    spec = BRIEF.spec

    def close(self) -> None: ...

    def use_generators(self, generators: Any) -> None: ...

    def rejected(self, error: CandidateError, text: str) -> Evaluation:
        return evaluated(text, self.task)[0]

    def evaluate(self, candidate: Candidate, *, seed: int) -> EvaluationResult:
        return EvaluationResult(*evaluated(candidate, self.task))

    # The workshop of a run, as far as one task needs it.
    name = "emulated:h100"

    def evaluator(self, task: Any, generators: Any = (), errors: Any = None) -> Bench:
        return self

    def is_quarantined(self, device: Any) -> bool:
        return False

    def done(self, task: Any) -> None: ...


def asked_by_a_run(replies: list[str], folder: Path, turns: int) -> tuple[list[str], list[Attempt], TaskContext]:
    """Prompts of ``kernelforge run --strategy refine`` to a Coder with these replies."""
    external = external_config(
        "core",
        "0" * 16,
        [TASK.name],
        device="emulated:h100",
        coder="x",
        budget=Budget(rounds=turns),
        allow_unconfined=False,
    )
    config = RunConfig.model_validate({**dict(external), "strategy": "refine"})
    run, coder, bench = new_run(config), Scripted(replies), Bench()
    store = Store.open(folder / "kernelforge.db")
    store.start_run(run)
    purse = RunBudget(config.budget, stop=StopSignal()).task()
    crew = TaskAgents((coder,), BuiltinJudge(), None, None)
    loop = TaskLoop(run, TASK, [], bench, store, crew, purse, lambda event: None)  # type: ignore[arg-type]
    loop.work()
    store.close()
    return coder.asked, loop.attempts, make_task_context(bench)  # type: ignore[arg-type]


def candidate_of(completion: str) -> Candidate | None:
    try:
        return parse_reply(completion)
    except CandidateError:
        return None


def asked_by_a_session(
    replies: list[str], brief: TaskContext, turns: int, *, dialogue: bool = False
) -> tuple[list[str], list[Attempt]]:
    attempts: list[Attempt] = []
    prompts: list[str] = []
    following = next_turn(brief, (), turns)
    while following.asked is not None:
        prompts.append(following.prompt)
        text = replies[len(attempts)]
        evaluation, profile = evaluated(text, brief.task)
        reward = Reward(policy="kevin/1", value=None, components={})
        candidate = candidate_of(text)
        attempts.append(attempt_of("s1", following.asked, candidate, evaluation, profile, reward, attempts, 0.0))
        following = next_turn(brief, attempts, turns, dialogue=dialogue)
    assert following.prompt == ""
    return prompts, attempts


@pytest.mark.parametrize(
    "words",
    [
        ["wrong", "build", "4194304", "2097152", "wrong", "2097152", "1048576"],
        ["4194304", "-", "1048576", "policy", "wrong", "wrong", "524288"],
        ["-", "-", "-", "4194304", "wrong", "-", "4194304"],
        ["build", "wrong", "wrong", "build", "-", "4194304", "wrong"],
    ],
    ids=["repaired", "a reply without code", "three of them at first", "right late"],
)
def test_a_session_asks_word_for_word_what_a_refine_run_asks(words: list[str], tmp_path: Path) -> None:
    replies = [reply(word) if word != "-" else "I would rather not." for word in words]
    run_prompts, attempts, brief = asked_by_a_run(replies, tmp_path, TURNS)
    prompts, session_attempts = asked_by_a_session(replies, brief, TURNS)
    assert prompts[: len(run_prompts)] == run_prompts
    assert len(run_prompts) >= 2
    done = len(attempts)
    assert [attempt.accepted for attempt in session_attempts[:done]] == [attempt.accepted for attempt in attempts]
    assert [attempt.operator for attempt in session_attempts[:done]] == [attempt.operator for attempt in attempts]
    assert [attempt.finding for attempt in session_attempts[:done]] == [attempt.finding for attempt in attempts]
    # It goes on where the run has given up.
    assert len(prompts) == TURNS
    assert "expected 1.0, got 2.0 at [0, 3]" in "".join(prompts)


def test_a_dialogue_is_told_only_what_is_new() -> None:
    replies = [reply(word) for word in ("wrong", "4194304", "2097152", "wrong", "build", "1048576")]
    full, attempts = asked_by_a_session(replies, BRIEF, 6)
    new, same_attempts = asked_by_a_session(replies, BRIEF, 6, dialogue=True)
    assert [attempt.finding for attempt in attempts] == [attempt.finding for attempt in same_attempts]
    assert new[0] == full[0]
    for before, delta in zip(full[1:], new[1:], strict=True):
        assert len(delta) < len(before) - next_turn(BRIEF, (), 1).stable
        assert "The one of your reply in turn" in delta
        assert "__global__" not in delta
    for repaired in (1, 4, 5):  # after a failure: the same verdict, and which of the replies is meant
        verdict = full[repaired].partition("## What happened")[2]
        assert verdict
        assert verdict in new[repaired]
    assert "reply in turn 1." in new[1]
    assert "reply in turn 3." in new[3]
    assert sum(map(len, new)) < 0.5 * sum(map(len, full))


def test_a_reply_without_a_candidate_is_shown_the_page_in_a_dialogue_too() -> None:
    new, _ = asked_by_a_session(["I would rather not.", reply("4194304")], BRIEF, 2, dialogue=True)
    assert "An earlier reply held no candidate" in new[1]
    assert "## The page of the launch plan" in new[1]


def test_the_first_prompt_is_a_system_and_a_user_part() -> None:
    first = next_turn(BRIEF, (), 3)
    assert 0 < first.stable < len(first.prompt)
    assert first.prompt[first.stable :].startswith("# Request: a first candidate")


def test_a_conversation_ends_after_its_turns() -> None:
    prompts, attempts = asked_by_a_session([reply("4194304"), reply("2097152"), reply("1048576")], BRIEF, 2)
    assert (len(prompts), len(attempts)) == (2, 2)


def test_an_attempt_without_a_candidate_or_with_a_fault_is_never_the_best() -> None:
    for word in ("wrong", "build", "-"):
        text = reply(word) if word != "-" else "no code"
        evaluation, profile = evaluated(text, BRIEF.task)
        pending_turn = PendingTurn(operator=Operator.SEED)
        attempt = attempt_of(
            "s",
            pending_turn,
            candidate_of(text),
            evaluation,
            profile,
            Reward(policy="x/1", value=0.0, components={}),
            (),
            0.0,
        )
        assert not attempt.accepted
        assert (attempt.candidate is None) == (word == "-")
        assert attempt.evaluation.verdict is not Verdict.OK
    with pytest.raises(CandidateError):
        parse_reply("no code")


def exemplars(*times: float) -> list[Attempt]:
    """Right candidates of a run with these modelled times, and profiles."""
    made = []
    for number, time_us in enumerate(times):
        attempt = make_attempt(number, profile=make_sample_profile(1_000_000.0))
        changes = {"performance": modelled(time_us), "task": TASK.digest}
        evaluation = attempt.evaluation.model_copy(update=changes)
        made.append(attempt.model_copy(update={"evaluation": evaluation, "id": f"run/softmax/{number + 40}"}))
    return made


def test_independent_contrast_prompts_are_those_of_the_strategy() -> None:
    past = exemplars(100.0, 50.0, 10.0)
    strategy = Contrast.make({"samples": 3, "metrics": "subset"}, rounds=3)
    strategy.start_from(past)
    prompts = independent_prompts(BRIEF, past, Method("contrast", {"metrics": "subset"}), 3, "7")
    for slot, each in enumerate(prompts):
        assert each.proposal == strategy.ask(Random(f"7/{slot}"), slot)
        assert [attempt.number for attempt in each.examples] == [each.proposal.parent, *each.proposal.inspirations]
        assert "Profile of example 1" in each.prompt.text  # CUDA-L2
        for attempt in each.examples:
            assert attempt.candidate is not None
            assert attempt.candidate.source in each.prompt.text
    assert [each.proposal.operator for each in independent_prompts(BRIEF, (), Method("contrast"), 2, "7")] == [
        "seed"
    ] * 2
    # Without metrics, as in CUDA-L1.
    assert "Profile of example" not in independent_prompts(BRIEF, past, Method("contrast"), 1, "7")[0].prompt.text


def test_fsr_and_refine_prompts_start_from_the_fastest() -> None:
    past = exemplars(100.0, 10.0, 50.0)
    for kind in ("fsr", "refine"):
        [drawn] = independent_prompts(BRIEF, past, Method(kind), 1, "")
        assert drawn.proposal.parent == 1
        assert past[1].candidate is not None
        assert past[1].candidate.source in drawn.prompt.text
        assert (drawn.finding is not None) == (kind == "refine")


@pytest.mark.parametrize("kind", ["contrast", "fsr"])
def test_a_conversation_of_another_strategy_joins_exemplars_and_its_own_attempts(kind: PromptKindName) -> None:
    past, attempts = exemplars(20.0), list[Attempt]()
    method = Method(kind, {"temperature": 0.01} if kind == "contrast" else {})
    prompts = []
    for word in ("wrong", "4194304", "1048576"):
        following = next_turn(BRIEF, attempts, 3, method=method, exemplars=past, seed="s", dialogue=True)
        assert following.asked is not None
        prompts.append(following.prompt)
        candidate = parse_reply(reply(word))
        evaluation, profile = evaluated(candidate, TASK)
        reward = Reward(policy="kevin/1", value=None, components={})
        attempts.append(attempt_of("s1", following.asked, candidate, evaluation, profile, reward, attempts, 0.0))
    assert [attempt.operator for attempt in attempts] == [kind] * 3
    assert past[0].candidate is not None
    assert past[0].candidate.source in prompts[0]
    assert attempts[0].parent == "run/softmax/40"
    if kind == "fsr":  # a round in which nothing was right: from its failed kernel
        assert attempts[1].parent == attempts[0].id
        assert "// wrong" in prompts[1]
    else:  # its own attempt is as fast as an exemplar may be, and is shown with it
        assert {"run/softmax/40", attempts[1].id} >= {attempts[2].parent}
        assert "// 4194304" in prompts[2]
        assert past[0].candidate.source in prompts[2]
    assert BRIEF.task.source in prompts[0]
    assert BRIEF.task.source not in prompts[1]
    assert next_turn(BRIEF, attempts, 3, method=method, exemplars=past).asked is None
