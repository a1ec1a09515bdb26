"""Layers of ``torch.nn``: the operator that each calls, with its weights and the arguments of its constructor."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernelforge.modelnew.convert.cpp_tokens import Unconvertible
from kernelforge.modelnew.convert.torch_operators import Argument


class _Known(NamedTuple):
    signature: str
    """Parameters of the constructor."""
    operator: str
    """Operator of torch; empty for the identity."""
    arguments: str
    """What the operator takes after its input: ``weight`` and ``bias?`` (if there is one), texts in quotes, arguments
    of the constructor, with ``:2`` where the plan needs two integers."""
    refused: tuple[tuple[str, Any], ...] = ()
    """Arguments that must have their default."""


_CONVOLUTION = (
    "in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, padding_mode='zeros'"
)
_TRANSPOSED = (
    "in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0, groups=1, bias=True, dilation=1, "
    "padding_mode='zeros'"
)
_NORM = "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True"
_INSTANCE = "num_features, eps=1e-05, momentum=0.1, affine=False, track_running_stats=False"
_MAX_POOL = "kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False"
_AVG_POOL = "kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None"
_ACTIVATIONS = {
    "ReLU": "relu", "ReLU6": "relu6", "SiLU": "silu", "Mish": "mish", "Hardswish": "hardswish", "SELU": "selu",
    "Hardsigmoid": "hardsigmoid",
}  # fmt: skip
_FUNCTIONS = {
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Softsign": "softsign", "LogSigmoid": "logsigmoid",
    "Tanhshrink": "tanhshrink",
}  # fmt: skip


def _in_dimensions(n: int) -> dict[str, _Known]:
    spaced = f"stride:{n} padding:{n} "
    mode = (("padding_mode", "zeros"),)
    return {
        f"Conv{n}d": _Known(_CONVOLUTION, f"conv{n}d", f"weight bias? {spaced}dilation:{n} groups", mode),
        f"ConvTranspose{n}d": _Known(
            _TRANSPOSED, f"conv_transpose{n}d", f"weight bias? {spaced}output_padding:{n} groups dilation:{n}", mode
        ),
        f"BatchNorm{n}d": _Known(_NORM, "batch_norm", "'None' 'None' weight? bias? 'True' momentum eps"),
        f"InstanceNorm{n}d": _Known(_INSTANCE, "instance_norm", "'None' 'None' weight? bias? 'True' momentum eps"),
        f"MaxPool{n}d": _Known(
            _MAX_POOL, f"max_pool{n}d", f"kernel_size:{n} {spaced}dilation:{n} ceil_mode", (("return_indices", False),)
        ),
        f"AvgPool{n}d": _Known(
            _AVG_POOL, f"avg_pool{n}d", f"kernel_size:{n} {spaced}ceil_mode count_include_pad",
            (("divisor_override", None),),
        ),
        f"AdaptiveAvgPool{n}d": _Known("output_size", f"adaptive_avg_pool{n}d", f"output_size:{n}"),
        f"Dropout{n}d": _Known("p=0.5, inplace=False", "dropout", "p"),
    }  # fmt: skip


LAYERS: Mapping[str, _Known] = {
    **_in_dimensions(1), **_in_dimensions(2), **_in_dimensions(3),
    **{name: _Known("inplace=False", function, "") for name, function in _ACTIVATIONS.items()},
    **{name: _Known("", function, "") for name, function in _FUNCTIONS.items()},
    "Linear": _Known("in_features, out_features, bias=True", "linear", "weight bias?"),
    "GroupNorm": _Known(
        "num_groups, num_channels, eps=1e-05, affine=True", "group_norm", "num_groups weight? bias? eps"
    ),
    "LayerNorm": _Known(
        "normalized_shape, eps=1e-05, elementwise_affine=True, bias=True", "layer_norm", "shape weight bias? eps",
        (("elementwise_affine", True),),
    ),
    **{
        f"AdaptiveMaxPool{n}d": _Known(
            "output_size, return_indices=False", f"adaptive_max_pool{n}d", f"output_size:{n}",
            (("return_indices", False),),
        ) for n in (2, 3)
    },
    "Dropout": _Known("p=0.5, inplace=False", "dropout", "p"),
    "Identity": _Known("", "", ""),
    "Flatten": _Known("start_dim=1, end_dim=-1", "flatten", "start_dim end_dim"),
    "Softmax": _Known("dim", "softmax", "dim"),
    "LogSoftmax": _Known("dim", "log_softmax", "dim"),
    "LeakyReLU": _Known("negative_slope=0.01, inplace=False", "leaky_relu", "negative_slope"),
    "ELU": _Known("alpha=1.0, inplace=False", "elu", "alpha"),
    "CELU": _Known("alpha=1.0, inplace=False", "celu", "alpha"),
    "Hardtanh": _Known("min_val=-1.0, max_val=1.0, inplace=False", "hardtanh", "min_val max_val"),
    "Softplus": _Known("beta=1.0, threshold=20.0", "softplus", "beta threshold"),
    "GELU": _Known("approximate='none'", "gelu", "approximate"),
}  # fmt: skip
"""Class of ``torch.nn`` → what is known of it."""


@dataclass(frozen=True)
class Layer:
    """A layer that a constructor makes."""

    name: str
    """Its class in ``torch.nn``."""
    positional: Sequence[Any] | None
    """Arguments of its constructor; None where they cannot be read."""
    keywords: Mapping[str, Any]
    line: int

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor by name, defaults filled in.

        Raises:
            Unconvertible: they are not its parameters.
        """
        entry = LAYERS[self.name]
        nodes = ast.parse(f"def f({entry.signature}): pass").body[0]
        assert isinstance(nodes, ast.FunctionDef)
        parameters = nodes.args
        names = [argument.arg for argument in parameters.args]
        defaults = names[len(names) - len(parameters.defaults) :]
        settings = {n: ast.literal_eval(v) for n, v in zip(defaults, parameters.defaults, strict=True)}
        keywords = {name: value for name, value in self.keywords.items() if name not in ("device", "dtype")}
        if self.positional is None or len(self.positional) > len(names) or set(keywords) - set(names):
            raise Unconvertible(self.line, f"nn.{self.name}", "arguments of this layer that cannot be read")
        settings |= dict(zip(names, self.positional, strict=False)) | keywords
        for name, default in entry.refused:
            if settings.get(name) != default:
                raise Unconvertible(self.line, f"nn.{self.name}", f"a layer with `{name}` other than {default}")
        return settings

    @property
    def in_place(self) -> bool:
        """Whether it writes to its argument, as far as one can see."""
        return self.settings().get("inplace", False) is not False

    def arguments(self, path: str) -> list[Argument]:
        """Arguments of the operator after its input.

        Args:
            path: Dotted name of the layer in the model, by which the plan finds its weights.

        Raises:
            Unconvertible: an argument of the constructor cannot be passed.
        """
        settings = self.settings()
        return [self._argument(part, path, settings) for part in LAYERS[self.name].arguments.split()]

    def parameters(self) -> list[str] | None:
        """Names of its parameters in order; None where an argument of the model decides.

        Raises:
            Unconvertible: arguments that cannot be read.
        """
        settings = self.settings()
        entries = LAYERS[self.name].arguments.split()
        arguments = [self._weight(name, "", settings) for name in entries if name.rstrip("?") in ("weight", "bias")]
        if any(" in w" in argument.text for argument in arguments):
            return None
        return [argument.text.split(".")[1][:-2] for argument in arguments if argument.kind == "tensor"]

    def sized(self, name: str, path: str) -> Argument:
        """An argument of the constructor as integers, one for each dimension."""
        argument = self._argument(f"{name}:{self.name[-2]}", path, self.settings())
        if argument.kind == "number":
            return Argument(f"({', '.join([argument.text] * int(self.name[-2]))},)", "sequence")
        return argument

    def _argument(self, part: str, path: str, settings: Mapping[str, Any]) -> Argument:
        if part.startswith("'"):
            return Argument(part.strip("'"), "none" if part == "'None'" else "number")
        if part == "shape":
            return Argument(f'w["{path}.weight"].shape', "sequence")
        name, _, count = part.partition(":")
        if name.rstrip("?") in ("weight", "bias"):
            return self._weight(name, path, settings)
        value = settings.get(name)
        if isinstance(value, list | tuple) and all(type(item) in (int, float) for item in value):
            return Argument(f"({', '.join(map(repr, value))}{',' if len(value) == 1 else ''})", "sequence")
        if value is None:
            return Argument("None", "none")
        if isinstance(value, str):
            if count:
                raise Unconvertible(self.line, f"nn.{self.name}", f"`{name}` in words")
            return Argument(repr(value), "string")
        if isinstance(value, int | float):
            return Argument(repr(value), "number")
        if not count:
            return Argument(f'attrs["{path}.{name}"]', "string" if name == "approximate" else "number")
        single = f'attrs["{path}.{name}"]'
        parts = ", ".join(f'attrs["{path}.{name}.{axis}"]' for axis in range(int(count)))
        each = f"({parts}{',' if count == '1' else ''})"
        if self.name.startswith("Conv"):
            return Argument(each, "sequence")
        # Pooling keeps what it was positional: a number or a tuple of them.
        same = f"({', '.join([single] * int(count))}{',' if count == '1' else ''})"
        return Argument(f'({same} if "{path}.{name}" in attrs else {each})', "sequence")

    def _weight(self, name: str, path: str, settings: Mapping[str, Any]) -> Argument:
        weight = name.rstrip("?")
        there = settings.get("affine", settings.get("bias", True)) if name.endswith("?") else True
        text = f'w["{path}.{weight}"]'
        if there is False:
            return Argument("None", "none")
        if there is True:
            return Argument(text, "tensor")
        return Argument(f'({text} if "{path}.{weight}" in w else None)', "tensor")


def layer_operator(layer: Layer) -> str:
    """Name of the operator that a layer calls; empty for the identity."""
    return LAYERS[layer.name].operator
