"""The built-in Judge names exactly one thing, with numbers."""

from __future__ import annotations

import re

import agents_workbench as workbench
import pytest

from kernelforge.agents import make_agents
from kernelforge.agents.builtin.design import Design
from kernelforge.agents.builtin.judge import RULES, BuiltinJudge
from kernelforge.errors import UsageError
from kernelforge.records import Attempt, Candidate, Diagnostic, Finding, Profile, Verdict

WIDE = {"sectors": 3.2e6, "requests": 1e5, "instructions": 1e6, "launches": 1}


def candidate(task: str, *moves: str) -> Candidate:
    written = workbench.rendered(task, Design(moves))
    return Candidate(source=written.source, plan=written.plan)


def assess(task: str, parent: Attempt, *history: Attempt) -> Finding:
    return BuiltinJudge().assess(workbench.brief(task), parent, history).finding


def attempt(task: str, *moves: str, profile: Profile | None = None) -> Attempt:
    return workbench.attempt(workbench.brief(task), candidate(task, *moves), profile=profile)


def test_a_row_kernel_with_scattered_reads_gets_warps_and_says_why_in_numbers() -> None:
    finding = assess("softmax", attempt("softmax", profile=workbench.profile_of("softmax_rows", **WIDE)))
    assert finding.kind == "optimise"
    assert finding.move == "warp-reduce"
    assert finding.metrics[0] == "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
    assert "32.0 sector/request" in finding.why
    assert re.search(r"3,200,000 sector", finding.why)


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
    again = assess("softmax", parent, parent, failed)
    assert again.move != first.move


def test_it_stops_when_every_move_is_taken() -> None:
    taken = attempt("transpose", *RULES, profile=workbench.profile_of("t_map", **WIDE))
    finding = assess("transpose", taken)
    assert finding.kind == "stop"
    assert "1.00x the compulsory bytes" in finding.why


def test_another_coders_candidate_is_judged_by_its_metrics_alone() -> None:
    foreign = Candidate(source="__global__ void softmax(const float* x, float* y) {}", plan="def forward(x): ...")
    parent = workbench.attempt(workbench.brief("softmax"), foreign, profile=workbench.profile_of("softmax", **WIDE))
    assert assess("softmax", parent).move == "warp-reduce"


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
        make_agents(spec, "builtin")
    with pytest.raises(UsageError, match="builtin"):
        make_agents("builtin", spec)
