"""A run of ``refine`` on the emulated device that holds every verdict, every stage, and all that a run can keep."""

from __future__ import annotations

from kernelforge.records import InputGenerator, Lesson, Message, Operator, Reward, RunState, Task, TuneTrial, Verdict
from tests.report.golden.golden_parts import Golden, make_candidate, make_task, make_usage
from tests.support import recorded_run

TASKS = ("softmax", "matmul", "level1/argmax", "layer_norm", "gelu", "cumsum")
"""``gelu`` is unfinished; the run never came to ``cumsum``."""


def modelled() -> Golden:
    """Constructed, with figures as the emulator might have counted them."""
    run = recorded_run.make_run(
        "20261120-090000-mode", tasks=TASKS, coder="openai:model-x", tester="openai:model-x", state=RunState.STOPPED,
        started="2026-11-20T09:00:00+00:00",
    ).model_copy(update={"ended": "2026-11-20T09:10:00+00:00"})  # fmt: skip
    golden = Golden(run, [make_task(name, level=1 + at % 3, tags=_tags(name)) for at, name in enumerate(TASKS[:-1])])
    softmax, matmul, argmax, norm, gelu = golden.tasks
    _branches(golden, softmax)
    ok = Verdict.OK
    golden.add(matmul, Verdict.BUILD, "compile")
    golden.add(matmul, Verdict.WRONG, "small", parent=0)
    golden.add(matmul, Verdict.WRONG, "hidden", parent=1)
    golden.add(matmul, ok, parent=2, accepted=True, dram_bytes=12.5e6, time_us=14.0)
    golden.add(argmax, Verdict.POLICY, "policy")
    golden.add(argmax, Verdict.TIMEOUT, "full", parent=0, reason="the kernel ran for more than 30 s")
    golden.add(argmax, Verdict.LIMIT, "plan", parent=1, reason="the plan allocates more than 8 GiB")
    golden.add(argmax, Verdict.INFRA, "full", parent=1, reason="the emulator does not know 'wgmma.mma_async'")
    golden.add(norm, Verdict.WRONG, "parse")
    golden.add(norm, Verdict.CRASH, "small", parent=0, reason="an access outside every tensor (block 0, thread 9)")
    golden.add(norm, Verdict.CRASH, "sanitizer", parent=1)
    golden.add(norm, Verdict.WRONG, "full", parent=1)
    golden.add(norm, Verdict.WRONG, "timing", parent=1)
    golden.add(gelu, ok, accepted=True, dram_bytes=8_388_608.0, time_us=5.2, dollars=None)
    golden.finished = {
        "softmax": "no new best in 4 rounds", "matmul": "6 rounds are made",
        "level1/argmax": "6 rounds are made", "layer_norm": "6 rounds are made",
    }  # fmt: skip
    golden.generators = {
        "softmax": (
            InputGenerator(name="all_equal", plan="x = full_like(x, 3)\n", provider="openai:model-x", admitted=True,
                           reason="", sizes=("small", "hidden_odd")),
            InputGenerator(name="huge", plan="x = x * 1e38\n", provider="openai:model-x", admitted=False,
                           reason="the reference's own output is not finite"),
        )
    }  # fmt: skip
    golden.proposed = {
        "softmax": (
            Message(agent="tester", role="prompt", provider="openai:model-x", content="Propose inputs."),
            Message(agent="tester", role="reply", provider="openai:model-x", content="all_equal, huge",
                    usage=make_usage(dollars=0.004, tokens=900, seconds=3.0)),
        )
    }  # fmt: skip
    golden.lessons = {
        "softmax": (
            Lesson(family="softmax", text="Keep a row in registers between the two passes.", task="softmax",
                   provider="builtin", gain=3.1, written="2026-11-20T09:03:00+00:00"),
        )
    }  # fmt: skip
    golden.last_words = {
        "softmax": (Message(agent="reflexion", role="reply", provider="builtin", content="Keep a row in registers."),)
    }
    return golden


def _branches(golden: Golden, task: Task) -> None:
    """A seed with two branches, the better of which was tuned."""
    ok, name = Verdict.OK, "softmax"
    golden.add(task, ok, accepted=True, dram_bytes=26e6, time_us=29.0)
    golden.add(task, ok, parent=0, accepted=True, move="vectorise", dram_bytes=17e6, time_us=19.0)
    golden.add(task, Verdict.CRASH, "small", parent=1, move="shared_tiles")
    golden.add(task, ok, parent=0, move="block_shape", dram_bytes=19e6, time_us=21.5)
    trials = (
        TuneTrial(choices={"BLOCK": 256}, rung=1, time_us=9.6),
        TuneTrial(choices={"BLOCK": 128}, rung=0, time_us=12.0),
        TuneTrial(choices={"BLOCK": 512}, rung=1, time_us=9.1),
        TuneTrial(choices={"BLOCK": 1024}, rung=0, problem="a block has at most 1,024 threads in all"),
    )
    golden.add(
        task, ok, parent=1, accepted=True, move="register_reuse", dram_bytes=8.6e6, time_us=9.6, trials=trials,
        reward=_reward_with_infinity(),
    )  # fmt: skip
    tuned = make_candidate(name, 4, choices={"BLOCK": 512})
    golden.add(
        task, ok, parent=4, accepted=True, operator=Operator.TUNE, candidate=tuned, dram_bytes=8.5e6, time_us=9.1
    )
    golden.add(task, Verdict.WRONG, "hidden", parent=5, move="drop_barrier")
    golden.add(task, ok, parent=3, move="vectorise", dram_bytes=11e6, time_us=12.4)


def _reward_with_infinity() -> Reward:
    return Reward(
        policy="kernelforge/1", value=0.4, components={"correct": 1.0, "odd": float("inf"), "nan": float("nan")}
    )


def _tags(name: str) -> tuple[str, ...]:
    return ("matmul", "tensor-core") if name == "matmul" else ("elementwise",) if name == "gelu" else ("reduction",)
