// Copies, reads and writes of n elements.

#define COPY(name, type)                                                                             \
    extern "C" __global__ void name(const type* x, type* y) {                                        \
        size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;                                    \
        y[i] = x[i];                                                                                 \
    }
COPY(copy_1, unsigned char)
COPY(copy_2, unsigned short)
COPY(copy_4, float)
COPY(copy_8, float2)
COPY(copy_16, float4)

extern "C" __global__ void copy_unrolled(const float4* x, float4* y) {
    size_t i = (size_t)blockIdx.x * blockDim.x * 4 + threadIdx.x;
    float4 v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = x[i + k * blockDim.x];
#pragma unroll
    for (int k = 0; k < 4; k++) y[i + k * blockDim.x] = v[k];
}

// Thread i reads word i * stride.
extern "C" __global__ void copy_strided(const float* x, float* y, int stride) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i * stride];
}

// Thread i writes word i * stride.
extern "C" __global__ void copy_spread(const float* x, float* y, int stride) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    y[i * stride] = x[i];
}

extern "C" __global__ void copy_shifted(const float* x, float* y, int by) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i + by];
}

extern "C" __global__ void copy_gathered(const float* x, const int* index, float* y) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[index[i]];
}

extern "C" __global__ void copy_scattered(const float* x, const int* index, float* y) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    y[index[i]] = x[i];
}

extern "C" __global__ void copy_grid_stride(const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i];
}

// Every block reads all of x, rounds times; written only if the sum is one that no input has.
extern "C" __global__ void read_again(const float4* x, float* y, int n, int rounds) {
    float sum = 0;
    for (int r = 0; r < rounds; r++)
        for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
            float4 v = x[(i + blockIdx.x * 1024 + r * 256) % (n / 4)];
            sum += v.x + v.y + v.z + v.w;
        }
    y[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void read_only(const float4* x, float* y, int n) {
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
        float4 v = x[i];
        sum += v.x + v.y + v.z + v.w;
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void write_only(float4* y, float value) {
    y[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = make_float4(value, value, value, value);
}
