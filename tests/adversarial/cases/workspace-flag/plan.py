def forward(x, y):
    out = empty_like(x)
    kept = empty((4,), dtype=int32)
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()), kept)
    return out
