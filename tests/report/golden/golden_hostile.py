"""Runs whose every text attacks whoever shows it, as far as the records let it.

Records refuse some of it themselves: a task's name holds none but ``a-z0-9_-./`` and no ``..``; a candidate's source
has 256 KiB at most; text is Unicode without lone surrogates. Names of tasks that a run never came to are not looked at,
so a results file from elsewhere may hold any; nor are ids of runs.
"""

from __future__ import annotations

from kernelforge.records import (
    Diagnostic,
    Finding,
    InputGenerator,
    Lesson,
    Message,
    Operator,
    Reward,
    Run,
    RunState,
    Task,
    TuneTrial,
    Verdict,
)
from tests.report.golden.golden_parts import Golden, make_candidate, make_task, make_usage
from tests.support import recorded_run

SCRIPT = "</script><script>window.canary='script'</script>"
IMAGE = "<img src=x onerror=\"window.canary='image'\">"
CLOSE = "</pre></code></td></table></template></title></style></textarea><svg onload=\"window.canary='svg'\">"
QUOTES = "\"'`><b onmouseover=window.canary='quotes'>"
TEMPLATE = "{{7*7}} {% raw %} ${7*7} <%= 7*7 %>"
ANSI = "\x1b[31mred\x1b[0m\x1b]8;;http://evil.example/\x07link\x1b]8;;\x07"
BIDI = "\u202egnp.exe\u2066 \u200f"
CONTROL = "\x00\x01\x08\x7f\x85\u2028\u2029\ufeff\ufffe\U000e0041"
URL = "javascript:window.canary='url' [x](javascript:alert(1)) http://evil.example/x.png"
FORMULA = "=1+1"
COMMENT = "<!-- <script> --!> <![CDATA["
ALL = " ".join((SCRIPT, IMAGE, CLOSE, QUOTES, TEMPLATE, ANSI, BIDI, CONTROL, URL, FORMULA, COMMENT))

LONG_NAME = "x" * 300
"""Longer than any file name may be."""
TASKS = (
    "level1/a.b", "level1-a.b", "level1/a-b", "index", "integrity", "con", "a/...b", "0-", LONG_NAME, "large",
)  # fmt: skip
"""Names that records allow and that could meet each other, or the report's own files, on disk."""
NEVER_COME_TO = (
    "../../escape", "/etc/passwd", "a\\b", "<script>window.canary='task'</script>", '"><b>', BIDI, "", ".", "..",
    "=1+1", "tab\tline\nfeed", "%2e%2e%2f", "y" * 300 + IMAGE, "UPPER", "Index", "ünï",
)  # fmt: skip
LINES = 20_000
MEGABYTE = 1_000_000


def hostile() -> Golden:
    """Attacks in every field of every record that is text."""
    golden = _golden(_run("20261120-130000-host"))
    for task in golden.tasks[:-1]:
        _attack(golden, task)
    _large(golden, golden.tasks[-1])
    golden.finished = {golden.tasks[0].name: ALL}
    golden.generators = {
        golden.tasks[0].name: (
            InputGenerator(name="attack", plan=ALL, provider=ALL, admitted=False, reason=ALL),
        )
    }  # fmt: skip
    golden.lessons = {
        golden.tasks[0].name: (
            Lesson(
                family=SCRIPT,
                text=ALL[:300],
                task=golden.tasks[0].name,
                provider=QUOTES,
                gain=float("inf"),
                written=ALL,
            ),
        )
    }
    golden.last_words = {
        golden.tasks[0].name: (Message(agent="reflexion", role="reply", provider=ALL, content=ALL),),
    }
    return golden


def escaping() -> Golden:
    """A run whose id is a path out of the report's folder, and a script."""
    golden = _golden(_run("../../escape\"><script>window.canary='run'</script>", tasks=TASKS[:1]))
    golden.tasks = golden.tasks[:1]
    _attack(golden, golden.tasks[0])
    return golden


def _run(run_id: str, tasks: tuple[str, ...] = (*TASKS, *NEVER_COME_TO)) -> Run:
    return recorded_run.make_run(
        run_id, tasks=tasks, strategy=SCRIPT, coder=f"{IMAGE},{QUOTES}", judge=CLOSE, tester=TEMPLATE, reward=URL,
        suite=f"suite {SCRIPT}", suite_digest=QUOTES, state=RunState.STOPPED, started="2026-11-20T13:00:00+00:00",
    )  # fmt: skip


def _golden(run: Run) -> Golden:
    return Golden(
        run,
        [
            make_task(name, title=f"Title of {ALL}", tags=(SCRIPT, FORMULA, QUOTES), source=f"# {ALL}\nN = 1\n")
            for name in TASKS
        ],
    )


def _attack(golden: Golden, task: Task) -> None:
    """A seed that is right, tuned, and said to be bad; a child that fails with a hostile message at every place."""
    kernel = make_candidate(
        task.name, 0, source=f"// {ALL}\n__global__ void k() {{}}\n", plan=f"# {ALL}\n", choices={ALL: 1}
    )
    finding = Finding(
        kind="optimise", headline=ALL, why=ALL, action=ALL, move=SCRIPT, metrics=(SCRIPT, "+" + FORMULA), bottleneck=ALL
    )
    messages = (
        Message(agent="judge", role="prompt", provider=ALL, content=ALL),
        Message(agent="coder", role="reply", provider=IMAGE, content=f"```cuda\n{ALL}\n```\n{ALL}",
                usage=make_usage(dollars=None, model=ALL)),
    )  # fmt: skip
    reward = Reward(policy=ALL, value=0.1, components={ALL: float("nan"), FORMULA: float("-inf")})
    seed = golden.add(
        task, Verdict.OK, candidate=kernel, accepted=True, messages=messages, coder=ALL, technique=ALL, note=ALL,
        reward=reward, trials=(TuneTrial(choices={ALL: 1}, rung=0, problem=ALL),), dram_bytes=9e6,
    )  # fmt: skip
    golden.attempts[-1] = seed.model_copy(update={"profile": _hostile_profile(seed)})
    worse = make_candidate(task.name, 1, source=f"// {ALL} {IMAGE}\n__global__ void k() {{}}\n")
    child = golden.add(
        task, Verdict.BUILD, "compile", parent=0, operator=Operator.OPTIMISE, candidate=worse, finding=finding,
        messages=messages, reason=ALL, note=ALL, started="not a time " + SCRIPT,
    )  # fmt: skip
    build = child.evaluation.build.model_copy(
        update={"diagnostics": (Diagnostic(file=ALL, line=1, severity="error", message=ALL),), "toolchain": ALL}
    )
    evaluation = child.evaluation.model_copy(update={"build": build, "seconds": {SCRIPT: 1.0}})
    golden.attempts[-1] = child.model_copy(update={"evaluation": evaluation})


def _hostile_profile(attempt: object) -> object:
    """The attempt's profile under hostile names, with numbers that are none."""
    profile = attempt.profile
    first, second, *rest = profile.metrics
    metrics = (
        first,
        second.model_copy(update={"name": SCRIPT, "unit": IMAGE, "value": float("nan")}),
        rest[0].model_copy(update={"name": FORMULA, "value": float("inf")}),
        *rest[1:],
    )
    (kernel,) = profile.kernels
    spot = kernel.hot_spots[0].model_copy(
        update={"opcode": ALL, "space": SCRIPT, "access": QUOTES, "source_line": 10**9}
    )
    kernel = kernel.model_copy(update={"kernel": ALL, "hot_spots": (spot,)})
    return profile.model_copy(update={"metrics": metrics, "kernels": (kernel,), "notes": (ALL,)})


def _large(golden: Golden, task: Task) -> None:
    """A kernel of 20,000 lines as large as records allow; replies of a megabyte, in lines and in one line."""
    kernel = make_candidate(task.name, 0, source="// a line..\n" * LINES + "__global__ void k() {}\n")
    changed = make_candidate(task.name, 1, source="// b line..\n" * LINES + "__global__ void k() {}\n")
    one_line = make_candidate(task.name, 2, source="/*" + "x<" * 100_000 + "*/__global__ void k() {}")

    def reply(content: str) -> tuple[Message, ...]:
        return (Message(agent="coder", role="reply", provider="openai:model-x", content=content),)

    golden.add(task, Verdict.OK, candidate=kernel, accepted=True, messages=reply("<b>line</b>\n" * (MEGABYTE // 12)))
    golden.add(task, Verdict.OK, parent=0, move="vectorise", candidate=changed, messages=reply("<i>" * (MEGABYTE // 3)))
    golden.add(task, Verdict.BUILD, "compile", parent=0, candidate=one_line, messages=reply("\x1b" * (MEGABYTE // 10)))
