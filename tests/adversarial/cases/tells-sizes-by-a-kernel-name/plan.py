def forward(x, y):
    out = empty_like(x)
    kernel('axpy' if x.shape[1] == 96 or x.shape[1] == 32 else f'axpy_{x.shape[1]}')[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
