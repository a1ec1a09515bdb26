"""The corpus: candidates that want a reward without a right kernel, or more than a candidate may have, and honest ones
that look as if they did.

A case is a folder of ``cases/``:

    case.toml      what it attacks and what must come of it
    kernel.cu      with plan.py: a candidate of the lane of plans; or
    reply.md       the same as a Coder replies it; or
    model_new.py   a KernelBench class, for the lane of ``ModelNew``
    twin.py        where the plan language has nothing to switch off: the attack as a KernelBench class

``case.toml`` has these keys:

    attacks    what the attack is; of an honest case, what makes it look like one
    kind       cheat or honest
    task       of the suite in tasks/, or SUITE/TASK of a shipped one
    verdicts   any of these must come; OK for honest ones. A cheat that is OK must have no reward all the same: it is
               a class, or was not compared at its full size
    words      these must be in the reason
    tells      these must be in nothing that the evaluation says
    defence    what stops it: names of ``defences.py``; ``language`` where the plan language has no way to say it;
               ``jail`` for the lane of ModelNew, where no part of the harness is in the candidate's process
    no_bite    why it is not also run with the defence switched off
    source     who was seen doing it, or what makes one think of it
    devices    where it runs: emulated (the default), cpu (ModelNew), software (the GPU lane, with no GPU), gpu

``CANARY`` is planted in the parent's environment and in a file, whose path stands in candidates as CANARY_FILE. It must
be in no record, log or build.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kernelforge.candidate import parse_reply
from kernelforge.records import Candidate, Evaluation, Task
from kernelforge.tasks import load_suite

HERE = Path(__file__).parent
CASES = HERE / "cases"
TASKS = HERE / "tasks"
CANARY = "canary_b7d1f0"
CANARY_FILE = "CANARY_FILE"


@dataclass(frozen=True)
class Case:
    """One case; the module says what its attributes are."""

    name: str
    attacks: str
    kind: Literal["cheat", "honest"]
    task: str
    verdicts: tuple[str, ...]
    source: str
    words: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()
    defence: tuple[str, ...] = ()
    no_bite: str = ""
    devices: tuple[str, ...] = ("emulated",)

    @property
    def folder(self) -> Path:
        return CASES / self.name

    @property
    def language(self) -> Literal["plan", "modelnew"]:
        return "modelnew" if (self.folder / "model_new.py").exists() else "plan"

    def text(self, file: str) -> str:
        """One of its files."""
        return (self.folder / file).read_text(encoding="utf-8")

    def candidate(self, canary_file: Path | None = None) -> Candidate:
        """The candidate to evaluate, with the path of the canary's file where it asks for one."""

        def planted(text: str) -> str:
            return text if canary_file is None else text.replace(CANARY_FILE, str(canary_file))

        if self.language == "modelnew":
            from kernelforge.modelnew.evaluator import modelnew_candidate  # with it comes torch

            return modelnew_candidate(planted(self.text("model_new.py")))
        if (self.folder / "reply.md").exists():
            return parse_reply(planted(self.text("reply.md")))
        return Candidate(source=planted(self.text("kernel.cu")), plan=planted(self.text("plan.py")))


def read_case(folder: Path) -> Case:
    """One case by its folder.

    Raises:
        TypeError: ``case.toml`` lacks a key, or has one that there is not.
    """
    data: dict[str, Any] = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
    return Case(
        name=folder.name, **{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    )


@cache
def read_cases() -> tuple[Case, ...]:
    """Every case, those of one task together."""
    cases = [read_case(path.parent) for path in CASES.glob("*/case.toml")]
    return tuple(sorted(cases, key=lambda case: (case.task, case.name)))


@cache
def task_of(name: str) -> Task:
    """A task of the corpus, or ``SUITE/TASK``."""
    suite, _, task = name.rpartition("/")
    return load_suite(suite or TASKS).task(task)


def visible_text(evaluation: Evaluation) -> str:
    """All text of an evaluation that a Coder, a Judge or a reader of records sees."""
    texts = [evaluation.reason]
    texts += [check.message for check in evaluation.correctness.sizes] if evaluation.correctness else []
    texts += [str(diagnostic) for diagnostic in evaluation.build.diagnostics] if evaluation.build else []
    return "\n".join(texts)
