"""The built-in Judge names exactly one thing, with numbers."""

from __future__ import annotations

import re

import pytest

from kernelforge.agents import JudgeRequest
from kernelforge.agents.builtin import judge
from kernelforge.agents.builtin.advice import ADVICE
from kernelforge.agents.builtin.design import Design
from kernelforge.agents.builtin.judge import BuiltinJudge
from kernelforge.agents.builtin.transformations import RULES
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.compile import Compiler
from kernelforge.errors import UsageError
from kernelforge.llm.providers import Providers
from kernelforge.records import Attempt, Candidate, Diagnostic, Finding, LLMSettings, Profile, Usage, Verdict
from kernelforge.run.proposals import make_judge
from tests.agents import agent_setup as workbench
from tests.agents.faulty_kernels import FAULTY, SOUND, Faulty, profiled
from tests.support.factories import make_passed_over

WIDE = {"sectors": 3.2e6, "requests": 1e5, "instructions": 1e6, "launches": 1}


def candidate(task: str, *moves: str) -> Candidate:
    written = workbench.rendered(task, Design(moves))
    return Candidate(source=written.source, plan=written.plan)


def assess(task: str, parent: Attempt, *history: Attempt, rank: int = 1) -> Finding:
    return BuiltinJudge().assess(JudgeRequest(workbench.brief(task), parent, history, rank=rank)).finding


def attempt(task: str, *moves: str, profile: Profile | None = None) -> Attempt:
    return workbench.attempt(workbench.brief(task), candidate(task, *moves), profile=profile)


def test_a_row_kernel_with_scattered_reads_gets_warps_and_says_why_in_numbers() -> None:
    finding = assess("softmax", attempt("softmax", profile=workbench.profile_of("softmax_rows", **WIDE)))
    assert finding.kind == "optimise"
    assert finding.move == "warp-reduce"
    assert finding.metrics[0] == "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
    assert "32.0 sector/request" in finding.why
    assert re.search(r"3,200,000 sector", finding.why)


def test_columns_that_threads_walk_alone_get_blocks_where_latency_is_the_bound() -> None:
    def finding_at(bound: str) -> Finding:
        profile = workbench.profile_of("sum_1_rows", bound=bound, **{**WIDE, "requests": 8e5})
        return assess("sum_axes", attempt("sum_axes", profile=profile))

    finding = finding_at("latency")
    assert (finding.move, finding.bottleneck) == ("warp-reduce", Bottleneck.LATENCY_BOUND)
    assert finding.metrics[0] == "+launch__grid_size"
    assert finding_at("dram").move != "warp-reduce"


def test_products_of_few_tiles_share_their_terms_where_that_changes_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "applicable_designs", lambda brief, design: ["stream-k"])
    finding = assess("softmax", attempt("softmax", profile=workbench.profile_of("matmul_product", **WIDE)))
    assert (finding.move, finding.bottleneck) == ("stream-k", Bottleneck.TINY_GRID)
    assert "launch__grid_size is 1 block" in finding.why
    assert assess("softmax", attempt("softmax", profile=workbench.profile_of("softmax_rows", **WIDE))).kind == "stop"


@pytest.mark.slow
def test_a_chain_bound_by_dram_traffic_is_fused() -> None:
    values = {**WIDE, "requests": 8e5, "launches": 5}
    profile = workbench.profile_of("mul_map", dram=2e6, **values)
    finding = assess("bias_swish_scale", attempt("bias_swish_scale", profile=profile))
    assert (finding.move, finding.metrics[0]) == ("fuse", "dram__bytes.sum")
    assert "2.00x the compulsory" in finding.why


def test_a_move_that_did_not_pay_is_not_named_again() -> None:
    parent = attempt("softmax", profile=workbench.profile_of("softmax_rows", **WIDE))
    first = assess("softmax", parent)
    failed = workbench.attempt(
        workbench.brief("softmax"), candidate("softmax", "warp-reduce"), number=1, finding=first, accepted=False
    )
    repeated = assess("softmax", parent, parent, failed)
    assert repeated.move != first.move


def test_a_move_whose_kernel_was_not_measured_may_be_named_again() -> None:
    parent = attempt("softmax", profile=workbench.profile_of("softmax_rows", **WIDE))
    first = assess("softmax", parent)
    passed_over = workbench.attempt(
        workbench.brief("softmax"), candidate("softmax", "warp-reduce"), number=1, finding=first, accepted=False
    )
    evaluation = make_passed_over(candidate=passed_over.evaluation.candidate)
    passed_over = passed_over.model_copy(update={"evaluation": evaluation})
    assert assess("softmax", parent, parent, passed_over).move == first.move


def test_it_stops_when_every_move_is_taken() -> None:
    taken = attempt("transpose", *RULES, profile=workbench.profile_of("t_map", **WIDE))
    finding = assess("transpose", taken)
    assert finding.kind == "stop"
    assert "1.00x the compulsory bytes" in finding.why


def foreign(case: Faulty, compiler: Compiler, number: int = 0) -> Attempt:
    """A candidate of another Coder, profiled as it is."""
    profile, build, _ = profiled(case, compiler)
    candidate = Candidate(source=case.source, plan=case.plan)
    parent = workbench.attempt(workbench.brief("softmax"), candidate, profile=profile, number=number)
    evaluation = parent.evaluation.model_copy(update={"build": build})
    return parent.model_copy(update={"evaluation": evaluation})


def planted(name: str) -> Faulty:
    return next(case for case in FAULTY if case.name == name)


@pytest.mark.slow
def test_another_coders_candidate_is_judged_by_its_faults(compiler: Compiler) -> None:
    finding = assess("softmax", foreign(planted("unpadded tile"), compiler))
    assert (finding.kind, finding.bottleneck, finding.move) == ("optimise", Bottleneck.BANK_CONFLICT, None)
    assert finding.headline.startswith("bank-conflict: ")
    assert finding.headline.endswith("in kernel k")
    assert "Pad" in finding.action
    assert finding.metrics[0] == "kernelforge__shared_wavefronts_excess.sum"


@pytest.mark.slow
def test_ranks_name_different_bottlenecks_and_then_stop(compiler: Compiler) -> None:
    parent = foreign(planted("dynamic local array"), compiler)
    findings = [assess("softmax", parent, rank=rank) for rank in (1, 2, 3, 4)]
    named = [finding.bottleneck for finding in findings if finding.kind == "optimise"]
    assert named[0] == Bottleneck.SPILLS
    assert len(set(named)) == len(named) >= 2
    assert findings[-1].kind == "stop"


def test_ranks_of_a_built_in_candidate_are_its_moves() -> None:
    parent = attempt("rmsnorm", profile=workbench.profile_of("rmsnorm_rows", **{**WIDE, "launches": 3}))
    first, second = (assess("rmsnorm", parent, rank=rank) for rank in (1, 2))
    assert None not in (first.move, second.move)
    assert first.move != second.move


def test_a_bottleneck_that_was_worked_on_without_gain_is_not_named_again(compiler: Compiler) -> None:
    parent = foreign(planted("dynamic local array"), compiler, number=99)
    first = assess("softmax", parent)
    child = workbench.attempt(
        workbench.brief("softmax"), Candidate(source="__global__ void k() {}", plan="def forward(x): ..."), number=1,
        finding=first, verdict=Verdict.WRONG, reason="values differ",
    )  # fmt: skip
    assert child.parent == parent.id
    assert assess("softmax", parent, parent, child).bottleneck != first.bottleneck


@pytest.mark.slow
def test_a_foreign_candidate_at_the_floor_ends_the_task(compiler: Compiler) -> None:
    finding = assess("softmax", foreign(SOUND, compiler))
    assert finding.kind == "stop"
    assert "1.00x the compulsory bytes" in finding.why


def test_a_built_in_candidate_without_moves_left_is_diagnosed_where_others_answer() -> None:
    taken = attempt("transpose", *RULES, profile=workbench.profile_of("t_map", **WIDE))
    other = workbench.attempt(workbench.brief("transpose"), candidate("transpose"), number=1)
    other = other.model_copy(update={"coder": "exchange:desk"})
    finding = assess("transpose", taken, taken, other)
    assert (finding.bottleneck, finding.move) == (Bottleneck.TINY_GRID, None)  # the profile's grid is one block


def test_every_bottleneck_has_a_remedy_and_every_move_a_bottleneck() -> None:
    assert set(ADVICE.remedies) == set(Bottleneck)
    assert set(RULES) == set(ADVICE.moves)


def test_the_judge_is_made_by_its_name() -> None:
    providers = Providers(LLMSettings())
    assert isinstance(make_judge("builtin", providers, NoMeter()), BuiltinJudge)


class NoMeter:
    """Nothing is bought."""

    def check(self) -> None:
        raise AssertionError("the built-in agents call no model")

    def spent(self, usage: Usage) -> None:
        raise AssertionError("the built-in agents call no model")


@pytest.mark.parametrize(
    ("verdict", "reason", "words"),
    [
        (Verdict.CRASH, "out-of-bounds 4-byte global load at candidate.cu:7", "guard the access"),
        (Verdict.CRASH, "misaligned 16-byte global load", "multiples"),
        (Verdict.CRASH, "a race on shared memory", "__syncthreads"),
        (Verdict.WRONG, "at small: 3 of 9 elements differ", "index arithmetic"),
        (Verdict.TIMEOUT, "the kernel did not end", "bound its loops"),
        (Verdict.POLICY, "writes a global variable", "leave out"),
    ],
)
def test_a_repair_names_the_issue_behind_the_verdict(verdict: Verdict, reason: str, words: str) -> None:
    brief = workbench.brief("softmax")
    parent = workbench.attempt(brief, candidate("softmax", "warp-reduce"), verdict=verdict, reason=reason)
    finding = assess("softmax", parent)
    assert finding.kind == "repair"
    assert words in finding.action
    assert reason in finding.why


def test_a_build_error_is_quoted_with_its_line() -> None:
    brief = workbench.brief("softmax")
    parent = workbench.attempt(brief, candidate("softmax", "stage"), verdict=Verdict.BUILD, reason="does not compile")
    error = Diagnostic(file="candidate.cu", line=12, severity="error", message='identifier "q" is undefined')
    build = workbench.BUILD.model_copy(update={"ok": False, "diagnostics": (error,)})
    evaluation = parent.evaluation.model_copy(update={"build": build})
    finding = assess("softmax", parent.model_copy(update={"evaluation": evaluation}))
    assert 'candidate.cu:12: error: identifier "q" is undefined' in finding.headline


def test_a_seed_that_fails_ends_the_task() -> None:
    brief = workbench.brief("softmax")
    parent = workbench.attempt(brief, candidate("softmax"), verdict=Verdict.WRONG, reason="values differ")
    assert assess("softmax", parent).kind == "stop"


@pytest.mark.parametrize("spec", ["", "gpt", "builtin:x", "exchange", "exchange:"])
def test_an_unknown_provider_is_refused_with_what_there_is(spec: str) -> None:
    with pytest.raises(UsageError, match="exchange:FOLDER"):
        Providers(LLMSettings()).check(spec)
