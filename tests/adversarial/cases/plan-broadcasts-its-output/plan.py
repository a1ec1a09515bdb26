def forward(x, y):
    out = empty((1, 1))
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(1))
    return out
