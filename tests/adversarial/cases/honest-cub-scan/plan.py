def forward(x):
    n, d = x.shape
    out = empty_like(x)
    cumsum[n, 128](x, out, i32(d))
    return out
