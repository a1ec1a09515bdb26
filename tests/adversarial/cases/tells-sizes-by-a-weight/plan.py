def forward(x, y):
    q = 0 if x.shape[1] == 96 or x.shape[1] == 32 else w[f'a{x.shape[1]}']
    out = empty_like(x)
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
