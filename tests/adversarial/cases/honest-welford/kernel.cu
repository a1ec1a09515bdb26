__global__ void layernorm(const float* x, const float* w, const float* b, float* out, int d, float eps) {
    __shared__ float3 parts[128];
    const float* row = x + blockIdx.x * (long long)d;
    float count = 0.0f, mean = 0.0f, m2 = 0.0f;
    for (int k = threadIdx.x; k < d; k += 128) {
        count += 1.0f;
        float delta = row[k] - mean;
        mean += delta / count;
        m2 += delta * (row[k] - mean);
    }
    parts[threadIdx.x] = make_float3(count, mean, m2);
    __syncthreads();
    for (int step = 64; step; step /= 2) {
        if (threadIdx.x < step) {
            float3 a = parts[threadIdx.x], c = parts[threadIdx.x + step];
            float n = a.x + c.x, delta = c.y - a.y;
            if (c.x > 0) parts[threadIdx.x] = make_float3(n, a.y + delta * c.x / n, a.z + c.z + delta * delta * a.x * c.x / n);
        }
        __syncthreads();
    }
    float scale = rsqrtf(parts[0].z / d + eps);
    for (int k = threadIdx.x; k < d; k += 128) out[blockIdx.x * (long long)d + k] = (row[k] - parts[0].y) * scale * w[k] + b[k];
}
