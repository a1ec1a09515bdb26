"""Whether a published C function and the reference that was written for it agree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from kernelforge.errors import TaskError
from kernelforge.records import Task, Verdict, content_hash
from kernelforge.translation.evaluator import CEvaluator, c_candidate


def disagreement(task: Task, opened: Callable[[Task], CEvaluator]) -> str:
    """The reason why a task's own C function is no right answer to it, in one line; empty where it is.

    The function is compiled and called in a jail as any candidate's, at every size but the full one, and with every
    family of inputs. Its arrays end, and begin, at a page that cannot be read, so it cannot reach outside them unseen.

    Args:
        opened: an evaluator of a task, which is closed here.
    """
    try:
        with closing(opened(task)) as evaluator:
            evaluation = evaluator.evaluate(c_candidate(task.c_source), seed=_seed(task), full=False).evaluation
    except TaskError as error:
        return f"its C cannot be judged: {_line(str(error))}"
    if evaluation.verdict is not Verdict.OK:
        return f"its C and the reference written for it disagree: {evaluation.outcome}: {_line(evaluation.reason)}"
    return ""


def _seed(task: Task) -> int:
    return int(content_hash("published", task.source, task.c_source), 16)


def _line(text: str) -> str:
    return text.strip().split("\n")[0][:300]
