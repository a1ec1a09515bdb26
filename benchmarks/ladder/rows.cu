// Softmax and normalisations of the rows of a matrix.

__device__ __forceinline__ float warp_max(float v) {
    for (int d = 16; d; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

__device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

template <bool greatest>
__device__ __forceinline__ float of_block(float v) {
    __shared__ float part[32];
    v = greatest ? warp_max(v) : warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : (greatest ? -3e38f : 0.f);
    return greatest ? warp_max(v) : warp_sum(v);
}

// A thread for each row, three passes.
extern "C" __global__ void softmax_thread(const float* x, float* y, int n) {
    size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    x += row * n, y += row * n;
    float most = -3e38f, sum = 0;
    for (int i = 0; i < n; i++) most = fmaxf(most, x[i]);
    for (int i = 0; i < n; i++) sum += expf(x[i] - most);
    for (int i = 0; i < n; i++) y[i] = expf(x[i] - most) / sum;
}

extern "C" __global__ void softmax_block(const float* x, float* y, int n) {
    x += (size_t)blockIdx.x * n, y += (size_t)blockIdx.x * n;
    float most = -3e38f, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, x[i]);
    most = of_block<true>(most);
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(x[i] - most);
    sum = of_block<false>(sum);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = expf(x[i] - most) / sum;
}

// Maximum and sum in one pass.
extern "C" __global__ void softmax_online(const float* x, float* y, int n) {
    x += (size_t)blockIdx.x * n, y += (size_t)blockIdx.x * n;
    float most = -3e38f, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = x[i], next = fmaxf(most, v);
        sum = sum * __expf(most - next) + __expf(v - next);
        most = next;
    }
    float all = of_block<true>(most);
    sum = of_block<false>(sum * __expf(most - all));
    float scale = 1.f / sum;
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = __expf(x[i] - all) * scale;
}

extern "C" __global__ void softmax_vectors(const float4* x, float4* y, int n) {
    int m = n / 4;
    x += (size_t)blockIdx.x * m, y += (size_t)blockIdx.x * m;
    float most = -3e38f, sum = 0;
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        float4 v = x[i];
        float next = fmaxf(fmaxf(most, fmaxf(v.x, v.y)), fmaxf(v.z, v.w));
        sum = sum * __expf(most - next) + __expf(v.x - next) + __expf(v.y - next) + __expf(v.z - next) + __expf(v.w - next);
        most = next;
    }
    float all = of_block<true>(most);
    float scale = 1.f / of_block<false>(sum * __expf(most - all));
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        float4 v = x[i];
        y[i] = make_float4(__expf(v.x - all) * scale, __expf(v.y - all) * scale, __expf(v.z - all) * scale,
                           __expf(v.w - all) * scale);
    }
}

// A warp for each row of 1,024, kept in registers.
extern "C" __global__ void softmax_warp(const float* x, float* y) {
    size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    x += row * 1024 + threadIdx.x % 32, y += row * 1024 + threadIdx.x % 32;
    float v[32], most = -3e38f, sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) most = fmaxf(most, v[i] = x[i * 32]);
    most = warp_max(most);
#pragma unroll
    for (int i = 0; i < 32; i++) sum += v[i] = __expf(v[i] - most);
    float scale = 1.f / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < 32; i++) y[i * 32] = v[i] * scale;
}

// Mean, then variance, then the result: three passes.
extern "C" __global__ void layer_norm_passes(const float* x, const float* scale, const float* shift, float* y, int n) {
    x += (size_t)blockIdx.x * n, y += (size_t)blockIdx.x * n;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    float mean = of_block<false>(sum) / n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
    float factor = rsqrtf(of_block<false>(squares) / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = (x[i] - mean) * factor * scale[i] + shift[i];
}

// A row of 4,096 in the registers of 256 threads.
extern "C" __global__ void layer_norm_registers(const float4* x, const float4* scale, const float4* shift, float4* y) {
    x += (size_t)blockIdx.x * 1024, y += (size_t)blockIdx.x * 1024;
    float4 v[4];
    float sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        v[k] = x[threadIdx.x + 256 * k];
        sum += v[k].x + v[k].y + v[k].z + v[k].w;
    }
    float mean = of_block<false>(sum) / 4096;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        v[k].x -= mean, v[k].y -= mean, v[k].z -= mean, v[k].w -= mean;
        squares += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
    }
    float f = rsqrtf(of_block<false>(squares) / 4096 + 1e-5f);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float4 s = scale[threadIdx.x + 256 * k], b = shift[threadIdx.x + 256 * k];
        y[threadIdx.x + 256 * k] = make_float4(v[k].x * f * s.x + b.x, v[k].y * f * s.y + b.y, v[k].z * f * s.z + b.z,
                                               v[k].w * f * s.w + b.w);
    }
}

// A warp for each row.
extern "C" __global__ void layer_norm_warp(const float* x, const float* scale, const float* shift, float* y, int n) {
    size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    x += row * n, y += row * n;
    float sum = 0, squares = 0;
    for (int i = lane; i < n; i += 32) sum += x[i], squares += x[i] * x[i];
    float mean = warp_sum(sum) / n, factor = rsqrtf(warp_sum(squares) / n - mean * mean + 1e-5f);
    for (int i = lane; i < n; i += 32) y[i] = (x[i] - mean) * factor * scale[i] + shift[i];
}

extern "C" __global__ void rms_norm_block(const float* x, const float* scale, float* y, int n) {
    x += (size_t)blockIdx.x * n, y += (size_t)blockIdx.x * n;
    float squares = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) squares += x[i] * x[i];
    float factor = rsqrtf(of_block<false>(squares) / n + 1e-6f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * factor * scale[i];
}

extern "C" __global__ void rms_norm_vectors(const float4* x, const float4* scale, float4* y, int n) {
    int m = n / 4;
    x += (size_t)blockIdx.x * m, y += (size_t)blockIdx.x * m;
    float squares = 0;
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        float4 v = x[i];
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    float f = rsqrtf(of_block<false>(squares) / n + 1e-6f);
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        float4 v = x[i], s = scale[i];
        y[i] = make_float4(v.x * f * s.x, v.y * f * s.y, v.z * f * s.z, v.w * f * s.w);
    }
}
