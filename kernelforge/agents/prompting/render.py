"""Render a template to a prompt: a preamble shared by all calls of an agent on a task, then the request.

The two parts are rendered apart and joined, so nothing in a task or a reply can move the boundary between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from kernelforge.agents.acceptance import APART
from kernelforge.agents.base import TaskContext
from kernelforge.agents.prompting.attempts import (
    changes_since_parent,
    emulated,
    floor_text,
    history_text,
    label,
    timing,
    timing_details,
    trials_text,
    tuned,
)
from kernelforge.agents.prompting.profiles import changes, profile_table
from kernelforge.agents.prompting.sizes import shared_text, sizes_text, symbolic_sizes
from kernelforge.agents.prompting.text import fenced, inline, tensors
from kernelforge.candidate import MAX_COMBINATIONS, MAX_HALVED
from kernelforge.errors import UsageError
from kernelforge.llm.base import Prompt
from kernelforge.records import AgentName, Candidate, SourceLanguage, Task, TaskFacts
from kernelforge.tasks.files import parse_task_file
from kernelforge.tasks.suites import data_path

LANGUAGE_NAMES: Final[dict[SourceLanguage, str]] = {"c": "C", "cpp": "C++", "fortran": "Fortran"}


def routine(task: Task) -> str:
    """Name of a function without a result in the task's language."""
    return "subroutine" if task.c_language == "fortran" else "function"


def sequential(task: Task) -> str:
    """The sequential code of a translation task, such as ``C function``."""
    return f"{LANGUAGE_NAMES[task.c_language]} {routine(task)}"


def parameters(task: Task) -> tuple[str, ...]:
    """Names of what ``forward`` takes, in order."""
    return parse_task_file(task.source, task.name).parameters


if TYPE_CHECKING:
    from jinja2 import Environment

LIMITS = {
    "source": 64_000,
    "plan": 24_000,
    "example": 24_000,
    "task": 64_000,
    "sizes": 24_000,
    "profile": 24_000,
    "reason": 8_000,
    "finding": 2_000,
    "lesson": 320,
}
"""Characters of each text that others wrote; what is longer is cut in the middle, and a line there says so.

``example`` is the source of an attempt that is shown in addition to the one to work on.
"""
MAX_LESSONS = 10
IMAGES = "Tensor maps of images"
"""The section of the language's page that only convolutions have use for."""


def render(template: str, agent: AgentName, brief: TaskContext, **context: Any) -> Prompt:
    """The prompt of a template for an agent. ``context`` is what the template needs in addition to the brief.

    Raises:
        UsageError: the installation lacks a page or a template.
    """
    shared = {
        "agent": agent,
        "brief": brief,
        "task": brief.task,
        "facts": brief.facts,
        "lacks": brief.device.get("not supported here", ""),
        "language": context.pop("language", ""),
        "page": launch_plan_page(brief),
        "sections": tuple(page_sections(brief)) if context.pop("asks", False) else (),
        "dialogue": context.pop("dialogue", False),
        "lessons": brief.lessons[:MAX_LESSONS],
        "limits": LIMITS,
    }
    environment = _environment()
    preamble = environment.get_template("preamble.md.j2").render(shared).strip() + "\n\n"
    if brief.language != "cuda" and agent != "tester":
        preamble += environment.get_template("triton.md.j2").render(shared).strip() + "\n\n"
    request = environment.get_template(f"{template}.md.j2").render({**shared, **context}).strip() + "\n"
    return Prompt(preamble + request, stable=len(preamble))


def render_translation(task: Task, facts: TaskFacts, original: Candidate, declaration: str) -> Prompt:
    """The prompt that asks for the C function of a task of which the CUDA is shown.

    Args:
        task: a task with a C function, which is not shown.
        facts: of the task at visible sizes.
        original: the device code and the launch plan to translate.
        declaration: of the function in C.

    Raises:
        UsageError: the installation lacks the template.
    """
    context = {"task": task, "facts": facts, "original": original, "declaration": declaration, "limits": LIMITS}
    text = _environment().get_template("translate-c.md.j2").render(context).strip() + "\n"
    return Prompt(text, stable=len(text))


def launch_plan_page(brief: TaskContext | None = None) -> str:
    """The reference page of the launch-plan language, without what the brief's task or device has no use for.

    Raises:
        UsageError: the installation lacks the page.
    """
    page = shipped_page("launch-plan.md")
    if brief is None:
        return page
    if not brief.task.policy.library:
        page = _without_section(page, "Torch operators")
    if "tensor maps" in brief.device.get("not supported here", ""):
        page = _without_section(_without_section(page, "Tensor maps"), IMAGES)
    elif "convolution" not in brief.graph.families:
        page = _without_section(page, IMAGES)
    return page


def page_sections(brief: TaskContext) -> dict[str, str]:
    """The sections of the page that a Coder may read, by their titles, and all figures of the device.

    Raises:
        UsageError: the installation lacks the page.
    """
    parts = launch_plan_page(brief).split("\n## ")[1:]
    sections = {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}
    return {**sections, "The device": device_text(brief.device)}


_NOT_SHOWN = ("memory", "registers per thread", "threads per block", "not supported here")
"""Memory is enough for every task, limits of a thread and a block are every GPU's, and no text speaks of what is not
supported."""
_ON_REQUEST = ("clock", "fp32")
_SHARE = " per multiprocessor"


def device_text(device: Mapping[str, str], *, in_short: object = False) -> str:
    """Figures of a device in one paragraph, ``in_short`` without those that only a closer look at occupancy needs."""
    rows, shares = [], []
    for name, value in device.items():
        text = inline(value, 300)
        if name in _NOT_SHOWN or (in_short and name in _ON_REQUEST):
            continue
        if name.endswith(_SHARE):
            shares.append(f"{inline(name.removesuffix(_SHARE))} {text}")
        else:
            rows.append(text if name == "device" else f"{inline(name)}: {text}")
    if shares and not in_short:
        rows.append(f"{_SHARE.strip()}: {', '.join(shares)}")
    return "; ".join(rows) + "."


def _without_section(page: str, title: str) -> str:
    before, heading, after = page.partition(f"\n## {title}\n")
    if not heading:
        raise UsageError(f"docs/launch-plan.md has no section {title!r}; reinstall kernelforge")
    _, next_heading, rest = after.partition("\n## ")
    return before + next_heading + rest


@lru_cache
def shipped_page(name: str) -> str:
    """A page of the documentation that prompts quote.

    Raises:
        UsageError: the installation lacks the page.
    """
    path = data_path("docs") / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; reinstall kernelforge, or run from a checkout"
        ) from error


def _without_last_newlines(value: Any) -> Any:
    """A macro ends where its text does; blank lines between sections are the caller's."""
    return value.rstrip("\n") if isinstance(value, str) else value


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
        finalize=_without_last_newlines,
    )
    environment.globals |= {
        "LANGUAGE_NAMES": LANGUAGE_NAMES,
        "apart": f"{APART:.0%}",
        "block": fenced,
        "changes": changes,
        "changes_since_parent": changes_since_parent,
        "device_text": device_text,
        "emulated": emulated,
        "floor_text": floor_text,
        "history_text": history_text,
        "inline": inline,
        "label": label,
        "most_combinations": f"{MAX_COMBINATIONS:,}",
        "most_halved": MAX_HALVED,
        "parameters": parameters,
        "profile_table": profile_table,
        "routine": routine,
        "sequential": sequential,
        "shared_text": shared_text,
        "sizes_text": sizes_text,
        "symbolic_sizes": symbolic_sizes,
        "tensors": tensors,
        "timing": timing,
        "timing_details": timing_details,
        "trials_text": trials_text,
        "tuned": tuned,
    }
    return environment
