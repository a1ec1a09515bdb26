"""What the built-in Coder writes for suite core is right at sizes that it was not traced at."""

from __future__ import annotations

import agents_workbench as workbench
import pytest
import torch

from kernelforge.agents import CoderRequest
from kernelforge.agents.builtin.coder import BuiltinCoder, applicable
from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.candidate import parse_reply
from kernelforge.compile import Artifact, Compiler
from kernelforge.errors import CandidateError
from kernelforge.records import Finding, Graph, Node, Operator
from kernelforge.tasks.suites import load_suite

TASKS = [task.name for task in load_suite("core")]
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


@pytest.mark.parametrize("name", TASKS)
def test_seeds_are_right_at_odd_sizes(name: str, compiler: Compiler) -> None:
    check(name, Design(), "hidden_odd", compiler)


@pytest.mark.parametrize("name", TASKS)
def test_every_move_together_is_right_at_multiples_of_four(name: str, compiler: Compiler) -> None:
    check(name, ALL, "hidden_quad", compiler)


@pytest.mark.slow  # about a minute: 16 tasks, every move alone and all together, at four sizes
@pytest.mark.parametrize("name", TASKS)
def test_every_move_is_right_at_every_size(name: str, compiler: Compiler) -> None:
    brief = workbench.brief(name)
    alone = [Design((move,)) for move in applicable(brief, Design())]
    pairs = [Design(("tile", "register-tile")), Design(("warp-reduce", "stage")), Design(("warp-reduce", "vectorise"))]
    for design in [Design(), *alone, *pairs, ALL]:
        for size in SIZES:
            check(name, design, size, compiler)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_move_that_changes_its_seed(name: str) -> None:
    assert applicable(workbench.brief(name), Design())


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
