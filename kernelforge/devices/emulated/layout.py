"""Layout of the memory that generated code, runtime and Python share: offsets in bytes, and codes."""

from __future__ import annotations

from typing import Final

LANES: Final = 32

# Device address space. State-space addresses of shared, local and param memory start at 0; their generic addresses
# start at these windows, global memory at GLOBAL_BASE in both; a run's variation moves all of them.
GLOBAL_BASE: Final = 0x7000_0000_0000
SHARED_WINDOW: Final = 0x0001_0000_0000
LOCAL_WINDOW: Final = 0x0002_0000_0000
PARAM_WINDOW: Final = 0x0003_0000_0000
WINDOW_BYTES: Final = 0x0001_0000_0000
FUNCTION_BASE: Final = 0x0004_0000_0000
"""Pointers to functions begin here; no memory is there."""
STACK_BYTES: Final = 8192
"""Size of a thread's stack, where functions recur. The registers that a call keeps take their PTX size here."""
RED_ZONE: Final = 512
"""Unmapped bytes after every buffer, so that a window load may read (never use) bytes past its end."""

# State spaces as numbers.
GLOBAL: Final = 0
SHARED: Final = 1
LOCAL: Final = 2
CONST: Final = 3
PARAM: Final = 4
GENERIC: Final = 5
SHARED_CLUSTER: Final = 6  # shared memory of any CTA of the cluster
TENSOR: Final = 7  # tensor memory; an address has a lane above 16 bits of a column
SPACE_NAMES: Final = ("global", "shared", "local", "const", "param", "generic", "shared::cluster", "tensor")
PEER_SHIFT: Final = 24
"""A shared address has the rank of its CTA in the cluster, plus one, above these bits; 0 there is the own CTA. Programs
for pairs of CTAs see the rank itself: see ``Emitter.ranked``."""

LOAD: Final = 0
STORE: Final = 1
ATOMIC: Final = 2
ACCESS_NAMES: Final = ("load", "store", "atomic")

# Context: one per operating-system thread, read by generated code and by the runtime.
CTX_PARAMS: Final = 0
CTX_PARAM_BYTES: Final = 8
CTX_SHARED: Final = 16
CTX_SHARED_BYTES: Final = 24
CTX_LOCAL: Final = 32
CTX_LOCAL_BYTES: Final = 40
CTX_CTAID: Final = 48  # three i32
CTX_NCTAID: Final = 60  # three i32
CTX_WARP: Final = 72  # i32
CTX_BUDGET: Final = 76  # i32, back edges left before the warp yields
CTX_CLOCK: Final = 80
CTX_COUNTS: Final = 88
CTX_OPS: Final = 96
CTX_ALLOCATIONS: Final = 104
CTX_ALLOCATION_COUNT: Final = 112
CTX_FAULTS: Final = 120
CTX_FAULT_COUNT: Final = 128
CTX_ARENA_DELTA: Final = 136  # host address minus device address of global memory
CTX_SYMBOLS: Final = 144  # device addresses of module variables, i64 each
CTX_STOP: Final = 152  # address of an i64 that the launcher sets to end the launch
CTX_MODE: Final = 160
CTX_CACHE: Final = 168
CTX_SHADOW: Final = 176
CTX_EPOCH: Final = 184
CTX_CTA: Final = 192  # linear CTA id
CTX_SCRATCH: Final = 200
CTX_DYNAMIC_SHARED: Final = 208
CTX_GRID_CTAS: Final = 216
CTX_BLOCK_COST: Final = 224  # work of a warp per basic block, i64 each
CTX_BLOCKS: Final = 232
CTX_MAX_INSTRUCTIONS: Final = 240
CTX_BARRIERS: Final = 248
CTX_YIELDS: Final = 256
CTX_POISON: Final = 272  # byte of memory whose content is undefined
CTX_COPIES: Final = 280  # asynchronous copies of the current warp, or 0 where the kernel has none
CTX_STATE: Final = 288  # state of the current warp
CTX_MOMENT: Final = 296  # counts shared accesses and synchronisations of warps, where races are looked for
CTX_MET: Final = 304  # per warp 32 x 32 x u32: the moment up to which each lane is ordered after each other one
CTX_VARIATION: Final = 312  # i32
WORST_ERRORS: Final = 0xFFFFFFFF
"""The variation, in a launch's context, under which approximations are as far off as their error surely allows."""
CTX_UNDEFINED: Final = 316  # value of a register whose content is undefined, i32
CTX_SHARED_WINDOW: Final = 320
CTX_LOCAL_WINDOW: Final = 328
CTX_PARAM_WINDOW: Final = 336
CTX_WORKSPACE: Final = 384  # device address of the memory that the blocks of a cooperative launch meet in, or 0
CTX_POLL_COST: Final = 392  # back edges that one of a polling loop counts as, i32
CTX_PROGRESS: Final = 400  # 1: since it was cleared, a warp did more than to poll memory
CTX_CLUSTER_CTAID: Final = 408  # three i32
CTX_CLUSTER_NCTAID: Final = 420  # three i32
CTX_CLUSTERID: Final = 432  # three i32
CTX_NCLUSTERID: Final = 444  # three i32
CTX_CLUSTER_CTARANK: Final = 456  # i32
CTX_CLUSTER_NCTARANK: Final = 460  # i32
CTX_PEERS: Final = 464  # slots of the cluster's CTAs
CTX_PEER_SHARED: Final = 472  # host address of the shared memory of the cluster's first CTA
CTX_PEER_STRIDE: Final = 480  # distance to that of the next CTA
CTX_CLUSTER_ARRIVED: Final = 488  # 1: since it was cleared, a thread arrived at the cluster's barrier
CTX_EXPLICIT_CLUSTER: Final = 496  # i32, 1: the launch or the kernel asks for clusters
CTX_ASYNC: Final = 504  # record of the mbarriers and bulk copies of the cluster's first CTA
CTX_ASYNC_STRIDE: Final = 512  # distance to that of the next CTA, or 0 where the kernel has none
CTX_IMPATIENCE: Final = 520  # 0, or what waits at mbarriers do where nothing else continues: see cta_scheduler
CTX_WAITS: Final = 528  # 1: since it was cleared, a warp stopped at an mbarrier
CTX_COPIES_STRIDE: Final = 536  # distance between the asynchronous copies of two warps
CTX_TENSOR: Final = 544  # tensor memory of the cluster's first CTA
CTX_TENSOR_STRIDE: Final = 552  # distance to that of the next CTA, or 0 where the kernel has none
CTX_TENSOR_SCRATCH: Final = 560  # operands of a product of tensor memory
CTX_ORDER: Final = 568  # record of barriers between some warps of the CTA, where races are looked for
CTX_ROUNDS: Final = 576  # barriers of some warps that were completed
CTX_EPOCH_MOMENT: Final = 584  # moment at which the epoch began
CTX_SHADOW_STRIDE: Final = 592  # distance between the records of shared memory of two CTAs
CTX_SANITIZED_BASE: Final = 600  # first device address of the records below
CTX_WRITTEN_GLOBAL: Final = 608  # a byte for each byte of global memory: 1 where the run wrote it
CTX_OWNERS: Final = 616  # last writer and reader of each word of global memory, or 0
CTX_LAUNCH: Final = 624  # number of the launch
CTX_UNDEFINED_GLOBAL: Final = 632  # a byte for each granule of global memory: 1 where it began undefined
CTX_TURN_STATE: Final = 640  # of the turn of a CTA: state of its first warp
CTX_TURN_STATE_BYTES: Final = 648  # per warp
CTX_TURN_STATUS: Final = 656  # i32 per warp
CTX_TURN_LOCAL: Final = 664  # local memory of its first warp
CTX_TURN_LOCAL_STRIDE: Final = 672  # per warp
CTX_TURN_COPIES: Final = 680  # asynchronous copies of its first warp, or 0
CTX_TURN_WARPS: Final = 688
CTX_TURN_BUDGET: Final = 696  # back edges that a warp may take
CTX_TURN_ENDED: Final = 704  # warps that ended in it
CTX_TURN_RAN: Final = 712  # 1: a warp ran in it
CTX_PRODUCT_WORK: Final = 720  # of products of tensor memory so far, in instructions of a warp
CTX_BYTES: Final = 728

END_COMPLETE: Final = 0
END_TIMEOUT: Final = 1
"""Why the driver of a launch returned; what the word at CTX_STOP holds where it must end."""

GRANULE: Final = 512
"""Allocations start at multiples of this, as those of PyTorch do on a GPU."""

MODE_RACECHECK: Final = 1
MODE_CACHE: Final = 2
MODE_SANITIZE: Final = 8  # check global memory for reads before a write, and for races
MODE_SANITIZE_SHARED: Final = 16  # and shared memory for reads before a write
MODE_PROXIES: Final = 32  # check shared memory for stores that the async proxy reads without a fence
MODE_RESIDENT: Final = 4  # several CTAs side by side: the host address of shared memory changes between turns

# Warp state: header, waiting masks per block, held masks per barrier block, then register slots.
W_RESUME: Final = 0  # block to run next, or the number of blocks: pick a waiting one
W_MASK: Final = 4
W_LIVE: Final = 8
W_WAITING: Final = 12  # lowest block with waiting lanes, or NO_BLOCK
W_HELD: Final = 16  # barriers that hold lanes: 1 a CTA's, 2 the cluster's
W_BARRIER_ID: Final = 20
W_BARRIER_THREADS: Final = 24
W_BARRIER_SITE: Final = 28
W_BARRIER_VALUE: Final = 32  # threads whose predicate holds, for bar.red
W_BARRIER_RESULT: Final = 36
W_BARRIER_ARRIVE: Final = 40
W_BARRIER_RED_THREADS: Final = 44
W_TOGETHER: Final = 48  # moment of the last synchronisation of the whole warp, i64
W_MET: Final = 56  # moment of the last one of any of its lanes, i64
W_CLUSTER_ARRIVED: Final = 64  # lanes that arrived at the cluster's barrier in the present phase
W_CLUSTER_PASSED: Final = 68  # lanes whose phase is complete and that have not waited for it yet
W_WAIT_SITE: Final = 72  # memory record of the mbarrier that the warp waits at, plus one, or 0: i32
W_WAIT_FAULT: Final = 76  # the fault that the wait is where nothing ends it: i32
W_PRODUCTS_COMMITTED: Final = 80  # groups of wgmma that the warp has committed, i32
W_PRODUCTS_COMPLETE: Final = 84  # those that it has waited for, i32
W_HEADER: Final = 128
BARRIERS: Final = 16  # of a CTA
CLUSTER_BARRIER: Final = BARRIERS
"""In place of a barrier's number: the barrier of the cluster."""
NO_BLOCK: Final = 0x7FFF_FFFF

WARP_READY: Final = 0
WARP_AT_BARRIER: Final = 1
WARP_DONE: Final = 2
"""What a warp's status says."""

RETURN_DONE: Final = 0
RETURN_BARRIER: Final = 1
RETURN_YIELD: Final = 2
RETURN_POLL: Final = 3  # yields in a loop that only reads memory
RETURN_WAIT: Final = 4  # the phase of an mbarrier is not complete

# Slot of a resident CTA.
SLOT_CTA: Final = 0  # linear id, or -1
SLOT_LIVE: Final = 8  # warps that have not ended
SLOT_EPOCH: Final = 16
SLOT_CLOCK: Final = 24
SLOT_PHASE: Final = 32  # phases of the cluster's barrier that are complete
SLOT_TOUCHED: Final = 40  # phase in which another CTA accessed this one's shared memory last, plus one
SLOT_TOUCH_SITE: Final = 48  # that access: i32
SLOT_TOUCH_LANE: Final = 52  # i32
SLOT_TOUCH_WARP: Final = 56  # i32
SLOT_TOUCH_CTA: Final = 64
SLOT_TOUCH_ADDRESS: Final = 72
SLOT_EPOCH_MOMENT: Final = 88
SLOT_BYTES: Final = 96

# Asynchronous copies of a warp that have not arrived: a header, then a ring of entries. Each entry is one instruction.
COPIES_FIRST: Final = 0  # oldest entry, i32
COPIES_END: Final = 4  # one after the newest, i32; the ring is entered modulo its capacity
COPIES_GROUPS: Final = 64  # 32 x i32: groups that each lane has committed
COPIES_HEADER: Final = 192
COPIES_CAPACITY: Final = 128
COPY_MASK: Final = 0  # lanes whose bytes have not arrived
COPY_SIZE: Final = 4  # bytes per lane
COPY_OP: Final = 8  # record of the write
COPY_GROUPS: Final = 64  # 32 x i32: the group of each lane's copy
COPY_TARGETS: Final = 192  # 32 x i64: host addresses
COPY_DATA: Final = 448  # 32 x 16 bytes, read when the copy was issued
COPY_ENTRY: Final = 960
COPIES_BYTES: Final = COPIES_HEADER + COPIES_CAPACITY * COPY_ENTRY

# An mbarrier: an i64 in shared memory. The layout is ours; hardware's is not documented.
MBARRIER_PENDING: Final = 0  # arrivals that the phase still needs, 20 bits
MBARRIER_EXPECTED: Final = 20  # arrivals that each phase needs, 20 bits
MBARRIER_BYTES: Final = 40  # bytes that the phase still needs, plus MBARRIER_BIAS: 21 bits
MBARRIER_PHASE: Final = 61  # parity of the phase
MBARRIER_BIAS: Final = 1 << 20
MBARRIER_MOST: Final = (1 << 20) - 1
"""The largest count of arrivals, and of bytes in either direction (PTX ISA, *Contents of the mbarrier object*)."""
MAX_SHARED_BYTES: Final = 232_448
"""227 KiB, what one CTA may use on Hopper with the opt-in."""

# Record of a CTA's mbarriers and of the bulk copies under way: those that complete at its mbarriers, and those that
# its threads wait for by groups. Two rings of entries, each of one copy.
# Not at 0: where LLVM optimises an inlined store to the start of a record a second time, it may see a store to null.
ASYNC_ARRIVALS_FIRST: Final = 16  # oldest entry, i32
ASYNC_ARRIVALS_END: Final = 20  # one after the newest, i32; a ring is entered modulo its capacity
ASYNC_GROUPED_FIRST: Final = 24
ASYNC_GROUPED_END: Final = 28
ASYNC_GROUPS: Final = 64  # 1024 x i32: groups that each thread has committed
ASYNC_BARRIERS: Final = ASYNC_GROUPS + 4 * 1024  # a bit for each 8 bytes of shared memory: there is an mbarrier
ASYNC_READS: Final = (ASYNC_BARRIERS + MAX_SHARED_BYTES // 64 + 63) // 64 * 64  # per warp: ranges, groups
ASYNC_CLEAR: Final = ASYNC_READS + 8 * 32  # zero when a CTA starts
ASYNC_CAPACITY: Final = 128
TRANSFER_KIND: Final = 0  # i32, 0 for one that is complete
TRANSFER_OPERATION: Final = 4  # of a reduction: as atomics are encoded, or -1 for a copy; i32
TRANSFER_BARRIER: Final = 8  # host address of the mbarrier
TRANSFER_TARGET: Final = 16  # host address
TRANSFER_SOURCE: Final = 24  # host address
TRANSFER_SIZE: Final = 32  # bytes
TRANSFER_WARP: Final = 40  # i32
TRANSFER_LANE: Final = 44  # i32
TRANSFER_GROUP: Final = 48  # i32
TRANSFER_SITE: Final = 52  # memory record for faults, i32
TRANSFER_AT: Final = 56  # five i32: coordinates of a box
TRANSFER_OFFSET: Final = 80  # of a box in its CTA's shared memory
TRANSFER_MAP: Final = 88  # the tensor map, 128 bytes
TRANSFER_OFFSETS: Final = 216  # three i32: offsets of a column in im2col mode
TRANSFER_ENTRY: Final = 256
ASYNC_ARRIVALS: Final = ASYNC_CLEAR
ASYNC_GROUPED: Final = ASYNC_ARRIVALS + ASYNC_CAPACITY * TRANSFER_ENTRY
ASYNC_RANGES: Final = ASYNC_GROUPED + ASYNC_CAPACITY * TRANSFER_ENTRY
"""Per warp a ring of ranges of shared memory that ``wgmma.mma_async`` may still read: first, end, group; i32 each."""
RANGE_CAPACITY: Final = 64
RANGE_BYTES: Final = 16
ASYNC_BYTES: Final = ASYNC_RANGES + 32 * RANGE_CAPACITY * RANGE_BYTES

# Tensor memory of a CTA: what is allocated and under way, then 128 lanes (rows) of 512 columns of 32 bits.
# An operation under way leaves marks on the cells that it reads or writes, one for 16 lanes of a column.
TENSOR_ISSUED: Final = 16  # products, copies and shifts that threads of the CTA have issued, i64
TENSOR_LOADS: Final = 24  # loads by its warps, i64
TENSOR_STORES: Final = 32  # stores by its warps, i64
TENSOR_RELINQUISHED: Final = 40  # 1: the CTA allocates no more, i64
TENSOR_RANGE_COUNT: Final = 48  # ranges of shared memory that products have read, i64
TENSOR_UNITS: Final = 64  # 16 x i32: columns of the allocation that begins with these 32, -1 within one, 0: free
TENSOR_SITES: Final = 128  # 16 x i32: memory record of the allocation
TENSOR_WARPS: Final = 192  # 16 x i32: warp of the allocation
TENSOR_WAITED_LOADS: Final = 256  # 32 x i64: loads that each warp has waited for
TENSOR_WAITED_STORES: Final = 512  # 32 x i64
TENSOR_DONE: Final = 1024  # 1024 x i64: operations of each thread that are known to be complete
TENSOR_RANGES: Final = TENSOR_DONE + 8 * 1024  # ring of ranges: first, end, i32 each, and the mark of the reader, i64
TENSOR_RANGE_CAPACITY: Final = 256
TENSOR_MARKS: Final = TENSOR_RANGES + 16 * TENSOR_RANGE_CAPACITY
MARK_WRITE: Final = 0  # the operation that writes, or 0
MARK_STORE: Final = 8  # warp plus one, and store
MARK_LOAD: Final = 16  # warp plus one, and load
MARK_BYTES: Final = 24
TENSOR_LANES: Final = 128
TENSOR_COLUMNS: Final = 512
TENSOR_UNIT: Final = 32  # columns
TENSOR_CLEAR: Final = TENSOR_MARKS + MARK_BYTES * TENSOR_COLUMNS * TENSOR_LANES // 16  # zero when a CTA starts
TENSOR_CELLS: Final = TENSOR_CLEAR
TENSOR_ROW: Final = 4 * TENSOR_COLUMNS  # bytes of a lane
TENSOR_BYTES: Final = TENSOR_CELLS + TENSOR_LANES * TENSOR_ROW

# Operands of a product, in bytes as they are in memory, then as numbers with their exponents.
PRODUCT_A: Final = 0  # 128 rows of 32 bytes
PRODUCT_B: Final = PRODUCT_A + 128 * 32  # 256 columns
PRODUCT_LEFT: Final = PRODUCT_B + 256 * 32  # 128 x 32 numbers of 4 bytes
PRODUCT_LEFT_EXPONENTS: Final = PRODUCT_LEFT + 128 * 32 * 4
PRODUCT_RIGHT: Final = PRODUCT_LEFT_EXPONENTS + 128 * 32 * 2
PRODUCT_RIGHT_EXPONENTS: Final = PRODUCT_RIGHT + 256 * 32 * 4
PRODUCT_KEPT: Final = PRODUCT_RIGHT_EXPONENTS + 256 * 32 * 2  # rows of D that do not change
PRODUCT_BYTES: Final = PRODUCT_KEPT + 128 * 256 * 4

# A tensor map: where a tensor is, and which box of it a copy moves. The layout is ours; hardware's is not documented.
MAP_MAGIC: Final = 0  # i64
MAP_ADDRESS: Final = 8  # device address, i64
MAP_EXTENTS: Final = 16  # five i64: elements along each dimension, innermost first
MAP_STRIDES: Final = 56  # four i64: bytes between neighbours along each dimension but the innermost
MAP_BOX: Final = 88  # five i32: extents of a box; in im2col mode channels, pixels, and both corners of three dimensions
MAP_STEPS: Final = 108  # five u8: distance of the elements of a box that are moved
MAP_RANK: Final = 113  # u8
MAP_ELEMENT: Final = 114  # bytes of an element, u8
MAP_TYPE: Final = 115  # u8: index in the list of types of the CUDA driver API
MAP_SWIZZLE: Final = 116  # u8: 0 for none, else 1 for 32 bytes, 2 for 64, 3 for 128
MAP_FILL: Final = 117  # u8, 1: elements outside the tensor are NaN, not zero
MAP_MODE: Final = 118  # u8: which copies take the map
MAP_HALO: Final = 120  # of a copy in a wide mode: pixels after the column, or after each 32 of them; i32
MAP_TILES: Final = 0
MAP_IMAGES: Final = 1  # im2col mode
MAP_WIDE: Final = 2  # im2col::w mode
MAP_WIDE_128: Final = 3  # im2col::w::128 mode
MAP_ROWS: Final = 4  # four rows of tiles: tile::gather4 and tile::scatter4 take a map of tiles
MAP_BYTES: Final = 128
MAP_MAGIC_NUMBER: Final = 0x4B46_5445_4E53_4F52

# Memory-operation record: the last address pattern and what it costs.
OP_LOW: Final = 0  # lowest allowed address of the reference lane
OP_SPAN: Final = 8  # highest minus lowest allowed address
OP_DELTA: Final = 16  # host address minus effective address
OP_OFFSET: Final = 24  # the instruction's immediate offset
OP_MASK: Final = 32  # lanes of the pattern; 0: no pattern
OP_ALIGNMENTS: Final = 36  # the slot of a reference address: its bits under this mask, i32
OP_KIND: Final = 40
OP_FIRST: Final = 44  # lowest lane of the pattern
OP_WINDOW: Final = 48  # least delta, i32
OP_SERIAL: Final = 52  # number of the pattern: another one has another, i32
OP_GROUP: Final = 56  # serial of the pattern of the first access of its group, where both patterns are equal; i32
OP_SLOT: Final = 60  # of an access in a group: the slot that it hits since OP_SINCE, or -1; i32
OP_IDEAL: Final = 64  # transactions the pattern would need at best, i32
OP_ALIGN: Final = 68
OP_UNIFORM: Final = 72  # hits of the uniform path, i64
OP_UNIFORM_LANES: Final = 80
OP_REQUESTS: Final = 88
OP_TRANSACTIONS: Final = 96
OP_THREADS: Final = 104
OP_IDEAL_TOTAL: Final = 112
OP_NARROW: Final = 120  # 1: addresses are 32-bit and wrap; i32
OP_SPECULATIVE: Final = 124  # 1: a load whose value may be unused; i32
OP_DELTAS: Final = 128  # 32 x i32, lane address minus reference address
OP_SKETCH: Final = 128  # atomics, which have no pattern: 1024 bits, one set for each address by its hash
SKETCH_BYTES: Final = 128
OP_SLOTS: Final = 256  # one for each alignment of the reference address
OP_PRODUCTS: Final = 256  # products of tensor memory, which have no pattern: operations and bytes, i64, by their types
OP_PEER_REQUESTS: Final = 1280  # accesses to shared memory of other CTAs
OP_PEER_SECTORS: Final = 1288
OP_PEER_THREADS: Final = 1296
OP_PEER_IDEAL: Final = 1304
OP_KNOWN: Final = 1312  # 4 x u32, bit k: slot k is known
OP_LINES: Final = 1328
OP_SPACE: Final = 1336
OP_ACCESS: Final = 1340
OP_BYTES: Final = 1344  # bytes per lane
OP_BLOCK: Final = 1348  # basic block of an access in a group, or -1; i32
OP_SINCE: Final = 1352  # how often that block had run when the present hits began, i64
OP_AGREED: Final = 1360  # of a store: bits of the lane by which the values of lanes differ in rounding alone; i32
OP_WORD_KEYS: Final = 256  # atomics: 127 x u32, the word that leads those whose number is equal modulo 127
OP_LINE_KEYS: Final = 768  # 127 x u32, the same of lines of 128 bytes
OP_WORD_UPDATES: Final = 1472  # 127 x u32, its updates less those of the others since it leads
OP_LINE_UPDATES: Final = 1984  # 127 x u32, the same of sectors updated by requests
UPDATE_COUNTERS: Final = 127  # a prime: words at any usual distance spread evenly
OP_RECORD: Final = 2496  # an odd number of lines, so that records spread over the processor's cache

# Slot of a memory-operation record: what the pattern costs at one alignment. Generated code reads it as one i64: it is
# known where that is negative, and a hit adds 1.
SLOTS: Final = 128
SLOT_ENTRY: Final = 8
ENTRY_HITS: Final = 0  # u32
ENTRY_COUNT: Final = 4  # transactions, u16
ENTRY_LINES: Final = 6  # u8
ENTRY_KNOWN: Final = 7  # u8: KNOWN, or 0
KNOWN: Final = 0x80

KIND_SCATTERED: Final = 0
KIND_CONTIGUOUS: Final = 1
KIND_WINDOW: Final = 2

# Allocation table, sorted by base.
ALLOC_BASE: Final = 0
ALLOC_SIZE: Final = 8
ALLOC_FLAGS: Final = 16
ALLOC_RECORD: Final = 24
FLAG_READ_ONLY: Final = 1
FLAG_MODULE: Final = 2

# Fault records.
FAULT_KIND: Final = 0
FAULT_SITE: Final = 4  # memory operation, or -1 - site for other instructions
FAULT_LANE: Final = 8
FAULT_WARP: Final = 12
FAULT_CTA: Final = 16
FAULT_ADDRESS: Final = 24
FAULT_BYTES: Final = 32
FAULT_SPACE: Final = 36
FAULT_RECORD: Final = 40
FAULT_CAPACITY: Final = 64

FAULT_OUT_OF_BOUNDS: Final = 0
FAULT_MISALIGNED: Final = 1
FAULT_MODULE_WRITE: Final = 2
FAULT_READ_ONLY_WRITE: Final = 3
FAULT_DIVERGENT_BARRIER: Final = 4
FAULT_DEADLOCK: Final = 5
FAULT_SHARED_RACE: Final = 6
FAULT_TIMEOUT: Final = 7
FAULT_TRAP: Final = 8
FAULT_ASSERT: Final = 9
FAULT_DIVERGENT_SYNC: Final = 10
FAULT_WARP_RACE: Final = 11
FAULT_DIVISION: Final = 12
FAULT_GRID_DEADLOCK: Final = 13
FAULT_CLUSTER_DEADLOCK: Final = 14
FAULT_CLUSTER_BARRIER: Final = 15
FAULT_PEER_ENDED: Final = 16
FAULT_NO_MBARRIER: Final = 17
FAULT_MBARRIER_COUNT: Final = 18
FAULT_MBARRIER_BYTES: Final = 19
FAULT_MBARRIER_BUSY: Final = 20
FAULT_MBARRIER_DEADLOCK: Final = 21
FAULT_COPY_SIZE: Final = 22
FAULT_NO_TENSOR_MAP: Final = 23
FAULT_COPY_ALIGNMENT: Final = 24
FAULT_STACK: Final = 25
FAULT_POINTER: Final = 26
FAULT_WGMMA_SOURCE: Final = 27
FAULT_ACCUMULATOR: Final = 28
FAULT_UNINITIALISED: Final = 29
FAULT_GLOBAL_RACE: Final = 30
FAULT_SPARSE_METADATA: Final = 31
FAULT_BOX_ALIGNMENT: Final = 32
FAULT_PROXY: Final = 33
FAULT_PRODUCT_FENCE: Final = 34
FAULT_FRAGMENT: Final = 35
FAULT_TENSOR_COLUMNS: Final = 36
FAULT_TENSOR_PERMIT: Final = 37
FAULT_TENSOR_FULL: Final = 38
FAULT_TENSOR_DEALLOC: Final = 39
FAULT_TENSOR_LEAK: Final = 40
FAULT_TENSOR_UNALLOCATED: Final = 41
FAULT_TENSOR_LANES: Final = 42
FAULT_TENSOR_PENDING: Final = 43
FAULT_TENSOR_DESCRIPTOR: Final = 44
FAULT_TENSOR_SOURCE: Final = 45
FAULT_TENSOR_ADDRESS: Final = 46
FAULT_BARRIER_OPERANDS: Final = 47
FAULT_MULTICAST: Final = 48
FAULT_WIDE_COLUMN: Final = 49
FAULT_NAMES: Final = (
    "out_of_bounds",
    "misaligned",
    "module_global_write",
    "read_only_write",
    "divergent_barrier",
    "barrier_deadlock",
    "shared_race",
    "timeout",
    "trap",
    "assert",
    "divergent_sync",
    "warp_race",
    "division_by_zero",
    "grid_deadlock",
    "cluster_deadlock",
    "cluster_barrier_misuse",
    "peer_ended",
    "no_mbarrier",
    "mbarrier_count",
    "mbarrier_bytes",
    "mbarrier_busy",
    "mbarrier_deadlock",
    "copy_size",
    "no_tensor_map",
    "copy_misaligned",
    "stack_overflow",
    "bad_function_pointer",
    "wgmma_source",
    "accumulator",
    "uninitialised",
    "global_race",
    "sparse_metadata",
    "box_misaligned",
    "proxy_fence",
    "product_fence",
    "fragment",
    "tensor_columns",
    "tensor_permit",
    "tensor_full",
    "tensor_dealloc",
    "tensor_leak",
    "tensor_unallocated",
    "tensor_lanes",
    "tensor_pending",
    "tensor_descriptor",
    "tensor_source",
    "tensor_address",
    "barrier_operands",
    "no_multicast_object",
    "wide_column",
)

MET_BYTES: Final = 4 * LANES * LANES

# Record of barriers that not all warps of a CTA wait at: u32 each.
ORDER_RELEASED: Final = 4 * LANES * LANES  # 16 x 32: per barrier the moments that the warps which arrived come after
ORDER_BYTES: Final = ORDER_RELEASED + 16 * 4 * LANES
"""It begins with 32 x 32: the moment up to which each warp comes after each other one."""

# Scratch: areas of 512 bytes (64 lanes of i64) for calls between generated code and the runtime.
SCRATCH_AREAS: Final = 26
SCRATCH_AREA: Final = 512
SCRATCH_BYTES: Final = SCRATCH_AREAS * SCRATCH_AREA


EFFECTIVE = 16 * SCRATCH_AREA  # address of each lane in its state space
HOST = 17 * SCRATCH_AREA  # host address of each lane
STRIDE = 18 * SCRATCH_AREA  # distance between consecutive words of each lane
UNITS = 19 * SCRATCH_AREA  # distinct sectors of one request, up to 128 entries of 8 bytes
TABLE = 21 * SCRATCH_AREA  # 128-entry hash table, also 1 KiB
KEYS = 23 * SCRATCH_AREA  # where each lane's access to local memory is in the interleaved frame
COMPLETE_SECTOR: Final = 0xFFFF_FFFF
MASKS = 24 * SCRATCH_AREA  # bytes that a store writes of each of its sectors, a bit each: up to 128 entries
