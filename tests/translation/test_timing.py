"""Times of C functions: the protocol on sides with a made-up clock, and what functions in the jail could pretend."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random

import pytest

from kernelforge.errors import BaselineError, KernelForgeError, SandboxError, TimingError
from kernelforge.evaluation.oracle.client import DrawHandle
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.timing.protocol import EAGER_ROUNDS
from kernelforge.modelnew.client import ModelNewFault
from kernelforge.records import CpuConditions, Evaluation, MeasureSettings, Task, Timing, Verdict
from kernelforge.sandbox import Zygote
from kernelforge.sandbox.shared_memory import MemoryFile
from kernelforge.translation import timing as timing_module
from kernelforge.translation.client import LIMITS, CChild
from kernelforge.translation.evaluator import CEvaluator, c_candidate
from kernelforge.translation.signature import read_signature
from kernelforge.translation.timing import EMPTY, MOST_SETS, CFunction, PlacedDraw, TimedBlock, time_sides
from kernelforge.translation.worker import compiler_command
from tests.support.factories import make_fingerprint

CONDITIONS = CpuConditions(name="a processor", cpus=2, threads=2, command="cc")
HEAD = "void heat_step(int rows, int cols, float r, const float *u, float *next)\n"


class Clock:
    """A clock that sides move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Side:
    """A side whose calls take a made-up time, which a drift multiplies."""

    def __init__(self, name: str, call_s: float, clock: Clock, *, drift: float = 0.0, fails_at: int = -1) -> None:
        self.name = name
        self.seen: list[int] = []
        self._call_s, self._clock, self._drift, self._fails_at = call_s, clock, drift, fails_at

    def block(self, warm: PlacedDraw, draws: Sequence[PlacedDraw]) -> TimedBlock:
        if len(self.seen) == self._fails_at:
            raise BaselineError("it cannot be had any more")
        self.seen.append(draws[0].handle.handle)
        seconds = len(draws) * self._call_s * (1 + self._drift * (self._clock.now - 100))
        self._clock.now += seconds
        return TimedBlock(seconds, [[b""] for _ in draws])


def timed(candidate: Side, baselines: Sequence[Side], clock: Clock, seconds: float = 1e9) -> tuple[Timing, list[int]]:
    """A timing, and the draws whose outputs were compared."""
    numbers, alive, compared = count(), set[int](), list[int]()

    @contextmanager
    def draw(sets: int) -> Iterator[list[PlacedDraw]]:
        handles = [DrawHandle(next(numbers), "full", "task", {}, {}) for _ in range(sets)]
        alive.update(handle.handle for handle in handles)
        yield [PlacedDraw(handle, [{"kind": "output"}], []) for handle in handles]
        alive.difference_update(handle.handle for handle in handles)

    def compare(placed: PlacedDraw, outputs: Sequence[bytes]) -> None:
        assert placed.handle.handle in alive
        compared.append(placed.handle.handle)

    timing = time_sides(
        candidate, baselines, draw, compare, MeasureSettings(seconds=seconds, precision=0.01), CONDITIONS,
        set_bytes=8, clock=clock, rng=Random(3),
    )  # fmt: skip
    assert not alive
    return timing, compared


def test_a_drift_of_the_machine_cancels_in_the_ratio() -> None:
    clock = Clock()
    timing, _ = timed(Side("candidate", 0.5, clock, drift=0.01), [Side("c", 2.0, clock, drift=0.01)], clock)
    ratio = timing.ratio("c")
    assert ratio is not None
    assert ratio.interval[0] <= ratio.speedup <= ratio.interval[1]
    assert ratio.speedup == pytest.approx(4.0, rel=0.02)
    assert (timing.fastest, timing.settled, timing.protocol, timing.sets) == ("c", True, "cpu/1", 1)


def test_every_round_has_draws_of_its_own_and_every_block_of_the_candidate_is_compared() -> None:
    clock = Clock()
    candidate = Side("candidate", 0.001, clock)
    timing, compared = timed(candidate, [Side("c", 0.001, clock)], clock)
    rounds = candidate.seen[1:]  # after the first, by which the calls of a block are counted
    assert timing.sets == MOST_SETS
    assert len(set(rounds)) == len(rounds) // 2
    assert candidate.seen[0] not in rounds
    assert len(compared) == len(rounds) * MOST_SETS


def test_the_speedup_is_over_the_faster_baseline_and_never_over_an_empty_call() -> None:
    clock = Clock()
    sides = [Side("c", 3.0, clock), Side("eager", 2.0, clock), Side(EMPTY, 0.25, clock)]
    timing, _ = timed(Side("candidate", 1.0, clock), sides, clock)
    assert timing.fastest == "eager"
    assert [side.name for side in timing.baselines] == ["c", "eager"]
    assert timing.cpu is not None
    assert timing.cpu.overhead_us == pytest.approx(0.25e6)


class Noisy(Side):
    """A side whose calls take between half of the time and five times as long."""

    def __init__(self, name: str, call_s: float, clock: Clock) -> None:
        super().__init__(name, call_s, clock)
        self._mean_s, self._noise = call_s, Random(5)

    def block(self, warm: PlacedDraw, draws: Sequence[PlacedDraw]) -> TimedBlock:
        self._call_s = self._mean_s * self._noise.uniform(0.5, 5.0)
        return super().block(warm, draws)


@pytest.mark.parametrize(("c_s", "eager_s", "fastest"), [(3.0, 2.0, "eager"), (2.0, 3.0, "c")])
def test_the_fastest_baseline_takes_part_in_every_round(c_s: float, eager_s: float, fastest: str) -> None:
    clock = Clock()
    sides = [Side("c", c_s, clock), Side("eager", eager_s, clock), Side(EMPTY, 0.25, clock)]
    timing, _ = timed(Side("candidate", 1.0, clock), sides, clock)
    assert timing.fastest == fastest
    rounds = len(timing.candidate.samples_us) // 2
    blocks = {ratio.baseline: ratio.blocks // 2 for ratio in timing.ratios}
    assert rounds > EAGER_ROUNDS
    assert blocks == {"c": rounds, "eager": rounds if fastest == "eager" else EAGER_ROUNDS}
    assert len(sides[2].seen) == 2 * EAGER_ROUNDS


def test_settled_is_said_of_the_ratio_to_the_fastest_baseline() -> None:
    clock = Clock()
    steady, noisy = Side("c", 60.0, clock), Noisy("eager", 1.0, clock)
    timing, _ = timed(Side("candidate", 1.0, clock), [steady, noisy], clock, seconds=4000.0)
    assert (timing.fastest, timing.settled) == ("eager", False)
    clock = Clock()
    steady, noisy = Side("c", 0.1, clock), Noisy("eager", 1.0, clock)
    timing, _ = timed(Side("candidate", 1.0, clock), [steady, noisy], clock)
    assert (timing.fastest, timing.settled) == ("c", True)


def test_a_baseline_that_fails_is_left_out_with_its_reason() -> None:
    clock = Clock()
    timing, _ = timed(Side("candidate", 1.0, clock), [Side("c", 3.0, clock, fails_at=3)], clock)
    assert timing.absent == {"c": "it cannot be had any more"}
    assert (timing.ratios, timing.fastest, timing.settled) == ((), None, True)


def test_a_candidate_that_fails_while_it_is_timed_has_no_time() -> None:
    class Failing(Side):
        def block(self, warm: PlacedDraw, draws: Sequence[PlacedDraw]) -> TimedBlock:
            if len(self.seen) == 2:
                raise ModelNewFault("crash", "it ended")
            return super().block(warm, draws)

    clock = Clock()
    with pytest.raises(ModelNewFault, match="it ended"):
        timed(Failing("candidate", 1.0, clock), [Side("c", 3.0, clock)], clock)


def test_the_budget_ends_what_does_not_settle() -> None:
    clock = Clock()
    candidate = Noisy("candidate", 1.0, clock)
    timing, _ = timed(candidate, [Side("c", 1.0, clock)], clock, seconds=60.0)
    assert not timing.settled
    assert clock.now - 100 < 90


Judge = Callable[[str], Evaluation]


@pytest.fixture(scope="module")
def timing_judge(workshop: EvaluatorPool, c_zygote: Zygote, heat_step: Task) -> Iterator[Judge]:
    """Evaluate and time a C text, in two rounds."""
    fingerprint = make_fingerprint(device="cpu", device_kind="cpu", arch="cpu", toolchain="cc")
    sizes = tuple(size for size in heat_step.sizes if size.name in ("full", "small"))
    task = heat_step.model_copy(update={"sizes": sizes})
    settings = MeasureSettings(seconds=1e-3)
    made = CEvaluator(task, workshop.oracle(task), c_zygote, fingerprint, measure=settings, build_s=120.0, run_s=60.0)
    yield lambda text: made.evaluate(c_candidate(text), seed=11).evaluation
    made.close()


def body_of(task: Task) -> str:
    return task.c_source.partition(HEAD)[2].partition("{")[2]


@pytest.mark.slow
def test_a_right_function_is_timed_against_the_suites_and_pytorch(timing_judge: Judge, heat_step: Task) -> None:
    evaluation = timing_judge(heat_step.c_source)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.performance is not None
    timing = evaluation.performance.timing
    assert timing is not None
    assert timing.absent == {}
    assert {ratio.baseline for ratio in timing.ratios} == {"c", "eager"}
    assert timing.cpu is not None
    assert timing.cpu.overhead_us is not None
    assert (timing.cpu.threads, tuple(timing.cpu.command.split())) == (2, compiler_command("c"))
    assert "-O2 -fopenmp" in timing.cpu.command
    assert "timing" in evaluation.seconds


@pytest.mark.slow
def test_a_candidate_whose_own_clocks_stand_still_is_timed_by_the_parents(timing_judge: Judge, heat_step: Task) -> None:
    """Its own ``clock_gettime`` and ``gettimeofday`` stand still, and it sleeps 50 ms."""
    own = "#include <time.h>\n#include <sys/time.h>\n#include <unistd.h>\n" + (
        "int clock_gettime(clockid_t id, struct timespec *t) { t->tv_sec = 0; t->tv_nsec = 0; return 0; }\n"
        "int gettimeofday(struct timeval *restrict t, void *restrict z) { t->tv_sec = 0; t->tv_usec = 0; return 0; }\n"
    )
    evaluation = timing_judge(own + heat_step.c_source.replace(HEAD, f"{HEAD}{{\nusleep(50000);\n") + "}\n")
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.performance is not None
    assert evaluation.performance.time_us > 50_000


def test_a_block_leaves_nothing_to_the_next_one(c_zygote: Zygote, heat_step: Task) -> None:
    """Not in attributes, timestamps, offsets and signals of the files of its inputs, which no seal freezes."""
    leaving = (
        "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <string.h>\n"
        "#include <time.h>\n#include <unistd.h>\n#include <sys/stat.h>\n#include <sys/xattr.h>\n"
        f"{HEAD}{{\n"
        "static long own; struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);\n"
        "if (!own) own = 1 + t.tv_nsec % 999;\n"
        "static float seen[5]; seen[0] = 0;  // what the warm-up call saw stays\n"
        "for (int fd = 3; fd < 256; fd++) {\n"
        "struct stat of; long found = 0;\n"
        "if (fstat(fd, &of) || !S_ISREG(of.st_mode) || of.st_size != 4 << 20) continue;\n"
        "seen[0]++;\n"
        'if (fgetxattr(fd, "user.left", &found, sizeof found) > 0 && found != own) seen[1] = 1;\n'
        "if (of.st_mtim.tv_sec < 1000 && of.st_mtim.tv_sec != own) seen[2] = 1;\n"
        "long at = lseek(fd, 0, SEEK_CUR); if (at > 0 && at < 1000 && at != own) seen[3] = 1;\n"
        "int sign = fcntl(fd, F_GETSIG); if (sign > 0 && sign != 1 + own % 61) seen[4] = 1;\n"
        "fcntl(fd, F_SETSIG, (int)(1 + own % 61));\n"
        'fsetxattr(fd, "user.left", &own, sizeof own, 0);\n'
        "struct timespec times[2] = {{own, 0}, {own, 0}}; futimens(fd, times);\n"
        "lseek(fd, own, SEEK_SET);\n"
        "}\nmemcpy(next, seen, sizeof seen);\n}\n"
    )
    signature = read_signature(heat_step)
    with CChild(c_zygote, "cpu", LIMITS, build_s=120.0) as child:
        child.build(leaving, signature)
        library = child.library()
    side = CFunction("candidate", library, signature.name, c_zygote, LIMITS, run_s=60.0)
    content = MemoryFile.sealed(bytes(4 << 20))
    arguments = [
        {"kind": "number", "type": "int", "value": 1024}, {"kind": "number", "type": "int", "value": 1024},
        {"kind": "number", "type": "float", "value": 0.5}, {"kind": "input", "bytes": 4 << 20},
        {"kind": "output", "bytes": 4 << 20},
    ]  # fmt: skip
    draw = PlacedDraw(DrawHandle(0, "full", "task", {}, {}), arguments, [content])
    open_files = set[int]()
    for _ in range(3):
        ((output,),) = side.block(draw, [draw]).outputs
        files, *traces = struct.unpack("5f", output[:20])
        assert files >= 2  # the input and the output
        assert traces == [0, 0, 0, 0]
        open_files.add(len(os.listdir("/proc/self/fd")))
    assert len(open_files) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    [
        "static int calls; if (++calls == 2) return;",
        "static int calls; static float kept[96 * 128];\n"
        "if (++calls == 2) { for (int i = 0; i < rows * cols; i++) next[i] = kept[i]; return; }",
    ],
    ids=["skips the timed call", "repeats what it wrote before"],
)
def test_a_timed_call_that_does_no_work_is_wrong(timing_judge: Judge, heat_step: Task, before: str) -> None:
    """The second call of a process is the first timed one. Judged calls are many in one process, so the candidate has
    to know which is which: a process that is timed makes its first call at the full size."""
    timed_only = f"static int first; if (!first) first = rows == 96 ? 2 : 1; if (first == 2) {{ {before} }}\n"
    evaluation = timing_judge(heat_step.c_source.replace(HEAD, f"{HEAD}{{\n{timed_only}") + "}\n")
    assert (evaluation.verdict, evaluation.stage) == (Verdict.WRONG, "timing"), evaluation.reason


def test_a_function_that_seals_its_files_is_refused(timing_judge: Judge, heat_step: Task) -> None:
    """After F_SEAL_SEAL a file takes no other seal, so that its outputs could change while they are read."""
    sealing = "#define _GNU_SOURCE\n#include <fcntl.h>\n" + heat_step.c_source.replace(
        HEAD, f"{HEAD}{{\nfor (int fd = 3; fd < 256; fd++) fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL);\n"
    )
    evaluation = timing_judge(sealing + "}\n")
    assert (evaluation.verdict, evaluation.stage) == (Verdict.POLICY, "timing"), evaluation.reason
    assert "sealed the memory file" in evaluation.reason


@pytest.mark.parametrize("error", [SandboxError("it is still mapped"), TimingError("0 s is no time")])
def test_what_this_machine_cannot_time_is_no_fault_of_the_candidate(
    timing_judge: Judge, heat_step: Task, error: KernelForgeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(view: memoryview) -> None:
        raise error

    monkeypatch.setattr(timing_module, "freeze", fail)
    evaluation = timing_judge(heat_step.c_source)
    assert (evaluation.verdict, evaluation.stage, evaluation.reason) == (Verdict.INFRA, "timing", str(error))
    assert evaluation.performance is None


@pytest.mark.slow
def test_what_a_thread_would_write_after_the_reply_is_lost(timing_judge: Judge, heat_step: Task) -> None:
    """The reply ends the process."""
    lazy = (
        "#include <pthread.h>\n#include <unistd.h>\n"
        "static void work(int rows, int cols, float r, const float *u, float *next);\n"
        "static struct { int rows, cols; float r; const float *u; float *next; } job;\n"
        "static void *later(void *none) { sleep(30); work(job.rows, job.cols, job.r, job.u, job.next); return none; }\n"
        f"{HEAD}{{\n"
        "static int first, calls; if (!first) first = rows == 96 ? 2 : 1;\n"
        "if (first == 1 || ++calls != 2) { work(rows, cols, r, u, next); return; }\n"
        "job.rows = rows; job.cols = cols; job.r = r; job.u = u; job.next = next;\n"
        "pthread_t thread; pthread_create(&thread, 0, later, 0);\n}\n"
    )
    inner = heat_step.c_source.replace("void heat_step(", "static void work(")
    evaluation = timing_judge(lazy + inner)
    assert (evaluation.verdict, evaluation.stage) == (Verdict.WRONG, "timing"), evaluation.reason
