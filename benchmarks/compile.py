"""Time to build a candidate, against nvcc on the same kernel as torch's ``load_inline`` would build it.

    python benchmarks/compile.py [--builds 60] [--nvcc-runs 1] [--skip-nvcc]

Every build has fresh source, so nothing comes from a cache; each goes through the whole of ``Compiler.build``: a new
confined child, NVRTC to a real-architecture cubin and PTX, diagnostics, launch signature check, policy gate. The other
side is what ``load_inline`` runs for the same kernel with ``#include <torch/extension.h>``: nvcc on ``cuda.cu``, which
is what the ratio is against, and g++ on the binding, which is shown next to it. Kernels that include libraries are
built before and after their headers are precompiled. Fails (exit code 1) when the median warm build is slower than
60 ms, one with precompiled headers than 2 s, or the ratio is below 500. Without nvcc the ratio is not measured, and
that is said.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernelforge.compile import Artifact, Compiler, LaunchSignature
from kernelforge.compile.header_sets import BUILDS
from kernelforge.errors import KernelForgeError

TARGET_P50_MS = 60.0
TARGET_RATIO = 500.0
TARGET_PRECOMPILED_S = 2.0
ARCH = "sm_90a"

KERNEL = """
__global__ void vector_add(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}
"""
SIGNATURE = LaunchSignature("vector_add", ("tensor:float32", "tensor:float32", "tensor:float32", "i32"))

# What load_inline puts before a CUDA source, and what a KernelBench-style source has itself.
INLINE_CUDA = (
    "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n#include <torch/extension.h>\n"
    + KERNEL
    + """
torch::Tensor vector_add_cuda(torch::Tensor a, torch::Tensor b) {
  auto out = torch::empty_like(a);
  int n = a.numel();
  vector_add<<<(n + 255) / 256, 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), n);
  return out;
}
"""
)
INLINE_CPP = """#include <torch/extension.h>
torch::Tensor vector_add_cuda(torch::Tensor a, torch::Tensor b);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("vector_add_cuda", &vector_add_cuda, "vector_add_cuda"); }
"""


def warm_builds_ms(count: int) -> list[float]:
    """Wall time of ``count`` builds, in milliseconds, after the zygote is warm."""
    times = []
    with Compiler(None) as compiler:
        compiler.start()
        for number in range(count + 3):
            source = f"// {secrets.token_hex(16)}\n{KERNEL}"
            start = time.perf_counter()
            result = compiler.build(source, ["vector_add"], arch=ARCH, signatures=[SIGNATURE])
            elapsed = (time.perf_counter() - start) * 1e3
            if not isinstance(result, Artifact) or result.build.cached:
                sys.exit(f"the vector add was not built again: {result}")
            if number >= 3:
                times.append(elapsed)
    return times


LIBRARIES = {
    "cooperative groups": (
        "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n",
        "auto warp = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());"
        " x[0] = cooperative_groups::reduce(warp, x[threadIdx.x], cooperative_groups::plus<float>());",
    ),
    "cuda::pipeline": (
        "#include <cuda/pipeline>\n",
        "auto pipe = cuda::make_pipeline(); pipe.producer_acquire(); pipe.producer_commit(); pipe.consumer_wait();"
        " x[0] += 1; pipe.consumer_release();",
    ),
    "CUB": (
        "#include <cub/cub.cuh>\n",
        "using Reduce = cub::BlockReduce<float, 256>; __shared__ typename Reduce::TempStorage room;"
        " x[0] = Reduce(room).Sum(x[threadIdx.x]);",
    ),
    "CuTe": (
        "#include <cute/tensor.hpp>\n",
        "auto t = cute::make_tensor(cute::make_gmem_ptr(x), cute::make_shape(cute::Int<8>{}, 4)); t(0, 0) = t(1, 1);",
    ),
}
"""Header lines and body of a kernel on ``float* x`` for each library."""


def library_builds_s(builds: int = 3) -> dict[str, tuple[float, float]]:
    """Median seconds of a build that reads a library's headers, and of one that has them precompiled."""
    times = {}
    with Compiler(None, slow_build_s=0.0) as compiler:
        compiler.start()
        for name, (headers, body) in LIBRARIES.items():
            taken: list[float] = []
            for number in range(BUILDS + builds):
                if number == BUILDS:
                    compiler.header_sets.wait()
                source = f"{headers}// {secrets.token_hex(16)}\n__global__ void k(float* x) {{ {body} }}\n"
                start = time.perf_counter()
                result = compiler.build(source, ["k"], arch=ARCH)
                taken.append(time.perf_counter() - start)
                if not isinstance(result, Artifact) or result.build.cached:
                    sys.exit(f"the kernel with {name} was not built again: {result}")
            times[name] = statistics.median(taken[:BUILDS]), statistics.median(taken[BUILDS:])
        if compiler.header_sets.failures:
            sys.exit(f"headers were not precompiled: {compiler.header_sets.failures}")
    return times


def load_inline_commands(folder: Path, nvcc: str) -> dict[str, list[str]]:
    """The compilations that ``torch.utils.cpp_extension.load_inline`` writes into its ninja file."""
    os.environ.setdefault("CUDA_HOME", str(Path(nvcc).resolve().parent.parent))
    import sysconfig

    from torch.utils import cpp_extension

    (folder / "cuda.cu").write_text(INLINE_CUDA)
    (folder / "main.cpp").write_text(INLINE_CPP)
    standard = "-std=c++20" if "c++20" in Path(cpp_extension.__file__).read_text() else "-std=c++17"
    definitions = ["-DTORCH_EXTENSION_NAME=vector_add", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    includes = [part for path in cpp_extension.include_paths() for part in ("-isystem", path)]
    includes += ["-isystem", sysconfig.get_path("include")]
    gencode = f"-gencode=arch=compute_{ARCH[3:]},code={ARCH}"
    cuda_flags = [*cpp_extension.COMMON_NVCC_FLAGS, gencode, "--compiler-options", "-fPIC", standard]
    return {
        "nvcc cuda.cu": [nvcc, *definitions, *includes, *cuda_flags, "-c", "cuda.cu", "-o", "cuda.cuda.o"],
        "g++ main.cpp": ["g++", *definitions, *includes, "-fPIC", standard, "-c", "main.cpp", "-o", "main.o"],
    }


def time_command_s(command: list[str], folder: Path) -> float:
    """Wall time of one compilation, in seconds; ends the benchmark when it fails."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
    return elapsed


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", type=int, default=60, help="warm builds to time")
    parser.add_argument("--nvcc-runs", type=int, default=1, help="runs of nvcc; the median counts")
    parser.add_argument("--skip-nvcc", action="store_true", help="time KernelForge's builds only")
    options = parser.parse_args()
    console = Console()

    try:
        nvrtc_ms = warm_builds_ms(options.builds)
        libraries = library_builds_s()
    except KernelForgeError as error:
        sys.exit(str(error))
    p50 = statistics.median(nvrtc_ms)
    table = Table(title=f"vector add to {ARCH}")
    for column in ("build", "runs", "p50", "p90"):
        table.add_column(column, justify="left" if column == "build" else "right")
    table.add_row(
        "KernelForge, warm, fresh source", str(len(nvrtc_ms)), f"{p50:.1f} ms", f"{percentile(nvrtc_ms, 0.9):.1f} ms"
    )

    ratio = None
    nvcc = shutil.which("nvcc")
    if nvcc and not options.skip_nvcc:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for title, command in load_inline_commands(folder, nvcc).items():
                times = [time_command_s(command, folder) for _ in range(options.nvcc_runs)]
                middle = statistics.median(times)
                table.add_row(f"{title} (load_inline)", str(len(times)), f"{middle:.1f} s", f"{max(times):.1f} s")
                if ratio is None:
                    ratio = middle * 1e3 / p50
    console.print(table)
    table = Table("headers of", "read", "precompiled", "ratio", title=f"kernels that include a library, to {ARCH}")
    for name, (read_s, precompiled_s) in libraries.items():
        table.add_row(name, f"{read_s:.2f} s", f"{precompiled_s:.2f} s", f"{read_s / precompiled_s:.1f}")
    console.print(table)

    missed = p50 > TARGET_P50_MS
    console.print(
        f"warm build p50 {p50:.1f} ms, target at most {TARGET_P50_MS:.0f} ms: {'MISSED' if missed else 'met'}"
    )
    slowest = max(precompiled_s for _, precompiled_s in libraries.values())
    missed |= slowest > TARGET_PRECOMPILED_S
    console.print(
        f"slowest build with precompiled headers {slowest:.2f} s, target at most {TARGET_PRECOMPILED_S:g} s: "
        f"{'met' if slowest <= TARGET_PRECOMPILED_S else 'MISSED'}"
    )
    if ratio is not None:
        missed |= ratio < TARGET_RATIO
        verdict = "met" if ratio >= TARGET_RATIO else "MISSED"
        console.print(f"nvcc takes {ratio:.0f}x as long, target at least {TARGET_RATIO:.0f}x: {verdict}")
    elif options.skip_nvcc:
        console.print("ratio to nvcc: not measured (--skip-nvcc)")
    else:
        console.print("ratio to nvcc: NOT MEASURED, there is no nvcc on PATH (install the CUDA toolkit to measure it)")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
