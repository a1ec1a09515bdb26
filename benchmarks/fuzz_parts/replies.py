"""Model replies, parsed as candidates."""

from __future__ import annotations

import random
from pathlib import Path

from fuzz_parts.damage import of_bytes, of_text
from kernelforge.candidate import parse_reply
from kernelforge.errors import CandidateError

_REPLIES = (
    "Here it is.\n\n```cuda\n__global__ void k(float* out) { out[0] = 1; }\n```\n\n```python\n# tune: B = 32 | 64\n"
    "def forward(x):\n    out = empty_like(x)\n    k[1, B](out)\n    return out\n```\nIt is fast.\n",
    '<think>\nA draft:\n```cuda\nx\n```\n</think>\n~~~~cpp\nextern "C" __global__ void k() {}\n~~~~\n'
    "  ```py\n  def forward(x):\n      return x\n  ```\n",
    "```\n__global__ void k() {}\n```\n```\ndef forward(x):\n    return x\n```\n",
    "I cannot do that.\n",
)
_PIECES = (
    "```", "````", "~~~", "```cuda\n", "```python\n", "```\n", "\n", "\r\n", "\r", "\t", " ", "<think>", "</think>",
    "<thinking>\n",
    "</reasoning>\n", "__global__", "def forward", "# tune: B = 1 | 2\n", "# tune: B = ", "| 99999999999999999999",
    "\x00", "\ud800",
    "\u2028", "\ufeff", "\x0b", "\x0c", "`" * 500, "~" * 500, "\n```" * 300, "#" * 5_000, "'''", '"""', "\\", "{{",
    "}}", "\u202e",
)  # fmt: skip


class Cases:
    """See above."""

    def __init__(self, folder: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def case(self, rng: random.Random) -> bool:
        text = of_text(rng.choice(_REPLIES), rng, _PIECES)
        if rng.random() < 0.2:
            text = of_bytes(text.encode("utf-8", "surrogatepass"), rng).decode(
                "utf-8", rng.choice(("replace", "ignore"))
            )
        try:
            candidate = parse_reply(text)
            candidate.model_dump_json()
        except CandidateError as error:
            str(error).encode()
            return False
        return True
