__global__ void argmax(const float* x, long long* out, int n, int d) {
    __shared__ float values[256];
    __shared__ int places[256];
    const float* row = x + blockIdx.x * (long long)d;
    float best = -INFINITY;
    int place = 0;
    for (int k = threadIdx.x; k < min(d, 4096); k += 256)
        if (row[k] > best) best = row[k], place = k;
    values[threadIdx.x] = best, places[threadIdx.x] = place;
    __syncthreads();
    for (int step = 128; step; step /= 2) {
        int other = threadIdx.x + step;
        if (threadIdx.x < step && (values[other] > values[threadIdx.x] || (values[other] == values[threadIdx.x] && places[other] < places[threadIdx.x]))) {
            values[threadIdx.x] = values[other];
            places[threadIdx.x] = places[other];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = places[0];
}
