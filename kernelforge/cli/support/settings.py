"""Convert options of ``run`` to configuration records: budgets, model settings, NAME=VALUE pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.records import Budget, Limits, LLMSettings


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping.

    Raises:
        UsageError: a text without ``=``, or a name given twice.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise UsageError(f"{option} {text!r}: write NAME=VALUE")
        if name in found:
            raise UsageError(f"{option} {name} is given twice; give it once")
        found[name] = value.strip()
    return found


def strategy_settings(given: Sequence[str] | None, metrics: str | None, ncu: bool) -> dict[str, Any]:
    """Options of the strategy, from ``--set`` and from the two that have a flag of their own."""
    settings: dict[str, Any] = pairs("--set", given)
    for name, value in (("metrics", metrics), ("ncu", ncu or None)):
        if value is None:
            continue
        if name in settings:
            raise UsageError(f"--{name} and --set {name}=... say the same; give one of them")
        settings[name] = value
    return settings


def budget_of(
    rounds: int | None,
    evaluations: int | None,
    wall_minutes: float | None,
    tokens: int | None,
    dollars: float | None,
    per_task: Sequence[str] | None,
) -> Budget:
    """The budget that the options of ``run`` describe.

    Raises:
        UsageError: a limit that is not a positive number, or an unknown one.
    """
    from kernelforge.records import Budget

    for option, value, what in (("--wall-minutes", wall_minutes, "time"), ("--dollars", dollars, "money")):
        if value is not None and not value > 0:
            raise UsageError(f"{option} {value:g}: give the run some {what}, for instance 5")
    return Budget(
        rounds=rounds,
        evaluations=evaluations,
        wall_seconds=None if wall_minutes is None else wall_minutes * 60,
        tokens=tokens,
        dollars=dollars,
        per_task=_limits(pairs("--per-task", per_task)),
    )


def _limits(given: dict[str, str]) -> Limits:
    from pydantic import ValidationError

    from kernelforge.records import Limits, first_fault

    known = ("evaluations", "tokens", "dollars", "wall_minutes")
    for name in given:
        if name not in known:
            raise UsageError(f"--per-task has no limit {name!r}; choose of {', '.join(known)}")
    values: dict[str, Any] = dict(given)
    minutes = values.pop("wall_minutes", None)
    if minutes is not None:
        try:
            values["wall_seconds"] = float(minutes) * 60
        except ValueError as error:
            raise UsageError(f"--per-task wall_minutes={minutes}: give a number, for instance 5") from error
    try:
        return Limits.model_validate(values, strict=False)
    except ValidationError as error:
        raise UsageError(f"--per-task: {first_fault(error, given=True)}") from error


def llm_settings(given: Sequence[str] | None, base_url: str | None, prices: Path | None) -> LLMSettings:
    """How models are called.

    Raises:
        UsageError: an unknown setting, a value that it cannot have, or a price list that cannot be read.
    """
    from pydantic import ValidationError

    from kernelforge.records import LLMSettings, first_fault

    values: dict[str, Any] = pairs("--llm", given)
    known = [name for name in LLMSettings.model_fields if name not in ("prices", "base_url")]
    for name in values:
        if name not in known:
            raise UsageError(f"--llm has no setting {name!r}; choose of {', '.join(known)}")
    if base_url is not None:
        values["base_url"] = base_url
    if prices is not None:
        from kernelforge.llm.prices import load_prices

        values["prices"] = load_prices(prices)
    try:
        return LLMSettings.model_validate(values, strict=False)
    except ValidationError as error:
        raise UsageError(f"--llm: {first_fault(error, given=True)}") from error
