"""Programming models of the Codex study: which one a code uses, which can be asked for, and why others cannot."""

from __future__ import annotations

import re
import shutil
import tokenize
from io import StringIO
from typing import Final, Literal, NamedTuple

from kernelforge.compile.triton_build import installed_triton
from kernelforge.metrics.codebleu import uncommented
from kernelforge.study.signatures import Underivable
from kernelforge.translation import kokkos
from kernelforge.translation.offload import OFFLOAD_FUNCTIONS, Offload
from kernelforge.translation.thrust import CUDA_FUNCTIONS, MISSING, header_folder

Runner = Literal["cuda", "triton", "kernel text", "c", "thrust", "kokkos", "fortran", "python"]
"""What judges a code: an emulated or real GPU, for Python also by a kernel's text alone; the jail of C functions, with
Thrust's headers, with Kokkos, or with gfortran for Fortran; or that of Python functions."""


class ProgrammingModel(NamedTuple):
    """A programming model as a prompt names it."""

    name: str
    prompt: str
    runner: Runner | None
    """What judges code of this model; None where nothing here can."""
    refusal: str = ""
    """Why the model cannot be asked for; empty where it can."""
    offload: Offload | None = None
    """Directives whose regions run in a memory of their own."""


MODELS: Final[dict[str, ProgrammingModel]] = {
    item.name: item
    for item in (
        ProgrammingModel("cuda", "CUDA", "cuda"),
        ProgrammingModel("openmp", "OpenMP", "c"),
        ProgrammingModel("openmp-offload", "OpenMP offload", "c", offload="openmp"),
        ProgrammingModel("openacc", "OpenACC", "c", offload="openacc"),
        ProgrammingModel(
            "serial", "C++", "c", "it is no programming model of the paper, only what suggestions fall to"
        ),
        ProgrammingModel("hip", "HIP", "cuda"),
        ProgrammingModel("thrust", "Thrust", "thrust", offload="thrust"),
        ProgrammingModel("kokkos", "Kokkos", "kokkos", offload="kokkos"),
        ProgrammingModel("sycl", "SyCL", None, "its headers and its compiler are no part of this project"),
        ProgrammingModel("opencl", "OpenCL", None, "its compiler is no part of this project"),
        ProgrammingModel("fortran-openmp", "Fortran OpenMP", "fortran"),
        ProgrammingModel("fortran-openmp-offload", "Fortran OpenMP offload", "fortran", offload="openmp"),
        ProgrammingModel("fortran-openacc", "Fortran OpenACC", "fortran", offload="openacc"),
        ProgrammingModel("fortran", "Fortran", "fortran", "it is no programming model of the paper without directives"),
        ProgrammingModel("julia", "Julia", None, "no jail here runs Julia"),
        ProgrammingModel("numpy", "numpy", "python"),
        ProgrammingModel("numba", "Numba", "python"),
        ProgrammingModel("cupy", "cuPy", "kernel text"),
        ProgrammingModel("pycuda", "pyCUDA", "kernel text"),
        ProgrammingModel("triton", "Triton", "triton"),
        ProgrammingModel("python", "Python", "python", "it is no programming model of the paper"),
    )
}
"""By the name that ``--model`` takes, in the order of the table."""


def missing_tool(runner: Runner | None) -> str:
    """Name of the tool that a runner needs and this machine lacks, with what to do; empty if it lacks none."""
    if runner == "fortran" and shutil.which("gfortran") is None:
        return "there is no Fortran compiler `gfortran`; install it, as with `apt-get install gfortran`"
    if runner == "thrust" and header_folder() is None:
        return MISSING
    if runner == "kokkos" and kokkos.header_folder() is None:
        return kokkos.MISSING
    if runner == "triton" and installed_triton() is None:
        return "Triton is not installed; install the extra in a checkout: `pip install -e '.[triton]'`"
    return ""


_OFFLOAD_CALL: Final = re.compile(r"\b(?:omp_target|acc)_\w+(?=\s*\()")
_C_DEFINED: Final = re.compile(r"\b((?:omp_target|acc)_\w+)\s*\([^;{}()]{0,1000}\)\s*\{")
_FORTRAN_DEFINED: Final = re.compile(r"\b(?:subroutine|function)\s+((?:omp_target|acc)_\w+)")
_ONE_MEMORY: Final = re.compile(r"\bomp\s+requires\b[^\n]*\bunified_shared_memory\b", re.IGNORECASE)


def offload_of(code: str, model: str) -> Offload | None:
    """Directives of a code whose regions get a memory of their own; None where there are none.

    Args:
        code: of a suggestion.
        model: the programming model that it uses.

    Raises:
        Underivable: it calls a function that the runtime of such regions lacks, or requires one memory for host and
            device, which gcc refuses.
    """
    offload, text = MODELS[model].offload, uncommented(code)
    if offload is None or offload == "kokkos":
        return offload
    if offload == "thrust":
        if lack := _beyond_thrust(text):
            raise Underivable(
                f"it uses `{lack}`, and beyond Thrust's portable part only {', '.join(CUDA_FUNCTIONS)} are here"
            )
        return offload
    if _ONE_MEMORY.search(text):
        raise Underivable("it requires unified shared memory, which the compiler here lacks")
    fortran = MODELS[model].runner == "fortran"
    text = text.lower() if fortran else text  # Fortran's names have no case
    own = set((_FORTRAN_DEFINED if fortran else _C_DEFINED).findall(text))
    functions = frozenset[str]() if fortran else OFFLOAD_FUNCTIONS
    if lacking := sorted(set(_OFFLOAD_CALL.findall(text)) - functions - own):
        raise Underivable(f"it calls `{lacking[0]}`, which the runtime of its regions lacks here")
    return offload


_BEYOND_THRUST: Final = re.compile(
    r"<<<|\bcu(?:blas|sparse|solver|rand|fft)\w*|\bcub(?=\s*::|/)|\bthrust\s*::\s*(?:system|cuda\w*|universal\w*|async)\b"
    r"|\bthrust/(?:system|async|universal\w*)/?|\bcuda[A-Z]\w*(?=\s*\()"
)


def _beyond_thrust(text: str) -> str:
    """The first name in a Thrust code that a GPU's Thrust has and the one here lacks; empty if there is none."""
    names = (match.group() for match in _BEYOND_THRUST.finditer(text))
    return next((name for name in names if name not in CUDA_FUNCTIONS), "")


ASKABLE: Final = tuple(item.name for item in MODELS.values() if not item.refusal and item.runner is not None)
"""Models that the study asks for."""

_RULES: Final = tuple(
    (name, re.compile(pattern, re.MULTILINE | re.IGNORECASE))
    for name, pattern in (
        ("triton", r"^[ \t]*@triton\.|^[ \t]*import\s+triton\b"),
        ("pycuda", r"\bpycuda\b"),
        ("cupy", r"^[ \t]*import\s+cupy\b|\bcupy\."),
        ("numba", r"^[ \t]*(?:from|import)\s+numba\b|^[ \t]*@(?:numba\.)?(?:n?jit|cuda\.jit|vectorize)\b"),
        ("numpy", r"^[ \t]*(?:from|import)\s+numpy\b"),
        (
            "python",
            r"^[ \t]*(?:from\s+[\w.]+\s+)?import\s+\w+\s*$|^[ \t]*def\s+\w+\s*\([^)]{0,1000}\)\s*(?:->[^:]{0,200})?:",
        ),
        ("julia", r"^[ \t]*using\s+[A-Z]\w*\s*$|^[ \t]*function\s+\w+!?\s*\([^)]{0,1000}\)\s*$|\bThreads\.@threads\b"),
        ("fortran-openmp-offload", r"^[ \t]*!\$omp\s+(?:\w+\s+)*target\b"),
        ("fortran-openacc", r"^[ \t]*!\$acc\b"),
        ("fortran-openmp", r"^[ \t]*!\$omp\b"),
        (
            "fortran",
            r"^[ \t]*(?:pure\s+)?subroutine\s+\w+|^[ \t]*program\s+\w+\s*$|^[ \t]*end\s*(?:do|subroutine|program)\b",
        ),
        ("kokkos", r"\bKokkos::|\bKOKKOS_(?:CLASS_)?LAMBDA\b|\busing\s+namespace\s+Kokkos\b"),
        ("sycl", r"\bsycl::|<(?:CL/)?sycl"),
        ("opencl", r"\b__kernel\b|\bclCreate\w+"),
        ("hip", r"<hip/hip_runtime|\bhip(?:Malloc|Memcpy|Free|LaunchKernelGGL|DeviceSynchronize)\b"),
        ("cuda", r"\b__global__\b"),
        ("thrust", r"\bthrust::|<thrust/"),
        ("cuda", r"<<<|\bcuda(?:Malloc|Memcpy|Free)\w*\s*\(|\bcu(?:blas|sparse)\w*\s*\("),
        ("openacc", r"^[ \t]*#\s*pragma\s+acc\b"),
        ("openmp-offload", r"^[ \t]*#\s*pragma\s+omp\s+(?:\w+\s+)*target\b"),
        ("openmp", r"^[ \t]*#\s*pragma\s+omp\b|\bomp_get_\w+"),
        ("serial", r"\w\s*\([^;{}]{0,1000}\)\s*(?:const\s*)?\{"),
    )
)
"""The first rule that fits decides; comments are no code. A lone include of a header is no use of it. Lists of
parameters are bounded, so that no text takes long."""


_CUDA_NAME: Final = re.compile(r"\bcuda[A-Z_]\w*|<cuda|\bcu(?:blas|sparse|rand|fft)\w*")
_STRING: Final = r"\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\"[^\"\n]*\"|'[^'\n]*'"
_FORTRAN_COMMENT: Final = re.compile(rf"({_STRING})|!(?!\$)[^\n]*")
_PYTHON_COMMENT: Final = re.compile(rf"({_STRING})|#[^\n]*")
_PYTHON_MARKS: Final = {tokenize.NEWLINE: "\n", tokenize.INDENT: "{", tokenize.DEDENT: "}"}
_PYTHON: Final = frozenset({"triton", "pycuda", "cupy", "numba", "numpy", "python"})


def plain_code(code: str, model: str | None) -> str:
    """A code without comments and spacing, but for the indentation of Python.

    Args:
        code: of a suggestion.
        model: the programming model that it uses.
    """
    if model is not None and model.startswith("fortran"):
        text = _FORTRAN_COMMENT.sub(r"\1", code)
    elif model in _PYTHON:
        return _python_tokens(code)
    else:
        text = uncommented(code)
    return "".join(text.split())


def _python_tokens(code: str) -> str:
    """The tokens of a Python code, with marks where lines end and blocks begin and end; its lines, where it is none."""
    tokens: list[str] = []
    try:
        for token in tokenize.generate_tokens(StringIO(code).readline):
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                tokens.append(_PYTHON_MARKS.get(token.type, token.string))
    except (tokenize.TokenError, SyntaxError):
        lines = (line.rstrip() for line in _PYTHON_COMMENT.sub(r"\1", code).split("\n"))
        return "\n".join(filter(None, lines))
    return " ".join(tokens)


def is_of_model(code: str, used: str, requested: str) -> bool:
    """Whether a code is of the requested model: it uses that one, or HIP is requested of a kernel that names neither
    HIP nor CUDA, whose text is the same in both."""
    if requested == "hip" and used == "cuda":
        return _CUDA_NAME.search(uncommented(code)) is None
    return used == requested


def programming_model(code: str) -> str | None:
    """Name of the programming model that a code uses; None for text that is no code of any of them.

    A code with a ``__global__`` kernel is CUDA with any host part, unless it names HIP. C or C++ without
    directives is ``serial``.
    """
    text = uncommented(code)
    return next((name for name, rule in _RULES if rule.search(text)), None)
