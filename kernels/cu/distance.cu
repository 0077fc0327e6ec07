// The squared distance of rows: out[row] = sum over i of (a[row][i] - b[row][i])^2, in f32.
#include "elements.cuh"

/// One warp a row.
template <typename T>
DEVICE void distance(float* out, const Stored<T>* a, const Stored<T>* b, u32 rows, u32 dim, bool aligned) {
    const u64 row = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= rows) return;  // a whole warp
    const u64 start = row * dim;
    float squares = 0.0f;
    for (u32 i = lane_id() * 8; i < dim; i += 32 * 8) {
        float x[8], y[8];
        load_some<T>(a + start + i, dim - i, aligned, x);
        load_some<T>(b + start + i, dim - i, aligned, y);
#pragma unroll
        for (int e = 0; e < 8; e++) squares += (x[e] - y[e]) * (x[e] - y[e]);
    }
    squares = warp_sum(squares);
    if (lane_id() == 0) out[row] = squares;
}

#define DEFINE(T, suffix)                                                                                              \
    KERNEL(256, 1)                                                                                                     \
    distance_##suffix(float* out, const Stored<T>* a, const Stored<T>* b, u32 rows, u32 dim, u32 aligned) {            \
        distance<T>(out, a, b, rows, dim, aligned);                                                                    \
    }                                                                                                                  \
    EXPORT(distance_##suffix)
FOR_EACH_TYPE(DEFINE)
