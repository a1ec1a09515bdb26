"""Convert calls in ``forward``: of layers, functions of an extension, operators of torch, and cupy's kernels."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from kernelforge.modelnew.convert.constructors import (
    UNKNOWN,
    Container,
    Function,
    Instance,
    Marker,
    dotted_name,
)
from kernelforge.modelnew.convert.cpp_expressions import Value
from kernelforge.modelnew.convert.cpp_host import typed_argument
from kernelforge.modelnew.convert.cpp_tokens import Unconvertible
from kernelforge.modelnew.convert.layers import Layer, layer_operator
from kernelforge.modelnew.convert.python_expressions import DTYPE_NAMES, DTYPES, ExpressionWriter
from kernelforge.modelnew.convert.python_items import Item, Kind, spread

_TORCH = ("torch", "F", "torch.nn.functional", "nn.functional", "functional", "torch.linalg")
_ALLOCATIONS = frozenset({"empty", "zeros", "empty_like", "zeros_like"})
_SAME = frozenset({"cuda", "detach", "requires_grad_"})
_IN_PLACE = ("relu_", "add_", "mul_", "sub_", "div_", "clamp_", "sigmoid_", "tanh_", "leaky_relu_", "hardtanh_")


class CallWriter(ExpressionWriter):
    """Writes expressions with their calls; functions of Python are :class:`FunctionWriter`'s."""

    def inlined(
        self, name: str, function: ast.FunctionDef, instance: Instance | None, path: str, arguments: list[Item],
        keywords: dict[str, Item], node: ast.Call, target: ast.expr | None, context: bool = False,
    ) -> Item:  # fmt: skip
        """A call of a function of Python."""
        raise NotImplementedError

    def container(self, content: Container, path: str, item: Item, node: ast.Call, target: ast.expr | None) -> Item:
        """A call of a ``Sequential``."""
        raise NotImplementedError

    def call(self, node: ast.Call, target: ast.expr | None) -> Item:
        name = dotted_name(node.func)
        owner, _, last = name.rpartition(".")
        if owner in _TORCH and owner.split(".")[0] not in self.names:
            return self.torch_call(node, last, target)
        if name == "hasattr" and len(node.args) == 2 and isinstance(node.args[1], ast.Constant):
            own = self.instance if dotted_name(node.args[0]) == "self" else None
            return Item(str(own is not None and node.args[1].value in own.attributes), "number")
        if not owner and last in ("min", "max", "int", "float", "len", "range", "bool", "abs", "tuple", "list", "sum"):
            return self.plain(node, last)
        if isinstance(node.func, ast.Attribute) and not self.is_module(node.func.value):
            content = self.expression(node.func.value)
            if content.kind in ("tensor", "sequence"):
                return self.method(content, node.func.attr, node, target)
        called = self.expression(node.func)
        return self.called(called, node, target)

    def is_module(self, node: ast.expr) -> bool:
        name = dotted_name(node)
        return name == "self" or (name in self.shared.file.names and name not in self.names)

    def called(self, called: Item, node: ast.Call, target: ast.expr | None) -> Item:
        content = called.content
        if isinstance(content, Marker) and content.what == "function":
            return self.host(content.name, node)
        arguments = [self.expression(argument) for argument in node.args]
        keywords = {keyword.arg or "": self.expression(keyword.value) for keyword in node.keywords}
        return self.module(called, arguments, keywords, node, target)

    def module(
        self, called: Item, arguments: list[Item], keywords: dict[str, Item], node: ast.Call, target: ast.expr | None
    ) -> Item:
        content = called.content
        if isinstance(content, Layer) and len(arguments) == 1 and not keywords:
            return self.layer(content, called.path, arguments[0], node, target)
        if isinstance(content, Container) and content.called and len(arguments) == 1 and not keywords:
            return self.container(content, called.path, arguments[0], node, target)
        if isinstance(content, Instance):
            forward = content.method("forward")
            if forward is not None:
                return self.inlined(
                    f"module_{called.path}", forward, content, called.path, arguments, keywords, node, target
                )
        if isinstance(content, Function):
            owner = content.label or (f"{called.path}_{content.node.name}" if called.path else content.node.name)
            path = called.path if content.instance is not None else ""
            return self.inlined(
                f"python_{owner}",
                content.node,
                content.instance,
                path,
                arguments,
                keywords,
                node,
                target,
                content.context,
            )
        if content == UNKNOWN:
            raise Unconvertible(
                node.lineno, ast.unparse(node), "which layers these are follows from the constructor's arguments"
            )
        raise Unconvertible(node.lineno, ast.unparse(node), "not a kernel of the candidate: torch computes this")

    def layer(self, layer: Layer, path: str, item: Item, node: ast.Call, target: ast.expr | None) -> Item:
        name = layer_operator(layer)
        if not name:
            return item
        if layer.in_place:
            self.refuse_shared(item, node, dotted_name(target) if target is not None else "")
        return self.operator(name, [item], {}, node, layer.arguments(path))

    def host(self, name: str, node: ast.Call) -> Item:
        function = self.shared.unit.hosts.get(name)
        if function is None:
            raise Unconvertible(node.lineno, ast.unparse(node), f"the extension has no function `{name}`")
        if node.keywords:
            raise Unconvertible(node.lineno, ast.unparse(node), "a function of an extension called with names")
        items = [self.expression(argument) for argument in node.args]
        body = [token.text for token in function.body]
        for at, (item, parameter) in enumerate(zip(items, function.parameters, strict=False)):
            items[at] = spread(item, parameter)
            if item.kind in ("object", "device", "tensors"):
                raise Unconvertible(node.lineno, ast.unparse(node), f"what is given as `{parameter.name}`")
            copied = any(body[at : at + 3] == [parameter.name, ".", "contiguous"] for at in range(len(body)))
            if item.strided and not copied:
                raise Unconvertible(
                    node.lineno, ast.unparse(node), f"`{parameter.name}` is not contiguous, and the kernel reads memory"
                )
        self.shared.hosts_used.append(name)
        returns = function.returns
        kind: Kind = "tensor" if "Tensor" in returns else "none" if "void" in returns else "number"
        if {"vector", "tuple"} & set(returns):
            kind = "pair"
        memory = frozenset({next(self.shared.memories)}).union(*(item.memory for item in items))
        return Item(f"host_{name}({', '.join(item.text for item in items)})", kind, memory=memory)

    def torch_call(self, node: ast.Call, name: str, target: ast.expr | None) -> Item:
        if name in _ALLOCATIONS:
            return Item(self.allocation(node, name), "tensor", memory=frozenset({next(self.shared.memories)}))
        arguments = [self.expression(argument) for argument in node.args]
        keywords = {keyword.arg or "": self.expression(keyword.value) for keyword in node.keywords}
        if "input" in keywords and not arguments:
            arguments.append(keywords.pop("input"))
        return self.on_tensor(name, arguments, keywords, node, target)

    def on_tensor(
        self, name: str, arguments: list[Item], keywords: dict[str, Item], node: ast.Call, target: ast.expr | None
    ) -> Item:
        in_place = keywords.pop("inplace", Item("False", "number")).text != "False" or name in _IN_PLACE
        if in_place and arguments:
            self.refuse_shared(arguments[0], node, dotted_name(target) if target is not None else "")
        name = name.removesuffix("_") if name in _IN_PLACE else name
        if not arguments or arguments[0].kind not in ("tensor", "tensors"):
            raise Unconvertible(node.lineno, ast.unparse(node), "not a kernel of the candidate: torch computes this")
        name = {"subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "swapaxes": "transpose",
                "concat": "cat"}.get(name, name)  # fmt: skip
        if name in ("reshape", "view"):
            return self.method(arguments[0], name, node, target, arguments[1:])
        if name in ("max", "min"):
            tensors = len(arguments) > 1 and arguments[1].kind == "tensor"
            along = len(arguments) > 1 or "dim" in keywords
            name = {"max": "maximum", "min": "minimum"}[name] if tensors else f"{name}_along" if along else name
        if name in ("add", "sub", "mul", "div") and len(arguments) > 1 and arguments[1].kind == "number":
            name += "_number"
        return self.operator(name, arguments, keywords, node)

    def method(
        self, content: Item, name: str, node: ast.Call, target: ast.expr | None, explicit: Sequence[Item] | None = None
    ) -> Item:
        """A method of a tensor, or of its shape."""
        if name in _SAME:
            return content
        if name in ("to", "float", "double", "half", "bfloat16", "type"):
            return self.converted(content, name, node)
        if name == "contiguous":
            if content.from_task:
                self.ahead.append(f'assert {content.text}.is_contiguous(), "an input is not contiguous"')
            return replace(content, strided=False)
        arguments = [self.expression(argument) for argument in node.args] if explicit is None else list(explicit)
        keywords = {} if explicit is not None else {k.arg or "": self.expression(k.value) for k in node.keywords}
        texts = ", ".join(argument.text for argument in arguments)
        if name == "is_contiguous" and content.strided:
            return Item("False", "number")
        if name == "size" and not arguments:
            return Item(f"{content.text}.shape", "sequence")
        if name in ("size", "stride", "numel", "dim", "is_contiguous", "ndimension"):
            kind: Kind = "sequence" if name in ("size", "stride") and not arguments else "number"
            return Item(f"{content.text}.{ {'ndimension': 'dim'}.get(name, name) }({texts})".replace(". ", "."), kind)
        if name in ("view", "reshape") and not keywords:
            return replace(content, text=f"{content.text}.{name}({texts})")
        if content.kind != "tensor":
            raise Unconvertible(node.lineno, ast.unparse(node), f"a plan has no `.{name}` of a {content.kind}")
        return self.on_tensor(name, [content, *arguments], keywords, node, target)

    def converted(self, content: Item, name: str, node: ast.Call) -> Item:
        """``to(...)``, where it changes nothing but perhaps the device."""
        dtype = DTYPE_NAMES.get(name, name if name in DTYPES else "")
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            try:
                item = self.expression(argument)
            except Unconvertible:
                item = Item("", "object")
            if item.kind == "dtype":
                dtype = item.text
            elif item.kind not in ("device", "string", "number"):
                raise Unconvertible(node.lineno, ast.unparse(node), "a conversion that cannot be read")
        if dtype and dtype != f"{content.text}.dtype":
            self.ahead.append(f'assert {content.text}.dtype == {dtype}, "a plan does not convert types"')
        return content

    def plain(self, node: ast.Call, name: str) -> Item:
        items = [self.expression(argument) for argument in node.args]
        if name == "len" and len(items) == 1 and isinstance(items[0].content, Container):
            return Item(str(len(items[0].content.items)), "number")
        if any(item.kind not in ("number", "sequence") for item in items):
            raise Unconvertible(node.lineno, ast.unparse(node), f"`{name}` of a tensor")
        kind: Kind = "sequence" if name in ("range", "tuple", "list") else "number"
        return Item(f"{name}({', '.join(item.text for item in items)})", kind)

    def allocation(self, node: ast.Call, name: str) -> str:
        dtype = next((keyword.value for keyword in node.keywords if keyword.arg == "dtype"), None)
        typed = f", dtype={self.expression(dtype).text}" if dtype is not None else ""
        if name.endswith("_like"):
            return f"{name}({self.expression(node.args[0]).text}{typed})"
        if len(node.args) == 1:
            shape = self.expression(node.args[0])
            text = f"({shape.text},)" if shape.kind == "number" else shape.text
        else:
            text = self.expression(ast.Tuple(elts=node.args, ctx=ast.Load())).text
        return f"{name}({text}{typed or ', dtype=float32'})"

    def raw_kernel(self, call: ast.Call) -> str:
        name = dotted_name(call.func)
        return self.shared.file.raw_kernels.get(name, "")

    def raw_launch(self, name: str, call: ast.Call) -> str:
        """``kernel((grid,), (block,), (arguments), shared_mem=n)`` of cupy."""
        kernel = self.shared.unit.kernels.get(name)
        excerpt = ast.unparse(call)
        if kernel is None or len(call.args) != 3 or not isinstance(call.args[2], ast.Tuple):
            raise Unconvertible(
                call.lineno, excerpt, "a launch of cupy has a kernel of the source, grid, block, arguments"
            )
        if len(call.args[2].elts) != len(kernel.parameters):
            raise Unconvertible(call.lineno, excerpt, f"{kernel.name} takes {len(kernel.parameters)} arguments")
        shape = [self.expression(part).text for part in call.args[:2]]
        for keyword in call.keywords:
            if keyword.arg != "shared_mem":
                raise Unconvertible(call.lineno, excerpt, f"the option {keyword.arg} has no counterpart")
            shape.append(self.expression(keyword.value).text)
        arguments = []
        for part, parameter in zip(call.args[2].elts, kernel.parameters, strict=True):
            value = self.raw_argument(part, parameter.is_pointer)
            arguments.append(typed_argument(value, parameter, {}, part.lineno, ast.unparse(part)))
        self.shared.launches = True
        return f"{kernel.name}[{', '.join(shape)}]({', '.join(arguments)})"

    def raw_argument(self, node: ast.expr, pointer: bool) -> Value:
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            if name.endswith(".data_ptr") and isinstance(node.func, ast.Attribute):
                return Value(self.expression(node.func.value).text, "pointer")
            if name.rpartition(".")[2] in ("int32", "int64", "uint32"):
                return Value(self.expression(node.args[0]).text, "int")
            if name.rpartition(".")[2] in ("float32", "float64"):
                return Value(self.expression(node.args[0]).text, "float")
        return Value(self.expression(node).text, "pointer" if pointer else "int")
