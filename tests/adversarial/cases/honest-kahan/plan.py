def forward(x):
    n, d = x.shape
    out = empty((x.shape[0],))
    mean[n, 32](x, out, i32(d))
    return out
