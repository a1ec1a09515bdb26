"""Prompts: what a Coder or a Judge is told, rendered from the templates in ``prompts/``.

Text that others wrote (tasks, candidates, compiler messages, findings) is always fenced, by a fence longer than any
inside it, and introduced as data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kernelforge.agents.base import Brief, CoderRequest, JudgeRequest
from kernelforge.errors import UsageError
from kernelforge.llm.base import Prompt
from kernelforge.records import Operator, Profile, TensorSpec, Verdict
from kernelforge.tasks.data import data_path

if TYPE_CHECKING:
    from jinja2 import Environment

_NCU_FIRST = ("dram__", "lts__", "l1tex__", "ptx__", "smsp__", "sm__", "launch__", "kernelforge__")


def coder_prompt(request: CoderRequest) -> Prompt:
    """What a Coder is told for a proposal: ``seed``, ``repair`` or ``optimise``."""
    operator = request.operator if request.operator in (Operator.REPAIR, Operator.OPTIMISE) else Operator.SEED
    if request.parent is None or request.parent.candidate is None:
        operator = Operator.SEED
    return _render(
        operator.value, request.brief, parent=request.parent, finding=request.finding, launch_plan=launch_plan_page()
    )


def judge_prompt(request: JudgeRequest) -> Prompt:
    """What a Judge is told: ``judge-optimise`` for a correct parent, ``judge-repair`` for a failed one."""
    if request.parent.evaluation.verdict is Verdict.OK:
        tried = [
            f"- {attempt.finding.headline}: {attempt.finding.action} ({attempt.note or attempt.evaluation.verdict})"
            for attempt in request.history
            if attempt.finding is not None and attempt.operator is Operator.OPTIMISE and not attempt.accepted
        ]
        return _render("judge-optimise", request.brief, parent=request.parent, tried=tried)
    return _render("judge-repair", request.brief, parent=request.parent)


def fenced(text: str, language: str) -> str:
    """``text`` as a fenced block that nothing inside it can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def inline(value: Any, limit: int = 120) -> str:
    """A name or a value that others wrote, within a line of ours: no line break, no backtick, not long."""
    text = " ".join(str(value).split()).replace("`", "'")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def tensors(specs: Sequence[TensorSpec | int | float | bool | None]) -> str:
    """Shapes and dtypes in one line: ``float32[64, 1024]``; strides where a tensor is not contiguous."""
    parts = []
    for spec in specs:
        if not isinstance(spec, TensorSpec):
            parts.append(str(spec))
            continue
        strides = "" if spec.is_contiguous else f" (strides {', '.join(map(str, spec.stride))})"
        parts.append(f"{spec.dtype}[{', '.join(map(str, spec.shape))}]{strides}")
    return "; ".join(parts) or "none"


def profile_table(profile: Profile) -> str:
    """A profile as Markdown: totals over the plan, each with unit and origin, then a line per kernel."""

    def place(name: str) -> tuple[int, str]:
        prefix = next((at for at, start in enumerate(_NCU_FIRST) if name.startswith(start)), len(_NCU_FIRST))
        return prefix, name

    roofline = profile.roofline
    lines = [f"| metric (whole plan, size {profile.size}) | value | unit | origin |", "|---|---|---|---|"]
    for metric in sorted(profile.metrics, key=lambda one: place(one.name)):
        lines.append(f"| {metric.name} | {metric.value:,.6g} | {metric.unit} | {metric.origin} |")
    ratio = roofline.dram_bytes / roofline.compulsory_bytes if roofline.compulsory_bytes else float("nan")
    lines += [
        "",
        f"Roofline: bound by {roofline.bound}, {roofline.time_us:,.4g} us ({roofline.time_origin}); "
        f"{roofline.arithmetic_intensity:.3g} flop/byte, ridge at {roofline.ridge:.3g}; "
        f"DRAM traffic {roofline.dram_bytes:,.0f} bytes, {ratio:.2f}x the compulsory {roofline.compulsory_bytes:,.0f}.",
        "",
    ]
    for kernel in profile.kernels:
        lines.append(f"- `{kernel.kernel}`: {kernel.launches} launches, grid {kernel.grid}, block {kernel.block}")
        lines += [
            f"  - line {spot.source_line}: {spot.space} {spot.access}, {spot.transactions:,} transactions in "
            f"{spot.requests:,} requests ({spot.ideal_transactions:,} would do)"
            for spot in kernel.hot_spots
        ]
    return "\n".join(lines)


@lru_cache(maxsize=1)
def launch_plan_page() -> str:
    """The reference page of the launch-plan language, as it ships.

    Raises:
        UsageError: the installation lacks the page.
    """
    path = data_path("docs") / "launch-plan.md"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; reinstall kernelforge, or run from a checkout"
        ) from error


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(data_path("prompts")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=False,
    )
    environment.globals |= {"block": fenced, "inline": inline, "tensors": tensors, "profile_table": profile_table}
    return environment


def _render(template: str, brief: Brief, **context: Any) -> Prompt:
    values: Mapping[str, Any] = {
        "task": brief.task, "facts": brief.facts, "shared": brief.shared, "device": brief.device, **context,
    }  # fmt: skip
    return Prompt(_environment().get_template(f"{template}.md.j2").render(values).strip() + "\n")
