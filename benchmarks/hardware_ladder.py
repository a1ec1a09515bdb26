"""The emulated device against an H100 on ladders of kernels at full sizes: counters and times.

    PYTHONPATH=. python benchmarks/hardware_ladder.py prepare FOLDER
    python benchmarks/hardware_ladder.py run FOLDER --output OUT
    ncu --csv --page raw --print-units base --clock-control none --cache-control all --target-processes all \
        --metrics METRICS python benchmarks/hardware_ladder.py run FOLDER --output OUT/once --once > OUT/ncu.csv
    PYTHONPATH=. python benchmarks/hardware_ladder.py compare FOLDER OUT --ncu OUT/ncu.csv

The cases are in ``ladder/ladder.toml``, their kernels in the same folder. ``prepare`` needs no GPU: it compiles the
kernels with NVRTC. ``run`` needs a GPU, its driver and NumPy, and no module of this project; with ``--once`` it
launches each case once and nothing else, in the order of ``cases.json``, for Nsight Compute. METRICS are the contents
of ``FOLDER/metrics.txt``. ``compare`` needs no GPU: it profiles each case on the emulated device as a candidate is.
Times do not include the cost of a launch where kernels follow one another in a graph.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from hardware_corpus import Failed, Gpu, compile_cubin

LADDER = Path(__file__).parent / "ladder"
FLUSH_BYTES = 1 << 27
CASE_S = 0.1
"""Time that the timed launches of a case may take."""
STALL_S = 15.0
ONCE_STALL_S = 40.0
SAMPLES = 64
SUMMED = 1 << 22
"""Elements of an output that are read back and added up."""
PERIOD = 1 << 20
"""Elements of a fill that are drawn; a longer array repeats them."""
SEED = 20261127
METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.max",
    "sm__cycles_active.avg",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    "smsp__thread_inst_executed.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_miss.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "lts__t_sectors.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "lts__t_sectors_srcunit_tex.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "lts__t_sector_hit_rate.pct",
    "dram__bytes.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "smsp__inst_executed_pipe_fma.sum",
    "smsp__inst_executed_pipe_alu.sum",
    "smsp__inst_executed_pipe_lsu.sum",
    "smsp__inst_executed_pipe_xu.sum",
    "smsp__inst_executed_pipe_fp64.sum",
    "smsp__inst_executed_pipe_tensor.sum",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "launch__registers_per_thread",
    "launch__occupancy_limit_registers",
)


def cases_of(small: bool = False) -> list[dict[str, Any]]:
    """The cases, every expression a number; at their full sizes, or at those of the tests."""
    import tomllib

    listed = tomllib.loads((LADDER / "ladder.toml").read_text(encoding="utf-8"))["case"]
    cases = []
    for case in listed:
        names = case["sizes"] | (case["small"] if small else {})

        def number(text: str, names: dict[str, int] = names) -> int | float:
            value: int | float = eval(text, {"__builtins__": {}}, names)
            return value

        arguments = []
        for argument in case["arguments"]:
            fixed = {key: argument[key] for key in ("array", "scalar", "fill", "out") if key in argument}
            arguments.append(fixed | {key: number(argument[key]) for key in argument if key not in fixed})
        family, kernel = case["kernel"].split("/")
        grid, block = ([*map(number, case[key]), 1, 1][:3] for key in ("grid", "block"))
        cases.append(
            {
                "name": case["name"],
                "ladder": case["ladder"],
                "family": family,
                "kernel": kernel,
                "cubin": f"{family}.cubin",
                "sizes": names,
                "grid": grid,
                "block": block,
                "shared": case.get("shared", 0),
                "arguments": arguments,
                "bytes": number(case["bytes"]),
                "flops": number(case["flops"]),
            }
        )
    return cases


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's type of an element; a bfloat16 is its bits."""
    return np.dtype("uint16" if name == "bfloat16" else name)


def filled(argument: dict[str, Any], number: int) -> np.ndarray:
    """The first elements of an array argument; the rest repeats them."""
    rng = np.random.default_rng([SEED, number])
    count, dtype, fill = int(argument["count"]), dtype_of(argument["array"]), argument["fill"]
    if fill == "zeros":
        return np.zeros(min(count, 1), dtype)
    if fill == "permutation":
        return rng.permutation(count).astype(dtype)
    if fill == "random":
        return rng.integers(0, argument["below"], count).astype(dtype)
    if fill == "iota":
        return np.arange(count).astype(dtype)
    if fill == "links":
        step = argument["step"]
        order = rng.permutation(count // step - 1) + 1
        ring = np.concatenate([[0], order])
        links = np.zeros(count, dtype)
        links[ring * step] = np.roll(ring, -1) * step
        return links
    part = min(count, PERIOD)
    if fill == "bins":
        return rng.integers(0, 256, part).astype(dtype)
    if fill == "skewed":
        return np.where(rng.random(part) < 0.875, 3, rng.integers(0, 256, part)).astype(dtype)
    values = rng.random(part, np.float32) if fill == "uniform" else rng.standard_normal(part, np.float32)
    if argument["array"] == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def full_array(argument: dict[str, Any], number: int) -> np.ndarray:
    """All elements of an array argument."""
    return np.resize(filled(argument, number), int(argument["count"]))


def prepare(folder: Path) -> None:
    """Compile every kernel, and write the cases with their sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = cases_of()
    for family in dict.fromkeys(case["family"] for case in cases):
        ptx, cubin = compile_cubin((LADDER / f"{family}.cu").read_text(encoding="utf-8"))
        (folder / f"{family}.cubin").write_bytes(cubin)
        (folder / f"{family}.ptx").write_text(ptx, encoding="utf-8")
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    (folder / "metrics.txt").write_text(",".join(METRICS) + "\n", encoding="utf-8")
    print(f"{len(cases)} cases in {len({case['ladder'] for case in cases})} ladders")


class Timer:
    """Launches of one function on a stream, timed by events."""

    def __init__(self, gpu: Gpu, arguments: list[Any]) -> None:
        self.gpu = gpu
        self.stream = ctypes.c_void_p()
        gpu.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.arguments = [*arguments[:8], self.stream, *arguments[9:]]
        self.scratch = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(self.scratch), ctypes.c_size_t(FLUSH_BYTES))

    def launch(self) -> None:
        self.gpu.call("cuLaunchKernel", *self.arguments)

    def cold(self) -> float:
        """Microseconds of one launch after all of the L2 cache was overwritten."""
        gpu = self.gpu
        gpu.call("cuMemsetD32Async", self.scratch, 0, ctypes.c_size_t(FLUSH_BYTES // 4), self.stream)
        gpu.call("cuEventRecord", gpu.events[0], self.stream)
        self.launch()
        gpu.call("cuEventRecord", gpu.events[1], self.stream)
        return gpu.elapsed_us()

    def graph(self, launches: int, repeats: int) -> list[float]:
        """Microseconds of each of some launches that follow one another in a graph, repeated."""
        gpu, graph, ready = self.gpu, ctypes.c_void_p(), ctypes.c_void_p()
        gpu.call("cuStreamBeginCapture_v2", self.stream, 2)
        for _ in range(launches):
            self.launch()
        gpu.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        times = []
        for turn in range(repeats + 1):
            gpu.call("cuEventRecord", gpu.events[0], self.stream)
            gpu.call("cuGraphLaunch", ready, self.stream)
            gpu.call("cuEventRecord", gpu.events[1], self.stream)
            taken = gpu.elapsed_us() / launches
            if turn:
                times.append(taken)
        gpu.call("cuGraphExecDestroy", ready)
        gpu.call("cuGraphDestroy", graph)
        return times

    def close(self) -> None:
        self.gpu.call("cuMemFree_v2", self.scratch)
        self.gpu.call("cuStreamDestroy_v2", self.stream)


def allocate(gpu: Gpu, argument: dict[str, Any], number: int) -> ctypes.c_uint64:
    """A buffer with its fill; a long one is filled by copies of its beginning."""
    part = filled(argument, number)
    size = max(int(argument["count"]), 1) * part.itemsize
    address = ctypes.c_uint64()
    gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    if argument["fill"] == "zeros":
        gpu.call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return address
    gpu.upload(address, part)
    done = part.nbytes
    while done < size:
        more = min(done, size - done)
        gpu.call("cuMemcpyDtoD_v2", ctypes.c_uint64(address.value + done), address, ctypes.c_size_t(more))
        done += more
    return address


def packed(case: dict[str, Any], addresses: dict[int, ctypes.c_uint64]) -> tuple[Any, list[Any]]:
    """Pointers to the arguments of a launch, and the buffers that have to outlive it."""
    memory: list[Any] = []
    for index, argument in enumerate(case["arguments"]):
        if "array" in argument:
            memory.append(addresses[index])
        else:
            raw = np.asarray(argument["value"], argument["scalar"]).tobytes().ljust(8, b"\0")
            memory.append(ctypes.c_uint64.from_buffer_copy(raw))
    return (ctypes.c_void_p * max(len(memory), 1))(*[ctypes.addressof(value) for value in memory]), memory


def run_case(gpu: Gpu, folder: Path, case: dict[str, Any], once: bool, record: dict[str, Any]) -> None:
    """Launch one case, and describe what it wrote; then time it."""
    function = gpu.function(folder / case["cubin"], case["kernel"], case["shared"])
    addresses = {
        index: allocate(gpu, argument, index) for index, argument in enumerate(case["arguments"]) if "array" in argument
    }
    pointers, memory = packed(case, addresses)
    gpu.call("cuCtxSynchronize")
    arguments = [function, *case["grid"], *case["block"], case["shared"], None, pointers, None]
    begun = time.perf_counter()
    gpu.call("cuLaunchKernel", *arguments)
    gpu.call("cuCtxSynchronize")
    record["first_us"] = (time.perf_counter() - begun) * 1e6
    if not once:
        record["outputs"] = {}
        for index, argument in enumerate(case["arguments"]):
            if not argument.get("out"):
                continue
            count = min(int(argument["count"]), SUMMED)
            got = gpu.download(addresses[index], np.empty(count, dtype_of(argument["array"])))
            places = np.linspace(0, len(got) - 1, min(len(got), SAMPLES)).astype(np.int64)
            record["outputs"][str(index)] = {
                "sum": float(got.sum(dtype=np.float64)),
                "values": [value.item() for value in got[places]],
            }
        timer = Timer(gpu, arguments)
        timer.cold()
        first = timer.cold()
        turns = int(max(2, min(10, CASE_S * 1e6 / 2 / (first + 100))))
        cold = [first] + [timer.cold() for _ in range(turns - 1)]
        launches = int(max(1, min(50, 20000 / min(cold))))
        repeats = int(max(2, min(10, CASE_S * 1e6 / 2 / (launches * min(cold)))))
        record["cold_us"] = {"least": min(cold), "median": median(cold), "launches": len(cold)}
        try:
            warm = timer.graph(launches, repeats)
            record["graph_us"] = {"least": min(warm), "median": median(warm), "launches": launches * repeats}
        except (Failed, AttributeError) as error:
            record["graph_error"] = str(error)
        timer.close()
    for address in addresses.values():
        gpu.call("cuMemFree_v2", address)
    del memory


def sm_clock() -> int | None:
    """The clock of the multiprocessors in MHz; None where NVML cannot say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        clock: int = pynvml.nvmlDeviceGetClockInfo(pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.NVML_CLOCK_SM)
    except Exception:  # no failure of the library may cost the results
        return None
    return clock


def selected(folder: Path, share: str) -> list[dict[str, Any]]:
    """The cases of one share, ``K/N``: every Nth from the Kth on, which has some of each ladder."""
    start, step = map(int, share.split("/"))
    cases: list[dict[str, Any]] = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return cases[start::step]


def child(folder: Path, output: Path, first: int, once: bool, share: str) -> int:
    """Run the cases from one on; end with 3 after a case that fails. Each result is written at once."""
    cases = selected(folder, share)
    parts = output / "parts"
    try:
        gpu = Gpu()
    except (Failed, OSError) as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 4
    for number in range(first, len(cases)):
        case = cases[number]
        (parts / "current").write_text(str(number), encoding="utf-8")
        record: dict[str, Any] = {"case": number, "name": case["name"]}
        begun = time.monotonic()
        try:
            run_case(gpu, folder, case, once, record)
        except (Failed, MemoryError, ValueError) as error:
            record["error"] = str(error)
        if not once:
            record["sm_mhz"] = sm_clock()
        record["wall_s"] = round(time.monotonic() - begun, 3)
        (parts / f"{number}.json").write_text(json.dumps(record), encoding="utf-8")
        if "error" in record:
            return 3
    return 0


def run(folder: Path, output: Path, once: bool, share: str) -> int:
    """Run all cases in child processes: a new one continues after a case that failed or hung."""
    parts = output / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    for old in parts.iterdir():
        old.unlink()
    cases = selected(folder, share)
    limit, begun, number = (ONCE_STALL_S if once else STALL_S), time.monotonic(), 0
    while number < len(cases):
        command = [sys.executable, __file__, "child", str(folder), "--output", str(output), "--first", str(number)]
        command += ["--share", share]
        process = subprocess.Popen(command + (["--once"] if once else []))
        changed, seen, status = time.monotonic(), -1, "hung"
        while process.poll() is None:
            time.sleep(0.02)
            done = len(list(parts.glob("*.json")))
            if done != seen:
                changed, seen = time.monotonic(), done
            if time.monotonic() - changed > limit:
                process.kill()
        if process.wait() >= 0:
            status = f"exit {process.returncode}"
        if process.returncode == 4:
            return 4
        finished = [int(part.stem) for part in parts.glob("*.json")]
        following = max(finished, default=-1) + 1
        if process.returncode not in (0, 3):
            record = {"case": following, "name": cases[following]["name"], "error": status}
            (parts / f"{following}.json").write_text(json.dumps(record), encoding="utf-8")
            following += 1
        number = following
    records = [json.loads((parts / f"{number}.json").read_text(encoding="utf-8")) for number in range(len(cases))]
    (output / "results.json").write_text(json.dumps(records), encoding="utf-8")
    (output / "order.json").write_text(json.dumps([case["name"] for case in cases]), encoding="utf-8")
    for old in parts.iterdir():
        old.unlink()
    parts.rmdir()
    failed = [record for record in records if "error" in record]
    for record in failed:
        print(f"failed: {record['name']}: {record['error']}")
    print(f"{len(cases) - len(failed)} of {len(cases)} cases ran in {time.monotonic() - begun:.1f} s")
    return 0


def main() -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("prepare", "run", "compare", "child"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--ncu", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--share", default="0/1", metavar="K/N", help="every Nth case from the Kth on")
    options = parser.parse_args()
    output = options.output or options.out
    if options.verb == "prepare":
        prepare(options.folder)
        return 0
    if output is None:
        parser.error("an output folder is needed")
    if options.verb == "child":
        return child(options.folder, output, options.first, options.once, options.share)
    return run(options.folder, output, options.once, options.share)


if __name__ == "__main__":
    sys.exit(main())
