"""Make an entry from a run's records, and a board result from an entry."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from kernelforge.errors import UsageError
from kernelforge.leaderboard.entry import Best, EntryFile, RunFacts, TaskRow, sealed
from kernelforge.llm.spec import is_hosted, parse_spec
from kernelforge.records import Attempt, Operator, Reward, RunConfig, Verdict, first_fault
from kernelforge.report.formatting import one_line
from kernelforge.report.views.board import (
    MONEY_DIGITS,
    Result,
    Verified,
    board_key,
    has_tests,
    suite_name,
    token_and_dollar_totals,
    translation_scores,
)
from kernelforge.report.views.run_records import RunRecords, TaskSummary, best_of, steps_to, summarise
from kernelforge.report.views.samples import sample_counts, translated
from kernelforge.utils.shell_hints import shell_command

_LINE = 200


def make_entry(records: RunRecords, digests: Mapping[str, str], *, by: str, note: str = "") -> EntryFile:
    """The entry of a run.

    Args:
        digests: Digest of each task that the run started.
        by: Name of the submitter.
        note: Note by the submitter.

    Raises:
        UsageError: the run has not ended, has no attempt, or contains something that boards reject; the message says
            what.
    """
    run = records.run
    if records.state not in ("finished", "stopped"):
        resume = shell_command("resume", run.id, results=records.results)
        raise UsageError(f"run {run.id} is {records.state}; finish it with `{resume}`, then submit it")
    if not records.attempts:
        raise UsageError(f"run {run.id} has no attempt: there is nothing to submit")
    try:
        return sealed(
            {
                "by": one_line(by, 80),
                "note": one_line(note, 500),
                "run": _facts(records),
                "key": board_key(records),
                "suite": suite_name(run.config),
                "suite_digest": run.config.suite_digest,
                "fingerprints": tuple(
                    dict.fromkeys(
                        attempt.evaluation.fingerprint
                        for attempt in records.attempts
                        if not attempt.evaluation.passed_over
                    )
                ),
                "tasks": _rows(records, digests),
            }
        )
    except ValidationError as error:
        raise UsageError(f"run {run.id} cannot be submitted: {first_fault(error)}") from error


def _facts(records: RunRecords) -> dict[str, object]:
    run, config = records.run, records.run.config
    same = (
        *("strategy", "options", "tune", "memory", "budget", "stop_after", "stop_gain", "cascade", "allocate"),
        *("measure_top", "seed"),
    )
    return {
        **{name: getattr(config, name) for name in same},
        "measure": config.measure.model_copy(update={"figures": None}),  # perhaps the path of a file
        "id": run.id,
        "started": run.started,
        "ended": run.ended,
        "state": records.state,
        "kernelforge": run.kernelforge,
        "coder": ",".join(map(public_spec, config.coders)),
        "judge": public_spec(config.judge),
        "tester": None if config.tester is None else public_spec(config.tester),
        "starts": len(config.starts),
    }


def public_spec(spec: str) -> str:
    """An agent's specification without private parts: addresses of servers, paths of files."""
    name, colon, rest = spec.partition(":")
    if not is_hosted(spec):
        return name if name in ("replay", "exchange") else one_line(name + colon + rest, _LINE)
    parsed = parse_spec(spec)
    public = parsed.model_dump(exclude_none=True, exclude={"provider", "model", "base_url"})
    options = "&".join(f"{option}={value}" for option, value in public.items())
    return parsed.name + (f"?{options}" if options else "")


def _rows(records: RunRecords, digests: Mapping[str, str]) -> tuple[TaskRow, ...]:
    config: RunConfig = records.run.config
    spent = token_and_dollar_totals(list(records.all_messages()), (*config.coders, config.judge))
    translations, sampled = translated(records), config.strategy == "best-of-n"
    rows = []
    for task in config.tasks:
        attempts = records.of_task(task)
        tokens, dollars = token_and_dollar_totals(list(records.task_messages(task)), ())
        best, verdicts = best_of(attempts), [attempt.evaluation.verdict for attempt in attempts]
        finished = records.finished.get(task)
        timed = [attempt.evaluation.performance for attempt in attempts]
        fields = {
            "task": task,
            "task_digest": attempts[-1].evaluation.task if attempts else digests.get(task),
            "verdict": Verdict.OK if best is not None else verdicts[-1] if verdicts else None,
            "finished": None if finished is None else one_line(finished, _LINE),
            "attempts": len(attempts),
            "infra": verdicts.count(Verdict.INFRA),
            "quarantined": sum(bool(performance and performance.quarantined) for performance in timed),
            "tokens": None if spent[0] is None else tokens,
            "dollars": None if spent[1] is None else dollars,
            "moves": tuple(one_line(move, _LINE) for move in steps_to(best, attempts)) if best else (),
            "samples": sample_counts(records, task) if task in translations and sampled else None,
            "best": None if best is None else _best(best, records.compulsory_bytes.get(task)),
        }
        rows.append(TaskRow.model_validate(fields))
    return tuple(rows)


def _best(attempt: Attempt, compulsory_bytes: float | None) -> Best:
    assert attempt.candidate is not None  # verdict OK has one
    return Best(
        attempt=attempt.id,
        number=attempt.number,
        candidate=attempt.candidate,
        candidate_hash=attempt.candidate.hash,
        evaluation=attempt.evaluation,
        evaluation_key=attempt.evaluation.key,
        profile=attempt.profile,
        compulsory_bytes=compulsory_bytes,
    )


def entry_result(entry: EntryFile, verified: Verified | None = None) -> Result:
    """Board result of an entry."""
    rows, run = entry.tasks, entry.run
    tokens = [row.tokens for row in rows]
    dollars = [row.dollars for row in rows]
    return Result.of(
        entry,
        run,
        run=run.id,
        verified=verified,
        confined=True,
        further_tests=any(has_tests(fingerprint.evaluator) for fingerprint in entry.fingerprints),
        attempts=sum(row.attempts for row in rows),
        infra=sum(row.infra for row in rows),
        quarantined=sum(row.quarantined for row in rows),
        tokens=None if None in tokens else sum(value for value in tokens if value is not None),
        dollars=None if None in dollars else round(sum(value for value in dollars if value is not None), MONEY_DIGITS),
        tasks=tuple(_summary(run, row) for row in rows),
        **translation_scores(
            [row.samples for row in rows if row.samples is not None], None, all_measured=run.measure_top is None
        ),
    )


def _summary(run: RunFacts, row: TaskRow) -> TaskSummary:
    """Summary of a row as the run would compute it, without the reward, which entries do not contain."""
    attempts: list[Attempt] = []
    if row.best is not None:
        best = row.best
        attempts = [
            Attempt(
                id=best.attempt,
                run=run.id,
                task=row.task,
                number=best.number,
                operator=Operator.SEED,
                candidate=best.candidate,
                evaluation=best.evaluation,
                profile=best.profile,
                reward=Reward(policy="none", value=None, components={}),
                accepted=True,
                started=run.started,
                seconds=0.0,
            )
        ]
    least = row.best.compulsory_bytes if row.best else None
    summary = summarise(run.id, row.task, attempts, row.finished, least)
    return summary.model_copy(update={"verdict": row.verdict, "rounds": row.attempts, "moves": row.moves})
