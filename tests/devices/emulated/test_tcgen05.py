"""Products, copies, loads and stores of tensor memory (``tcgen05``), against NumPy, and what is a fault of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelforge.devices.emulated.errors import UnsupportedInstruction
from tests.devices.emulated.harness import Device, ptx_module
from tests.devices.emulated.tensor_memory import (
    B_AT,
    IMAGE_BYTES,
    RNG,
    SWIZZLES,
    Case,
    assemble,
    instruction_descriptor,
    layout,
    matrix_descriptor,
    memory_of,
)

F16 = ("f16", "f32", "f16", "f16")
TYPES = [
    F16, ("f16", "f16", "f16", "f16"), ("f16", "f32", "bf16", "bf16"), ("f16", "f32", "f16", "bf16"),
    ("tf32", "f32", "tf32", "tf32"), ("f8f6f4", "f32", "e4m3", "e5m2"), ("f8f6f4", "f32", "e5m2", "e4m3"),
    ("f8f6f4", "f16", "e4m3", "e4m3"), ("f8f6f4", "f32", "e2m1", "e3m2"), ("f8f6f4", "f32", "e2m3", "e4m3"),
    ("i8", "s32", "s8", "u8"), ("i8", "s32", "u8", "s8"),
]  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("m", "n"), [(64, 16), (128, 64)])
@pytest.mark.parametrize("types", TYPES, ids=".".join)
def test_products_of_every_type(types: tuple[str, str, str, str], m: int, n: int) -> None:
    Case(*types, m, n).check()
    Case(*types, m, n, a="tensor", b="none").check()


@pytest.mark.parametrize("n", [8, 24, 136, 256])
def test_products_of_every_width(n: int) -> None:
    Case(*F16, 128, n).check()


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("transposed", [False, True])
def test_every_layout_of_a_descriptor(swizzle: str, transposed: bool) -> None:
    types = ("tf32", "f32", "tf32", "tf32") if swizzle == "128B.32B" else F16
    other = swizzle if transposed else "64B"
    Case(*types, 128, 64, a=swizzle, b=other, a_transposed=transposed, b_transposed=transposed).check()
    Case(*types, 64, 64, a="32B", b=swizzle, b_transposed=transposed).check()


def test_a_product_that_is_over_the_budget_is_not_computed() -> None:
    case = Case(*F16, 128, 64)
    work = 128 * 64 * 16 // 32
    cells, report = case.run(clean=False, max_warp_work=work // 2)
    assert "timeout" in [fault.kind for fault in report.faults]
    assert report.warp_work > work
    assert (cells == case.cells(case.c)).all()
    _, enough = case.run(max_warp_work=2 * work)
    assert enough.warp_work > work


@pytest.mark.parametrize("swizzle", ["none", "128B", "64B", "32B"])
def test_bytes_may_be_transposed(swizzle: str) -> None:
    for types in (("f8f6f4", "f32", "e4m3", "e5m2"), ("i8", "s32", "s8", "s8")):
        Case(*types, 128, 64, a=swizzle, b=swizzle, a_transposed=True, b_transposed=True).check()


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
def test_operands_are_negated(signs: tuple[int, int]) -> None:
    Case(*F16, 128, 16, signs=signs).check()


@pytest.mark.slow
def test_d_is_left_out_or_scaled() -> None:
    Case(*F16, 128, 16).check(keep=0)
    Case(*F16, 128, 16, scale=5).check()
    Case("f16", "f16", "f16", "f16", 64, 16, scale=3).check()


def test_integers_wrap_or_saturate() -> None:
    for flags, expected in (((), None), ((3,), 2**31 - 1)):
        case = Case("i8", "s32", "u8", "u8", 128, 16, flags=flags)
        case.c[:] = np.int32(2**31 - 1)
        cells, _ = case.run()
        d = cells[case.columns_of_d, case.lanes].view(np.int32)
        assert (d == expected).all() if expected else np.array_equal(d, case.expected())


def test_lanes_that_are_disabled_do_not_change() -> None:
    case = Case(*F16, 128, 32, lanes=(5, 0, -1, 0x80000000))
    cells, _ = case.run()
    kept = np.zeros(128, bool)
    kept[[0, 2, *range(64, 96), 127]] = True
    assert np.array_equal(cells, np.where(kept, case.cells(case.c), case.cells(case.expected())))


@pytest.mark.parametrize("m", [32, 64, 128])
@pytest.mark.parametrize("types", [F16, ("i8", "s32", "s8", "u8")], ids=".".join)
def test_weight_stationary_products_spread_columns_over_lanes(types: tuple[str, str, str, str], m: int) -> None:
    Case(*types, m, 64, weights=True).check()
    Case(*types, m, 128, weights=True, b="none").check()


def test_a_product_counts_its_operations_and_what_it_reads_of_shared_memory() -> None:
    for a in ("128B", "tensor"):
        _, report = Case(*F16, 128, 64, a=a).run()
        assert report.matrix == {"f16.f32": (2 * 128 * 64 * 16, 32 * (64 + (128 if a == "128B" else 0)))}
        assert report.mix["tcgen05.mma"] == (1, 1)


SHAPES = {
    "32x32b": (1, [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0)], [], 1),
    "16x64b": (1, [(8, 0), (0, 1), (1, 0), (2, 0), (4, 0)], [], 2),
    "16x128b": (2, [(0, 1), (0, 2), (1, 0), (2, 0), (4, 0)], [(8, 0)], 4),
    "16x256b": (4, [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)], [(0, 1), (8, 0)], 8),
    "16x32bx2": (1, [(1, 0), (2, 0), (4, 0), (8, 0), (0, 64)], [], 1),
}
"""Registers of one repetition; what each bit of a thread's number, and of a register's within the repetition, adds to
the lane and the column; and the columns of a repetition. ``.16x32bx2`` has its second half 64 columns further."""


def cells_of(shape: str, number: int, packed: bool) -> np.ndarray:
    """Lane and column of each register of each thread: (registers, 32, 2)."""
    registers, threads, within, columns = SHAPES[shape]
    out = np.zeros((registers * number, 32, 2), int)
    for register, thread in np.ndindex(out.shape[:2]):
        moves = [move for bit, move in enumerate(threads) if thread >> bit & 1]
        moves += [move for bit, move in enumerate(within) if register % registers >> bit & 1]
        far = 64 * (shape == "16x32bx2" and thread >> 4)
        row = sum(move[0] for move in moves)
        column = sum(move[1] for move in moves) - far + register // registers * columns
        out[register, thread] = row, column * (1 + packed) + far
    return out


def whole_columns(shape: str, number: int, packed: bool) -> int:
    """Columns of the least allocation that a shape fits into."""
    columns = SHAPES[shape][3] * number * (1 + packed) + 64 * (shape == "16x32bx2")
    return max(32, 1 << (columns - 1).bit_length())


def move_kernel(shape: str, number: int, *, load: bool, packed: bool, half: int) -> str:
    """128 threads move a shape between registers in global memory and tensor memory, all of it otherwise by .32x32b."""
    count = SHAPES[shape][0] * number
    names = "{" + ", ".join(f"%w{k}" for k in range(count)) + "}"
    width = whole_columns(shape, number, packed)
    split = ", 64" if shape == "16x32bx2" else ""
    names_of_32 = "{" + ", ".join(f"%r{20 + k}" for k in range(32)) + "}"
    moves = {
        True: "".join(
            " ".join(f"ld.global.b32 %r{20 + k}, [%d1+{512 * (column + k)}];" for k in range(32))
            + f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r9+{column}], {names_of_32};\n"
            for column in range(0, width, 32)
        )
        + "tcgen05.wait::st.sync.aligned;\n",
        False: "".join(
            f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {names_of_32}, [%r9+{column}]; tcgen05.wait::ld.sync.aligned;\n"
            + " ".join(f"st.global.b32 [%d1+{512 * (column + k)}], %r{20 + k};" for k in range(32))
            for column in range(0, width, 32)
        ),
    }
    if load:
        move = f"tcgen05.ld.sync.aligned.{shape}.x{number}{'.pack::16b' * packed}.b32 {names}, [%r10]{split};"
        move += "tcgen05.wait::ld.sync.aligned;" + "".join(
            f"st.global.b32 [%d3+{512 * k}], %w{k};" for k in range(count)
        )
    else:
        move = "".join(f"ld.global.b32 %w{k}, [%d3+{512 * k}];" for k in range(count))
        move += f"tcgen05.st.sync.aligned.{shape}.x{number}{'.unpack::16b' * packed}.b32 [%r10]{split}, {names};"
        move += "tcgen05.wait::st.sync.aligned;"
    body = f"""
.reg .b32 %w<128>;
mov.u32 %r0, %tid.x; ld.param.u64 %d0, [cells]; ld.param.u64 %d2, [registers]; mov.u32 %r12, where;
setp.lt.u32 %p5, %r0, 32; and.b32 %r14, %r0, 0; add.u32 %r14, %r14, {width};
@!%p5 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r12], {"%r14" if load else width};
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
bar.sync 0; ld.shared.b32 %r8, [%r12]; shr.u32 %r13, %r0, 5; shl.b32 %r13, %r13, 21; add.u32 %r9, %r8, %r13;
add.u32 %r10, %r9, {half << 16}; mul.wide.u32 %d6, %r0, 4; add.u64 %d1, %d0, %d6; add.u64 %d3, %d2, %d6;
{moves[True]}
{move}
{moves[False]}
bar.sync 0;
@!%p5 bra FREE;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, {width};
FREE:
"""
    return ptx_module(
        body, ".param .u64 cells, .param .u64 registers", ".shared .align 4 .b32 where;", target="sm_100a"
    )


def every_move() -> Iterator[tuple[str, int, bool]]:
    for shape, (each, *_) in SHAPES.items():
        for power in range(8):
            number = 1 << power
            for packed in (False, True):
                wide = SHAPES[shape][3] * number * (1 + packed)
                if each * number <= 128 and wide <= 512 and not (shape == "16x32bx2" and wide > 64):
                    yield shape, number, packed


@pytest.mark.one_in(20)
@pytest.mark.parametrize("load", [True, False], ids=["ld", "st"])
@pytest.mark.parametrize(("shape", "number", "packed"), list(every_move()))
def test_loads_and_stores_of_every_shape(shape: str, number: int, packed: bool, load: bool) -> None:
    half = 16 if shape != "32x32b" and number % 2 else 0
    text = move_kernel(shape, number, load=load, packed=packed, half=half)
    count = SHAPES[shape][0] * number
    before = RNG.integers(0, 1 << 32, (whole_columns(shape, number, packed), 128)).astype(np.uint32)
    cells, registers = before.copy(), RNG.integers(0, 1 << 32, (count, 128)).astype(np.uint32)
    expected_cells, data = before.copy(), registers.copy()
    where = cells_of(shape, number, packed)
    for warp in range(4):
        rows, columns = where[..., 0] + half + 32 * warp, where[..., 1]
        part = slice(32 * warp, 32 * warp + 32)
        if load:
            data[:, part] = before[columns, rows]
            if packed:
                data[:, part] = before[columns, rows] & 0xFFFF | before[columns + 1, rows] << 16
        elif packed:
            expected_cells[columns, rows] = expected_cells[columns, rows] & 0xFFFF0000 | registers[:, part] & 0xFFFF
            expected_cells[columns + 1, rows] = (
                expected_cells[columns + 1, rows] & 0xFFFF0000 | registers[:, part] >> 16
            )
        else:
            expected_cells[columns, rows] = registers[:, part]
    Device(text).run(1, 128, cells, registers)
    assert np.array_equal(cells, expected_cells)
    assert np.array_equal(registers, data)


COPIES = {
    "128x256b": (128, 2, lambda row: [row]), "128x128b": (128, 1, lambda row: [row]),
    "4x256b": (4, 2, lambda row: [32 * row + 31]),
    "64x128b.warpx2::02_13": (64, 1, lambda row: [row, row + 64]),
    "64x128b.warpx2::01_23": (64, 1, lambda row: [row + row // 32 * 32, row + row // 32 * 32 + 32]),
    "32x128b.warpx4": (32, 1, lambda row: [row, row + 32, row + 64, row + 96]),
}  # fmt: skip
"""Rows, chunks of 16 bytes in each, and the lanes that a row goes to."""


@pytest.mark.parametrize("swizzle", ["none", "128B", "32B"])
@pytest.mark.parametrize("shape", COPIES)
def test_copies_of_every_shape(shape: str, swizzle: str) -> None:
    rows, chunks, lanes = COPIES[shape]
    case = Case(*F16, 128, 16)
    matrix = RNG.integers(0, 1 << 32, (rows, 4 * chunks)).astype(np.uint32)
    where = layout(rows, 4 * chunks, 4, swizzle, transposed=False)
    case.image = memory_of(matrix, where.offsets, IMAGE_BYTES)
    descriptor = matrix_descriptor(0, where.leading, where.stride, swizzle)
    first_lane = 31 << 16 if shape == "4x256b" else 0
    start = case.text.index("tcgen05.mma.")
    end = case.text.index(";", start)
    text = f"tcgen05.cp.cta_group::1.{shape} [%r8+{first_lane + 4}], %d4"
    case.text = case.text[:start] + text + case.text[end:]
    case.descriptors = [descriptor, 0]
    cells, _ = case.run()
    expected_cells = case.cells(case.c)
    for row in range(rows):
        for target in lanes(row):
            expected_cells[4 : 4 + 4 * chunks, target] = matrix[row]
    assert np.array_equal(cells, expected_cells)


def test_a_copy_comes_before_a_product_of_its_thread() -> None:
    """A is copied to tensor memory, and multiplied without a wait."""
    case = Case(*F16, 128, 16)
    where = layout(128, 16, 2, "128B", transposed=False)
    assert case.descriptors[0] == matrix_descriptor(0, where.leading, where.stride, "128B")
    case.text = case.text.replace(
        "tcgen05.mma.cta_group::1.kind::f16 [%r8+0], %d4,",
        "tcgen05.cp.cta_group::1.128x256b [%r8+256], %d4;\ntcgen05.mma.cta_group::1.kind::f16 [%r8+0], [%r8+256],",
    )
    case.check()


def faults_of(case: Case, **options: object) -> set[str]:
    _, report = case.run(clean=False, **options)
    assert all(str(fault) for fault in report.faults)
    return {fault.kind for fault in report.faults}


def changed(right: str, wrong: str, *, a: str = "128B", m: int = 128, n: int = 16) -> set[str]:
    case = Case(*F16, m, n, a=a)
    assert right in case.text
    case.text = case.text.replace(right, wrong)
    return faults_of(case)


WAIT = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r11], 0; @!%p2 bra WAIT;"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 512;"
STORED = "tcgen05.wait::st.sync.aligned; tcgen05.fence"
MISTAKES = {
    "d is read before the product is complete": (WAIT, "", "tensor_pending"),
    "columns are never freed": (DEALLOC, "", "tensor_leak"),
    "other columns are freed": (DEALLOC, DEALLOC.replace("512", "256"), "tensor_dealloc"),
    "columns from elsewhere are freed": (DEALLOC, DEALLOC.replace("%r8", "32"), "tensor_dealloc"),
    "columns are freed twice": (DEALLOC, DEALLOC + DEALLOC, "tensor_dealloc"),
    "no power of two": ("[%r12], 512;", "[%r12], 96;", "tensor_columns"),
    "too few columns": ("[%r12], 512;", "[%r12], 16;", "tensor_columns"),
    "too many columns": ("[%r12], 512;", "[%r12], 1024;", "tensor_columns"),
    "allocation without a permit": (
        "tcgen05.alloc.", "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\ntcgen05.alloc.", "tensor_permit",
    ),
    "allocation beyond what there is": (
        "ALLOCATED:", "@!%p5 bra ALLOCATED; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r12], 32;\n"
        "ALLOCATED:", "tensor_full",
    ),
    "lanes of another warp": ("shl.b32 %r13, %r13, 21;", "mov.u32 %r13, 0;", "tensor_lanes"),
    "lanes that differ": (
        "add.u32 %r9, %r8, %r13;",
        "and.b32 %r9, %r0, 1; add.u32 %r9, %r9, %r8; add.u32 %r9, %r9, %r13;", "tensor_address",
    ),
    "d in another lane": ("kind::f16 [%r8+0]", "kind::f16 [%r8+0x100000]", "tensor_descriptor"),
    "d is stored and nothing waits": (STORED, "tcgen05.fence", "tensor_pending"),
}  # fmt: skip
"""Text of a right kernel, what stands in its place, and the fault."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_faults(mistake: str) -> None:
    right, wrong, fault = MISTAKES[mistake]
    kinds = changed(right, wrong)
    assert fault in kinds
    if fault not in ("tensor_columns", "tensor_permit", "tensor_full", "tensor_dealloc"):
        assert kinds == {fault}


def test_columns_that_are_not_allocated_are_a_fault() -> None:
    case = Case(*F16, 128, 16, a="tensor")
    case.text = case.text.replace("[%r12], 512;", "[%r12], 32;").replace("%r8, 512;", "%r8, 32;")
    assert faults_of(case) == {"tensor_unallocated"}


def test_a_commit_needs_a_barrier() -> None:
    assert changed("shared::cluster.b64 [%r11];", "shared::cluster.b64 [%r11+-8];") >= {"no_mbarrier"}


def test_a_commit_of_another_thread_completes_nothing() -> None:
    case = Case(*F16, 128, 16)
    case.text = case.text.replace(
        "tcgen05.commit.", "ISSUED1: setp.eq.s32 %p6, %r0, 1; @!%p6 bra ISSUED;\ntcgen05.commit."
    ).replace("@!%p4 bra ISSUED;", "@!%p4 bra ISSUED1;")
    assert faults_of(case) == {"tensor_pending"}


def test_a_load_that_is_not_waited_for_may_read_what_a_product_writes() -> None:
    load = "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}, [%r9];"
    for wait, faults in (("", {"tensor_pending"}), ("tcgen05.wait::ld.sync.aligned;", set())):
        case = Case(*F16, 128, 16)
        case.text = case.text.replace(
            "tcgen05.fence::before_thread_sync;", f"{load} {wait} tcgen05.fence::before_thread_sync;"
        )
        assert faults_of(case) == faults


def test_a_product_does_not_wait_for_the_one_that_computes_its_a() -> None:
    """D of the first product is A of the second: no pair of the PTX ISA orders them."""
    case = Case(*F16, 128, 16)
    case.text = case.text.replace(
        "tcgen05.commit.", "tcgen05.mma.cta_group::1.kind::f16 [%r8+64], [%r8], %d5, %r10, %p3;\ntcgen05.commit."
    )
    assert faults_of(case) == {"tensor_pending"}


DESCRIPTORS = {
    "sparse": {"idesc": instruction_descriptor(128, 16, "f16", "f16", "f32", 2)},
    "a reserved bit": {"idesc": instruction_descriptor(128, 16, "f16", "f16", "f32", 29)},
    "no such type": {"idesc": instruction_descriptor(128, 16, "tf32", "f16", "f32")},
    "no such result": {"idesc": instruction_descriptor(128, 16, "f16", "f16", "s32")},
    "bf16 with results of f16": {"idesc": instruction_descriptor(128, 16, "bf16", "bf16", "f16")},
    "no such m": {"idesc": instruction_descriptor(256, 16, "f16", "f16", "f32")},
    "no such n": {"idesc": instruction_descriptor(128, 0, "f16", "f16", "f32")},
    "saturated floats": {"idesc": instruction_descriptor(128, 16, "f16", "f16", "f32", 3)},
    "a swizzle that is none": {"db": B_AT >> 4 | 1 << 46 | 3 << 61},
    "a descriptor of Hopper": {"db": B_AT >> 4 | 1 << 62},
    "a swizzle that cannot be transposed": {
        "db": B_AT >> 4 | 1 << 46 | 1 << 61, "idesc": instruction_descriptor(128, 16, "f16", "f16", "f32", 16),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_descriptors_are_checked(name: str) -> None:
    case = Case(*F16, 128, 16)
    case.idesc = DESCRIPTORS[name].get("idesc", case.idesc)
    case.descriptors[1] = DESCRIPTORS[name].get("db", case.descriptors[1])
    assert faults_of(case) == {"tensor_descriptor"}


def test_an_operand_outside_shared_memory_is_a_fault() -> None:
    case = Case(*F16, 128, 16)
    case.descriptors[1] = matrix_descriptor(IMAGE_BYTES, 16, 1024, "128B")
    assert faults_of(case) == {"out_of_bounds"}


def test_reading_what_another_warp_writes_is_a_race() -> None:
    """The last warp issues the product, after the others have written in their turns."""
    case = Case(*F16, 128, 16)
    case.text = case.text.replace("@!%p4 bra ISSUED;", "setp.eq.s32 %p4, %r0, 96; @!%p4 bra ISSUED;")
    assert faults_of(case, racecheck=True) == set()
    case.text = case.text.replace("fence.proxy.async; bar.sync 0;", "").replace(
        "tcgen05.fence::before_thread_sync; bar.sync 0;", "tcgen05.fence::before_thread_sync;"
    )
    assert "shared_race" in faults_of(case, racecheck=True)


REFUSED = {
    "tcgen05.shift.cta_group::1.down [%r8];": "which way",
    "tcgen05.mma.sp.cta_group::1.kind::f16 [%r8], %d4, %d5, [%r8], %r10, %p3;": "sparse",
    "tcgen05.mma.cta_group::1.kind::f16.ashift [%r8], [%r8], %d5, %r10, %p3;": "shifted",
    "tcgen05.mma.ws.cta_group::1.kind::f16 [%r8], %d4, %d5, %r10, %p3, %d5;": "zero",
    "tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%r8], %d4;": "decompression",
    "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%r11];": "same .cta_group",
}


@pytest.mark.parametrize("instruction", REFUSED)
def test_what_is_not_built_is_refused_before_anything_runs(instruction: str) -> None:
    case = Case(*F16, 128, 16)
    case.text = case.text.replace("ISSUED:", f"{instruction}\nISSUED:")
    with pytest.raises(UnsupportedInstruction, match=REFUSED[instruction]):
        case.run()


def test_warps_may_be_chosen_by_predicates() -> None:
    """As Triton does it, without branches."""
    case = Case(*F16, 128, 16)
    case.text = case.text.replace("@!%p5 bra ALLOCATED;\n", "@%p5 ").replace("@!%p5 bra FREE;\n", "@%p5 ")
    case.check()


@pytest.mark.parametrize("variation", [1, 2, 3])
def test_an_allocation_may_begin_anywhere(variation: int) -> None:
    case = Case(*F16, 128, 16)
    case.text = case.text.replace("[%r12], 512;", "[%r12], 64;").replace("%r8, 512;", "%r8, 64;")
    cells, _ = case.run(variation=variation)
    assert np.array_equal(cells, case.cells(case.expected()))


@pytest.mark.slow
def test_ptxas_assembles_every_form(tmp_path: Path) -> None:
    cases = [Case(*types, 128, 64, a=a) for types in TYPES for a in ("128B", "tensor")]
    cases += [Case(*F16, 64, 64, weights=True), Case(*F16, 128, 16, scale=5, lanes=(1, 2, 3, 4))]
    texts = {case.text for case in cases}
    for shape in COPIES:
        texts.add(cases[0].text.replace("ISSUED:", f"tcgen05.cp.cta_group::1.{shape} [%r8+4], %d4;\nISSUED:"))
    for shape, number, packed in every_move():
        if number in (1, 16):
            texts |= {move_kernel(shape, number, load=load, packed=packed, half=0) for load in (True, False)}
    assemble(texts, tmp_path)
