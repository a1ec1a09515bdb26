"""Any text of a generator is refused in our words, or gives inputs of the task's own form."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from kernelforge.errors import PlanError, TaskError
from kernelforge.evaluation.generators.functions import CONSTANTS, FUNCTIONS
from kernelforge.evaluation.generators.parser import parse_generator
from kernelforge.evaluation.generators.recipe import Recipe
from kernelforge.evaluation.oracle.worker.inputs import draw_recipe, integer_profile
from kernelforge.records import DType, TensorSpec

NAMES = "abcdefgh"
LEAVES = [*NAMES, *CONSTANTS, "0", "1", "-1", "1e308", "0.5", "-0.0", "1e-320", "2 ** 70"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "<", "==", "<=", "!=", ">"]
PIECES = [*"()[]{}@#'\"\\\n\t;:,.x0", "import ", "lambda: ", "__", "*", "\ud800", "٣", "exec("]
OWN: tuple[Any, ...] = (
    torch.arange(24.0).reshape(4, 6) - 7.5, torch.tensor([4, 1, 4]), 2, None, torch.tensor(0.5), torch.empty(0, 3),
    torch.zeros(6, 4).t().half(), torch.tensor([True, False, True]),
)  # fmt: skip
PROFILES = {
    i: integer_profile([v]) for i, v in enumerate(OWN) if isinstance(v, torch.Tensor) and not v.is_floating_point()
}


def spec(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return TensorSpec(
        shape=tuple(value.shape), dtype=DType(str(value.dtype).removeprefix("torch.")), stride=value.stride()
    )


SPECS = [spec(value) for value in OWN]


def expression(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return rng.choice(LEAVES)
    parts = [expression(rng, depth - 1) for _ in range(3)]
    if kind < 0.55:
        return f"({parts[0]} {rng.choice(OPERATORS)} {parts[1]})"
    if kind < 0.65:
        return f"({parts[0]} if {parts[1]} else {parts[2]})"
    name = rng.choice([*FUNCTIONS, "low", "high"])
    if name in ("low", "high"):
        return f"{name}({rng.choice(NAMES)})"
    if name in ("index", "extent"):
        return f"{name}({rng.choice(['', '0', '-1', 'axis=1'])})"
    if name == "repeat":
        return f"repeat({parts[0]}, {rng.choice(['0', '-1', '1'])})"
    return f"{name}({', '.join(parts[: max(1, len(FUNCTIONS[name].parameters))])})"


def text_of(rng: random.Random) -> str:
    values = [expression(rng, 3) if i not in (2, 3) and rng.random() < 0.25 else NAMES[i] for i in range(len(OWN))]
    text = f"def inputs({', '.join(NAMES)}):\n    return {', '.join(values)}\n"
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(PIECES) + text[at + rng.randint(0, 2) :]
    return text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_any_text_is_refused_or_gives_inputs_of_the_tasks_own_form(seed: int) -> None:
    rng, drawn = random.Random(seed), 0
    for number in range(1000):
        text = text_of(rng)
        try:
            recipe = parse_generator(text, SPECS)
            assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
            inputs = draw_recipe(recipe, OWN, PROFILES, number)
        except (PlanError, TaskError):
            continue
        drawn += 1
        assert [spec(value) for value in inputs] == SPECS, text
        assert inputs[2:4] == OWN[2:4]
        for position, profile in PROFILES.items():
            assert profile.low <= int(inputs[position].min()) <= int(inputs[position].max()) <= profile.high, text
        assert not any(value.isnan().any() for value in inputs if isinstance(value, torch.Tensor)), text
    assert drawn > 50
