"""Products and copies to tensor memory (``tcgen05.mma``, ``tcgen05.cp``), and the arrivals that tell of their end.

One thread issues each of them. Rows of A and columns of B are gathered as 32 bytes each, turned into numbers by
generated code, and multiplied by generated code, sixteen rows of D at a time.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    call_expand,
    call_sums,
    copy_bytes,
    exported,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    native,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import EFFECTIVE, HOST
from kernelforge.devices.emulated.runtime.faults import check_race, record_fault
from kernelforge.devices.emulated.runtime.mbarrier import (
    barrier_lanes,
    check_barrier,
    rank_of,
    record_of,
    site_of,
)
from kernelforge.devices.emulated.runtime.products import CHUNK, chunk_offset, line_offset, part_offset
from kernelforge.devices.emulated.runtime.proxies import check_read, watches
from kernelforge.devices.emulated.runtime.scaled_products import scaled_rows
from kernelforge.devices.emulated.runtime.tensor_memory import (
    COPY,
    MULTIPLYING,
    OPERAND,
    PRODUCT,
    cell_at,
    check_columns,
    check_marks,
    issue_mark,
    remember_range,
    set_marks,
    tensor_of,
)
from kernelforge.devices.emulated.runtime.transfers import TENSOR_ARRIVAL, new_transfer

KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
"""``.kind::`` of a product, as generated code encodes them in the lowest bits of a code."""
ELEMENTS = ("f16", "bf16", "tf32", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "u8", "s8")
RESULTS = ("f16", "f32", "s32")
"""Types of operands and results: counters of products are in the order of pairs of them."""
A_IN_TENSOR = 1 << 4
MASKED = 1 << 5
PAIR = 1 << 6
WEIGHTS = 1 << 7
SCALE = 8
"""Flags of a product: A is in tensor memory, some lanes do not change, two CTAs take part, ``.ws``; and the lowest bit
of ``scale-input-d``, or of the number of scales in a row."""
SCALED = 4
"""The first kind whose blocks have scales."""
LEFT = 0
RIGHT = 64
SUMS = 128
TABLE_BYTES = 192
"""Addresses of functions by the types of an instruction descriptor: those that expand A, and B, and those that add."""

BAD_BITS = 1
BAD_TYPES = 2
BAD_SHAPE = 3
BAD_TRANSPOSE = 4
BAD_MATRIX = 5
BAD_SWIZZLE = 6
BAD_SIGN = 7
BAD_LANE = 8
BAD_SCALE = 9
BAD_PAIR = 10
"""What is wrong with a descriptor, or with the lane of D or A."""

COPIES = ("128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4")
"""Shapes of ``tcgen05.cp``, as generated code encodes them in the lowest bits."""


@native
def element_of(kind: int, code: int) -> int:
    """Position in the list of types of one that an instruction descriptor encodes."""
    if kind > SCALED:
        return 7
    if kind == 2 or kind == SCALED:
        return 3 + code if code < 2 else 2 + code
    return 8 + code if kind == 3 else code


@native
def element_bytes(kind: int) -> int:
    """Bytes of an element as it is gathered."""
    if kind == 0:
        return 2
    return 4 if kind == 1 else 1


@native
def matrix_error(descriptor: int) -> int:
    """Number of what is wrong with the constant fields of a matrix descriptor, or 0."""
    if descriptor >> 46 & 7 != 1 or descriptor >> 53 & 0xFF != 0 or descriptor >> 52 & 1 != 0:
        return BAD_MATRIX
    mode = descriptor >> 61 & 7
    return BAD_SWIZZLE if mode == 3 or mode == 5 or mode == 7 else 0


@native
def large_atoms(descriptor: int) -> bool:
    """Whether a matrix has a swizzle of 128 bytes that exchanges 32 bytes."""
    return descriptor >> 61 & 7 == 1


@native
def matrix_chunk(descriptor: int, offset: int) -> int:
    """Offset in shared memory of a chunk of 16 bytes that lies ``offset`` bytes into a matrix."""
    if not large_atoms(descriptor):
        return chunk_offset(descriptor, offset)
    address = ((descriptor & 0x3FFF) << 4) + offset & 0x3FFFF
    return address ^ (((address >> 7) - (descriptor >> 49 & 7) & 3) << 5)


@native
def matrix_line(descriptor: int, line: int, k: int) -> int:
    """Offset in a matrix of the chunk ``k`` of a line."""
    if not large_atoms(descriptor):
        return line_offset(descriptor, line, k)
    stride = (descriptor >> 32 & 0x3FFF) << 4
    return line % 8 * 128 + line // 8 * stride + k * CHUNK


@native
def matrix_part(descriptor: int, part: int, k: int) -> int:
    """Offset in a transposed matrix of the chunk of some lines, their ``part``, with row ``k``."""
    if not large_atoms(descriptor):
        return part_offset(descriptor, part, k)
    leading = (descriptor >> 16 & 0x3FFF) << 4
    stride = (descriptor >> 32 & 0x3FFF) << 4
    return part % 8 * CHUNK + part // 8 * leading + k % 4 * 128 + k // 4 * stride


@native
def unpack_chunk(target: int, source: int, bits: int) -> None:
    """Sixteen adjacent elements of 4 or 6 bits, each into a byte."""
    for k in range(16):
        at = bits * k
        word = load_u8(source + (at >> 3)) | (load_u8(source + (at + bits - 1 >> 3)) << 8)
        store_u8(target + k, word >> (at & 7) & (1 << bits) - 1)


@native
def take_chunk(target: int, source: int, bits: int) -> None:
    """Copy a chunk of 16 bytes; elements of less than 8 ``bits`` come to lie in bytes."""
    if bits < 8:
        unpack_chunk(target, source, bits)
    else:
        copy_bytes(target, source, CHUNK)


@native
def may_take(ctx: int, op: int, lane_id: int, at: int, own: bool) -> bool:
    """Whether a chunk is in shared memory, and a fault if not; the running CTA checks that it may be read now."""
    site = site_of(ctx, op)
    if at > load_i64(ctx + lay.CTX_SHARED_BYTES) - CHUNK:
        record_fault(ctx, lay.FAULT_OUT_OF_BOUNDS, site, lane_id, at, CHUNK, lay.SHARED)
        return False
    if own and watches(ctx):
        check_read(ctx, site, lane_id, at, CHUNK)
    if own and load_i64(ctx + lay.CTX_MODE) & lay.MODE_RACECHECK != 0:
        addresses = load_i64(ctx + lay.CTX_SCRATCH) + EFFECTIVE
        store_i64(addresses + 8 * lane_id, at)
        check_race(ctx, op, site, addresses, 1 << lane_id, CHUNK, lay.LOAD, 0, 1)
    return True


@native
def gather(
    ctx: int, op: int, lane_id: int, rank: int, descriptor: int, out: int, lines: int, size: int, bits: int,
    transposed: bool, mark: int,
) -> bool:  # fmt: skip
    """Gather lines of 32 bytes from the shared memory of a CTA; False, and a fault, where a chunk is outside it."""
    shared = load_i64(ctx + lay.CTX_PEER_SHARED) + rank * load_i64(ctx + lay.CTX_PEER_STRIDE)
    own = rank == load_i32(ctx + lay.CTX_CLUSTER_CTARANK)
    low = load_i64(ctx + lay.CTX_SHARED_BYTES)
    high = 0
    step = CHUNK // size if transposed else 1
    depth = 32 // size if transposed else 2
    for line in range(0, lines, step):
        for k in range(depth):
            offset = 0
            if transposed:
                offset = matrix_part(descriptor, line // step, k)
            else:
                offset = matrix_line(descriptor, line, k)
            at = matrix_chunk(descriptor, offset)
            if not may_take(ctx, op, lane_id, at, own):
                return False
            low = min(low, at)
            high = max(high, at + CHUNK)
            if not transposed:
                take_chunk(out + 32 * line + CHUNK * k, shared + at, bits)
                continue
            for n in range(step):
                target = out + 32 * (line + n) + size * k
                source = shared + at + size * n
                if size == 1:
                    store_u8(target, load_u8(source))
                elif size == 2:
                    store_u16(target, load_u16(source))
                else:
                    store_u32(target, load_u32(source))
    remember_range(tensor_of(ctx, rank), low, high, mark)
    return True


@native
def scaled_error(kind: int, code: int, descriptor: int) -> int:
    """Number of what is wrong with an instruction descriptor for scaled blocks, or 0."""
    m = (descriptor >> 24 & 31) << 4
    n = (descriptor >> 17 & 63) << 3
    a_type = descriptor >> 7 & 7
    b_type = descriptor >> 10 & 7
    large = descriptor >> 23 & 1 != 0
    vector = code >> SCALE
    if descriptor & 0x8000004F != 0:
        return BAD_BITS
    if kind == SCALED:
        if a_type == 2 or a_type > 5 or b_type == 2 or b_type > 5:
            return BAD_TYPES
    elif a_type != 1 or b_type != 1:
        return BAD_TYPES
    pair = code & PAIR != 0
    least = 16 if pair else 8
    if m != (256 if pair else 128) or n < least or n > 256 or n % least != 0:
        return BAD_SHAPE
    if kind != SCALED and descriptor >> 15 & 3 != 0:
        return BAD_TRANSPOSE
    if (not large and vector != 4) or (vector == 2 and (descriptor >> 4 | descriptor >> 29) & 1 != 0):
        return BAD_SCALE
    return BAD_SCALE if vector == 4 and (descriptor >> 4 & 3 != 0 or descriptor >> 29 & 3 != 0) else 0


@native
def plain_error(kind: int, code: int, descriptor: int, table: int) -> int:
    """Number of what is wrong with an instruction descriptor without scales, or 0."""
    m = (descriptor >> 24 & 31) << 4
    n = (descriptor >> 17 & 63) << 3
    a_type = descriptor >> 7 & 7
    b_type = descriptor >> 10 & 7
    result = descriptor >> 4 & 3
    pair = code & PAIR != 0
    weights = code & WEIGHTS != 0
    if descriptor & 0x20800047 != 0 or (descriptor >> 30 != 0 and not weights):
        return BAD_BITS
    if (
        load_i64(table + LEFT + 8 * a_type) == 0
        or load_i64(table + RIGHT + 8 * b_type) == 0
        or load_i64(table + SUMS + 8 * result) == 0
        or (kind == 0 and result == 0 and a_type | b_type != 0)
    ):
        return BAD_TYPES
    if (kind != 3 and descriptor >> 3 & 1 != 0) or (kind == 3 and descriptor >> 13 & 3 != 0):
        return BAD_SIGN
    if weights:
        good = (m == 32 or m == 64 or m == 128) and (n == 64 or n == 128 or n == 256)
    elif pair:
        good = (m == 128 or m == 256) and n >= 16 and n <= 256 and n % 16 == 0
    else:
        good = (m == 64 or m == 128) and n >= 8 and n <= 256
    if kind == 3:
        good = good and (n % 32 == 0 if pair else n <= 24 or n % 16 == 0)
    return 0 if good else BAD_SHAPE


@native
def descriptor_error(kind: int, code: int, descriptor: int, a: int, b: int, table: int) -> int:
    """Number of what is wrong with the descriptors of a product, or 0."""
    wrong = scaled_error(kind, code, descriptor) if kind >= SCALED else plain_error(kind, code, descriptor, table)
    if wrong != 0:
        return wrong
    n = (descriptor >> 17 & 63) << 3
    a_flip = descriptor >> 15 & 1
    b_flip = descriptor >> 16 & 1
    pair = code & PAIR != 0
    in_tensor = code & A_IN_TENSOR != 0
    if a_flip != 0 and in_tensor:
        return BAD_TRANSPOSE
    if b_flip != 0 and element_bytes(kind) == 1 and n % (32 if pair else 16) != 0:
        return BAD_TRANSPOSE
    mixed = kind == 2 or kind == SCALED
    if mixed and ((a_flip != 0 and descriptor >> 7 & 7 > 1) or (b_flip != 0 and descriptor >> 10 & 7 > 1)):
        return BAD_TRANSPOSE
    if not in_tensor:
        wrong = matrix_error(a)
        if wrong != 0:
            return wrong
        if large_atoms(a) != (kind == 1) and a_flip != 0:
            return BAD_TRANSPOSE
    if matrix_error(b) == 0 and large_atoms(b) != (kind == 1) and b_flip != 0:
        return BAD_TRANSPOSE
    return matrix_error(b)


@native
def container_bits(kind: int, code: int) -> int:
    """Bits of an element in shared memory, of those that are gathered as bytes or more."""
    if (kind != 2 and kind != SCALED) or code < 2:
        return 8
    return 4 if code == 5 else 6


@native
def rows_in_tensor(tensor: int, out: int, rows: int, first: int, spread: int, column: int, bits: int) -> None:
    """Rows of A in tensor memory, 8 columns each: sixteen are in adjacent lanes, the next ``spread`` lanes further."""
    for row in range(rows):
        tensor_lane = first + row // 16 * spread + row % 16
        copy_bytes(out + 32 * row, cell_at(tensor, tensor_lane, column), 32)
        if bits < 8:
            for k in range(32):
                value = load_u8(out + 32 * row + k)
                store_u8(out + 32 * row + k, value >> 2 & 15 if bits == 4 else value & 63)


@native
def has_peer(ctx: int, op: int, lane_id: int, base: int, descriptor: int) -> bool:
    """Whether both CTAs of a pair are there, of which ``base`` is the first's rank; it is a fault otherwise."""
    if base + 1 >= load_i32(ctx + lay.CTX_CLUSTER_NCTARANK):
        record_fault(ctx, lay.FAULT_TENSOR_DESCRIPTOR, site_of(ctx, op), lane_id, descriptor, BAD_PAIR, lay.TENSOR)
        return False
    for rank in range(base, base + 2):
        peer = load_i64(ctx + lay.CTX_PEERS) + rank * lay.SLOT_BYTES
        if load_i64(peer + lay.SLOT_CTA) < 0 or load_i64(peer + lay.SLOT_LIVE) == 0:
            record_fault(ctx, lay.FAULT_PEER_ENDED, site_of(ctx, op), lane_id, 0, 4, lay.TENSOR)
            return False
    return True


@native
def may_read(ctx: int, site: int, lane_id: int, tensor: int, address: int, count: int, first: int, step: int) -> bool:
    """Whether a product may read columns of tensor memory, in the parts of lanes from ``first`` on."""
    column = address & 0xFFFF
    if not check_columns(ctx, site, lane_id, tensor, address, column, count):
        return False
    return check_marks(ctx, site, lane_id, tensor, column, count, first, 8, step, OPERAND)


@native
def add_rows(
    tensor: int, scratch: int, descriptor: int, code: int, table: int, rows: int, first: int, spread: int,
    column: int, columns: int, parts: int, begin: int, end: int, keep: int,
) -> None:  # fmt: skip
    """Add the products of A's rows, which are gathered, and B's columns, which are numbers, to D of a CTA.

    B has ``parts`` of its columns for different lanes; of these are ``begin`` to ``end``.
    """
    depth = 32 // element_bytes(code & 15)
    factors = scratch + lay.PRODUCT_LEFT
    factor_exponents = scratch + lay.PRODUCT_LEFT_EXPONENTS
    negative = (descriptor >> 13 ^ descriptor >> 14) & 1
    expand = load_i64(table + LEFT + 8 * (descriptor >> 7 & 7))
    call_expand(expand, scratch + lay.PRODUCT_A, factors, factor_exponents, rows // 4, negative)
    for group in range(rows // 16):
        for part in range(begin, end):
            call_sums(
                load_i64(table + SUMS + 8 * (descriptor >> 4 & 3)),
                factors + 64 * depth * group,
                factor_exponents + 32 * depth * group,
                scratch + lay.PRODUCT_RIGHT + 4 * depth * columns * part,
                scratch + lay.PRODUCT_RIGHT_EXPONENTS + 2 * depth * columns * part,
                cell_at(tensor, first + spread * group + 128 // parts * part, column),
                columns // 8,
                keep | (descriptor >> 3 & 1) << 1,
                code >> SCALE,
            )


@native
def count_product(ctx: int, counter: int, products: int, read: int) -> bool:
    """Count a product that is about to be computed: its multiply-adds, and bytes that it ``read`` from shared memory.

    False where it exceeds the work that the launch may do; then the launch ends, and nothing is computed any more.
    """
    store_i64(counter, load_i64(counter) + 2 * products)
    store_i64(counter + 8, load_i64(counter + 8) + read)
    work = load_i64(ctx + lay.CTX_PRODUCT_WORK) + products // lay.LANES
    store_i64(ctx + lay.CTX_PRODUCT_WORK, work)
    limit = load_i64(ctx + lay.CTX_MAX_INSTRUCTIONS)
    if limit > 0 and work > limit:
        store_i64(load_i64(ctx + lay.CTX_STOP), lay.END_TIMEOUT)
        return False
    return True


@native
def multiply(ctx: int, op: int, lane_id: int, areas: int, keep: int, code: int, table: int) -> None:
    """Compute the product of one thread."""
    site = site_of(ctx, op)
    kind = code & 15
    d = load_i64(areas + 8 * lane_id)
    a = load_i64(areas + lay.SCRATCH_AREA + 8 * lane_id)
    b = load_i64(areas + 2 * lay.SCRATCH_AREA + 8 * lane_id)
    descriptor = load_i64(areas + 3 * lay.SCRATCH_AREA + 8 * lane_id)
    scales = areas + 4 * lay.SCRATCH_AREA + 8 * lane_id
    wrong = descriptor_error(kind, code, descriptor, a, b, table)
    m = (descriptor >> 24 & 31) << 4
    n = (descriptor >> 17 & 63) << 3
    pair = 2 if code & PAIR else 1
    rows = m // pair
    # D is in all lanes, or in 16 of each 32, or a part of its columns is in each half or quarter of the lanes.
    parts = 1
    if wrong == 0 and code & WEIGHTS:
        parts = 128 // m
    elif pair == 2 and rows == 64:
        parts = 2
    half = parts == 1 and rows == 64
    first = d >> 16
    in_tensor = code & A_IN_TENSOR != 0
    if wrong == 0 and ((first != 0 and not (half and first == 16)) or (in_tensor and a >> 16 != first)):
        wrong = BAD_LANE
    if wrong != 0:
        record_fault(ctx, lay.FAULT_TENSOR_DESCRIPTOR, site, lane_id, descriptor, wrong, lay.TENSOR)
        return
    column = d & 0xFFFF
    columns = n // parts
    begin = first // 16
    step = 2 if half else 1
    spread = 32 if half else 16
    size = element_bytes(kind)
    a_type = descriptor >> 7 & 7
    b_type = descriptor >> 10 & 7
    mark = issue_mark(ctx, lane_id, PRODUCT)
    rank = load_i32(ctx + lay.CTX_CLUSTER_CTARANK)
    base = rank & ~1 if pair == 2 else rank
    if pair == 2 and not has_peer(ctx, op, lane_id, base, descriptor):
        return
    depth = 64 if kind > SCALED else 32 // size
    result = 1 if kind >= SCALED else descriptor >> 4 & 3
    counter = op + lay.OP_PRODUCTS + 16 * (3 * element_of(kind, a_type) + result)
    if not count_product(ctx, counter, m * n * depth, 32 * (n + (0 if in_tensor else m))):
        return
    scratch = load_i64(ctx + lay.CTX_TENSOR_SCRATCH)
    for k in range(pair):
        tensor = tensor_of(ctx, base + k)
        if not check_columns(ctx, site, lane_id, tensor, d, column, columns):
            return
        if not check_marks(ctx, site, lane_id, tensor, column, columns, begin, 8, step, MULTIPLYING):
            return
        if in_tensor and not may_read(ctx, site, lane_id, tensor, a, 8, begin, step):
            return
        if kind >= SCALED and not (
            may_read(ctx, site, lane_id, tensor, load_i64(scales), (rows + 31) // 32, 0, 1)
            and may_read(ctx, site, lane_id, tensor, load_i64(scales + 256), (columns + 31) // 32, 0, 1)
        ):
            return
        lines = n // pair
        out = scratch + lay.PRODUCT_B + 32 * lines * k
        bits = container_bits(kind, b_type)
        if not gather(ctx, op, lane_id, base + k, b, out, lines, size, bits, descriptor >> 16 & 1 != 0, mark):
            return
    if kind < SCALED:
        expand = load_i64(table + RIGHT + 8 * b_type)
        numbers = scratch + lay.PRODUCT_RIGHT
        call_expand(expand, scratch + lay.PRODUCT_B, numbers, scratch + lay.PRODUCT_RIGHT_EXPONENTS, n // 8, 0)
    masks = areas + 5 * lay.SCRATCH_AREA + 4 * lane_id
    for k in range(pair):
        tensor = tensor_of(ctx, base + k)
        raw = scratch + lay.PRODUCT_A
        bits = container_bits(kind, a_type)
        if in_tensor:
            rows_in_tensor(tensor, raw, rows, first, spread, a & 0xFFFF, bits)
        elif not gather(ctx, op, lane_id, base + k, a, raw, rows, size, bits, descriptor >> 15 & 1 != 0, mark):
            return
        if code & MASKED:
            keep_lanes(tensor, masks, 4 * k, column, columns, scratch + lay.PRODUCT_KEPT, False)
        if kind >= SCALED:
            a_column = load_i64(scales) & 0xFFFF
            b_column = load_i64(scales + 256) & 0xFFFF
            scaled_rows(
                tensor, scratch, kind, descriptor, code >> SCALE, rows, columns, parts, column, a_column, b_column,
                keep != 0,
            )  # fmt: skip
        else:
            # Each part of the lanes reads its own copy of A.
            turns = parts if in_tensor else 1
            for turn in range(turns):
                if turn > 0:
                    rows_in_tensor(tensor, raw, rows, 128 // parts * turn, spread, a & 0xFFFF, bits)
                begin_part = turn if in_tensor else 0
                end_part = turn + 1 if in_tensor else parts
                add_rows(
                    tensor, scratch, descriptor, code, table, rows, first, spread, column, columns, parts, begin_part,
                    end_part, keep,
                )  # fmt: skip
        if code & MASKED:
            keep_lanes(tensor, masks, 4 * k, column, columns, scratch + lay.PRODUCT_KEPT, True)
        set_marks(tensor, column, columns, begin, 8, step, lay.MARK_WRITE, mark)


@native
def keep_lanes(tensor: int, masks: int, word: int, column: int, columns: int, kept: int, back: bool) -> None:
    """Save the cells of D in lanes that do not change, or put them ``back``; four words of lanes from ``word`` on."""
    for tensor_lane in range(lay.TENSOR_LANES):
        mask = load_u32(masks + 128 * (word + tensor_lane // 32))
        if mask >> tensor_lane % 32 & 1:
            cells = cell_at(tensor, tensor_lane, column)
            if back:
                copy_bytes(cells, kept + 1024 * tensor_lane, 4 * columns)
            else:
                copy_bytes(kept + 1024 * tensor_lane, cells, 4 * columns)


@exported
def tensor_multiply(ctx: int, op: int, areas: int, mask: int, keep: int, code: int, table: int) -> None:
    """``tcgen05.mma`` of each thread.

    Areas have the address of D, that or the descriptor of A, the descriptor of B, that of the instruction, i64 per
    lane, and from the sixth on words of lanes that do not change. ``keep``: the lanes that add to D.
    """
    while mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        multiply(ctx, op, lane_id, areas, keep >> lane_id & 1, code, table)


@native
def copied_lane(shape: int, row: int, turn: int) -> int:
    """Lane that a row of a copy goes to, the first time or at a further ``turn``; -1: no more."""
    if shape == 1:
        return 32 * row if turn == 0 else -1
    if shape == 3:
        return row + 64 * turn if turn < 2 else -1
    if shape == 4:
        return row + 32 * (row // 32) + 32 * turn if turn < 2 else -1
    if shape == 5:
        return row + 32 * turn
    return row if turn == 0 else -1


@native
def copy_matrix(ctx: int, op: int, lane_id: int, areas: int, code: int) -> None:
    """One thread's copy."""
    site = site_of(ctx, op)
    shape = code & 15
    target = load_i64(areas + 8 * lane_id)
    descriptor = load_i64(areas + lay.SCRATCH_AREA + 8 * lane_id)
    wrong = matrix_error(descriptor)
    tensor_lane = target >> 16
    if wrong == 0 and (tensor_lane > 31 if shape == 1 else tensor_lane != 0):
        wrong = BAD_LANE
    if wrong != 0:
        record_fault(ctx, lay.FAULT_TENSOR_DESCRIPTOR, site, lane_id, descriptor, wrong, lay.TENSOR)
        return
    column = target & 0xFFFF
    rows = 128
    if shape == 1:
        rows = 4
    elif shape == 3 or shape == 4:
        rows = 64
    elif shape == 5:
        rows = 32
    chunks = 2 if shape < 2 else 1
    mark = issue_mark(ctx, lane_id, COPY)
    rank = load_i32(ctx + lay.CTX_CLUSTER_CTARANK)
    pair = 2 if code & PAIR else 1
    base = rank & ~1 if pair == 2 else rank
    if pair == 2 and not has_peer(ctx, op, lane_id, base, descriptor):
        return
    for k in range(pair):
        tensor = tensor_of(ctx, base + k)
        if not check_columns(ctx, site, lane_id, tensor, target, column, 4 * chunks):
            return
        if not check_marks(ctx, site, lane_id, tensor, column, 4 * chunks, 0, 8, 1, MULTIPLYING):
            return
        shared = load_i64(ctx + lay.CTX_PEER_SHARED) + (base + k) * load_i64(ctx + lay.CTX_PEER_STRIDE)
        low = load_i64(ctx + lay.CTX_SHARED_BYTES)
        high = 0
        for row in range(rows):
            for chunk in range(chunks):
                at = matrix_chunk(descriptor, matrix_line(descriptor, row, chunk))
                if not may_take(ctx, op, lane_id, at, base + k == rank):
                    return
                low = min(low, at)
                high = max(high, at + CHUNK)
                for turn in range(4):
                    to = copied_lane(shape, row, turn)
                    if to >= 0:
                        copy_bytes(cell_at(tensor, tensor_lane + to, column + 4 * chunk), shared + at, CHUNK)
        remember_range(tensor, low, high, mark)
        set_marks(tensor, column, 4 * chunks, 0, 8, 1, lay.MARK_WRITE, mark)


@exported
def tensor_copy(ctx: int, op: int, areas: int, mask: int, code: int) -> None:
    """``tcgen05.cp`` of each thread: areas have the address of the target and the descriptor, i64 per lane."""
    while mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        copy_matrix(ctx, op, lane_id, areas, code)


@exported
def tensor_commit(ctx: int, op: int, addresses: int, mask: int, ctas: int) -> None:
    """``tcgen05.commit``: arrive at a barrier when the thread's operations so far are complete.

    ``ctas`` are masks of the CTAs whose barriers at that place get an arrival, i32 per lane; 0: one barrier.
    """
    good = barrier_lanes(ctx, op, addresses, mask)
    hosts = load_i64(ctx + lay.CTX_SCRATCH) + HOST
    rank = load_i32(ctx + lay.CTX_CLUSTER_CTARANK)
    tensor = tensor_of(ctx, rank)
    while good != 0:
        lane_id = trailing_zeros(good)
        good &= good - 1
        host = load_i64(hosts + 8 * lane_id)
        owner = rank_of(ctx, host)
        peers = 1 << owner
        if ctas != 0:
            peers = load_u32(ctas + 4 * lane_id) & ((1 << load_i32(ctx + lay.CTX_CLUSTER_NCTARANK)) - 1)
        thread = lay.LANES * load_i32(ctx + lay.CTX_WARP) + lane_id
        while peers != 0:
            peer = trailing_zeros(peers)
            peers &= peers - 1
            barrier = host + (peer - owner) * load_i64(ctx + lay.CTX_PEER_STRIDE)
            if not check_barrier(ctx, site_of(ctx, op), lane_id, barrier):
                continue
            entry = new_transfer(
                ctx, record_of(ctx, peer), lay.ASYNC_ARRIVALS_FIRST, TENSOR_ARRIVAL, site_of(ctx, op), lane_id
            )
            store_i64(entry + lay.TRANSFER_BARRIER, barrier)
            store_i64(entry + lay.TRANSFER_TARGET, tensor + lay.TENSOR_DONE + 8 * thread)
            store_i64(entry + lay.TRANSFER_SIZE, load_i64(tensor + lay.TENSOR_ISSUED))
