"""Length of every prompt, on real tasks with attempts that the built-in agents make on the spot.

    pip install rs-bpe
    python benchmarks/prompts.py [--task softmax --task matmul] [--device emulated:h100]

Tokens are those of OpenAI's ``o200k_base``, from ``rs-bpe``, which has the vocabulary inside and needs no network;
where it is not installed the project's own estimate stands alone. ``stable`` is the part that is the same for every
call of an agent on the task. Fails (exit code 1) when the estimate of a prompt is more than 10 % off.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kernelforge.agents.prompting.examples import (
    ABOUT_FAILED,
    WITHOUT_ATTEMPTS,
    Case,
    made_here,
    render_case,
)
from kernelforge.agents.prompts import PROMPTS
from kernelforge.devices import default_device
from kernelforge.errors import KernelForgeError
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.llm.rate_limits import estimate_tokens
from kernelforge.run.task_loop import make_task_context
from kernelforge.search.base import ProfileVisibility
from kernelforge.tasks import load_task

TOLERANCE = 0.10


class Row(NamedTuple):
    task: str
    prompt: str
    characters: int
    stable: int | None
    tokens: int | None
    """None without a tokenizer."""
    estimate: int


def tokenizer() -> Callable[[str], int] | None:
    """Counts the tokens of a text; None where no tokenizer is installed."""
    try:
        from rs_bpe import openai
    except ImportError:
        return None
    encoding = openai.o200k_base()
    return lambda text: len(encoding.encode(text))


def rows(workshop: EvaluatorPool, task: str, count: Callable[[str], int] | None) -> Iterator[Row]:
    """Every prompt for one task; the profile is shown in full where one is shown at all."""
    evaluator = workshop.evaluator(load_task(f"core/{task}"))
    try:
        brief = make_task_context(evaluator)
        failed, correct = made_here("repair", brief, evaluator), made_here("optimise", brief, evaluator)
    finally:
        evaluator.oracle.close()
    for name in PROMPTS:
        case = failed if name in ABOUT_FAILED else Case(brief) if name in WITHOUT_ATTEMPTS else correct
        for metrics in ("subset", "full") if "optimise" in name else ("subset",):
            prompt = render_case(name, case, sight=ProfileVisibility(metrics))
            counted = (None, None) if count is None else (count(prompt.text[: prompt.stable]), count(prompt.text))
            label = f"{name}, full metrics" if metrics == "full" else name
            yield Row(task, label, len(prompt.text), *counted, estimate_tokens(prompt.text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", help="task of suite core; repeat for more (softmax and matmul)")
    parser.add_argument("--device", default=None)
    arguments = parser.parse_args()
    count = tokenizer()
    print("| task | prompt | characters | tokens | of them stable | estimate |\n|---|---|---|---|---|---|")
    worst = 0.0
    with EvaluatorPool(arguments.device or default_device(), threads=2) as workshop:
        for task in arguments.task or ["softmax", "matmul"]:
            for row in rows(workshop, task, count):
                counted = "- | -" if row.tokens is None else f"{row.tokens:,} | {row.stable:,}"
                print(f"| {row.task} | {row.prompt} | {row.characters:,} | {counted} | {row.estimate:,} |")
                if row.tokens is not None:
                    worst = max(worst, abs(row.estimate / row.tokens - 1))
    if count is None:
        print("\nno tokenizer: `pip install rs-bpe` for exact counts")
    else:
        print(f"\nlargest error of the estimate: {worst:.1%}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KernelForgeError as error:
        sys.exit(f"error: {error}")
