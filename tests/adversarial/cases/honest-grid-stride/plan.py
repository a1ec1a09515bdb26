def forward(x, y):
    out = empty_like(x)
    axpy[4, 96](x, y, out, i32(x.numel()))
    return out
