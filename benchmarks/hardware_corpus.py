"""The emulated device against an H100 on the kernel corpus of its tests: outputs bit by bit, counters and times.

    PYTHONPATH=. python benchmarks/hardware_corpus.py prepare FOLDER
    python benchmarks/hardware_corpus.py run FOLDER --output OUT
    ncu --csv --page raw --print-units base --clock-control none --target-processes all --metrics METRICS \
        python benchmarks/hardware_corpus.py run FOLDER --output OUT/once --once > OUT/ncu.csv
    PYTHONPATH=. python benchmarks/hardware_corpus.py compare FOLDER OUT --ncu OUT/ncu.csv

``prepare`` needs no GPU: it compiles every kernel with NVRTC, runs every case on the emulated device, and saves cubins,
arguments, outputs and counters. ``run`` needs a GPU, its driver and NumPy, and no module of this project; with
``--once`` it launches each case once and nothing else, in the order of ``cases.json``, for Nsight Compute. METRICS are
the contents of ``FOLDER/metrics.txt``. ``compare`` needs no GPU. Times include the launch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

TIMED_LAUNCHES = 20
STALL_S = 10.0
ONCE_STALL_S = 60.0
MAX_DYNAMIC_SHARED = 8
METRICS = {
    "smsp__inst_executed.sum": "ptx__warp_inst_executed.sum",
    "smsp__thread_inst_executed.sum": "ptx__thread_inst_executed.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": "",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "memory_l1_wavefronts_shared",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "kernelforge__shared_wavefronts_excess.sum",
    "lts__t_sectors.sum": "",
    "dram__bytes.sum": "",
    "dram__bytes_read.sum": "",
    "dram__bytes_write.sum": "",
    "lts__t_sector_hit_rate.pct": "",
    "l1tex__t_sector_hit_rate.pct": "",
    "gpu__time_duration.sum": "time_ns",
}
"""Nsight Compute's metric → the emulated device's, where that has another name."""


def prepare(folder: Path) -> None:
    """Compile and emulate every case, and save what the GPU machine needs."""
    from kernelforge.compile.cubin import read_cubin
    from kernelforge.devices.emulated.profile.collector import add_launch
    from kernelforge.devices.emulated.runtime.cache import CacheModel
    from kernelforge.hardware.occupancy import l1_bytes
    from kernelforge.hardware.specs import H100
    from kernelforge.profiling.counts import KernelCounts, PlanCounts
    from kernelforge.profiling.metrics import plan_metrics
    from kernelforge.profiling.model import kernel_occupancy, plan_time
    from tests.devices.emulated.harness import _SCALARS, _three
    from tests.devices.emulated.nvrtc import compile_cubin, compile_ptx
    from tests.devices.emulated.test_kernel_corpus import CASES, FOLDER, loaded

    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    cases: list[dict[str, Any]] = []
    registers: dict[str, dict[str, int]] = {}
    for number, (family, case) in enumerate(CASES):
        if family not in registers:
            source = (FOLDER / f"{family}.cu").read_text(encoding="utf-8")
            ptx, cubin = compile_cubin(source)
            if ptx.split(".target", 1)[1] != compile_ptx(source).rstrip("\0").split(".target", 1)[1]:
                print(f"{family}: PTX for sm_90a and compute_90a differ")
            (folder / f"{family}.cubin").write_bytes(cubin)
            registers[family] = read_cubin(cubin).registers
        device = loaded(family)
        entry = device.machine.entries[case.kernel]
        listed: list[dict[str, Any]] = []
        for index, (param, value) in enumerate(zip(entry.params, case.arguments, strict=True)):
            if isinstance(value, np.ndarray):
                arrays[f"in{number}_{index}"] = np.ascontiguousarray(value)
                listed.append({"array": f"in{number}_{index}"})
                continue
            if isinstance(value, np.generic):
                raw = value.tobytes()
            elif isinstance(value, float):
                raw = np.asarray(value, _SCALARS.get(param.type, np.float32)).tobytes()
            else:
                raw = int(value).to_bytes(param.size, "little", signed=value < 0)
            assert len(raw) == param.size
            listed.append({"bytes": raw.hex()})
        grid, block = _three(case.grid), _three(case.block)
        counts = KernelCounts(
            case.kernel, grid, block, case.shared, entry.static_shared_bytes, cluster=entry.cluster or (1, 1, 1)
        )
        occupied = kernel_occupancy(H100, counts, registers[family][case.kernel])
        per_sm = min(max(occupied.blocks_per_sm, 1), math.ceil(math.prod(grid) / H100.sm_count))
        cache = CacheModel(H100.unified_l1_bytes_per_sm, H100.l2_bytes)
        cache.resize_l1(l1_bytes(H100, occupied) // per_sm)
        after = [a.copy() if isinstance(a, np.ndarray) else a for a in case.arguments]
        report = device.run(
            case.grid, case.block, *after, kernel=case.kernel, shared=case.shared, cache=cache, **case.options
        )
        cache.flush()
        moved = cache.counts
        add_launch(
            counts, [report], moved, 32 * moved.dram_read_sectors, 32 * moved.dram_write_sectors, ran=report.ctas_run
        )
        plan = PlanCounts([counts])
        metrics = {metric.name: metric.value for metric in plan_metrics(H100, plan, registers[family])}
        modelled = plan_time(H100, plan, registers[family])
        for index, value in enumerate(after):
            if isinstance(value, np.ndarray):
                arrays[f"out{number}_{index}"] = value
                if index in case.want:
                    arrays[f"want{number}_{index}"] = np.asarray(case.want[index])
        cases.append(
            {
                "family": family,
                "kernel": case.kernel,
                "cubin": f"{family}.cubin",
                "grid": grid,
                "block": block,
                "shared": case.shared,
                "cooperative": bool(case.options.get("cooperative", False)),
                "arguments": listed,
                "tolerance": case.tolerance,
                "registers": registers[family][case.kernel],
                "metrics": metrics,
                "modelled_us": modelled.time_us,
                "overhead_us": H100.launch_overhead_us,
                "bound": modelled.bound,
            }
        )
    np.savez_compressed(folder / "cases.npz", **arrays)  # type: ignore[arg-type]
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    (folder / "metrics.txt").write_text(",".join(METRICS) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{len(cases)} cases, {size / 1e6:.2f} MB")


class Failed(Exception):
    """The driver refused a call."""


class Gpu:
    """The CUDA driver of device 0, by its C interface."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.modules: dict[Path, ctypes.c_void_p] = {}
        self.events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self.events:
            self.call("cuEventCreate", ctypes.byref(event), 0)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.lib, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(status, ctypes.byref(text))
            raise Failed(f"{name}: {(text.value or b'?').decode()} ({status})")

    def function(self, cubin: Path, kernel: str, shared: int) -> ctypes.c_void_p:
        if cubin not in self.modules:
            module = ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(module), cubin.read_bytes())
            self.modules[cubin] = module
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.modules[cubin], kernel.encode())
        if shared:
            self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
        return function

    def allocate(self, array: np.ndarray) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(array.nbytes, 1)))
        self.upload(address, array)
        return address

    def upload(self, address: ctypes.c_uint64, array: np.ndarray) -> None:
        if array.nbytes:
            self.call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))

    def download(self, address: ctypes.c_uint64, like: np.ndarray) -> np.ndarray:
        out = np.empty_like(like)
        if out.nbytes:
            self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), address, ctypes.c_size_t(out.nbytes))
        return out

    def elapsed_us(self) -> float:
        self.call("cuEventSynchronize", self.events[1])
        value = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(value), *self.events)
        return value.value * 1e3


def pack(case: dict[str, Any], addresses: dict[str, ctypes.c_uint64]) -> tuple[Any, list[Any]]:
    """Pointers to the arguments of a launch, and the buffers that have to outlive it."""
    memory: list[Any] = []
    for argument in case["arguments"]:
        if "array" in argument:
            memory.append(addresses[argument["array"]])
        else:
            raw = bytes.fromhex(argument["bytes"])
            memory.append(
                (ctypes.c_uint64 * (-(-len(raw) // 8))).from_buffer_copy(raw.ljust(-(-len(raw) // 8) * 8, b"\0"))
            )
    pointers = (ctypes.c_void_p * max(len(memory), 1))(*[ctypes.addressof(value) for value in memory])
    return pointers, memory


def run_case(gpu: Gpu, folder: Path, case: dict[str, Any], inputs: dict[str, np.ndarray], once: bool) -> dict[str, Any]:
    """Run one case: its arrays after one launch, then times of launches with fresh inputs each."""
    function = gpu.function(folder / case["cubin"], case["kernel"], case["shared"])
    addresses = {name: gpu.allocate(array) for name, array in inputs.items()}
    pointers, memory = pack(case, addresses)
    launch = "cuLaunchCooperativeKernel" if case["cooperative"] else "cuLaunchKernel"
    arguments = [function, *case["grid"], *case["block"], case["shared"], None, pointers]
    if not case["cooperative"]:
        arguments.append(None)
    gpu.call(launch, *arguments)
    gpu.call("cuCtxSynchronize")
    result: dict[str, Any] = {
        "outputs": {name.replace("in", "out", 1): gpu.download(addresses[name], inputs[name]) for name in inputs}
    }
    if not once:
        times = []
        for _ in range(TIMED_LAUNCHES):
            for name, array in inputs.items():
                gpu.upload(addresses[name], array)
            gpu.call("cuCtxSynchronize")
            gpu.call("cuEventRecord", gpu.events[0], None)
            gpu.call(launch, *arguments)
            gpu.call("cuEventRecord", gpu.events[1], None)
            times.append(gpu.elapsed_us())
        result["us"] = {"least": min(times), "median": median(times)}
    for address in addresses.values():
        gpu.call("cuMemFree_v2", address)
    del memory
    return result


def child(folder: Path, output: Path, first: int, once: bool) -> int:
    """Run the cases from one on; end with 3 after a case that fails. Each result is written at once."""
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    with np.load(folder / "cases.npz") as stored:
        data = {name: stored[name] for name in stored.files if name.startswith("in")}
    try:
        gpu = Gpu()
    except (Failed, OSError) as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 4
    for number in range(first, len(cases)):
        case = cases[number]
        inputs = {a["array"]: data[a["array"]] for a in case["arguments"] if "array" in a}
        record: dict[str, Any] = {"case": number}
        outputs: dict[str, np.ndarray] = {}
        try:
            result = run_case(gpu, folder, case, inputs, once)
            outputs = result.pop("outputs")
            record |= result
        except Failed as error:
            record["error"] = str(error)
        np.savez(output / "parts" / f"{number}.npz", **outputs)  # type: ignore[arg-type]
        (output / "parts" / f"{number}.json").write_text(json.dumps(record), encoding="utf-8")
        if "error" in record:
            return 3
    return 0


def run_children(command: list[str], parts: Path, count: int, limit_s: float) -> bool:
    """Run numbered cases in child processes of ``command --first N``, each of which writes ``N.json`` after case N.

    A new child continues after a case that failed, ended its process, or took longer than the limit; the error of the
    last two is written here. False without a GPU, where a child leaves with 4.
    """
    parts.mkdir(parents=True, exist_ok=True)
    for old in parts.iterdir():
        old.unlink()
    number = 0
    while number < count:
        process = subprocess.Popen([*command, "--first", str(number)])
        changed, seen, status = time.monotonic(), -1, "hung"
        while process.poll() is None:
            time.sleep(0.02)
            done = len(list(parts.glob("*.json")))
            if done != seen:
                changed, seen = time.monotonic(), done
            if time.monotonic() - changed > limit_s:
                process.kill()
                break
        else:
            status = f"its process ended with {process.returncode}"
        if process.wait() == 4:
            return False
        number = max((int(part.stem) for part in parts.glob("*.json")), default=-1) + 1
        if process.returncode not in (0, 3):
            (parts / f"{number}.json").write_text(json.dumps({"case": number, "error": status}), encoding="utf-8")
            number += 1
    return True


def run(folder: Path, output: Path, once: bool) -> int:
    """Run all cases, and gather their results."""
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    parts, begun = output / "parts", time.monotonic()
    command = [sys.executable, __file__, "child", str(folder), "--output", str(output), *(["--once"] if once else [])]
    if not run_children(command, parts, len(cases), ONCE_STALL_S if once else STALL_S):
        return 1
    records: list[dict[str, Any]] = []
    outputs: dict[str, np.ndarray] = {}
    for number in range(len(cases)):
        records.append(json.loads((parts / f"{number}.json").read_text(encoding="utf-8")))
        if (parts / f"{number}.npz").exists() and "error" not in records[-1]:
            with np.load(parts / f"{number}.npz") as stored:
                outputs |= {name: stored[name] for name in stored.files}
    np.savez_compressed(output / "outputs.npz", **outputs)  # type: ignore[arg-type]
    (output / "results.json").write_text(json.dumps(records), encoding="utf-8")
    launches = [record["case"] for record in records for _ in range(1 if once else 1 + TIMED_LAUNCHES)]
    (output / "launches.json").write_text(json.dumps(launches), encoding="utf-8")
    for old in parts.iterdir():
        old.unlink()
    parts.rmdir()
    failed = [record for record in records if "error" in record]
    for record in failed:
        print(f"failed: {cases[record['case']]['family']}/{cases[record['case']]['kernel']}: {record['error']}")
    print(f"{len(cases) - len(failed)} of {len(cases)} cases ran in {time.monotonic() - begun:.1f} s")
    return 0


def ulps(here: np.ndarray, there: np.ndarray) -> int:
    """The greatest distance of two float arrays in units of the last place; values of a NaN are left out."""
    real = here.real.dtype.type
    a, b = np.ascontiguousarray(here).view(real).ravel(), np.ascontiguousarray(there).view(real).ravel()
    both = ~(np.isnan(a) | np.isnan(b))
    signed = f"i{a.itemsize}"
    ranks = []
    for values in (a[both], b[both]):
        bits = [int(v) for v in values.view(signed)]
        least = -(1 << (8 * a.itemsize - 1))
        ranks.append([v if v >= 0 else least - v for v in bits])
    return max((abs(p - q) for p, q in zip(*ranks, strict=True)), default=0)


def read_ncu(file: Path, cases: list[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Metrics of each case from Nsight Compute's raw page: its rows are the launches, in the order of the cases."""
    import csv

    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    start = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {}
    rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    metrics_of: dict[int, dict[str, float]] = {}
    at = 0
    for row in rows:
        name = (row.get("Kernel Name") or "").split("(")[0]
        number = next((k for k in range(at, len(cases)) if cases[k]["kernel"] == name), None)
        if not row.get("ID") or number is None:
            continue
        at = number + 1
        metrics_of[number] = {}
        for metric in METRICS:
            try:
                metrics_of[number][metric] = float((row.get(metric) or "").replace(",", ""))
            except ValueError:
                continue
    return metrics_of


def compare(folder: Path, output: Path, ncu: Path | None, record_file: Path | None = None) -> None:
    """Print what the GPU and the emulated device gave, and write ``compared.json``; the GPU's side into a file that
    tests hold the emulated device to."""
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    records = json.loads((output / "results.json").read_text(encoding="utf-8"))
    stored, got = dict(np.load(folder / "cases.npz")), dict(np.load(output / "outputs.npz"))
    counted = {} if ncu is None else read_ncu(ncu, cases)
    compared: list[dict[str, Any]] = []
    for number, (case, record) in enumerate(zip(cases, records, strict=True)):
        row: dict[str, Any] = {"family": case["family"], "kernel": case["kernel"], "error": record.get("error")}
        if row["error"] is None:
            equal, within, worst, places = True, True, 0, []
            for name in (a["array"].replace("in", "out", 1) for a in case["arguments"] if "array" in a):
                here, there = got[name], stored[name]
                if here.tobytes() != there.tobytes():
                    equal = False
                    different = np.flatnonzero((here != there).ravel())
                    first = int(different[0]) if len(different) else 0
                    places.append(
                        f"{name.split('_')[1]}: {len(different)} of {here.size}, first [{first}] "
                        f"{here.ravel()[first]!r} for {there.ravel()[first]!r}"
                    )
                    if here.dtype.kind in "fc":
                        worst = max(worst, ulps(here, there))
                want = stored.get(name.replace("out", "want", 1))
                if want is not None:
                    if here.dtype.kind in "fc":
                        bound = case["tolerance"] * (np.abs(want) + np.abs(want).max())
                        within &= bool((np.abs(here.astype(np.complex128) - want) <= bound).all())
                    else:
                        within &= bool(np.array_equal(here, want.astype(here.dtype)))
            row |= {"equal": equal, "within": within, "ulps": worst, "places": places}
            if "us" in record:
                row["times"] = record["us"] | {"modelled": case["modelled_us"], "bound": case["bound"]}
        emulated = case["metrics"] | {"time_ns": 1e3 * (case["modelled_us"] - case["overhead_us"])}
        row["counters"] = {
            metric: [counted[number][metric], emulated.get(METRICS[metric] or metric)]
            for metric in counted.get(number, {})
        }
        compared.append(row)
    _print(compared)
    (output / "compared.json").write_text(json.dumps(compared, indent=1), encoding="utf-8")
    if record_file is not None:
        names = [f"{row['family']}/{row['kernel']}" for row in compared]
        lines = [f' "{name}": {json.dumps(_measured(row))}' for name, row in zip(names, compared, strict=True)]
        record_file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    """The GPU's side of a case: metrics by Nsight Compute's names, and the median time of a launch in µs."""
    counters = {
        metric: int(pair[0]) if pair[0] == int(pair[0]) else pair[0] for metric, pair in row["counters"].items()
    }
    return counters | {"launch_us": round(row["times"]["median"], 3)}


def _spread(values: list[float]) -> str:
    return (
        f"median {median(values):.3g}, {min(values):.3g} to {max(values):.3g}, of {len(values)}" if values else "none"
    )


def _print(compared: list[dict[str, Any]]) -> None:
    print(f"{'family':<14}{'cases':>6}{'ran':>6}{'equal':>6}{'NumPy':>6}{'ULPs':>12}")
    for family in dict.fromkeys(row["family"] for row in compared):
        rows = [row for row in compared if row["family"] == family]
        ran = [row for row in rows if row["error"] is None]
        equal, within = sum(row["equal"] for row in ran), sum(row["within"] for row in ran)
        worst = max((row["ulps"] for row in ran), default=0)
        print(f"{family:<14}{len(rows):>6}{len(ran):>6}{equal:>6}{within:>6}{worst:>12}")
    for row in compared:
        name = f"{row['family']}/{row['kernel']}"
        if row["error"] is not None:
            print(f"{name}: {row['error']}")
        elif not row["equal"] or not row["within"]:
            print(f"{name}: {row['ulps']} ULPs, within tolerance: {row['within']}; {'; '.join(row['places'])}")
    for metric in METRICS:
        pairs = [
            (row, *row["counters"][metric]) for row in compared if row["counters"].get(metric, [0, None])[1] is not None
        ]
        if not pairs:
            continue
        same = sum(abs(real - soft) < 1e-6 * max(abs(real), 1) for _, real, soft in pairs)
        ratios = [real / soft for _, real, soft in pairs if soft]
        print(f"\n{metric}: equal {same} of {len(pairs)}; GPU / emulated {_spread(ratios)}")
        for row, real, soft in pairs:
            if abs(real - soft) >= 1e-6 * max(abs(real), 1):
                print(f"    {row['family']}/{row['kernel']}: {real:g} for {soft:g}")
    timed = [row for row in compared if "times" in row]
    if timed:
        print(f"\ntimes, launch included, measured median / modelled: "
              f"{_spread([row['times']['median'] / row['times']['modelled'] for row in timed])}")  # fmt: skip
        for row in timed:
            t = row["times"]
            print(f"    {row['family']}/{row['kernel']}: {t['median']:.2f} us (least {t['least']:.2f}), modelled "
                  f"{t['modelled']:.2f} ({t['bound']}), ratio {t['median'] / t['modelled']:.2f}")  # fmt: skip


def main() -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("prepare", "run", "compare", "child"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--ncu", type=Path)
    parser.add_argument("--record", type=Path, help="file for the GPU's side of a comparison")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    output = options.output or options.out
    if options.verb == "prepare":
        prepare(options.folder)
        return 0
    if output is None:
        parser.error("an output folder is needed")
    if options.verb == "compare":
        compare(options.folder, output, options.ncu, options.record)
        return 0
    if options.verb == "child":
        return child(options.folder, output, options.first, options.once)
    return run(options.folder, output, options.once)


if __name__ == "__main__":
    sys.exit(main())
