"""Writes the golden prompts again: ``python tests/agents/write_golden.py``, after a template was changed on purpose."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main() -> None:
    sys.path[:0] = [str(TESTS), str(TESTS.parent), str(TESTS / "agents")]
    from tests.agents.prompt_samples import GOLDEN, SAMPLES, golden_text

    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.md"):
        old.unlink()
    for name, render in SAMPLES.items():
        (GOLDEN / f"{name}.md").write_text(golden_text(render()), encoding="utf-8")


if __name__ == "__main__":
    main()
