"""The built-in Coder: chooses its next design by the operator of the strategy, and writes it as a model would reply.

Nothing here is random: ``sample`` counts through the choices, so samples of one request differ, and a rerun repeats
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from kernelforge.agents.base import BUILTIN, CoderRequest, TaskContext
from kernelforge.agents.builtin.advice import ADVICE
from kernelforge.agents.builtin.codegen.render import Rendered, render
from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.agents.builtin.ir.lowering import Attributes, paired
from kernelforge.agents.prompts import coder_prompt, fenced
from kernelforge.errors import UnsupportedError
from kernelforge.llm.base import Answer
from kernelforge.records import Attempt, Finding, Message, Operator, Verdict
from kernelforge.records.task import MAX_PLAN_BYTES, MAX_SOURCE_BYTES
from kernelforge.search.base import rank_key


class BuiltinCoder:
    """Writes kernels without a model. Stateless: the sources of earlier attempts say which moves they have taken."""

    name = BUILTIN

    def propose(self, request: CoderRequest) -> Answer:
        """A candidate for the request.

        Where the reference cannot be written, or every design that could be was tried, a reply without code that says
        so: it costs an attempt and no compilation, and a repeated candidate would cost both and teach nothing.
        """
        try:
            choice = next_design(request)
            text = _reply(request, choice, write(request.brief, choice.design))
        except UnsupportedError as error:
            text = f"I cannot write this candidate: {error}.\n"
        messages = (
            Message(agent="coder", role="prompt", provider=self.name, content=coder_prompt(request).text),
            Message(agent="coder", role="reply", provider=self.name, content=text),
        )
        return Answer(text, messages)


def _reply(request: CoderRequest, choice: Choice, rendered: Rendered) -> str:
    kernels = ", ".join(f"`{name}`" for name in rendered.kernels)
    code = f"{fenced(rendered.source, 'cuda')}\n\n{fenced(rendered.plan, 'python')}\n"
    if request.operator is not Operator.CONTRAST:
        return f"{choice.words}\n\nKernels: {kernels}.\n\n{code}"
    # The three parts that CUDA-L1's prompt asks for.
    examples = [example for example in (request.parent, *request.inspirations) if example is not None]
    times = (
        f"- example {number} takes {example.evaluation.performance.time_us:,.4g} us"
        for number, example in enumerate(examples, 1)
        if example.evaluation.performance is not None
    )
    analysis = "\n".join(times) or "- the examples have no times to compare"
    return (
        f"## Performance Analysis\n\n{analysis}\n\n## Algorithm Design\n\n1. {choice.words}\n2. The kernels are "
        f"{kernels}.\n\n"
        f"## Code Implementation\n\n{code}"
    )


_OF_SIZE = re.compile(r"[^.]+|.*\.(num_groups|(stride|dilation)\.\d)")


class Choice(NamedTuple):
    """A design, and the words that it is proposed with."""

    design: Design
    words: str


def write(brief: TaskContext, design: Design) -> Rendered:
    """A design of the brief's reference as text.

    Raises:
        UnsupportedError: the reference uses an operator that the built-in Coder does not know, or takes too much text.
    """
    attributes = readable(brief.facts.at("full").attrs, brief.facts.at("small").attrs)
    rendered = render(
        brief.graph,
        design,
        attributes,
        brief.small_graph,
        warpgroups=brief.spec.arch == "sm_90a",
        clusters=brief.spec.compute_capability >= (9, 0),
        shared_bytes=brief.spec.shared_bytes_per_block,
    )
    for part, text, most in (("source", rendered.source, MAX_SOURCE_BYTES), ("plan", rendered.plan, MAX_PLAN_BYTES)):
        if len(text) > most:
            full, small = len(brief.graph.nodes), None if brief.small_graph is None else len(brief.small_graph.nodes)
            loops = "" if small in (None, full) else ": forward loops over an extent, and the graph has every round"
            raise UnsupportedError(
                f"its {part} would have {len(text):,} bytes, and a candidate's has at most {most:,}{loops}"
            )
    return rendered


def readable(full: Attributes, small: Attributes) -> dict[str, int | float | bool | str]:
    """Attributes of a reference that its kernels read instead of repeating their values.

    Those that differ between the sizes shown, the model's own integers, and the integers of its layers that may well
    differ at another size: groups, steps and dilations.
    """
    return {
        name: paired(value, small.get(name))
        for name, value in full.items()
        if small.get(name) != value or (type(value) is int and value > 1 and _OF_SIZE.fullmatch(name))
    }


def applicable_designs(brief: TaskContext, design: Design) -> list[str]:
    """The moves that would change the design's kernels, in the order of the table."""
    now = _kernels(write(brief, design))
    return [move for move in MOVES if move not in design.moves and _kernels(write(brief, design.then(move))) != now]


def next_design(request: CoderRequest) -> Choice:
    """The design to write for a request.

    Raises:
        UnsupportedError: the reference cannot be written, or no design is left that was not tried.
    """
    if request.operator is Operator.SEED:
        return _seed(request)
    parent = _design(request.parent)
    if parent is None:
        return _instead_of_anothers(request)
    if request.operator is Operator.REPAIR:
        return _step_back(parent)
    if request.operator is Operator.CROSSOVER:
        return _crossover(request, parent)
    if request.operator is Operator.CONTRAST:
        return _contrast(request, parent)
    failed = request.parent is not None and request.parent.evaluation.verdict is not Verdict.OK
    if failed:
        return _step_back(parent, request)
    return _improve(request, parent)


def growing(brief: TaskContext, base: Design, order: Sequence[str] = ()) -> Iterator[Design]:
    """Every design that ``base`` leads to by moves that change its kernels, the near ones first, each kernel text once.

    Moves in ``order`` are taken before the others.
    """
    seen, layer = {_kernels(write(brief, base))}, [base]
    while layer:
        following = []
        for design in layer:
            moves = [move for move in MOVES if move not in design.moves]
            for move in sorted(
                moves, key=lambda move_name: order.index(move_name) if move_name in order else len(order)
            ):
                text = _kernels(write(brief, design.then(move)))
                if text not in seen:
                    seen.add(text)
                    following.append(design.then(move))
                    yield following[-1]
        layer = following


def _seed(request: CoderRequest) -> Choice:
    """Sample 0 is the plain design; each later one takes another set of moves, the small sets first."""
    designs: Iterable[Design] = chain([Design()], growing(request.brief, Design()))
    if request.sample == 0:
        # Asked again for the same: the plain design did not do.
        designs = chain(_fresh(request, designs), [Design()])
    design = _nth(designs, request.sample)
    if not design.moves:
        words = "A straightforward first version: one thread per output element or row, reductions as loops."
        return Choice(design, words)
    return Choice(design, f"A first version that takes {_listed(design.moves)} from the start.")


def _improve(request: CoderRequest, parent: Design) -> Choice:
    """The move that was asked for, or the ``sample``-th that leads to a design not tried yet."""
    finding = request.finding
    if finding is not None and finding.move in MOVES and finding.move not in parent.moves:
        return _taking(parent, parent.then(str(finding.move)))
    options = applicable_designs(request.brief, parent)
    hinted = [move for move in options if _hinted(move, finding, request.technique)]
    design = next(_fresh(request, [parent.then(move) for move in hinted]), None)
    return _addition(request, parent) if design is None else _taking(parent, design)


def _contrast(request: CoderRequest, first: Design) -> Choice:
    """The faster example's design with a move that it lacks: first those that the slower ones have."""
    ranked = [(rank_key(example), design) for example in _examples(request) if (design := _design(example)) is not None]
    best = min(ranked, key=lambda pair: pair[0])[1] if ranked else first
    theirs = {move for _, design in ranked for move in design.moves}
    return _addition(request, best, [move for move in MOVES if move in theirs])


def _crossover(request: CoderRequest, first: Design) -> Choice:
    """All moves of both parents; where that is nothing new, one of the parents' sets and a further move."""
    others = [design for inspiration in request.inspirations if (design := _design(inspiration)) is not None]
    taken = {move for design in (first, *others) for move in design.moves}
    joined = Design(tuple(move for move in MOVES if move in taken))
    parents = {_kernels(write(request.brief, design)) for design in (first, *others)}
    if _kernels(write(request.brief, joined)) not in parents and next(_fresh(request, [joined]), None) is not None:
        return Choice(joined, f"I join both candidates' moves: {_listed(joined.moves)}.")
    return _addition(request, joined)


def _step_back(parent: Design, request: CoderRequest | None = None) -> Choice:
    """The next simpler design; later samples take another move in place of the one that was undone."""
    if not parent.moves:
        raise UnsupportedError("the plainest design failed, and there is nothing simpler to go back to")
    undone, back = parent.moves[-1], parent.back()
    words = f"I step back to the next simpler design, without '{undone}'."
    if request is None:
        return Choice(back, words)
    instead = (design for design in growing(request.brief, back) if undone not in design.moves)
    design = _nth(_fresh(request, chain([back], instead)), request.sample)
    added = design.moves[len(back.moves) :]
    return Choice(design, words if not added else f"{words} Instead I take {_listed(added)}.")


def _instead_of_anothers(request: CoderRequest) -> Choice:
    """Another Coder's candidate cannot be worked on: go on from the best of one's own, or begin."""
    own = [past for past in request.history if _design(past) is not None and past.evaluation.verdict is Verdict.OK]
    if not own:
        choice = _seed(request)
        return choice._replace(words=f"The candidate shown is not mine, so I write my own. {choice.words}")
    best = _design(min(own, key=rank_key))
    assert best is not None
    choice = _addition(request, best)
    return choice._replace(words=f"The candidate shown is not mine, so I go on from the best of mine. {choice.words}")


def _addition(request: CoderRequest, base: Design, order: Sequence[str] = ()) -> Choice:
    """The ``sample``-th design not tried yet that ``base`` leads to, by the moves in ``order`` first."""
    return _taking(base, _nth(_fresh(request, growing(request.brief, base, order)), request.sample))


def _fresh(request: CoderRequest, designs: Iterable[Design]) -> Iterator[Design]:
    """The designs that no attempt of the task has tried; the order of their moves does not count."""
    tried = {frozenset(design.moves) for past in request.history if (design := _design(past)) is not None}
    return (design for design in designs if frozenset(design.moves) not in tried)


def _nth(designs: Iterable[Design], number: int) -> Design:
    """The ``number``-th design, counting round where there are fewer.

    Raises:
        UnsupportedError: there are none.
    """
    designs_so_far: list[Design] = []
    for design in designs:
        designs_so_far.append(design)
        if len(designs_so_far) > number:
            return design
    if not designs_so_far:
        raise UnsupportedError("every design that I know how to write from here was tried")
    return designs_so_far[number % len(designs_so_far)]


def _taking(base: Design, design: Design) -> Choice:
    moves = design.moves[len(base.moves) :]
    what = "; ".join(f"'{move}': {MOVES[move]}" for move in moves)
    return Choice(design, f"I take the move{'s' if len(moves) > 1 else ''} {what}.")


def _hinted(move: str, finding: Finding | None, technique: str | None) -> bool:
    """Whether a finding's words or bottleneck, or the name of a technique, ask for a move."""
    if technique is not None and move in ADVICE.techniques.get(technique, ()):
        return True
    words = technique.lower() if technique is not None and technique not in ADVICE.techniques else ""
    if finding is not None:
        if move in ADVICE.answers.get(finding.bottleneck or "", ()):
            return True
        words += f" {finding.headline} {finding.action}".lower() if finding.bottleneck is None else ""
    return any(hint in words for hint in ADVICE.moves[move].hints)


def _design(attempt: Attempt | None) -> Design | None:
    return None if attempt is None or attempt.candidate is None else Design.of(attempt.candidate.source)


def _examples(request: CoderRequest) -> list[Attempt]:
    return [example for example in (request.parent, *request.inspirations) if example is not None]


def _kernels(rendered: Rendered) -> tuple[str, str]:
    return rendered.source.partition("\n")[2], rendered.plan


def _listed(moves: Iterable[str]) -> str:
    return ", ".join(f"'{move}'" for move in moves)
