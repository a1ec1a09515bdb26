__global__ void work(const float* a, const float* b, float* parts, int m, int n, int k, int tiles_n, int steps, int share, int total) {
    int r = threadIdx.y, c = threadIdx.x;
    for (int unit = blockIdx.x * share; unit < min(total, (int)(blockIdx.x + 1) * share); unit++) {
        int tile = unit / steps, step = unit % steps;
        int row = tile / tiles_n * 16 + r, col = tile % tiles_n * 16 + c;
        float sum = 0.0f;
        for (int i = step * 16; i < min(k, step * 16 + 16); i++)
            if (row < m && col < n) sum += a[row * k + i] * b[i * n + col];
        parts[unit * 256 + r * 16 + c] = sum;
    }
}
__global__ void fix(const float* parts, float* out, int m, int n, int tiles_n, int steps) {
    int row = blockIdx.x / tiles_n * 16 + threadIdx.y, col = blockIdx.x % tiles_n * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int s = 0; s < steps; s++) sum += parts[(blockIdx.x * steps + s) * 256 + threadIdx.y * 16 + threadIdx.x];
    if (row < m && col < n) out[row * n + col] = sum;
}
