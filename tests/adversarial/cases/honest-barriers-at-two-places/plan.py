def forward(x, y):
    out = empty_like(x)
    axpy[ceil_div(x.numel(), 64), 64](x, y, out, i32(x.numel()))
    return out
