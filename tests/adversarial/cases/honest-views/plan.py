def forward(x, y):
    n, d = x.shape
    out = empty_like(x)
    half = n // 2
    if half > 0:
        axpy[ceil_div(half * d, 128), 128](x[0:half], y[0:half], out[0:half], i32(half * d))
    axpy[ceil_div((n - half) * d, 128), 128](x[half:n], y[half:n], out[half:n], i32((n - half) * d))
    return out
