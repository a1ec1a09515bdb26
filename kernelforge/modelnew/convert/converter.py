"""The whole conversion: Python, CUDA source, host functions, plan, and a check that the plan parses."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from kernelforge.candidate import format_reply, parse_plan
from kernelforge.errors import CandidateError
from kernelforge.modelnew.convert.cpp_host import convert_host
from kernelforge.modelnew.convert.cpp_tokens import Problem, Unconvertible
from kernelforge.modelnew.convert.cpp_units import Unit, read_unit
from kernelforge.modelnew.convert.python_forward import write_forward
from kernelforge.modelnew.convert.python_items import Shared
from kernelforge.modelnew.convert.python_side import PythonFile, read_python
from kernelforge.modelnew.convert.task_names import argument_paths, parameter_names, with_names_of_reference
from kernelforge.modelnew.convert.torch_operators import helper_functions, library_names
from kernelforge.records import Candidate, SizeFacts


@dataclass(frozen=True)
class Conversion:
    """Result of converting a candidate's file."""

    candidate: Candidate | None
    """Device code and plan; None where something could not be converted."""
    problems: tuple[Problem, ...]
    """Everything that could not be, in the order of the file; empty where there is a candidate."""
    notes: tuple[str, ...]
    """What was left out because it computes nothing, or became an assertion."""
    operators: tuple[str, ...] = ()
    """Operators of torch that the plan calls: the task's policy has to allow them."""
    arguments: Mapping[str, int] = field(default_factory=dict)
    """Attributes of ``ModelNew`` that are arguments of its constructor, by dotted name: positions of these."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters of ``ModelNew`` in order; empty where they cannot be followed."""

    def fitted(self, source: str, facts: SizeFacts) -> Candidate:
        """The candidate with the names that a reference has for weights and attributes.

        Args:
            source: Text of the task's file.
            facts: Facts of one of its sizes.

        Raises:
            ValueError: there is no candidate.
        """
        if self.candidate is None:
            raise ValueError("nothing was converted")
        weights = [weight.name for weight in facts.weights]
        parameters = [weight.name for weight in facts.weights if weight.kind == "parameter"]
        plan = with_names_of_reference(
            self.candidate.plan, self.arguments, source, weights, list(facts.attrs), self.parameters, parameters
        )
        return self.candidate.model_copy(update={"plan": plan})

    def as_reply(self) -> str:
        """The candidate as a Coder would have sent it.

        Raises:
            ValueError: there is none.
        """
        if self.candidate is None:
            raise ValueError("nothing was converted")
        return format_reply(self.candidate)


def convert(text: str) -> Conversion:
    """Make device code and a plan of a ``ModelNew`` built by ``load_inline`` or cupy's ``RawKernel``.

    Nothing is run and nothing guessed: a construct that has no counterpart is a problem, with its line, and then there
    is no candidate. That the result computes the same is for the evaluation to find out.
    """
    problems: list[Problem] = []
    notes: list[str] = []
    try:
        tree = ast.parse(text)
        file = read_python(tree)
        if not file.sources:
            raise Unconvertible(1, "load_inline", "the file gives no CUDA source to load_inline or RawKernel")
        unit = Unit()
        for source in file.sources:
            read_unit(source.value, source.lineno, unit)  # type: ignore[arg-type]
        problems += unit.problems
        plan, operators = _plan(file, unit, problems, notes)
    except Unconvertible as error:
        problems.append(error.problem)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        problems.append(Problem(line, "", f"this is not Python text: {error}"))
    except (RecursionError, MemoryError):
        problems.append(Problem(1, "", "this is not Python text: it is nested too deeply"))
    except LookupError:
        # Source that a compiler would refuse as well: an operand, an argument or a name is missing.
        problems.append(Problem(1, "", "the CUDA source or the host code is cut short or malformed"))
    ordered = tuple(sorted(set(problems), key=lambda problem: (problem.line, problem.construct)))
    if ordered:
        return Conversion(None, ordered, tuple(notes))
    try:
        parse_plan(plan)
    except CandidateError as error:
        return Conversion(
            None, (Problem(1, "launch plan", f"the plan that came out is refused: {error}"),), tuple(notes)
        )
    try:
        candidate = Candidate(source=unit.device_code(), plan=plan)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        return Conversion(None, (Problem(1, "", f"what came out is no candidate: {message}"),), tuple(notes))
    assert file.model is not None
    arguments, parameters = argument_paths(file.model), tuple(parameter_names(file.model))
    return Conversion(candidate, (), tuple(dict.fromkeys(notes)), operators, arguments, parameters)


def _plan(file: PythonFile, unit: Unit, problems: list[Problem], notes: list[str]) -> tuple[str, tuple[str, ...]]:
    shared = Shared(file, unit, problems)
    forward = write_forward(shared)
    helpers: dict[str, str] = {}
    waiting = list(shared.hosts_used)
    while waiting:
        name = waiting.pop(0)
        if name in helpers:
            continue
        helpers[name], used = convert_host(unit.hosts[name], unit, problems, notes, shared.operators)
        waiting += used
    hosts = (unit.hosts[name] for name in helpers)
    if not problems and not shared.launches and not any(token.text == "<<<" for host in hosts for token in host.body):
        assert file.model is not None
        line = file.model.definition.lineno
        problems.append(Problem(line, "class ModelNew", "no kernel of the candidate: torch computes all of it"))
    allowed = library_names(shared.operators)
    if allowed:
        notes.append(f"torch computes a part: the task has to allow library({', '.join(allowed)})")
    functions = [*helper_functions(shared.operators), *helpers.values(), *shared.functions.values(), forward]
    return "\n\n".join(functions) + "\n", tuple(allowed)
