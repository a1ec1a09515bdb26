"""Every case of the corpus gets its verdict; and each cheat passes where its defence is switched off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.integrity import ClassRule
from kernelforge.modelnew.evaluator import ModelNewEvaluator, ModelNewEvaluators
from kernelforge.records import Evaluation, Verdict
from kernelforge.rewards import DEFAULT_POLICY, reward
from kernelforge.sandbox import Zygote
from tests.adversarial.corpus import CANARY, Case, read_cases, task_of, visible_text
from tests.adversarial.defences import IN_CHILDREN, IN_PARENT, SEED, STRUCTURAL, Bench

ALL = read_cases()
EMULATED = [case for case in ALL if "emulated" in case.devices]
CLASSES = [case for case in ALL if "cpu" in case.devices]
CHEATS = [case for case in ALL if case.kind == "cheat"]
BITING = [case for case in CHEATS if not case.no_bite]
LIST = [pytest.param(case, id=case.name) for case in EMULATED + CLASSES]

LEAST_CASES, LEAST_HONEST, LEAST_SOFTWARE, LEAST_BITING = 150, 30, 25, 0.7


@pytest.fixture(scope="module")
def canary_file() -> Iterator[Path]:
    """The canary in a file that everybody may read, and in the environment."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        Path(folder).chmod(0o755)
        file = Path(folder) / "canary.txt"
        file.write_text(f"#error {CANARY}\n")
        patch.setenv("OPENAI_API_KEY", CANARY)
        yield file


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus-builds")


@pytest.fixture(scope="module")
def bench(canary_file: Path, builds: Path, kept_zygotes: Callable[..., Zygote]) -> Iterator[Bench]:
    made = Bench(builds, kept_zygotes)
    yield made
    made.close()


class ClassEvaluators:
    """Warm evaluators of classes, by task."""

    def __init__(self, bench: ModelNewEvaluators) -> None:
        self._bench = bench
        self._evaluators: dict[str, ModelNewEvaluator] = {}

    def evaluate(self, case: Case, canary_file: Path) -> Evaluation:
        if case.task not in self._evaluators:
            self._evaluators[case.task] = self._bench.evaluator(task_of(case.task))
        return self._evaluators[case.task].evaluate(case.candidate(canary_file), seed=SEED).evaluation

    def close(self) -> None:
        for evaluator in self._evaluators.values():
            evaluator.oracle.close()


@pytest.fixture(scope="module")
def class_evaluators(
    canary_file: Path, warmly: Callable[[], AbstractContextManager[None]]
) -> Iterator[ClassEvaluators]:
    with warmly():
        made = ClassEvaluators(ModelNewEvaluators("cpu"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def rule(canary_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClassRule]:
    """KernelBench's rule for classes."""
    with ClassRule(tmp_path_factory.mktemp("rule")) as made:
        yield made


@pytest.mark.one_in(24)
@pytest.mark.parametrize("case", LIST)
def test_a_case_gets_its_verdict(
    case: Case, bench: Bench, class_evaluators: ClassEvaluators, canary_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    profile = None
    if case.language == "plan":
        evaluation, profile = bench.evaluate(case, canary_file=canary_file)
    else:
        evaluation = class_evaluators.evaluate(case, canary_file)
    text_shown = visible_text(evaluation)
    assert evaluation.verdict.value in case.verdicts, evaluation.reason
    if case.kind == "honest":
        assert evaluation.verdict is Verdict.OK, evaluation.reason
        assert not evaluation.uncompared, text_shown
        assert case.language == "modelnew" or reward(DEFAULT_POLICY, evaluation).value
    else:
        assert not reward(DEFAULT_POLICY, evaluation).value
        assert profile is None or evaluation.verdict is Verdict.OK
    assert not [word for word in case.words if word not in evaluation.reason], evaluation.reason
    assert not [word for word in case.tells if word in text_shown], text_shown
    for text in (evaluation.model_dump_json(), caplog.text, "" if profile is None else profile.model_dump_json()):
        assert CANARY not in text


@pytest.mark.one_in(20)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in BITING])
def test_a_cheat_passes_where_its_defence_is_off(case: Case, bench: Bench, rule: ClassRule, canary_file: Path) -> None:
    """Else the case would show nothing: something other than what it names refuses it."""
    if STRUCTURAL & set(case.defence):
        answer = rule.judge(case, "model_new.py" if case.language == "modelnew" else "twin.py")
        passes, reason = answer.paid, answer.why
    else:
        evaluation = bench.evaluate(case, case.defence, canary_file=canary_file, profile=False).evaluation
        passes, reason = evaluation.verdict is Verdict.OK, visible_text(evaluation)
    if case.tells:
        assert all(word in reason for word in case.tells), reason
    else:
        assert passes, reason


CRASHES = [case for case in EMULATED if {"CRASH", "TIMEOUT"} & set(case.verdicts)]


@pytest.mark.slow
def test_the_next_candidate_is_unhurt(bench: Bench) -> None:
    """After one of each kind that ends a run early."""
    honest = next(case for case in EMULATED if case.name == "honest-axpy")
    for name in ("null-pointer", "endless", "trap-at-the-full-size"):
        bench.evaluate(next(case for case in CRASHES if case.name == name))
        evaluation = bench.evaluate(honest, profile=False).evaluation
        assert evaluation.verdict is Verdict.OK, evaluation.reason


def test_no_build_holds_the_canary(bench: Bench, builds: Path, canary_file: Path) -> None:
    """Also after those cases that read files and the environment."""
    for name in ("includes-a-secret-file", "includes-the-environment"):
        bench.evaluate(next(case for case in EMULATED if case.name == name), canary_file=canary_file)
    jailed = [path for path in builds.rglob("*") if path.is_file() and "unjailed" not in path.parts]
    assert jailed
    assert not [path for path in jailed if CANARY.encode() in path.read_bytes()]


def test_the_corpus_is_as_large_as_it_says() -> None:
    software = [case for case in ALL if "software" in case.devices]
    assert len(EMULATED + CLASSES) >= LEAST_CASES
    assert len([case for case in EMULATED if case.kind == "honest"]) >= LEAST_HONEST
    assert len(software) >= LEAST_SOFTWARE
    assert len(BITING) / len(CHEATS) >= LEAST_BITING


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ALL])
def test_a_case_is_whole(case: Case) -> None:
    """It says what it attacks and what stops it, or why nothing is switched off for it."""
    assert case.attacks.endswith(".")
    assert case.source
    assert set(case.devices) <= {"emulated", "cpu", "software", "gpu"}
    assert {Verdict(verdict) for verdict in case.verdicts}
    assert set(case.defence) <= IN_CHILDREN | set(IN_PARENT) | STRUCTURAL
    if case.kind == "honest":
        assert case.verdicts == ("OK",)
        assert not case.defence
    else:
        assert bool(case.defence) != bool(case.no_bite)
    if "language" in case.defence:
        assert (case.folder / "twin.py").exists()
    task_of(case.task)
    case.candidate()
