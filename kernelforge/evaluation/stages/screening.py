"""The emulated device in front of a GPU: it runs a candidate before the GPU is taken, and foretells its time.

A candidate that fails there ends without the GPU. What the emulated device lacks, and trouble of this machine, hold no
candidate back: the GPU alone decides then, and the record says so. Inputs and expected outputs are those of an oracle
on the CPU, since that of the GPU would need the GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from kernelforge.compile import Compiler
from kernelforge.devices.base import Device, RunFailed
from kernelforge.errors import ChildDied, DeviceError, SandboxError, TaskError
from kernelforge.evaluation.generators.parser import parse_generator
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.stages.candidate_runs import (
    POISONS,
    CandidateRuns,
    CountedProfile,
    EvaluationState,
    Unscreened,
)
from kernelforge.evaluation.stages.compile_stage import StageFailed
from kernelforge.evaluation.stages.correctness import CorrectnessStage
from kernelforge.evaluation.stages.full_size import WHOLE_DRAW_BYTES
from kernelforge.evaluation.timing import tensor_bytes
from kernelforge.hardware.specs import figures_digest
from kernelforge.prediction.baseline import NORMAL_90
from kernelforge.prediction.correction import CardKey, ModelErrors
from kernelforge.prediction.speedup import idle_share, kernel_spread
from kernelforge.records import (
    Candidate,
    Fingerprint,
    Forecast,
    InputGenerator,
    Performance,
    Profile,
    Screening,
    TaskFacts,
    content_hash,
)
from kernelforge.utils.closing import Closing

COUNTING_INSTRUCTIONS = 2_000_000_000
"""Work of the emulated device, in thread instructions, to count over the full size. It runs a sample of blocks, which
takes about a second; a plan's ``setup`` may take longer."""


class Screen(Closing):
    """Runs candidates for one task on an emulated device before a GPU is taken. Not for use by two threads.

    Args:
        device: the emulated device; its owner closes it.
        open_oracle: opens an oracle of the task on the CPU, at the first candidate.
        compiler: of the candidates.
        behind: the GPU that candidates are built for.
        fingerprint: of evaluations on the emulated device.
        exact: whether its figures are those of that GPU; else they are of the nearest known one.
        errors: of earlier forecasts, which correct later ones; None corrects none.
        run_limit_s: longest that one run of a plan may take; None for what is usual on an emulated device.
        worst_errors: whether approximate instructions err as far as they may.
    """

    def __init__(
        self,
        device: Device,
        open_oracle: Callable[[], Oracle],
        compiler: Compiler,
        behind: Device,
        *,
        fingerprint: Fingerprint,
        exact: bool,
        errors: ModelErrors | None = None,
        run_limit_s: float | None = None,
        worst_errors: bool = False,
    ) -> None:
        self.device = device
        self.fingerprint = fingerprint
        self.gpu = behind.identity().get("gpu", "")
        self.exact = exact
        self._compiler = compiler
        self._behind = behind
        self._errors = errors or ModelErrors()
        self._open_oracle = open_oracle
        self._oracle: Oracle | None = None
        self._run_limit_s = run_limit_s
        self._worst_errors = worst_errors
        self._generators: tuple[InputGenerator, ...] = ()

    def check(
        self, candidate: Candidate, facts: TaskFacts, generators: Sequence[InputGenerator], work: EvaluationState
    ) -> None:
        """Run a candidate that is built at every size but the full one, and profile it there; ``work`` receives the
        outcome. Where a child dies it runs once more: once may be the system's doing.

        Raises:
            StageFailed: the candidate is wrong, or makes a bad access.
            EvaluationCancelled: the evaluation was cancelled.
        """
        for _ in range(2):
            try:
                self._check(candidate, facts, generators, work)
                break
            except ChildDied as error:
                self._trouble(work, error)

    def _check(
        self, candidate: Candidate, facts: TaskFacts, generators: Sequence[InputGenerator], work: EvaluationState
    ) -> None:
        """See :meth:`check`.

        Raises:
            ChildDied: the oracle's child, or another of this machine's.
        """
        # What it finds at a size is not what the GPU finds there: only a failure is kept.
        own = replace(
            work,
            checks=list(work.checks),
            plans=dict(work.plans),
            artifacts=dict(work.artifacts),
            started=time.perf_counter(),
        )
        forecast, message, opened = None, "", False
        try:
            oracle = self._oracle_with(generators, facts)
            opened = True
            runs = CandidateRuns(
                oracle.task,
                oracle,
                facts,
                self.device,
                own,
                run_limit_s=self._run_limit_s,
                worst_errors=self._worst_errors,
                behind=self._behind,
            )
            with runs:
                CorrectnessStage(runs, generators).check_all(candidate, self._compiler)
                forecast, message = self._foretell(runs)
        except StageFailed:
            work.checks, work.build = own.checks, own.build
            work.screening = Screening(device=self.device.name, outcome="failed")
            raise
        except (Unscreened, TaskError) as error:
            work.go_on()
            # What fails at a hidden size may name its extents.
            public = not opened or isinstance(error, Unscreened)
            message = _line(error) if public else f"its oracle on the CPU could not check it ({type(error).__name__})"
            work.screening = Screening(device=self.device.name, outcome="unsupported", message=message)
        except ChildDied:
            raise
        except (SandboxError, DeviceError) as error:
            self._trouble(work, error)
        else:
            work.counted = own.counted
            work.screening = Screening(device=self.device.name, outcome="passed", message=message, forecast=forecast)

    def _trouble(self, work: EvaluationState, error: Exception) -> None:
        """Record trouble of the machine. What a child says may name extents of a hidden size, and is not repeated.

        Raises:
            EvaluationCancelled: the evaluation was cancelled, and that is what ended the child.
        """
        work.go_on()
        message = _line(error) if isinstance(error, DeviceError) else f"a child of it failed ({type(error).__name__})"
        work.screening = Screening(device=self.device.name, outcome="infra", message=message)

    def close(self) -> None:
        """End the oracle."""
        if self._oracle is not None:
            self._oracle.close()
            self._oracle = None

    def held_bytes(self) -> int:
        """Memory that the oracle's process holds."""
        return 0 if self._oracle is None else self._oracle.held_bytes()

    def _oracle_with(self, generators: Sequence[InputGenerator], facts: TaskFacts) -> Oracle:
        """The oracle, with these generators in force."""
        if self._oracle is None:
            self._oracle, self._generators = self._open_oracle(), ()
        if tuple(generators) != self._generators:
            inputs = facts.at("small").inputs
            self._oracle.use_generators({g.name: parse_generator(g.plan, inputs) for g in generators})
            self._generators = tuple(generators)
        return self._oracle

    def _foretell(self, runs: CandidateRuns) -> tuple[Forecast | None, str]:
        """The modelled time at the full size, or why there is none; what is counted on the way goes to the work.

        Raises:
            StageFailed: a launch makes a bad access there.
        """
        work, size = runs.work, runs.task.size("full")
        facts, plan, artifact = runs.facts.at("full"), work.plans["full"], work.artifacts["full"]
        tiled = tensor_bytes(facts) > WHOLE_DRAW_BYTES
        seed = int(content_hash(work.seed, runs.task.name, "sample"), 16) >> 1
        family = runs.oracle.families("full")[0]
        with ExitStack() as stack:
            try:
                draw = stack.enter_context(runs.drawn(size, family, expected=False, tiled=tiled))
                request = runs.request(plan, draw, POISONS[0])
                with work.clock("profile"):
                    profile, performance = runs.on_device(artifact).profile(
                        replace(request, max_thread_instructions=COUNTING_INSTRUCTIONS, sample_seed=seed), facts
                    )
            except RunFailed as faulted:
                if faulted.fault.kind == "sanitizer":
                    runs.fault(faulted.fault, size, family)
                return None, _line(faulted)
            except ChildDied:
                raise
            except (TaskError, SandboxError) as error:
                return None, _line(error)
        sampled = min((kernel.sampled for kernel in profile.kernels), default=1.0)
        share = "" if sampled == 1 else f", on {sampled:.2%} of the blocks of a kernel or more"
        where = self.device.name + ("" if self.exact else f" (nearest known: {self.device.spec.title})")
        note = f"Metrics that are not 'measured' are the emulator's, from the same PTX on {where}{share}."
        work.counted = CountedProfile(profile, note, performance, tuple(work.checks), self.fingerprint)
        if performance is None:
            return None, "no time is modelled of torch operators"
        return self._forecast(performance, profile), ""

    def _forecast(self, performance: Performance, profile: Profile) -> Forecast:
        spec = self.device.spec
        figures = figures_digest(spec)
        error = self._errors.of(CardKey(self.gpu, figures, performance.protocol))
        expected_us = performance.time_us * (1.0 if error is None else error.factor)
        idle = idle_share(spec, profile.kernels)
        width = math.exp(NORMAL_90 * kernel_spread(idle) * (1.0 if error is None else error.scatter))
        return Forecast(
            expected_us=expected_us,
            low_us=expected_us / width,
            high_us=expected_us * width,
            modelled_us=performance.time_us,
            idle=idle,
            measured=0 if error is None else error.measured,
            tasks=0 if error is None else error.tasks,
            median=None if error is None else error.median,
            protocol=performance.protocol,
            gpu=spec.title,
            exact=self.exact,
            figures=figures,
        )


def _line(error: Exception) -> str:
    """The first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
