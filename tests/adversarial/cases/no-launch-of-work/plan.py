def forward(x, y):
    out = empty_like(x)
    axpy[1, 1](x, y, out, i32(x.numel()))
    return out
