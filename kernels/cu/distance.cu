// The distance of rows, in f32: out[row] = sum over i of (a[row][i] - b[row][i])^2, or of |a[row][i] - b[row][i]|.
#include "elements.cuh"

/// One warp a row.
template <typename T>
DEVICE void distance(float* out, const Stored<T>* a, const Stored<T>* b, u32 rows, u32 dim, bool aligned, bool absolute) {
    const u64 row = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= rows) return;  // a whole warp
    const u64 start = row * dim;
    float sum = 0.0f;
    for (u32 i = lane_id() * 8; i < dim; i += 32 * 8) {
        float x[8], y[8];
        load_some<T>(a + start + i, dim - i, aligned, x);
        load_some<T>(b + start + i, dim - i, aligned, y);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float apart = x[e] - y[e];
            sum += !absolute ? apart * apart : apart < 0.0f ? -apart : apart;
        }
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) out[row] = sum;
}

#define DEFINE(T, suffix)                                                                                              \
    KERNEL(256, 1)                                                                                                     \
    distance_##suffix(float* out, const Stored<T>* a, const Stored<T>* b, u32 rows, u32 dim, u32 aligned,              \
                      u32 absolute) {                                                                                  \
        distance<T>(out, a, b, rows, dim, aligned, absolute);                                                          \
    }                                                                                                                  \
    EXPORT(distance_##suffix)
FOR_EACH_TYPE(DEFINE)
