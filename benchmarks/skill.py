"""Work of a coding agent through ``kernelforge mcp``, with and without the skill, replayed from recorded calls.

    pip install rs-bpe '.[mcp]'
    python benchmarks/skill.py [--task matmul] [--device emulated:h100]

A session is one agent at one task: files of the skill that it opened, and calls of tools. The calls are made again, by
the SDK's client, and the answers counted as the agent's model gets them. Tokens are those of OpenAI's ``o200k_base``,
from ``rs-bpe``. Rounds are evaluations. Every session has one author and happened once: the table compares nothing
beyond these sessions. Fails (exit code 1) when a verdict is no longer that of the recording.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from mcp import Client
from mcp_types import Implementation, TextContent

from kernelforge.agents.prompting.skill import skill_files
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.mcp.server import INSTRUCTIONS, build_server
from kernelforge.mcp.service import Service
from kernelforge.records import Budget
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.tasks.suites import Catalogue
from kernelforge.utils.machine import usable_cpus
from prompts import tokenizer

RECORDING = Path(__file__).parents[1] / "results" / "reference" / "skill-core.jsonl"
Count = Callable[[str], int]


class Round(NamedTuple):
    """One evaluation of a session."""

    verdict: str
    time_us: float | None
    speedup: float | None
    """Predicted, over eager PyTorch."""


class Row(NamedTuple):
    """One session."""

    task: str
    guide: str
    calls: int
    opened: int
    """Tokens of the skill's files that were opened."""
    sent: int
    received: int
    rounds: list[Round]
    changed: list[str]
    """Verdicts that are not those of the recording."""

    @property
    def correct(self) -> list[tuple[int, Round]]:
        return [(number, item) for number, item in enumerate(self.rounds, 1) if item.verdict == "OK" and item.time_us]

    def line(self) -> str:
        first = str(self.correct[0][0]) if self.correct else "-"
        number, best = min(self.correct, key=lambda item: item[1].time_us or 0.0, default=(0, None))
        result = "| - | - | - |"
        if best is not None and best.time_us is not None:
            speedup = "-" if best.speedup is None else f"{best.speedup:.2f}x"
            result = f"| {number} | {best.time_us:.2f} | {speedup} |"
        cells = (self.task, self.guide, self.calls, f"{self.opened:,}", f"{self.sent:,}", f"{self.received:,}", first)
        return "| " + " | ".join(map(str, cells)) + f" {result}"


async def replayed(service: Service, session: Mapping[str, Any], count: Count) -> Row:
    """Make the calls of a session again."""
    files = skill_files()
    name = f"{session['task']}-{session['guide']}"
    attempts: list[str] = []
    opened = sent = received = 0
    rounds: list[Round] = []
    changed: list[str] = []
    async with Client(build_server(service), client_info=Implementation(name=name, version="1")) as client:
        for step in session["steps"]:
            if "read" in step:
                opened += count(files[step["read"]])
                continue
            arguments = dict(step["arguments"])
            if "parent" in arguments:  # the number of a call
                arguments["parent"] = attempts[arguments["parent"]]
            result = await client.call_tool(step["tool"], arguments)
            (content,) = result.content
            assert isinstance(content, TextContent)
            sent += count(json.dumps(arguments, ensure_ascii=False))
            received += count(content.text)
            answer = result.structured_content or {}
            attempts.append(answer.get("attempt", ""))
            if "verdict" not in step:
                continue
            evaluation = answer.get("evaluation", answer)
            time = evaluation.get("time") or {}
            predicted = time.get("predicted") or {}
            rounds.append(Round(evaluation["verdict"], time.get("time_us"), predicted.get("speedup")))
            if evaluation["verdict"] != step["verdict"]:
                changed.append(f"{name}, round {len(rounds)}: {evaluation['verdict']}, recorded {step['verdict']}")
    return Row(session["task"], session["guide"], len(attempts), opened, sent, received, rounds, changed)


async def listing(service: Service, count: Count) -> tuple[int, int]:
    """Tokens of the tools' listing, complete and without the schemas of answers."""
    tools = [
        tool.model_dump(mode="json", by_alias=True, exclude_none=True)
        for tool in await build_server(service).list_tools()
    ]
    without = [{key: value for key, value in tool.items() if key != "outputSchema"} for tool in tools]
    complete, short = (count(json.dumps(item, separators=(",", ":"), ensure_ascii=False)) for item in (tools, without))
    return complete, short


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", action="append", default=[])
    parser.add_argument("--device", default="emulated:h100")
    parser.add_argument("--recording", type=Path, default=RECORDING)
    options = parser.parse_args()
    count = tokenizer()
    if count is None:
        print("tokens are counted with rs-bpe: pip install rs-bpe", file=sys.stderr)
        return 2
    lines = options.recording.read_text(encoding="utf-8").splitlines()
    head, *sessions = map(json.loads, lines)
    selected = [session for session in sessions if not options.task or session["task"] in options.task]
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(Path(folder) / DATABASE_NAME) as store,
        EvaluatorPool(options.device, threads=usable_cpus()) as pool,
    ):
        service = Service(Catalogue(["core"]), pool, store, Budget())
        complete, short = anyio.run(listing, service, count)
        print(f"{head['date']}, by {head['written_by']}; device {options.device}; one session per row")
        print(f"before the first call: listing {complete:,} tokens ({short:,} without the schemas of answers)")
        print(f"and instructions {count(INSTRUCTIONS):,}\n")
        print("| task | guide | calls | skill | sent | received | first correct | best | best us | predicted |")
        print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        changed: list[str] = []
        for session in selected:
            row = anyio.run(replayed, service, session, count)
            print(row.line(), flush=True)
            changed += row.changed
        service.close()
    for text in changed:
        print(text, file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
