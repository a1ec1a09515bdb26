"""Switches the product's defences off, one by one, for tests alone: each replaces what a part of the product does.

A defence in the parent is replaced while one evaluation runs. One in a child is replaced in a helper process of its
own, before that forks (``weakened.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kernelforge.compile import Compiler
from kernelforge.compile.policy_gate import GateResult
from kernelforge.devices import make_device
from kernelforge.devices.base import RunRequest, RunResult
from kernelforge.devices.emulated.device import EmulatedSession
from kernelforge.evaluation import EvaluationResult, Evaluator, EvaluatorPool
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.stages.candidate_runs import CandidateRuns
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.evaluation.stages.full_size import ModelledFullSize
from kernelforge.records import Comparison
from kernelforge.sandbox import Zygote
from kernelforge.sandbox.policy import role_policy
from tests.adversarial.corpus import CANARY, Case, task_of

DEVICE = "emulated:h100"
SEED = 11

LARGE_BYTES = 48 << 20
"""Larger references are not run whole here: a sixteenth of the product's limit, as most large tasks of the corpus are
that much smaller. ``large_mean`` is beyond the product's own."""

ORACLE = frozenset({"tolerance"})
"""In the oracle's child: a tolerance from float64 and the task's own sums; off, KernelBench's 1e-2."""
RUNNER = frozenset({"bounds", "module-variables", "prepared-weights", "races"})
"""In the runner's child: accesses only within buffers; no writes to module variables or to what setup prepared; no
races on shared memory."""
COMPILER = frozenset({"compiler-jail"})
"""Around the compiler's child; off, it reads what the user can, with a key in its environment."""
IN_CHILDREN = ORACLE | RUNNER | COMPILER

Patched = AbstractContextManager[object]


def _gate(evaluator: Evaluator) -> Patched:
    """The policy gate over PTX and cubin."""
    return patch("kernelforge.compile.policy_gate.check", lambda *judged, **how: GateResult(None))


@contextmanager
def _values(evaluator: Evaluator) -> Iterator[None]:
    """Outputs are compared, whole or in part."""
    right = Comparison(ok=True, error=0.0, total=1 << 30)
    with (
        patch.object(Oracle, "check", lambda *arguments, **how: right),
        patch.object(Oracle, "check_part", lambda *arguments, **how: right),
    ):
        yield


def _families(evaluator: Evaluator) -> Patched:
    """Inputs of other kinds than the task's own."""
    return patch.object(Oracle, "families", lambda self, size: ("task",))


@contextmanager
def _hidden_sizes(evaluator: Evaluator) -> Iterator[None]:
    """Sizes that the candidate's author does not know."""
    task = evaluator.task
    visible = task.model_copy(update={"sizes": tuple(size for size in task.sizes if not size.is_hidden)})
    with patch.object(evaluator, "task", visible):
        yield


def _other_sizes(evaluator: Evaluator) -> Patched:
    """Anything is run and compared at other sizes than the full one."""
    return patch.object(CorrectnessStage, "check_size", lambda *arguments: None)


def _full_size(evaluator: Evaluator) -> Patched:
    """Anything at all is run and compared at the full size."""
    return patch.object(ModelledFullSize, "check", lambda *arguments: None)


def _runs(change: Callable[[RunRequest], RunRequest]) -> Callable[[Evaluator], Patched]:
    """Every run is asked for with something changed; inputs that are made writable do not come back as outputs."""
    run = EmulatedSession.run

    def changed(self: EmulatedSession, request: RunRequest) -> RunResult:
        result = run(self, change(request))
        kept = len(request.plan.outputs) + len(request.mutable)
        return replace(result, outputs=result.outputs[:kept])

    return lambda evaluator: patch.object(EmulatedSession, "run", changed)


def _writable(request: RunRequest) -> RunRequest:
    return replace(request, mutable=request.mutable | frozenset(request.tensors))


@contextmanager
def _poisons(evaluator: Evaluator) -> Iterator[None]:
    """Memory holds another byte in each of two runs, whose results must agree."""
    alike = patch("kernelforge.evaluation.stages.candidate_runs.same_bytes", lambda first, second: True)
    with alike, _runs(lambda request: replace(request, poison=0))(evaluator):
        yield


def _variation(evaluator: Evaluator) -> Patched:
    """Behaviour that hardware leaves open, and errors of approximations, differ from draw to draw."""
    return patch.object(CandidateRuns, "variation", lambda *arguments: 0)


def _guards(evaluator: Evaluator) -> Patched:
    """A candidate whose asserts refuse every hidden size must be comparable at the full one."""
    return patch.object(ModelledFullSize, "_refuse_unchecked", lambda *arguments: None)


def _plan_outputs(evaluator: Evaluator) -> Patched:
    """Shapes and dtypes of outputs must be the reference's."""
    return patch("kernelforge.evaluation.stages.compile_stage._match_outputs", lambda *judged, **how: None)


@contextmanager
def _silence(evaluator: Evaluator) -> Iterator[None]:
    """Only the verdict is reported of a hidden size."""
    from kernelforge.evaluation.stages import candidate_runs, compile_stage
    from kernelforge.records import SizeCheck

    def failed_check(verdict: Any, size: Any, family: str, message: str, error: float | None = None) -> Any:
        check = SizeCheck(size=size.name, status="failed", families=(family,), message=message, error=error)
        return check, f"at {size.name}, {family} inputs: {message}"

    with (
        patch.object(candidate_runs, "failed_check", failed_check),
        patch.object(compile_stage, "reason_at", lambda verdict, size, message: message),
        patch.object(compile_stage, "_without_text", lambda build: build),
    ):
        yield


IN_PARENT: Mapping[str, Callable[[Evaluator], Patched]] = {
    "admission": lambda evaluator: patch.object(Oracle, "require_admitted", lambda oracle: None),
    "families": _families,
    "full-size": _full_size,
    "gate": _gate,
    "guards": _guards,
    "variation": _variation,
    "hidden-sizes": _hidden_sizes,
    "other-sizes": _other_sizes,
    "output-specs": _plan_outputs,
    "poisons": _poisons,
    "read-only-inputs": _runs(_writable),
    "silence": _silence,
    "values": _values,
}

STRUCTURAL = frozenset({"language", "jail"})
"""Nothing to switch off: a plan cannot say it; in the lane of ModelNew there is no harness in the candidate's process.
The attack as a KernelBench class is judged by KernelBench's rule instead."""

KERNELBENCH_RULE = (
    *ORACLE,
    *RUNNER,
    "admission",
    "families",
    "gate",
    "guards",
    "hidden-sizes",
    "other-sizes",
    "poisons",
)
"""What KernelBench's rule lacks of these: five draws of the task's own inputs at one size, within 1e-2."""


class Bench:
    """Warm evaluators for every task, with all defences or without some.

    Args:
        cache: folder of build caches.
        zygote: makes helper processes that lack nothing.
    """

    def __init__(self, cache: Path, zygote: Callable[..., Zygote] = Zygote) -> None:
        self._cache = cache
        self._zygote = zygote
        self._stack = ExitStack()
        self._workshops: dict[frozenset[str], EvaluatorPool] = {}
        self._evaluators: dict[tuple[frozenset[str], str], Evaluator] = {}

    def evaluator(self, task: str, off: frozenset[str] = frozenset()) -> Evaluator:
        """A warm one. ``off`` names defences in children."""
        if (off, task) not in self._evaluators:
            if off not in self._workshops:
                self._workshops[off] = self._stack.enter_context(self._workshop(off))
            made = self._workshops[off].evaluator(task_of(task))
            self._stack.callback(made.oracle.close)
            self._evaluators[off, task] = made
        return self._evaluators[off, task]

    def evaluate(
        self,
        case: Case,
        off: tuple[str, ...] = (),
        *,
        canary_file: Path | None = None,
        profile: bool = True,
        seed: int = SEED,
    ) -> EvaluationResult:
        """Evaluate a candidate of the lane of plans, without the defences ``off``."""
        children = frozenset(off) & IN_CHILDREN
        # One helper process lacks them all: each takes seconds to start.
        evaluator = self.evaluator(case.task, children | RUNNER if children & RUNNER else children)
        with ExitStack() as stack:
            stack.enter_context(patch("kernelforge.evaluation.stages.full_size.REFERENCE_BYTES", LARGE_BYTES))
            for name in off:
                if name not in IN_CHILDREN:
                    stack.enter_context(IN_PARENT[name](evaluator))
            return evaluator.evaluate(case.candidate(canary_file), seed=seed, profile=profile)

    def close(self) -> None:
        """End everything."""
        self._stack.close()

    def _workshop(self, off: frozenset[str]) -> EvaluatorPool:
        device = make_device(DEVICE)
        device._zygote = _weakened("runner", RUNNER) if off & RUNNER else self._zygote("runner")  # type: ignore[attr-defined]
        made = EvaluatorPool(DEVICE, cache=self._cache, opened=[device])
        oracle = _weakened("oracle", off & ORACLE) if off & ORACLE else self._zygote("oracle")
        made._oracle_zygotes[device.name] = oracle
        if off & COMPILER:
            made.compiler = _unjailed_compiler(self._cache / "unjailed")
        return made


def _weakened(role: str, off: frozenset[str]) -> Zygote:
    policy = role_policy(role)
    environment = {"WEAKENED": ",".join(sorted(off)), "WEAKENED_MODULE": policy.module}
    return Zygote(
        role, policy=replace(policy, module="tests.adversarial.weakened", environment=policy.environment | environment)
    )


def _unjailed_compiler(cache: Path) -> Compiler:
    made = Compiler(cache, tier="none", allow_unconfined=True)
    zygote = made._running_zygote("cuda")
    zygote._environment = {**zygote._environment, "OPENAI_API_KEY": CANARY}
    return made
