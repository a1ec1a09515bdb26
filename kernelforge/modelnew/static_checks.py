"""Static findings in a candidate's text: information for a reader, never a gate.

A syntax tree is read, not a text, so that strings, comments and aliases of imports do not mislead. Rules that mean the
same as one of KernelBench's static checker (its ``kernel_static_checker.py``) have that name. What a program does
cannot be decided from its text: an empty list proves nothing, and a finding is a reason to look.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final, Literal

Rule = Literal[
    "code_bypass",
    "torch_computation_ops",
    "pytorch_wrap",
    "stream_injection",
    "timing_event_patch",
    "thread_injection",
    "lazy_eval",
    "precision_downgrade",
    "result_cache",
    "inherits_reference",
    "harness_patch",
    "dynamic_code",
    "file_access",
    "network_access",
    "environment_access",
    "process_access",
]


@dataclass(frozen=True)
class StaticFinding:
    """One thing seen in a candidate's text."""

    rule: Rule
    line: int
    """1-based line of the candidate's file."""
    text: str


_OPERATORS: Final = (
    "matmul mm bmm addmm baddbmm einsum softmax log_softmax conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d linear layer_norm group_norm batch_norm instance_norm relu relu_ gelu silu sigmoid tanh sum mean "
    "max min argmax argmin norm exp log sqrt rsqrt pow cumsum cumprod logsumexp max_pool1d max_pool2d max_pool3d "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool2d scaled_dot_product_attention cross_entropy mse_loss "
    "leaky_relu elu selu hardtanh hardsigmoid softplus softsign clamp dot mv prod std var topk sort triu tril"
)
_COMPUTE: Final = frozenset(_OPERATORS.split())
"""Names that are operators wherever they are called from torch, or on what is not obviously no tensor."""

_TIMERS: Final = ("time.time", "time.perf_counter", "time.monotonic", "torch.cuda.Event", "torch.cuda.synchronize")
_PREFIXES: Final[dict[Rule, tuple[str, ...]]] = {
    "thread_injection": ("threading.", "_thread.", "concurrent.futures.", "multiprocessing.", "asyncio."),
    "stream_injection": ("torch.cuda.Stream", "torch.cuda.stream", "cupy.cuda.Stream", "torch.cuda.set_stream"),
    "network_access": ("socket.", "urllib.", "http.", "requests.", "ftplib.", "torch.hub."),
    "environment_access": ("os.environ", "os.getenv", "os.putenv"),
    "process_access": ("subprocess.", "os.system", "os.fork", "os.exec", "os.kill", "os._exit", "sys.exit", "ctypes."),
    "file_access": ("open", "io.open", "os.open", "pathlib.", "shutil.", "tempfile.", "os.listdir", "os.walk", "glob."),
    "dynamic_code": ("exec", "eval", "compile", "__import__", "importlib.", "pickle.", "marshal.", "torch.load"),
    "lazy_eval": ("torch.Tensor._make_subclass", "torch.Tensor._make_wrapper_subclass", "torch.UntypedStorage"),
    "harness_patch": ("gc.", "sys._getframe", "inspect.currentframe", "inspect.stack", "sys.settrace", "sys.modules"),
}
_HALF: Final = frozenset({"half", "bfloat16"})
_HALF_TYPES: Final = frozenset({"torch.float16", "torch.half", "torch.bfloat16", "torch.float8_e4m3fn"})
_ADDRESSES: Final = frozenset({"data_ptr", "_version", "untyped_storage"})


def static_findings(source: str) -> tuple[StaticFinding, ...]:
    """Findings in a candidate's text, in the order of its lines; none where it is not Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    reader = _Reader(_aliases(tree))
    reader.visit(tree)
    return tuple(sorted(set(reader.found), key=lambda finding: (finding.line, finding.rule, finding.text)))


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Local name → dotted name of what was imported, anywhere in the file."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


class _Reader(ast.NodeVisitor):
    def __init__(self, aliases: dict[str, str]) -> None:
        self.found: list[StaticFinding] = []
        self._aliases = aliases
        self._inside: list[str] = []
        """Names of the classes and functions around the node at hand."""
        self._modules: set[str] = set()
        """Attributes of ``self`` that hold a module of torch."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            name = self._dotted(base)
            if name in ("Model", "model.Model", "reference.Model"):
                self._note("inherits_reference", node, f"{node.name} derives from {name}")
            if name in ("torch.Tensor", "torch.nn.Parameter"):
                self._note("lazy_eval", node, f"{node.name} is a subclass of {name}")
        self._within(node.name, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        statements = [statement for statement in node.body if not _is_docstring(statement)]
        if all(isinstance(statement, ast.Pass) for statement in statements):
            self._note("code_bypass", node, f"{node.name} does nothing but `pass`")
        if node.name in ("__torch_function__", "__torch_dispatch__"):
            self._note("lazy_eval", node, f"{node.name} decides when operators run")
        self._within(node.name, node)

    def visit_Try(self, node: ast.Try) -> None:
        self._note("code_bypass", node, "try/except: another way may be taken silently")
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            call = item.context_expr
            name = self._dotted(call.func) if isinstance(call, ast.Call) else ""
            if name == "contextlib.suppress":
                self._note("code_bypass", node, "contextlib.suppress: another way may be taken silently")
            if name.endswith("autocast"):
                self._note("precision_downgrade", node, f"{name}")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target, node.value)
        self.generic_visit(node)

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        name = self._dotted(target)
        if (
            name.startswith("self.")
            and isinstance(value, ast.Call)
            and self._dotted(value.func).startswith("torch.nn.")
        ):
            self._modules.add(name)
        if not isinstance(target, ast.Attribute) or name.startswith("self."):
            return
        if name in _TIMERS or name.startswith(("torch.cuda.Event.", "triton.testing.")):
            self._note("timing_event_patch", target, f"{name} is replaced")
        elif "allow_tf32" in name or name.endswith(".fp32_precision"):
            self._note("precision_downgrade", target, f"{name} is set")
        elif name.startswith(("torch.", "builtins.", "sys.", "os.", "numpy.")) or "__class__" in name:
            self._note("harness_patch", target, f"{name} is replaced")

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.MatMult) and self._in_forward():
            self._note("torch_computation_ops", node, "the operator @")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._dotted(node)
        if name in _HALF_TYPES:
            self._note("precision_downgrade", node, name)
        self._prefixed(name, node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        # What a name stands for matters where it is used, not where a builtin is only shadowed.
        if isinstance(node.ctx, ast.Load) and node.id in self._aliases:
            self._prefixed(self._aliases[node.id], node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._dotted(node.func)
        last = name.rpartition(".")[2]
        if isinstance(node.func, ast.Name) and node.func.id not in self._aliases:
            self._prefixed(node.func.id, node)
        if name == "setattr" and node.args:
            self._note("harness_patch", node, f"setattr on {self._dotted(node.args[0]) or 'an expression'}")
        if isinstance(node.func, ast.Attribute) and last in _HALF and not node.args:
            self._note("precision_downgrade", node, f".{last}()")
        if self._in_forward():
            self._called_in_forward(node, name, last)
        self.generic_visit(node)

    def _called_in_forward(self, node: ast.Call, name: str, last: str) -> None:
        if name in self._modules:
            self._note("pytorch_wrap", node, f"{name}(...) is a module of torch")
        elif last in _COMPUTE and not name.startswith(("math.", "self.")):
            self._note("torch_computation_ops", node, f"{name or '...' + last}(...)")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._address_key(node.slice)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for part in (node.left, *node.comparators):
            self._address_key(part)
        self.generic_visit(node)

    def _address_key(self, node: ast.expr) -> None:
        for part in ast.walk(node):
            called = isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "id"
            if called or (isinstance(part, ast.Attribute) and part.attr in _ADDRESSES):
                self._note("result_cache", node, "something is looked up or compared by a tensor's identity")
                return

    def _prefixed(self, name: str, node: ast.AST) -> None:
        for rule, prefixes in _PREFIXES.items():
            for prefix in prefixes:
                bare = prefix.rstrip(".")
                if name == bare or name.startswith(bare + "."):
                    self._note(rule, node, name)

    def _in_forward(self) -> bool:
        return "forward" in self._inside

    def _within(self, name: str, node: ast.AST) -> None:
        self._inside.append(name)
        self.generic_visit(node)
        self._inside.pop()

    def _dotted(self, node: ast.expr) -> str:
        """The name an expression spells, imports resolved; empty where it spells none."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            names.append(self._aliases.get(node.id, node.id))
        elif names:
            names.append("...")
        return ".".join(reversed(names))

    def _note(self, rule: Rule, node: ast.AST, text: str) -> None:
        self.found.append(StaticFinding(rule, getattr(node, "lineno", 1), text[:200]))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
