def forward(x, y):
    assert x.shape[1] >= 16, "rows of fewer than 16 elements"
    out = empty_like(x)
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
