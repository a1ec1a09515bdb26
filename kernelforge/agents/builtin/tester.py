"""The built-in Tester: a few inputs per operator family, for errors that random values rarely show."""

from __future__ import annotations

import json

from kernelforge.agents.base import BUILTIN, GeneratorForm, TaskContext, TesterReply
from kernelforge.agents.prompts import fenced, tester_prompt
from kernelforge.agents.tester import generator_page
from kernelforge.evaluation.generators.parser import MAX_GENERATORS
from kernelforge.records import Message, TensorSpec

_FLOATS: dict[str, tuple[str, str]] = {
    "whole_offset": ("pick(31, 32, 33)", "a variance as mean of squares minus squared mean cancels"),
    "small_spread": ("normal(0, 0.001)", "an epsilon is left out or in the wrong place"),
    "far_below_zero": ("uniform(-900, -800)", "a maximum starts at zero or at a small constant"),
    "cancelling": ("alternate(4096, -4096) + pick(-1, 0, 1)", "sums are kept in too few bits"),
    "few_values": ("pick(-2, -1)", "ties, and a start value that wins over every element"),
    "last_largest": (
        "where({last}, 100, {own})",
        "a maximum over a row leaves out its end, so that an exponential overflows",
    ),
    "odd_bits": ("pick(-2049, 2049, 1)", "operands are rounded to eleven bits"),
    "sparse": ("sparse(0.03, {own})", "zeros are skipped, or divided by"),
    "saturated": ("uniform(-85, 85)", "an exponential overflows where the result does not"),
    "near_zero": ("normal(0, 0.000001)", "a difference of nearly equal numbers loses its digits"),
}
"""Fill of every floating input, and the mistake that it would show. ``{own}`` stands for what the task draws,
``{last}`` for the condition that an element is the last along an axis."""

_BY_FAMILY: dict[str, tuple[str, ...]] = {
    "attention": ("far_below_zero", "few_values", "sparse"),
    "convolution": ("odd_bits", "sparse", "cancelling"),
    "matmul": ("odd_bits", "sparse", "cancelling"),
    "recurrent": ("saturated", "sparse"),
    "softmax": ("far_below_zero", "last_largest", "few_values"),
    "normalisation": ("whole_offset", "small_spread"),
    "pooling": ("few_values", "far_below_zero"),
    "scan": ("cancelling", "few_values"),
    "loss": ("far_below_zero", "last_largest", "few_values"),
    "reduction": ("few_values", "cancelling", "small_spread"),
    "index": ("few_values",),
    "movement": ("sparse",),
    "elementwise": ("saturated", "near_zero"),
}


class BuiltinTester:
    """Proposes by rules: no model, no key, no network."""

    name = BUILTIN

    def propose(self, brief: TaskContext) -> TesterReply:
        """The fills of the task's operator families, the most telling family first."""
        inputs = brief.facts.at("small").inputs
        generators_by_name: dict[str, GeneratorForm] = {}
        if any(isinstance(item, TensorSpec) and not item.dtype.is_floating for item in inputs):
            why = "only the first and the last index, each many times"
            generators_by_name["ends"] = GeneratorForm(
                name="ends", why=why, plan=_plan(inputs, None, "pick(low({own}), high({own}))")
            )
        if any(isinstance(item, TensorSpec) and item.dtype.is_floating for item in inputs):
            for family in brief.graph.families:
                for name in _BY_FAMILY[family]:
                    fill, why = _FLOATS[name]
                    form = GeneratorForm(name=name, why=why, plan=_plan(inputs, fill, None))
                    generators_by_name.setdefault(name, form)
        generators = tuple(generators_by_name.values())[:MAX_GENERATORS]
        reply = {"generators": [item.model_dump() for item in generators]}
        messages = (
            Message(
                agent="tester",
                role="prompt",
                provider=self.name,
                content=tester_prompt(brief, generator_page()).text,
            ),
            Message(agent="tester", role="reply", provider=self.name, content=fenced(json.dumps(reply), "json") + "\n"),
        )
        return TesterReply(generators, messages)


def _plan(
    inputs: tuple[TensorSpec | int | float | bool | None, ...], floating: str | None, integral: str | None
) -> str:
    """A generator's text: ``floating`` and ``integral`` fill inputs of that kind, None leaves them alone."""
    names = [f"x{position}" for position in range(len(inputs))]
    values = []
    for name, spec in zip(names, inputs, strict=True):
        fill = None
        if isinstance(spec, TensorSpec):
            fill = floating if spec.dtype.is_floating else integral
            fill = None if fill is None else fill.replace("{last}", _last(len(spec.shape)))
        values.append(name if fill is None else fill.replace("{own}", name))
    return f"def inputs({', '.join(names)}):\n    return {', '.join(values)}\n"


def _last(rank: int) -> str:
    """The condition that an element is the last along an axis, the batch's aside, in the language of generators."""
    ends = [f"index({axis}) == extent({axis}) - 1" for axis in range(1 if rank > 1 else 0, rank)]
    return f"max({', '.join(ends)})" if len(ends) > 1 else "".join(ends) or "0"
