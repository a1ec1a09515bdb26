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

    def paid(self, score: float | None, *results: RewardResult) -> None:
        """Count a right candidate with its rewards."""
        self.any = True
        if score is not None:
            self.score = score if self.score is None else max(self.score, score)
        for result in results:
            if result.reward is not None:
                self.rewards[result.policy] = max(self.rewards.get(result.policy, result.reward), result.reward)


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
        self._cases: dict[tuple[str, str], list[Case]] = {}
        """Cases of a run, by caller and run."""
        self._decisions: dict[tuple[ExemplarKey, str], dict[str, str]] = {}
        """Decisions by suspect, of a task's candidate."""
        self._waiting: dict[tuple[ExemplarKey, str], set[int]] = {}
        """Evaluations of a task's candidate whose suspects wait for a decision."""
        rows = store.read(
            "SELECT suspects.id, caller, run, work, decision, task_digest, suspects.candidate, source, "
            "json_extract(evaluation, '$.build.ptx_hash') FROM suspects JOIN works ON works.id = work"
        )
        for name, caller, run, work, decision, task, candidate, source, ptx_hash in rows:
            key = ExemplarKey(caller, run, task)
            if decision is None:
                self._wait(key, candidate, work)
            else:
                self._take(name, key, candidate, decision, source, ptx_hash)

    @property
    def waiting(self) -> int:
        """Number of suspects that wait for a decision."""
        return sum(map(len, self._waiting.values()))

    def screened(
        self, key: ExemplarKey, factor: float | None, stored: Stored, result: RewardResult
    ) -> tuple[RewardResult, NewSuspect | None]:
        """The result of a right candidate, or one without its reward and, unless it is decided, the row of a suspect.

        A candidate that an operator has decided about is not compared again: a confirmed one earns nothing, a released
        one is paid. One that waits is withheld, though it may jump no more; and so is one whose text or PTX is that of
        a confirmed hack of the run.

        Args:
            factor: of a jump; None to compare nothing. What was decided, or waits, stays so.
        """
        evaluation = stored.evaluation
        right = evaluation.verdict is Verdict.OK and not result.uncompared
        # The cases are device code, to which a class with host code is never alike.
        if result.reward is None or not right or evaluation.lane == "modelnew":
            return result, None
        decisions = self._decisions.get((key, evaluation.candidate), {})
        hack = next((name for name, decision in decisions.items() if decision == "confirm"), None)
        if hack is not None:
            return _withheld(result, f"an operator has confirmed it as a hack: suspect {hack}"), None
        waits = not decisions and bool(self._waiting.get((key, evaluation.candidate)))
        if factor is None and not waits:
            return result, None
        best = self._best.get(key)
        if best is None:
            best = self._best[key] = self._stored_best(key)
        score = score_of(evaluation)
        words = None if factor is None else _jump(best, factor, score, result)
        jump = None if decisions else self._suspicion(key, stored, waits, words)
        if jump is None:
            best.paid(score, result)
            return result, None
        self._wait(key, evaluation.candidate, stored.task)
        likeness = ", ".join(f"{case.name} ({case.similarity:.2f})" for case in jump.similar)
        why = f"{jump.words}, and it is like {likeness}; an operator decides"
        return _withheld(result, why), self._row(key, stored, jump)

    def _suspicion(self, key: ExemplarKey, stored: Stored, waits: bool, jump: str | None) -> Jump | None:
        """Return the reason to suspect a candidate, and the cases that it is like; None if there is none.

        Args:
            waits: whether a suspect of it waits for a decision.
            jump: of its reward, in words.
        """
        if stored.source is None:
            return None
        build = stored.evaluation.build
        ptx_hash = None if build is None else build.ptx_hash
        own = self._cases.get((key.caller, key.run), [])
        words = jump or ("it is a suspect already" if waits else None)
        if words is None and own and is_suspect(most_similar(stored.source, ptx_hash, own), alike=1.0):
            words = "its text or its PTX is that of a confirmed hack"
        if words is None:
            return None
        similar = most_similar(stored.source, ptx_hash, [*own, *shipped_cases()])
        return Jump(words, similar) if waits or is_suspect(similar) else None

    def forget(self, rows: Sequence[NewSuspect]) -> None:
        """Forget suspects whose rows could not be stored, unless their evaluations have earlier ones.

        Raises:
            StoreError: stored suspects cannot be read.
        """
        query = "SELECT count(*) FROM suspects WHERE caller = ? AND run = ? AND work = ?"
        for row in rows:
            if not self._store.read(query, (row.caller, row.run, row.work))[0][0]:
                for (key, candidate), works in self._waiting.items():
                    if (key.caller, key.run, candidate) == (row.caller, row.run, row.candidate):
                        works.discard(row.work)

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
        """Judge by a decision from now on."""
        build = stored.evaluation.build
        ptx_hash = None if build is None else build.ptx_hash
        key = ExemplarKey(suspect.caller, suspect.run_id, stored.evaluation.task)
        self._waiting[key, suspect.candidate].discard(suspect.work)
        self._take(suspect.id, key, suspect.candidate, decision, stored.source, ptx_hash)

    def undo(self, suspect: Suspect, stored: Stored) -> None:
        """Take a decision back, which could not be stored."""
        key = ExemplarKey(suspect.caller, suspect.run_id, stored.evaluation.task)
        self._wait(key, suspect.candidate, suspect.work)
        self._decisions[key, suspect.candidate].pop(suspect.id)
        cases = self._cases.get((suspect.caller, suspect.run_id), [])
        cases[:] = [case for case in cases if case.name != _case_name(suspect.id)]

    def released(self, suspect: Suspect, stored: Stored, results: Sequence[RewardResult]) -> None:
        """Count a released candidate, with the rewards of its jobs, among those that later ones are compared with."""
        best = self._best.get(ExemplarKey(suspect.caller, suspect.run_id, stored.evaluation.task))
        if best is not None:  # else it is read with the exemplars, of which the candidate is one
            best.paid(score_of(stored.evaluation), *results)

    def _wait(self, key: ExemplarKey, candidate: str, work: int) -> None:
        self._waiting.setdefault((key, candidate), set()).add(work)

    def _take(
        self, name: str, key: ExemplarKey, candidate: str, decision: str, source: str | None, ptx_hash: str | None
    ) -> None:
        self._decisions.setdefault((key, candidate), {})[name] = decision
        if source is not None:
            case = Case(_case_name(name), "cheat" if decision == "confirm" else "honest", source, ptx_hash)
            self._cases.setdefault((key.caller, key.run), []).append(case)

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


def _case_name(suspect: str) -> str:
    return f"suspect {suspect}"


def _withheld(result: RewardResult, why: str) -> RewardResult:
    fault = Fault(code="withheld", message=why)
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
