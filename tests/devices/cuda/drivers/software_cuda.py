"""Build NVIDIA's libraries in software, and run a script on them in a child process."""

import json
import os
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("software_libcuda.c")
DEFINED = re.compile(r"^CUresult (cu[A-Z]\w+)\(", re.MULTILINE)
NAMED = re.compile(r"\bcu[A-Z]\w+\b")


def header() -> Path:
    """The cuda.h of the wheel that the package depends on."""
    places = find_spec("nvidia").submodule_search_locations
    return next(Path(place, "cu13/include/cuda.h") for place in places if Path(place, "cu13/include/cuda.h").exists())


def build_libcuda(folder: Path) -> None:
    """Write ``libcuda.so.1`` into ``folder``."""
    exports = sorted(set(DEFINED.findall(SOURCE.read_text())))
    (folder / "exports.h").write_text("".join(f"EXPORT({name}),\n" for name in exports))
    # The profiler's functions have a header of their own, which no wheel brings; pycuda links this one.
    named = [*NAMED.findall(header().read_text()), "cuProfilerInitialize"]
    stubs = "".join(f"__attribute__((weak)) int {name}(void) {{ return 801; }}\n" for name in sorted(set(named)))
    (folder / "stubs.c").write_text(stubs)
    sources = ["-I", str(header().parent), "-I", str(folder), str(SOURCE), str(folder / "stubs.c")]
    _compile(folder / "libcuda.so.1", *sources)


def build_nvml(folder: Path) -> None:
    """Write ``libnvidia-ml.so.1`` into ``folder``."""
    _compile(folder / "libnvidia-ml.so.1", str(SOURCE.with_name("software_nvml.c")))


def _compile(library: Path, *arguments: str) -> None:
    shape = ["-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run(["gcc", *shape, *arguments], check=True, timeout=120)


def run(folder: Path | None, script: str, **environment: str) -> Any:
    """What ``answer`` is at the end of a script that runs in a child.

    Args:
        folder: Where the child finds its libraries; None for those of the machine.
        script: It may be indented.
        environment: More variables of the child.
    """
    prelude = "import json\nanswer = None\n"
    ending = "\nprint(json.dumps(answer))\n"
    root = Path(__file__).parents[4]
    paths = [str(root), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    machine = dict(os.environ) if folder is None else {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(folder)}
    machine |= {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script) + ending],
        capture_output=True, text=True, timeout=60, env=machine,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
