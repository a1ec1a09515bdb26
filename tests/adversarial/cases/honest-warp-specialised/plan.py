def forward(x, y):
    out = empty_like(x)
    axpy[3, 128](x, y, out, i32(x.numel()))
    return out
