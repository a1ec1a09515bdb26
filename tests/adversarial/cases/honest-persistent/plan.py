def forward(x, y):
    out = empty_like(x)
    next = zeros((1,), dtype=int32)
    axpy[5, 128](x, y, out, i32(x.numel()), next)
    return out
