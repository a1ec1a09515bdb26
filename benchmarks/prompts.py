"""Length of every prompt, on real tasks with attempts that the built-in agents make on the spot.

    pip install rs-bpe
    python benchmarks/prompts.py [--task softmax --task matmul] [--device emulated:h100]
    python benchmarks/prompts.py --transcript results/reference/exchange-core.jsonl

Tokens are those of OpenAI's ``o200k_base``, from ``rs-bpe``, which has the vocabulary inside and needs no network;
where it is not installed the project's own estimate stands alone. ``stable`` is the part that is the same for every
call of an agent on the task. Fails (exit code 1) when the estimate of a prompt is more than 10 % off, or the prompt of
a first candidate takes more than 1,500 tokens.

With a transcript it compares recorded replies with today's prompts: what a reply uses of the language of launch plans
(functions, methods, attributes, options, operators, statements) should stand in the prompt that the same request gets
today. It prints what does not, and fails where a repair of a failed candidate used such.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kernelforge.agents.base import CoderRequest
from kernelforge.agents.prompting.examples import (
    ABOUT_FAILED,
    WITHOUT_ATTEMPTS,
    Case,
    made_here,
    render_case,
)
from kernelforge.agents.prompts import PROMPTS, coder_prompt
from kernelforge.candidate import parse_reply
from kernelforge.candidate.plan import parse_plan
from kernelforge.devices import default_device
from kernelforge.errors import KernelForgeError
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.llm.rate_limits import estimate_tokens
from kernelforge.llm.recording import read_transcript
from kernelforge.records import Operator
from kernelforge.run.task_loop import make_task_context
from kernelforge.search.base import ProfileVisibility
from kernelforge.tasks import load_task

TOLERANCE = 0.10
FIRST_CANDIDATE = 1_500
"""Most tokens of the prompt for a first candidate."""


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
    """Every prompt for one task."""
    evaluator = workshop.evaluator(load_task(f"core/{task}"))
    try:
        brief = make_task_context(evaluator)
        failed, correct = made_here("repair", brief, evaluator), made_here("optimise", brief, evaluator)
    finally:
        evaluator.oracle.close()
    for name in PROMPTS:
        case = failed if name in ABOUT_FAILED else Case(brief) if name in WITHOUT_ATTEMPTS else correct
        for metrics in ("full", "subset") if "optimise" in name else ("full",):
            prompt = render_case(name, case, sight=ProfileVisibility(metrics))
            counted = (None, None) if count is None else (count(prompt.text[: prompt.stable]), count(prompt.text))
            label = f"{name}, 24 metrics" if metrics == "subset" else name
            yield Row(task, label, len(prompt.text), *counted, estimate_tokens(prompt.text))
    yield from _three_turns(task, Case(brief), failed, correct, count)


def _three_turns(
    task: str, first: Case, failed: Case, correct: Case, count: Callable[[str], int] | None
) -> Iterator[Row]:
    """Prompts of three turns of a session, a first candidate, a repair and a change: whole, and what is new."""
    opening = render_case("seed", first)
    whole_prompts, deltas = [opening.text], [opening.text]
    for name, case in (("repair", failed), ("optimise", correct)):
        whole_prompts.append(render_case(name, case).text)
        delta = render_case(name, case, dialogue=True)
        deltas.append(delta.text[delta.stable :])
    for label, texts in (("three turns, whole prompts", whole_prompts), ("three turns, what is new", deltas)):
        text = "".join(texts)
        counted = (None, None) if count is None else (count(opening.text[: opening.stable]), count(text))
        yield Row(task, label, len(text), *counted, estimate_tokens(text))


_OPERATORS: dict[type[ast.AST], str] = {
    ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&",
    ast.BitOr: "|", ast.BitXor: "^", ast.And: "and", ast.Or: "or", ast.Not: "not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_STATEMENTS: dict[type[ast.AST], str] = {
    ast.For: "for", ast.If: "if", ast.IfExp: "else", ast.Assert: "assert", ast.While: "while", ast.Lambda: "lambda",
    ast.ListComp: "comprehensions", ast.GeneratorExp: "comprehensions", ast.JoinedStr: "f-strings",
}  # fmt: skip


def used(plan: str) -> set[str]:
    """Names, operators and statements of the language that a launch plan uses; names of its own are left out."""
    nodes = list(ast.walk(ast.parse(plan)))
    launched = {id(node.func.value) for node in nodes if isinstance(node, ast.Call) and _is_launch(node)}
    own = set(parse_plan(plan).tunables)
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    words = {text for node in nodes for text in (_OPERATORS | _STATEMENTS).get(type(node), "").split(",") if text}
    words |= {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in launched} - own
    words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return words | {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg} - own


def _is_launch(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Subscript) and isinstance(call.func.value, ast.Name)


def unnamed(words: set[str], prompt: str) -> list[str]:
    """Words that do not stand in a prompt, sorted."""
    return sorted(word for word in words if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", prompt))


def compare(workshop: EvaluatorPool, path: str) -> int:
    """Print what recorded replies use and today's prompts do not name; the number of such things in repairs."""
    preambles: dict[str, str] = {}
    of_repairs: Counter[str] = Counter()
    of_all: Counter[str] = Counter()
    replies = repairs = 0
    for conversation in read_transcript(path)[1]:
        line = conversation.first
        if line.agent != "coder":
            continue
        if line.task not in preambles:
            evaluator = workshop.evaluator(load_task(f"core/{line.task}"))
            try:
                prompt = coder_prompt(CoderRequest(make_task_context(evaluator), Operator.SEED, None, None, ()))
            finally:
                evaluator.oracle.close()
            preambles[line.task] = prompt.text[: prompt.stable]
        request = line.prompt[line.prompt.rindex("\n# Request: ") :]
        words = used(parse_reply(conversation.replies[-1]).plan)
        replies += 1
        of_all.update(unnamed(words, preambles[line.task]))
        if "# Request: repair" in request:
            repairs += 1
            lost = unnamed(words, preambles[line.task] + request)
            of_repairs.update(lost)
            print(f"repair of {line.task} uses {len(words)} things, not named: {', '.join(lost) or 'none'}")
    print(f"{repairs} repairs use {len(of_repairs)} things that today's prompts do not name")
    lacking = ", ".join(of_all) or "none"
    print(f"{replies} replies use {len(of_all)} things that the part for all requests does not name: {lacking}")
    return len(of_repairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", help="task of suite core; repeat for more (default: three)")
    parser.add_argument("--transcript", metavar="FILE", help="compare replies of core's tasks with today's prompts")
    parser.add_argument("--device", default=None)
    arguments = parser.parse_args()
    if arguments.transcript:
        with EvaluatorPool(arguments.device or default_device(), threads=2) as workshop:
            return int(compare(workshop, arguments.transcript) > 0)
    count = tokenizer()
    print("| task | prompt | characters | tokens | of them stable | estimate |\n|---|---|---|---|---|---|")
    worst, too_long = 0.0, []
    with EvaluatorPool(arguments.device or default_device(), threads=2) as workshop:
        for task in arguments.task or ["softmax", "matmul", "conv2d"]:
            for row in rows(workshop, task, count):
                counted = "- | -" if row.tokens is None else f"{row.tokens:,} | {row.stable:,}"
                print(f"| {row.task} | {row.prompt} | {row.characters:,} | {counted} | {row.estimate:,} |")
                if row.prompt == "seed":
                    too_long += [f"{task} {row.tokens:,}"] if (row.tokens or 0) > FIRST_CANDIDATE else []
                if row.tokens is not None:
                    worst = max(worst, abs(row.estimate / row.tokens - 1))
    if count is None:
        print("\nno tokenizer: `pip install rs-bpe` for exact counts")
    else:
        print(f"\nlargest error of the estimate: {worst:.1%}")
    print(f"prompts for a first candidate over {FIRST_CANDIDATE:,} tokens: {', '.join(too_long) or 'none'}")
    return int(worst > TOLERANCE or bool(too_long))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KernelForgeError as error:
        sys.exit(f"error: {error}")
