def forward(a, b):
    m, k = a.shape
    n = b.shape[1]
    out = empty((m, n))
    tiles_m, tiles_n, steps = ceil_div(m, 16), ceil_div(n, 16), ceil_div(k, 16)
    total = tiles_m * tiles_n * steps
    parts = empty((total, 256))
    share = ceil_div(total, 7)
    work[7, (16, 16)](a, b, parts, i32(m), i32(n), i32(k), i32(tiles_n), i32(steps), i32(share), i32(total))
    fix[tiles_m * tiles_n, (16, 16)](parts, out, i32(m), i32(n), i32(tiles_n), i32(steps))
    return out
