"""Convert ``forward`` of a candidate's modules, and what it calls, to functions of a plan."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernelforge.modelnew.convert.constructors import (
    Container,
    Instance,
    bind,
    dotted_name,
)
from kernelforge.modelnew.convert.cpp_expressions import plan_name
from kernelforge.modelnew.convert.cpp_tokens import Unconvertible
from kernelforge.modelnew.convert.python_calls import CallWriter
from kernelforge.modelnew.convert.python_items import Item, Kind, Shared, merged_items


def write_forward(shared: Shared) -> str:
    """``forward`` of the model; statements without a counterpart are problems."""
    model = shared.file.model
    assert model is not None
    forward = model.method("forward")
    assert forward is not None
    writer = FunctionWriter(shared, model, "")
    for argument in forward.args.args[1:]:
        memory = frozenset({next(shared.memories)})
        writer.names[argument.arg] = Item(plan_name(argument.arg), "tensor", from_task=True, memory=memory)
    if forward.args.vararg or forward.args.kwarg or forward.args.kwonlyargs or forward.args.defaults:
        problem = Unconvertible(forward.lineno, ast.unparse(forward.args), "a plan's forward has plain parameters")
        shared.problems.append(problem.problem)
    return writer.function("forward", forward, [argument.arg for argument in forward.args.args[1:]])


class FunctionWriter(CallWriter):
    """Writes one function of the plan."""

    def function(self, name: str, node: ast.FunctionDef, parameters: Sequence[str]) -> str:
        """The function as text."""
        reads = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        self.loads = [(read.id, read.lineno) for read in reads]
        self.block(node.body, 1)
        body = self.lines or ["    pass"]
        return "\n".join([f"def {name}({', '.join(map(plan_name, parameters))}):", *body])

    def block(self, body: Sequence[ast.stmt], depth: int) -> None:
        before = len(self.lines)
        for statement in body:
            try:
                self.statement(statement, depth)
            except Unconvertible as error:
                self.shared.problems.append(error.problem)
            self.ahead.clear()
        if len(self.lines) == before and depth > 1:
            self.lines.append("    " * depth + "pass")

    def emit(self, text: str, depth: int) -> None:
        pad = "    " * depth
        self.lines += [pad + line for line in dict.fromkeys(self.ahead)]
        self.ahead.clear()
        if text:
            self.lines.append(pad + text)

    def statement(self, node: ast.stmt, depth: int) -> None:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name == self.context:
                return
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name))]) if name == self.context:
                return
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value])):
                self.append(name, self.expression(value), node, depth)
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert():
                return
            case ast.Return(value=ast.expr() as value):
                self.returns(value, depth)
            case ast.Expr(value=ast.Call() as call):
                name = self.raw_kernel(call)
                if name:
                    self.emit(self.raw_launch(name, call), depth)
                elif dotted_name(call.func) != "torch.cuda.synchronize":
                    self.emit(self.expression(call).text, depth)
            case ast.Assign(targets=[target], value=value):
                self.assign(target, self.expression(value, target), depth)
            case ast.AugAssign(target=ast.Name() as target, op=op, value=value):
                current = self.expression(ast.copy_location(ast.Name(target.id, ast.Load()), target))
                if current.kind == "tensor":
                    self.refuse_shared(current, node, target.id)
                self.assign(target, self.binary(op, current, self.expression(value), node), depth)
            case ast.If():
                self.condition(node, depth)
            case ast.For(target=target, iter=over, body=body, orelse=[]):
                self.loop(target, over, body, depth)
            case ast.With(items=[item], body=body) if "no_grad" in ast.unparse(item.context_expr):
                self.block(body, depth)
            case _:
                raise Unconvertible(
                    node.lineno, ast.unparse(node).split("\n")[0], "this statement has no counterpart in a plan"
                )

    def returns(self, node: ast.expr, depth: int) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            items = [self.expression(part) for part in node.elts]
            self.returned.append(Item("", "sequence", content=tuple(items)))
            self.emit(f"return {', '.join(item.text for item in items)}", depth)
            return
        item = self.expression(node)
        self.returned.append(item)
        self.emit(f"return {item.text}", depth)

    def assign(self, target: ast.expr, item: Item, depth: int) -> None:
        if isinstance(target, ast.Name):
            if item.kind in ("object", "device"):
                self.names[target.id] = item
                return
            name = plan_name(target.id)
            if item.text != name or self.ahead:
                self.emit("" if item.text == name else f"{name} = {item.text}", depth)
            self.names[target.id] = replace(item, text=name)
            return
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
        if not parts or not all(isinstance(part, ast.Name) for part in parts):
            raise Unconvertible(target.lineno, ast.unparse(target), "only names can be assigned to")
        items = item.content if isinstance(item.content, tuple) and len(item.content) == len(parts) else None
        if item.kind == "object" and items is not None:
            for part, part_item in zip(parts, items, strict=True):
                assert isinstance(part, ast.Name)
                self.names[part.id] = part_item
            return
        kind: Kind = "tensor" if item.kind == "pair" else "number"
        spelled = []
        for position, part in enumerate(parts):
            assert isinstance(part, ast.Name)
            spelled.append(plan_name(part.id))
            part_item = items[position] if items else Item("", kind, item.strided, memory=item.memory)
            self.names[part.id] = replace(part_item, text=spelled[-1])
        self.emit(f"{', '.join(spelled)} = {item.text}", depth)

    def append(self, name: str, item: Item, node: ast.stmt, depth: int) -> None:
        current = self.names.get(name)
        if current is None or item.kind != "tensor" or not (current.kind == "tensors" or current.content == ()):
            raise Unconvertible(node.lineno, ast.unparse(node), "a list of other things than tensors")
        self.emit(f"{plan_name(name)} = {current.text} + [{item.text}]", depth)
        memory = current.memory | item.memory
        self.names[name] = Item(plan_name(name), "tensors", current.strided or item.strided, memory=memory)

    def condition(self, node: ast.If, depth: int) -> None:
        copies = all(
            isinstance(inner, ast.Assign) and ast.unparse(inner.value).endswith(".contiguous()") for inner in node.body
        )
        if "is_contiguous" in ast.unparse(node.test) and not node.orelse and copies:
            self.block(node.body, depth)
            return
        test = self.expression(node.test)
        if test.text in ("True", "False"):
            self.block(node.body if test.text == "True" else node.orelse, depth)
            return
        if test.kind != "number":
            raise Unconvertible(node.lineno, ast.unparse(node.test), f"a condition on a {test.kind}")
        if len(node.body) == 1 and isinstance(node.body[0], ast.Raise):
            self.emit(f'assert not ({test.text}), "refused by the candidate"', depth)
            self.block(node.orelse, depth)
            return
        self.emit(f"if {test.text}:", depth)
        before = dict(self.names)
        self.block(node.body, depth + 1)
        first, self.names = self.names, before
        if node.orelse:
            self.emit("else:", depth)
            self.block(node.orelse, depth + 1)
        self.names = {**first, **{name: merged_items(item, first.get(name)) for name, item in self.names.items()}}

    def loop(self, target: ast.expr, over: ast.expr, body: Sequence[ast.stmt], depth: int) -> None:
        items = self.items_of(over)
        self.looping += 1
        if items is not None:
            for item in items:
                self.assign(target, item, depth)
                self.block(body, depth)
        else:
            sequence = self.expression(over)
            if sequence.kind != "sequence" or not isinstance(target, ast.Name):
                raise Unconvertible(over.lineno, ast.unparse(over), "a loop over what a plan cannot go through")
            self.names[target.id] = Item(plan_name(target.id), "number")
            self.emit(f"for {plan_name(target.id)} in {sequence.text}:", depth)
            before = dict(self.names)
            self.block(body, depth + 1)
            for name, item in before.items():
                if self.names[name].strided != item.strided or self.names[name].kind != item.kind:
                    raise Unconvertible(over.lineno, ast.unparse(over), f"a loop after which `{name}` is another kind")
        self.looping -= 1

    def items_of(self, node: ast.expr) -> list[Item] | None:
        """Modules that a loop goes through, one by one."""
        if isinstance(node, ast.Call) and dotted_name(node.func) == "enumerate" and len(node.args) == 1:
            inner = self.items_of(node.args[0])
            if inner is None:
                return None
            return [
                Item(f"({i}, ...)", "object", content=(Item(str(i), "number"), item)) for i, item in enumerate(inner)
            ]
        if isinstance(node, ast.Call):
            return None
        content = self.expression(node)
        if isinstance(content.content, Container):
            return [
                self.item_of(value, f"{content.path}.{name}", node) for name, value in content.content.items.items()
            ]
        return None

    def inlined(
        self, name: str, function: ast.FunctionDef, instance: Instance | None, path: str, arguments: list[Item],
        keywords: dict[str, Item], node: ast.Call, target: ast.expr | None, context: bool = False,
    ) -> Item:  # fmt: skip
        """A call of a function of Python, which becomes one of the plan."""
        is_static = any(dotted_name(d) == "staticmethod" for d in function.decorator_list)
        own: list[Any] = [None] if context or (instance is not None and not is_static) else []
        bound = bind(function.args, [*own, *arguments], keywords)
        if bound is None:
            raise Unconvertible(node.lineno, ast.unparse(node), f"arguments that `{function.name}` does not take")
        for unused in own:
            bound.pop(function.args.args[0].arg, unused)
        items = {key: self.expression(value) if isinstance(value, ast.expr) else value for key, value in bound.items()}
        passed = {key: item for key, item in items.items() if item.kind not in ("object", "device")}
        kinds = "".join(("strided_" if item.strided else "") + item.kind + "_" for item in items.values())
        objects = "_".join(item.path or item.text for item in items.values() if item.kind == "object")
        base = "_".join(part for part in (name, objects) if part).replace(".", "_")
        name = base if set(kinds.split("_")) <= {"tensor", ""} else f"{base}_{kinds.rstrip('_')}"
        if name not in self.shared.functions:
            self.shared.functions[name] = ""  # so that a call of itself is seen
            writer = FunctionWriter(self.shared, instance, path)
            writer.context = function.args.args[0].arg if context else ""
            for key, item in items.items():
                memory = frozenset({next(self.shared.memories)}) if item.kind == "tensor" else frozenset()
                writer.names[key] = item if key not in passed else replace(item, text=plan_name(key), memory=memory)
                writer.names[key] = replace(writer.names[key], content=item.content if key not in passed else None)
            writer.borrowed = frozenset[int]().union(*(item.memory for item in writer.names.values()))
            text = writer.function(name, function, list(passed))
            results = writer.returned or [Item("", "none")]
            merged = results[0]
            for result in results[1:]:
                merged = merged_items(merged, result)
            self.finish(name, text, merged, writer)
        elif not self.shared.functions[name]:
            raise Unconvertible(node.lineno, ast.unparse(node), "a function that calls itself")
        return self.call_of(name, list(passed.values()), node, target)

    def finish(self, name: str, text: str, result: Item, writer: FunctionWriter) -> None:
        """Keep a function that was written, after those that it calls."""
        self.shared.functions.pop(name, None)
        self.shared.functions[name] = text
        self.shared.results[name] = result
        if writer.writes:
            self.shared.writing.add(name)

    def call_of(self, name: str, passed: Sequence[Item], node: ast.expr, target: ast.expr | None) -> Item:
        """A call of a function that was written."""
        memory = frozenset({next(self.shared.memories)}).union(*(item.memory for item in passed))
        if name in self.shared.writing:
            for item in passed:
                self.refuse_shared(item, node, dotted_name(target) if target is not None else "")
        text = f"{name}({', '.join(item.text for item in passed)})"
        return replace(self.shared.results[name], text=text, memory=memory, from_task=False, content=None)

    def container(self, content: Container, path: str, item: Item, node: ast.Call, target: ast.expr | None) -> Item:
        """A call of a ``Sequential``, which becomes a function of the plan."""
        name = f"module_{path}{'_strided' * item.strided}".replace(".", "_")
        if name not in self.shared.functions:
            writer = FunctionWriter(self.shared, self.instance, path)
            x = ast.Name("x", ast.Store())
            writer.borrowed = frozenset({next(self.shared.memories)})
            writer.names["x"] = replace(item, text="x", memory=writer.borrowed)
            for key, value in content.items.items():
                layer = self.item_of(value, f"{path}.{key}", node)
                writer.assign(x, writer.module(layer, [writer.names["x"]], {}, node, x), 1)
            text = "\n".join([f"def {name}(x):", *writer.lines, "    return x"])
            self.finish(name, text, writer.names["x"], writer)
        return self.call_of(name, [item], node, target)
