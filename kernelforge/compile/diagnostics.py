"""Compiler diagnostics as records (file, line, severity, message), worded for a Coder."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelforge.candidate.plan import LaunchSignature
from kernelforge.compile.source import CANDIDATE_FILE, LAUNCHES_FILE, SIGNATURE_HEADER
from kernelforge.records import Diagnostic

MAX_DIAGNOSTICS = 40
MAX_MESSAGE_CHARACTERS = 600

_LOCATED = re.compile(
    r"^(?P<file>[^\s():][^\n():]*)\((?P<line>\d{1,9})\): (?P<severity>[a-z ]+?)(?: #[\w-]+)?: (?P<text>.*)$"
)
_PLACED_ELSEWHERE = re.compile(
    r"^(?P<severity>nvrtc: error|(?:ptxas|nvlink) (?:error|fatal|warning)|catastrophic error|error)\s*: (?P<text>.*)$"
)
_IN_PTX = re.compile(r"^ptxas [^\n,]*, line \d+; (?P<severity>error|fatal|warning)\s*: (?P<text>.*)$")
_TOO_MUCH_SHARED = re.compile(
    r"Entry function '(?P<kernel>[^']*)' uses too much shared data "
    r"\((?P<bytes>0x[0-9a-f]+) bytes, (?P<max>0x[0-9a-f]+) max\)"
)
_NO_SUCH_HEADER = re.compile(r'cannot open source file "([^"]+)"')
_SEVERITY = {"error": "error", "catastrophic error": "error", "internal error": "error", "warning": "warning"}
_WITH = re.compile(r'class "kernelforge_plan::(argument|count)<[^"]*> \[with ([^"]*)\]"')
_WANTED = {
    "tensor:float16": "__half*", "tensor:bfloat16": "__nv_bfloat16*", "tensor:float32": "float*",
    "tensor:float64": "double*", "tensor:int64": "long long*", "tensor:int32": "int*", "tensor:int16": "short*",
    "tensor:int8": "signed char*", "tensor:uint8": "unsigned char*", "tensor:bool": "bool*",
    "tensor_map": "const CUtensorMap",
    "i32": "int", "i64": "long long", "f32": "float", "f64": "double", "f16": "__half", "bf16": "__nv_bfloat16",
}  # fmt: skip


def too_much_static_shared(kernel: str, nbytes: int, limit: int) -> str:
    """Message for a kernel that declares more static shared memory than a block may have."""
    return (
        f"{kernel} declares {nbytes} bytes of static shared memory; the limit is {limit}. Use extern __shared__ and "
        "pass the size at the launch"
    )


@dataclass
class _Entry:
    file: str
    line: int | None
    severity: str
    text: str
    body: list[str]


def parse_log(
    log: str,
    *,
    succeeded: bool = False,
    signatures: Sequence[LaunchSignature] = (),
    paths: Mapping[str, str] | None = None,
    missing_headers: Mapping[str, str] | None = None,
) -> tuple[Diagnostic, ...]:
    """Diagnostics of an NVRTC log, errors first, at most :data:`MAX_DIAGNOSTICS`.

    A compilation that ``succeeded`` has no errors, even if its log contains some (a candidate can write into it).
    ``paths`` maps folders of this machine to their replacements in messages, ``missing_headers`` beginnings of headers'
    names to advice.
    """
    distinct: dict[Diagnostic, None] = {}  # a candidate can cause thousands
    for entry in _entries(log):
        diagnostic = _diagnostic(entry, signatures, paths or {}, missing_headers or {})
        if diagnostic is not None and not (succeeded and diagnostic.severity == "error"):
            distinct[diagnostic] = None
    diagnostics = list(distinct)
    if any(each.severity == "error" and each.file == CANDIDATE_FILE for each in diagnostics):
        # Text that does not parse leaves nothing declared for the header that follows it.
        diagnostics = [each for each in diagnostics if each.file != SIGNATURE_HEADER]
    # A missing header or kernel causes errors after it: errors of the candidate's own lines come first.
    diagnostics.sort(key=lambda d: (d.severity != "error", d.file != CANDIDATE_FILE, d.file != LAUNCHES_FILE))
    if len(diagnostics) > MAX_DIAGNOSTICS:
        omitted = len(diagnostics) - MAX_DIAGNOSTICS + 1
        note = Diagnostic(file=CANDIDATE_FILE, severity="note", message=f"{omitted} more diagnostics are left out")
        diagnostics = [*diagnostics[: MAX_DIAGNOSTICS - 1], note]
    return tuple(diagnostics)


def _entries(log: str) -> list[_Entry]:
    entries: list[_Entry] = []
    for line in log.splitlines():
        if match := _LOCATED.match(line):
            entries.append(_Entry(match["file"], int(match["line"]), match["severity"], match["text"], []))
        elif match := _IN_PTX.match(line):
            severity = "warning" if match["severity"] == "warning" else "error"
            entries.append(_Entry(CANDIDATE_FILE, None, severity, f"inline PTX: {match['text']}", []))
        elif match := _PLACED_ELSEWHERE.match(line):
            severity = "warning" if "warning" in match["severity"] else "error"
            entries.append(_Entry(CANDIDATE_FILE, None, severity, match["text"], []))
        elif entries and not line.startswith("ptxas"):
            entries[-1].body.append(line)
    return entries


def _diagnostic(
    entry: _Entry, signatures: Sequence[LaunchSignature], paths: Mapping[str, str], missing_headers: Mapping[str, str]
) -> Diagnostic | None:
    severity = _SEVERITY.get(entry.severity, "note" if entry.severity != "remark" else "remark")
    if severity == "remark" or (severity != "error" and entry.file != CANDIDATE_FILE):
        return None  # a warning from a library's header
    body = "\n".join(entry.body)
    if match := _WITH.search(body):
        return _launch_mistake(match[1], match[2], signatures)
    if "kernelforge" in entry.text and "static assertion" in entry.text:
        return None  # the outer assertion of an error that has its own record
    file, line, text = entry.file, entry.line, entry.text
    if file == "__nv_name_map":
        return None if _name_map_repeats(text, signatures) else _unknown_kernel(text, body)
    if file == LAUNCHES_FILE:
        return _launch_error(line, text, signatures)
    if severity == "error" and (where := _raised_in_candidate(body)) and file != CANDIDATE_FILE:
        text, file, line = f"{text} (in {file}:{line})", CANDIDATE_FILE, where
    if match := _TOO_MUCH_SHARED.search(text):
        text = too_much_static_shared(match["kernel"], int(match["bytes"], 16), int(match["max"], 16))
    text = text.removesuffix(": Permission denied")  # a file that is not granted looks like a missing one
    if match := _NO_SUCH_HEADER.search(text):
        advice = (text for beginning, text in missing_headers.items() if match[1].startswith(beginning))
        text += "".join(f"; {words}" for words in advice)
    for folder, stands_for in paths.items():
        text, file = text.replace(folder, stands_for), file.replace(folder, stands_for)
    if file.startswith("/"):
        file = file.rsplit("/", 1)[-1]
    if len(text) > MAX_MESSAGE_CHARACTERS:
        text = text[: MAX_MESSAGE_CHARACTERS - 1] + "…"
    return Diagnostic(file=file[:200], line=line, severity=severity, message=text)


def _raised_in_candidate(body: str) -> int | None:
    """The candidate's line that instantiated the template in which an error was found."""
    places = re.findall(r"at line (\d+)(?: of ([^\n]+))?$", body, re.M)
    for line, file in reversed(places):
        if file == CANDIDATE_FILE:
            return int(line)
    return None


def _launch_mistake(kind: str, bindings: str, signatures: Sequence[LaunchSignature]) -> Diagnostic | None:
    number = _number(_binding(bindings, "Launch"), len(signatures))
    if number is None:
        return None
    signature = signatures[number]
    if kind == "count":
        passed, taken = _binding(bindings, "Passed"), _binding(bindings, "Taken")
        noun = "argument" if passed == "1" else "arguments"
        message = f"{signature.expression}: the plan passes {passed} {noun}, the kernel takes {taken}"
    else:
        position = _number(_binding(bindings, "Position"), len(signature.args) + 1)
        if not position:
            return None  # a template of the candidate with the harness's name
        taken = _binding(bindings, "Taken") or "another type"
        arg = signature.args[position - 1]
        message = (
            f"argument {position} of {signature.expression}: the plan passes {_argument_text(arg)}, "
            f"the kernel takes {taken}"
        )
    return Diagnostic(file=CANDIDATE_FILE, severity="error", message=message)


def _argument_text(arg: str) -> str:
    if arg.startswith("tensor:"):
        return f"a {arg[7:]} tensor ({_WANTED[arg]})"
    if arg == "tensor_map":
        return f"a tensor map ({_WANTED[arg]})"
    return f"{arg} ({_WANTED[arg]})"


def _number(text: str | None, below: int) -> int | None:
    """A binding as an index; None for other text, as the candidate can use the name of the harness's template."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,6}", text) and int(text) < below else None


def _binding(bindings: str, name: str) -> str | None:
    """Value of one template parameter in ``A=1, B=foo<int, 2>, C=x``."""
    match = re.search(rf"(?:^|, ){name}=(.*?)(?=, \w+=|$)", bindings)
    return None if match is None else match[1]


def _launch_error(line: int | None, text: str, signatures: Sequence[LaunchSignature]) -> Diagnostic | None:
    if line is None or not 1 <= line <= len(signatures) or text.startswith("incomplete type"):
        return None
    expression = signatures[line - 1].expression
    if "is undefined" in text:
        message = f"the plan launches {expression}, but the source has no such kernel"
    else:
        message = f"the plan launches {expression}: {text}"
    return Diagnostic(file=CANDIDATE_FILE, severity="error", message=message)


def _name_map_repeats(text: str, signatures: Sequence[LaunchSignature]) -> bool:
    return bool(signatures) or text.startswith("Error in parsing name expression")


def _unknown_kernel(text: str, body: str) -> Diagnostic:
    match = re.search(r"#pragma nv_mangled_name (.*)$", body, re.M)
    name = match[1].strip() if match else "a kernel"
    message = f"the plan launches {name}, but the source has no such kernel"
    if "is undefined" not in text:
        message = f"the plan launches {name}: {text}"
    return Diagnostic(file=CANDIDATE_FILE, severity="error", message=message)


@dataclass(frozen=True)
class PtxasFacts:
    """Figures of ``ptxas -v`` for one entry point."""

    static_shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d{1,9}) bytes stack frame, (\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads")
_USED = re.compile(r"Used \d+ registers")
_SHARED = re.compile(r"\b(\d{1,9}) bytes smem")


def parse_ptxas(log: str) -> dict[str, PtxasFacts]:
    """Static shared memory, stack and spills by lowered name."""
    facts: dict[str, PtxasFacts] = {}
    entry = described = ""
    stack = (0, 0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, stack = match[1], (0, 0, 0)
        elif match := _PROPERTIES.search(line):
            described = match[1]
        elif (match := _STACK.search(line)) and described == entry:
            stack = (int(match[1]), int(match[2]), int(match[3]))
        elif entry and _USED.search(line):
            shared = _SHARED.search(line)
            facts[entry] = PtxasFacts(int(shared[1]) if shared else 0, *stack)
            entry = ""
    return facts


_BOUNDED_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\([^)]*\)([^{]*)\{")
_MAX_THREADS = re.compile(r"\.maxntid\s+([\d, ]+)")


def launch_bounds(ptx: str) -> dict[str, int]:
    """Largest number of threads per block by lowered name, for entries that declare ``__launch_bounds__``."""
    bounds: dict[str, int] = {}
    for name, directives in _BOUNDED_ENTRY.findall(ptx):
        if match := _MAX_THREADS.search(directives):
            bounds[name] = math.prod(int(extent) for extent in match[1].split(",") if extent.strip())
    return bounds
