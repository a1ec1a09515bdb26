"""A converted plan finds weights and attributes under the names that the task's reference has for them."""

from __future__ import annotations

from kernelforge.modelnew.convert import convert
from kernelforge.modelnew.convert.task_names import with_names_of_reference
from tests.modelnew.test_network_converter import SCALE, written

REFERENCE = """
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, channels, window, stride, by):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, window, stride=stride)
        self.pool = nn.MaxPool2d(kernel_size=window)
        self.by = by
"""
ATTRIBUTES = ["conv.kernel_size.0", "conv.kernel_size.1", "conv.stride.0", "conv.stride.1", "pool.kernel_size", "by"]


def test_a_name_becomes_the_only_one_that_ends_alike() -> None:
    plan = 'k(w["weight"], w["bias"], w["fc.bias"], attrs["slope"], attrs["other"])'
    weights, attributes = ["ln.weight", "ln.bias", "fc.bias"], ["act.slope"]
    assert with_names_of_reference(plan, {}, "", weights, attributes) == (
        'k(w["ln.weight"], w["bias"], w["fc.bias"], attrs["act.slope"], attrs["other"])'
    )


def test_an_attribute_that_is_an_argument_becomes_that_of_the_same_argument() -> None:
    plan = 'k(attrs["size"], attrs["steps"], attrs["steps.1"], attrs["factor"], attrs["more"])'
    arguments = {"size": 1, "steps": 2, "factor": 3}
    assert with_names_of_reference(plan, arguments, REFERENCE, [], ATTRIBUTES) == (
        'k(attrs["pool.kernel_size"], attrs["conv.stride.0"], attrs["conv.stride.1"], attrs["by"], attrs["more"])'
    )


def test_parameters_are_matched_by_order_if_their_names_end_alike() -> None:
    plan = 'f(w["fc_fused.weight"], w["fc_fused.bias"], w["norm.weight"])'
    own = ["fc_fused.weight", "fc_fused.bias", "norm.weight"]
    reference = ["fc.weight", "fc.bias", "ln.weight"]
    renamed = with_names_of_reference(plan, {}, "", reference, [], own, reference)
    assert renamed == 'f(w["fc.weight"], w["fc.bias"], w["ln.weight"])'
    for other in (["fc.weight", "ln.weight", "fc.bias"], [*reference, "ln.bias"]):
        assert 'w["norm.weight"]' in with_names_of_reference(plan, {}, "", other, [], own, other)


def test_a_conversion_knows_its_parameters_in_order() -> None:
    init = """
self.rest = nn.Sequential(
    nn.Conv2d(4, 4, 1, bias=False), nn.ReLU(), nn.BatchNorm2d(4), nn.GroupNorm(2, 4, affine=False)
)
self.scale = nn.Parameter(torch.ones(4))
self.eps = width
"""
    conversion = convert(written(init, "return module.scale(x, 1.0)"))
    assert conversion.parameters == ("scale", "rest.0.weight", "rest.2.weight", "rest.2.bias")
    unsure = convert(written("self.fc = nn.Linear(8, 8, bias=width > 2)", "return module.scale(x, 1.0)"))
    assert unsure.parameters == ()


def test_a_question_for_a_weight_takes_the_same_name_as_the_weight() -> None:
    plan = 'f(w["gemm.weight"], (w["gemm.bias"] if "gemm.bias" in w else None))'
    renamed = with_names_of_reference(plan, {}, "", ["linear.weight", "linear.bias"], [])
    assert renamed == 'f(w["linear.weight"], (w["linear.bias"] if "linear.bias" in w else None))'


def test_a_reference_that_cannot_be_read_leaves_the_names() -> None:
    for source in ("", "class Model(", "x = 1"):
        assert with_names_of_reference('attrs["size"]', {"size": 0}, source, [], ["a.b", "b.c"]) == 'attrs["size"]'


def test_a_conversion_knows_which_attributes_are_arguments() -> None:
    init = "self.by = width\nself.twice = width * 2\nself.conv = nn.Conv2d(width, width, 1)"
    conversion = convert(written(init, "return module.scale(x, self.by)"))
    assert conversion.arguments == {"by": 0, "conv.in_channels": 0, "conv.out_channels": 0}


PAIR = SCALE.replace("torch::Tensor x, float by) {", "torch::Tensor x, std::tuple<int, int> by) {").replace(
    "out.data_ptr<float>(), by, n)", "out.data_ptr<float>(), std::get<1>(by), n)"
)


def test_an_attribute_given_as_a_tuple_is_looked_up_item_by_item() -> None:
    conversion = convert(written("self.by = width", "return module.scale(x, self.by)", cuda=PAIR))
    assert conversion.candidate is not None, conversion.problems
    assert 'host_scale(x, (attrs["by.0"], attrs["by.1"]))' in conversion.candidate.plan


def test_a_candidate_without_a_kernel_is_refused() -> None:
    conversion = convert(written("pass", "return torch.tanh(x)"))
    assert [problem.why for problem in conversion.problems] == ["no kernel of the candidate: torch computes all of it"]
