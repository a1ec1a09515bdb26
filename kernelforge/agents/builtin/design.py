"""The design of a built-in candidate: the transformations applied so far, stored in the first line of its source."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from kernelforge.agents.builtin.codegen.kernel import Options

_MARK = "// kernelforge-builtin/1 "
_MOST_CHARS = 1_000
"""Of what stands after the mark: ours is far shorter, and a model may write anything there."""

MOVES: dict[str, str] = {
    "fuse": "compute chains of operators in one kernel, so that intermediate tensors never reach memory",
    "warp-reduce": "give each row a warp or a block and combine its threads by shuffles",
    "tile": "stage tiles of the operands in padded shared memory",
    "register-tile": "let each thread compute a patch of 4x4 or 8x8 results in registers",
    "tensor-cores": "multiply matrices on tensor cores, float32 as three products of TF32, with tiles copied ahead",
    "stream-k": "share the terms of products evenly among clusters of blocks, where tiles fill the last wave badly",
    "stage": "keep a row that several passes read in shared memory",
    "vectorise": "move four adjacent elements per instruction, where extents allow it",
    "block-shape": "lay threads out in two dimensions over the result",
}
"""Every move, with what it does."""


def without_design(text: str) -> str:
    """A reply of the built-in Coder without the line that states its design; any other text unchanged."""
    return re.sub(rf"^{re.escape(_MARK)}.*\n", "", text, flags=re.MULTILINE)


@dataclass(frozen=True)
class Design:
    """Moves taken, in order; no moves is the seed."""

    moves: tuple[str, ...] = ()

    def then(self, move: str) -> Design:
        return replace(self, moves=(*self.moves, move))

    def back(self) -> Design:
        """The next simpler design."""
        return replace(self, moves=self.moves[:-1])

    @property
    def fuse(self) -> bool:
        return "fuse" in self.moves

    @property
    def options(self) -> Options:
        return Options(
            vectorise="vectorise" in self.moves,
            block_shape="block-shape" in self.moves,
            warp_reduce="warp-reduce" in self.moves,
            stage="stage" in self.moves,
            tile="tile" in self.moves,
            register_tile="register-tile" in self.moves,
            tensor_cores="tensor-cores" in self.moves,
            stream_k="stream-k" in self.moves,
        )

    def comment(self) -> str:
        return _MARK + json.dumps({"moves": list(self.moves)})

    @classmethod
    def of(cls, source: str) -> Design | None:
        """The design that a source declares; None where its first line is not one that the built-in Coder writes."""
        match = re.search(rf"^{re.escape(_MARK)}(.{{,{_MOST_CHARS}}})$", source, re.MULTILINE)
        if match is None:
            return None
        try:
            moves = json.loads(match[1])["moves"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if not isinstance(moves, list):
            return None
        return cls(tuple(move for move in moves if isinstance(move, str) and move in MOVES))
