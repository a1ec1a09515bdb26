"""The Triton compiler's child: its front end runs a candidate's Python here, confined and disposable.

Triton compiles each kernel for itself. Their PTX is joined to one module, which ptxas assembles once, so that a build
is one PTX and one cubin, as that of CUDA C++ is.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kernelforge.compile.triton_source import TRITON_FILE
from kernelforge.compile.worker import MAX_CODE_BYTES, MAX_LOG_CHARACTERS
from kernelforge.sandbox.channel import Channel

_WARM = """
import triton
import triton.language as tl

@triton.jit
def warm(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)
"""
_WARM_REQUEST = {
    "source": _WARM,
    "constants": {},
    "kernels": [
        {
            "kernel": "warm",
            "arguments": ["*fp32:16", "*fp32:16", "i32"],
            "constants": [["BLOCK", 256]],
            "num_warps": 4,
            "num_stages": 3,
        }
    ],
}
_PTXAS_S = 60.0


class _Failed(Exception):
    """The candidate does not compile."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def warm_up(options: dict[str, Any]) -> None:
    """Import Triton and lower one kernel, so that all pages are in memory. ``arch``: of the kernel."""
    _lower({**_WARM_REQUEST, "arch": options["arch"]})


def serve(channel: Channel) -> None:
    """Lower a candidate to PTX, or assemble PTX. Never both: only a child that ran none of the candidate's Python can
    be trusted to assemble the PTX that it gets.

    Request to lower: ``source constants kernels arch``, each kernel with ``kernel arguments constants num_warps
    num_stages``. Reply: ``lowered launches seconds`` with the blob PTX. Request to assemble: ``arch`` with the blob
    PTX. Reply: ``log seconds`` with the blob cubin. Instead of either: ``error line seconds``, or ``limit``.
    """
    frame = channel.receive()
    start = time.monotonic()
    reply: dict[str, Any] = {}
    try:
        if frame.blobs:
            code, log = _assemble(bytes(frame.blobs[0]), frame.data["arch"])
            reply["log"] = log[-MAX_LOG_CHARACTERS:]
        else:
            ptx, reply["launches"], reply["lowered"] = _lower_explained(frame.data)
            code = ptx.encode()
    except MemoryError:
        channel.send({"limit": "memory"})
    except _Failed as error:
        text = str(error)[:MAX_LOG_CHARACTERS]
        channel.send({"error": text, "line": error.line, "seconds": time.monotonic() - start})
    else:
        if len(code) > MAX_CODE_BYTES:
            channel.send({"limit": "output"})
        else:
            channel.send(reply | {"seconds": time.monotonic() - start}, [code])


def _lower_explained(request: Mapping[str, Any]) -> tuple[str, list[dict[str, int]], list[str]]:
    """See :func:`_lower`.

    Raises:
        _Failed: it does not compile, with the line.
    """
    with _stderr() as messages:
        try:
            return _lower(request)
        except MemoryError:
            raise
        except Exception as error:
            raise _explained(error, messages()) from error


@contextlib.contextmanager
def _stderr() -> Iterator[Any]:
    """Collect what MLIR says on stderr: its exceptions carry no message. Yields a function that returns the text."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)

        def messages() -> str:
            file.seek(0)
            return file.read(1 << 16).decode(errors="replace")

        try:
            yield messages
        finally:
            os.dup2(before, 2)
            os.close(before)


def _lower(request: Mapping[str, Any]) -> tuple[str, list[dict[str, int]], list[str]]:
    """PTX of all kernels in one module, the launch facts of each, and their symbols."""
    functions = _functions(request["source"], request["constants"])
    modules: list[str] = []
    launches: list[dict[str, int]] = []
    symbols: list[str] = []
    for number, kernel in enumerate(request["kernels"]):
        ptx, metadata = _kernel_ptx(functions[kernel["kernel"]], kernel, int(re.sub(r"\D", "", request["arch"])))
        name = metadata["name"]
        symbol = name if all(other["kernel"] != name for other in request["kernels"][:number]) else f"{name}__{number}"
        modules.append(re.sub(rf"\b{re.escape(name)}\b(?=\s*[(\s])", symbol, ptx) if symbol != name else ptx)
        symbols.append(symbol)
        parameters = len(re.findall(r"^\s*\.param ", ptx.partition(".entry")[2].partition("{")[0], re.MULTILINE))
        passed = sum(argument not in _FIXED for argument in kernel["arguments"])
        launches.append(
            {
                "threads_per_block": metadata["num_warps"] * 32,
                "dynamic_shared_bytes": metadata["shared"] or 0,
                "scratch_bytes_per_block": metadata["global_scratch_size"],
                "hidden_parameters": parameters - passed,
            }
        )
    return _joined(modules), launches, symbols


def _functions(source: str, constants: Mapping[str, int]) -> dict[str, Any]:
    """The namespace of the candidate's module. Its text has passed the parent's check, which is no boundary."""
    import triton.language as tl

    lines = source.splitlines(keepends=True)
    linecache.cache[TRITON_FILE] = (len(source), None, lines, TRITON_FILE)
    namespace: dict[str, Any] = {"__name__": "candidate", "tl": tl}
    namespace |= {name: tl.constexpr(value) for name, value in constants.items()}
    exec(compile(source, TRITON_FILE, "exec"), namespace)
    return namespace


def _kernel_ptx(function: Any, kernel: Mapping[str, Any], capability: int) -> tuple[str, dict[str, Any]]:
    """Run Triton's stages up to PTX; its cache is not used."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler import ASTSource, make_backend

    signature, constants, attributes = _signature(function, kernel)
    backend = make_backend(GPUTarget("cuda", capability, 32))
    options = backend.parse_options(
        {
            "num_warps": kernel["num_warps"],
            "num_stages": kernel["num_stages"],
            "enable_fp_fusion": True,  # as Triton's own default, and NVRTC's
        }
    )
    source = ASTSource(function, signature, constants, attributes)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        backend.target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, Language.TRITON)
    metadata: dict[str, Any] = dict(options.__dict__)
    for name in ("ttir", "ttgir", "llir", "ptx"):
        module = stages[name](module, metadata)
    return module, metadata


def _signature(function: Any, kernel: Mapping[str, Any]) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """Types, constants and attributes of the parameters, as Triton's own launcher would find them."""
    named = {name: _constant(value) for name, value in kernel["constants"]}
    arguments = iter(kernel["arguments"])
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    for position, parameter in enumerate(function.params):
        argument = None if parameter.is_constexpr else next(arguments, None)
        if argument is None or argument in _FIXED:
            signature[parameter.name] = "constexpr"
            default = named.get(parameter.name, parameter.default)
            constants[(position,)] = default if argument is None else _FIXED[argument]
            continue
        kind, _, divisor = argument.partition(":")
        signature[parameter.name] = kind
        if divisor:
            attributes[(position,)] = [["tt.divisibility", int(divisor)]]
    return signature, constants, attributes


_FIXED: Mapping[str, int | None] = {"1": 1, "None": None}
"""Arguments that become constants."""


def _constant(value: Any) -> Any:
    """The value of a ``tl.constexpr``; a dtype travels by its name."""
    import triton.language as tl

    return getattr(tl, value["dtype"]) if isinstance(value, dict) else value


_SECTION = re.compile(r"^\s*\.section\s+(\S+)\s*\{([^}]*)\}\s*", re.MULTILINE)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+("[^"]*")\s*\n', re.MULTILINE)
_HEAD = re.compile(r"^\s*\.(?:version|target|address_size)\s[^\n]*\n", re.MULTILINE)
_LOCATION = re.compile(r"(\.loc\s+|\binlined_at )(\d+)")
_DECLARED = re.compile(r"^(?:\.visible |\.weak )?\.(?:global|const|func)\b[^;{=\[]*?\s([\w$]+)\s*[\[(=;]", re.MULTILINE)
_SHARED = re.compile(r"^\.extern \.shared \.align \d+ \.b8 global_smem\[\];\n", re.MULTILINE)


def _joined(modules: Sequence[str]) -> str:
    """One PTX module of several: one head, one table of files and of strings, dynamic shared memory declared once.

    Of the debug sections only the names of inlined functions stay, which source lines refer to.
    """
    files: dict[str, int] = {}
    strings: list[str] = []
    shared: dict[str, None] = {}
    bodies: list[str] = []
    for number, text in enumerate(modules):
        numbers = {match[1]: files.setdefault(_file_name(match[2]), len(files) + 1) for match in _FILE.finditer(text)}
        text = re.sub(r"\$L__info_string(\d+)", rf"$L__info_string{number}_\1", text)
        strings += [match[2].strip("\n") for match in _SECTION.finditer(text) if match[1] == ".debug_str"]
        shared.update(dict.fromkeys(_SHARED.findall(text)))
        for pattern in (_SECTION, _FILE, _HEAD, _SHARED):
            text = pattern.sub("", text)
        text = _own_names(_LOCATION.sub(partial(_renumbered, numbers), text), number)
        bodies.append(text.strip("\n"))
    head = "".join(match[0] for match in _HEAD.finditer(modules[0]))
    table = "".join(f"\t.file\t{number} {name}\n" for name, number in files.items())
    section = "\t.section\t.debug_str\n\t{\n" + "\n".join(strings) + "\n\t}\n" if strings else ""
    # An alignment that satisfies all of them: the declarations differ in nothing else.
    widest = max(shared, key=lambda line: int(line.split(".align ")[1].split()[0]), default="")
    return f"{head}\n{widest}\n" + "\n\n".join(bodies) + f"\n{table}{section}"


def _renumbered(numbers: Mapping[str, int], match: re.Match[str]) -> str:
    return match[1] + str(numbers.get(match[2], 1))


def _own_names(text: str, number: int) -> str:
    """Text whose variables and functions have names that no other module has; those of libdevice are in several."""
    for name in dict.fromkeys(_DECLARED.findall(text)):
        text = re.sub(rf"(?<![\w$%.]){re.escape(name)}(?![\w$])", f"{name}__of{number}", text)
    return text


def _file_name(path: str) -> str:
    """A file's name without this machine's folders."""
    return f'"{path.strip(chr(34)).rpartition("/")[2]}"'


def _assemble(ptx: bytes, arch: str) -> tuple[bytes, str]:
    """The cubin of a module, and what ptxas says of its kernels."""
    from triton.backends.nvidia.compiler import get_ptxas

    program = get_ptxas(int(re.sub(r"\D", "", arch))).path
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "module.ptx"), os.path.join(folder, "module.cubin")
        with open(source, "wb") as file:
            file.write(ptx)
        # The options are Triton's own (3.7 to 3.9): the last one is its workaround for a fault of ptxas 13.
        command = [program, "-lineinfo", "-v", "--regAllocOptLevel=2", f"--gpu-name={arch}", source, "-o", target]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PTXAS_S)
        if done.returncode:
            raise _Failed(f"ptxas refuses what Triton generated: {done.stderr.replace(source, 'PTX')[-2000:]}")
        with open(target, "rb") as output:
            return output.read(), done.stderr


_SHOWN_ERROR = re.compile(r"\w+\((?P<quote>['\"])(?P<text>.*)(?P=quote)\)", re.DOTALL)
"""The ``repr`` of an exception, which Triton takes for the message of some."""


def _explained(error: BaseException, messages: str) -> _Failed:
    """A failure of Triton's, at the innermost line of the candidate that it names."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.jit import JITFunction

    located: Any = None
    cause: BaseException | None = error
    reason: BaseException = error
    while cause is not None:
        if isinstance(cause, CompilationError):
            located = cause
        reason, cause = cause, cause.__cause__
    line = None
    if located is not None and located.src is not None:
        for function in _live(JITFunction):
            if function.src == located.src and function.fn.__code__.co_filename == TRITON_FILE:
                # Lines of the error count from ``def``, those of the function from its decorator.
                decorators = "".join(function.raw_src).partition("def ")[0].count("\n")
                line = function.starting_line_number + decorators + located.node.lineno - 1
    text = getattr(reason, "error_message", None) or str(reason) or type(reason).__name__
    if shown_error := _SHOWN_ERROR.fullmatch(text):
        text = shown_error["text"]
    if located is None and messages.strip():
        text = f"{text}: {messages.strip()[:2000]}"
    return _Failed(text, line)


def _live(kind: type) -> list[Any]:
    """Objects of a class: the functions of a candidate that failed half way have no other list."""
    import gc

    return [item for item in gc.get_objects() if isinstance(item, kind)]
