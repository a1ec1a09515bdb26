def forward(x):
    n, d = x.shape
    tiles = ceil_div(d, 128)
    out = empty_like(x)
    carry = empty((n, tiles))
    done = zeros((n, tiles), dtype=int32)
    cumsum[(tiles, n), 128](x, out, carry, done, i32(d))
    return out
