"""The exchange folder: prompts appear whole, replies are read whole, unusable ones are asked for again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelforge.errors import BudgetExhausted, CandidateError, UsageError
from kernelforge.llm.base import Prompt, Question
from kernelforge.llm.file_exchange import FileExchangeModel
from kernelforge.records import AgentName

POLL = 0.01


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as running:
        yield running


def fine(text: str) -> None:
    if "fine" not in text:
        raise CandidateError(f"{text!r} is not fine")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(POLL)


def question(prompt: str = "a prompt", *, agent: AgentName = "coder", task: str = "core/softmax") -> Question:
    return Question(agent, task, Prompt(prompt), fine)


def submit(pool: ThreadPoolExecutor, folder: Path, prompt: str = "a prompt") -> Future[str]:
    exchange = FileExchangeModel(folder, poll_seconds=POLL, timeout_seconds=60)
    return pool.submit(lambda: exchange.ask(question(prompt)).text)


def test_a_prompt_is_answered_by_the_file_beside_it(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    answer = submit(pool, tmp_path / "desk")
    prompt = tmp_path / "desk" / "0001-coder-core_softmax.prompt.md"
    until(prompt.exists)
    assert prompt.read_text() == "a prompt"
    draft = tmp_path / "draft"
    draft.write_text("fine, ü")
    draft.rename(tmp_path / "desk" / "0001-coder-core_softmax.reply.md")
    assert answer.result(60) == "fine, ü"


def test_a_reply_that_is_still_being_written_is_left_alone(tmp_path: Path) -> None:
    stem = tmp_path / "0001-coder-core_softmax"
    words = iter(["word "] * 20 + ["fine"])

    def write_on() -> bool:
        """Asked before each look, so that no two looks find the same until all is written."""
        if Path(f"{stem}.prompt.md").exists():
            with Path(f"{stem}.reply.md").open("a") as file:
                file.write(next(words, ""))
        return False

    exchange = FileExchangeModel(tmp_path, poll_seconds=POLL, timeout_seconds=60, stopped=write_on)
    assert exchange.ask(question()).text == "word " * 20 + "fine"


@pytest.mark.parametrize(("keeps", "kept"), [(True, "hm"), (False, None)])
def test_thinking_in_a_reply_is_kept_apart_from_it(tmp_path: Path, keeps: bool, kept: str | None) -> None:
    def write_once() -> bool:
        """Asked before each look."""
        path = tmp_path / "0001-coder-core_softmax.reply.md"
        if not path.exists():
            path.write_text("<think>\nhm\n</think>\n\nfine")
        return False

    exchange = FileExchangeModel(
        tmp_path, poll_seconds=POLL, timeout_seconds=60, stopped=write_once, keeps_reasoning=keeps
    )
    answer = exchange.ask(question())
    assert answer.text == "fine"
    assert [(message.content, message.reasoning) for message in answer.messages] == [("a prompt", None), ("fine", kept)]


def test_an_unusable_reply_is_explained_and_asked_for_again(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    answer = submit(pool, tmp_path)
    stem = tmp_path / "0001-coder-core_softmax"
    until(Path(f"{stem}.prompt.md").exists)
    Path(f"{stem}.reply.md").write_text("nonsense")
    until(Path(f"{stem}.error.md").exists)
    assert "'nonsense' is not fine" in Path(f"{stem}.error.md").read_text()
    assert Path(f"{stem}.rejected-1.md").read_text() == "nonsense"
    Path(f"{stem}.reply.md").write_text("fine now")
    assert answer.result(60) == "fine now"
    assert not Path(f"{stem}.error.md").exists()


def test_the_third_unusable_reply_is_handed_on_as_it_is(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    answer = submit(pool, tmp_path)
    stem = tmp_path / "0001-coder-core_softmax"
    until(Path(f"{stem}.prompt.md").exists)
    for number in (1, 2):
        Path(f"{stem}.reply.md").write_text(f"bad {number}")
        until(Path(f"{stem}.rejected-{number}.md").exists)
    Path(f"{stem}.reply.md").write_text("bad 3")
    assert answer.result(60) == "bad 3"


def test_every_prompt_reply_and_complaint_is_kept(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    exchange = FileExchangeModel(tmp_path, poll_seconds=POLL, timeout_seconds=60)
    answer = pool.submit(exchange.ask, question(agent="judge", task="t"))
    stem = tmp_path / "0001-judge-t"
    until(Path(f"{stem}.prompt.md").exists)
    Path(f"{stem}.reply.md").write_text("nonsense")
    until(Path(f"{stem}.error.md").exists)
    complaint = Path(f"{stem}.error.md").read_text()
    Path(f"{stem}.reply.md").write_text("fine now")
    messages = answer.result(60).messages
    assert [(message.role, message.content) for message in messages] == [
        ("prompt", "a prompt"), ("reply", "nonsense"), ("prompt", complaint), ("reply", "fine now"),
    ]  # fmt: skip
    assert {(message.agent, message.provider) for message in messages} == {("judge", f"exchange:{tmp_path}")}


def test_prompts_of_many_tasks_get_numbers_of_their_own(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    answers = [submit(pool, tmp_path, f"prompt {number}") for number in range(6)]
    until(lambda: len(list(tmp_path.glob("*.prompt.md"))) == 6)
    names = sorted(path.name for path in tmp_path.glob("*.prompt.md"))
    assert [name[:4] for name in names] == ["0001", "0002", "0003", "0004", "0005", "0006"]
    for path in tmp_path.glob("*.prompt.md"):
        Path(str(path).replace(".prompt.md", ".reply.md")).write_text(f"fine: {path.read_text()}")
    assert sorted(answer.result(60) for answer in answers) == [f"fine: prompt {number}" for number in range(6)]


def test_a_stop_and_a_timeout_end_the_wait_in_good_order(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    stop = threading.Event()
    waiting = pool.submit(FileExchangeModel(tmp_path, poll_seconds=POLL, stopped=stop.is_set).ask, question())
    until(lambda: len(list(tmp_path.glob("*.prompt.md"))) == 1)
    stop.set()
    with pytest.raises(BudgetExhausted, match="stopped while waiting"):
        waiting.result(60)
    with pytest.raises(BudgetExhausted, match="no reply at"):
        FileExchangeModel(tmp_path, poll_seconds=POLL, timeout_seconds=0.05).ask(question())


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        FileExchangeModel(tmp_path / "file" / "desk")


def test_a_reply_that_others_take_away_ends_in_words(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    reply = tmp_path / "0001-coder-core_softmax.reply.md"

    def taken_away(text: str) -> None:
        reply.unlink()
        raise CandidateError("not fine")

    asking = Question("coder", "core/softmax", Prompt("a prompt"), taken_away)
    answer = pool.submit(FileExchangeModel(tmp_path, poll_seconds=POLL, timeout_seconds=60).ask, asking)
    until(lambda: (tmp_path / "0001-coder-core_softmax.prompt.md").exists())
    reply.write_text("something")
    with pytest.raises(UsageError, match="cannot be used any more"):
        answer.result(60)


def test_a_folder_that_is_gone_ends_in_words(tmp_path: Path) -> None:
    exchange = FileExchangeModel(tmp_path / "desk", poll_seconds=POLL, timeout_seconds=60)
    (tmp_path / "desk").rmdir()
    with pytest.raises(UsageError, match="cannot be used any more"):
        exchange.ask(question())


def test_a_pipe_in_the_place_of_a_reply_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="plain file"):
        FileExchangeModel._read(tmp_path / "pipe")
