__global__ void argmax(const float* x, long long* out, int d) {
    __shared__ float values[128];
    __shared__ int places[128];
    const float* row = x + blockIdx.x * d;
    float best = -INFINITY;
    int place = -1;
    for (int k = threadIdx.x; k < d; k += 128)
        if (place < 0 || row[k] >= best) best = row[k], place = k;
    values[threadIdx.x] = best, places[threadIdx.x] = place;
    __syncthreads();
    for (int step = 64; step; step /= 2) {
        if (threadIdx.x < step && places[threadIdx.x + step] >= 0 && values[threadIdx.x + step] >= values[threadIdx.x]) {
            values[threadIdx.x] = values[threadIdx.x + step];
            places[threadIdx.x] = places[threadIdx.x + step];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = places[0];
}
