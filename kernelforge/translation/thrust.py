"""Headers of Thrust with a device system whose memory is apart from the host's, for candidates that g++ compiles.

Thrust finds a device system's headers by its name. The folder that is written here has them for the system ``offload``
of ``thrust_system.h``; all else comes from CCCL's package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

from kernelforge.hardware.wheels import cuda_include_folders, installed_cuda

SYSTEM_SOURCE: Final = files(__package__).joinpath("thrust_system.h").read_text()
"""The device system, read before the jail closes."""
PRELUDE_SOURCE: Final = files(__package__).joinpath("thrust_prelude.h").read_text()
"""What nvcc has without an include."""
CUDA_FUNCTIONS: Final = tuple(re.findall(r"\b(cuda[A-Z]\w+)(?=\()", PRELUDE_SOURCE))
"""Functions of CUDA's runtime in it."""
INCLUDED_FIRST: Final = "thrust_prelude.h"
HOST_FRAMES: Final = "    KERNELFORGE_HOST_FRAMES;"
"""First statement of a function of ours that calls a candidate's, so that no region uses what lies on its stack."""
FLAGS: Final = ("-DTHRUST_DEVICE_SYSTEM=5", "-D__THRUST_DEVICE_SYSTEM_NAMESPACE=offload", "-include", INCLUDED_FIRST)
"""Of the compiler: a number that is no system of Thrust's own, and the name of ours."""

MISSING: Final = "Thrust's headers are not installed: `pip install 'nvidia-cuda-cccl==13.0.*'`"
"""What to say where there is no Thrust."""

_SYSTEM: Final = "kernelforge_thrust_system.h"
_ALGORITHMS: Final = {
    "adjacent_difference": "adjacent_difference: adjacent_difference",
    "binary_search": "binary_search: lower_bound upper_bound binary_search equal_range",
    "copy": "copy: copy copy_n",
    "copy_if": "copy: copy_if",
    "count": "count: count count_if",
    "equal": "equal: equal",
    "extrema": "extrema: min_element max_element minmax_element",
    "fill": "fill: fill fill_n",
    "find": "find: find find_if find_if_not",
    "for_each": "for_each: for_each for_each_n",
    "gather": "gather: gather gather_if",
    "generate": "generate: generate generate_n",
    "inner_product": "inner_product: inner_product",
    "logical": "logical: all_of any_of none_of",
    "merge": "merge: merge merge_by_key",
    "mismatch": "mismatch: mismatch",
    "partition": (
        "partition: partition partition_copy stable_partition stable_partition_copy partition_point is_partitioned"
    ),
    "reduce": "reduce: reduce",
    "reduce_by_key": "reduce: reduce_by_key",
    "remove": "remove: remove remove_if remove_copy remove_copy_if",
    "replace": "replace: replace replace_if replace_copy replace_copy_if",
    "reverse": "reverse: reverse reverse_copy",
    "scan": "scan: inclusive_scan exclusive_scan",
    "scan_by_key": "scan: inclusive_scan_by_key exclusive_scan_by_key",
    "scatter": "scatter: scatter scatter_if",
    "sequence": "sequence: sequence",
    "set_operations": (
        "set_operations: set_difference set_difference_by_key set_intersection set_intersection_by_key"
        " set_symmetric_difference set_symmetric_difference_by_key set_union set_union_by_key"
    ),
    "sort": "sort: sort stable_sort sort_by_key stable_sort_by_key is_sorted is_sorted_until",
    "swap_ranges": "swap: swap_ranges",
    "tabulate": "tabulate: tabulate",
    "transform": "transform: transform transform_if",
    "transform_reduce": "transform_reduce: transform_reduce",
    "transform_scan": "transform_scan: transform_inclusive_scan transform_exclusive_scan",
    "uninitialized_copy": "uninitialized_copy: uninitialized_copy uninitialized_copy_n",
    "uninitialized_fill": "uninitialized_fill: uninitialized_fill uninitialized_fill_n",
    "unique": "unique: unique unique_copy",
    "unique_by_key": "unique: unique_by_key unique_by_key_copy",
}
"""For each header of a device system: the public header that declares its algorithms, and their names."""

_POLICIES: Final = """#pragma once
#include <thrust/detail/execution_policy.h>
THRUST_NAMESPACE_BEGIN
namespace system { namespace offload {
namespace detail {
struct tag;
template <class> struct execution_policy;
template <> struct execution_policy<tag> : thrust::execution_policy<tag> {};
struct tag : execution_policy<tag> {};
template <class Derived> struct execution_policy : thrust::execution_policy<Derived> {
    using tag_type = tag;
    operator tag() const { return tag(); }
};
}
using detail::execution_policy;
using detail::tag;
} }
THRUST_NAMESPACE_END
"""
"""The system's policies, which Thrust's basic headers need before any algorithm."""
_PARTS: Final = {
    "detail/par.h": """#include <thrust/detail/allocator_aware_execution_policy.h>
THRUST_NAMESPACE_BEGIN
namespace system { namespace offload { namespace detail {
struct par_t : execution_policy<par_t>, thrust::detail::allocator_aware_execution_policy<execution_policy> {};
}
inline constexpr detail::par_t par{};
} }
THRUST_NAMESPACE_END
""",
    "execution_policy.h": "#include <thrust/system/offload/detail/par.h>\n",
    "pointer.h": """#include <thrust/detail/pointer.h>
#include <thrust/detail/reference.h>
THRUST_NAMESPACE_BEGIN
namespace system { namespace offload {
template <class T> using pointer = thrust::pointer<T, tag, thrust::tagged_reference<T, tag>>;
} }
THRUST_NAMESPACE_END
""",
    "memory_resource.h": """#include <thrust/mr/memory_resource.h>
#include <thrust/system/offload/pointer.h>
THRUST_NAMESPACE_BEGIN
namespace system { namespace offload {
struct memory_resource final : thrust::mr::memory_resource<pointer<void>> {
    pointer do_allocate(std::size_t bytes, std::size_t) override {
        return pointer(omp_target_alloc(bytes ? bytes : 1, kernelforge::device));
    }
    void do_deallocate(pointer from, std::size_t, std::size_t) override {
        omp_target_free(from.get(), kernelforge::device);
    }
};
using universal_memory_resource = memory_resource;
using universal_host_pinned_memory_resource = memory_resource;
} }
THRUST_NAMESPACE_END
""",
}
"""Contents of the other headers."""


def header_folder() -> Path | None:
    """Folder of CCCL's headers, from the package that CUDA is compiled with; None if it has no Thrust."""
    folders = cuda_include_folders(installed_cuda().compiler)
    return next((folder for folder in folders if (folder / "thrust" / "device_vector.h").is_file()), None)


def write_system(into: Path, headers: Path) -> None:
    """Write the headers of the device system.

    Args:
        into: the folder; the compiler looks there before it does in ``headers``.
        headers: of CCCL.
    """
    (into / _SYSTEM).write_text(SYSTEM_SOURCE)
    (into / INCLUDED_FIRST).write_text(PRELUDE_SOURCE)
    folder = into / "thrust" / "system" / "offload"
    (folder / "detail").mkdir(parents=True, exist_ok=True)
    for name, text in _system_headers(headers):
        (folder / name).write_text(f"#pragma once\n#include <{_SYSTEM}>\n{text}")
    (folder / "detail" / "execution_policy.h").write_text(_POLICIES)


def _system_headers(headers: Path) -> Iterator[tuple[str, str]]:
    yield from _PARTS.items()
    for file in sorted((headers / "thrust" / "system" / "cpp" / "detail").glob("*.h")):
        name = f"detail/{file.name}"
        if name in _PARTS:
            continue
        declared, _, algorithms = _ALGORITHMS.get(file.stem, "").partition(": ")
        lines = [f"#include <thrust/{declared}.h>"] if declared else []
        yield name, "\n".join([*lines, *(f"KERNELFORGE_ALGORITHM({item})" for item in algorithms.split()), ""])
