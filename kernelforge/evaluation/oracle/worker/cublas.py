"""Matrix products by cuBLAS and cuBLASLt, by ctypes on the libraries that torch ships.

The definitions are those of CUDA-L2 (arXiv 2512.02551, evaluation and its repository):

- ``cublas``: ``cublasGemmEx`` with ``CUBLAS_GEMM_DEFAULT_TENSOR_OP``.
- ``cublaslt-heuristic``: the first algorithm that ``cublasLtMatmulAlgoGetHeuristic`` returns, asked for four.
- ``cublaslt-autotuned``: the fastest of up to 100 returned, by the median of shuffled rounds.

Each is tried with the right operand stored by rows (NN) and by columns (TN), and the stronger layout is taken; the copy
into the other layout is not timed. Sums are in float32 (float64 for float64) and TF32 is off, as for every baseline.
Names and values are those of the cuBLAS documentation (chapters "cuBLAS Datatypes Reference", "cuBLASLt Datatypes
Reference").
"""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Final

import torch

from kernelforge.errors import BaselineError
from kernelforge.evaluation.oracle.worker.matmul import Gemm, MatmulOperands, Product, by_columns, gemm_of, usable
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw

CUBLAS_NAMES: Final = ("cublas", "cublaslt-heuristic", "cublaslt-autotuned")

WORKSPACE_BYTES: Final = 1 << 30
"""Workspace of each call. CUDA-L2 gives its autotuned baseline 20 GB; no algorithm asks for that at our sizes."""

_HEURISTIC, _AUTOTUNED = 4, 100
"""Algorithms asked for."""

_TUNING_S: Final = 10.0
_MAX_ROUNDS, _MIN_ROUNDS = 100, 5
"""Rounds over all algorithms: as many as the time above allows, CUDA-L2's 100 at most."""

_DATA_TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}
"""``cudaDataType_t``."""
_COMPUTE_32F, _COMPUTE_64F = 68, 70
_DEFAULT_TENSOR_OP = 99
_LT_TRANSA, _LT_TRANSB = 3, 4
_LT_BATCH_COUNT, _LT_BATCH_STRIDE = 5, 6
_LT_MAX_WORKSPACE = 1
_LT_ALIGNMENTS = (5, 6, 7, 8)
"""Preferences: least alignment of A, B, C and D, in bytes."""
_MOST_ALIGNMENT = 256


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", c_uint64 * 8),)


class _AlgorithmTiming(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


def _checked(what: str, status: int) -> None:
    if status:
        raise BaselineError(f"{what} gave status {status}")


class CublasLibrary:
    """cuBLAS and cuBLASLt with a handle and a workspace each, on the current device."""

    def __init__(self, device: torch.device) -> None:
        major = (torch.version.cuda or "").split(".")[0]
        # torch has loaded both; their names alone find them again.
        self._blas = ctypes.CDLL(f"libcublas.so.{major}")
        self._lt = ctypes.CDLL(f"libcublasLt.so.{major}")
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._device = device
        self._blas_handle, self._lt_handle = c_void_p(), c_void_p()
        _checked("cublasCreate", self._blas.cublasCreate_v2(byref(self._blas_handle)))
        _checked("cublasLtCreate", self._lt.cublasLtCreate(byref(self._lt_handle)))

    def _stream(self) -> c_void_p:
        return c_void_p(torch.cuda.current_stream(self._device).cuda_stream)

    def gemm(self, call: Gemm, a: int, b: int, c: int) -> None:
        """``cublasGemmEx``, or its strided batch."""
        handle, kind = self._blas_handle, c_int(_DATA_TYPES[call.dtype])
        alpha, beta = _scalars(call.dtype)
        # A new stream takes the workspace away, and a graph is captured on a stream of its own.
        _checked("cublasSetStream", self._blas.cublasSetStream_v2(handle, self._stream()))
        space = (c_void_p(self.workspace.data_ptr()), c_size_t(WORKSPACE_BYTES))
        _checked("cublasSetWorkspace", self._blas.cublasSetWorkspace_v2(handle, *space))
        shape = (c_int(call.op_a == "T"), c_int(call.op_b == "T"), c_int(call.m), c_int(call.n), c_int(call.k))
        how = (c_int(_compute(call.dtype)), c_int(_DEFAULT_TENSOR_OP))
        if call.batch == 1:
            status = self._blas.cublasGemmEx(
                handle, *shape, byref(alpha), c_void_p(a), kind, c_int(call.lda), c_void_p(b), kind, c_int(call.ldb),
                byref(beta), c_void_p(c), kind, c_int(call.ldc), *how,
            )  # fmt: skip
            _checked("cublasGemmEx", status)
            return
        status = self._blas.cublasGemmStridedBatchedEx(
            handle, *shape, byref(alpha), c_void_p(a), kind, c_int(call.lda), c_int64(call.stride_a),
            c_void_p(b), kind, c_int(call.ldb), c_int64(call.stride_b), byref(beta),
            c_void_p(c), kind, c_int(call.ldc), c_int64(call.stride_c), c_int(call.batch), *how,
        )  # fmt: skip
        _checked("cublasGemmStridedBatchedEx", status)

    def matmul(self, call: LtCall, algorithm: _Algorithm, a: int, b: int, c: int) -> int:
        """``cublasLtMatmul`` by one algorithm; its status."""
        alpha, beta = _scalars(call.gemm.dtype)
        status: int = self._lt.cublasLtMatmul(
            self._lt_handle, call.operation, byref(alpha), c_void_p(a), call.a, c_void_p(b), call.b, byref(beta),
            c_void_p(c), call.c, c_void_p(c), call.c, byref(algorithm), c_void_p(self.workspace.data_ptr()),
            c_size_t(WORKSPACE_BYTES), self._stream(),
        )  # fmt: skip
        return status

    def lt_call(self, gemm: Gemm) -> LtCall:
        """Descriptors of a call. They live as long as the process: one per shape and layout."""
        operation = c_void_p()
        scale = c_int(_DATA_TYPES[torch.float64 if gemm.dtype == torch.float64 else torch.float32])
        status = self._lt.cublasLtMatmulDescCreate(byref(operation), c_int(_compute(gemm.dtype)), scale)
        _checked("cublasLtMatmulDescCreate", status)
        for attribute, transposed in ((_LT_TRANSA, gemm.op_a), (_LT_TRANSB, gemm.op_b)):
            self._set("cublasLtMatmulDescSetAttribute", operation, attribute, c_int32(transposed == "T"))
        a_shape = (gemm.m, gemm.k) if gemm.op_a == "N" else (gemm.k, gemm.m)
        b_shape = (gemm.k, gemm.n) if gemm.op_b == "N" else (gemm.n, gemm.k)
        return LtCall(
            gemm,
            operation,
            self._layout(gemm, a_shape, gemm.lda, gemm.stride_a),
            self._layout(gemm, b_shape, gemm.ldb, gemm.stride_b),
            self._layout(gemm, (gemm.m, gemm.n), gemm.ldc, gemm.stride_c),
        )

    def algorithms(self, call: LtCall, count: int, pointers: Sequence[tuple[int, int, int]]) -> list[_Algorithm]:
        """Up to ``count`` algorithms that cuBLASLt thinks fit, its favourite first."""
        preference = c_void_p()
        _checked("cublasLtMatmulPreferenceCreate", self._lt.cublasLtMatmulPreferenceCreate(byref(preference)))
        setter = "cublasLtMatmulPreferenceSetAttribute"
        self._set(setter, preference, _LT_MAX_WORKSPACE, c_uint64(WORKSPACE_BYTES))
        a, b, c = (min(_alignment(addresses[operand]) for addresses in pointers) for operand in range(3))
        for attribute, alignment in zip(_LT_ALIGNMENTS, (a, b, c, c), strict=True):
            self._set(setter, preference, attribute, c_uint32(alignment))
        timings, returned = (_AlgorithmTiming * count)(), c_int()
        status = self._lt.cublasLtMatmulAlgoGetHeuristic(
            self._lt_handle, call.operation, call.a, call.b, call.c, call.c, preference, c_int(count), timings,
            byref(returned),
        )  # fmt: skip
        self._lt.cublasLtMatmulPreferenceDestroy(preference)
        _checked("cublasLtMatmulAlgoGetHeuristic", status)
        return [timing.algorithm for timing in timings[: returned.value] if timing.state == 0]

    def _layout(self, gemm: Gemm, shape: tuple[int, int], leading: int, stride: int) -> c_void_p:
        layout = c_void_p()
        rows, columns = shape
        status = self._lt.cublasLtMatrixLayoutCreate(
            byref(layout), c_int(_DATA_TYPES[gemm.dtype]), c_uint64(rows), c_uint64(columns), c_int64(leading)
        )
        _checked("cublasLtMatrixLayoutCreate", status)
        if gemm.batch > 1:
            self._set("cublasLtMatrixLayoutSetAttribute", layout, _LT_BATCH_COUNT, c_int32(gemm.batch))
            self._set("cublasLtMatrixLayoutSetAttribute", layout, _LT_BATCH_STRIDE, c_int64(stride))
        return layout

    def _set(self, function: str, target: c_void_p, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        _checked(function, getattr(self._lt, function)(target, c_int(attribute), byref(value), size))


@dataclass(frozen=True)
class LtCall:
    """cuBLASLt's descriptors of one call."""

    gemm: Gemm
    operation: c_void_p
    a: c_void_p
    b: c_void_p
    c: c_void_p


def _scalars(dtype: torch.dtype) -> tuple[c_float | c_double, c_float | c_double]:
    kind = c_double if dtype == torch.float64 else c_float
    return kind(1.0), kind(0.0)


def _compute(dtype: torch.dtype) -> int:
    return _COMPUTE_64F if dtype == torch.float64 else _COMPUTE_32F


def _alignment(pointer: int) -> int:
    """Largest power of two that a pointer is a multiple of, at most 256."""
    return min(pointer & -pointer or _MOST_ALIGNMENT, _MOST_ALIGNMENT)


Choice = tuple[int, "_Algorithm | None"]
"""Which layout of the right operand (0: by rows or as given, 1: by columns), and by which algorithm."""


class AlgorithmSearch:
    """Chooses layouts and algorithms, and remembers them by shape."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._libraries: CublasLibrary | None = None
        self._chosen: dict[tuple[Any, ...], Choice] = {}
        self._calls: dict[Gemm, LtCall] = {}

    @property
    def libraries(self) -> CublasLibrary:
        """The libraries, loaded on first use."""
        if self._libraries is None:
            self._libraries = CublasLibrary(self._device)
        return self._libraries

    def run(self, gemm: Gemm, algorithm: _Algorithm | None, a: int, b: int, c: int) -> None:
        """One product, by one of cuBLASLt's algorithms or by cuBLAS."""
        if algorithm is None:
            self.libraries.gemm(gemm, a, b, c)
        else:
            _checked("cublasLtMatmul", self.libraries.matmul(self._call(gemm), algorithm, a, b, c))

    def choose(self, name: str, gemms: Sequence[Gemm], pointers: Sequence[Sequence[tuple[int, int, int]]]) -> Choice:
        """The fastest layout and algorithm of a baseline. ``pointers`` are A, B and C of each set, by layout."""
        alignments = tuple(tuple(_alignment(address) for address in layout[0]) for layout in pointers)
        key = (name, tuple(gemms), alignments)
        if key not in self._chosen:
            self._chosen[key] = self._choose(name, gemms, pointers)
        return self._chosen[key]

    def _choose(self, name: str, gemms: Sequence[Gemm], pointers: Sequence[Sequence[tuple[int, int, int]]]) -> Choice:
        choices: list[Choice] = []
        for position, gemm in enumerate(gemms):
            if name == "cublas":
                choices.append((position, None))
                continue
            requested, taken = (_HEURISTIC, 1) if name == "cublaslt-heuristic" else (_AUTOTUNED, _AUTOTUNED)
            algorithms = self.libraries.algorithms(self._call(gemm), requested, pointers[position])
            choices += [(position, algorithm) for algorithm in algorithms[:taken]]
        return fastest(choices, lambda choice: self._time_us(gemms, pointers, choice), budget_s=_TUNING_S)

    def _time_us(
        self, gemms: Sequence[Gemm], pointers: Sequence[Sequence[tuple[int, int, int]]], choice: Choice
    ) -> float:
        """One pass over all sets by the device's events, in µs."""
        layout, algorithm = choice
        stream = torch.cuda.current_stream(self._device)
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record(stream)
        for addresses in pointers[layout]:
            self.run(gemms[layout], algorithm, *addresses)
        end.record(stream)
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def _call(self, gemm: Gemm) -> LtCall:
        if gemm not in self._calls:
            self._calls[gemm] = self.libraries.lt_call(gemm)
        return self._calls[gemm]


def fastest(choices: Sequence[Choice], time_us: Callable[[Choice], float], *, budget_s: float) -> Choice:
    """The choice with the least median over shuffled rounds; those that fail are left out.

    Raises:
        BaselineError: none works.
    """
    working: list[Choice] = []
    reason = "it found no algorithm"
    begun = time.perf_counter()
    for choice in choices:
        try:
            time_us(choice)
        except BaselineError as error:
            reason = str(error)
            continue
        working.append(choice)
    if not working:
        raise BaselineError(reason)
    if len(working) == 1:
        return working[0]
    each = max(time.perf_counter() - begun, 1e-6)
    rounds = max(min(_MAX_ROUNDS, int(budget_s / each)), _MIN_ROUNDS)
    times: list[list[float]] = [[] for _ in working]
    order, rng = list(range(len(working))), random.Random(0)
    for _ in range(rounds):
        rng.shuffle(order)
        for position in order:
            times[position].append(time_us(working[position]))
    medians = [statistics.median(samples) for samples in times]
    return working[medians.index(min(medians))]


class MatmulSets:
    """A matrix product on each set, in the stronger layout of the right operand."""

    def __init__(
        self,
        name: str,
        product: Product,
        draws: Sequence[InputDraw],
        weights: Sequence[Mapping[str, torch.Tensor]],
        tuner: AlgorithmSearch,
    ) -> None:
        operands = [_operands(product, drawn, named) for drawn, named in zip(draws, weights, strict=True)]
        lefts = [usable(pair.lhs) for pair in operands]
        rights = [[usable(pair.rhs) for pair in operands], [by_columns(pair.rhs) for pair in operands]]
        self._shapes = [pair.shape for pair in operands]
        self._outputs = [lhs.new_empty(shape) for lhs, shape in zip(lefts, self._shapes, strict=True)]
        self._tuner = tuner
        gemms = [gemm_of(lefts[0], layout[0]) for layout in rights]
        if gemms[0] == gemms[1]:
            del gemms[1], rights[1]
            rights.append([pair.rhs.contiguous() for pair in operands])
            gemms.append(gemm_of(lefts[0], rights[1][0]))
        pointers = [
            [
                (right.data_ptr(), lhs.data_ptr(), out.data_ptr())
                for lhs, right, out in zip(lefts, layout, self._outputs, strict=True)
            ]
            for layout in rights
        ]
        selected, self._algorithm = tuner.choose(name, gemms, pointers)
        self._gemm, self._pointers = gemms[selected], pointers[selected]
        self._kept = (lefts, rights[selected])
        self.note = f"layout {self._gemm.layout}" + (
            "" if selected == 0 else ", the right operand rearranged beforehand"
        )

    def execute(self, position: int) -> None:
        self._tuner.run(self._gemm, self._algorithm, *self._pointers[position])

    def restore(self, position: int) -> None:
        """Nothing: operands are only read."""

    def outputs(self, position: int) -> Sequence[torch.Tensor]:
        return [self._outputs[position]]


def _operands(product: Product, drawn: InputDraw, weights: Mapping[str, torch.Tensor]) -> MatmulOperands:
    operands = product.operands(drawn.inputs, weights)
    if operands is None or operands.lhs.dtype not in _DATA_TYPES:
        raise BaselineError("cuBLAS has no call for these operands")
    return operands
