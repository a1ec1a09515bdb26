"""The full size on a device that measures: settings, correctness, timing, then counters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kernelforge.devices import screen_note
from kernelforge.devices.base import Device, RunFailed
from kernelforge.errors import SandboxError, TaskError, TimingError, UnsupportedError, UsageError
from kernelforge.evaluation.oracle.client import DrawHandle
from kernelforge.evaluation.stages.candidate_runs import POISONS, CandidateRuns
from kernelforge.evaluation.stages.compile_stage import StageFailed
from kernelforge.evaluation.stages.full_size import FullSizeResult, FullSizeStage
from kernelforge.evaluation.timing.candidate_timer import CandidateTimer, OutputChangedWhileTimed, confirm, performance
from kernelforge.profiling.counts import has_ptx_counts, with_counts
from kernelforge.records import MeasureSettings, Profile, Timing, Verdict


def check_measure(settings: MeasureSettings, device: str) -> MeasureSettings:
    """The settings, if the device has a use for them.

    Raises:
        UsageError: an emulated device measures nothing, and something else than the defaults is asked of it.
    """
    changed = settings.model_dump(exclude_defaults=True)
    # Full counters are what an emulated device always gives; its approximations are its own.
    for name in ("counters", "approx"):
        changed.pop(name, None)
    if changed and device.startswith("emulated"):
        requested = ", ".join(f"{name}={value}" for name, value in changed.items())
        raise UsageError(
            f"{device} models time and measures nothing, so {requested} has no use there; name a GPU (cuda:0)"
        )
    return settings


COUNTING_S = 20.0
"""Longest that the emulated device may count over the full size. It runs a sample of blocks, which takes about a
second; a plan's ``setup`` may take longer."""


class MeasuredFullSize(FullSizeStage):
    """Compares before it times: no wrong candidate is timed.

    Args:
        runs: the candidate's runs.
        settings: how the device is used.
    """

    def __init__(self, runs: CandidateRuns, settings: MeasureSettings) -> None:
        super().__init__(runs)
        self.settings = settings

    def check(self, profile: bool) -> FullSizeResult:
        with self.runs.drawn(self.size, self.family) as draw:
            comparison = self.runs.run_and_compare(self.size, draw, POISONS)
        others = self.other_families()
        for family in others:
            self.check_slices(self.runs.on_device(self.artifact).session, family)
        self.passed(comparison, self._note(), (self.family, *others))
        unsanitized = self._sanitize() if self.settings.sanitizer else ()
        try:
            with self.work.clock("timing"):
                timing, doubt = self._timed()
            timing = timing.model_copy(update={"notes": (*timing.notes, *unsanitized)})
            result: Profile | None = None
            if profile:
                try:
                    # The same inputs once more: the first draw would have taken memory while others were timed.
                    with self.runs.drawn(self.size, self.family, expected=False) as draw:
                        with self.work.clock("profile"):
                            result = self._profiled(draw)
                except (UnsupportedError, SandboxError, TaskError) as error:
                    timing = timing.model_copy(update={"notes": (*timing.notes, f"no profile: {error}")})
        except OutputChangedWhileTimed as wrong:
            message = f"right when checked, wrong when timed: {wrong}"
            self.work.fail(Verdict.WRONG, self.size, self.family, message, wrong.error, stage="timing")
        except RunFailed as faulted:
            self.runs.fault(faulted.fault, self.size, self.family, stage="timing")
        except TimingError as trouble:
            raise StageFailed(Verdict.INFRA, "timing", str(trouble)) from trouble
        return FullSizeResult(result, performance(timing, doubt, result))

    def _profiled(self, draw: DrawHandle) -> Profile:
        """Hardware counters, together with what the emulated device counts over the same PTX.

        Raises:
            RunFailed: a launch faulted on the device, or the emulated one saw a bad access.
            UnsupportedError: nothing on this machine can profile the plan.
        """
        request = self.runs.request(self.plan, draw, POISONS[0])
        measured = self.runs.on_device(self.artifact).session.profile(request, self.facts)[0]
        screen = self.runs.screen
        if screen is None or not measured.kernels or has_ptx_counts(measured):
            return measured
        if self.work.unscreened:
            return _without_counts(measured, screen, self.work.unscreened)
        bounded = replace(request, deadline_s=min(request.deadline_s, COUNTING_S))
        try:
            with screen.open(self.artifact) as session:
                emulated = session.profile(bounded, self.facts)[0]
        except RunFailed as faulted:
            if faulted.fault.kind == "sanitizer":
                raise  # a bad access at the full size, which the GPU did not report
            return _without_counts(measured, screen, faulted.fault.message)
        except (UnsupportedError, SandboxError) as error:
            return _without_counts(measured, screen, str(error))
        sampled = min(kernel.sampled for kernel in emulated.kernels)
        share = "" if sampled == 1 else f", on {sampled:.2%} of the blocks of a kernel or more"
        where = screen.name + self._screen_note() + share
        note = f"Metrics that are not 'measured' are the emulator's, from the same PTX on {where}."
        return with_counts(measured, emulated, note)

    def _screen_note(self) -> str:
        """Whether the emulated device stands for another GPU than the one that was measured."""
        return screen_note(self.device.arch, self.device.identity().get("gpu", ""))

    def _note(self) -> str:
        screen = self.runs.screen
        if screen is None or not self.work.unscreened:
            return ""
        return f"accesses were not checked on {screen.name}: {self.work.unscreened}"

    def _timed(self) -> tuple[Timing, str | None]:
        """A timing, and why it is not believed, if it is not."""
        timer = CandidateTimer(
            device=self.device,
            oracle=self.oracle,
            facts=self.facts,
            settings=self.settings,
            seed=self.work.seed,
            request=lambda drawn: self.runs.request(self.plan, drawn, POISONS[0]),
        )
        timing = timer.time(self.runs.on_device(self.artifact).session)
        return confirm(timer, partial(self.device.open, self.artifact), timing)

    def _sanitize(self) -> tuple[str, ...]:
        """Run the small size under the device's sanitizer; a note where that came to no result."""
        size = self.runs.task.size("small")
        family = self.oracle.families("small")[0]
        with self.runs.drawn(size, family) as draw, self.work.clock("sanitizer"):
            request = self.runs.request(self.work.plans["small"], draw, POISONS[0])
            try:
                faults = self.device.sanitize(self.work.artifacts["small"], request)
            except UnsupportedError as error:
                return (f"not checked by the sanitizer: {error}",)
        if faults:
            self.runs.fault(faults[0], size, family, stage="sanitizer")
        return ()


def _without_counts(profile: Profile, screen: Device, why: str) -> Profile:
    note = f"No counts over the PTX (ptx__*): {screen.name} cannot run this plan ({why})."
    return profile.model_copy(update={"notes": (*profile.notes, note)})
