"""Programs of candidates: PTX and plan without names. Candidates with one program share an evaluation.

Equal PTX and launches at a task's own sizes are not enough: each evaluation also draws a hidden size, and a plan that
does something else there must not pass by the evaluation of an honest one. So the plan itself has to be equal, but for
its names, comments and layout; and the source has to be the same text wherever a size could compile or launch what the
compared PTX does not hold.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, groupby, repeat
from typing import NamedTuple

from kernelforge.candidate import ResolvedPlan, parse_plan
from kernelforge.candidate.resolved import Fill, Launch, Library, Step
from kernelforge.compile.ptx_text import canonical_ptx
from kernelforge.evaluation.stages.compile_stage import BuildState
from kernelforge.records import (
    Build,
    Candidate,
    Evaluation,
    Profile,
    Record,
    SassProfile,
    Verdict,
    content_hash,
)

Lines = tuple[tuple[int, int], ...]
"""Lines, each with how many times it is repeated."""


class Program(Record):
    """Code and plan of a candidate at all sizes, and the lines of its source."""

    digest: str
    """Equal for candidates that do the same at every size, under the same names or others."""
    kernels: tuple[str, ...]
    """Kernels as the plan names them, in the order of the PTX."""
    lines: Lines
    """Source lines of the statements of the PTX at the full size; 0 for none."""


def program_of(candidate: Candidate, work: BuildState) -> Program | None:
    """The program of a candidate that was resolved and compiled at every size; None where it is not of PTX.

    Raises:
        CandidateError: its plan cannot be read.
    """
    full = work.artifacts.get("full")
    if full is None or candidate.lane != "plan":
        return None
    texts = {artifact.build.key: canonical_ptx(artifact.ptx) for artifact in work.artifacts.values()}
    plan, launched = _Plan(candidate), set(_launched(work))
    sizes = []
    for name, artifact in sorted(work.artifacts.items()):
        text = texts[artifact.build.key]
        order = {kernel.expression: text.names[kernel.symbol] for kernel in artifact.build.kernels}
        facts = [
            (plan.names.get(kernel.expression), order[kernel.expression], kernel.registers_per_thread, kernel.launch)
            for kernel in artifact.build.kernels
        ]
        sizes.append([name, text.digest, sorted(map(repr, facts)), _plan_text(work.plans[name], order)])
    source = "" if plan.kernels is not None and plan.kernels <= launched else candidate.source
    names = texts[full.build.key].names
    kernels = sorted((names[kernel.symbol], kernel.expression) for kernel in full.build.kernels)
    return Program(
        digest=content_hash("program/1", sizes, plan.text, source),
        kernels=tuple(expression for _, expression in kernels),
        lines=tuple((line, len(list(same))) for line, same in groupby(texts[full.build.key].lines)),
    )


def _launched(work: BuildState) -> Iterator[str]:
    for name in work.artifacts:
        yield from work.plans[name].expressions


def _plan_text(plan: ResolvedPlan, order: dict[str, int]) -> str:
    """A resolved plan with kernels by their place in the PTX, without lines and labels."""

    def step(item: Step) -> str:
        if isinstance(item, Launch):
            return repr(replace(item, expression=f"#{order[item.expression]}", line=0, specialisation=None))
        assert isinstance(item, Fill | Library)
        return repr(replace(item, line=0))

    buffers = [(buffer.kind, buffer.nbytes, buffer.source) for buffer in plan.buffers]
    setup, steps = [step(item) for item in plan.setup], [step(item) for item in plan.steps]
    return repr((buffers, setup, steps, plan.outputs, list(plan.constants.values())))


class _Plan:
    """A launch plan whose names are replaced by their order."""

    def __init__(self, candidate: Candidate) -> None:
        language = candidate.language or "cuda"
        plan = parse_plan(candidate.plan, language)
        self._tree = ast.parse(plan.text)  # the plan language let it through, so Python's parser can
        self._helpers = {node.name for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef)}
        self._bound = set(plan.tunables) | self._helpers - {"forward", "setup"}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._bound.add(node.id)
            elif isinstance(node, ast.arg):
                self._bound.add(node.arg)
        self.kernels: frozenset[str] | None = None if language == "triton" else self._kernels()
        """All that it can launch at any size; None where a name is computed, or each size compiles its own."""
        self.names: dict[str, str] = {}
        """What stands for each of its own names, and for each kernel."""
        for node in ast.walk(self._tree):
            self._rename(node)
        self.text = ast.dump(self._tree)

    def _kernels(self) -> frozenset[str] | None:
        names = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                name = node.func.value
                if not isinstance(name, ast.Call):
                    if not isinstance(name, ast.Name) or name.id in self._bound:
                        return None
                    names.add(name.id)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "kernel":
                argument = node.args[0] if len(node.args) == 1 else None
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    return None
                names.add(argument.value)
        return frozenset(names)

    def _rename(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            node.id = self._renamed(node.id)
        elif isinstance(node, ast.arg):
            node.arg = self._renamed(node.arg)
        elif isinstance(node, ast.FunctionDef):
            node.name = self._renamed(node.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function = node.func.id
            if function == "kernel" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
                node.args[0].value = self._renamed(str(node.args[0].value))
            elif function in self._helpers:
                for keyword in node.keywords:
                    keyword.arg = keyword.arg and self._renamed(keyword.arg)

    def _renamed(self, name: str) -> str:
        kernel = self.kernels is not None and name in self.kernels
        if name in self._bound or kernel:
            return self.names.setdefault(name, f"#{len(self.names)}")
        return name


def may_be_shared(evaluation: Evaluation) -> bool:
    """Whether an evaluation answers for other candidates with its program: it is right, or wrong where it may say how.

    Not where time, memory or trouble of the machine had a part in it, nor where the lines of its source are in its
    reason, as in that of a crash.
    """
    if evaluation.build is None or evaluation.lane != "plan" or evaluation.failed_at_hidden or evaluation.passed_over:
        return False
    if evaluation.screening is not None and evaluation.screening.outcome != "passed":
        return False
    if evaluation.verdict is Verdict.OK:
        performance = evaluation.performance
        return not evaluation.uncompared and (performance is None or performance.quarantined is None)
    return evaluation.verdict is Verdict.WRONG


class Original(NamedTuple):
    """A complete evaluation, and the program that it is of."""

    evaluation: Evaluation
    profile: Profile | None
    program: Program


def shared(
    original: Original, candidate: str, build: Build | None, seconds: Mapping[str, float], program: Program
) -> tuple[Evaluation, Profile | None] | None:
    """The evaluation of another candidate with the same program, and its profile.

    Args:
        original: the evaluation that both share; :func:`may_be_shared` allows it.
        candidate: hash of the other candidate.
        build: of the other candidate.
        seconds: spent on the other candidate, by part.
        program: of the other candidate.

    Returns:
        None where the profile cannot name the kernels and lines of the other candidate's source.
    """
    evaluation = original.evaluation
    profile = original.profile and _renamed(original.profile, original.program, program)
    if original.profile is not None and profile is None:
        return None
    # A rank is of one round alone.
    screening = evaluation.screening and evaluation.screening.model_copy(update={"rank": None})
    update = {"candidate": candidate, "build": build, "seconds": dict(seconds), "screening": screening}
    return evaluation.model_copy(update={**update, "equals": evaluation.equals or evaluation.key}), profile


def _renamed(profile: Profile, first: Program, other: Program) -> Profile | None:
    """A profile with the kernels and lines of another source; None where these do not correspond one to one."""
    if first.kernels == other.kernels and first.lines == other.lines:
        return profile
    kernels = dict(zip(first.kernels, other.kernels, strict=True)) if len(first.kernels) == len(other.kernels) else {}
    lines = _pairs(first.lines, other.lines)
    named = all(kernel.kernel in kernels for kernel in profile.kernels)
    if lines is None or not named or (profile.notes and first.kernels != other.kernels):
        return None
    try:
        return profile.model_copy(
            update={
                "kernels": tuple(
                    kernel.model_copy(
                        update={
                            "kernel": kernels[kernel.kernel],
                            "hot_spots": tuple(
                                spot.model_copy(update={"source_line": lines[spot.source_line]})
                                for spot in kernel.hot_spots
                            ),
                            "sass": _at_lines(kernel.sass, lines),
                        }
                    )
                    for kernel in profile.kernels
                )
            }
        )
    except KeyError:
        return None


def _at_lines(sass: SassProfile | None, lines: dict[int, int]) -> SassProfile | None:
    if sass is None:
        return None
    moved = tuple(line.model_copy(update={"source_line": lines[line.source_line]}) for line in sass.lines)
    return sass.model_copy(update={"lines": moved})


def _pairs(first: Lines, other: Lines) -> dict[int, int] | None:
    """Lines of the other source by those of the first; None where some correspond to several."""
    pairs = set(zip(_statements(first), _statements(other), strict=True)) | {(0, 0)}
    lines = dict(pairs)
    return lines if len(pairs) == len(lines) == len(set(lines.values())) else None


def _statements(lines: Lines) -> Iterator[int]:
    return chain.from_iterable(repeat(line, count) for line, count in lines)
