"""Share of a folder's CUDA kernels that the emulated device translates: other people's code, and what it refuses in it.

    python benchmarks/translate_share.py FOLDER [--pattern '*.cu'] [--include DIR] [--most 100] [--json FILE]

Every ``.cu`` file is cut into device code: includes of files next to it are put in their place, host functions go, and
what NVRTC still refuses goes with them. Each entry of the PTX is then translated to LLVM's code, with ``--native`` also
to machine code; nothing is launched. Templates are instantiated with the arguments of a launch in the file where those
are constants, otherwise with float, 16 and false. A kernel that NVRTC refuses has no entry; the table says how many
kernels the text has. Fails (exit code 1) when less than 97 % of the entries translate.

Templates whose arguments are built by other templates, such as those of CUTLASS, need the whole file: ``--nvcc NVCC``
compiles it as it is with ``nvcc -ptx`` and the ``--option`` given, and needs the headers that its host code includes. A
``.ptx`` file is taken as it is.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from kernelforge.compile.nvrtc import SUCCESS, Compilation, Nvrtc
from kernelforge.compile.toolchain import installed_toolchain
from kernelforge.compile.worker import supplied_headers
from kernelforge.devices.emulated.errors import EmulatorError, UnsupportedInstruction
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory
from kernelforge.modelnew.convert.cpp_tokens import Token, Unconvertible, matching, outermost, tokenize

TARGET = 0.97
ROUNDS = 15
"""Compilations of one file, each without what the one before refused."""
MOST_INSTANCES = 6
"""Instantiations of one template."""
MEMORY_BYTES = 1 << 28
THREADS = 256
"""Per block, where a kernel has no ``__launch_bounds__``."""

_HOST = re.compile(
    r"<<<|\bint\s+main\s*\(|\bcuda(?:Malloc|Memcpy|Free|Memset|Event|Stream|DeviceSynchronize|GetLastError|Launch)\w*\s*\("
    r"|\bstd::(?:vector|string|cout|cerr|chrono|ifstream|mt19937|unique_ptr)\b|\btorch::|\bat::|\bpy::|PYBIND11_MODULE"
    r"|TORCH_LIBRARY|\bcublas\w*\(|\bTEST\(|\bTEST_F\("
)
_DEVICE = re.compile(r"__global__|__device__")
_QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*', re.M)
_ERROR = re.compile(r"^(?P<file>[^\n(]*)\((?P<line>\d+)\): (?:catastrophic )?error:? ?(?P<text>[^\n]*)", re.M)
_ABSENT = re.compile(r'could not open source file "([^"]+)"|cannot open source file "([^"]+)"')
_TYPES = ("struct", "class", "union", "enum")
_KERNEL = re.compile(r"__global__")
_CONSTANT = re.compile(r"[\w:\s,*.+\-]*")


@dataclass
class FileResult:
    """The entries of one file, and which of them are refused."""

    file: str
    problem: str = ""
    """Why there is no PTX of it; empty if there is."""
    kernels: int = 0
    """``__global__`` functions in its device code."""
    entries: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """Entry → why the emulated device refuses it."""


def with_neighbours(file: Path, seen: set[Path]) -> str:
    """The text of a file with the files that it includes from its own folder in place of the directives."""
    seen.add(file.resolve())

    def included(match: re.Match[str]) -> str:
        other = (file.parent / match[1]).resolve()
        if other in seen:
            return ""
        return with_neighbours(other, seen) if other.is_file() else match[0]

    text = file.read_text("utf-8", "replace").replace("\r\n", "\n")
    return _QUOTED.sub(included, re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*", "", text, flags=re.M))


def items(tokens: Sequence[Token], at: int, end: int) -> Iterator[tuple[int, int]]:
    """First and last token of each item at namespace level."""
    while at < end:
        token = tokens[at]
        if token.kind == "directive" or token.text == ";":
            at += 1
            continue
        brace = next((k for k in range(at, min(at + 8, end)) if tokens[k].text in "{;("), at)
        is_block = token.text in ("namespace", "inline") or (token.text == "extern" and tokens[at + 1].kind == "string")
        if is_block and tokens[brace].text == "{" and brace <= at + 7:
            close = matching(tokens, brace)
            yield from items(tokens, brace + 1, close)
            at = close + 1
            continue
        start, called, is_type = at, False, False
        for at in outermost(tokens, start):
            text = tokens[at].text
            if text == ";":
                break
            is_type = is_type or (text in _TYPES and not called and tokens[at - 1].text not in "<,")
            called = called or text == "("
            if text == "{" and called and not is_type:
                at = matching(tokens, at)
                break
        if at >= end:
            raise Unconvertible(token.line, token.text, "this declaration has no end")
        yield start, at
        at += 1


class DeviceCode:
    """The text of a file from which items can be taken."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"\bnamespace\s*\{", "inline namespace unnamed {", text)
        self.text = re.sub(r"\bstatic\s+(?=(?:inline\s+)?__global__)", "", text)
        tokens = tokenize(self.text)[:-1]
        self.items = [(tokens[first].start, tokens[last].end) for first, last in items(tokens, 0, len(tokens))]
        self.removed: list[tuple[int, int]] = []
        for item in self.items:
            if _HOST.search(self.text, *item) and not _DEVICE.search(self.text, *item):
                self.removed.append(item)
        self.lines = [0, *(match.end() for match in re.finditer("\n", self.text))]

    def remove_line(self, line: int) -> bool:
        """Take the item, or the directive, that has this line; whether there was one left."""
        if not 0 < line <= len(self.lines):
            return False
        start = self.lines[line - 1]
        end = self.lines[line] - 1 if line < len(self.lines) else len(self.text)
        span = next((item for item in self.items if item[0] <= end and start < item[1]), (start, end))
        if span in self.removed:
            span = (start, end)
        if span in self.removed:
            return False
        self.removed.append(span)
        return True

    def remaining(self) -> str:
        """The text, with the lines where they were."""
        parts, at = [], 0
        for start, end in sorted(self.removed):
            if end > at:
                parts += [self.text[at : max(start, at)], re.sub(r"[^\n]", "", self.text[max(start, at) : end])]
                at = end
        return "".join([*parts, self.text[at:]])


def instances(device: str, text: str) -> list[str]:
    """Expressions that instantiate the templates among the kernels of a text."""
    expressions: dict[str, None] = {}
    pattern = re.compile(r"template\s*<(?P<parameters>[^{};]*?)>\s*(?:extern\s+)?(?P<rest>[^{};]*__global__[^{};]*?)\{")
    for match in pattern.finditer(device):
        head = re.sub(r"__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)", "", match["rest"])
        name = re.search(r"(\w+)\s*\(", head)
        if name is None:
            continue
        launched = [
            arguments
            for arguments in re.findall(rf"\b{name[1]}\s*<([^<>;{{}}]*(?:<[^<>]*>[^<>;{{}}]*)?)>\s*<<<", text)
            if _CONSTANT.fullmatch(arguments) and not re.search(r"\b(?:T|scalar_t|[a-z_]*size|[A-Z]\w*_T)\b", arguments)
        ]
        defaults = ", ".join(_argument(part) for part in match["parameters"].split(",") if "=" not in part)
        for arguments in (*[*dict.fromkeys(launched)][: MOST_INSTANCES - 1], defaults):
            expressions[f"{name[1]}<{' '.join(arguments.split())}>"] = None
    return list(expressions)


def _argument(parameter: str) -> str:
    if re.match(r"\s*(typename|class)\b", parameter):
        return "float"
    return "false" if "bool" in parameter.split() else "16"


@dataclass(frozen=True)
class Settings:
    """Folder, compiler and limits of a measurement."""

    root: Path
    includes: tuple[Path, ...] = ()
    """Folders of headers."""
    arch: str = "sm_90a"
    cuda: int | None = None
    """Major version of NVRTC; by default the one that candidates are compiled with."""
    nvcc: Path | None = None
    """Compiles whole files in place of NVRTC."""
    options: tuple[str, ...] = ()
    """Further options of the compiler."""
    native: bool = False
    """Make machine code of the entries."""
    limit_s: int = 60
    """Longest compilation of a file, and longest translation of an entry."""


class Measurement:
    """The compiler and the options of one folder."""

    def __init__(self, settings: Settings) -> None:
        toolchain = installed_toolchain(settings.cuda)
        self.settings, self.root, self.includes = settings, settings.root, settings.includes
        self.empty: dict[str, str] = {}
        """Headers that the file at hand has to do without."""
        self.nvrtc = Nvrtc(toolchain.library)
        self.headers = {
            name: "" if "#error" in text[:8] else text for name, text in supplied_headers(toolchain.headers).items()
        }
        real = {name for folder in self.includes for name in self.headers if (folder / name).is_file()}
        self.headers = {name: text for name, text in self.headers.items() if name not in real}
        self.options = [*toolchain.options(settings.arch.replace("sm", "compute"))]
        self.options.remove("--ptxas-options=-v")
        self.options += [*(f"-I{folder}" for folder in self.includes), "-w", *settings.options]

    def names(self, header: str) -> Iterator[str]:
        """The names by which a header of the folder can be included."""
        for folder in self.includes:
            if Path(header).is_relative_to(folder):
                yield str(Path(header).relative_to(folder))
                yield Path(header).name

    def compile(self, text: str, file: Path, expressions: Sequence[str] = ()) -> Compilation:
        """One compilation; headers that do not exist, or that hold host code, are empty."""
        while True:
            options = [*self.options, f"-I{file.parent}"]
            result = self.nvrtc.compile(
                text, "file.cu", headers=self.headers | self.empty, options=options, expressions=expressions
            )
            absent = {next(filter(None, names)) for names in _ABSENT.findall(result.log)}
            if not absent:
                absent = {name for error in _ERROR.finditer(result.log) for name in self.names(error["file"])}
            absent -= self.empty.keys()
            if result.status == SUCCESS or not absent:
                return result
            self.empty |= dict.fromkeys(absent, "")

    def measure(self, file: Path) -> FileResult:
        """Compile and translate one file."""
        outcome = FileResult(str(file.relative_to(self.root)))
        try:
            with limited(self.settings.limit_s):
                ptx = self.ptx(file, outcome)
        except TimeoutError as error:
            outcome.problem = f"compilation {error}"
            return outcome
        done: set[str] = set()
        for module in ptx:
            self.translate(module, done, outcome)
        if ptx and not done:
            outcome.problem = "no entry is left"
        return outcome

    def ptx(self, file: Path, outcome: FileResult) -> list[str]:
        """The PTX of a file, in one module or several; none, and the file's problem, if there is no way to it."""
        if file.suffix == ".ptx":
            return [file.read_text()]
        return self.device_code_ptx(file, outcome) if self.settings.nvcc is None else self.whole_ptx(file, outcome)

    def whole_ptx(self, file: Path, outcome: FileResult) -> list[str]:
        """PTX of all that a file's host code instantiates, by nvcc."""
        with TemporaryDirectory() as folder:
            ptx = Path(folder, "file.ptx")
            command = [str(self.settings.nvcc), "-ptx", f"-arch={self.settings.arch}", "-w", "-o", str(ptx), str(file)]
            command += [*(f"-I{include}" for include in self.includes), *self.settings.options]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode == 0:
                return [ptx.read_text()]
            errors = [line for line in answer.stderr.splitlines() if "error" in line] or answer.stderr.splitlines()
            outcome.problem = f"nvcc: {errors[0][:160] if errors else answer.returncode}"
            return []

    def device_code_ptx(self, file: Path, outcome: FileResult) -> list[str]:
        """PTX of what NVRTC takes of a file."""
        self.empty = {}
        try:
            text = with_neighbours(file, set())
            code = DeviceCode(text)
        except (Unconvertible, RecursionError, OSError) as error:
            outcome.problem = f"cannot be cut: {str(error)[:80]}"
            return []
        outcome.kernels = len(_KERNEL.findall(re.sub(r"//[^\n]*", "", text)))
        if not outcome.kernels and "__global__" not in text:
            outcome.problem = "no kernel"
            return []
        for _ in range(ROUNDS):
            result = self.compile(code.remaining(), file)
            if result.status == SUCCESS:
                break
            errors = list(_ERROR.finditer(result.log))
            lines = [int(error["line"]) for error in errors if error["file"].endswith("file.cu")]
            removed = [code.remove_line(line) for line in lines]
            if not any(removed):
                break
        if result.status != SUCCESS:
            outcome.problem = f"NVRTC: {result.log.strip().splitlines()[0][:160]}"
            return []
        ptx = [result.ptx.decode()]
        expressions = instances(code.remaining(), text)
        together = self.compile(code.remaining(), file, expressions) if expressions else result
        if together.status == SUCCESS:
            ptx = [together.ptx.decode()]
        else:
            singles = [self.compile(code.remaining(), file, [expression]) for expression in expressions]
            ptx += [single.ptx.decode() for single in singles if single.status == SUCCESS]
        return ptx

    def translate(self, ptx: str, done: set[str], outcome: FileResult) -> None:
        """Compile the entries of a PTX module that are not yet done."""
        try:
            machine = LoadedModule(ptx, Memory(MEMORY_BYTES))
        except (EmulatorError, ValueError) as error:
            names = set(re.findall(r"\.entry\s+([\w$]+)", ptx)) - done
            outcome.refused |= dict.fromkeys(names, f"module: {error}")
            done |= names
            outcome.entries = len(done)
            return
        for name, entry in machine.entries.items():
            if name in done:
                continue
            done.add(name)
            outcome.entries = len(done)
            try:
                with limited(self.settings.limit_s):
                    translate = machine.program if self.settings.native else machine.check
                    translate(name, (entry.max_threads or THREADS, 1, 1))
            except (UnsupportedInstruction, TimeoutError) as error:
                outcome.refused[name] = str(error)
            except Exception as error:
                outcome.refused[name] = f"{type(error).__name__}: {error}"


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in what takes longer; main thread only."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


_state: dict[str, Measurement] = {}


def _start(settings: Settings) -> None:
    _state["measurement"] = Measurement(settings)


def _measure(file: Path) -> FileResult:
    return _state["measurement"].measure(file)


def reason(message: str) -> str:
    """A refusal without the names and numbers that differ from kernel to kernel."""
    match = re.search(r"does not support '(?:@!?%\w+ )?(?P<what>[^' ]+)[^']*'[^:]*(?:: (?P<why>.*))?", message)
    return message[:100] if match is None else f"{match['what']}: {match['why'] or 'not implemented'}"[:140]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pattern", action="append", help="names of the files; repeatable; default *.cu and *.ptx")
    parser.add_argument("--include", type=Path, action="append", default=[], help="a folder of headers; repeatable")
    parser.add_argument("--most", type=int, default=0, help="files at most, spread over the folder; 0 for all")
    parser.add_argument("--arch", default=Settings.arch, help="architecture to compile for")
    parser.add_argument("--cuda", type=int, help="major version of NVRTC")
    parser.add_argument("--nvcc", type=Path, help="compile whole files with this nvcc in place of NVRTC")
    parser.add_argument("--option", action="append", default=[], help="an option of the compiler; repeatable")
    parser.add_argument("--native", action="store_true", help="make machine code of each entry, as a launch does")
    parser.add_argument("--limit", type=int, default=Settings.limit_s, help="seconds for a compilation or an entry")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path, help="write the result of each file there, as JSON lines")
    parsed = parser.parse_args(arguments)
    root = parsed.folder.resolve()
    patterns = parsed.pattern or ["*.cu", "*.ptx"]
    files = sorted({file for pattern in patterns for file in root.rglob(pattern) if file.is_file()})
    if not files:
        sys.exit(f"{root} holds no file {' or '.join(patterns)}")
    if parsed.most and len(files) > parsed.most:
        files = [files[k * len(files) // parsed.most] for k in range(parsed.most)]
    settings = Settings(
        root,
        tuple(folder.resolve() for folder in parsed.include),
        parsed.arch,
        parsed.cuda,
        parsed.nvcc,
        tuple(parsed.option),
        parsed.native,
        parsed.limit,
    )
    results: list[FileResult] = []
    with ProcessPoolExecutor(parsed.jobs, get_context("spawn"), _start, (settings,)) as pool:
        futures = [pool.submit(_measure, file) for file in files]
        for future in as_completed(futures):
            results.append(future.result())
            if parsed.json is not None:
                lines = [json.dumps(asdict(result)) for result in results]
                parsed.json.write_text("\n".join(lines) + "\n")
    show(results)


def show(results: Sequence[FileResult]) -> None:
    """Print the share and the refusals, and exit with 1 when the target is missed."""
    console = Console(width=160)
    compiled = [result for result in results if not result.problem]
    entries = sum(result.entries for result in results)
    refused = sum(len(result.refused) for result in results)
    share = (entries - refused) / max(entries, 1)
    table = Table("files", "with PTX", "kernels in their text", "entries", "translated", "share")
    kernels = sum(result.kernels for result in compiled)
    table.add_row(
        str(len(results)), str(len(compiled)), str(kernels), str(entries), str(entries - refused), f"{share:.1%}"
    )
    console.print(table)
    for title, reasons in (
        ("the device refuses", Counter(reason(why) for result in results for why in result.refused.values())),
        ("files without PTX", Counter(result.problem[:100] for result in results if result.problem)),
    ):
        table = Table("count", title)
        for why, count in reasons.most_common(25):
            table.add_row(str(count), why)
        if reasons:
            console.print(table)
    if share < TARGET:
        sys.exit(f"{share:.1%} of the entries translate; the target is {TARGET:.0%}")


if __name__ == "__main__":
    main()
