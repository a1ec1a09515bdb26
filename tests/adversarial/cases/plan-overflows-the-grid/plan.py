def forward(x, y):
    out = empty_like(x)
    axpy[(2 ** 32), 128](x, y, out, i32(x.numel()))
    return out
