"""The full size on a device that measures: settings, correctness, timing, then counters."""

from __future__ import annotations

from functools import partial

from kernelforge.devices import check_device
from kernelforge.devices.base import RunFailed
from kernelforge.devices.remote.address import split_host
from kernelforge.errors import SandboxError, TaskError, TimingError, UnsupportedError, UsageError
from kernelforge.evaluation.oracle.client import DrawHandle
from kernelforge.evaluation.stages.candidate_runs import POISONS, CandidateRuns
from kernelforge.evaluation.stages.compile_stage import StageFailed
from kernelforge.evaluation.stages.full_size import FullSizeResult, FullSizeStage
from kernelforge.evaluation.timing.candidate_timer import CandidateTimer, OutputChangedWhileTimed, confirm, performance
from kernelforge.hardware.specs import EMULATED
from kernelforge.profiling.counts import has_ptx_counts, with_counts
from kernelforge.records import MeasureSettings, Profile, Timing, Verdict


def check_measure(settings: MeasureSettings, device: str) -> MeasureSettings:
    """The settings, if the device has a use for them.

    Raises:
        UsageError: an emulated device measures nothing, and something else than the defaults is asked of it; or the
            device has no use for the sizes.
        DeviceError: there are no such figures.
    """
    _, device = split_host(device)
    changed = settings.model_dump(exclude_defaults=True)
    # Full counters are what an emulated device always gives; its approximations are its own.
    for name in ("counters", "approx", "sizes"):
        changed.pop(name, None)
    if settings.sizes == "train" and not device.startswith("emulated"):
        raise UsageError(f"sizes=train is of an emulated device, and {device} runs the full size; leave it out")
    if changed and device.startswith("emulated"):
        requested = ", ".join(f"{name}={value}" for name, value in changed.items())
        raise UsageError(
            f"{device} models time and measures nothing, so {requested} has no use there; name a GPU (cuda:0)"
        )
    if settings.figures is not None:
        check_device(EMULATED + settings.figures)
    return settings


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
            self.check_slices(self.runs.on_device(self.artifact), family)
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
        """Hardware counters, together with what the emulated device counted over the same PTX.

        Raises:
            RunFailed: a launch faulted.
            UnsupportedError: nothing on this machine can profile the plan.
        """
        request = self.runs.request(self.plan, draw, POISONS[0])
        measured = self.runs.on_device(self.artifact).profile(request, self.facts)[0]
        if not measured.kernels or has_ptx_counts(measured):
            return measured
        counted = self.work.counted
        if counted is None:
            note = f"No counts over the PTX (ptx__*): {self._unscreened() or 'the plan could not be profiled'}."
            return measured.model_copy(update={"notes": (*measured.notes, note)})
        return with_counts(measured, counted.profile, counted.note)

    def _unscreened(self) -> str:
        """The reason that no emulated device ran the candidate; empty where one did."""
        screening = self.work.screening
        if screening is None:
            return "no emulated device ran in front of the GPU"
        return screening.message and f"{screening.device} did not profile this plan ({screening.message})"

    def _note(self) -> str:
        screening = self.work.screening
        if screening is None:
            return "accesses were not checked: no emulated device ran in front of the GPU"
        return "" if screening.ran else f"accesses were not checked on {screening.device}: {screening.message}"

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
        timing = timer.time(self.runs.on_device(self.artifact))
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
