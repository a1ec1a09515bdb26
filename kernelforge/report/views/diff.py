"""Difference of two texts as numbered lines, for terminal and pages.

The time of ``difflib`` grows with the product of the lengths. Therefore common beginnings and ends are removed first,
and a long middle is cut at lines that occur once in both (the patience diff of Bram Cohen); a part that is still long
between two such lines is shown as replaced completely.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from kernelforge.records import Attempt, Verdict
from kernelforge.report.views import View

MAX_DIFF_LINES = 40_000
"""Two texts with more lines than this together are not compared."""

CONTEXT = 3
"""Lines shown around a change."""

_LONG = 2_000
"""Texts with more lines than this together are compared more coarsely."""

_PAIRS, _PAIRS_LONG = 90_000, 10_000
"""Limits on pairs of lines for ``difflib``, for short and for long texts: tenths of a second at worst for one text,
milliseconds for each of many parts."""

_DEEPEST = 8
"""Depth of recursive cuts: each level costs time proportional to the length of the part."""


class DiffLine(View):
    """One line of a difference."""

    kind: Literal["same", "removed", "added", "gap"]
    """``gap``: equal lines were left out before this point; ``text`` gives their number."""
    old_number: int | None
    """From 1; None where the old text has no such line."""
    new_number: int | None
    text: str


_Line = dict[str, str | int | None]
_LINES = TypeAdapter(tuple[DiffLine, ...])
"""Validates many at once, in a fifth of the time; there may be tens of thousands."""


class Diff(View):
    """Changes from one text to another."""

    name: Literal["source", "plan"]
    beside: Literal["parent", "best", "other"]
    """Origin of the old text: the parent, the task's best attempt, or any other."""
    against: str
    """Id of the attempt that the old text is from."""
    added: int
    removed: int
    compared: bool
    """False where the texts have more than :data:`MAX_DIFF_LINES` lines; there are no ``lines`` then."""
    lines: tuple[DiffLine, ...]
    """Changes with context; empty where the texts are equal."""

    @property
    def equal(self) -> bool:
        return self.compared and not self.lines


class DiffView(View):
    """Differences of two attempts."""

    before: str
    after: str
    before_verdict: Verdict
    after_verdict: Verdict
    diffs: tuple[Diff, ...]
    before_outcome: str
    """The verdict in words: ``OK, full size not compared`` where that is so."""
    after_outcome: str


class _Block(NamedTuple):
    """Replaces lines ``old_start:old_end`` of the old text by ``new_start:new_end`` of the new one."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def diff_view(before: Attempt, after: Attempt, names: Collection[str] = ("source", "plan")) -> DiffView:
    """Differences from ``before`` to ``after``, in the named texts."""
    return DiffView(
        before=before.id,
        after=after.id,
        before_verdict=before.evaluation.verdict,
        after_verdict=after.evaluation.verdict,
        diffs=tuple(diff for diff in attempt_diffs(before, after) if diff.name in names),
        before_outcome=before.evaluation.outcome,
        after_outcome=after.evaluation.outcome,
    )


def attempt_diffs(
    before: Attempt, after: Attempt, beside: Literal["parent", "best", "other"] = "other"
) -> tuple[Diff, ...]:
    """Differences of source and plan; empty where either attempt has no candidate."""
    if before.candidate is None or after.candidate is None:
        return ()
    old, new = before.candidate, after.candidate
    return (
        text_diff(old.source, new.source, name="source", beside=beside, against=before.id),
        text_diff(old.plan, new.plan, name="plan", beside=beside, against=before.id),
    )


def text_diff(
    before: str,
    after: str,
    *,
    name: Literal["source", "plan"],
    beside: Literal["parent", "best", "other"],
    against: str,
) -> Diff:
    """The difference of two texts."""
    old, new = ([], []) if before == after else (_text_lines(before), _text_lines(after))
    if len(old) + len(new) > MAX_DIFF_LINES:
        return Diff(name=name, beside=beside, against=against, added=0, removed=0, compared=False, lines=())
    blocks = list(_joined(_Comparer(old, new).blocks()))
    return Diff(
        name=name,
        beside=beside,
        against=against,
        added=sum(block.new_end - block.new_start for block in blocks),
        removed=sum(block.old_end - block.old_start for block in blocks),
        compared=True,
        lines=_LINES.validate_python(list(_lines(old, new, blocks))),
    )


def _text_lines(text: str) -> list[str]:
    """Lines as a compiler counts them; ``splitlines`` also splits at other characters."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def unified(diff: Diff | None) -> str | None:
    """As a unified diff; empty where the texts are equal, None where they were not compared."""
    if diff is None or not diff.compared:
        return None
    text = [f"--- {diff.beside} {diff.name}", f"+++ this {diff.name}"] if diff.lines else []
    for changed, hunk in groupby(diff.lines, key=lambda line: line.kind != "gap"):
        if changed:
            text += _hunk(list(hunk))
    return "\n".join(text)


def _hunk(lines: Sequence[DiffLine]) -> Iterator[str]:
    marks = {"same": " ", "removed": "-", "added": "+"}
    old = [line.old_number for line in lines if line.old_number is not None]
    new = [line.new_number for line in lines if line.new_number is not None]
    yield f"@@ -{_span(old)} +{_span(new)} @@"
    for line in lines:
        yield f"{marks[line.kind]}{line.text}"


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]},{len(numbers)}" if numbers else "0,0"


class _Comparer:
    """Finds the differences of two lists of lines."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        self._old = old
        self._new = new
        self._pairs = _PAIRS if len(old) + len(new) <= _LONG else _PAIRS_LONG

    def blocks(self) -> Iterator[_Block]:
        """Blocks that differ, in order; some touch."""
        return self._within(_Block(0, len(self._old), 0, len(self._new)), 0)

    def _within(self, part: _Block, depth: int) -> Iterator[_Block]:
        old, new = self._old, self._new
        a, b, c, d = part
        while a < b and c < d and old[a] == new[c]:
            a, c = a + 1, c + 1
        while a < b and c < d and old[b - 1] == new[d - 1]:
            b, d = b - 1, d - 1
        if a == b and c == d:
            return
        if a == b or c == d:
            yield _Block(a, b, c, d)
        elif (b - a) * (d - c) <= self._pairs:
            for tag, i, j, k, n in difflib.SequenceMatcher(None, old[a:b], new[c:d], autojunk=False).get_opcodes():
                if tag != "equal":
                    yield _Block(a + i, a + j, c + k, c + n)
        else:
            anchors = self._anchors(_Block(a, b, c, d)) if depth < _DEEPEST else []
            if not anchors:
                yield _Block(a, b, c, d)
                return
            for i, k in anchors:
                yield from self._within(_Block(a, i, c, k), depth + 1)
                a, c = i + 1, k + 1
            yield from self._within(_Block(a, b, c, d), depth + 1)

    def _anchors(self, part: _Block) -> list[tuple[int, int]]:
        """Index pairs (old, new) of lines that occur once in both: a longest sequence in the same order."""
        old, new = self._old, self._new
        a, b, c, d = part
        once_old, once_new = Counter(old[a:b]), Counter(new[c:d])
        at = {new[k]: k for k in range(c, d) if once_new[new[k]] == 1}
        return _rising([(i, at[old[i]]) for i in range(a, b) if once_old[old[i]] == 1 and old[i] in at])


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """A longest subsequence of pairs with rising second numbers, by patience sorting."""
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (_, k) in enumerate(pairs):
        pile = bisect_left(tops, k)
        before.append(ends[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(k)
            ends.append(number)
        else:
            tops[pile], ends[pile] = k, number
    chain: list[tuple[int, int]] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        chain.append(pairs[number])
        number = before[number]
    return chain[::-1]


def _joined(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """Join adjacent blocks."""
    last: _Block | None = None
    for block in blocks:
        if last is not None and (block.old_start, block.new_start) == (last.old_end, last.new_end):
            last = _Block(last.old_start, block.old_end, last.new_start, block.new_end)
            continue
        if last is not None:
            yield last
        last = block
    if last is not None:
        yield last


def _lines(old: Sequence[str], new: Sequence[str], blocks: Sequence[_Block]) -> Iterator[_Line]:
    done = 0  # lines of the old text before this one were shown or left out
    for number, block in enumerate(blocks):
        shift = block.new_start - block.old_start
        start = max(done, block.old_start - CONTEXT)
        if start > done:
            yield _line("gap", None, None, _left_out(start - done))
        for at in range(start, block.old_start):
            yield _line("same", at, at + shift, old[at])
        for at in range(block.old_start, block.old_end):
            yield _line("removed", at, None, old[at])
        for at in range(block.new_start, block.new_end):
            yield _line("added", None, at, new[at])
        following = blocks[number + 1].old_start if number + 1 < len(blocks) else len(old)
        done = min(block.old_end + CONTEXT, following)
        shift = block.new_end - block.old_end
        for at in range(block.old_end, done):
            yield _line("same", at, at + shift, old[at])
    if blocks and done < len(old):
        yield _line("gap", None, None, _left_out(len(old) - done))


def _left_out(count: int) -> str:
    return f"{count:,} lines left out" if count > 1 else "1 line left out"


def _line(kind: Literal["same", "removed", "added", "gap"], old_at: int | None, new_at: int | None, text: str) -> _Line:
    return {
        "kind": kind,
        "old_number": None if old_at is None else old_at + 1,
        "new_number": None if new_at is None else new_at + 1,
        "text": text,
    }
