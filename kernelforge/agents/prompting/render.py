"""Render a template to a prompt: a preamble shared by all calls of an agent on a task, then the request.

The two parts are rendered apart and joined, so nothing in a task or a reply can move the boundary between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

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
from kernelforge.agents.prompting.text import fenced, inline, tensors
from kernelforge.errors import UsageError
from kernelforge.llm.base import Prompt
from kernelforge.records import AgentName, SizeFacts, Task, TaskFacts
from kernelforge.tasks.files import parse_task_file
from kernelforge.tasks.suites import data_path


def parameters(task: Task) -> tuple[str, ...]:
    """Names of what ``forward`` takes, in order."""
    return parse_task_file(task.source, task.name).parameters


def sizes_text(facts: TaskFacts, *, eager: bool = True) -> str:
    """A line per size that may be seen; of sizes other than ``full``, only what differs from it.

    ``eager`` says how many operators PyTorch calls: of interest where the Coder sees a module, not a C function.
    """
    full = facts.at("full")
    return "\n".join(_line(size, None if size is full else full, eager) for size in facts.sizes)


def shared_text(shared: Mapping[str, str]) -> str:
    """A line for each fact that all sizes have in common, after the names that it is about.

    Extents of outputs that equal others or vary follow from the reference, and are left out.
    """
    names: dict[str, list[str]] = {}
    for name, fact in shared.items():
        if name.startswith("output ") and fact.startswith(("equal to ", "varies")):
            continue
        names.setdefault(fact.removesuffix(" at every size"), []).append(name)
    return "\n".join(f"- {_joined(group)}: {inline(fact, 600)}" for fact, group in names.items())


def _joined(names: Sequence[str]) -> str:
    """Names in one line; of extents of one tensor, one after another, the later ones by their index alone."""
    parts, last = [], ""
    for name in names:
        tensor, bracket, index = name.rpartition("[")
        repeats = bool(bracket) and tensor == last
        parts.append(inline(bracket + index if repeats else name))
        last = tensor
    return ", ".join(parts)


def attributes_text(attributes: Mapping[str, Any]) -> str:
    """Scalar attributes with their values, in braces those of one module and indices of one sequence.

    ``conv.stride.0`` and ``conv.stride.1``, both 1, and ``conv.groups`` are ``conv.{stride.{0,1} = 1, groups = 2}``.
    """
    modules: dict[str, dict[str, list[tuple[str, Any]]]] = {}
    for path, value in attributes.items():
        module, dot, name = path.partition(".")
        stem, point, index = name.rpartition(".")
        if not point or not index.isdecimal():
            stem, index = name, ""
        modules.setdefault(module, {}).setdefault(stem if dot else "", []).append((index, value))
    return ", ".join(_of_module(inline(module), stems) for module, stems in modules.items())


def _of_module(module: str, stems: Mapping[str, Sequence[tuple[str, Any]]]) -> str:
    if set(stems) == {""}:
        return f"{module} = {inline(stems[''][0][1])}"
    parts = []
    for stem, items in stems.items():
        values: dict[str, list[str]] = {}
        for index, value in items:
            values.setdefault(inline(value), []).append(index)
        for value, indices in values.items():
            several = f".{{{','.join(indices)}}}" if len(indices) > 1 else f".{indices[0]}" if indices[0] else ""
            parts.append(f"{inline(stem)}{several} = {value}")
    return f"{module}.{{{', '.join(parts)}}}" if len(parts) > 1 else f"{module}.{parts[0]}"


def _line(size: SizeFacts, full: SizeFacts | None, eager: bool) -> str:
    before = {} if full is None else {weight.name: weight.spec for weight in full.weights}
    attributes = {} if full is None else full.attrs
    inputs, outputs = ((), ()) if full is None else (full.inputs, full.outputs)
    parts = [f"inputs {tensors(size.inputs, inputs)}", f"outputs {tensors(size.outputs, outputs)}"]
    weights: dict[str, list[str]] = {}
    for weight in size.weights:
        if (spec := before.get(weight.name)) != weight.spec:
            text = tensors([weight.spec], () if spec is None else [spec])
            weights.setdefault(text, []).append(f'w["{inline(weight.name)}"]')
    if weights:
        parts.append("weights " + "; ".join(f"{', '.join(names)} {text}" for text, names in weights.items()))
    attrs = {name: value for name, value in size.attrs.items() if attributes.get(name) != value}
    if attrs:
        parts.append(f"attrs {attributes_text(attrs)}")
    if full is None:
        parts.append(_work(size, eager))
    elif size.weights or size.attrs:
        parts.append("all else as at full")
    return f"- {size.size}: {'; '.join(parts)}"


def _work(size: SizeFacts, eager: bool) -> str:
    flops = f", {size.flops:,} flop" if size.flops else ""
    moved = f"moves at least {size.compulsory_bytes:,} bytes{flops}"
    return f"{moved}; eager PyTorch calls {size.eager_launches} operators" if eager else moved


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
        "parameters": parameters,
        "profile_table": profile_table,
        "shared_text": shared_text,
        "sizes_text": sizes_text,
        "tensors": tensors,
        "timing": timing,
        "timing_details": timing_details,
        "trials_text": trials_text,
        "tuned": tuned,
    }
    return environment
