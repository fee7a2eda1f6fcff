// FlashAttention's forward for one head in CUDA C++, float32: a warp a query row, a lane a key.
//
// q (T, D), k and v (S, D), o (T, D), lse (T). Row i stands at position offset + i and, if causal,
// sees key j iff j <= offset + i. A row that sees no key gives 0 and -inf.
//
// A block is ROWS warps. Together they copy a tile of keys and values into shared memory, where
// each is read by all of the block's rows; then each warp updates its own row, and no warp needs
// another's result. The row's state lives in registers: m and l in every lane, a spread over the
// lanes. HEAD_DIM is fixed when this is compiled, so that every loop over it can be unrolled.

#include <cstdint>
#include <cuda_runtime.h>

constexpr int D = HEAD_DIM;
constexpr int WARP = 32;  // lanes, and so the most keys of a tile
constexpr int ROWS = 16;  // of q, in a block
constexpr int PER_LANE = (D + WARP - 1) / WARP;  // components of a: lane, lane + 32, ...
constexpr int WIDTH = PER_LANE * WARP;           // D, filled up with zeros
constexpr unsigned ALL = ~0u;  // lanes of the warp

struct Shared {
    float q[ROWS][WIDTH];
    float k[WARP][WIDTH + 1];  // odd rows: 32 lanes at one column of 32 keys use 32 banks
    float v[WARP][WIDTH];
};

struct Problem {
    const float *q, *k, *v;
    float *o, *lse;
    int64_t T, S, offset;
    int causal, tile;
    float scale;
};

// The state of one row after each of its tiles: m, l (tiles) and a (tiles, D).
struct Trace {
    int64_t row;  // -1: of no row
    float *m, *l, *a;
};

__device__ int64_t between(int64_t low, int64_t x, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

// How many keys a row sees: the first that many of S.
__device__ int64_t keys_seen(const Problem& x, int64_t row) {
    return x.causal ? between(0, x.offset + row + 1, x.S) : x.S;
}

__device__ float warp_max(float x) {
    for (int far = WARP / 2; far; far /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, far));
    return x;
}

__device__ float warp_sum(float x) {
    for (int far = WARP / 2; far; far /= 2) x += __shfl_xor_sync(ALL, x, far);
    return x;
}

// One warp copies one row of a (rows, D) matrix; what lies outside of the matrix is 0.
__device__ void copy_row(float* shared, const float* matrix, int64_t row, int64_t rows) {
    for (int e = threadIdx.x; e < WIDTH; e += WARP)
        shared[e] = row < rows && e < D ? matrix[row * D + e] : 0;
}

// One warp writes its row, each lane the components it has.
__device__ void store_row(float* row, const float* a, float divisor) {
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const int e = threadIdx.x + i * WARP;
        if (e < D) row[e] = a[i] / divisor;
    }
}

__device__ float dot(const float* x, const float* y) {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < D; ++e) sum += x[e] * y[e];
    return sum;
}

__global__ void flash_kernel(Problem x, Trace trace) {
    extern __shared__ char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int64_t first = int64_t(blockIdx.x) * ROWS, row = first + warp;
    const int64_t keys = row < x.T ? keys_seen(x, row) : 0;
    const int64_t keys_of_block = keys_seen(x, between(0, first + ROWS, x.T) - 1);

    copy_row(shared.q[warp], x.q, row, x.T);
    float m = -INFINITY, l = 0, a[PER_LANE] = {};

    for (int64_t start = 0; start < keys_of_block; start += x.tile) {
        for (int j = warp; j < x.tile; j += ROWS) {
            copy_row(shared.k[j], x.k, start + j, x.S);
            copy_row(shared.v[j], x.v, start + j, x.S);
        }
        __syncthreads();  // the tile is there

        const int seen = between(0, keys - start, x.tile);  // the first that many of the tile
        const float s = lane < seen ? dot(shared.q[warp], shared.k[lane]) * x.scale : -INFINITY;
        const float m_new = fmaxf(m, warp_max(s));
        const float reference = m_new == -INFINITY ? 0 : m_new;  // nothing seen yet
        const float alpha = expf(m - reference), p = expf(s - reference);
        m = m_new;
        l = alpha * l + warp_sum(p);
        for (float& component : a) component *= alpha;
        for (int j = 0; j < seen; ++j) {  // no further: a hidden value never matters, even NaN
            const float p_j = __shfl_sync(ALL, p, j);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) a[i] += p_j * shared.v[j][lane + i * WARP];
        }

        if (row == trace.row && start < keys) {
            const int64_t t = start / x.tile;
            if (lane == 0) trace.m[t] = m, trace.l[t] = l;
            store_row(trace.a + t * D, a, 1);
        }
        __syncthreads();  // every row is done with the tile
    }

    if (row >= x.T) return;
    store_row(x.o + row * D, a, l == 0 ? 1 : l);  // nothing was seen: 0, as a is
    if (lane == 0) x.lse[row] = m + logf(l);
}

// Start the kernel on a stream; nullptr, or what CUDA has against it.
extern "C" const char* flash_forward(Problem x, Trace trace, int device, cudaStream_t stream) {
    const unsigned blocks = (x.T + ROWS - 1) / ROWS;
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess)  // more than 48 KiB has to be asked for
        error = cudaFuncSetAttribute(flash_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     sizeof(Shared));
    if (error == cudaSuccess) {
        flash_kernel<<<blocks, dim3(WARP, ROWS), sizeof(Shared), stream>>>(x, trace);
        error = cudaGetLastError();
    }
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
