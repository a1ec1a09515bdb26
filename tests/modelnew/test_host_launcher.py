"""A C++ file with kernels and the host function of an extension becomes the class ``ModelNew`` that calls it."""

from __future__ import annotations

import pytest

from kernelforge.errors import CandidateError
from kernelforge.modelnew.convert import convert
from kernelforge.modelnew.convert.host_launcher import launcher_class, with_weights_after_inputs

SOURCE = """\
__global__ void scale(const float* x, const float* by, float* out, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i] * by[0];
}
static at::Tensor like(const at::Tensor& lambda) { return at::empty_like(lambda); }
at::Tensor run(const at::Tensor& x, at::Tensor lambda) {
    auto out = like(x);
    scale<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), lambda.data_ptr<float>(), out.data_ptr<float>(),
                                            x.numel());
    return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


def test_the_function_that_no_other_calls_gets_every_argument_of_forward() -> None:
    name, text = launcher_class(SOURCE)
    assert name == "run"
    candidate = convert(text).candidate
    assert candidate is not None
    assert candidate.plan.endswith("def forward(x, lambda_):\n    return host_run(x, lambda_)\n")


def test_a_problem_has_the_line_of_the_source() -> None:
    _, text = launcher_class(SOURCE.replace("(x.numel() + 255)", "(unknown + 255)"))
    assert [problem.line for problem in convert(text).problems] == [8]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__global__ void one() {}", "it has no host function that takes and returns torch::Tensor"),
        (SOURCE.replace("like(x)", "x"), r"several of its host functions .* \(like, run\)"),
        (f'extern "C" {{{SOURCE}}}', "its host code cannot be read .line 1: "),
        ("namespace", "its host code is cut short or malformed"),
    ],
)
def test_what_is_no_launcher_is_refused_with_the_reason(source: str, message: str) -> None:
    with pytest.raises(CandidateError, match=message):
        launcher_class(source)


def test_the_last_parameters_are_weights_where_the_task_has_as_many() -> None:
    plan = "def forward(x, a, b):\n    return host_run(x, a, b)\n"
    assert with_weights_after_inputs(plan, 1, ("norm.weight", "norm.bias")) == (
        'def forward(x):\n    a = w["norm.weight"]\n    b = w["norm.bias"]\n    return host_run(x, a, b)\n'
    )
    for inputs, weights in ((3, ()), (2, ("u", "v")), (1, ("u",))):
        assert with_weights_after_inputs(plan, inputs, weights) == plan
