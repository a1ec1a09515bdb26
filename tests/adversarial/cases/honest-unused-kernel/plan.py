def forward(x, y):
    out = empty_like(x)
    chosen = kernel("wide" if x.numel() > 1000000 else "axpy")
    chosen[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
