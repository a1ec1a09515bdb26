"""Capture a model as a graph of ATen operators, from shapes alone. Runs third-party code, in a confined child.

``torch.export`` (not strict) makes the graph: operators keep their names and schemas, shapes and weights are named, and
control flow on shapes and attributes is followed. ``torch.fx``'s symbolic trace is no second way: it follows less
control flow than that, and its nodes are calls of modules, without a schema. The constructor and the graph run on fake
tensors, so that a model of any size takes no memory; where either looks at values, the parent asks another child to
construct the model for real: a file that registers operators can be executed once in a process.
"""

from __future__ import annotations

import contextlib
import logging
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves, tree_map

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.operator_trace import LibraryCalls, OperatorRecorder
from kernelforge.evaluation.oracle.worker.reference import seeded, tensor_spec
from kernelforge.evaluation.oracle.worker.reference_facts import operators_one_by_one
from kernelforge.evaluation.oracle.worker.torch_device import HOST, open_device, warming_up
from kernelforge.evaluation.oracle.worker.tracing import operator_name
from kernelforge.sandbox.channel import Channel

_WARM_UP = """
import torch
def make_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4)).eval()
def make_inputs():
    return [torch.randn(2, 4)]
"""
_WEIGHTS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}
NO_OPERATOR = frozenset({"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range"})
_LONGEST = 300


def warm_up(options: Mapping[str, Any]) -> None:
    """Import torch and walk once through a capture, so that a child reads no file later. Does not start CUDA."""
    torch.set_num_threads(int(options.get("threads", 1)))
    torch.set_num_interop_threads(1)
    with warming_up():
        capture(_WARM_UP, "make_model", _WARM_UP, "make_inputs", "")


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel."""
    open_device("cpu")
    for frame in channel.requests():
        data = frame.data
        files = (data["source"], data["model"], data["inputs_source"], data["inputs"])
        try:
            reply = capture(*files, data["module"], real=data["real"])
        except TaskError as error:
            reply = {"error": str(error), "needs_values": not data["real"] and looks_at_values(error)}
        channel.send(reply)


class Made(NamedTuple):
    """A model, or the part of it that was named, with its arguments."""

    model: nn.Module
    args: tuple[Any, ...]
    keywords: dict[str, Any]


def capture(
    source: str, model: str, inputs_source: str, inputs: str, module: str, *, real: bool = False
) -> dict[str, Any]:
    """Nodes and operators of a model as JSON.

    Args:
        source: Text of the file with the function that makes the model.
        model: Name of that function.
        inputs_source: Text of the file with the function that makes its inputs.
        inputs: Name of that function.
        module: Dotted name of the part to capture; empty for all of it.
        real: Construct the model on real tensors, in place of fake ones.

    Raises:
        TaskError: A function fails, or the model has no graph; the message says what to do.
    """
    logging.getLogger("torch").setLevel(logging.ERROR)
    with contextlib.nullcontext() if real else FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        made = made_of(source, model, inputs_source, inputs, module)
        _store_attributes(made.model)
        program = exported(made)
    return captured(program) | {"training": made.model.training}


def _store_attributes(model: nn.Module) -> None:
    """Give plain tensors of modules storage: torch.export ends the process at a constant that has none."""
    stored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, FakeTensor):
                with unset_fake_temporarily():
                    zeros = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()
                setattr(module, name, stored.setdefault(id(value), (value, zeros))[1])


def made_of(source: str, model: str, inputs_source: str, inputs: str, module: str) -> Made:
    """Run the functions that make a model and its inputs; arguments and errors are those of :func:`capture`."""
    namespace = _namespace(source, "the model's file")
    others = namespace if inputs_source == source else _namespace(inputs_source, "the inputs' file")
    return _made(namespace, model, others, inputs, module)


def looks_at_values(error: TaskError) -> bool:
    """Whether real tensors may do what fake ones could not."""
    cause: BaseException | None = error
    while cause is not None:
        values = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
        text = str(cause).lower()
        # Torch cannot convert a fake model to another dtype in place.
        if isinstance(cause, values) or any(word in text for word in ("fake", "data-dependent", "couldn't swap")):
            return True
        cause = cause.__cause__
    return False


def _namespace(source: str, what: str) -> dict[str, Any]:
    module = types.ModuleType("kernelforge_model")
    with step(f"running {what}"), seeded(0):
        exec(compile(source, "model.py", "exec"), module.__dict__)
    return module.__dict__


def _made(namespace: dict[str, Any], model: str, others: dict[str, Any], inputs: str, module: str) -> Made:
    with step(f"{model}()"), seeded(0):
        made = _function(namespace, model)()
    if not isinstance(made, nn.Module):
        raise TaskError(f"{model}() returns {type(made).__name__}; let it return a torch.nn.Module")
    with step(f"{inputs}()"), seeded(0):
        values = _function(others, inputs)()
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if isinstance(values, Mapping):
        keywords = {str(name): value for name, value in values.items()}
    elif isinstance(values, list | tuple):
        args = tuple(values)
    elif isinstance(values, torch.Tensor):
        args = (values,)
    else:
        raise TaskError(
            f"{inputs}() returns {type(values).__name__}; let it return a list of positional arguments, or a dict of "
            "keyword arguments, of the model's forward"
        )
    if not args and not keywords:
        raise TaskError(f"{inputs}() returns nothing; let it return the arguments of the model's forward")
    complete = Made(made, args, keywords)
    return _part(complete, module) if module else complete


def _function(namespace: dict[str, Any], name: str) -> Callable[[], Any]:
    function = namespace.get(name)
    if not callable(function):
        raise TaskError(f"the file has no function {name!r}")
    made: Callable[[], Any] = function
    return made


def _part(made: Made, name: str) -> Made:
    """A submodule with the arguments of its first call."""
    try:
        part = made.model.get_submodule(name)
    except AttributeError:
        names = [each for each, _ in made.model.named_modules() if each]
        offered = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise TaskError(f"the model has no module {name!r}; it has: {offered or 'none'}") from None
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(_: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        calls.append((args, dict(keywords)))

    hook = part.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with step("the model's forward", reached=calls):
            made.model(*made.args, **made.keywords)
    finally:
        hook.remove()
    if not calls:
        raise TaskError(f"the model's forward does not call the module {name!r}; name one that it calls")
    return Made(part, *calls[0])


class Tensors(nn.Module):
    """A model whose result is the flat list of its tensors, of any class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **keywords: Any) -> list[torch.Tensor]:
        leaves = tree_leaves(self.model(*args, **keywords))
        # A leaf may be an object of a class that torch does not look into.
        leaves = [
            each for leaf in leaves for each in ([leaf] if isinstance(leaf, torch.Tensor) else attributes_of(leaf))
        ]
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def attributes_of(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


def captured(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Nodes and operators of a graph as JSON."""
    weights = weights_of(program)
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise TaskError(
                f"the model calls torch's {node.target}, which has graphs of its own; capture a part without it "
                "by --module, or choose by shapes or with torch.where"
            )
    nodes, recorder = _walk(program)
    records: list[dict[str, Any]] = []
    position = 0
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name in weights:
                role, name = weights[node.name]
                records.append(_record(node, "weight", name, role=role))
            else:
                records.append(_record(node, "input", str(position)))
                position += 1
        elif node.op == "output":
            results = user_outputs(program, node)
            args = [_plain(result) for result in results]
            records.append({"name": "output", "kind": "output", "op": "output", "args": args})
        elif node.op == "call_function":
            name = operator_name(node.target)
            if name.split(".")[-1] in NO_OPERATOR:
                continue
            record = _record(node, "op", name)
            record |= {"args": [_plain(arg) for arg in node.args], "operators": nodes.get(node.name, [])}
            record["kwargs"] = {
                key: _plain(arg) for key, arg in node.kwargs.items() if key not in ("device", "layout", "pin_memory")
            }
            record["module"] = _module_of(node)
            records.append(record)
        else:
            raise TaskError(f"the model's graph has a node {node.op} {node.target}, which no task can hold")
    return {"nodes": records, "operators": [each.model_dump(mode="json") for each in recorder.operators]}


def exported(made: Made, wrapped: nn.Module | None = None) -> torch.export.ExportedProgram:
    """The functional graph of a model, by ``wrapped`` in place of :class:`Tensors`.

    Raises:
        TaskError: It has none; the message says why and what to do.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(wrapped or Tensors(made.model), made.args, made.keywords, strict=False)
            _pass_through_idle_dropout(program.graph)
            functional: torch.export.ExportedProgram = program.run_decompositions({})
            return functional
    except Exception as error:
        raise _no_graph(error) from error


def _no_graph(error: Exception) -> TaskError:
    """The error that says why a model has no graph for tasks, and what to do."""
    text = _line(error)
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException) or "DataDependent" in (
        type(error).__name__
    ):
        return TaskError(
            "the model's control flow or shapes depend on values of tensors, so it has no graph; capture a part "
            f"without that by --module, or choose by shapes or with torch.where ({text})"
        )
    if isinstance(error, UnsupportedOperatorException | NotImplementedError):
        return TaskError(
            f"an operator of the model has no schema, or no result for shapes alone ({text}); register it with "
            "torch.library.custom_op and register_fake, or capture a part without it by --module"
        )
    return TaskError(
        f"torch.export gives no graph of the model: {type(error).__name__}: {text}; capture a part of it by "
        "--module, or change what the message names"
    )


def _pass_through_idle_dropout(graph: fx.Graph) -> None:
    """Make dropout that drops nothing the view of its input that eager PyTorch returns; the functional form copies."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.dropout.default and (node.args[1] == 0 or not node.args[2]):
            node.target, node.args = torch.ops.aten.alias.default, node.args[:1]


def weights_of(program: torch.export.ExportedProgram) -> dict[str, tuple[str, str]]:
    """Role and name of each placeholder that is none of the user's inputs."""
    return {
        spec.arg.name: (_WEIGHTS[spec.kind], str(spec.target).removeprefix("model."))
        for spec in program.graph_signature.input_specs
        if spec.kind in _WEIGHTS
    }


def user_outputs(program: torch.export.ExportedProgram, node: fx.Node) -> list[Any]:
    """Results of the model, without the new values of buffers and inputs that it changes."""
    own = set(program.graph_signature.user_outputs)
    return [each for each in tree_leaves(node.args[0]) if isinstance(each, fx.Node) and each.name in own]


def exported_again(made: Made, wrapped: Tensors, nodes: Mapping[str, str]) -> torch.export.ExportedProgram:
    """The graph of a model on real tensors, which has to be the captured one.

    Args:
        made: The model and its arguments.
        wrapped: The model, as :class:`Tensors`.
        nodes: Operator of each captured node by its name.

    Raises:
        TaskError: It is another one, or there is none.
    """
    program = exported(made, wrapped)
    names = {node.name: operator_name(node.target) for node in program.graph.nodes if node.op == "call_function"}
    if any(names.get(name) != op for name, op in nodes.items()):
        raise TaskError("the model's graph is another one on real tensors than on shapes alone")
    return program


class RealRun(fx.Interpreter):
    """Runs a captured graph on real tensors."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if operator_name(target).split(".")[-1] in NO_OPERATOR:
            return None
        if target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default  # other kernels leave other strides than the graph was made with
        args, kwargs = tree_map(self.changed, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def changed(self, value: Any) -> Any:
        """An argument of an operator in place of another."""
        return value


def placeholder_values(program: torch.export.ExportedProgram, wrapped: nn.Module, leaves: Sequence[Any]) -> list[Any]:
    """Values of the placeholders of a graph, in order.

    Args:
        program: The graph.
        wrapped: The module that it was made of, which has its weights.
        leaves: The model's own inputs, flat.
    """
    own = iter(leaves)
    values: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            values.append(next(own))
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            values.append(reduce(getattr, str(spec.target).split("."), wrapped))
        else:
            values.append(program.constants[str(spec.target)])
    return values


class _Positions(OperatorRecorder):  # type: ignore[no-untyped-call]
    """Records which operators each node of a graph runs."""

    def __init__(self) -> None:
        super().__init__()
        self.of_node: list[int] = []

    def add(self, *args: Any, **keywords: Any) -> int:
        position = super().add(*args, **keywords)
        self.of_node.append(position)
        return position


class _Walk(fx.Interpreter):
    """Runs a graph on fake tensors of the CPU, node by node, wherever the model is."""

    def __init__(self, graph: fx.GraphModule, recorder: _Positions) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.recorder = recorder
        self.operators: dict[str, list[int]] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.of_node = []
        result = super().run_node(n)
        self.operators[n.name] = self.recorder.of_node
        return result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map(lambda each: HOST if isinstance(each, torch.device) else each, (args, kwargs))
        return super().call_function(target, args, kwargs)


def _walk(program: torch.export.ExportedProgram) -> tuple[dict[str, list[int]], _Positions]:
    """Operators that each node runs in eager PyTorch, by position."""
    recorder = _Positions()
    walk = _Walk(program.graph_module, recorder)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        values = [_empty_like(node.meta.get("val")) for node in program.graph.nodes if node.op == "placeholder"]
    try:
        with operators_one_by_one(), mode, torch.no_grad(), recorder, LibraryCalls(recorder):
            walk.run(*values)
    except TaskError as error:
        raise TaskError(f"the model is too large: {error}; capture a part of it by --module") from error
    except Exception as error:  # A graph may ask for a value (`item`), or for as many elements as a value says.
        raise _no_graph(error) from error
    return walk.operators, recorder


def _empty_like(value: Any) -> Any:
    """A tensor of the same shape, strides and dtype in the fake mode that is active; another value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _record(node: fx.Node, kind: str, op: str, role: str = "") -> dict[str, Any]:
    value = node.meta.get("val")
    record: dict[str, Any] = {"name": node.name, "kind": kind, "op": op}
    if isinstance(value, torch.Tensor) and value.is_complex():
        record["complex_spec"] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    elif isinstance(value, torch.Tensor):
        record["spec"] = tensor_spec(value).model_dump(mode="json")
    if role:
        record["role"] = role
    if kind == "input" and not isinstance(value, torch.Tensor):
        record["args"] = [_plain(value)]
    return record


def _module_of(node: fx.Node) -> str:
    """Dotted name of the innermost module whose forward ran the operator."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(entry[0]) for entry in stack.values()]
    name = names[-1] if names else ""
    return "" if name in ("", "model") else name.removeprefix("model.")


def _plain(argument: Any) -> Any:
    """An argument as JSON: ``{"ref": name}`` of a node, ``{"dtype": name}``, or a plain value."""
    if isinstance(argument, fx.Node):
        return {"ref": argument.name}
    if isinstance(argument, tuple | list):
        return [_plain(item) for item in argument]
    if isinstance(argument, torch.dtype):
        return {"dtype": str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.memory_format):
        return {"memory_format": str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.device | torch.layout):
        return None
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    return str(argument)


@contextlib.contextmanager
def step(what: str, *, reached: Sequence[Any] = ()) -> Iterator[None]:
    """Turn a failure of third-party code into one sentence; nothing where ``reached`` has what was looked for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except TaskError:
        raise
    except (Exception, SystemExit) as error:
        if reached:
            return
        advice = ""
        if isinstance(error, ModuleNotFoundError):
            advice = "; install that package next to KernelForge, or put what the model needs of it into the one file"
        raise TaskError(f"{what} fails: {type(error).__name__}: {_line(error)}{advice}") from error


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else "no message")[:_LONGEST]
