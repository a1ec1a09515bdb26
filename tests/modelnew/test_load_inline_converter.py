"""Candidates whose host part is a plain launch become device code and a plan that pass; all else is said precisely."""

from __future__ import annotations

import pytest

from kernelforge.candidate import parse_reply
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.modelnew.convert import convert
from kernelforge.modelnew.convert.host_launcher import launcher_class
from kernelforge.records import Size, Task, Verdict
from kernelforge.tasks import load_task
from kernelforge.tasks.constants import substitute
from tests.modelnew.converter_samples import CORE, GELU, RAW_KERNEL, SEVERAL_OUTPUTS, SEVERAL_OUTPUTS_TASK, SWISH


def shrunk(name: str) -> Task:
    """A task of suite ``core`` at its small and its odd size alone: a conversion is right or wrong at any size."""
    task = load_task(f"core/{name}")
    source = substitute(task.source, task.size("small").constants)
    odd = Size(name="small", constants=task.size("hidden_odd").constants)
    return task.model_copy(update={"source": source, "sizes": (Size(name="full"), odd)})


def passes(workshop: EvaluatorPool, text: str, task: Task) -> None:
    conversion = convert(text)
    assert conversion.problems == ()
    assert conversion.candidate is not None
    evaluator = workshop.evaluator(task)
    try:
        evaluation = evaluator.evaluate(conversion.candidate, seed=4, profile=False).evaluation
    finally:
        evaluator.oracle.close()
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.correctness is not None
    assert all(check.status == "passed" for check in evaluation.correctness.sizes)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", sorted(CORE))
def test_a_converted_candidate_passes_its_task(workshop: EvaluatorPool, name: str) -> None:
    passes(workshop, CORE[name], shrunk(name))


@pytest.mark.slow
def test_a_return_in_the_middle_ends_the_host_function(workshop: EvaluatorPool) -> None:
    candidate = convert(CORE["bias_swish_scale"]).candidate
    assert candidate is not None
    evaluator = workshop.evaluator(shrunk("bias_swish_scale"))
    try:
        evaluation = evaluator.evaluate(candidate, seed=4, profile=False).evaluation
    finally:
        evaluator.oracle.close()
    assert evaluation.correctness is not None
    # Rows of 256 take the wide kernel and return; odd ones take the narrow one.
    assert [check.launches for check in evaluation.correctness.sizes] == [1, 1]


@pytest.mark.parametrize("attribute", ["__launch_bounds__(64, 2)", "__cluster_dims__(2, 1, 1)", "__maxnreg__(64)"])
def test_attributes_before_a_kernels_name_are_not_its_parameters(attribute: str) -> None:
    conversion = convert(SWISH.replace("__launch_bounds__(THREADS)", attribute))
    assert conversion.problems == ()
    assert conversion.candidate is not None
    assert attribute in conversion.candidate.source


def test_a_name_that_hides_another_is_refused() -> None:
    line = "const int threads = 256;"
    conversion = convert(GELU.replace(line, f"{line} if (n > 0) {{ int64_t n = 1; }}"))
    assert any("hides a name" in problem.why for problem in conversion.problems)


@pytest.mark.slow
def test_a_raw_kernel_of_cupy_passes(workshop: EvaluatorPool) -> None:
    passes(workshop, RAW_KERNEL, shrunk("swish"))


@pytest.mark.slow
def test_several_outputs_pass(workshop: EvaluatorPool) -> None:
    sizes = (Size(name="full"), Size(name="small", constants={"ROWS": 3}))
    task = Task(name="signs", suite="test", title="signs", level=1, source=SEVERAL_OUTPUTS_TASK, sizes=sizes)
    passes(workshop, SEVERAL_OUTPUTS, task)


def test_the_reply_of_a_conversion_reads_back_as_the_same_candidate() -> None:
    conversion = convert(GELU)
    assert conversion.candidate is not None
    parsed = parse_reply(conversion.as_reply())
    assert parsed.source.strip() == conversion.candidate.source.strip()
    assert parsed.plan.strip() == conversion.candidate.plan.strip()


@pytest.mark.parametrize("include", ["cublas_v2.h", "algorithm", "torch/extension.h"])
def test_headers_of_the_host_are_left_out(include: str) -> None:
    conversion = convert(SWISH.replace("#define THREADS", f"#include <{include}>\n#define THREADS"))
    assert conversion.candidate == convert(SWISH).candidate


@pytest.mark.slow
def test_a_header_that_came_with_torchs_is_included_where_it_is_needed(workshop: EvaluatorPool) -> None:
    old = "gelu<scalar_t>(x[i])"
    assert old in GELU
    text = GELU.replace(old, "gelu<scalar_t>(max(x[i], std::numeric_limits<scalar_t>::lowest()))")
    conversion = convert(text)
    assert conversion.candidate is not None
    assert conversion.candidate.source.startswith("#include <limits>\n")
    passes(workshop, text, shrunk("gelu"))


def test_what_is_left_out_is_said() -> None:
    notes = " ".join(convert(GELU).notes)
    assert "TORCH_CHECK" in notes
    assert "left out" in notes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return out;", 'if (err != cudaSuccess) { throw std::runtime_error("failed"); }\n    return out;'),
        ("return self.module.swish_forward(x)", "return self.module.swish_forward(x.contiguous().cuda())"),
        (
            "return self.module.swish_forward(x)",
            "if not x.is_cuda:\n            x = x.cuda()\n        return self.module.swish_forward(x)",
        ),
    ],
    ids=["error-code", "chained", "elsewhere"],
)
def test_a_check_that_computes_nothing_leaves_the_same_kernel(old: str, new: str) -> None:
    assert old in SWISH
    conversion = convert(SWISH.replace(old, new))
    assert conversion.problems == ()
    assert conversion.candidate is not None
    plain = convert(SWISH).candidate
    assert plain is not None
    assert conversion.candidate.source == plain.source
    launches = [line for line in conversion.candidate.plan.splitlines() if "swish_kernel[" in line]
    assert launches == [line for line in plain.plan.splitlines() if "swish_kernel[" in line]


def test_a_variable_may_hold_the_current_stream() -> None:
    plain = "swish_kernel<<<"
    text = SWISH.replace(plain, "cudaStream_t stream = at::cuda::getCurrentCUDAStream();\n    swish_kernel<<<", 1)
    opened = text.index(plain) + len(plain)
    closed = text.index(">>>", opened)
    text = f"{text[:closed]}, 0, stream{text[closed:]}"
    conversion = convert(text)
    assert conversion.problems == ()
    made = convert(text.replace("= at::cuda::getCurrentCUDAStream()", "; cudaStreamCreate(&stream)"))
    assert "unknown name `stream`" in [problem.why for problem in made.problems]


@pytest.mark.parametrize("outside", [True, False])
def test_a_kernel_in_a_namespace_is_launched_by_its_full_name(outside: bool) -> None:
    source = """
namespace a::b {
__device__ float twice(float x) { return 2 * x; }
template <typename T>
__global__ void scale(const T* x, T* y) { y[threadIdx.x] = twice(x[threadIdx.x]); }
__global__ void plain(float* y) { y[threadIdx.x] += 1; }
HERE}
THERE"""
    host = """torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    INscale<float><<<1, 8>>>(x.data_ptr<float>(), y.data_ptr<float>());
    INplain<<<1, 8>>>(y.data_ptr<float>());
    return y;
}
""".replace("IN", "a::b::" if outside else "")
    text = source.replace("THERE" if outside else "HERE", host).replace("THERE", "").replace("HERE", "")
    candidate = convert(launcher_class(text)[1]).candidate
    assert candidate is not None
    assert candidate.source.startswith("namespace a::b {\n__device__ float twice")
    assert candidate.source.rstrip().endswith("}  // namespace a::b")
    launches = [line.strip() for line in candidate.plan.splitlines() if "[1, 8]" in line]
    assert launches == ['kernel(f"a::b::scale<float>")[1, 8](x, y)', 'kernel("a::b::plain")[1, 8](y)']


def test_a_function_of_an_extension_may_have_a_name_of_its_own() -> None:
    text = SWISH.replace("return self.module.swish_forward(x)", "return self.run(x)").replace(
        "self.module = module", "self.run = module.swish_forward"
    )
    assert "self.run = " in text
    conversion = convert(text)
    assert conversion.problems == ()
    assert convert(SWISH).candidate == conversion.candidate


CALL = "return self.module.swish_forward(x)"
TWICE = "x = self.module.swish_forward(x)"


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("x.is_cuda", ""),
        ("not x.is_cuda or x.numel() > 4", "if ((x.numel() > 4)):"),
        ("x.numel() > 4 and x.is_cuda", "if ((x.numel() > 4)):"),
    ],
)
def test_a_condition_is_decided_where_it_asks_for_the_gpu_alone(condition: str, kept: str) -> None:
    conversion = convert(SWISH.replace(CALL, f"if {condition}:\n            {TWICE}\n        {CALL}"))
    assert conversion.candidate is not None
    forward = conversion.candidate.plan.partition("def forward")[2]
    assert forward.count("host_swish_forward(x)") == 2
    assert kept in forward
    assert ("if" in forward) == bool(kept)


def test_a_branch_that_is_never_taken_on_the_gpu_is_left_out() -> None:
    text = SWISH.replace(CALL, f"if not x.is_cuda:\n            {TWICE}\n        {CALL}")
    assert convert(text).candidate == convert(SWISH).candidate


def test_a_condition_on_gradients_is_refused() -> None:
    conversion = convert(SWISH.replace(CALL, f"if not x.requires_grad:\n            x = x.detach()\n        {CALL}"))
    assert conversion.candidate is None
    assert [problem.why for problem in conversion.problems] == ["this attribute has no counterpart in a plan"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("auto out = torch::empty_like(x);", "auto out = torch::erfinv(x);", "torch's `erfinv`"),
        ("const int threads = 256;", "int threads = 1; while (threads < 256) threads *= 2;", "no `while`"),
        ("<<<blocks, threads>>>", "<<<blocks, threads, 0, stream>>>", "unknown name `stream`"),
        ("AT_DISPATCH_FLOATING_TYPES(", "AT_DISPATCH_ALL_TYPES(", "dispatch macro is not known"),
        ("out.data_ptr<scalar_t>(), n);", "out.data_ptr<scalar_t>());", "takes 3 arguments"),
        ("gelu_kernel<scalar_t><<<", "other_kernel<scalar_t><<<", "no kernel `other_kernel`"),
        ("const int64_t n = x.numel();", "const int64_t n = x.sum().item<int>();", "torch's `item`"),
    ],
)
def test_what_cannot_be_converted_is_named_with_its_line(old: str, new: str, why: str) -> None:
    assert old in GELU
    text = GELU.replace(old, new)
    # A launch is identified by the line that it begins on.
    construct = "_kernel<scalar_t><<<" if "scalar_t>" in new or "<<<" in new else new
    line = text[: text.index(construct)].count("\n") + 1
    conversion = convert(text)
    assert conversion.candidate is None
    problems = [problem for problem in conversion.problems if why in problem.why]
    assert [problem.line for problem in problems] == [line], conversion.problems


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return self.module.swish_forward(x)", "return torch.erfinv(self.module.swish_forward(x))", "`erfinv`"),
        ("return self.module.swish_forward(x)", "return self.module.other(x)", "no function `other`"),
        ("return self.module.swish_forward(x)", "return self.module.swish_forward(x) // x", "`//` on a tensor"),
        ("return self.module.swish_forward(x)", "y = [v for v in x]\n        return y", "no counterpart"),
        ("class ModelNew", "class Other", "no such class"),
    ],
)
def test_what_torch_would_compute_is_refused(old: str, new: str, why: str) -> None:
    assert old in SWISH
    conversion = convert(SWISH.replace(old, new))
    assert conversion.candidate is None
    assert any(why in problem.why for problem in conversion.problems), conversion.problems


@pytest.mark.slow
def test_damaged_texts_are_refused_or_converted_without_an_exception() -> None:
    for text in (GELU, SWISH, RAW_KERNEL):
        for at in range(0, len(text), 7):
            conversion = convert(text[:at] + text[at + 5 :])
            assert (conversion.candidate is None) == bool(conversion.problems)


def test_texts_that_are_no_candidates_are_refused_without_an_exception() -> None:
    for text in ("", "def f(:", "import torch\nclass ModelNew:\n    pass\n", "x = 1\n" * 3, "(" * 10_000):
        conversion = convert(text)
        assert conversion.candidate is None
        assert conversion.problems
