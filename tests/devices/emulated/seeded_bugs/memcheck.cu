// case: tail without a guard
// launch: k[4, 256](x, y, i32(1000))
// tensors: x=f32[1000] y=f32[1000]
// finds: out-of-bounds
__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef BUG
    y[i] = 2 * x[i];
#else
    if (i < n) y[i] = 2 * x[i];
#endif
}

// case: guard off by one
// launch: k[1, 128](x, y, i32(100))
// tensors: x=f32[100] y=f32[100]
// finds: out-of-bounds
__global__ void k(const float* x, float* y, int n) {
    int i = threadIdx.x;
#ifdef BUG
    if (i <= n) y[i] = x[i];
#else
    if (i < n) y[i] = x[i];
#endif
}

// case: halo read before the first row
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: out-of-bounds
__global__ void k(const float* x, float* y) {
    int i = threadIdx.x;
#ifdef BUG
    y[i] = x[i] - x[i - 1];
#else
    y[i] = x[i] - (i > 0 ? x[i - 1] : 0.0f);
#endif
}

// case: vector load of a row whose length is odd
// launch: k[3, 8](x, y, i32(30))
// tensors: x=f32[3,30] y=f32[3,30]
// finds: misaligned
__global__ void k(const float* x, float* y, int d) {
    const float* row = x + blockIdx.x * d;
    float* out = y + blockIdx.x * d;
#ifdef BUG
    for (int i = threadIdx.x; i < d / 4; i += blockDim.x) ((float4*)out)[i] = ((const float4*)row)[i];
#else
    for (int i = threadIdx.x; i < d; i += blockDim.x) out[i] = row[i];
#endif
}

// case: vector load past the end
// launch: k[1, 32](x, y, i32(126))
// tensors: x=f32[126] y=f32[126]
// finds: out-of-bounds
__global__ void k(const float* x, float* y, int n) {
    int i = threadIdx.x * 4;
#ifdef BUG
    if (i < n) *(float4*)(y + i) = *(const float4*)(x + i);
#else
    if (i + 3 < n) *(float4*)(y + i) = *(const float4*)(x + i);
    else for (int j = i; j < n; j++) y[j] = x[j];
#endif
}

// case: rows and columns swapped
// launch: k[(2, 1), (32, 32)](x, y, i32(20), i32(50))
// tensors: x=f32[20,50] y=f32[20,50]
// finds: out-of-bounds
__global__ void k(const float* x, float* y, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = threadIdx.y;
#ifdef BUG
    if (c < columns && r < columns) y[r * columns + c] = x[r * columns + c];
#else
    if (c < columns && r < rows) y[r * columns + c] = x[r * columns + c];
#endif
}

// case: shared array too short for its block
// launch: k[1, 128](x, y)
// tensors: x=f32[128] y=f32[128]
// finds: out-of-bounds
__global__ void k(const float* x, float* y) {
#ifdef BUG
    __shared__ float s[64];
#else
    __shared__ float s[128];
#endif
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[127 - threadIdx.x];
}

// case: dynamic shared memory asked for in elements
// launch: k[1, 64, 256](x, y)
// buggy: k[1, 64, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: out-of-bounds
__global__ void k(const float* x, float* y) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
}

// case: negative index of a gather
// launch: k[1, 32](x, y)
// tensors: x=f32[32] y=f32[32]
// finds: out-of-bounds
__global__ void k(const float* x, float* y) {
    int i = threadIdx.x;
#ifdef BUG
    y[i] = x[(i - 16) % 32];
#else
    y[i] = x[(i + 16) % 32];
#endif
}

// case: 32-bit product of extents
// launch: k[1, 32](x, y, i32(65536))
// tensors: x=f32[64] y=f32[64]
// finds: out-of-bounds
__global__ void k(const float* x, float* y, int d) {
#ifdef BUG
    int at = (threadIdx.x + 1) * d * d / d / d - 1;
#else
    int at = (int)((threadIdx.x + 1) * (long long)d * d / d / d - 1);
#endif
    y[threadIdx.x] = x[at];
}

// case: a write to a variable of the module
// launch: k[1, 32](x)
// tensors: x=f32[32]
// finds: read-only
__device__ float table[32] = {1.0f};
__global__ void k(float* x) {
#ifdef BUG
    table[threadIdx.x] = x[threadIdx.x];
#endif
    x[threadIdx.x] = table[threadIdx.x];
}

// case: local array indexed past its end
// launch: k[1, 32](x, y)
// tensors: x=i32[32]:arange y=f32[32]
// finds: out-of-bounds
__global__ void k(const int* x, float* y) {
    float a[8];
    for (int i = 0; i < 8; i++) a[i] = i;
#ifdef BUG
    int at = x[threadIdx.x] * 4096;
#else
    int at = x[threadIdx.x] % 8;
#endif
    a[at] = 1.0f;
    y[threadIdx.x] = a[x[31 - threadIdx.x] % 8];
}

// case: shared address used as a global one
// launch: k[1, 32](x)
// tensors: x=f32[32]
// finds: out-of-bounds
__global__ void k(float* x) {
    __shared__ float s[32];
    s[threadIdx.x] = 1.0f;
    float value;
#ifdef BUG
    unsigned long long at = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(at));
#else
    unsigned at = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at));
#endif
    x[threadIdx.x] = value;
}

// case: atomic on an element that is not there
// launch: k[1, 64](x, y)
// tensors: x=i32[64]:uniform y=i32[16]:zeros
// finds: out-of-bounds
__global__ void k(const int* x, int* y) {
#ifdef BUG
    atomicAdd(y + x[threadIdx.x] + 8, 1);
#else
    atomicAdd(y + x[threadIdx.x], 1);
#endif
}

// case: division by a tail of zero
// launch: k[1, 32](x, i32(64))
// tensors: x=i32[32]
// finds: division
__global__ void k(int* x, int n) {
#ifdef BUG
    x[threadIdx.x] = 7 / (n % 32);
#else
    x[threadIdx.x] = 7 / (n % 32 + 1);
#endif
}
