"""A model of this process with operators, on the emulated device."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelforge.errors import UsageError
from kernelforge.packaging.splice import splice
from tests.packaging.two_blocks import TWO_BLOCKS, norm_package

__all__ = ["norm_package"]


def tensors(result: Any) -> list[torch.Tensor]:
    assert (list(result), result["name"]) == (["y", "gates", "name"], "net")
    return [result["y"], *result["gates"]]


@pytest.mark.slow
def test_a_spliced_model_gives_the_same_results_in_the_same_arrangement(norm_package: Callable[..., Path]) -> None:
    module = types.ModuleType("net")
    exec(TWO_BLOCKS, module.__dict__)
    model, inputs = module.make_model(), module.make_inputs()
    spliced = splice(model, inputs, [norm_package()])
    with torch.no_grad():
        expected, got = tensors(model(*inputs)), tensors(spliced(*inputs))
        torch.testing.assert_close(got, expected)
        assert not torch.equal(got[0], expected[0]), "the kernel sums in another order than torch"
        compiled = torch.compile(spliced, backend="eager", fullgraph=True)
        torch.testing.assert_close(tensors(compiled(*inputs)), expected)
        model.layers[1].norm.bias.add_(1)
        torch.testing.assert_close(tensors(spliced(*inputs)), tensors(model(*inputs)))
        assert spliced.others == {}
        spliced(torch.randn(2, 16, 32))
        assert spliced.others == {"arguments": 1}
    assert model.calls == 6, "a buffer that the model writes"
    assert spliced.get_parameter("graph.layers.0.norm.weight") is model.layers[0].norm.weight


@pytest.mark.slow
def test_a_model_without_packages_is_refused() -> None:
    with pytest.raises(UsageError, match="name at least one package"):
        splice(torch.nn.ReLU(), [torch.randn(2)], [])
