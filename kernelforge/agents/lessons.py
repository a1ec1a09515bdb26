"""Selection of lessons for a task, by its operator families."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelforge.records import Graph, Lesson

SHOWN = 6
"""Lessons that a prompt shows at most, over all of the task's families."""
PER_FAMILY = 3
"""Of these, about one family."""
OTHER = "elementwise"

FAMILIES: dict[str, str] = {
    "attention": r"scaled_dot_product|attention",
    "convolution": r"conv",
    "matmul": r"matmul|\bmm\b|addmm|bmm|baddbmm|linear|einsum|\bdot\b|\bmv\b|outer",
    "recurrent": r"\b(gru|lstm|rnn)",
    "softmax": r"softmax|logsumexp|cross_entropy",
    "normalisation": r"_norm|batch_norm|normalize",
    "pooling": r"pool",
    "scan": r"cumsum|cumprod|cummax|cummin|logcumsumexp",
    "loss": r"loss|cross_entropy|kl_div|mse",
    "reduction": r"\b(sum|mean|amax|amin|max|min|prod|argmax|argmin|var|std|norm|any|all|topk|sort)\b",
    "index": r"gather|scatter|index|embedding|take",
    "movement": r"transpose|permute|\bcat\b|stack|flip|roll|copy|pad\b",
}
"""Families of operators, the most telling first, each with the ATen names that belong to it."""


def operator_families(graph: Graph) -> tuple[str, ...]:
    """The operator families in a reference, the most telling first; ``elementwise`` when there is no other."""
    names = [node.op.removeprefix("aten.") for node in graph.nodes if node.kind == "op"]
    families = [family for family, pattern in FAMILIES.items() if any(re.search(pattern, name) for name in names)]
    return tuple(families) or (OTHER,)


def select_lessons(lessons: Sequence[Lesson], families: Sequence[str]) -> tuple[str, ...]:
    """The lessons that a task is shown: per family those of the largest gain, each text once.

    Args:
        lessons: newest first.
        families: of the task, the most telling first.
    """
    selected: list[str] = []
    for family in families:
        about = sorted((item for item in lessons if item.family == family), key=lambda item: -(item.gain or 0.0))
        for lesson in about[:PER_FAMILY]:
            line = f"{lesson.family}: {lesson.text}"
            if line not in selected:
                selected.append(line)
    return tuple(selected[:SHOWN])
