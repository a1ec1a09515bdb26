// Convolutions 3 x 3, zeros around the image.

__device__ __forceinline__ float pixel(const float* x, int row, int column, int h, int w) {
    return row >= 0 && row < h && column >= 0 && column < w ? x[(size_t)row * w + column] : 0.f;
}

extern "C" __global__ void filter_naive(const float* x, const float* f, float* y, int h, int w) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) sum += f[i * 3 + j] * pixel(x, row + i - 1, column + j - 1, h, w);
    y[(size_t)row * w + column] = sum;
}

extern "C" __global__ void filter_tiled(const float* x, const float* f, float* y, int h, int w) {
    __shared__ float tile[18][34];
    int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * 16 - 1, column0 = blockIdx.x * 32 - 1;
    for (int e = ty * 32 + tx; e < 18 * 34; e += 512) tile[e / 34][e % 34] = pixel(x, row0 + e / 34, column0 + e % 34, h, w);
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) sum += f[i * 3 + j] * tile[ty + i][tx + j];
    y[(size_t)(row0 + 1 + ty) * w + column0 + 1 + tx] = sum;
}

// Each thread walks down 8 rows and keeps the last three in registers.
extern "C" __global__ void filter_rolling(const float* x, const float* f, float* y, int h, int w) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row0 = (blockIdx.y * blockDim.y + threadIdx.y) * 8;
    float k[9], v[3][3];
    for (int i = 0; i < 9; i++) k[i] = f[i];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) v[i + 1][j] = pixel(x, row0 + i - 1, column + j - 1, h, w);
#pragma unroll
    for (int r = 0; r < 8; r++) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            v[0][j] = v[1][j], v[1][j] = v[2][j], v[2][j] = pixel(x, row0 + r + 1, column + j - 1, h, w);
            sum += k[j] * v[0][j] + k[3 + j] * v[1][j] + k[6 + j] * v[2][j];
        }
        y[(size_t)(row0 + r) * w + column] = sum;
    }
}

// One filter for each channel; blockIdx.z is the image and channel.
extern "C" __global__ void filter_depthwise(const float* x, const float* f, float* y, int channels, int h, int w) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z;
    const float* k = f + z % channels * 9;
    x += (size_t)z * h * w;
    float sum = 0;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) sum += k[i * 3 + j] * pixel(x, row + i - 1, column + j - 1, h, w);
    y[((size_t)z * h + row) * w + column] = sum;
}

// All input channels to one output channel, blockIdx.z.
extern "C" __global__ void filter_channels(const float* x, const float* f, float* y, int channels, int h, int w) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z;
    float sum = 0;
    for (int c = 0; c < channels; c++) {
        const float* k = f + ((size_t)z * channels + c) * 9;
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) sum += k[i * 3 + j] * pixel(x + (size_t)c * h * w, row + i - 1, column + j - 1, h, w);
    }
    y[((size_t)z * h + row) * w + column] = sum;
}
