"""Write the golden prompts again, after a deliberate change of a template: ``python -m tests.agents.write_golden``."""

from __future__ import annotations

from tests.agents.prompt_samples import GOLDEN, SAMPLES, golden_text


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.md"):
        old.unlink()
    for name, render in SAMPLES.items():
        (GOLDEN / f"{name}.md").write_text(golden_text(render()), encoding="utf-8")


if __name__ == "__main__":
    main()
