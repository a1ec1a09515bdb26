def forward(x, y):
    out = empty_like(x)
    rows = kernel(f"axpy<{x.shape[1]}>")
    rows[x.shape[0], x.shape[1]](x, y, out)
    return out
