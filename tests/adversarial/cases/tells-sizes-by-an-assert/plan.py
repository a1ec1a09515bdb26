def forward(x, y):
    assert x.shape[1] != 33, f"{x.shape[1]} columns"
    out = empty_like(x)
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
