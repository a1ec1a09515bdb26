"""The operator of a package: the kernel where it was tested, the reference elsewhere, and torch's own compilers."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelforge.errors import UsageError
from kernelforge.packaging.operator import Operator, _arranged, load

Opened = Callable[[str], Operator]


def linear_weights(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(16, 32, generator=draws), torch.randn(16, generator=draws)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.nn.functional.linear(x, weight, bias))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["softmax", "linear"])
def test_the_kernel_runs_at_every_tested_size(operator_of: Opened, task: str) -> None:
    operator = operator_of(task)
    assert [size.name for size in operator.manifest.sizes] == ["full", "small", "hidden_odd"]
    for size in operator.manifest.sizes:
        comparison = operator.check(size.name, seed=2)
        assert comparison.ok, comparison.message
        assert comparison.total > 0
    assert operator.fallbacks == Counter()
    assert operator.setups == (3 if task == "linear" else 0)
    with pytest.raises(UsageError, match="'huge', but at full, small, hidden_odd"):
        operator.check("huge")


@pytest.mark.slow
def test_setup_runs_once_for_a_set_of_weights(operator_of: Opened) -> None:
    operator, x = operator_of("linear"), torch.randn(8, 32)
    weight, bias = linear_weights()
    for _ in range(2):
        torch.testing.assert_close(operator(x, weight, bias)[0], linear(x, weight, bias))
    assert operator.setups == 1
    weight.mul_(2)
    torch.testing.assert_close(operator(x, weight, bias)[0], linear(x, weight, bias))
    assert operator.setups == 2
    weight.data = linear_weights(1)[0]  # no new version, another address
    torch.testing.assert_close(operator(x, weight, bias)[0], linear(x, weight, bias))
    assert operator.setups == 3
    other = linear_weights(2)
    torch.testing.assert_close(operator(x, *other)[0], linear(x, *other))
    operator(x, weight, bias)
    assert (operator.setups, len(operator._prepared)) == (4, 2)
    del weight, bias, other
    gc.collect()
    latest = linear_weights(3)
    torch.testing.assert_close(operator(x, *latest)[0], linear(x, *latest))
    assert len(operator._prepared) == 1
    with torch.inference_mode():
        unversioned = linear_weights(4)
        operator(x, *unversioned), operator(x, *unversioned)
    assert operator.setups == 7


@pytest.mark.slow
def test_torch_compiles_and_exports_it(operator_of: Opened) -> None:
    operator, x = operator_of("linear"), torch.randn(8, 32)
    weights = linear_weights()

    def net(x: torch.Tensor) -> torch.Tensor:
        return operator(x + 1, *weights)[0].sum(0)

    expected = linear(x + 1, *weights).sum(0)
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="aot_eager")(x), expected)
    torch.library.opcheck(operator._call, (x, *weights))
    torch.library.opcheck(operator._call, (x[:3], *weights))
    model = operator.module()
    with torch.no_grad():
        x = torch.randn(16, 64)
        exported = torch.export.export(model, (x,))
        assert next(str(node.target) for node in exported.graph.nodes if node.op == "call_function") == (
            operator.manifest.operator.replace("::", ".") + ".default"
        )
        torch.testing.assert_close(exported.module()(x), torch.relu(model.fc(x)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x, w, b: (x[:3], w, b), "shape"),
        (lambda x, w, b: (x.double(), w.double(), b.double()), "dtype"),
        (lambda x, w, b: (x.t().contiguous().t(), w, b), "stride"),
        (lambda x, w, b: (x, w.t().contiguous().t(), b), None),
        (lambda x, w, b: (torch.cat([x, x], 1)[:, ::2], w, b), "stride"),
    ],
)
def test_what_was_not_tested_gets_the_reference(operator_of: Opened, change: Callable, reason: str | None) -> None:
    operator = operator_of("linear")
    values = change(torch.randn(8, 32), *linear_weights())
    (output,) = operator(*values)
    torch.testing.assert_close(output, linear(*values))
    assert output.is_contiguous()
    assert operator.fallbacks == Counter([reason] if reason else [])


@pytest.mark.slow
def test_another_gpu_gets_the_reference(operator_of: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = operator_of("softmax")
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with FakeTensorMode():
        x = torch.empty(8, 64, device="cuda")
    assert operator.manifest.arch == "sm_90a"
    assert operator._match([x]) == (1, None)
    capability = (8, 0)
    assert operator._match([x]) == (0, "device")
    assert operator._match([torch.empty(8, 64, device="meta")]) == (0, "device")


@pytest.mark.slow
def test_a_gradient_comes_from_the_reference(operator_of: Opened) -> None:
    operator, x = operator_of("linear"), torch.randn(8, 32)
    weight, bias = (weight.requires_grad_() for weight in linear_weights())
    for call in (operator, torch.compile(operator, backend="eager")):
        weight.grad = bias.grad = None
        call(x, weight, bias)[0].square().sum().backward()
        expected = torch.autograd.grad(linear(x, weight, bias).square().sum(), (weight, bias))
        torch.testing.assert_close((weight.grad, bias.grad), expected)
    assert operator.fallbacks == Counter(gradient=2)
    with torch.no_grad():
        operator(x, weight, bias)
    assert operator.fallbacks == Counter(gradient=2)


@pytest.mark.slow
def test_transforms_and_forward_mode_go_through_the_reference(operator_of: Opened) -> None:
    """Torch has no rule for them: the derivative by forward mode was zero, in silence."""
    operator, x, (weight, bias) = operator_of("linear"), torch.randn(8, 32), linear_weights()

    def call(value: torch.Tensor) -> torch.Tensor:
        return operator(value, weight, bias)[0]

    def plain(value: torch.Tensor) -> torch.Tensor:
        return linear(value, weight, bias)

    torch.testing.assert_close(torch.vmap(call)(torch.stack([x, -x])), torch.stack([plain(x), plain(-x)]))
    for transform in (lambda f: torch.func.jvp(f, (x,), (x,)), lambda f: torch.func.vjp(f, x)[1](plain(x))):
        torch.testing.assert_close(transform(call), transform(plain))
    with torch.autograd.forward_ad.dual_level():
        dual = call(torch.autograd.forward_ad.make_dual(x, x))
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(tangent, torch.func.jvp(plain, (x,), (x,))[1])
    assert operator.fallbacks == Counter(transform=4)


@pytest.mark.slow
def test_a_module_keeps_the_state_of_the_tasks(operator_of: Opened) -> None:
    operator = operator_of("linear")
    model = operator.module(32, 16)
    assert list(model.state_dict()) == ["fc.weight", "fc.bias"]
    x = torch.randn(8, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x), torch.relu(model.fc(x)))
        assert operator.fallbacks == Counter()
        torch.testing.assert_close(model(x[:2]), torch.relu(model.fc(x[:2])))
        assert operator.fallbacks == Counter(shape=1)
        model.eval()
        model(x)
        other = operator.module(32, 17)
        torch.testing.assert_close(other(x), torch.relu(other.fc(x)))
    assert operator.fallbacks == Counter(shape=1, training=1, arguments=1)
    assert operator.setups == 1


def test_results_are_arranged_as_the_references() -> None:
    first, second, third = (torch.full((1,), value) for value in (1.0, 2.0, 3.0))
    arranged = _arranged(
        {"a": torch.empty(0), "b": [None, (torch.empty(0), torch.empty(0))]}, iter((first, second, third))
    )
    assert arranged == {"a": first, "b": [None, (second, third)]}


@pytest.mark.slow
def test_numbers_and_dicts_are_those_of_the_reference(operator_of: Opened) -> None:
    operator, x = operator_of("scaled"), torch.randn(64)
    for k, s, reason in ((3, 0.5, None), (4, 0.5, "value"), (3.0, 0.5, "dtype"), (3, 0.25, "value")):
        operator.fallbacks.clear()
        if reason != "dtype":  # torch itself refuses a float for an int
            torch.testing.assert_close(operator(x, k, s, True, None), (x * s + k, x - k))
            assert operator.fallbacks == Counter([reason] if reason else [])
        assert operator._match([x, k, s, True, None]) == (0, reason)
    operator.fallbacks.clear()
    model = torch.compile(operator.module(), fullgraph=True, backend="aot_eager")
    result = model(x, 3, 0.5, True, None)
    torch.testing.assert_close(result, {"scaled": x * 0.5 + 3, "rest": (x - 3,)})
    torch.library.opcheck(operator._call, (x[:5], 3, 0.5, True, None))
    operator.module()(x, 3, 0.5, flag=True)
    assert operator.fallbacks["arguments"] == 1


@pytest.mark.slow
def test_a_wrong_number_of_values_is_named(operator_of: Opened) -> None:
    with pytest.raises(UsageError, match=r"1 inputs, then 2 weights \(fc.weight, fc.bias\); it was given 1 values"):
        operator_of("linear")(torch.randn(8, 32))


@pytest.mark.slow
def test_one_content_is_one_operator(packages: dict[str, Path], operator_of: Opened, tmp_path: Path) -> None:
    operator = operator_of("softmax")
    module = packages["softmax"] / "build" / "torch-universal" / "kernelforge_op_softmax"
    assert load(module) is load(packages["softmax"]) is operator
    with pytest.raises(UsageError, match=r"has no package.json"):
        load(tmp_path)
