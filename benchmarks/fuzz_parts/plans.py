"""Launch plans: parsed, and interpreted as far as their limits allow."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# After the path is set: the plans live with the tests of the language.
from fuzz_parts.damage import of_text
from kernelforge.candidate import parse_plan
from kernelforge.candidate.plan_language.functions import FUNCTIONS
from kernelforge.errors import CandidateError
from tests.candidate.test_plan_properties import ATTRS, CALLEES, INPUTS, LIMITS, OPERATORS, VALID, WEIGHTS

_PIECES = (
    *(f" {name} " for name in OPERATORS), *(f"{name}(" for name in CALLEES), "10**400", "2**63", "-1", "0", "1e308",
    "1e-320", "nan", "inf",
    "True", "None", "''", "'a' * 10**9", "f'{x!r:>{10**9}}'", "[" * 80, "(" * 90, "lambda: 0",
    "for i in range(10**12):\n    ", "while 1:\n    ",
    "[0] * 10**9", "x.shape[", "x.__class__", "**{}", "*x", "w[", "attrs[", "prepared", "return ",
    "def f():\n    return f()\n", "f()", "x[::2]",
    "x[None]", "x[..., 0]", "empty((2**40, 2**40))", "zeros(-1)", "view(", ":", "=", "if x:\n    ", "assert ",
    "not ", "\n", "    ", "\t", "\x00",
    "\ud800", "\u2028", "\u00b2", "\uff11", "# tune: Q = 1 | 1\n", "# tune: Z = 0 | 9223372036854775808\n", "\\\n",
    ";", "@", "import os\n",
    "global x\n", "del x\n", "x := 1", "match x:\n    case _:\n        pass\n", "async ", "await ", "yield ",
    "try:\n    pass\nexcept:\n    pass\n",
)  # fmt: skip


_WORD = re.compile(r"(?P<name>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<sign>[-+*/%<>=!|&.,:\[\](){}]+)")
_LIKE = {
    "name": (*FUNCTIONS, "x", "y", "out", "float16", "int64", "None", "True", "not", "in", "is", "attrs", "w", "self"),
    "number": ("0", "1", "-1", "2", "7", "64", "65536", "2147483648", "10**30", "0.5", "1e400", "True"),
    "sign": (*OPERATORS, "[::-1]", "[None]", "[0]", ", ", "(", ")", "()", ".shape", "**", "~"),
}


class Cases:
    """See above."""

    def __init__(self, folder: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def case(self, rng: random.Random) -> bool:
        text = rng.choice(VALID)
        text = of_text(text, rng, _PIECES) if rng.random() < 0.3 else _exchanged(text, rng)
        try:
            plan = parse_plan(text)
            for choices in plan.combinations[:2]:
                plan.resolve(INPUTS, WEIGHTS, ATTRS, choices=choices, limits=LIMITS)
        except CandidateError as error:
            str(error).encode()
            return False
        return True


def _exchanged(text: str, rng: random.Random) -> str:
    """The plan with a word of it in the place of another of its kind, or a number of the same."""
    words = list(_WORD.finditer(text))
    for _ in range(rng.choice((1, 1, 2, 4))):
        replaced = rng.choice(words)
        like = [word[0] for word in words if word.lastgroup == replaced.lastgroup]
        new = rng.choice(like) if rng.random() < 0.6 else rng.choice(_LIKE[replaced.lastgroup or "sign"])
        text = text[: replaced.start()] + new + text[replaced.end() :]
        words = list(_WORD.finditer(text))
    return text
