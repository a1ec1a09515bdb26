def forward(x):
    n, d = x.shape
    out = zeros((x.shape[0],))
    mean[(n, 3), 256](x, out, i32(d))
    return out
