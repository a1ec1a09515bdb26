def forward(x):
    n, d = x.shape
    out = empty_like(x)
    blocks = zeros((1,), int32)
    softmax[n, 256](x, out, i32(n), i32(d), blocks)
    return out
