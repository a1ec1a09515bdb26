"""Candidates of the built-in Coder for suite core are right at sizes that it was not traced at."""

from __future__ import annotations

import pytest
import torch

from kernelforge.agents import CoderRequest
from kernelforge.agents.builtin.coder import BuiltinCoder, applicable_designs
from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.candidate import parse_reply
from kernelforge.compile import Artifact, Compiler
from kernelforge.errors import CandidateError
from kernelforge.records import Attempt, Candidate, Finding, Graph, Node, Operator, Verdict
from tests.agents import agent_setup as workbench
from tests.support.shipped_prompts import shipped

TASKS = [task.name for task in shipped("core")]
SIZES = ("small", "hidden_odd", "hidden_quad", "hidden_tiny")
ALL = Design(tuple(MOVES))


def check(name: str, design: Design, size: str, compiler: Compiler) -> None:
    written = workbench.rendered(name, design)
    at = workbench.bench(f"core/{name}", size)
    resolved = workbench.resolve(written.plan, at)
    built = workbench.build(compiler, written.source, resolved)
    assert isinstance(built, Artifact), (built.errors, built.refused, written.source)
    for got, expected in zip(workbench.run(built, resolved, at), at.expected(), strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", TASKS)
def test_seeds_are_right_at_odd_sizes(name: str, compiler: Compiler) -> None:
    check(name, Design(), "hidden_odd", compiler)


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", TASKS)
def test_every_move_together_is_right_at_multiples_of_four(name: str, compiler: Compiler) -> None:
    check(name, ALL, "hidden_quad", compiler)


def code(name: str, design: Design) -> tuple[str, str]:
    """Source and plan of a design, without the comment that names it."""
    written = workbench.rendered(name, design)
    return written.source.partition("\n")[2], written.plan


@pytest.mark.slow
@pytest.mark.one_in(16)  # two minutes: 16 tasks, every move alone and all together, at four sizes
@pytest.mark.parametrize("name", TASKS)
def test_every_move_is_right_at_every_size(name: str, compiler: Compiler) -> None:
    brief = workbench.brief(name)
    alone = [Design((move,)) for move in applicable_designs(brief, Design())]
    pairs = [Design(("tile", "register-tile")), Design(("warp-reduce", "stage")), Design(("warp-reduce", "vectorise"))]
    # Designs that come to the same code are run once, and not at the sizes of the two tests above.
    distinct = {code(name, design): design for design in [ALL, *pairs, *alone, Design()]}
    above = {(code(name, Design()), "hidden_odd"), (code(name, ALL), "hidden_quad")}
    for written, design in distinct.items():
        for size in SIZES:
            if (written, size) not in above:
                check(name, design, size, compiler)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_move_that_changes_its_seed(name: str) -> None:
    assert applicable_designs(workbench.brief(name), Design())


def test_a_reply_reads_as_a_models_would_and_says_its_design() -> None:
    brief = workbench.brief("softmax")
    coder = BuiltinCoder()
    seed = coder.propose(CoderRequest(brief, Operator.SEED, None, None, ()))
    candidate = parse_reply(seed.text)
    assert Design.of(candidate.source) == Design()
    assert [message.role for message in seed.messages] == ["prompt", "reply"]
    assert "class Model" in seed.messages[0].content
    parent = workbench.attempt(brief, candidate)
    finding = Finding(kind="optimise", headline="h", why="w", action="a", move="warp-reduce")
    better = parse_reply(coder.propose(CoderRequest(brief, Operator.OPTIMISE, parent, finding, (parent,))).text)
    assert Design.of(better.source) == Design(("warp-reduce",))
    child = workbench.attempt(brief, better)
    mended = parse_reply(coder.propose(CoderRequest(brief, Operator.REPAIR, child, None, (parent, child))).text)
    assert mended.hash == candidate.hash


def test_another_judges_words_choose_the_move() -> None:
    brief = workbench.brief("rmsnorm")
    parent = workbench.attempt(brief, parse_reply(_reply(brief, Design())))
    finding = Finding(kind="optimise", headline="launch bound", why="w", action="Use float4 vector loads")
    reply = BuiltinCoder().propose(CoderRequest(brief, Operator.OPTIMISE, parent, finding, ()))
    assert Design.of(parse_reply(reply.text).source) == Design(("vectorise",))


def _reply(brief: object, design: Design) -> str:
    written = workbench.rendered("rmsnorm", design)
    return f"```cuda\n{written.source}\n```\n\n```python\n{written.plan}\n```\n"


def test_an_unknown_operator_is_named_in_a_reply_without_code() -> None:
    brief = workbench.brief("softmax")
    nodes = (
        Node(name="x", kind="input", op="0", spec=brief.facts.at("full").inputs[0]),
        Node(name="y", kind="op", op="aten.fft_fft", args=({"ref": "x"},), spec=brief.facts.at("full").inputs[0]),
        Node(name="output", kind="output", op="output", args=({"ref": "y"},)),
    )
    odd = workbench.brief("softmax", graph=Graph(size="full", nodes=nodes))
    text = BuiltinCoder().propose(CoderRequest(odd, Operator.SEED, None, None, ())).text
    assert "aten.fft_fft" in text
    with pytest.raises(CandidateError):
        parse_reply(text)


@pytest.mark.parametrize(
    "source", ["__global__ void k() {}", "// kernelforge-builtin/1 {", '// kernelforge-builtin/1 {"moves": 3}', ""]
)
def test_a_source_without_a_readable_design_has_none(source: str) -> None:
    assert Design.of(source) is None


def proposed(name: str, operator: Operator, parent: Design | None = None, *history: Design, **more: object) -> Design:
    """The design of the Coder's reply; ``history`` are correct attempts that came before, slower by their place."""
    brief = workbench.brief(name)
    past = tuple(made(name, design, number) for number, design in enumerate(history))
    rendered = more.pop("inspirations", ())
    others = tuple(made(name, design, 50 + position, 20.0) for position, design in enumerate(rendered))  # type: ignore[arg-type, var-annotated]
    request = CoderRequest(
        brief, operator, None if parent is None else made(name, parent, 40, 10.0), more.pop("finding", None), past,
        inspirations=others, **more,
    )  # type: ignore[arg-type]  # fmt: skip
    design = Design.of(parse_reply(BuiltinCoder().propose(request).text).source)
    assert design is not None
    return design


def made(name: str, design: Design, number: int, time_us: float = 30.0, verdict: Verdict = Verdict.OK) -> Attempt:
    written = workbench.rendered(name, design)
    candidate = Candidate(source=written.source, plan=written.plan)
    brief = workbench.brief(name)
    reason = "" if verdict is Verdict.OK else "values differ"
    time = time_us if verdict is Verdict.OK else None
    return workbench.attempt(brief, candidate, number=number, time_us=time, verdict=verdict, reason=reason)


@pytest.mark.parametrize("name", ["softmax", "rmsnorm", "matmul"])
def test_seeds_of_different_samples_differ(name: str) -> None:
    designs = [proposed(name, Operator.SEED, sample=sample) for sample in range(4)]
    assert designs[0] == Design()
    assert len({workbench.rendered(name, design).source.partition("\n")[2] for design in designs}) == 4
    assert designs == [proposed(name, Operator.SEED, sample=sample) for sample in range(4)]


def test_a_seed_asked_for_again_is_another_one() -> None:
    assert proposed("rmsnorm", Operator.SEED, None, Design()) == Design(("fuse",))


@pytest.mark.slow
@pytest.mark.parametrize("operator", [Operator.OPTIMISE, Operator.FSR])
def test_without_a_finding_samples_take_different_moves(operator: Operator) -> None:
    taken = [proposed("rmsnorm", operator, Design(), sample=sample).moves for sample in range(4)]
    assert taken == [("fuse",), ("warp-reduce",), ("vectorise",), ("block-shape",)]


def test_what_was_tried_is_not_tried_again() -> None:
    assert proposed("rmsnorm", Operator.OPTIMISE, Design(), Design(), Design(("fuse",))).moves == ("warp-reduce",)


@pytest.mark.parametrize(
    ("technique", "move"), [("vectorisation", "vectorise"), ("warp-primitives", "warp-reduce"), ("fusion", "fuse")]
)
def test_a_technique_chooses_the_move(technique: str, move: str) -> None:
    assert proposed("rmsnorm", Operator.FSR, Design(), technique=technique, sample=3).moves == (move,)


def test_a_bottleneck_chooses_the_move() -> None:
    finding = Finding(kind="optimise", headline="h", why="w", action="a", bottleneck="unvectorised")
    assert proposed("rmsnorm", Operator.OPTIMISE, Design(), finding=finding).moves == ("vectorise",)


def test_contrast_adds_to_the_faster_example_what_the_slower_has() -> None:
    faster, slower = Design(("fuse",)), Design(("vectorise",))
    assert proposed("bias_swish_scale", Operator.CONTRAST, faster, inspirations=(slower,)).moves == (
        "fuse",
        "vectorise",
    )
    assert proposed("bias_swish_scale", Operator.CONTRAST, faster, inspirations=(slower,), sample=1).moves[0] == "fuse"


def test_contrast_answers_in_the_three_parts_that_are_asked_for() -> None:
    brief = workbench.brief("rmsnorm")
    request = CoderRequest(brief, Operator.CONTRAST, made("rmsnorm", Design(), 0), None, ())
    text = BuiltinCoder().propose(request).text
    parts = [text.index(f"## {part}") for part in ("Performance Analysis", "Algorithm Design", "Code Implementation")]
    assert parts == sorted(parts)
    assert parts[2] < text.index("```cuda")


def test_crossover_joins_the_moves_of_both_parents() -> None:
    joined = proposed("bias_swish_scale", Operator.CROSSOVER, Design(("vectorise",)), inspirations=(Design(("fuse",)),))
    assert joined.moves == ("fuse", "vectorise")
    tried = proposed(
        "bias_swish_scale", Operator.CROSSOVER, Design(("vectorise",)), joined, inspirations=(Design(("fuse",)),)
    )
    assert set(tried.moves) > {"fuse", "vectorise"}


def test_a_round_of_samples_steps_back_from_a_failed_candidate() -> None:
    brief = workbench.brief("rmsnorm")
    failed = made("rmsnorm", Design(("fuse", "vectorise")), 3, verdict=Verdict.WRONG)
    designs = [
        Design.of(
            parse_reply(
                BuiltinCoder().propose(CoderRequest(brief, Operator.FSR, failed, None, (failed,), sample=sample)).text
            ).source
        )
        for sample in range(2)
    ]
    assert designs == [Design(("fuse",)), Design(("fuse", "warp-reduce"))]


def test_another_coders_candidate_is_answered_from_the_best_of_its_own() -> None:
    brief = workbench.brief("rmsnorm")
    foreign = workbench.attempt(brief, Candidate(source="__global__ void k() {}", plan="def forward(x): ..."), number=9)
    own = (made("rmsnorm", Design(), 0, 30.0), made("rmsnorm", Design(("fuse",)), 1, 5.0), foreign)
    text = BuiltinCoder().propose(CoderRequest(brief, Operator.OPTIMISE, foreign, None, own)).text
    assert "not mine" in text
    assert Design.of(parse_reply(text).source) == Design(("fuse", "warp-reduce"))


def test_when_everything_was_tried_it_says_so_without_code() -> None:
    brief = workbench.brief("swish")
    every = tuple(
        made("swish", Design(moves), number)
        for number, moves in enumerate([(), ("fuse",), ("vectorise",), ("fuse", "vectorise")])
    )
    text = BuiltinCoder().propose(CoderRequest(brief, Operator.OPTIMISE, every[0], None, every)).text
    assert "was tried" in text
    with pytest.raises(CandidateError):
        parse_reply(text)


@pytest.mark.parametrize(
    "written",
    ['{"moves": [["fuse"], {"a": 1}, null]}', '{"moves": ' + "[" * 900, '{"moves": ' + "[" * 200_000, "[]", "{}", "1"],
    ids=["no names", "deep", "long", "list", "empty", "number"],
)
def test_whatever_a_model_writes_after_our_mark_is_read_without_a_fault(written: str) -> None:
    mark = Design().comment().partition("{")[0]
    assert Design.of(f"int a;\n{mark}{written}\nint b;") in (None, Design())
    assert Design.of(f"int a;\n{ALL.comment()}\nint b;") == ALL
