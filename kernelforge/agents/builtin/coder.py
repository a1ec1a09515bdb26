"""The built-in Coder: writes a design of the reference, in the same reply format as a model."""

from __future__ import annotations

from kernelforge.agents.base import CoderReply, CoderRequest
from kernelforge.agents.builtin.codegen.render import Rendered
from kernelforge.agents.builtin.design_search import Choice, next_design, write
from kernelforge.agents.prompts import coder_prompt, fenced
from kernelforge.errors import UnsupportedError
from kernelforge.records import Message, Operator

NAME = "builtin"


class BuiltinCoder:
    """Writes kernels without a model. Stateless: the sources of earlier attempts say which moves they have taken."""

    name = NAME

    def propose(self, request: CoderRequest) -> CoderReply:
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
        return CoderReply(text, messages)


def _reply(request: CoderRequest, choice: Choice, rendered: Rendered) -> str:
    kernels = ", ".join(f"`{name}`" for name in rendered.kernels)
    code = f"{fenced(rendered.source, 'cuda')}\n\n{fenced(rendered.plan, 'python')}\n"
    if request.operator is not Operator.CONTRAST:
        return f"{choice.said}\n\nKernels: {kernels}.\n\n{code}"
    # The three parts that CUDA-L1's prompt asks for.
    examples = [one for one in (request.parent, *request.inspirations) if one is not None]
    times = (
        f"- example {place} takes {one.evaluation.performance.time_us:,.4g} us"
        for place, one in enumerate(examples, 1)
        if one.evaluation.performance is not None
    )
    analysis = "\n".join(times) or "- the examples have no times to compare"
    return (
        f"## Performance Analysis\n\n{analysis}\n\n## Algorithm Design\n\n1. {choice.said}\n2. The kernels are "
        f"{kernels}.\n\n"
        f"## Code Implementation\n\n{code}"
    )
