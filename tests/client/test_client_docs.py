"""The examples of docs/client.md run, in their order."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.protocol_server import TASK, ProtocolServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"


@pytest.mark.slow
def test_the_examples_on_the_page_run(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELFORGE_SERVER", server.url)
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 8
    prompts: list[str] = []
    names = {
        "reply": "1.5",
        "model": lambda prompt: prompts.append(prompt) or "1.5",
        "replies": ["2.5", "now 3.5", "infra"],
        "requests": [{"task": TASK, "completion": "1"}] * 3,
    }
    for example in examples:
        exec(compile(example, PAGE.name, "exec"), names)

    async def write(_: object) -> str:
        return "1.5"

    asyncio.run(names["episodes"](write))
    asyncio.run(names["gather_step"](write, []))
    names["train_in_steps"](lambda observation: "1.5")
    output = capsys.readouterr().out
    for line in (
        "1.5 OK None",
        "0 scored 2.5",
        "1 scored 3.5",
        "2 infra_error None",
        "1.5 OK True",
        "4 environments stepped",
    ):
        assert line in output.splitlines()
    assert re.search(r"^(\d+) for this step, (\d+) for the next$", output, re.MULTILINE)
    assert prompts == ["Write it.", "Faster.", "Faster.", "Faster."]
