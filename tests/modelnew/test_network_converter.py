"""Networks whose kernels stand between layers of torch become plans that call torch's operators, and pass."""

from __future__ import annotations

import pytest

from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.modelnew.convert import Conversion, convert
from kernelforge.records import Size, Task, TaskPolicy, Verdict
from tests.modelnew.converter_samples import inline

SCALE = r"""
__global__ void scale_kernel(const float* x, float* out, float by, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * by;
}

torch::Tensor scale(torch::Tensor x, float by) {
    auto out = torch::empty_like(x);
    const int n = x.numel();
    scale_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), by, n);
    return out;
}
"""

CPP = "torch::Tensor scale(torch::Tensor x, float by);"

TASK = """
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
WIDTH = 4
@CLASSES@

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
@INIT@

    def forward(self, x):
@FORWARD@

def get_inputs():
    return [torch.rand(BATCH, WIDTH, 9, 8)]

def get_init_inputs():
    return [WIDTH]
"""


def indented(text: str) -> str:
    return "\n".join(f"        {line}" for line in text.strip("\n").splitlines())


def written(init: str, forward: str, classes: str = "", cuda: str = SCALE) -> str:
    """A candidate with these classes, constructor and ``forward``."""
    text = inline(cuda, "scale", cpp=CPP, params=", width", init=init)
    at = text.index("    def forward")
    ahead = f"import torch.nn.functional as F\n{classes}\n\nclass ModelNew"
    return text[:at].replace("class ModelNew", ahead) + f"    def forward(self, x):\n{indented(forward)}\n"


def passes(workshop: EvaluatorPool, conversion: Conversion, init: str, forward: str, classes: str = "") -> None:
    """Evaluate what came out against a reference of the same layers."""
    assert conversion.problems == ()
    assert conversion.candidate is not None
    changes = {"CLASSES": classes, "INIT": indented(init), "FORWARD": indented(forward)}
    source = TASK
    for key, value in changes.items():
        source = source.replace(f"@{key}@", value)
    policy = TaskPolicy(library=conversion.operators)
    sizes = (Size(name="full"), Size(name="small", constants={"BATCH": 3}))
    task = Task(name="network", suite="test", title="network", level=2, source=source, sizes=sizes, policy=policy)
    evaluator = workshop.evaluator(task)
    try:
        evaluation = evaluator.evaluate(conversion.candidate, seed=4, profile=False).evaluation
    finally:
        evaluator.oracle.close()
    assert evaluation.verdict is Verdict.OK, evaluation.reason


@pytest.mark.slow
def test_layers_around_a_kernel_are_called_with_the_references_weights(workshop: EvaluatorPool) -> None:
    init = """
self.conv = nn.Conv2d(width, 6, (3, 2), stride=2, padding=(1, 0), bias=True)
self.norm = nn.BatchNorm2d(6)
self.pool = nn.MaxPool2d(2, ceil_mode=True)
self.fc = nn.Linear(6, 5)
"""
    rest = "x = self.pool(F.leaky_relu(self.norm(x), 0.1))\nreturn self.fc(torch.flatten(x, 2)) - 1.5"
    text = written(init, f"x = module.scale(self.conv(x), 0.5)\n{rest}")
    conversion = convert(text)
    assert conversion.operators == ("batch_norm", "conv2d", "leaky_relu", "linear", "max_pool2d", "sub")
    passes(workshop, conversion, init, f"x = self.conv(x) * 0.5\n{rest}")


@pytest.mark.slow
def test_arguments_of_the_model_are_looked_up_in_the_reference(workshop: EvaluatorPool) -> None:
    init = """
self.conv = nn.ConvTranspose2d(width, width, kernel_size=3, stride=width - 2, padding=width - 3, bias=width > 3)
self.norm = nn.GroupNorm(width // 2, width)
self.pool = nn.AvgPool2d(width - 1)
"""
    forward = "return self.pool(self.norm(@(self.conv(x), 2.0)))"
    conversion = convert(written(init, forward.replace("@", "module.scale")))
    assert conversion.candidate is not None
    assert 'attrs["conv.stride.1"]' in conversion.candidate.plan
    passes(workshop, conversion, init, forward.replace("@", "torch.mul"))


BLOCK = """
class Block(nn.Module):
    expansion = 2

    def __init__(self, channels, scale=None):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels * self.expansion, 1), nn.ReLU(inplace=True))
        self.rest = nn.ModuleList([nn.Conv2d(channels * 2, channels, 1) for _ in range(2)])
        self.scale = scale

    def forward(self, x):
        parts = [x]
        for i, layer in enumerate(self.rest):
            if i == 0 or len(self.rest) > 1:
                parts.append(layer(self.first(x)))
        x = torch.cat(parts, dim=1)
        if self.scale is not None:
            x = @(x, self.scale)
        return x

def tail(x, by: float = 2.0):
    return torch.tanh(x).mean(dim=(2, 3)) / by
"""


@pytest.mark.slow
def test_modules_functions_and_lists_of_a_candidate_become_functions_of_the_plan(workshop: EvaluatorPool) -> None:
    init = """
layers = []
for i in range(2):
    layers.append(Block(4 * 3 ** i, scale=0.5 if i else None))
self.blocks = nn.Sequential(*layers)
"""
    forward = "return tail(self.blocks(x))"
    conversion = convert(written(init, forward, BLOCK.replace("@", "module.scale")))
    passes(workshop, conversion, init, forward, BLOCK.replace("@", "torch.mul"))


FUNCTION = """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(x)
        ctx.by = by
        return @(x, by)

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError

scaled = Scaled.apply
"""


@pytest.mark.slow
def test_an_autograd_function_is_its_forward(workshop: EvaluatorPool) -> None:
    forward = "return scaled(x, 3.0) + Scaled.apply(x, 0.5)"
    conversion = convert(written("pass", forward, FUNCTION.replace("@", "module.scale")))
    passes(workshop, conversion, "pass", "return x * 3.0 + x * 0.5")


SEVERAL = r"""
__global__ void scale_kernel(const float* x, float* out, float by, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * by;
}

std::vector<torch::Tensor> scale(torch::Tensor x, float by) {
    const auto [b, c] = std::make_tuple(x.size(0), x.size(1));
    const int dim3 = x.size(3);
    if (dim3 < 1) {
        throw std::invalid_argument("empty");
    }
    if (x.is_cuda() && b == 0) AT_ERROR("empty"); else if (c < 1) AT_ERROR("empty");
    std::vector<int64_t> sizes;
    for (int i = 0; i < x.dim(); i++) {
        if (i != 1) sizes.push_back(x.size(i));
    }
    auto others = x.sizes().vec();
    others.erase(others.begin() + 1);
    others[0] = b;
    auto total = x.sum(1);
    auto out = torch::empty(sizes, x.options());
    auto unused = torch::zeros(others, x.options());
    const int n = out.numel();
    scale_kernel<<<(n + 255) / 256, 256>>>(total.data_ptr<float>(), out.data_ptr<float>(), by, n);
    return {torch::sqrt(out) * 2 - unused};
}
"""


@pytest.mark.slow
def test_host_code_may_call_torch_and_build_shapes(workshop: EvaluatorPool) -> None:
    conversion = convert(written("pass", "return module.scale(x, 0.5)[0]", cuda=SEVERAL))
    passes(workshop, conversion, "pass", "return torch.sqrt(x.sum(1) * 0.5) * 2")


POINTER = "by.has_value() ? by.value().data_ptr<float>() : nullptr"
OPTIONAL = (
    SCALE.replace("torch::Tensor x, float by) {", "torch::Tensor x, torch::optional<torch::Tensor> by) {")
    .replace("out.data_ptr<float>(), by, n)", f"out.data_ptr<float>(), {POINTER}, n)")
    .replace("float by, int n", "const float* by, int n")
    .replace("x[i] * by", "by ? x[i] * by[0] : x[i]")
)


@pytest.mark.slow
def test_a_pointer_that_may_be_null_is_passed_where_there_is_a_tensor(workshop: EvaluatorPool) -> None:
    init = "self.by = nn.Parameter(torch.rand(1))"
    conversion = convert(written(init, "return module.scale(x, self.by)", cuda=OPTIONAL))
    passes(workshop, conversion, init, "return x * self.by")


@pytest.mark.parametrize(
    ("init", "forward", "why"),
    [
        ("pass", "y = x * 2.0\nz = F.relu(y, inplace=True)\nreturn module.scale(y + z, 1.0)", "read later as `y`"),
        ("pass", "y = x * 2.0\nz = y\ny += 1.0\nreturn module.scale(y + z, 1.0)", "read later as `z`"),
        ("pass", "return module.scale(x.transpose(1, 2), 1.0)", "`x` is not contiguous"),
        ("pass", "return module.scale((x + x.transpose(2, 3)).relu(), 1.0)", "`x` is not contiguous"),
        ("pass", "x.relu_()\nreturn module.scale(x, 1.0)", "read later as `x`"),
        (
            "pass",
            "for i in range(2):\n    x = module.scale(x, 1.0)\n    x = x.transpose(2, 3)\nreturn x",
            "a loop after which `x` is another kind",
        ),
        ("pass", "return module.scale(x, x.mean().item())", "torch's `item`"),
        ("self.fc = nn.Linear(8, 8).eval()", "return module.scale(self.fc(x), 1.0)", "a mode other than"),
        (
            "self.layers = nn.Sequential(*[nn.ReLU() for _ in range(width)])",
            "return module.scale(self.layers(x), 1.0)",
            "follows from the constructor's arguments",
        ),
        (
            "self.rnn = nn.LSTM(8, 8)",
            "return module.scale(self.rnn(x), 1.0)",
            "follows from the constructor's arguments",
        ),
        ("pass", "return module.scale(torch.fft.fft(x), 1.0)", ""),
        ("pass", "return module.scale(x.half(), 1.0) if x > 0 else x", "a comparison of tensors"),
        (
            "self.conv = nn.Conv2d(4, 4, 3, padding_mode='circular')",
            "return module.scale(self.conv(x), 1.0)",
            "circular",
        ),
    ],
)
def test_what_would_compute_something_else_is_refused(init: str, forward: str, why: str) -> None:
    conversion = convert(written(init, forward))
    assert conversion.candidate is None
    assert why.replace("circular", "padding_mode") in " ".join(problem.why for problem in conversion.problems)


def test_a_kernel_that_reads_a_transposed_tensors_memory_is_refused() -> None:
    old = "auto out = torch::empty_like(x);"
    conversion = convert(
        written("pass", "return module.scale(x, 1.0)", cuda=SCALE.replace(old, f"x = x.transpose(0, 1);{old}"))
    )
    assert "the memory of a tensor that is not contiguous" in conversion.problems[0].why
    old = "return out;"
    conversion = convert(
        written("pass", "return module.scale(x, 1.0)", cuda=SCALE.replace(old, "return out.transpose(0, 1);"))
    )
    assert "it returns a tensor that is not contiguous" in conversion.problems[0].why


def test_a_tensor_that_is_copied_in_one_branch_alone_is_not_contiguous() -> None:
    old = "auto out = torch::empty_like(x);"
    ahead = "auto y = x.transpose(0, 1); if (x.size(0) > 2) { y = y.contiguous(); }"
    cuda = SCALE.replace(old, f"{ahead} {old}").replace("(x.data_ptr<float>()", "(y.data_ptr<float>()")
    conversion = convert(written("pass", "return module.scale(x, 1.0)", cuda=cuda))
    assert "the memory of a tensor that is not contiguous" in conversion.problems[0].why
    guarded = cuda.replace("x.size(0) > 2", "!y.is_contiguous()")
    assert convert(written("pass", "return module.scale(x, 1.0)", cuda=guarded)).problems == ()


def test_a_loop_that_copies_one_tensor_and_transposes_another_is_refused() -> None:
    old = "auto out = torch::empty_like(x);"
    loop = "for (int i = 0; i < 3; i++) { y = y.contiguous(); z = z.transpose(0, 1); }"
    cuda = SCALE.replace(old, f"auto y = x.transpose(0, 1); auto z = x; {loop} {old}")
    conversion = convert(written("pass", "return module.scale(x, 1.0)", cuda=cuda))
    assert "a loop after which a tensor is no more contiguous" in conversion.problems[0].why


def test_a_tensor_that_a_loop_makes_contiguous_may_still_not_be() -> None:
    old = "auto out = torch::empty_like(x);"
    loop = "for (int i = 0; i < x.size(0) - 64; i++) { y = y.contiguous(); }"
    cuda = SCALE.replace(old, f"auto y = x.transpose(0, 1); {loop} {old}").replace("return out;", "return y;")
    conversion = convert(written("pass", "return module.scale(x, 1.0)", cuda=cuda))
    assert "it returns a tensor that is not contiguous" in conversion.problems[0].why


@pytest.mark.slow
def test_a_function_called_with_a_number_and_without_becomes_two(workshop: EvaluatorPool) -> None:
    classes = "def tail(x, by=None):\n    if by is None:\n        return x\n    return module.scale(x, by)\n"
    conversion = convert(written("pass", "return tail(tail(x) + 1.0, 0.5)", classes))
    passes(workshop, conversion, "pass", "return (x + 1.0) * 0.5")


@pytest.mark.slow
def test_a_branch_for_tensors_that_are_not_contiguous_is_taken_for_these_alone(workshop: EvaluatorPool) -> None:
    forward = """
if not x.is_contiguous():
    return x
y = x.transpose(1, 2)
if not y.is_contiguous():
    y = y.contiguous()
return module.scale(y, 0.5)
"""
    passes(workshop, convert(written("pass", forward)), "pass", "return x.transpose(1, 2) * 0.5")


@pytest.mark.slow
def test_a_copy_of_a_transposed_tensor_is_converted(workshop: EvaluatorPool) -> None:
    conversion = convert(written("pass", "return module.scale(x.transpose(1, 2).contiguous(), 0.5)"))
    passes(workshop, conversion, "pass", "return x.transpose(1, 2) * 0.5")


@pytest.mark.slow
def test_dropout_becomes_an_assertion_that_it_does_nothing(workshop: EvaluatorPool) -> None:
    init = "self.drop = nn.Dropout(p=0.0)"
    conversion = convert(written(init, "return module.scale(self.drop(x), 0.5)"))
    passes(workshop, conversion, init, "return self.drop(x) * 0.5")
    assert conversion.candidate is not None
    assert "dropout is random" in conversion.candidate.plan


def test_operators_of_torch_are_named_in_a_note() -> None:
    conversion = convert(written("pass", "return torch.tanh(module.scale(x, 0.5))"))
    assert "torch computes a part: the task has to allow library(tanh)" in conversion.notes
    assert convert(written("pass", "return module.scale(x, 0.5)")).operators == ()


def test_constructors_that_never_end_are_refused() -> None:
    init = "n = 0\nfor i in range(4000):\n    for j in range(4000):\n        n = n + j"
    conversion = convert(written(init, "return module.scale(x, 0.5)"))
    assert "too long to follow" in conversion.problems[0].why
