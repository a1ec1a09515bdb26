"""Kernels that users of Triton know from its tutorials, written for launch plans."""

HEAD = "import triton\nimport triton.language as tl\n\n\n"

ADD = (
    HEAD
    + """@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)
"""
)
ADD_PLAN = """
def forward(x, y):
    out = empty_like(x)
    add[ceil_div(x.numel(), 1024)](x, y, out, i32(x.numel()), BLOCK=1024)
    return out
"""

SOFTMAX = (
    HEAD
    + """@triton.jit
def softmax(x, out, rows, d, stride, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        values = tl.load(x + row * stride + at, mask=at < d, other=-float("inf"))
        numerator = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * d + at, numerator / tl.sum(numerator, axis=0), mask=at < d)
"""
)
SOFTMAX_PLAN = """
def forward(x):
    n, d = x.shape
    out = empty_like(x)
    softmax[min(n, 4)](x, out, i32(n), i32(d), i32(x.stride(0)), BLOCK=next_pow2(d), STAGES=2, num_warps=8)
    return out
"""

MATMUL = (
    HEAD
    + """@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul(
    a, b, c, m, n, k, a_row, a_col, b_row, b_col,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):
    program = tl.program_id(0)
    across = tl.cdiv(n, BN)
    first = program // (GROUP * across) * GROUP
    height = min(tl.cdiv(m, BM) - first, GROUP)
    row = first + program % (GROUP * across) % height
    column = program % (GROUP * across) // height
    rows = (row * BM + tl.arange(0, BM)) % m
    columns = (column * BN + tl.arange(0, BN)) % n
    inner = tl.arange(0, BK)
    left = a + rows[:, None] * a_row + inner[None, :] * a_col
    right = b + inner[:, None] * b_row + columns[None, :] * b_col
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        inside = inner < k - step * BK
        total = tl.dot(
            tl.load(left, mask=inside[None, :], other=0.0), tl.load(right, mask=inside[:, None], other=0.0), total
        )
        left += BK * a_col
        right += BK * b_row
    if ACTIVATION == "leaky":
        total = leaky(total)
    rows = row * BM + tl.arange(0, BM)
    columns = column * BN + tl.arange(0, BN)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), mask=inside)
"""
)
MATMUL_PLAN = """
BM = 64
BN = 64

def forward(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = empty((m, n), dtype=a.dtype)
    matmul[ceil_div(m, BM) * ceil_div(n, BN)](
        a, b, c, i32(m), i32(n), i32(k), i32(a.stride(0)), i32(a.stride(1)), i32(b.stride(0)), i32(b.stride(1)),
        BM=BM, BN=BN, BK=32, GROUP=8, ACTIVATION="leaky", num_stages=4,
    )
    return c
"""

DROPOUT = (
    HEAD
    + """@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(kept, tl.load(x + at, mask=at < n) / (1 - p), 0.0), mask=at < n)
"""
)
DROPOUT_PLAN = """
def forward(x):
    out = empty_like(x)
    dropout[ceil_div(x.numel(), 512)](x, out, i32(x.numel()), f32(0.25), i32(512), BLOCK=512)
    return out
"""

LAYER_NORM = (
    HEAD
    + """@triton.jit
def layer_norm(x, out, weight, bias, mean, rstd, d, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * d
    out += row * d
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, d, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < d, other=0.0).to(tl.float32)
    centre = tl.sum(total, axis=0) / d
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, d, BLOCK):
        at = start + tl.arange(0, BLOCK)
        distance = tl.where(at < d, tl.load(x + at, mask=at < d, other=0.0).to(tl.float32) - centre, 0.0)
        total += distance * distance
    scale = 1 / tl.sqrt(tl.sum(total, axis=0) / d + eps)
    tl.store(mean + row, centre)
    tl.store(rstd + row, scale)
    for start in range(0, d, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < d
        normal = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre) * scale
        tl.store(out + at, normal * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside), mask=inside)
"""
)
LAYER_NORM_PLAN = """
def forward(x, weight, bias):
    n, d = x.shape
    out, mean, rstd = empty_like(x), empty((n,)), empty((n,))
    layer_norm[n](x, out, weight, bias, mean, rstd, i32(d), f32(1e-5), BLOCK=256)
    return out, mean, rstd
"""

ATTENTION = (
    HEAD
    + """@triton.jit
def attention(q, k, v, out, n, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    start = tl.program_id(0) * BM
    head = tl.program_id(1).to(tl.int64) * n * D
    rows = start + tl.arange(0, BM)
    width = tl.arange(0, D)
    queries = tl.load(q + head + rows[:, None] * D + width[None, :], mask=rows[:, None] < n, other=0.0)
    largest = tl.full([BM], -float("inf"), dtype=tl.float32)
    denominator = tl.zeros([BM], dtype=tl.float32)
    total = tl.zeros([BM, D], dtype=tl.float32)
    end = min(start + BM, n) if CAUSAL else n
    for first in range(0, end, BN):
        keys = first + tl.arange(0, BN)
        inside = keys < n
        transposed = tl.load(k + head + keys[None, :] * D + width[:, None], mask=inside[None, :], other=0.0)
        scores = tl.dot(queries, transposed) * (scale * 1.4426950408889634)
        seen = inside[None, :] & (rows[:, None] >= keys[None, :]) if CAUSAL else inside[None, :]
        scores = tl.where(seen, scores, -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        factor = tl.exp2(largest - larger)
        denominator = denominator * factor + tl.sum(weights, 1)
        values = tl.load(v + head + keys[:, None] * D + width[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(weights.to(values.dtype), values, total * factor[:, None])
        largest = larger
    total = total / denominator[:, None]
    tl.store(out + head + rows[:, None] * D + width[None, :], total.to(out.dtype.element_ty), mask=rows[:, None] < n)
"""
)
ATTENTION_PLAN = """
def forward(q, k, v):
    heads, n, d = q.shape
    out = empty_like(q)
    attention[ceil_div(n, 64), heads](q, k, v, out, i32(n), f32(1 / sqrt(d)), BM=64, BN=32, D=d, CAUSAL=True)
    return out
"""

GROUPED = (
    HEAD
    + """@triton.jit
def grouped(a, b, c, sizes, groups, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tile = tl.program_id(0)
    before = 0
    for group in range(groups):
        m = tl.load(sizes + group * 3)
        n = tl.load(sizes + group * 3 + 1)
        k = tl.load(sizes + group * 3 + 2)
        across = tl.cdiv(n, BN)
        tiles = tl.cdiv(m, BM) * across
        while tile >= before and tile < before + tiles:
            rows = (tile - before) // across * BM + tl.arange(0, BM)
            columns = (tile - before) % across * BN + tl.arange(0, BN)
            total = tl.zeros((BM, BN), dtype=tl.float32)
            for start in range(0, k, BK):
                inner = start + tl.arange(0, BK)
                left = tl.load(
                    a + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0
                )
                right = tl.load(
                    b + inner[:, None] * n + columns[None, :],
                    mask=(inner[:, None] < k) & (columns[None, :] < n),
                    other=0.0,
                )
                total = tl.dot(left, right, total)
            inside = (rows[:, None] < m) & (columns[None, :] < n)
            tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), mask=inside)
            tile += tl.num_programs(0)
        before += tiles
        a += m * k
        b += k * n
        c += m * n
"""
)
GROUPED_PLAN = """
def forward(a, b, sizes, like):
    c = empty_like(like)
    grouped[3](a, b, c, sizes, i32(sizes.shape[0]), BM=32, BN=32, BK=16)
    return c
"""

SCALED = (
    HEAD
    + """@triton.jit
def scaled(
    a, a_scales, b, b_scales, c, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, A_TYPE: tl.constexpr, B_TYPE: tl.constexpr,
    GROUP: tl.constexpr, PACKED: tl.constexpr,
):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    width = tl.num_programs(1) * BN
    inner = tl.arange(0, BK // PACKED)
    groups = tl.arange(0, BK // GROUP)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        at = step * (BK // PACKED) + inner
        of_a = tl.load(a + rows[:, None] * (k // PACKED) + at[None, :])
        of_b = tl.load(b + columns[None, :] * (k // PACKED) + at[:, None])
        scale = step * (BK // GROUP) + groups
        scale_a = tl.load(a_scales + rows[:, None] * (k // GROUP) + scale[None, :])
        scale_b = tl.load(b_scales + columns[:, None] * (k // GROUP) + scale[None, :])
        if GROUP == 16:
            scale_a = scale_a.to(tl.float8e4nv, bitcast=True)
            scale_b = scale_b.to(tl.float8e4nv, bitcast=True)
        total = tl.dot_scaled(of_a, scale_a, A_TYPE, of_b, scale_b, B_TYPE, total)
    tl.store(c + rows[:, None] * width + columns[None, :], total)
"""
)
SCALED_PLAN = """
def forward(a, a_scales, b, b_scales):
    m = a.shape[0]
    n = b.shape[0]
    c = empty((m, n), dtype=float32)
    scaled[m // 128, n // BN](
        a, a_scales, b, b_scales, c, i32(a.shape[1] * PACKED),
        BM=128, BN=BN, BK=BK, A_TYPE=A_TYPE, B_TYPE=B_TYPE, GROUP=GROUP, PACKED=PACKED, num_stages=2,
    )
    return c
"""
