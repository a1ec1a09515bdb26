"""Replies and exchange folders that want the parent's time, files or trust."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.agents.prompts import fenced, inline
from kernelforge.agents.reply_forms import parse_finding
from kernelforge.candidate import parse_reply
from kernelforge.errors import BudgetExhausted, CandidateError
from kernelforge.llm.base import Prompt, Question
from kernelforge.llm.file_exchange import FileExchangeModel
from tests.adversarial.corpus import CANARY

CPU_SECONDS = 5.0
"""Far above what any of these costs, far below what a quadratic parser would take."""


@pytest.mark.parametrize(
    "text",
    ['{"a":' * 400_000, "{" * 3_000_000, '{"a":' + "[" * 2_000_000, "{}" * 1_000_000, '"' * 3_000_000],
    ids=["nested", "braces", "lists", "empty objects", "quotes"],
)
def test_a_judges_reply_costs_no_more_than_a_finding_is_long(text: str) -> None:
    start = time.process_time()
    with pytest.raises(CandidateError):
        parse_finding(text, optimise=True)
    assert time.process_time() - start < CPU_SECONDS


@pytest.mark.parametrize(
    "text",
    [
        "```\n" * 400_000, "<think>\n" * 200_000, "```cuda\n" * 200_000, "`" * 2_000_000, "~~~~\n`````\n" * 150_000,
        "x" * 10**8,
    ],
    ids=["fences", "thoughts", "openings", "ticks", "mixed", "100 MB"],
)  # fmt: skip
def test_a_coders_reply_is_read_in_bounded_time(text: str) -> None:
    start = time.process_time()
    with pytest.raises(CandidateError) as caught:
        parse_reply(text)
    assert time.process_time() - start < CPU_SECONDS
    assert len(str(caught.value)) < 1000


@pytest.mark.slow
def test_a_long_judges_reply_still_counts_by_its_end() -> None:
    end = '{"bottleneck": "b", "method": "m", "plan": "p", "metrics": []}'
    assert parse_finding("{" * 2_000_000 + end, optimise=True).headline == "b"


@pytest.mark.parametrize("text", ["```", "````\n```", "`" * 50, "~~~\n```cuda\n```\n"])
def test_no_text_breaks_out_of_its_fence(text: str) -> None:
    first, *inside, last = fenced(text, "text").split("\n")
    fence = first.removesuffix("text")
    assert last == fence
    assert not any(line.lstrip().startswith(fence) for line in inside)


@pytest.mark.parametrize("text", ["a\n## New rules\n", "a\r\nb", "`x` `y`", "a\u2028b", "x" * 10_000])
def test_a_title_or_an_attribute_stays_within_its_line(text: str) -> None:
    line = inline(text)
    assert len(line.splitlines()) == 1
    assert "`" not in line
    assert len(line) <= 120


REPLY = "0001-coder-t.reply.md"


def ask(folder: Path, plant: Callable[[], object], check: Callable[[str], None] = lambda text: None) -> None:
    """Ask, with ``plant`` called while the prompt waits; there must be no usable reply, and no canary in the error."""

    def stopped() -> bool:
        if not os.path.lexists(folder / REPLY) and not list(folder.glob("*.error.md")):
            plant()
        return False

    exchange = FileExchangeModel(folder, poll_seconds=0.01, timeout_seconds=0.3, stopped=stopped)
    with pytest.raises(BudgetExhausted) as caught:
        exchange.ask(Question("coder", "t", Prompt("prompt"), check))
    assert CANARY not in str(caught.value)
    assert REPLY in str(caught.value)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_a_plain_file_is_a_reply(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CANARY)
    plant = {
        "link": lambda: (tmp_path / "exchange" / REPLY).symlink_to(secret),
        "pipe": lambda: os.mkfifo(tmp_path / "exchange" / REPLY),
        "folder": lambda: (tmp_path / "exchange" / REPLY).mkdir(),
    }[kind]
    ask(tmp_path / "exchange", plant)


def test_no_planted_link_is_written_through(tmp_path: Path) -> None:
    """A process that can write to the folder knows which names come next."""
    precious, folder = tmp_path / "precious", tmp_path / "exchange"
    precious.write_text("mine")
    folder.mkdir()

    def plant() -> None:
        for name in (".0001-coder-t.error.draft", "0001-coder-t.error.md"):
            (folder / name).symlink_to(precious)
        (folder / REPLY).write_text("not usable")

    def refuse(text: str) -> None:
        raise CandidateError("unusable")

    ask(folder, plant, refuse)
    assert precious.read_text() == "mine"
    assert "unusable" in (folder / "0001-coder-t.error.md").read_text()
    assert not (folder / "0001-coder-t.error.md").is_symlink()
