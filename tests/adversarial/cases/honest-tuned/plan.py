# tune: BLOCK = 128 | 64
def forward(x, y):
    out = empty_like(x)
    axpy[ceil_div(x.numel(), BLOCK), BLOCK](x, y, out, i32(x.numel()))
    return out
