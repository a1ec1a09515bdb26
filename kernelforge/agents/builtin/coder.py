"""The built-in Coder: writes a design of the reference, and answers as a model would."""

from __future__ import annotations

from kernelforge.agents.base import Brief, CoderReply, CoderRequest
from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.agents.builtin.render import Rendered, render
from kernelforge.agents.prompts import coder_prompt, fenced
from kernelforge.errors import UnsupportedError
from kernelforge.records import Finding, Message, Operator

NAME = "builtin"


class BuiltinCoder:
    """Writes kernels without a model. Stateless: the parent's text says which moves it has taken."""

    name = NAME

    def propose(self, request: CoderRequest) -> CoderReply:
        """A candidate for the request; where the reference cannot be written, a reply without code that says why."""
        try:
            text = self._reply(request)
        except UnsupportedError as error:
            text = f"I cannot write this candidate: {error}.\n"
        messages = (
            Message(agent="coder", role="prompt", provider=self.name, content=coder_prompt(request).text),
            Message(agent="coder", role="reply", provider=self.name, content=text),
        )
        return CoderReply(text, messages)

    def _reply(self, request: CoderRequest) -> str:
        source = request.parent.candidate.source if request.parent and request.parent.candidate else ""
        parent = Design.of(source)
        if request.operator is Operator.SEED or parent is None:
            design, said = (
                Design(),
                "A straightforward first version: one thread per output element or row, reductions as loops.",
            )
        elif request.operator is Operator.REPAIR:
            design = parent.back()
            undone = parent.moves[-1] if parent.moves else "nothing"
            said = f"I step back to the next simpler design, without '{undone}'."
        else:
            move = chosen_move(request.finding, parent, request.brief)
            design = parent.then(move)
            said = f"I take the move '{move}': {MOVES[move]}."
        rendered = write(request.brief, design)
        kernels = ", ".join(f"`{name}`" for name in rendered.kernels)
        return (
            f"{said}\n\nKernels: {kernels}.\n\n{fenced(rendered.source, 'cuda')}\n\n{fenced(rendered.plan, 'python')}\n"
        )


def write(brief: Brief, design: Design) -> Rendered:
    """A design of the brief's reference as text.

    Raises:
        UnsupportedError: the reference uses an operator that the built-in Coder does not know.
    """
    full, small = brief.facts.at("full").attrs, brief.facts.at("small").attrs
    varying = {name: value for name, value in full.items() if small.get(name) != value}
    return render(brief.graph, design, varying)


def applicable(brief: Brief, design: Design) -> list[str]:
    """The moves that would change the design's kernels, in the order of the table."""
    now = _kernels(write(brief, design))
    return [move for move in MOVES if move not in design.moves and _kernels(write(brief, design.then(move))) != now]


def _kernels(rendered: Rendered) -> tuple[str, str]:
    return rendered.source.partition("\n")[2], rendered.plan


def chosen_move(finding: Finding | None, design: Design, brief: Brief) -> str:
    """The move that a finding asks for: by name, by the words of another Judge's text, or the first that applies.

    Raises:
        UnsupportedError: no move is left.
    """
    if finding is not None and finding.move in MOVES and finding.move not in design.moves:
        return str(finding.move)
    options = applicable(brief, design)
    if not options:
        raise UnsupportedError("every move that applies to this reference has been taken")
    words = f"{finding.headline} {finding.action}".lower() if finding is not None else ""
    return next((move for move in options if any(hint in words for hint in _HINTS[move])), options[0])


_HINTS: dict[str, tuple[str, ...]] = {
    "fuse": ("fuse", "fusion", "one kernel", "intermediate"),
    "warp-reduce": ("shuffle", "warp", "coalesc"),
    "register-tile": ("register",),
    "tile": ("tile", "tiling", "shared memory"),
    "stage": ("shared memory", "re-read", "reread", "passes"),
    "vectorise": ("vector", "float4"),
    "block-shape": ("block", "grid"),
}
"""Words by which a Judge that is not built in asks for a move."""
