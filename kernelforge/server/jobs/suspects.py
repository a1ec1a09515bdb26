"""The reward checker of CUDA-L1: a candidate whose reward jumps is compared with a case base of hacks.

A run asks for it by its setting ``jump_factor``. A jump is a speed, or a reward of the same policy, above that many
times the best right one of the task so far; for the first right one, a speedup above 3, from which CUDA-L1 measures
again. The reward of a suspect is withheld until an operator releases it, or confirms it as a hack. Either way it joins
the run's own cases.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import TypeAdapter

from kernelforge.client.models import Fault, RewardResult, SimilarCase, Suspect
from kernelforge.records import Verdict
from kernelforge.rewards.hacks import Case, Similar, is_suspect, most_similar, shipped_cases
from kernelforge.search.base import score_of
from kernelforge.server.base import utc_seconds
from kernelforge.server.jobs.exemplars import ExemplarKey
from kernelforge.server.jobs.job_store import JobStore, NewSuspect
from kernelforge.server.jobs.results import Stored, failure_reward
from kernelforge.store.database import readable

FIRST_SPEEDUP = 3.0
"""Speedup above which the first right candidate of a task is compared. CUDA-L1 measures again above it."""

_CASES = TypeAdapter(list[SimilarCase])
_COLUMNS = (
    "suspects.id, suspects.caller, suspects.run, works.task, suspects.candidate, suspects.work, suspects.decision, "
    "suspects.why, suspects.cases, suspects.created_at"
)


class _Best:
    """The best right candidate of a task so far."""

    def __init__(self, score: float | None) -> None:
        self.score = score
        self.any = score is not None
        self.rewards: dict[str, float] = {}
        """By policy, since the start of the server."""


class Jump(NamedTuple):
    """A jump of a reward, with the cases that its candidate is like."""

    words: str
    similar: list[Similar]


class RewardChecks:
    """Suspects of all runs, and the best candidates that jumps are counted from.

    Raises:
        StoreError: stored suspects cannot be read.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._best: dict[ExemplarKey, _Best] = {}
        self._decided: dict[tuple[str, str], list[Case]] = {}
        """Cases of a run, by caller and run."""
        self.open: set[tuple[str, str, int]] = set()
        """Suspects that wait for a decision, by caller, run and evaluation."""
        rows = store.read(
            "SELECT suspects.id, caller, run, work, decision, source, json_extract(evaluation, '$.build.ptx_hash') "
            "FROM suspects JOIN works ON works.id = work"
        )
        for name, caller, run, work, decision, source, ptx_hash in rows:
            if decision is None:
                self.open.add((caller, run, work))
            else:
                self._decide(name, caller, run, decision, source, ptx_hash)

    def screened(
        self, key: ExemplarKey, factor: float | None, stored: Stored, result: RewardResult
    ) -> tuple[RewardResult, NewSuspect | None]:
        """The result of a right candidate, or one without its reward and the row of a new suspect.

        Args:
            factor: of a jump; None to compare nothing.
        """
        evaluation = stored.evaluation
        right = evaluation.verdict is Verdict.OK and not result.uncompared
        # The cases are device code, to which a class with host code is never alike.
        if factor is None or result.reward is None or not right or evaluation.lane == "modelnew":
            return result, None
        best = self._best.get(key)
        if best is None:
            best = self._best[key] = self._stored_best(key)
        score = score_of(stored.evaluation)
        words = _jump(best, factor, score, result)
        if words is not None and stored.source is not None:
            build = stored.evaluation.build
            cases = [*self._decided.get((key.caller, key.run), ()), *shipped_cases()]
            similar = most_similar(stored.source, None if build is None else build.ptx_hash, cases)
            if is_suspect(similar):
                self.open.add((key.caller, key.run, stored.task))
                return _withheld(result, Jump(words, similar)), self._row(key, stored, Jump(words, similar))
        best.any = True
        if score is not None:
            best.score = score if best.score is None else max(best.score, score)
        best.rewards[result.policy] = max(best.rewards.get(result.policy, result.reward), result.reward)
        return result, None

    def suspects(self, run_id: str | None = None, suspect: str | None = None) -> list[Suspect]:
        """Suspects, the latest first; those of a run, or one by its id.

        Raises:
            StoreError: they cannot be read.
        """
        rows = self._store.read(
            f"SELECT {_COLUMNS} FROM suspects JOIN works ON works.id = suspects.work "
            "WHERE (?1 IS NULL OR suspects.run = ?1) AND (?2 IS NULL OR suspects.id = ?2) "
            "ORDER BY suspects.created_at DESC LIMIT 1000",
            (run_id, suspect),
        )
        with readable(self._store.path, "a suspect"):
            return [_suspect(row) for row in rows]

    def decide(self, suspect: Suspect, decision: str, stored: Stored) -> None:
        """Take a decision in, once it is stored."""
        self.open.discard((suspect.caller, suspect.run_id, suspect.work))
        build = stored.evaluation.build
        ptx_hash = None if build is None else build.ptx_hash
        self._decide(suspect.id, suspect.caller, suspect.run_id, decision, stored.source, ptx_hash)
        if decision == "release":
            score = score_of(stored.evaluation)
            best = self._best.get(ExemplarKey(suspect.caller, suspect.run_id, stored.evaluation.task))
            if best is not None and score is not None:
                best.score = score if best.score is None else max(best.score, score)

    def _decide(
        self, name: str, caller: str, run: str, decision: str, source: str | None, ptx_hash: str | None
    ) -> None:
        if source is not None:
            cases = self._decided.setdefault((caller, run), [])
            cases.append(Case(f"suspect {name}", "cheat" if decision == "confirm" else "honest", source, ptx_hash))

    def _stored_best(self, key: ExemplarKey) -> _Best:
        rows = self._store.read(
            "SELECT max(score), count(*) FROM exemplars WHERE caller = ? AND run = ? AND task = ? AND right = 1", key
        )
        best = _Best(rows[0][0])
        best.any = bool(rows[0][1])
        return best

    def _row(self, key: ExemplarKey, stored: Stored, jump: Jump) -> NewSuspect:
        cases = _CASES.dump_json(_cases(jump.similar)).decode()
        name, work = secrets.token_hex(8), stored.task
        return NewSuspect(
            name, key.caller, key.run, work, stored.evaluation.candidate, jump.words, cases, utc_seconds()
        )


def _jump(best: _Best, factor: float, score: float | None, result: RewardResult) -> str | None:
    """The jump of a reward in words; None if there is none."""
    if not best.any:
        speedup = result.components.speedup or result.components.predicted
        if speedup is None or speedup <= FIRST_SPEEDUP:
            return None
        return f"the first right candidate of the task is {speedup:.3g} times as fast as PyTorch"
    if score is not None and best.score is not None and score - best.score > math.log(factor):
        return f"it is {math.exp(score - best.score):.3g} times as fast as the best of the task before"
    before = best.rewards.get(result.policy)
    assert result.reward is not None
    if before is not None and before > 0 and result.reward > factor * before:
        return f"its reward is {result.reward / before:.3g} times the best of the task before"
    return None


def _withheld(result: RewardResult, jump: Jump) -> RewardResult:
    likeness = ", ".join(f"{case.name} ({case.similarity:.2f})" for case in jump.similar)
    fault = Fault(code="withheld", message=f"{jump.words}, and it is like {likeness}; an operator decides")
    changes = {"outcome": "withheld", "reward": None, "failure_reward": failure_reward(result.policy), "error": fault}
    return result.model_copy(update=changes)


def _cases(similar: Sequence[Similar]) -> list[SimilarCase]:
    return [SimilarCase(case=item.name, kind=item.kind, similarity=round(item.similarity, 4)) for item in similar]


def _suspect(row: tuple[object, ...]) -> Suspect:
    name, caller, run, task, candidate, work, decision, why, cases, created_at = row
    if not isinstance(cases, str):
        raise TypeError("cases of a suspect are no text")
    return Suspect.model_validate(
        {
            "id": name,
            "caller": caller,
            "run_id": run,
            "task": task,
            "candidate": candidate,
            "work": work,
            "decision": decision,
            "why": why,
            "cases": _CASES.validate_json(cases),
            "created_at": created_at,
        }
    )
