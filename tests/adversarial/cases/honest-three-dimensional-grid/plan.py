def forward(x, y):
    out = empty_like(x)
    axpy[(2, 3, ceil_div(x.numel(), 6 * 128)), (16, 4, 2)](x, y, out, i32(x.numel()))
    return out
