"""Rows of pairs of CUDA and C that were made of traced graphs, and the folder that they are written to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal, NamedTuple

from kernelforge.agents.prompts import fenced
from kernelforge.datasets.training import Row, suite_translation
from kernelforge.errors import UsageError
from kernelforge.records import Candidate, Evaluation, Task
from kernelforge.records.base import Record
from kernelforge.utils.atomic_files import atomic_write
from kernelforge.utils.json_lines import append_rows, json_lines

Stage = Literal["trace", "augment", "task", "write", "repeat", "c", "cuda"]
STAGES: Final[Mapping[Stage, str]] = {
    "trace": "the reference has no graph that is the same at every size",
    "augment": "no edit that was drawn makes a new graph",
    "task": "the graph is no task: torch refuses it, wrong answers pass, or no file can spell it",
    "write": "the built-in Coder or the C generator cannot write it",
    "repeat": "an earlier pair has the same graph or the same C",
    "c": "the C function is not right at every size",
    "cuda": "the kernels are not right at every size",
}
"""Where a graph is dropped, and why."""

TRAIN, DROPPED = "train.jsonl", "dropped.jsonl"


class GraphKey(NamedTuple):
    """Name of a graph: its task, and a number."""

    task: str
    """``suite/name``."""
    number: int
    """0 is the traced graph, others are augmented."""


@dataclass(frozen=True)
class DroppedGraph:
    """A graph of which there is no pair."""

    key: GraphKey
    stage: Stage
    reason: str
    digest: str = ""
    """Of the graph; empty where there is none."""
    edits: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraphPair:
    """Device code with its plan, and a C function, of one graph."""

    key: GraphKey
    edits: tuple[str, ...]
    digest: str
    """Of the graph."""
    operators: tuple[str, ...]
    families: tuple[str, ...]
    task: Task
    """Its reference is the graph, its ``c_source`` the C function, its ``translation`` the reply with the kernels."""
    candidate: Candidate
    moves: tuple[str, ...]
    """Of the Coder's design."""
    cuda_prompt: str
    """Asks for device code and shows the C function; empty where nothing was evaluated."""
    c_prompt: str
    """Asks for the C function and shows device code; the same."""
    cuda: Evaluation | None
    """None where nothing was evaluated."""
    c: Evaluation | None


def pair_rows(pair: GraphPair, seed: int, seconds: float) -> tuple[Row, Row]:
    """The rows of a pair that was judged: from CUDA to C, then from C to CUDA.

    Args:
        pair: right on both sides.
        seed: of the run that made it.
        seconds: that making and judging it took.

    Raises:
        ValueError: it was not judged.
    """
    if pair.cuda is None or pair.c is None:
        raise ValueError("a pair that was not judged has no rows")
    shared: Row = {
        "origin": pair.key.task,
        "number": pair.key.number,
        "edits": list(pair.edits),
        "operators": list(pair.operators),
        "families": list(pair.families),
        "graph": pair.digest,
        "seed": seed,
        "moves": list(pair.moves),
        "cuda": pair.candidate.source,
        "plan": pair.candidate.plan,
        "reference": pair.task.source,
        "sizes": [
            f"{size.name}: {', '.join(f'{name} = {value}' for name, value in size.constants.items())}".rstrip(": ")
            for size in pair.task.sizes
        ],
        "seconds": round(seconds, 3),
    }
    halves = (
        ("cuda-to-c", pair.c_prompt, fenced(pair.task.c_source, "c") + "\n", pair.c),
        ("c-to-cuda", pair.cuda_prompt, pair.task.translation, pair.cuda),
    )
    first, second = (
        {**suite_translation(pair.task, *half, written_by="builtin"), **shared, "code": pair.task.c_source}
        for half in halves
    )
    return first, second


class PairSummary(Record):
    """Counts of a folder of pairs."""

    graphs: int
    """That were looked at."""
    pairs: int
    rows: int
    traced: int
    """References that have a graph."""
    traced_with_pair: int
    """Of these, those whose own graph gave a pair; a graph that repeats another's is counted in neither."""
    dropped: dict[Stage, int]
    """By stage."""
    families: dict[str, int]
    """Pairs by the most telling family of their operators."""
    operators: int
    """Different operators in pairs."""
    edits: dict[str, int]
    """Pairs by the number of edits; 0 are traced graphs."""
    median_seconds: float | None
    """That making and judging a pair took; None without any."""


class PairFolder:
    """A folder of pairs: ``train.jsonl`` with two rows for each, ``dropped.jsonl`` with a line for each other graph.

    A line that a crash cut off is removed when the folder is opened, and so is a pair of which one row is missing.

    Args:
        folder: it is made if it is not there.
        seed: of the run.

    Raises:
        UsageError: the folder holds something else, or pairs of another seed.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self._rows, self._dropped = self._read(TRAIN), self._read(DROPPED)
        for row in (*self._rows, *self._dropped):
            if row["seed"] != seed:
                advice = f"go on with --seed {row['seed']}, or name another folder"
                raise UsageError(f"{folder} has pairs of the seed {row['seed']}: {advice}")
        counts = Counter(self._key_of(row) for row in self._rows)
        if any(count != 2 for count in counts.values()):
            self._rows = [row for row in self._rows if counts[self._key_of(row)] == 2]
            _rewrite(folder / TRAIN, self._rows)
        folder.mkdir(parents=True, exist_ok=True)
        self._seed = seed

    def _read(self, name: str) -> list[Row]:
        """The rows of a file; a last line without an end is cut off."""
        path = self.folder / name
        if not path.exists():
            return []
        raw = path.read_bytes()
        complete = raw[: raw.rfind(b"\n") + 1]
        try:
            rows = [json.loads(line) for line in complete.splitlines()]
            if not all(isinstance(row, dict) and {"origin", "number", "seed", "graph"} <= row.keys() for row in rows):
                raise ValueError("rows without the columns of pairs")
        except ValueError as error:
            raise UsageError(f"{path} holds no pairs of graphs ({error}): name another folder") from error
        if complete != raw:
            _rewrite(path, rows)
        return rows

    @staticmethod
    def _key_of(row: Row) -> GraphKey:
        return GraphKey(row["origin"], row["number"])

    @property
    def done(self) -> set[GraphKey]:
        """Graphs that were looked at."""
        return {self._key_of(row) for row in (*self._rows, *self._dropped)}

    @property
    def pairs(self) -> int:
        return len(self._rows) // 2

    @property
    def rows(self) -> list[Row]:
        return list(self._rows)

    def add(self, item: GraphPair | DroppedGraph, seconds: float) -> None:
        """Write the rows of a graph, which took so many seconds; they are on the disk when this returns."""
        if isinstance(item, GraphPair):
            name, kept, rows = TRAIN, self._rows, list(pair_rows(item, self._seed, seconds))
        else:
            name, kept, rows = DROPPED, self._dropped, [self._dropped_row(item)]
        append_rows(rows, self.folder / name)
        kept += rows

    def _dropped_row(self, item: DroppedGraph) -> Row:
        row = asdict(item)
        key = row.pop("key")
        return {
            "origin": key[0], "number": key[1], "seed": self._seed, "graph": row.pop("digest"), **row,
        }  # fmt: skip

    def summary(self) -> PairSummary:
        """Counts of all that is in the folder."""
        pairs = [row for row in self._rows if row["direction"] == "cuda-to-c"]
        stages = Counter(row["stage"] for row in self._dropped)
        own = [row for row in self._dropped if row["number"] == 0 and row["stage"] not in ("trace", "repeat")]
        with_pair = sum(row["number"] == 0 for row in pairs)
        return PairSummary(
            graphs=len(self.done),
            pairs=len(pairs),
            rows=len(self._rows),
            traced=with_pair + len(own),
            traced_with_pair=with_pair,
            dropped={stage: stages[stage] for stage in STAGES if stages[stage]},
            families=dict(Counter(row["families"][0] for row in pairs).most_common()),
            operators=len({name for row in pairs for name in row["operators"]}),
            edits={str(count): number for count, number in sorted(Counter(len(row["edits"]) for row in pairs).items())},
            median_seconds=round(median(row["seconds"] for row in pairs), 2) if pairs else None,
        )


def _rewrite(path: Path, rows: Iterable[Row]) -> None:
    with atomic_write(path) as part:
        part.write_bytes(json_lines(rows))
        part.replace(path)
