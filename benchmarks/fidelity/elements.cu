// Element by element: additions, copies, transposes, activations, norms of rows, histograms.

// Blocks of two dimensions whose x runs down a column, and along a row.
__global__ void add_down(const float* a, const float* b, float* sum, int columns, int rows) {
    const int y = blockIdx.x * blockDim.x + threadIdx.x, x = blockIdx.y * blockDim.y + threadIdx.y;
    if (y < rows && x < columns) sum[y * columns + x] = a[y * columns + x] + b[y * columns + x];
}

__global__ void add_along(const float* a, const float* b, float* sum, int columns, int rows) {
    const int y = blockIdx.y * blockDim.y + threadIdx.y, x = blockIdx.x * blockDim.x + threadIdx.x;
    if (y < rows && x < columns) sum[y * columns + x] = a[y * columns + x] + b[y * columns + x];
}

__global__ void add_vectors(const float* a, const float* b, float* sum, int n) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) sum[at] = a[at] + b[at];
}

// EACH neighbouring elements of a row a thread; then of a vector; then of a vector, a block's width apart.
template <int EACH>
__global__ void add_rows(const float* a, const float* b, float* sum, int rows, int columns) {
    const int x = (blockIdx.x * blockDim.x + threadIdx.x) * EACH, y = blockIdx.y * blockDim.y + threadIdx.y;
    for (int k = 0; k < EACH; ++k)
        if (x + k < columns && y < rows) sum[y * columns + x + k] = a[y * columns + x + k] + b[y * columns + x + k];
}

template <int EACH>
__global__ void add_neighbours(const float* a, const float* b, float* sum, int n) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * EACH;
    for (int k = 0; k < EACH; ++k)
        if (first + k < n) sum[first + k] = a[first + k] + b[first + k];
}

template <int EACH>
__global__ void add_apart(const float* a, const float* b, float* sum, int) {
    const int first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
    for (int k = 0; k < EACH; ++k)
        sum[first + k * blockDim.x] = a[first + k * blockDim.x] + b[first + k * blockDim.x];
}

// Additions whose inputs start at an offset; blocks overlap, each thread has EACH elements a block's width apart.
template <int EACH>
__global__ void add_from(const float* a, const float* b, float* sum, const int offset, size_t n) {
    const size_t at = blockIdx.x * blockDim.x + threadIdx.x, from = at + offset;
    if (from + (EACH - 1) * blockDim.x < n) {
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            sum[at + k * blockDim.x] = a[from + k * blockDim.x] + b[from + k * blockDim.x];
    }
}

__global__ void dot_atomic(const float* a, const float* b, float* sum, int n) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) atomicAdd(sum, a[at] * b[at]);
}

// Two arrays, one after the other.
__global__ void columns_add(const float* __restrict__ in, float* out, const unsigned n) {
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) {
        out[at] = in[at] + 10.0f;
        out[n + at] = in[n + at] + 20.0f;
    }
}

// Three bytes of colour to one of grey.
__global__ void grey(const unsigned char* colours, unsigned char* greys, int columns, int rows) {
    const int y = blockIdx.y * blockDim.y + threadIdx.y, x = blockIdx.x * blockDim.x + threadIdx.x;
    if (y >= rows || x >= columns) return;
    const int at = y * columns + x;
    const unsigned char red = colours[3 * at], green = colours[3 * at + 1], blue = colours[3 * at + 2];
    greys[at] = (unsigned char)(0.21f * red + 0.71f * green + 0.07f * blue);
}

// EACH elements in flight a thread, past the L1 in both directions.
template <int EACH>
__global__ void copy_past_l1(const float* __restrict__ in, float* __restrict__ out, size_t n) {
    const size_t apart = size_t(gridDim.x) * blockDim.x;
    size_t at = blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + (EACH - 1) * apart < n; at += EACH * apart) {
        float held[EACH];
#pragma unroll
        for (int k = 0; k < EACH; ++k) held[k] = __ldcg(in + at + k * apart);
#pragma unroll
        for (int k = 0; k < EACH; ++k) __stcg(out + at + k * apart, held[k]);
    }
    for (; at < n; at += apart) __stcg(out + at, __ldcg(in + at));
}

// Transposes: straight from memory to memory; through shared memory; with rows of it padded, two tiles a block.
__global__ void transpose_direct(const float* __restrict__ in, float* out, const int columns, const int rows) {
    const unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < columns && y < rows) out[x * rows + y] = in[y * columns + x];
}

__global__ void transpose_tile(const float* __restrict__ in, float* out, const int columns, const int rows) {
    __shared__ float tile[16][32];
    const unsigned y = blockIdx.y * blockDim.y + threadIdx.y, x = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned t = threadIdx.y * blockDim.x + threadIdx.x;
    const unsigned to_y = t / blockDim.y, to_x = t % blockDim.y;
    const unsigned out_x = blockIdx.y * blockDim.y + to_x, out_y = blockIdx.x * blockDim.x + to_y;
    if (out_x < columns && out_y < rows) {
        tile[threadIdx.y][threadIdx.x] = in[y * columns + x];
        __syncthreads();
        out[out_y * rows + out_x] = tile[to_x][to_y];
    }
}

__global__ void transpose_two_tiles(const float* __restrict__ in, float* out, const int columns, const int rows) {
    constexpr int PITCH = 2 * 32 + 2;
    __shared__ float tiles[16 * PITCH];
    const unsigned y = blockIdx.y * blockDim.y + threadIdx.y, x = blockIdx.x * 2 * blockDim.x + threadIdx.x;
    const unsigned t = threadIdx.y * blockDim.x + threadIdx.x;
    const unsigned to_y = t / blockDim.y, to_x = t % blockDim.y;
    const unsigned out_x = blockIdx.y * blockDim.y + to_x, out_y = blockIdx.x * 2 * blockDim.x + to_y;
    if (x + blockDim.x < columns && y < rows) {
        const unsigned at = threadIdx.y * PITCH + threadIdx.x, from = to_x * PITCH + to_y;
        tiles[at] = in[y * columns + x];
        tiles[at + 32] = in[y * columns + x + 32];
        __syncthreads();
        out[out_y * rows + out_x] = tiles[from];
        out[(out_y + 32) * rows + out_x] = tiles[from + 32];
    }
}

// Tiles of 32 x 32 by 8 rows of threads, with columns of shared memory in one bank.
__global__ void transpose_eight_rows(float* out, const float* in, size_t columns, size_t rows) {
    __shared__ float tile[32][32];
    size_t x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (x < columns && y + k < rows) tile[threadIdx.y + k][threadIdx.x] = in[(y + k) * columns + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (x < rows && y + k < columns) out[(y + k) * rows + x] = tile[threadIdx.x][threadIdx.y + k];
}

// The same with rows padded and four elements a thread.
__global__ void transpose_fours(float* out, const float* in, size_t columns, size_t rows) {
    __shared__ float tile[32][33];
    size_t x = blockIdx.x * 32 + threadIdx.x * 4, y = blockIdx.y * 32 + threadIdx.y;
    const int four = threadIdx.x * 4, row = threadIdx.y;
    if (x + 3 < columns && y < rows) {
        const float4 read = *reinterpret_cast<const float4*>(in + y * columns + x);
        tile[row][four] = read.x;
        tile[row][four + 1] = read.y;
        tile[row][four + 2] = read.z;
        tile[row][four + 3] = read.w;
    }
    __syncthreads();
    x = blockIdx.y * 32 + four;
    y = blockIdx.x * 32 + row;
    if (x + 3 < rows && y < columns)
        *reinterpret_cast<float4*>(out + y * rows + x) =
            make_float4(tile[four][row], tile[four + 1][row], tile[four + 2][row], tile[four + 3][row]);
}

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

// A row a block.
__global__ void silu_rows(const float* in, float* out, int n) {
    for (int x = threadIdx.x; x < n; x += blockDim.x) {
        const int at = blockIdx.x * n + x;
        out[at] = silu(in[at]);
    }
}

// Four elements read together, and written one by one.
__global__ void silu_fours(const float* in, float* out, int n) {
    const int at = blockIdx.x * blockDim.x * 4 + threadIdx.x * 4;
    if (at + 3 >= n * n) return;
    const float4 four = *reinterpret_cast<const float4*>(in + at);
    out[at] = silu(four.x);
    out[at + 1] = silu(four.y);
    out[at + 2] = silu(four.z);
    out[at + 3] = silu(four.w);
}

// The root of the mean square of a row, from the sums of a block's threads.
__device__ inline float root_mean_square(float square, int columns, float epsilon) {
    extern __shared__ float parts[];
    const int t = threadIdx.x;
    parts[t] = square;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s /= 2) {
        if (t < s) parts[t] += parts[t + s];
        __syncthreads();
    }
    if (t == 0) parts[0] = sqrt(parts[0] / float(columns) + epsilon);
    __syncthreads();
    return parts[0];
}

__global__ void rms_norm_rows(const float* in, const float* weight, float* out, int rows, int columns,
                              float epsilon) {
    const int row = blockIdx.x;
    float square = 0;
    for (int x = threadIdx.x; x < columns; x += blockDim.x) {
        const float value = in[row * columns + x];
        square += value * value;
    }
    const float root = root_mean_square(square, columns, epsilon);
    for (int x = threadIdx.x; x < columns; x += blockDim.x)
        out[row * columns + x] = in[row * columns + x] / root * weight[x];
}

__global__ void rms_norm_fours(const float* in, const float* weight, float* out, int rows, int columns,
                               float epsilon) {
    const float4* fours = reinterpret_cast<const float4*>(in + blockIdx.x * columns);
    float4* results = reinterpret_cast<float4*>(out + blockIdx.x * columns);
    float square = 0;
    for (int x = threadIdx.x; x < columns / 4; x += blockDim.x) {
        const float4 four = fours[x];
        square += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
    }
    const float root = root_mean_square(square, columns, epsilon);
    for (int x = threadIdx.x; x < columns / 4; x += blockDim.x) {
        const float4 four = fours[x];
        const float* scale = weight + x * 4;
        results[x] = make_float4(four.x / root * scale[0], four.y / root * scale[1], four.z / root * scale[2],
                                 four.w / root * scale[3]);
    }
}

// Histograms: atomics on global memory, and on a copy of each block.
__global__ void histogram_global(const unsigned* in, unsigned* bins, unsigned n, unsigned count) {
    const unsigned first = blockIdx.x * blockDim.x + threadIdx.x, apart = blockDim.x * gridDim.x;
    for (unsigned bin = first; bin < count; bin += apart) bins[bin] = 0;
    __syncthreads();
    for (unsigned at = first; at < n; at += apart) atomicAdd(&bins[in[at]], 1);
}

__global__ void histogram_of_blocks(const unsigned* in, unsigned* bins, unsigned n, unsigned count) {
    extern __shared__ unsigned own_bins[];
    const unsigned first = blockIdx.x * blockDim.x + threadIdx.x, apart = blockDim.x * gridDim.x;
    for (unsigned bin = threadIdx.x; bin < count; bin += blockDim.x) own_bins[bin] = 0;
    __syncthreads();
    for (unsigned at = first; at < n; at += apart) atomicAdd(&own_bins[in[at]], 1);
    __syncthreads();
    for (unsigned bin = threadIdx.x; bin < count; bin += blockDim.x) atomicAdd(&bins[bin], own_bins[bin]);
}
