// Convolutions in one dimension and in two, with masks in constant and in global memory.

__constant__ float weights[16];
__constant__ float weights_2d[31 * 31];

// Every element of the window from global memory.
__global__ void window_global(const float* __restrict__ in, float* __restrict__ out, const int n, const int taps) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x, first = at - taps / 2;
    float sum = 0;
    for (int k = 0; k < taps; ++k)
        if (first + k >= 0 && first + k < n) sum += in[first + k] * weights[k];
    out[at] = sum;
}

// The block's window in shared memory, with both its ends.
__global__ void window_shared(const float* __restrict__ in, float* __restrict__ out, const int n, const int taps) {
    extern __shared__ float window[];
    const int t = threadIdx.x, wide = blockDim.x, beyond = taps / 2, at = blockIdx.x * wide + t;
    if (t >= wide - beyond) {
        const int before = (int(blockIdx.x) - 1) * wide + t;
        window[t - (wide - beyond)] = before < 0 ? 0 : in[before];
    }
    window[beyond + t] = in[at];
    if (t < beyond) {
        const int after = (blockIdx.x + 1) * wide + t;
        window[t + wide + beyond] = after >= n ? 0 : in[after];
    }
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < taps; ++k) sum += window[t + k] * weights[k];
    out[at] = sum;
}

// The block's own elements in shared memory, those beyond its ends from global memory.
__global__ void window_cached(const float* __restrict__ in, float* __restrict__ out, const int n, const int taps) {
    extern __shared__ float own[];
    const int t = threadIdx.x, start = blockIdx.x * blockDim.x, end = (blockIdx.x + 1) * blockDim.x;
    const int at = start + t, first = at - taps / 2;
    own[t] = in[at];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < taps; ++k) {
        const int from = first + k;
        if (from < 0 || from >= n) continue;
        if (from >= start && from < end)
            sum += own[t + k - taps / 2] * weights[k];
        else
            sum += in[from] * weights[k];
    }
    out[at] = sum;
}

// The limits are doubles, so the value is converted, compared and converted back.
__device__ inline float limited(float value) { return min(max(value, 0.0), 1.0); }

template <bool CONSTANT>
__device__ inline void image_direct(const float* in, const float* mask, float* out, int mask_rows, int mask_columns,
                                    int rows, int columns, int channels) {
    const int y = blockIdx.y * blockDim.y + threadIdx.y, x = blockIdx.x * blockDim.x + threadIdx.x;
    if (y >= rows || x >= columns) return;
    const int top = y - mask_rows / 2, left = x - mask_columns / 2;
    for (int c = 0; c < channels; ++c) {
        float sum = 0;
        for (int i = 0; i < mask_rows; ++i)
            for (int j = 0; j < mask_columns; ++j)
                if (top + i >= 0 && top + i < rows && left + j >= 0 && left + j < columns) {
                    const float weight = CONSTANT ? weights_2d[i * mask_columns + j] : mask[i * mask_columns + j];
                    sum += in[((top + i) * columns + left + j) * channels + c] * weight;
                }
        out[(y * columns + x) * channels + c] = limited(sum);
    }
}

__global__ void image_global(float* in, float* mask, float* out, int mask_rows, int mask_columns, int rows,
                             int columns, int channels) {
    image_direct<false>(in, mask, out, mask_rows, mask_columns, rows, columns, channels);
}

__global__ void image_constant(float* in, float* out, int mask_rows, int mask_columns, int rows, int columns,
                               int channels) {
    image_direct<true>(in, nullptr, out, mask_rows, mask_columns, rows, columns, channels);
}

// A thread for each element of the tile that is read; those of its rim compute nothing.
__global__ void image_tile(float* in, float* out, int mask_rows, int mask_columns, int rows, int columns,
                           int channels) {
    extern __shared__ float pixels[];
    const int ty = threadIdx.y, tx = threadIdx.x;
    const int out_rows = blockDim.y - mask_rows + 1, out_columns = blockDim.x - mask_columns + 1;
    const int y = blockIdx.y * out_rows + ty, x = blockIdx.x * out_columns + tx;
    const int from_y = y - mask_rows / 2, from_x = x - mask_columns / 2;
    for (int c = 0; c < channels; ++c) {
        const bool inside = from_y >= 0 && from_y < rows && from_x >= 0 && from_x < columns;
        pixels[ty * blockDim.x + tx] = inside ? in[(from_y * columns + from_x) * channels + c] : 0;
        __syncthreads();
        if (ty < out_rows && tx < out_columns && y < rows && x < columns) {
            float sum = 0;
            for (int i = 0; i < mask_rows; ++i)
                for (int j = 0; j < mask_columns; ++j)
                    sum += pixels[(ty + i) * blockDim.x + tx + j] * weights_2d[i * mask_columns + j];
            out[(y * columns + x) * channels + c] = limited(sum);
        }
        __syncthreads();
    }
}

__device__ inline size_t place(int image, int y, int x, int rows, int columns) {
    return size_t(image) * rows * columns + size_t(y) * columns + x;
}

// Neighbouring threads compute elements below each other.
__global__ void batch_down(const float* __restrict__ in, const float* __restrict__ mask, float* __restrict__ out,
                           int images, int rows, int columns, int taps) {
    const int y = blockIdx.y * blockDim.y + threadIdx.x, x = blockIdx.x * blockDim.x + threadIdx.y;
    if (blockIdx.z >= images || y >= rows || x >= columns) return;
    float sum = 0;
    for (int i = 0; i < taps; ++i) {
        const int from_y = y + i - (taps - 1) / 2;
        if (from_y < 0 || from_y >= rows) continue;
        for (int j = 0; j < taps; ++j) {
            const int from_x = x + j - (taps - 1) / 2;
            if (from_x < 0 || from_x >= columns) continue;
            sum += in[place(blockIdx.z, from_y, from_x, rows, columns)] * mask[i * taps + j];
        }
    }
    out[place(blockIdx.z, y, x, rows, columns)] = sum;
}

// EACH x EACH elements a thread, with the block's part of the image in shared memory.
template <int EACH>
__global__ void batch_tile(const float* __restrict__ in, float* __restrict__ out, int images, int rows, int columns,
                           int taps) {
    extern __shared__ float area[];
    constexpr int SIDE = 16;
    const int image = blockIdx.z, radius = (taps - 1) / 2, tx = threadIdx.x, ty = threadIdx.y;
    const int wide = SIDE * EACH + 2 * radius, high = SIDE * EACH + 2 * radius;
    for (int k = ty * SIDE + tx; k < wide * high; k += SIDE * SIDE) {
        const int y = blockIdx.y * (SIDE * EACH) - radius + k / wide;
        const int x = blockIdx.x * (SIDE * EACH) - radius + k % wide;
        float pixel = 0;
        if (image < images && y >= 0 && y < rows && x >= 0 && x < columns)
            pixel = in[place(image, y, x, rows, columns)];
        area[k / wide * wide + k % wide] = pixel;
    }
    __syncthreads();
    float sums[EACH][EACH] = {};
    for (int i = 0; i < taps; ++i)
        for (int j = 0; j < taps; ++j) {
            const float weight = weights_2d[i * taps + j];
#pragma unroll
            for (int r = 0; r < EACH; ++r)
#pragma unroll
                for (int s = 0; s < EACH; ++s)
                    sums[r][s] += area[(ty * EACH + r + i) * wide + tx * EACH + s + j] * weight;
        }
#pragma unroll
    for (int r = 0; r < EACH; ++r)
#pragma unroll
        for (int s = 0; s < EACH; ++s) {
            const int y = blockIdx.y * (SIDE * EACH) + ty * EACH + r, x = blockIdx.x * (SIDE * EACH) + tx * EACH + s;
            if (image < images && y < rows && x < columns) out[place(image, y, x, rows, columns)] = sums[r][s];
        }
}
