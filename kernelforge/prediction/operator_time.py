"""Time of one operator of PyTorch on a GPU: the larger of what its bytes and its operations take, by its kind.

Every kind has an efficiency against the GPU's peak bandwidth or arithmetic, and the limits that its kernels are known
for: few blocks, few channels, tiles that do not fill the last wave, several passes over its operand. The numbers are in
``baselines.toml``, with the data that they were fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.prediction.operators import Operator

Parameters = Mapping[str, float]


class Traffic(NamedTuple):
    """Bytes that an operator reads by where they lie, and those that it writes."""

    dram_bytes: float
    l2_bytes: float
    """Written shortly before, so that the L2 still holds them."""
    write_bytes: float

    @property
    def read_bytes(self) -> float:
        return self.dram_bytes + self.l2_bytes


class Setting(NamedTuple):
    """GPU, parameters and arithmetic: all that the time of an operator depends on but the operator."""

    spec: DeviceSpec
    parameters: Parameters
    tf32: bool
    """Whether convolutions of float32 may use the tensor cores, as PyTorch lets them by default."""

    @property
    def family(self) -> str:
        """GPUs whose peaks libraries reach to the same share."""
        major, minor = self.spec.compute_capability
        if major == 8 and minor in (6, 7):
            return "ga10x"
        if major == 12 or (major, minor) == (8, 9):
            return "ada"
        return "hopper" if major >= 9 else "ampere"

    def fits(self, size: float) -> float:
        """Part of so many bytes that the L2 keeps."""
        return min(1.0, self.parameters["l2_share"] * self.spec.l2_bytes / max(size, 1.0))


def operator_us(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """Microseconds of one call on the GPU, gaps between its kernels included."""
    rule = _RULES.get(operator.kind, _streamed)
    return rule(operator, traffic, setting) + kernel_count(operator, setting) * setting.parameters["kernel_us"]


def kernel_count(operator: Operator, setting: Setting) -> float:
    """Kernels that one call launches."""
    geometry = operator.geometry
    if operator.kind == "recurrent":
        return 3.0 * geometry["steps"] * geometry["layers"] * geometry["directions"]
    if operator.name == "logsumexp":
        return 11.0
    if operator.kind in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "grouped_conv"):
        groups = geometry["groups"] if operator.dtype == "float32" else 1
        return min(2.0 * groups, 16.0) + _biased(operator)
    return _KERNELS.get(operator.kind, 1.0) + (_biased(operator) if operator.kind in CONVOLUTIONS else 0.0)


_KERNELS = {"batch_norm": 2.0, "group_norm": 3.0, "sort": 4.0, "reduction": 1.2, "loss": 2.0}

CONVOLUTIONS = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "depthwise",
    "grouped_conv",
})  # fmt: skip


def _biased(operator: Operator) -> int:
    return int(len(operator.reads) > 2)


def _memory_us(traffic: Traffic, setting: Setting, efficiency: float, passes: float = 1.0) -> float:
    """Microseconds to move the bytes; of further passes over what is read, those that fit are served by the L2."""
    spec, parameters = setting.spec, setting.parameters
    efficiency *= parameters[f"{setting.family}.bandwidth"]
    dram = traffic.dram_bytes + traffic.write_bytes
    near = traffic.l2_bytes
    if passes > 1.0:
        read = traffic.read_bytes
        fits = setting.fits(read)
        dram += (passes - 1.0) * read * (1.0 - fits)
        near += (passes - 1.0) * read * fits
    return dram / (spec.dram_bandwidth_gbps * 1e3 * efficiency) + near / (spec.l2_bandwidth_gbps * 1e3 * efficiency)


def _thread_limit_us(moved: float, threads: float, setting: Setting, in_flight: float) -> float:
    """Microseconds where every thread has few bytes in flight while it waits for the memory."""
    latency_us = setting.spec.dram_latency_cycles / setting.spec.max_clock_mhz
    most = setting.spec.sm_count * setting.spec.threads_per_sm
    return moved * latency_us / (min(threads, most) * in_flight)


def _rows_us(rows: float, cycles: float, setting: Setting) -> float:
    """Microseconds of all rows where each takes some cycles of an SM, however short it is."""
    return rows * cycles / (setting.spec.sm_count * setting.spec.max_clock_mhz)


def at_once(*times: float) -> float:
    """A smooth maximum: what binds, and a part of what is close to it."""
    largest = max(times)
    if largest <= 0.0:
        return 0.0
    return float(largest * sum((time / largest) ** 4 for time in times) ** 0.25)


def _elements_read(operator: Operator) -> float:
    return operator.geometry["outer"] * operator.geometry["length"]


def _streamed(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """Time of an operator that only moves bytes."""
    return _memory_us(traffic, setting, setting.parameters[f"{operator.kind}.bandwidth"])


def _pointwise(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    parameters, elements = setting.parameters, max(operator.geometry["elements"], 1)
    item = operator.write_bytes / elements
    partial = any(8 < operand.bytes < 0.9 * elements * item for operand in operator.reads)
    efficiency = parameters["pointwise.bandwidth"]
    if operator.geometry.get("strided"):
        efficiency *= parameters["pointwise.strided"]
    elif partial and operator.dtype not in ("bool", "int64"):
        efficiency *= parameters["pointwise.broadcast"]
    else:
        return _memory_us(traffic, setting, efficiency)
    # Kernels that look up the place of each element are also bound by that.
    return at_once(
        _memory_us(traffic, setting, efficiency), _rows_us(elements, parameters["pointwise.cycles"], setting)
    )


def _copy(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    strided = setting.parameters["copy.strided"] if operator.geometry.get("strided") else 1.0
    return _memory_us(traffic, setting, setting.parameters["copy.bandwidth"] * strided)


def _reduction(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    parameters, inner = setting.parameters, operator.geometry["inner"] > 1
    efficiency = parameters[f"{operator.kind}.bandwidth"] * (parameters[f"{operator.kind}.strided"] if inner else 1.0)
    if operator.name == "logsumexp":  # amax, sub, exp, sum: two reads, two passes over temporaries of the same size
        read = traffic.read_bytes
        fits = setting.fits(read)
        further = 5.0 * read
        return _memory_us(
            Traffic(read + further * (1 - fits), further * fits, traffic.write_bytes), setting, efficiency
        )
    rows = _rows_us(operator.geometry["outer"], parameters["reduction.cycles_per_row"], setting)
    return at_once(_memory_us(traffic, setting, efficiency), rows) + parameters["reduction.start_us"]


def _softmax(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    geometry, parameters = operator.geometry, setting.parameters
    length, inner = geometry["length"], geometry["inner"]
    read = traffic.read_bytes
    if inner > 1:  # three passes; a block for each of the outer rows and 1,024 columns
        threads = min(geometry["outer"], 1.4 * 1024 * setting.spec.sm_count)
        streamed = _memory_us(traffic, setting, parameters["softmax.bandwidth"], 3.0)
        return at_once(
            streamed, _thread_limit_us(4.0 * read, threads, setting, parameters["softmax.strided_in_flight"])
        )
    if length * 4 <= setting.spec.shared_bytes_per_block:  # a row stays in registers or in shared memory
        return _memory_us(traffic, setting, parameters["softmax.bandwidth"])
    # A row is read three times; a second time from the L2 where the rows in flight fit into it.
    running = 2.0 * setting.spec.sm_count * length * 4
    fits = setting.fits(running)
    moved = Traffic(traffic.dram_bytes + 2.0 * read * (1.0 - fits), 2.0 * read * fits, traffic.write_bytes)
    streamed = _memory_us(moved, setting, parameters["softmax.long_bandwidth"])
    threads = geometry["outer"] * 1024.0
    return at_once(streamed, _thread_limit_us(4.0 * read, threads, setting, parameters["softmax.in_flight"]))


def _layer_norm(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """Two passes; a block of 128 threads for each row."""
    parameters = setting.parameters
    streamed = _memory_us(traffic, setting, parameters["layer_norm.bandwidth"])
    moved = 2.0 * traffic.read_bytes + traffic.write_bytes
    rows = _rows_us(operator.geometry["outer"], parameters["layer_norm.cycles_per_row"], setting)
    threads = 128.0 * operator.geometry["outer"]
    return at_once(streamed, rows, _thread_limit_us(moved, threads, setting, parameters["layer_norm.in_flight"]))


def _group_norm(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """Moments of every group, a block of 512 threads each, then a pointwise kernel that broadcasts them."""
    parameters = setting.parameters
    read = traffic.read_bytes
    moments = _memory_us(Traffic(traffic.dram_bytes, traffic.l2_bytes, 0.0), setting, parameters["reduction.bandwidth"])
    rows = _rows_us(operator.geometry["outer"], parameters["group_norm.cycles_per_row"], setting)
    threads = min(512, operator.geometry["length"]) * float(operator.geometry["outer"])
    moments = at_once(moments, rows, _thread_limit_us(read, threads, setting, parameters["group_norm.in_flight"]))
    fits = setting.fits(read)
    efficiency = parameters["group_norm.bandwidth"]
    return moments + _memory_us(Traffic(read * (1 - fits), read * fits, traffic.write_bytes), setting, efficiency)


def _batch_norm(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """In training two passes, a block of 512 threads for each channel."""
    parameters = setting.parameters
    if not operator.geometry["training"]:
        return _memory_us(traffic, setting, parameters["pointwise.bandwidth"] * parameters["pointwise.broadcast"])
    streamed = _memory_us(traffic, setting, parameters["batch_norm.bandwidth"], 2.0)
    moved = 2.0 * traffic.read_bytes + traffic.write_bytes
    threads = 512.0 * operator.geometry["outer"]
    return at_once(streamed, _thread_limit_us(moved, threads, setting, parameters["batch_norm.in_flight"]))


def _scan(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """Along the last axis a block works on some rows; along another one, a thread on a column."""
    geometry, parameters = operator.geometry, setting.parameters
    streamed = _memory_us(traffic, setting, parameters["scan.bandwidth"])
    moved = traffic.read_bytes + traffic.write_bytes
    if geometry["outer"] == 1:  # a scan of the whole device
        return streamed
    if geometry["inner"] > 1:
        limit = _thread_limit_us(moved, geometry["outer"], setting, parameters["scan.strided_in_flight"])
    else:
        limit = _rows_scanned_us(geometry["outer"], geometry["length"], setting)
    return at_once(streamed, limit)


def _rows_scanned_us(rows: int, length: int, setting: Setting) -> float:
    """Steps of all blocks of PyTorch's kernel, 512 threads each: 16 to 512 of them work on a row, two elements a step.

    How many is by the kernel's own rule (``ScanUtils.cuh``), whose unsigned difference takes 512 where rows are many.
    """
    share = 9 + (length - 1).bit_length() - (rows - 1).bit_length()
    wide = 9 if share < 0 else min(max(4, share // 2), 9)
    steps = math.ceil(length / (2 << wide))
    blocks = math.ceil(rows / (512 >> wide))
    parameters, waves = setting.parameters, math.ceil(blocks / (4 * setting.spec.sm_count))
    throughput = _rows_us(float(blocks * steps), parameters["scan.cycles_per_step"], setting)
    return at_once(throughput, waves * steps * parameters["scan.step_us"])


def _pooling(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    geometry, spec, parameters = operator.geometry, setting.spec, setting.parameters
    points = geometry["outer"] * geometry["out_points"] * float(geometry["window"])
    outputs = geometry["outer"] * float(geometry["out_points"])
    lanes = spec.sm_count * spec.fp32_lanes_per_sm * float(spec.max_clock_mhz)
    work = (points * parameters["pooling.cycles_per_point"] + outputs * parameters["pooling.cycles"]) / lanes
    return at_once(_memory_us(traffic, setting, parameters["pooling.bandwidth"]), work)


def _gather(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """Sums into few places wait for each other."""
    ordered = operator.name in ("flip", "roll")
    streamed = _memory_us(traffic, setting, setting.parameters["copy.bandwidth" if ordered else "gather.bandwidth"])
    geometry = operator.geometry
    if not geometry.get("updates"):
        return streamed
    updates = geometry["updates"] / (1.0 + geometry["elements"] / 4096)
    return at_once(streamed, updates * setting.parameters["gather.atomic_ns"] * 1e-3)


def _loss(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """The loss of classes reads one element of each row, by one block."""
    if not operator.name.startswith("nll_loss"):
        return _memory_us(traffic, setting, setting.parameters["loss.bandwidth"])
    return operator.geometry["length"] * setting.parameters["loss.row_ns"] * 1e-3


def _sort(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """Radix sort: passes over keys and positions."""
    moved = setting.parameters["sort.passes"] * traffic.read_bytes
    return _memory_us(Traffic(moved, 0.0, traffic.write_bytes), setting, 1.0)


def _waves(tiles: float, spec: DeviceSpec) -> float:
    """Waves of tiles over all SMs: by how much the last one makes it longer."""
    waves = tiles / spec.sm_count
    return math.ceil(waves) / waves if waves < 40 else 1.0


def _flops_per_us(operator: Operator, setting: Setting, *, tensor: bool) -> float:
    spec = setting.spec
    if operator.dtype in ("float16", "bfloat16"):
        # Without tensor cores two halves are multiplied where a float is.
        return spec.fp16_tensor_tflops * 1e6 or 2 * spec.fp32_flops_per_s * 1e-6
    if operator.dtype == "float64":
        return spec.tensor_flops_per_s("f64", "f64") * 1e-6
    if tensor and spec.tf32_tensor_tflops:
        return spec.tf32_tensor_tflops * 1e6 * setting.parameters[f"{setting.family}.tf32"]
    return spec.fp32_flops_per_s * 1e-6 * setting.parameters[f"{setting.family}.fp32"]


_TILES = (
    (256.0, 128.0, 1.0),
    (128.0, 128.0, 1.0),
    (128.0, 64.0, 0.92),
    (64.0, 64.0, 0.8),
    (128.0, 32.0, 0.7),
    (32.0, 32.0, 0.45),
)
"""Rows and columns of the tiles of products, and how fast they are against the largest."""


def _matmul(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    geometry, spec, parameters = operator.geometry, setting.spec, setting.parameters
    batch, m, n, k = (float(geometry[name]) for name in ("batch", "m", "n", "k"))
    half = operator.dtype in ("float16", "bfloat16")
    rate = _flops_per_us(operator, setting, tensor=False) * parameters["matmul.half" if half else "matmul.arithmetic"]
    fastest = math.inf
    for rows, columns, speed in _TILES:
        for tall, wide in ((rows, columns), (columns, rows)):
            tiles = batch * math.ceil(m / tall) * math.ceil(n / wide)
            splits = (
                max(1.0, min(math.floor(spec.sm_count / tiles), math.floor(k / 256.0)))
                if tiles < spec.sm_count
                else 1.0
            )
            work = 2.0 * tiles * tall * wide * (k + parameters["matmul.prologue"])
            fastest = min(fastest, work * _waves(tiles * splits, spec) / (rate * speed))
    return at_once(fastest, _memory_us(traffic, setting, parameters["matmul.bandwidth"]))


def _attention(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """Half of the tiles are left out where the mask is causal."""
    geometry, parameters = operator.geometry, setting.parameters
    flops = float(operator.flops) * (0.5 if geometry["causal"] else 1.0)
    half = operator.dtype in ("float16", "bfloat16")
    rate = (
        _flops_per_us(operator, setting, tensor=False)
        * parameters["attention.half" if half else "attention.arithmetic"]
    )
    blocks = geometry["batch"] * math.ceil(geometry["m"] / 64)
    return at_once(flops / rate * _waves(blocks, setting.spec), _memory_us(traffic, setting, 0.8))


def _recurrent(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """All steps' inputs at once, then step by step a product of few rows."""
    geometry, spec, parameters = operator.geometry, setting.spec, setting.parameters
    rate = _flops_per_us(operator, setting, tensor=False)
    rows = geometry["gates"] * geometry["hidden"]
    steps = float(geometry["steps"] * geometry["layers"] * geometry["directions"])
    recurrent = 2.0 * geometry["batch"] * rows * geometry["hidden"]
    first = max(0.0, operator.flops - recurrent * steps) / (rate * parameters["matmul.arithmetic"])
    weights = 4.0 * rows * geometry["hidden"]
    step = at_once(
        recurrent / (rate * parameters["recurrent.arithmetic"]),
        weights / (spec.l2_bandwidth_gbps * 1e3 * parameters["recurrent.l2_bandwidth"]),
    )
    return first + steps * (step + parameters["recurrent.step_us"])


def _convolution(operator: Operator, traffic: Traffic, setting: Setting) -> float:
    """Implicit matrix product: few channels fill a part of its tiles. A bias is a pass of its own over the output."""
    geometry, parameters, kind = operator.geometry, setting.parameters, operator.kind
    groups, transposed = max(geometry["groups"], 1), kind.startswith("conv_transpose")
    narrow, wide = geometry["in_channels"] / groups, geometry["out_channels"] / groups
    grouped = transposed and groups > 1  # a product for each group, without tensor cores
    tensor = setting.tf32 and not grouped and narrow % 4 == 0 and wide % 4 == 0 and operator.dtype == "float32"
    unit = "tf32" if tensor else "simt"
    rate = _flops_per_us(operator, setting, tensor=tensor) * parameters[f"{kind}.{unit}"]
    if kind == "depthwise":
        product = _depthwise(operator, setting)
    else:
        rate *= narrow / (narrow + parameters["transposed.in_channels" if transposed else f"{unit}.in_channels"])
        rate *= wide / (wide + parameters[f"{unit}.out_channels"])
        product = float(operator.flops) / rate
    if transposed:
        product *= geometry["stride"] ** parameters["transposed.stride_power"]
        product *= parameters["transposed.grouped"] if grouped else 1.0
        if geometry["stride"] > 1 and geometry["dilation"] > 1:
            product *= parameters["transposed.dilated"]
    streamed = _memory_us(traffic, setting, parameters["convolution.bandwidth"])
    further = 0.0
    if tensor and kind != "depthwise" and geometry["window"] > 1:
        # Often the channels go last, and back again.
        read = traffic.read_bytes
        swapped = Traffic(read + traffic.write_bytes, 0.0, read + traffic.write_bytes)
        further = parameters["convolution.converted"] * _memory_us(swapped, setting, 0.8)
    if _biased(operator):
        fits = setting.fits(traffic.write_bytes)
        written = Traffic(traffic.write_bytes * (1 - fits), traffic.write_bytes * fits, traffic.write_bytes)
        further += _memory_us(written, setting, parameters["pointwise.bandwidth"] * parameters["pointwise.broadcast"])
    return at_once(product, streamed) + further


def _depthwise(operator: Operator, setting: Setting) -> float:
    geometry, spec, parameters = operator.geometry, setting.spec, setting.parameters
    outputs = geometry["batch"] * geometry["out_channels"] * float(geometry["out_points"])
    lanes = spec.sm_count * spec.fp32_lanes_per_sm * float(spec.max_clock_mhz)
    return (
        outputs
        * (parameters["depthwise.cycles"] + geometry["window"] * parameters["depthwise.cycles_per_point"])
        / lanes
    )


_RULES: Mapping[str, Callable[[Operator, Traffic, Setting], float]] = {
    "attention": _attention,
    "argreduce": _reduction,
    "gather": _gather,
    "batch_norm": _batch_norm,
    "copy": _copy,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "loss": _loss,
    "matmul": _matmul,
    "pointwise": _pointwise,
    "pooling": _pooling,
    "recurrent": _recurrent,
    "reduction": _reduction,
    "scan": _scan,
    "softmax": _softmax,
    "sort": _sort,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
}
"""By kind; the others stream."""
