def forward(x, y):
    out = empty_like(x)
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
