def forward(x):
    n, d = x.shape
    out = empty((x.shape[0],))
    partial = empty((n, 4))
    arrived = zeros((n,), dtype=int32)
    mean[(n, 4), 256](x, out, partial, arrived, i32(d))
    return out
