"""Transcripts: what is journalled is written, what was written is read, and what is damaged is said so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.llm.base import COMPLAINT
from kernelforge.llm.recording import FORMAT, conversations, read_transcript, sha256_of, transcript_lines
from kernelforge.records import AgentName, Message, Usage
from kernelforge.version import __version__
from tests.support.factories import make_attempt


def turns(agent: AgentName, *texts: str, provider: str = "openai:m", usage: Usage | None = None) -> tuple[Message, ...]:
    """Prompt, reply, prompt, reply, ..."""
    return tuple(
        Message(
            agent=agent,
            role="reply" if position % 2 else "prompt",
            provider=provider,
            content=text,
            usage=usage if position % 2 else None,
        )
        for position, text in enumerate(texts)
    )


def complaint(text: str) -> str:
    return f"{COMPLAINT}\n\n{text}\n"


def written(tmp_path: Path, attempts, task_messages=None) -> Path:
    file = tmp_path / "t.jsonl"
    file.write_text("".join(transcript_lines(attempts, task_messages or {}, written_by="a person")), encoding="utf-8")
    return file


def test_a_conversation_is_a_prompt_with_all_its_complaints() -> None:
    messages = (
        *turns("judge", "j", "finding"),
        *turns("coder", "c", "bad", complaint("why"), "good"),
        *turns("coder", "another", "reply"),
        *turns("tester", "never answered"),
    )
    assert [[(item.content, two.content) for item, two in talk] for talk in conversations(messages)] == [
        [("j", "finding")],
        [("c", "bad"), (complaint("why"), "good")],
        [("another", "reply")],
    ]


def test_what_was_said_is_read_as_it_was_written(tmp_path: Path) -> None:
    spent = Usage(model="m-1", input_tokens=5, output_tokens=7, seconds=1.5, dollars=0.25)
    odd = 'line one\nzwei\u2028drei \U0001f600 "quoted" \\ \x85\x0b tab\t'
    attempts = [
        make_attempt(0, messages=turns("coder", odd, "bad", complaint("why"), odd, usage=spent)),
        make_attempt(1, task="gelu", messages=turns("coder", odd, "of another task")),
    ]
    header, talks = read_transcript(written(tmp_path, attempts, {"softmax": turns("judge", "last", "stop")}))
    assert (header.format, header.written_by, header.kernelforge) == (FORMAT, "a person", __version__)
    assert [(talk.first.agent, talk.first.task, talk.number, talk.replies) for talk in talks] == [
        ("coder", "softmax", 2, ("bad", odd)),
        ("judge", "softmax", 4, ("stop",)),
        ("coder", "gelu", 5, ("of another task",)),
    ]
    begin, repeated = talks[0].lines
    assert (begin.prompt, begin.sha256, begin.turn, begin.usage) == (odd, sha256_of(odd), 0, spent)
    assert (repeated.prompt, repeated.turn, repeated.written_by) == (complaint("why"), 1, "a person")


def test_conversations_that_begin_alike_are_numbered_within_their_task(tmp_path: Path) -> None:
    attempts = [make_attempt(number, messages=turns("coder", "same", f"reply {number}")) for number in range(3)]
    attempts.append(make_attempt(0, task="gelu", messages=turns("coder", "same", "elsewhere")))
    _, talks = read_transcript(written(tmp_path, attempts))
    assert [(talk.first.task, talk.first.sample) for talk in talks] == [
        ("softmax", 0), ("softmax", 1), ("softmax", 2), ("gelu", 0),
    ]  # fmt: skip


def test_every_line_is_json_that_names_its_author(tmp_path: Path) -> None:
    file = written(tmp_path, [make_attempt(0, messages=turns("coder", "p", "r"))])
    rows = [json.loads(row) for row in file.read_text().split("\n")[:-1]]
    assert [row["written_by"] for row in rows] == ["a person"] * 2


def rewritten(tmp_path: Path, number: int, **changes: object) -> Path:
    """A good transcript with one line changed."""
    talk = turns("coder", "p", "bad", complaint("why"), "good")
    file = written(tmp_path, [make_attempt(0, messages=talk)])
    rows = file.read_text().split("\n")
    rows[number - 1] = json.dumps(json.loads(rows[number - 1]) | changes)
    file.write_text("\n".join(rows))
    return file


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (1, {"format": "something else"}, "no transcript"),
        (1, {"version": 99}, "version 99, this KernelForge reads 1"),
        (2, {"prompt": "edited"}, "damaged in line 2: sha256 is not that of its prompt"),
        (3, {"turn": 2}, "damaged in line 3: turn 2 follows on no line"),
        (3, {"task": "gelu"}, "damaged in line 3: turn 1 follows on no line"),
        (2, {"turn": 1}, "damaged in line 2: turn 1 follows on no line"),
        (2, {"agent": "oracle"}, "damaged in line 2: agent: "),
        (3, {"extra": 1}, "damaged in line 3: extra: "),
    ],
)
def test_a_damaged_transcript_is_refused_with_its_line(
    tmp_path: Path, number: int, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_transcript(rewritten(tmp_path, number, **changes))
    assert message in str(caught.value)


def test_what_is_no_transcript_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_transcript(file)
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_transcript(tmp_path)
    for content in (b"", b"hello\n", b"{}\n"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="kernelforge export --format transcript"):
            read_transcript(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_transcript(file)
    file.write_text(
        f'{{"format": "{FORMAT}", "version": 1, "about": "", "written_by": "", "kernelforge": ""}}\n{{"agent"'
    )
    with pytest.raises(UsageError, match="damaged in line 2"):
        read_transcript(file)
