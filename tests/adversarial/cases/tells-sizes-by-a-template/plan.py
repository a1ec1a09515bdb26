def forward(x, y):
    out = empty_like(x)
    kernel(f'axpy<{x.shape[1]}>')[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
