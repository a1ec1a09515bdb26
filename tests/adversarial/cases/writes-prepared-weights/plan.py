def setup(w):
    weight = w["fc.weight"]
    packed = empty_like(weight)
    keep[ceil_div(weight.numel(), 128), 128](weight, packed, i32(weight.numel()))
    return packed

def forward(x):
    n, k = x.shape
    m = w["fc.bias"].numel()
    out = empty((n, m))
    linear[n, next_pow2(m)](x, prepared, w["fc.bias"], out, i32(m), i32(k))
    return out
