"""Helper functions in the language of plans, one for each operator of torch that a conversion can call.

Their parameters are torch's own. An annotation says what an argument is, and is taken off before the plan is written:

    Tensor, Maybe       a tensor; a tensor or None
    Tensors             a sequence of tensors
    Int, Number, Bool   a number
    String              a string
    Dims, Shape         integers, of which one may be given bare; Shape also as separate arguments
    Ints1, Ints2, ...   so many integers; a bare one stands for all

The return annotation says what torch gives back, and in which layout: ``contiguous`` where nothing is said, ``like``
its arguments, ``permuted`` for a view that is not contiguous. Results of a plan are always contiguous, so it matters
where a kernel would read the memory. ``View`` is a tensor in the memory of the argument.
"""

_UNARY = (
    "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "neg", "square", "reciprocal", "sin", "cos", "erf",
    "floor", "ceil", "round", "sign", "silu", "mish", "hardswish", "hardsigmoid", "relu6", "softsign", "logsigmoid",
    "selu", "expm1", "log1p", "log2", "tanhshrink", "clone",
)  # fmt: skip

_ONE = """
def torch_NAME(input: Tensor) -> "Tensor like":
    out = empty_like(input)
    library("NAME", input, out=out)
    return out
"""

_WITH_NUMBERS = {
    "leaky_relu": "negative_slope: Number = 0.01", "elu": "alpha: Number = 1.0", "celu": "alpha: Number = 1.0",
    "hardtanh": "min_val: Number = -1.0, max_val: Number = 1.0",
    "softplus": "beta: Number = 1.0, threshold: Number = 20.0", "threshold": "threshold: Number, value: Number",
    "softshrink": "lambd: Number = 0.5", "hardshrink": "lambd: Number = 0.5",
    "clamp": "lowest: Number = None, highest: Number = None", "clamp_min": "lowest: Number",
    "clamp_max": "highest: Number", "pow": "exponent: Number", "softmax": "dim: Int", "log_softmax": "dim: Int",
    "cumsum": "dim: Int", "cumprod": "dim: Int", "flip": "dims: Dims", "rsub": "other: Number",
    "normalize": "p: Number = 2.0, dim: Int = 1, eps: Number = 1e-12",
}  # fmt: skip

_NUMBERS = """
def torch_NAME(input: Tensor, PARAMETERS) -> "Tensor like":
    out = empty_like(input)
    library("NAME", input, ARGUMENTS, out=out)
    return out
"""

_BINARY = """
def torch_NAME(input: Tensor, other: Tensor) -> "Tensor like":
    assert input.dtype == other.dtype, "NAME of different types"
    out = empty(torch_broadcast(input.shape, other.shape), dtype=input.dtype)
    library("NAME", input, other, out=out)
    return out


def torch_NAME_number(input: Tensor, other: Number) -> "Tensor like":
    out = empty_like(input)
    library("NAME", input, other, out=out)
    return out
"""

_REDUCTION = """
def torch_NAME(input: Tensor, dim: Dims = None, keepdim: Bool = False) -> "Tensor like":
    out = empty(torch_reduced(input.shape, dim, keepdim), dtype=input.dtype)
    if dim is None:
        library("NAME", input, out=out)
    else:
        library("NAME", input, dim, keepdim, out=out)
    return out
"""

_VARIANCE = """
def torch_NAME(input: Tensor, dim: Dims = None, unbiased: Bool = True, keepdim: Bool = False) -> "Tensor like":
    out = empty(torch_reduced(input.shape, dim, keepdim), dtype=input.dtype)
    library("NAME", input, range(input.ndim) if dim is None else dim, unbiased, keepdim and dim is not None, out=out)
    return out
"""

_EXTREME = """
def torch_NAME_along(input: Tensor, dim: Int, keepdim: Bool = False) -> "Pair like":
    shape = torch_reduced(input.shape, (dim,), keepdim)
    values, indices = empty(shape, dtype=input.dtype), empty(shape, dtype=int64)
    library("NAME", input, dim, keepdim, out=(values, indices))
    return values, indices


def torch_NAME(input: Tensor) -> Tensor:
    out = empty((), dtype=input.dtype)
    library("NAME", input, out=out)
    return out


def torch_argNAME(input: Tensor, dim: Int, keepdim: Bool = False) -> Tensor:
    out = empty(torch_reduced(input.shape, (dim,), keepdim), dtype=int64)
    library("argNAME", input, dim, keepdim, out=out)
    return out
"""

_DIMENSIONS = """
def torch_convNd(
    input: Tensor, weight: Tensor, bias: Maybe = None, stride: IntsN = None, padding: IntsN = None,
    dilation: IntsN = None, groups: Int = 1,
) -> Tensor:
    stride = torch_ones(N) if stride is None else stride
    padding = [0 for i in range(N)] if padding is None else padding
    dilation = torch_ones(N) if dilation is None else dilation
    extents = [
        (input.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(N)
    ]
    out = empty([input.shape[0], weight.shape[0]] + extents, dtype=input.dtype)
    library("convNd", input, weight, bias, stride, padding, dilation, groups, out=out)
    return out


def torch_conv_transposeNd(
    input: Tensor, weight: Tensor, bias: Maybe = None, stride: IntsN = None, padding: IntsN = None,
    output_padding: IntsN = None, groups: Int = 1, dilation: IntsN = None,
) -> Tensor:
    stride = torch_ones(N) if stride is None else stride
    padding = [0 for i in range(N)] if padding is None else padding
    output_padding = [0 for i in range(N)] if output_padding is None else output_padding
    dilation = torch_ones(N) if dilation is None else dilation
    extents = [
        (input.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (weight.shape[2 + i] - 1)
        + output_padding[i] + 1
        for i in range(N)
    ]
    out = empty([input.shape[0], weight.shape[1] * groups] + extents, dtype=input.dtype)
    library("conv_transposeNd", input, weight, bias, stride, padding, output_padding, groups, dilation, out=out)
    return out


def torch_max_poolNd(
    input: Tensor, kernel_size: IntsN, stride: IntsN = None, padding: IntsN = None, dilation: IntsN = None,
    ceil_mode: Bool = False,
) -> Tensor:
    stride = kernel_size if stride is None else stride
    padding = [0 for i in range(N)] if padding is None else padding
    dilation = torch_ones(N) if dilation is None else dilation
    out = empty(torch_pooled(input.shape, kernel_size, stride, padding, dilation, ceil_mode), dtype=input.dtype)
    library("max_poolNd", input, kernel_size, stride, padding, dilation, ceil_mode, out=out)
    return out


def torch_avg_poolNd(
    input: Tensor, kernel_size: IntsN, stride: IntsN = None, padding: IntsN = None, ceil_mode: Bool = False,
    count_include_pad: Bool = True,
) -> Tensor:
    stride = kernel_size if stride is None else stride
    padding = [0 for i in range(N)] if padding is None else padding
    out = empty(torch_pooled(input.shape, kernel_size, stride, padding, torch_ones(N), ceil_mode), dtype=input.dtype)
    library("avg_poolNd", input, kernel_size, stride, padding, ceil_mode, count_include_pad, out=out)
    return out
"""

_ADAPTIVE_POOL = """
def torch_NAME(input: Tensor, output_size: IntsN) -> Tensor:
    out = empty([n for n in input.shape[: input.ndim - N]] + [n for n in output_size], dtype=input.dtype)
    library("NAME", input, output_size, out=out)
    return out
"""

_OTHERS = """
def torch_ones(count):
    return [1 for i in range(count)]


def torch_broadcast(a, b):
    left = [1 for i in range(len(b) - len(a))] + a
    right = [1 for i in range(len(a) - len(b))] + b
    return [q if p == 1 else p for p, q in zip(left, right)]


def torch_reduced(shape, dim, keepdim):
    axes = range(len(shape)) if dim is None else [axis % len(shape) for axis in dim]
    if keepdim and dim is not None:
        return [1 if i in axes else n for i, n in enumerate(shape)]
    return [n for i, n in enumerate(shape) if i not in axes]


def torch_pooled(shape, kernel_size, stride, padding, dilation, ceil_mode):
    count = len(kernel_size)
    first = len(shape) - count
    extents = []
    for i in range(count):
        free = shape[first + i] + 2 * padding[i] - dilation[i] * (kernel_size[i] - 1) - 1
        extent = (ceil_div(free, stride[i]) if ceil_mode else free // stride[i]) + 1
        # A window that would begin in the padding behind the image is dropped.
        last = (extent - 1) * stride[i] >= shape[first + i] + padding[i]
        extents += [extent - 1 if ceil_mode and last else extent]
    return shape[:first] + extents


def torch_gelu(input: Tensor, approximate: String = "none") -> "Tensor like":
    out = empty_like(input)
    library("gelu", input, approximate=approximate, out=out)
    return out


def torch_logsumexp(input: Tensor, dim: Dims, keepdim: Bool = False) -> "Tensor like":
    out = empty(torch_reduced(input.shape, dim, keepdim), dtype=input.dtype)
    library("logsumexp", input, dim, keepdim, out=out)
    return out


def torch_norm(input: Tensor, p: Number = 2.0, dim: Dims = None, keepdim: Bool = False) -> "Tensor like":
    out = empty(torch_reduced(input.shape, dim, keepdim), dtype=input.dtype)
    if dim is None:
        library("norm", input, p, out=out)
    else:
        library("norm", input, p, dim, keepdim, out=out)
    return out


def torch_cosine_similarity(x1: Tensor, x2: Tensor, dim: Int = 1, eps: Number = 1e-8) -> "Tensor like":
    out = empty(torch_reduced(torch_broadcast(x1.shape, x2.shape), (dim,), False), dtype=x1.dtype)
    library("cosine_similarity", x1, x2, dim, eps, out=out)
    return out


def torch_mse_loss(input: Tensor, target: Tensor) -> Tensor:
    out = empty((), dtype=input.dtype)
    library("mse_loss", input, target, out=out)
    return out


def torch_linear(input: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
    out = empty(input.shape[:-1] + (weight.shape[0],), dtype=input.dtype)
    library("linear", input, weight, bias, out=out)
    return out


def torch_matmul(input: Tensor, other: Tensor) -> Tensor:
    assert input.ndim > 1 and other.ndim > 1, "matmul of a vector"
    batch = torch_broadcast(input.shape[:-2], other.shape[:-2])
    out = empty(batch + [input.shape[-2], other.shape[-1]], dtype=input.dtype)
    library("matmul", input, other, out=out)
    return out


def torch_mm(input: Tensor, mat2: Tensor) -> Tensor:
    out = empty((input.shape[0], mat2.shape[1]), dtype=input.dtype)
    library("mm", input, mat2, out=out)
    return out


def torch_bmm(input: Tensor, mat2: Tensor) -> Tensor:
    out = empty((input.shape[0], input.shape[1], mat2.shape[2]), dtype=input.dtype)
    library("bmm", input, mat2, out=out)
    return out


def torch_addmm(input: Tensor, mat1: Tensor, mat2: Tensor) -> Tensor:
    out = empty((mat1.shape[0], mat2.shape[1]), dtype=mat1.dtype)
    library("addmm", input, mat1, mat2, out=out)
    return out


def torch_batch_norm(
    input: Tensor, running_mean: Maybe, running_var: Maybe, weight: Maybe = None, bias: Maybe = None,
    training: Bool = False, momentum: Number = 0.1, eps: Number = 1e-5,
) -> Tensor:
    # In training the statistics are those of the batch, and the running ones would be written to.
    mean, var = (None, None) if training else (running_mean, running_var)
    out = empty_like(input)
    library("batch_norm", input, weight, bias, mean, var, training, momentum, eps, True, out=out)
    return out


def torch_instance_norm(
    input: Tensor, running_mean: Maybe = None, running_var: Maybe = None, weight: Maybe = None, bias: Maybe = None,
    use_input_stats: Bool = True, momentum: Number = 0.1, eps: Number = 1e-5,
) -> Tensor:
    assert use_input_stats, "instance_norm with running statistics"
    out = empty_like(input)
    library("instance_norm", input, weight, bias, None, None, True, momentum, eps, True, out=out)
    return out


def torch_group_norm(
    input: Tensor, num_groups: Int, weight: Maybe = None, bias: Maybe = None, eps: Number = 1e-5
) -> Tensor:
    out = empty_like(input)
    library("group_norm", input, num_groups, weight, bias, eps, out=out)
    return out


def torch_layer_norm(
    input: Tensor, normalized_shape: Dims, weight: Maybe = None, bias: Maybe = None, eps: Number = 1e-5
) -> Tensor:
    out = empty_like(input)
    library("layer_norm", input, normalized_shape, weight, bias, eps, out=out)
    return out


def torch_dropout(input: Tensor, p: Number = 0.5, training: Bool = True) -> "View like":
    assert p == 0 or not training, "dropout is random"
    return input


def torch_transpose(input: Tensor, dim0: Int, dim1: Int) -> "Tensor permuted":
    a, b = dim0 % input.ndim, dim1 % input.ndim
    shape = [input.shape[b if i == a else a if i == b else i] for i in range(input.ndim)]
    out = empty(shape, dtype=input.dtype)
    library("transpose", input, dim0, dim1, out=out)
    return out


def torch_t(input: Tensor) -> "Tensor permuted":
    return torch_transpose(input, 0, 1) if input.ndim == 2 else input


def torch_permute(input: Tensor, dims: Shape) -> "Tensor permuted":
    out = empty([input.shape[axis] for axis in dims], dtype=input.dtype)
    library("permute", input, dims, out=out)
    return out


def torch_expand(input: Tensor, size: Shape) -> "Tensor permuted":
    new = len(size) - input.ndim
    out = empty([input.shape[i - new] if n == -1 else n for i, n in enumerate(size)], dtype=input.dtype)
    library("broadcast_to", input, out.shape, out=out)
    return out


def torch_expand_as(input: Tensor, other: Tensor) -> "Tensor permuted":
    return torch_expand(input, other.shape)


def torch_select(input: Tensor, dim: Int, index: Int) -> "Tensor permuted":
    out = empty(torch_reduced(input.shape, (dim,), False), dtype=input.dtype)
    library("select", input, dim, index, out=out)
    return out


def torch_narrow(input: Tensor, dim: Int, start: Int, length: Int) -> "Tensor permuted":
    axis = dim % input.ndim
    out = empty([length if i == axis else n for i, n in enumerate(input.shape)], dtype=input.dtype)
    library("narrow", input, dim, start, length, out=out)
    return out


def torch_cat(tensors: Tensors, dim: Int = 0) -> Tensor:
    first = tensors[0]
    axis = dim % first.ndim
    extents = [tensor.shape[axis] for tensor in tensors]
    shape = [sum(extents) if i == axis else n for i, n in enumerate(first.shape)]
    # A part of a tensor is contiguous along its first dimension alone.
    swapped = empty([shape[axis if i == 0 else 0 if i == axis else i] for i in range(len(shape))], dtype=first.dtype)
    start = 0
    for tensor, extent in zip(tensors, extents):
        assert tensor.dtype == first.dtype, "cat of different types"
        library("transpose", tensor, 0, axis, out=swapped[start : start + extent])
        start += extent
    if axis == 0:
        return swapped
    out = empty(shape, dtype=first.dtype)
    library("transpose", swapped, 0, axis, out=out)
    return out


def torch_stack(tensors: Tensors, dim: Int = 0) -> Tensor:
    return torch_cat([torch_unsqueeze(tensor, dim) for tensor in tensors], dim % (tensors[0].ndim + 1))


def torch_unsqueeze(input: Tensor, dim: Int) -> "View like":
    axis = dim % (input.ndim + 1)
    return input.view(input.shape[:axis] + (1,) + input.shape[axis:])


def torch_squeeze(input: Tensor, dim: Dims = None) -> "View like":
    axes = range(input.ndim) if dim is None else [axis % input.ndim for axis in dim]
    return input.view([n for i, n in enumerate(input.shape) if n != 1 or i not in axes])


def torch_flatten(input: Tensor, start_dim: Int = 0, end_dim: Int = -1) -> "View like":
    first, last = start_dim % input.ndim, end_dim % input.ndim
    return input.view(input.shape[:first] + (prod(input.shape[first : last + 1]),) + input.shape[last + 1 :])


def torch_view_as(input: Tensor, other: Tensor) -> "View like":
    return input.view(other.shape)
"""


def _parameter_names(parameters: str) -> list[str]:
    return [part.split(":")[0].strip() for part in parameters.split(", ")]


PLANS = "".join([
    *(_ONE.replace("NAME", name) for name in _UNARY),
    *(
        _NUMBERS.replace("NAME", name).replace("PARAMETERS", parameters)
        .replace("ARGUMENTS", ", ".join(_parameter_names(parameters)))
        for name, parameters in _WITH_NUMBERS.items()
    ),
    *(_BINARY.replace("NAME", name) for name in ("add", "sub", "mul", "div")),
    *(_BINARY.replace("NAME", name).split("\n\n\n")[0] + "\n" for name in ("maximum", "minimum")),
    *(_REDUCTION.replace("NAME", name) for name in ("sum", "mean", "amax", "amin")),
    *(_VARIANCE.replace("NAME", name) for name in ("var", "std")),
    *(_EXTREME.replace("NAME", name) for name in ("max", "min")),
    *(_DIMENSIONS.replace("Nd", f"{n}d").replace("IntsN", f"Ints{n}").replace("(N)", f"({n})") for n in (1, 2, 3)),
    *(_ADAPTIVE_POOL.replace("NAME", f"adaptive_{kind}_pool{n}d").replace("IntsN", f"Ints{n}")
      .replace("- N]", f"- {n}]") for kind, n in (("avg", 1), ("avg", 2), ("avg", 3), ("max", 2), ("max", 3))),
    _OTHERS,
])  # fmt: skip
"""Every helper function, as text."""
