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
    return next(
        Path(folder, "cu13/include/cuda.h") for folder in places if Path(folder, "cu13/include/cuda.h").exists()
    )


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


def _environment(folder: Path | None) -> dict[str, str]:
    paths = [str(SOURCE.parents[4]), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")]
    machine = dict(os.environ) if folder is None else {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(folder)}
    return machine | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(folder: Path | None, script: str, **environment: str) -> Any:
    """Value of ``answer`` at the end of a script that runs in a child.

    Args:
        folder: Where the child finds its libraries; None for those of the machine.
        script: It may be indented.
        environment: More variables of the child.
    """
    program = f"import json\nanswer = None\n{textwrap.dedent(script)}\nprint(json.dumps(answer))\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120, env=_environment(folder) | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Server:
    """The same for many scripts, with the imports done once."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SOURCE.with_name("software_server.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment(folder),
        )  # fmt: skip

    def run(self, prelude: str, script: str) -> Any:
        print(json.dumps(prelude + textwrap.dedent(script)), file=self._process.stdin, flush=True)
        reply = json.loads(self._process.stdout.readline())
        assert "error" not in reply, reply["error"]
        return reply["answer"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)
