def forward(x, y):
    out = empty_like(x)
    axpy[1, 32](x, y, out, i32(0))
    library("add", x, y, alpha=2, out=out)
    return out
