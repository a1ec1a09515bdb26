"""Count the attacks of the corpus that an evaluator pays for, and the honest candidates that it refuses.

    python benchmarks/integrity.py [--evaluator NAME ...] [--cases PATTERN ...] [--json FILE]

An evaluator is ``kernelforge``, ``kernelbench-rule``, or a command of your own, run once for each case:

    python benchmarks/integrity.py --evaluator "python judge.py {case_folder} {reference}"

``{case_folder}`` holds the candidate: ``kernel.cu`` with ``plan.py``, ``reply.md``, or ``model_new.py``, a KernelBench
class; ``{reference}`` is the task's file, in KernelBench's format. The command prints a line of JSON last,
``{"correct": true, "reward": 0.3}``. One that prints none does not pay; ``null`` for ``correct`` leaves the case out of
its column.

``kernelbench-rule`` is KernelBench's published rule, written here from its description (arXiv 2502.10517), not its
code: five draws of the task's own inputs at one size, outputs within 1e-2 of torch's, in one process with the
reference. A class is judged so with torch on the CPU, unconfined: run it where nothing can be harmed. A kernel with a
plan is run on the emulated device with KernelForge's own checks off, at the full size, memory zeroed; that rule has no
plans, and on a GPU no zeroed memory. Tasks too large for that are left out of its column.

Exits with 1 when KernelForge pays for a cheat or refuses an honest candidate.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kernelforge.modelnew.evaluator import ModelNewEvaluators  # noqa: E402
from kernelforge.records import Evaluation  # noqa: E402
from kernelforge.rewards import DEFAULT_POLICY, reward  # noqa: E402
from kernelforge.tasks import size_source  # noqa: E402
from tests.adversarial.corpus import CANARY, TASKS, Case, read_cases, task_of  # noqa: E402
from tests.adversarial.defences import KERNELBENCH_RULE, SEED, Bench  # noqa: E402

HERE = ("emulated", "cpu")
"""Cases on other devices need a GPU, or a driver that stands in for one."""
TOO_LARGE = ("large_", "dear_", "spun_")
"""Tasks that cannot be run whole on the emulated device: their names begin so."""
TRIALS = 5
CLASS_S, COMMAND_S = 120.0, 600.0


@dataclass(frozen=True)
class Answer:
    """An evaluator's answer on a case; ``correct`` is None where it did not judge it."""

    correct: bool | None
    reward: float | None = None
    why: str = ""

    @property
    def paid(self) -> bool:
        return bool(self.reward)


Evaluate = Callable[[Case], Answer]


@contextlib.contextmanager
def kernelforge(canary_file: Path) -> Iterator[Evaluate]:
    """KernelForge on its emulated device, and its lane of classes on the CPU."""
    with ExitStack() as stack:
        bench = Bench(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.callback(bench.close)
        classes = stack.enter_context(ModelNewEvaluators("cpu"))

        def evaluate(case: Case) -> Answer:
            if case.language == "plan":
                evaluation = bench.evaluate(case, canary_file=canary_file).evaluation
            else:
                evaluation = classes.evaluate(task_of(case.task), case.candidate(canary_file), seed=SEED).evaluation
            return _answer_of(evaluation)

        yield evaluate


def _answer_of(evaluation: Evaluation) -> Answer:
    value = reward(DEFAULT_POLICY, evaluation).value
    return Answer(evaluation.verdict == "OK", value, f"{evaluation.verdict} {evaluation.reason}".strip())


@contextlib.contextmanager
def kernelbench_rule() -> Iterator[Evaluate]:
    """See the module."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(folder)
        stack.callback(bench.close)
        classes = stack.enter_context(ClassRule(folder))

        def evaluate(case: Case) -> Answer:
            file = "model_new.py" if case.language == "modelnew" else "twin.py"
            if (case.folder / file).exists():
                return Answer(None, None, case.no_bite) if case.no_bite else classes.judge(case, file)
            if case.task.startswith(TOO_LARGE):
                return Answer(None, None, "too large to be run whole here")
            answer = Answer(False)
            for trial in range(TRIALS):
                answer = _answer_of(bench.evaluate(case, KERNELBENCH_RULE, profile=False, seed=SEED + trial).evaluation)
                if answer.why.startswith("POLICY launch plan"):
                    return Answer(None, None, "a plan that is refused, and no class that would do the same")
                if not answer.correct:
                    break
            return Answer(answer.correct, float(bool(answer.correct)), answer.why)

        yield evaluate


class ClassRule:
    """KernelBench's rule for its own classes: one process that has torch, which forks for each, in a folder of its own.

    A class runs unconfined there, in one process with the reference, as it does in KernelBench.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ClassRule:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.communicate()

    def judge(self, case: Case, file: str) -> Answer:
        """Whether the class in ``file`` passes."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from benchmarks.integrity import serve_classes; serve_classes()"],
                cwd=self._folder,
                env=_class_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        reference = size_source(task_of(case.task), "full")
        request = {
            "reference": reference,
            "candidate": case.text(file),
            "device": "cpu",
            "builds": str(self._folder),
            "trials": 1,  # its times are not looked at
        }
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = _last_json(json.loads(self._process.stdout.readline() or '""'))
        return Answer(bool(answer.get("correct")), float(bool(answer.get("correct"))), str(answer.get("error", "")))


def _class_environment() -> dict[str, str]:
    """An environment without this process's variables, which a class could print."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": CANARY}


def serve_classes() -> None:
    """The process of :class:`ClassRule`: a request on each line of its input, what the fork wrote on each of its
    output."""
    import torch  # noqa: F401 -- forks have it

    from benchmarks.gpu_parts.kernelbench_process import evaluate

    for line in sys.stdin:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write, 1)
            signal.alarm(int(CLASS_S))
            sys.stdout = os.fdopen(1, "w", closefd=False)
            try:
                print(json.dumps(evaluate(json.loads(line))), flush=True)
            except BaseException as error:
                print(json.dumps({"correct": False, "error": f"{type(error).__name__}: {error}"}), flush=True)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, encoding="utf-8", errors="replace") as answer:
            text = answer.read()
        os.waitpid(child, 0)
        print(json.dumps(text), flush=True)


def _last_json(text: str) -> dict[str, Any]:
    """The last line that is a JSON object, as harnesses read the output of a process."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
    return {}


@contextlib.contextmanager
def command(line: str) -> Iterator[Evaluate]:
    """An external command."""

    def evaluate(case: Case) -> Answer:
        places = {"{case_folder}": str(case.folder), "{reference}": str(TASKS / f"{case.task}.py")}
        words = shlex.split(line)
        for name, path in places.items():
            words = [word.replace(name, path) for word in words]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        except subprocess.TimeoutExpired:
            return Answer(False, 0.0, f"no answer within {COMMAND_S:g} s")
        answer = _last_json(done.stdout)
        correct = answer.get("correct", False)
        return Answer(None if correct is None else bool(correct), float(answer.get("reward") or 0), done.stderr[-200:])

    yield evaluate


def evaluator(name: str, canary_file: Path) -> contextlib.AbstractContextManager[Evaluate]:
    """An evaluator by its name, or by its command."""
    if name == "kernelforge":
        return kernelforge(canary_file)
    if name == "kernelbench-rule":
        return kernelbench_rule()
    return command(name)


@dataclass(frozen=True)
class Row:
    """One evaluator over the corpus."""

    evaluator: str
    answers: dict[str, Answer]
    """By case."""

    def of(self, cases: Sequence[Case], kind: str) -> list[tuple[str, Answer]]:
        """Answers about one kind of case that was judged."""
        named = [(case.name, self.answers[case.name]) for case in cases if case.kind == kind]
        return [(name, answer) for name, answer in named if answer.correct is not None]

    def paid(self, cases: Sequence[Case]) -> list[str]:
        """Cheats with a reward."""
        return [name for name, answer in self.of(cases, "cheat") if answer.paid]

    def refused(self, cases: Sequence[Case]) -> list[str]:
        """Honest candidates that are said to be wrong."""
        return [name for name, answer in self.of(cases, "honest") if not answer.correct]


def compare(names: Sequence[str], cases: Sequence[Case]) -> list[Row]:
    """Every evaluator over the same cases."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        canary_file = Path(folder) / "canary.txt"
        canary_file.write_text(f"#error {CANARY}\n", encoding="utf-8")
        for name in names:
            with evaluator(name, canary_file) as evaluate:
                answers = {}
                for done, case in enumerate(cases, 1):
                    answers[case.name] = evaluate(case)
                    if done % 25 == 0:
                        print(f"{name}: {done} of {len(cases)} cases", file=sys.stderr, flush=True)
                rows.append(Row(name, answers))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--evaluator", action="append", metavar="NAME", help="kernelforge, kernelbench-rule, a command")
    parser.add_argument("--cases", nargs="*", default=["*"], metavar="PATTERN", help="names of cases, with wildcards")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every answer, for another program")
    options = parser.parse_args(arguments)
    cases = [case for case in read_cases() if set(case.devices) & set(HERE)]
    cases = [case for case in cases if any(fnmatch.fnmatch(case.name, pattern) for pattern in options.cases)]
    rows = compare(options.evaluator or ["kernelforge", "kernelbench-rule"], cases)
    table = Table("evaluator", "cheats paid", "honest refused")
    for row in rows:
        cheats, honest = row.of(cases, "cheat"), row.of(cases, "honest")
        paid, refused = row.paid(cases), row.refused(cases)
        table.add_row(row.evaluator, f"{len(paid)} of {len(cheats)}", f"{len(refused)} of {len(honest)}")
    console = Console(width=200)
    console.print(table)
    for row in rows:
        console.print(f"{row.evaluator} pays: {', '.join(row.paid(cases)) or 'none'}")
        console.print(f"{row.evaluator} refuses: {', '.join(row.refused(cases)) or 'none'}")
    if options.json:
        answers = {row.evaluator: {name: asdict(answer) for name, answer in row.answers.items()} for row in rows}
        options.json.write_text(json.dumps(answers, indent=1), encoding="utf-8")
    return int(any(row.evaluator == "kernelforge" and (row.paid(cases) or row.refused(cases)) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
