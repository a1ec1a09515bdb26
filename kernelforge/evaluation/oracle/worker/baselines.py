"""Baselines that candidates are timed against, in the process that holds the reference.

``eager``: the model as PyTorch runs it, launch by launch. ``eager-synchronised``: the same, where the host waits for
each flush, so that launches from the host are not hidden behind it; a figure for the reader.
``eager-graph``: the model captured in a CUDA graph.
``compile`` and ``compile-max-autotune``: ``torch.compile`` with those modes, captured in a CUDA graph where that works,
as candidates are. Matrix products have cuBLAS and cuBLASLt too (:mod:`kernelforge.evaluation.oracle.worker.cublas`).

Inputs that a task declares to be in host memory are pinned tensors of the CPU here: what the model makes of them is
its own (PyTorch gathers on the CPU and copies the rows), and none of that can be captured.

A baseline is armed on the very draws that a candidate is timed on: one set of inputs, weights and outputs per draw. It
counts only when what it leaves in every set agrees with what the oracle expects there. One that cannot be built, or
that is wrong, is refused with its reason. On ``cpu`` the same protocol runs by the host's clock and without graphs:
for tests, never for a record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from kernelforge.errors import BaselineError
from kernelforge.evaluation.oracle.worker.comparison import Got
from kernelforge.evaluation.oracle.worker.cublas import CUBLAS_NAMES, AlgorithmSearch, MatmulSets
from kernelforge.evaluation.oracle.worker.matmul import Product, as_matmul
from kernelforge.evaluation.oracle.worker.reference import Value, clone_strided, flatten_outputs, to_device
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.evaluation.oracle.worker.timed_baseline import BufferSets, Shape, TimedBaseline
from kernelforge.evaluation.oracle.worker.torch_device import (
    HOST,
    default_device,
    lost,
    release_cached_memory,
    synchronize,
)
from kernelforge.evaluation.oracle.worker.tracing import trace_at

_WARM_UPS: Final = 3
"""Executions of every set before capture or timing. PyTorch's notes on CUDA graphs ask for a few before a capture."""

SYNCHRONISED: Final = "eager-synchronised"

COMPILE_MODES: Final = {"compile": "default", "compile-max-autotune": "max-autotune-no-cudagraphs"}
"""Modes of ``torch.compile``. Capture is ours, over all sets at once, so the one of ``max-autotune`` stays off."""


class ModelSets:
    """A module on each set's inputs. Outputs of the last execution stay alive, so that sets stay disjoint.

    Args:
        calls: The module of each set.
        inputs: What was drawn for each; never written to.
        mutates: Inputs whose values afterwards are outputs too.
        written: All inputs that the module writes to; these are copies.
    """

    def __init__(
        self,
        calls: Sequence[Callable[..., Any]],
        inputs: Sequence[tuple[Value, ...]],
        mutates: Sequence[int] = (),
        written: Sequence[int] = (),
    ) -> None:
        self.note = ""
        self._calls = calls
        self._drawn = inputs
        self._mutates = tuple(mutates)
        self._written = {*mutates, *written}
        self._arguments = [
            tuple(
                clone_strided(value) if position in self._written and isinstance(value, torch.Tensor) else value
                for position, value in enumerate(values)
            )
            for values in inputs
        ]
        self._results: list[Any] = [None] * len(inputs)

    def execute(self, position: int) -> None:
        self._results[position] = self._calls[position](*self._arguments[position])

    def restore(self, position: int) -> None:
        for index in self._written:
            argument, drawn = self._arguments[position][index], self._drawn[position][index]
            if isinstance(argument, torch.Tensor) and isinstance(drawn, torch.Tensor):
                argument.copy_(drawn)

    def outputs(self, position: int) -> Sequence[torch.Tensor]:
        mutated = [self._arguments[position][index] for index in self._mutates]
        return [
            *flatten_outputs(self._results[position]),
            *(value for value in mutated if isinstance(value, torch.Tensor)),
        ]


class Baselines:
    """Baselines of one task. Compiled code and chosen algorithms stay, so that only the first candidate pays."""

    def __init__(self, reckoner: ReferenceRunner) -> None:
        self._reckoner = reckoner
        self._captures = reckoner.device.type == "cuda"
        self._tuner = AlgorithmSearch(reckoner.device)
        self._products: dict[str, Product | None] = {}
        self._written: dict[str, tuple[int, ...]] = {}

    def names(self, size: str) -> tuple[str, ...]:
        """Baselines that can be tried at a size; nothing is built to say so."""
        if self._reckoner.device.type != "cuda":
            return ("eager", "compile")
        names = ("eager", SYNCHRONISED, "eager-graph", *COMPILE_MODES)
        return (*names, *CUBLAS_NAMES) if self._product(size) is not None else names

    def arm(
        self, name: str, draws: Sequence[InputDraw], flush_bytes: int = 0, flush_each: bool = False
    ) -> TimedBaseline:
        """Build a baseline on the sets of ``draws``, all of one size, and check what it computes.

        Args:
            name: One of :meth:`names`.
            draws: A set each.
            flush_bytes: Read in every sample, to empty the L2; 0 for nothing.
            flush_each: Before each execution, and not only once.

        Raises:
            BaselineError: it cannot be built or captured here, or its outputs are wrong.
        """
        size = draws[0].size
        if name not in self.names(size):
            raise BaselineError(f"there is no baseline '{name}' for this task here")
        if any(drawn.size != size for drawn in draws):
            raise BaselineError("a baseline is armed on draws of one size")
        if all(drawn.expected is None for drawn in draws):
            raise BaselineError("its outputs cannot be checked: the draws were made without expected outputs")
        device = self._reckoner.device
        try:
            with torch.no_grad():
                return self._arm(name, draws, Shape(len(draws), flush_bytes, flush_each, name == SYNCHRONISED))
        except BaselineError:
            release_cached_memory(device, all_of_it=True)
            raise
        except torch.OutOfMemoryError as error:
            release_cached_memory(device, all_of_it=True)
            raise BaselineError("its sets do not fit into the GPU's memory") from error
        except Exception as error:  # any error of a compiler or a third-party model explains the missing baseline
            release_cached_memory(device, all_of_it=True)
            raise BaselineError(f"{type(error).__name__}: {_first_line(error)}") from error

    def _arm(self, name: str, draws: Sequence[InputDraw], shape: Shape) -> TimedBaseline:
        device = self._reckoner.device
        armed = TimedBaseline(name, self._sets(name, draws), shape, device)
        for position in range(len(draws)):
            for _ in range(_WARM_UPS):
                armed.sets.execute(position)
        synchronize(device)
        if name not in ("eager", SYNCHRONISED) and self._captures:
            try:
                armed.capture()
            except RuntimeError as error:
                if name == "eager-graph" or lost(device):
                    raise BaselineError(f"it cannot be captured in a CUDA graph: {_first_line(error)}") from error
                armed = TimedBaseline(name, armed.sets, shape, device)
                armed.notes.append(f"not captured in a CUDA graph: {_first_line(error)}")
        self._check(armed, draws)
        return armed

    def _sets(self, name: str, draws: Sequence[InputDraw]) -> BufferSets:
        if name in CUBLAS_NAMES:
            product = self._product(draws[0].size)
            assert product is not None
            weights = []
            for drawn in draws:
                model = self._reckoner.model_of(drawn)
                weights.append(dict(model.named_parameters()) | dict(model.named_buffers()))
            return MatmulSets(name, product, draws, weights, self._tuner)
        models = [self._reckoner.model_of(drawn) for drawn in draws]
        calls: list[Callable[..., Any]] = list(models)
        if name in COMPILE_MODES:
            _prepare_compiler()
            calls = [torch.compile(model, mode=COMPILE_MODES[name], dynamic=False) for model in models]
        inputs = [self._placed(drawn.inputs) for drawn in draws]
        mutates, written = self._reckoner.task.policy.mutates, self._written_by(draws[0])
        sets = ModelSets(calls, inputs, mutates, written)
        try:
            sets.execute(0)
        except (RuntimeError, TypeError):
            if self._reckoner.device.type == "cpu" or name in COMPILE_MODES:
                raise
            # It makes tensors without naming a device: as the reference was run, they are to be on the GPU.
            sets = ModelSets([self._on_device(model) for model in models], inputs, mutates, written)
            sets.note = "its forward names no device for tensors it makes; each call pays for setting one"
        return sets

    def _placed(self, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """Inputs with those of ``host_inputs`` in pinned host memory, where the model says itself what it gathers there
        and copies to the GPU."""
        if not self._captures:
            return inputs
        in_host = self._reckoner.task.policy.host_inputs
        return tuple(
            to_device(value, HOST).pin_memory() if number in in_host and isinstance(value, torch.Tensor) else value
            for number, value in enumerate(inputs)
        )

    def _written_by(self, drawn: InputDraw) -> tuple[int, ...]:
        """Inputs that the reference writes to, declared or not: torch counts the writes to a tensor."""
        if drawn.size not in self._written:
            copies = [clone_strided(value) if isinstance(value, torch.Tensor) else value for value in drawn.inputs]
            before = [value._version if isinstance(value, torch.Tensor) else 0 for value in copies]
            with default_device(self._reckoner.device):
                self._reckoner.model_of(drawn)(*copies)
            self._written[drawn.size] = tuple(
                position
                for position, (value, version) in enumerate(zip(copies, before, strict=True))
                if isinstance(value, torch.Tensor) and value._version != version
            )
        return self._written[drawn.size]

    def _on_device(self, model: torch.nn.Module) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with default_device(self._reckoner.device):
                return model(*arguments)

        return call

    def _check(self, armed: TimedBaseline, draws: Sequence[InputDraw]) -> None:
        """Compare what one sample leaves in every set with what the oracle expects there."""
        for position in range(len(draws)):
            armed.sets.restore(position)
        armed.sample()
        synchronize(self._reckoner.device)
        for position, drawn in enumerate(draws):
            if drawn.expected is None:
                continue
            comparison = self._reckoner.compare(drawn, [Got.of(output) for output in armed.sets.outputs(position)])
            if not comparison.ok:
                raise BaselineError(f"its result is wrong: {comparison.message}")

    def _product(self, size: str) -> Product | None:
        if size not in self._products:
            try:
                self._products[size] = as_matmul(trace_at(self._reckoner.described(size), size))
            except Exception:  # any error of tracing third-party code means that no product was recognised
                self._products[size] = None
        return self._products[size]


def _prepare_compiler() -> None:
    """Compile in this process, and keep what is compiled in the private folder for temporary files."""
    import torch._inductor.config as inductor

    inductor.compile_threads = 1
    folder = os.environ.get("TMPDIR", "/tmp")
    for name, subfolder in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        os.environ.setdefault(name, os.path.join(folder, subfolder))


def _first_line(error: BaseException) -> str:
    """The error in one line: a compiler's own message where there is one, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line]
    return (errors or lines or ["no reason given"])[0][:300]
