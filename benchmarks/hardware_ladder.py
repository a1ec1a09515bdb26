"""The emulated device against an H100 on ladders of kernels at full sizes: counters and times.

    PYTHONPATH=. python benchmarks/hardware_ladder.py prepare FOLDER
    PYTHONPATH=. python benchmarks/hardware_ladder.py emulate FOLDER
    python benchmarks/hardware_ladder.py run FOLDER --output OUT
    ncu --csv --page raw --print-units base --clock-control none --cache-control all --target-processes all \
        --metrics METRICS python benchmarks/hardware_ladder.py run FOLDER --output OUT/once --once > OUT/ncu.csv
    PYTHONPATH=. python benchmarks/hardware_ladder.py compare FOLDER OUT --ncu OUT/ncu.csv
    PYTHONPATH=. python benchmarks/hardware_ladder.py keep FOLDER OUT --ncu OUT/ncu.csv [--source OUT/source.ncu-rep]

The cases are in ``ladder/ladder.toml``, their kernels in the same folder. ``prepare`` needs no GPU: it compiles the
kernels with NVRTC. ``emulate`` needs none either: it profiles each case on the emulated device as a candidate is, on
sampled blocks, and keeps its counts in ``FOLDER/emulated.json``; ``compare`` models the times of those. ``run`` needs a
GPU, its driver and NumPy, and no module of this project; with ``--once`` it launches each case once and nothing else,
in the order of ``cases.json``, for Nsight Compute. METRICS are the contents of ``FOLDER/metrics.txt``. With ``--share
K/N`` it runs every Nth case from the Kth. ``compare`` prints both sides and writes ``FOLDER/compared.json``, where
``expected`` is what Nsight Compute read; where the cases were run in shares, ``--ncu`` names the file of each, in
order. Times do not include the cost of a launch where kernels follow one another in a graph. OUT may also be
``results/reference/h100``, which has what one H100 gave: ``keep`` wrote it, ``ladder.jsonl`` with times, sums of
outputs and metrics of a case per line, and ``ladder_sass.jsonl``, from reports of ``ncu -o`` with sections
SourceCounters, InstructionStats and WarpStateStats, in shares like ``--ncu``: how often warps executed each opcode and
each machine instruction (``executed``: number of the first of some adjacent instructions, how many, executions of
each), and warps per issue by their reason to stall.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import re
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from fidelity_parts.scores import Order, agreement_of, errors_of, order_of
from hardware_corpus import Failed, Gpu, run_children

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
KEPT, KEPT_SASS = "ladder.jsonl", "ladder_sass.jsonl"
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
    from tests.devices.emulated.nvrtc import compile_cubin

    folder.mkdir(parents=True, exist_ok=True)
    cases = cases_of()
    for family in dict.fromkeys(case["family"] for case in cases):
        ptx, cubin = compile_cubin((LADDER / f"{family}.cu").read_text(encoding="utf-8"))
        (folder / f"{family}.cubin").write_bytes(cubin)
        (folder / f"{family}.ptx").write_text(ptx, encoding="utf-8")
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    (folder / "metrics.txt").write_text(",".join(METRICS) + "\n", encoding="utf-8")
    print(f"{len(cases)} cases in {len({case['ladder'] for case in cases})} ladders")


def emulate(folder: Path, only: str) -> None:
    """Profile every case on the emulated device, a launch of a plan each."""
    from fidelity_parts.launches import Array, Built, Scalar, metrics_of, profile_launch

    from kernelforge.devices.emulated.worker import Runner
    from kernelforge.hardware.specs import H100

    file = folder / "emulated.json"
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    loaded: dict[str, tuple[Runner, dict[str, int]]] = {}
    for case in cases:
        if only not in case["name"]:
            continue
        begun = time.monotonic()
        family, kernel = case["family"], case["kernel"]
        if family not in loaded:
            ptx = (folder / f"{family}.ptx").read_text(encoding="utf-8")
            built = Built(ptx, (folder / case["cubin"]).read_bytes(), {})
            loaded[family] = built.runner(H100), dict(built.registers)
        runner, registers = loaded[family]
        arguments: list[Array | Scalar] = []
        for index, argument in enumerate(case["arguments"]):
            if "array" not in argument:
                arguments.append(Scalar(argument["scalar"], argument["value"]))
                continue
            nbytes = int(argument["count"]) * dtype_of(argument["array"]).itemsize
            contents = None if argument.get("out") else full_array(argument, index).tobytes()
            arguments.append(Array(nbytes, contents))
        try:
            counts = profile_launch(runner, kernel, case["grid"], case["block"], case["shared"], arguments)
        except Exception as error:  # of one case: the others are still wanted
            results[case["name"]] = {"error": f"{type(error).__name__}: {error}"}
            print(f"{case['name']}: {error}", flush=True)
            continue
        (group,) = counts.kernels
        results[case["name"]] = {
            "counts": counts.to_wire(),
            "registers": registers[kernel],
            "sampled": group.sampled,
            "metrics": metrics_of(H100, counts, registers),
            "profile_s": round(time.monotonic() - begun, 2),
        }
        file.write_text(json.dumps(results), encoding="utf-8")
    file.write_text(json.dumps(results), encoding="utf-8")
    failed = sum("error" in result for result in results.values())
    print(f"{len(results) - failed} of {len(results)} cases profiled")


def read_ncu(file: Path, cases: list[dict[str, Any]], launched: list[str]) -> dict[str, dict[str, float]]:
    """Metrics by case from Nsight Compute's raw page, whose rows are the launches of these cases, in this order."""
    import csv

    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    start = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {}
    kernels = {case["name"]: (case["kernel"], math.prod(case["grid"])) for case in cases}
    metrics: dict[str, dict[str, float]] = {}
    at = 0
    for row in csv.DictReader(line for line in lines[start:] if line.startswith('"')):
        if not row.get("ID"):
            continue
        kernel = (row.get("Kernel Name") or "").split("(")[0]
        blocks = math.prod(int(n) for n in re.findall(r"\d+", row.get("Grid Size") or "0"))
        matching = (k for k in range(at, len(launched)) if kernels[launched[k]] == (kernel, blocks))
        position = next(matching, None)
        if position is None:
            continue
        at = position + 1
        values = metrics.setdefault(launched[position], {})
        for name, text in row.items():
            if name and ("__" in name) and text:
                try:
                    values[name] = float(text.replace(",", ""))
                except ValueError:
                    continue
    return metrics


COMPARED = (
    ("smsp__inst_executed.sum", "ptx__warp_inst_executed.sum", "inst"),
    ("smsp__thread_inst_executed.sum", "ptx__thread_inst_executed.sum", "thr"),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "", "ldsec"),
    ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "", "ldreq"),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "", "stsec"),
    ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "", "streq"),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "memory_l1_wavefronts_shared", "shwav"),
    ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "kernelforge__shared_wavefronts_excess.sum", "bankc"),
    ("lts__t_sectors_srcunit_tex_op_read.sum", "", "l2rd"),
    ("lts__t_sectors_srcunit_tex_op_write.sum", "", "l2wr"),
    ("dram__bytes_read.sum", "", "drrd"),
    ("dram__bytes_write.sum", "", "drwr"),
)
"""Nsight Compute's metric, the emulated device's where that has another name, and the head of a column."""


def ratio_text(real: float | None, soft: float | None) -> str:
    """Hardware over emulated: ``=`` where equal, ``-`` where neither has any."""
    if real is None or soft is None:
        return "?"
    if abs(real - soft) <= 1e-6 * max(abs(real), 1.0):
        return "=" if real else "-"
    return f"{real / soft:.3g}" if soft else f"+{real:.2g}"


def measured(
    cases: list[dict[str, Any]], output: Path, ncu: list[Path]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, float]]]:
    """Records of ``run`` and metrics of Nsight Compute by case, as they came or as they were kept."""
    kept = output / KEPT
    if kept.is_file():
        records = {r["name"]: r for r in map(json.loads, kept.read_text(encoding="utf-8").splitlines())}
        return records, {name: record["metrics"] for name, record in records.items()}
    records = {r["name"]: r for r in json.loads((output / "results.json").read_text(encoding="utf-8"))}
    counted: dict[str, dict[str, float]] = {}
    for number, file in enumerate(ncu):
        counted |= read_ncu(file, cases, [case["name"] for case in cases[number :: len(ncu)]])
    return records, counted


def keep(folder: Path, output: Path, ncu: list[Path], sources: list[Path]) -> None:
    """Write what the GPU gave to two files of a line per case."""
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    records, counted = measured(cases, output, ncu)
    with (output / KEPT).open("w", encoding="utf-8") as file:
        for case in cases:
            record = records[case["name"]]
            times = {kind: record[kind] for kind in ("cold_us", "graph_us") if kind in record}
            sums = {index: output["sum"] for index, output in record.get("outputs", {}).items()}
            metrics = {name: value for name, value in counted.get(case["name"], {}).items() if name in METRICS}
            file.write(json.dumps({"name": case["name"], **times, "sums": sums, "metrics": metrics}) + "\n")
    with (output / KEPT_SASS).open("w", encoding="utf-8") as file:
        for number, report in enumerate(sources):
            for line in read_report(report, cases[number :: len(sources)]):
                file.write(json.dumps(line) + "\n")


STALLED = "smsp__average_warps_issue_stalled_"
SASS_BYTES = 16
"""Bytes of a machine instruction, since Volta."""


def read_report(report: Path, launched: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Executions by machine instruction and stalls per issue of the first launches, as far as the report goes."""
    import ncu_report

    lines = []
    actions = ncu_report.load_report(str(report))[0]
    for case, action in zip(launched, actions, strict=False):
        if action.name() != case["kernel"]:
            raise ValueError(f"{report}: {action.name()} where {case['kernel']} was launched")
        executed, opcodes = action["inst_executed"], action["sass__inst_executed_per_opcode"]
        addresses, names = executed.correlation_ids(), opcodes.correlation_ids()
        counts = sorted((addresses.as_uint64(k), executed.as_uint64(k)) for k in range(executed.num_instances()))
        runs: list[list[int]] = []
        for address, count in counts:
            offset = (address - counts[0][0]) // SASS_BYTES
            if runs and runs[-1][2] == count and runs[-1][0] + runs[-1][1] == offset:
                runs[-1][1] += 1
            else:
                runs.append([offset, 1, count])
        lines.append(
            {
                "name": case["name"],
                "opcodes": {names.as_string(k): opcodes.as_uint64(k) for k in range(opcodes.num_instances())},
                "executed": runs,
                "stalls": {
                    name.removeprefix(STALLED).removesuffix("_per_issue_active.ratio"): round(action[name].value(), 4)
                    for name in action.metric_names()
                    if name.startswith(STALLED) and action[name].value()
                },
            }
        )
    return lines


def modelled(folder: Path, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Results of the emulated device with the times that the model makes of their counts and machine code."""
    from fidelity_parts.launches import work_of

    from kernelforge.hardware.specs import H100
    from kernelforge.profiling.counts import PlanCounts
    from kernelforge.profiling.model import kernel_occupancy, launch_time

    emulated = json.loads((folder / "emulated.json").read_text(encoding="utf-8"))
    by_name = {case["name"]: case for case in cases}
    results = {}
    for name, result in emulated.items():
        results[name] = result
        if "counts" in result:
            (group,) = PlanCounts.from_wire(result["counts"]).kernels
            work = work_of(folder / by_name[name]["family"], by_name[name]["kernel"], group)
            time = launch_time(H100, group, kernel_occupancy(H100, group, result["registers"]), work)
            results[name] = {**result, "modelled_us": time.time_us, "bound": time.bound}
    return results


def compare(folder: Path, output: Path, ncu: list[Path]) -> None:
    """Print what the GPU and the emulated device gave, by ladder, and write both sides of every case."""
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    emulated = modelled(folder, cases)
    records, counted = measured(cases, output, ncu)
    everything: list[tuple[float, float]] = []
    within = Order(0, 0, 0)
    listed = []
    for ladder in dict.fromkeys(case["ladder"] for case in cases):
        print(f"\n{ladder}")
        print(f"{'':<26}{'modelled':>10}{'cold':>10}{'graph':>10}{'ncu':>10}{'ratio':>7} {'bound':<8}"
              + "".join(f"{head:>7}" for *_, head in COMPARED))  # fmt: skip
        times = []
        for case in (case for case in cases if case["ladder"] == ladder):
            name = case["name"]
            record, soft, real = records.get(name, {}), emulated.get(name, {}), counted.get(name, {})
            listed.append(_in_published_format(case, record, soft, real))
            cold, warm = (record.get(kind, {}).get("median") for kind in ("cold_us", "graph_us"))
            predicted, duration = soft.get("modelled_us"), real.get("gpu__time_duration.sum")
            if cold and predicted:
                times.append((cold, predicted))
            metrics = soft.get("metrics", {})
            ratios = [ratio_text(real.get(m), metrics.get(other or m, 0.0)) for m, other, _ in COMPARED]
            columns = [
                f"{us:>10.2f}" if us else f"{'?':>10}" for us in (predicted, cold, warm, duration and duration / 1e3)
            ]
            off = f"{predicted / cold:>7.2f}" if cold and predicted else f"{'?':>7}"
            print(f"{name:<26}{''.join(columns)}{off} {soft.get('bound', '?'):<8}"
                  + "".join(f"{text:>7}" for text in ratios)
                  + (f"  {record['error']}" if "error" in record else "")
                  + (f"  {soft['error']}" if "error" in soft else ""))  # fmt: skip
        if times:
            order = order_of(times)
            within += order
            print(f"{order.text}; {errors_of(times)}")
            everything += times
    if everything:
        print(
            f"\nwithin ladders: {within.text}, {within.inverted} inverted that differ twofold; {errors_of(everything)}"
        )
    for metric, other, _ in COMPARED:
        pairs = [
            (counted[name][metric], emulated[name]["metrics"].get(other or metric, 0.0))
            for name in counted
            if metric in counted[name] and "metrics" in emulated.get(name, {})
        ]
        if pairs:
            print(f"{metric}: {agreement_of(pairs).text}")
    (folder / "compared.json").write_text(json.dumps({"cases": listed}, indent=1), encoding="utf-8")


def _in_published_format(
    case: dict[str, Any], record: dict[str, Any], soft: dict[str, Any], real: dict[str, float]
) -> dict[str, Any]:
    """A case with both sides: ``expected`` and ``time_us`` are the GPU's, ``emulated`` is the emulated device's."""
    arguments: list[dict[str, Any]] = []
    for argument in case["arguments"]:
        if "array" in argument:
            written = {"out": True} if argument.get("out") else {"fill": argument["fill"]}
            arguments.append({"ptr": argument["array"], "shape": [int(argument["count"])]} | written)
        else:
            arguments.append({"scalar": argument["scalar"], "value": argument["value"]})
    return {
        "id": f"h100-{case['name']}",
        "group": case["ladder"],
        "entry": case["kernel"],
        "source": f"{case['family']}.cu",
        "grid": case["grid"],
        "block": case["block"],
        "dynamic_shared_bytes": case["shared"],
        "args": arguments,
        "gpu": "NVIDIA H100 80GB HBM3",
        "cc": "9.0",
        "bytes": case["bytes"],
        "flops": case["flops"],
        "time_us": record.get("cold_us", {}).get("median"),
        "measured": {key: record[key] for key in record if key not in ("case", "name")},
        "registers_on_hw": real.get("launch__registers_per_thread"),
        "expected": real,
        "emulated": soft,
    }


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
        record: dict[str, Any] = {"case": number}
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
    """Run all cases of a share, and gather their results."""
    cases = selected(folder, share)
    parts, begun = output / "parts", time.monotonic()
    command = [sys.executable, __file__, "child", str(folder), "--output", str(output), "--share", share]
    if not run_children(command + (["--once"] if once else []), parts, len(cases), ONCE_STALL_S if once else STALL_S):
        return 1
    records = [
        json.loads((parts / f"{number}.json").read_text(encoding="utf-8")) | {"name": case["name"]}
        for number, case in enumerate(cases)
    ]
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
    parser.add_argument("verb", choices=("prepare", "emulate", "run", "compare", "keep", "child"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--ncu", type=Path, action="append", default=[])
    parser.add_argument("--source", type=Path, action="append", default=[])
    parser.add_argument("--only", default="", help="emulate cases whose names contain this")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--share", default="0/1", metavar="K/N", help="every Nth case from the Kth on")
    options = parser.parse_args()
    output = options.output or options.out
    if options.verb == "prepare":
        prepare(options.folder)
        return 0
    if options.verb == "emulate":
        emulate(options.folder, options.only)
        return 0
    if output is None:
        parser.error("an output folder is needed")
    if options.verb == "compare":
        compare(options.folder, output, options.ncu)
        return 0
    if options.verb == "keep":
        keep(options.folder, output, options.ncu, options.source)
        return 0
    if options.verb == "child":
        return child(options.folder, output, options.first, options.once, options.share)
    return run(options.folder, output, options.once, options.share)


if __name__ == "__main__":
    sys.exit(main())
