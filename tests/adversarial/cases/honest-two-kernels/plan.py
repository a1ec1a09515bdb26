def forward(x, y):
    out = empty_like(x)
    kept = empty_like(x)
    twice[ceil_div(x.numel(), 128), 128](x, kept, i32(x.numel()))
    add[ceil_div(x.numel(), 128), 128](kept, y, out, i32(x.numel()))
    return out
