"""Samples for training data from the stored jobs and sessions of a results folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelforge.datasets.training import Sample, helped, prompt_hash, split_completion, with_dialogue
from kernelforge.records import Evaluation
from kernelforge.rewards import Context, reward
from kernelforge.server.jobs.results import EvaluatedJob, completed_jobs
from kernelforge.server.sessions.store import SessionRow, TurnRow, stored_sessions


def samples_of_jobs(folder: Path, run_id: str | None, policy: str) -> Iterator[Sample]:
    """Samples of completed jobs, or of those of a run; jobs without a prompt are left out.

    Raises:
        StoreError: ``server.db`` cannot be read.
        UsageError: there is no database, no job of that run, or no such policy.
    """
    for job in completed_jobs(folder, run_id):
        sample = sample_of_job(job, policy)
        if sample is not None:
            yield sample


def samples_of_sessions(folder: Path, run_id: str | None, policy: str) -> Iterator[Sample]:
    """Samples of the turns of sessions, or of those of a run.

    Raises:
        StoreError: there is no ``server.db``, or it cannot be read.
        UsageError: there is no such policy.
    """
    for session, turns in stored_sessions(folder, run_id):
        yield from samples_of_session(session, turns, policy)


def sample_of_job(job: EvaluatedJob, policy: str) -> Sample | None:
    """The sample of a completed job; None where the request had no prompt or no completion.

    Raises:
        UsageError: there is no such policy.
    """
    if job.prompt is None or job.completion is None:
        return None
    return Sample(
        id=job.id,
        source="job",
        run=job.run,
        task=job.task,
        dialogue=job.id,
        turn=1,
        group=prompt_hash(job.task, job.prompt) if job.group_id is None else f"{job.run}/{job.group_id}",
        messages=(("user", job.prompt),),
        **split_completion(job.completion),
        evaluation=job.evaluation,
        profile=job.profile,
        candidate=job.source,
        reward=reward(policy, job.evaluation, Context(job.source, profile=job.profile)).value,
        policy_version=job.policy_version,
    )


def samples_of_session(session: SessionRow, turns: Sequence[TurnRow], policy: str) -> list[Sample]:
    """Samples of a session's turns: each with the dialogue before it, or with the whole prompt that it was asked by.
    Suspects, whose reward is withheld, are no samples.

    Raises:
        UsageError: there is no such policy.
    """
    samples: list[Sample] = []
    prompt = session.first.prompt
    before: list[Evaluation] = []
    for row in turns:
        attempt = row.attempt
        source = None if attempt.candidate is None else attempt.candidate.source
        context = Context(source, tuple(before), attempt.profile)
        parent = next((sample for sample in samples if sample.id == attempt.parent), None)
        parent_attempt = next((other.attempt for other in turns if other.attempt.id == attempt.parent), None)
        samples.append(
            Sample(
                id=attempt.id,
                source="session",
                run=session.request.run_id,
                task=session.task,
                dialogue=session.id,
                turn=row.turn.number,
                group=prompt_hash(session.task, prompt),
                messages=(("user", prompt),),
                **split_completion(row.turn.completion),
                evaluation=attempt.evaluation,
                profile=attempt.profile,
                candidate=source,
                reward=reward(policy, attempt.evaluation, context).value,
                policy_version=row.turn.policy_version,
                finding=attempt.finding,
                parent=None if parent is None else parent.id,
                helped=helped(attempt, parent_attempt),
            )
        )
        before.append(attempt.evaluation)
        prompt = row.next.prompt
    if session.request.observations == "delta":
        samples = with_dialogue(samples, session.first.prompt[: session.first.stable].strip())
    suspects = {row.attempt.id for row in turns if row.turn.result.outcome == "withheld"}
    return [sample for sample in samples if sample.id not in suspects]
