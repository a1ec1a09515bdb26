// Products of single precision, c = alpha a b + beta c, from one element a thread to tiles of warps.


// Neighbouring threads of a warp compute elements below each other: each reads another row of a.
__global__ void product_down(int rows, int columns, int inner, float alpha, const float* a, const float* b,
                             float beta, float* c) {
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= rows || column >= columns) return;
    float sum = 0;
    for (int k = 0; k < inner; ++k) sum += a[row * inner + k] * b[k * columns + column];
    c[row * columns + column] = alpha * sum + beta * c[row * columns + column];
}

// The same with threads side by side along a row, in blocks of one dimension.
template <int SIDE>
__global__ void product_along(int rows, int columns, int inner, float alpha, const float* a, const float* b,
                              float beta, float* c) {
    const int row = blockIdx.x * SIDE + threadIdx.x / SIDE;
    const int column = blockIdx.y * SIDE + threadIdx.x % SIDE;
    if (row >= rows || column >= columns) return;
    float sum = 0;
    for (int k = 0; k < inner; ++k) sum += a[row * inner + k] * b[k * columns + column];
    c[row * columns + column] = alpha * sum + beta * c[row * columns + column];
}

// One element a thread in blocks of two dimensions, x along a row.
__global__ void product_square(const float* a, const float* b, float* c, int n) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= n) return;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}

__global__ void product_scaled(const float* a, const float* b, float* c, int rows, int columns, int inner,
                               float alpha, float beta) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows || column >= columns) return;
    float sum = 0;
    for (int k = 0; k < inner; ++k) sum += a[row * inner + k] * b[k * columns + column];
    c[row * columns + column] = alpha * sum + beta * c[row * columns + column];
}

// Square tiles in shared memory, an element a thread.
template <int SIDE>
__global__ void product_tile(int rows, int columns, int inner, float alpha, const float* a, const float* b,
                             float beta, float* c) {
    __shared__ float left[SIDE * SIDE];
    __shared__ float right[SIDE * SIDE];
    const unsigned x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    a += blockIdx.x * SIDE * inner;
    b += blockIdx.y * SIDE;
    c += blockIdx.x * SIDE * columns + blockIdx.y * SIDE;
    float sum = 0;
    for (int k = 0; k < inner; k += SIDE) {
        left[y * SIDE + x] = a[y * inner + x];
        right[y * SIDE + x] = b[y * columns + x];
        __syncthreads();
        a += SIDE;
        b += SIDE * columns;
        for (int i = 0; i < SIDE; ++i) sum += left[y * SIDE + i] * right[i * SIDE + x];
        __syncthreads();
    }
    c[y * columns + x] = alpha * sum + beta * c[y * columns + x];
}

// A column of EACH elements a thread.
template <int TILE_M, int TILE_N, int TILE_K, int EACH>
__global__ void product_column(int rows, int columns, int inner, float alpha, const float* a, const float* b,
                               float beta, float* c) {
    __shared__ float left[TILE_M * TILE_K];
    __shared__ float right[TILE_K * TILE_N];
    const int x = threadIdx.x % TILE_N, y = threadIdx.x / TILE_N;
    const unsigned a_x = threadIdx.x % TILE_K, a_y = threadIdx.x / TILE_K;
    a += blockIdx.y * TILE_M * inner;
    b += blockIdx.x * TILE_N;
    c += blockIdx.y * TILE_M * columns + blockIdx.x * TILE_N;
    float sums[EACH] = {};
    for (unsigned k = 0; k < inner; k += TILE_K) {
        left[a_y * TILE_K + a_x] = a[a_y * inner + a_x];
        right[y * TILE_N + x] = b[y * columns + x];
        __syncthreads();
        a += TILE_K;
        b += TILE_K * columns;
        for (unsigned i = 0; i < TILE_K; ++i) {
            const float shared_by_all = right[i * TILE_N + x];
            for (unsigned r = 0; r < EACH; ++r) sums[r] += left[(y * EACH + r) * TILE_K + i] * shared_by_all;
        }
        __syncthreads();
    }
    for (unsigned r = 0; r < EACH; ++r) {
        float* out = c + (y * EACH + r) * columns + x;
        *out = alpha * sums[r] + beta * *out;
    }
}

// A square of EACH x EACH elements a thread; tiles are filled element by element.
template <int TILE_M, int TILE_N, int TILE_K, int EACH>
__global__ void __launch_bounds__(TILE_M * TILE_N / (EACH * EACH))
product_square_of_thread(int rows, int columns, int inner, float alpha, const float* a, const float* b, float beta,
                         float* c) {
    constexpr int THREADS = TILE_M * TILE_N / (EACH * EACH);
    __shared__ float left[TILE_M * TILE_K];
    __shared__ float right[TILE_K * TILE_N];
    const int x = threadIdx.x % (TILE_N / EACH), y = threadIdx.x / (TILE_N / EACH);
    a += blockIdx.y * TILE_M * inner;
    b += blockIdx.x * TILE_N;
    c += blockIdx.y * TILE_M * columns + blockIdx.x * TILE_N;
    const unsigned a_x = threadIdx.x % TILE_K, a_y = threadIdx.x / TILE_K;
    const unsigned b_x = threadIdx.x % TILE_N, b_y = threadIdx.x / TILE_N;
    float sums[EACH * EACH] = {}, down[EACH], along[EACH];
    for (unsigned k = 0; k < inner; k += TILE_K) {
        for (unsigned r = 0; r < TILE_M; r += THREADS / TILE_K)
            left[(a_y + r) * TILE_K + a_x] = a[(a_y + r) * inner + a_x];
        for (unsigned r = 0; r < TILE_K; r += THREADS / TILE_N)
            right[(b_y + r) * TILE_N + b_x] = b[(b_y + r) * columns + b_x];
        __syncthreads();
        a += TILE_K;
        b += TILE_K * columns;
        for (unsigned i = 0; i < TILE_K; ++i) {
            for (unsigned r = 0; r < EACH; ++r) down[r] = left[(y * EACH + r) * TILE_K + i];
            for (unsigned s = 0; s < EACH; ++s) along[s] = right[i * TILE_N + x * EACH + s];
            for (unsigned r = 0; r < EACH; ++r)
                for (unsigned s = 0; s < EACH; ++s) sums[r * EACH + s] += down[r] * along[s];
        }
        __syncthreads();
    }
    for (unsigned r = 0; r < EACH; ++r)
        for (unsigned s = 0; s < EACH; ++s) {
            float* out = c + (y * EACH + r) * columns + x * EACH + s;
            *out = alpha * sums[r * EACH + s] + beta * *out;
        }
}

__device__ inline float4 mixed(float alpha, const float* sums, float beta, float4 old) {
    return make_float4(alpha * sums[0] + beta * old.x, alpha * sums[1] + beta * old.y,
                       alpha * sums[2] + beta * old.z, alpha * sums[3] + beta * old.w);
}

// Stores of the second tile: in rows, in rows of columns apart, or in rows that are longer than the tile.
enum Layout { ROWS, INTERLEAVED, PADDED };

// The same with tiles filled by four elements at a time; the tile of a is transposed.
template <int TILE_M, int TILE_N, int TILE_K, int EACH, Layout LAYOUT>
__global__ void product_by_fours(int rows, int columns, int inner, float alpha, float* a, float* b, float beta,
                                 float* c) {
    constexpr int PITCH = LAYOUT == PADDED ? TILE_N + 5 : TILE_N;
    __shared__ float left[TILE_M * TILE_K];
    __shared__ float right[TILE_K * PITCH];
    const int x = threadIdx.x % (TILE_N / EACH), y = threadIdx.x / (TILE_N / EACH);
    a += blockIdx.y * TILE_M * inner;
    b += blockIdx.x * TILE_N;
    c += blockIdx.y * TILE_M * columns + blockIdx.x * TILE_N;
    const unsigned a_x = threadIdx.x % (TILE_K / 4), a_y = threadIdx.x / (TILE_K / 4);
    const unsigned b_x = threadIdx.x % (TILE_N / 4), b_y = threadIdx.x / (TILE_N / 4);
    float sums[EACH * EACH] = {}, down[EACH] = {}, along[EACH] = {};
    for (unsigned k = 0; k < inner; k += TILE_K) {
        float4 four = *reinterpret_cast<float4*>(a + a_y * inner + a_x * 4);
        left[(a_x * 4 + 0) * TILE_M + a_y] = four.x;
        left[(a_x * 4 + 1) * TILE_M + a_y] = four.y;
        left[(a_x * 4 + 2) * TILE_M + a_y] = four.z;
        left[(a_x * 4 + 3) * TILE_M + a_y] = four.w;
        four = *reinterpret_cast<float4*>(b + b_y * columns + b_x * 4);
        if (LAYOUT == ROWS) {
            *reinterpret_cast<float4*>(right + b_y * TILE_N + b_x * 4) = four;
        } else if (LAYOUT == INTERLEAVED) {
            float* at = right + ((b_x % 2) * 4 + b_y * 8) * 16 + b_x / 2;
            at[0] = four.x;
            at[16] = four.y;
            at[32] = four.z;
            at[48] = four.w;
        } else {
            float* at = right + b_y * PITCH + b_x * 4;
            at[0] = four.x;
            at[1] = four.y;
            at[2] = four.z;
            at[3] = four.w;
        }
        __syncthreads();
        a += TILE_K;
        b += TILE_K * columns;
        for (unsigned i = 0; i < TILE_K; ++i) {
            for (unsigned r = 0; r < EACH; ++r) down[r] = left[i * TILE_M + y * EACH + r];
            for (unsigned s = 0; s < EACH; ++s)
                along[s] = LAYOUT == INTERLEAVED ? right[(i * 8 + s) * 16 + x] : right[i * PITCH + x * EACH + s];
            for (unsigned r = 0; r < EACH; ++r)
                for (unsigned s = 0; s < EACH; ++s) sums[r * EACH + s] += down[r] * along[s];
        }
        __syncthreads();
    }
    for (unsigned r = 0; r < EACH; ++r)
        for (unsigned s = 0; s < EACH; s += 4) {
            float4* out = reinterpret_cast<float4*>(c + (y * EACH + r) * columns + x * EACH + s);
            *out = mixed(alpha, sums + r * EACH + s, beta, *out);
        }
}

// Fills both tiles by four elements at a time, with COUNT threads.
template <int TILE_M, int TILE_N, int TILE_K, int COUNT>
__device__ inline void fill(const float* a, const float* b, int inner, int columns, float* left, float* right,
                            unsigned thread) {
    constexpr unsigned A_STEP = COUNT * 4 / TILE_K, B_STEP = COUNT / (TILE_N / 4);
    const unsigned a_x = thread % (TILE_K / 4), a_y = thread / (TILE_K / 4);
    const unsigned b_x = thread % (TILE_N / 4), b_y = thread / (TILE_N / 4);
    for (unsigned r = 0; r + A_STEP <= TILE_M; r += A_STEP) {
        const float4 four = *reinterpret_cast<const float4*>(a + (a_y + r) * inner + a_x * 4);
        float* at = left + a_x * 4 * TILE_M + a_y + r;
        at[0] = four.x;
        at[TILE_M] = four.y;
        at[2 * TILE_M] = four.z;
        at[3 * TILE_M] = four.w;
    }
    for (unsigned r = 0; r + B_STEP <= TILE_K; r += B_STEP)
        *reinterpret_cast<float4*>(right + (b_y + r) * TILE_N + b_x * 4) =
            *reinterpret_cast<const float4*>(b + (b_y + r) * columns + b_x * 4);
}

// Several squares a thread, apart by 16 threads' squares; each square goes through the whole tile before the next.
template <int TILE_M, int TILE_N, int TILE_K, int EACH>
__global__ void __launch_bounds__(256)
product_squares_apart(int rows, int columns, int inner, float alpha, float* a, float* b, float beta, float* c) {
    constexpr int APART = EACH * 16, DOWN = TILE_M / APART, ALONG = TILE_N / APART;
    __shared__ float left[TILE_M * TILE_K];
    __shared__ float right[TILE_K * TILE_N];
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    a += blockIdx.y * TILE_M * inner;
    b += blockIdx.x * TILE_N;
    c += blockIdx.y * TILE_M * columns + blockIdx.x * TILE_N;
    float sums[DOWN * ALONG * EACH * EACH] = {}, down[EACH] = {}, along[EACH] = {};
    for (unsigned k = 0; k < inner; k += TILE_K) {
        fill<TILE_M, TILE_N, TILE_K, 256>(a, b, inner, columns, left, right, threadIdx.x);
        __syncthreads();
        for (unsigned p = 0; p < DOWN; ++p)
            for (unsigned q = 0; q < ALONG; ++q)
                for (unsigned i = 0; i < TILE_K; ++i) {
                    for (unsigned r = 0; r < EACH; ++r) down[r] = left[i * TILE_M + p * APART + y * EACH + r];
                    for (unsigned s = 0; s < EACH; ++s) along[s] = right[i * TILE_N + q * APART + x * EACH + s];
                    for (unsigned r = 0; r < EACH; ++r)
                        for (unsigned s = 0; s < EACH; ++s)
                            sums[(p * EACH + r) * (ALONG * EACH) + q * EACH + s] += down[r] * along[s];
                }
        __syncthreads();
        a += TILE_K;
        b += TILE_K * columns;
    }
    for (unsigned p = 0; p < DOWN; ++p)
        for (unsigned q = 0; q < ALONG; ++q)
            for (unsigned r = 0; r < EACH; ++r)
                for (unsigned s = 0; s < EACH; s += 4) {
                    float4* out = reinterpret_cast<float4*>(c + (p * APART + y * EACH + r) * columns + q * APART +
                                                            x * EACH + s);
                    *out = mixed(alpha, sums + (p * EACH + r) * (ALONG * EACH) + q * EACH + s, beta, *out);
                }
}

// The part of a block's tile that a warp computes, in SUB_M x SUB_N squares of its threads.
template <int TILE_M, int TILE_N, int TILE_K, int WARP_M, int WARP_N, int ALONG, int EACH_M, int EACH_N>
struct WarpTile {
    static constexpr int DOWN = WARP_M * WARP_N / (32 * EACH_M * EACH_N * ALONG);
    static constexpr int SUB_M = WARP_M / DOWN, SUB_N = WARP_N / ALONG;
    float sums[DOWN * EACH_M * ALONG * EACH_N] = {};
    float down[DOWN * EACH_M] = {}, along[ALONG * EACH_N] = {};
    unsigned warp_x, warp_y, x, y;

    __device__ WarpTile()
        : warp_x(threadIdx.x / 32 % (TILE_N / WARP_N)), warp_y(threadIdx.x / 32 / (TILE_N / WARP_N)),
          x(threadIdx.x % 32 % (SUB_N / EACH_N)), y(threadIdx.x % 32 / (SUB_N / EACH_N)) {}

    __device__ void multiply(const float* left, const float* right) {
        for (unsigned i = 0; i < TILE_K; ++i) {
            for (unsigned p = 0; p < DOWN; ++p)
                for (unsigned r = 0; r < EACH_M; ++r)
                    down[p * EACH_M + r] = left[i * TILE_M + warp_y * WARP_M + p * SUB_M + y * EACH_M + r];
            for (unsigned q = 0; q < ALONG; ++q)
                for (unsigned s = 0; s < EACH_N; ++s)
                    along[q * EACH_N + s] = right[i * TILE_N + warp_x * WARP_N + q * SUB_N + x * EACH_N + s];
            for (unsigned p = 0; p < DOWN * EACH_M; ++p)
                for (unsigned q = 0; q < ALONG * EACH_N; ++q) sums[p * (ALONG * EACH_N) + q] += down[p] * along[q];
        }
    }

    __device__ void store(float* c, int columns, float alpha, float beta) {
        c += (blockIdx.y * TILE_M + warp_y * WARP_M) * columns + blockIdx.x * TILE_N + warp_x * WARP_N;
        for (unsigned p = 0; p < DOWN; ++p)
            for (unsigned q = 0; q < ALONG; ++q)
                for (unsigned r = 0; r < EACH_M; ++r)
                    for (unsigned s = 0; s < EACH_N; s += 4) {
                        float4* out = reinterpret_cast<float4*>(c + (p * SUB_M + y * EACH_M + r) * columns +
                                                                q * SUB_N + x * EACH_N + s);
                        *out = mixed(alpha, sums + (p * EACH_M + r) * (ALONG * EACH_N) + q * EACH_N + s, beta, *out);
                    }
    }
};

template <int TILE_M, int TILE_N, int TILE_K, int WARP_M, int WARP_N, int ALONG, int EACH_M, int EACH_N, int THREADS>
__global__ void __launch_bounds__(THREADS)
product_warp_tile(int rows, int columns, int inner, float alpha, float* a, float* b, float beta, float* c) {
    __shared__ float left[TILE_M * TILE_K];
    __shared__ float right[TILE_K * TILE_N];
    WarpTile<TILE_M, TILE_N, TILE_K, WARP_M, WARP_N, ALONG, EACH_M, EACH_N> tile;
    a += blockIdx.y * TILE_M * inner;
    b += blockIdx.x * TILE_N;
    for (unsigned k = 0; k < inner; k += TILE_K) {
        fill<TILE_M, TILE_N, TILE_K, THREADS>(a, b, inner, columns, left, right, threadIdx.x);
        __syncthreads();
        tile.multiply(left, right);
        a += TILE_K;
        b += TILE_K * columns;
        __syncthreads();
    }
    tile.store(c, columns, alpha, beta);
}

// Two pairs of tiles; half of the threads fill one while the other half multiplies, at barriers of different places.
template <int TILE_M, int TILE_N, int TILE_K, int WARP_M, int WARP_N, int ALONG, int EACH_M, int EACH_N, int THREADS>
__global__ void __launch_bounds__(THREADS)
product_two_buffers(int rows, int columns, int inner, float alpha, float* a, float* b, float beta, float* c) {
    __shared__ float left[2 * TILE_M * TILE_K];
    __shared__ float right[2 * TILE_K * TILE_N];
    constexpr int HALF = THREADS / 2;
    WarpTile<TILE_M, TILE_N, TILE_K, WARP_M, WARP_N, ALONG, EACH_M, EACH_N> tile;
    const bool second = threadIdx.x >= HALF;
    a += blockIdx.y * TILE_M * inner;
    b += blockIdx.x * TILE_N;
    auto load = [&](int tiles, int buffer) {
        fill<TILE_M, TILE_N, TILE_K, HALF>(a + tiles * TILE_K, b + tiles * TILE_K * columns, inner, columns,
                                           left + buffer * TILE_M * TILE_K, right + buffer * TILE_K * TILE_N,
                                           threadIdx.x % HALF);
    };
    if (!second) load(0, 0);
    __syncthreads();
    for (unsigned k = 0; k < inner; k += 2 * TILE_K) {
        if (!second) {
            tile.multiply(left, right);
            __syncthreads();
            if (k + TILE_K < inner) tile.multiply(left + TILE_M * TILE_K, right + TILE_K * TILE_N);
            __syncthreads();
            if (k + 2 * TILE_K < inner) load(2, 0);
        } else {
            if (k + TILE_K < inner) load(1, 1);
            __syncthreads();
            tile.multiply(left, right);
            __syncthreads();
            if (k + TILE_K < inner) tile.multiply(left + TILE_M * TILE_K, right + TILE_K * TILE_N);
        }
        a += 2 * TILE_K;
        b += 2 * TILE_K * columns;
        __syncthreads();
    }
    tile.store(c, columns, alpha, beta);
}
