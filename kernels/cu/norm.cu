// RMS norm of rows: x / sqrt(mean(x^2) + eps) * weight, in f32 inside. Weights are f32.
#include "elements.cuh"

/// One block a row of up to 512 * 8 * RUNS numbers: a thread keeps RUNS runs of eight. What it will need of the weights is on its way before
/// it waits for the others.
template <typename T, int RUNS>
DEVICE void norm_long(Stored<T>* out, const Stored<T>* x, const float* weight, u32 dim, float eps, bool aligned) {
    __shared__ float warps[32];
    const u64 start = (u64)blockIdx.x * dim;
    float kept[RUNS][8], scale[RUNS][8];
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
        const u32 i = (k * blockDim.x + threadIdx.x) * 8;
        if (i >= dim) continue;
        load_some<T>(x + start + i, dim - i, aligned, kept[k]);
        load_some<F32>(weight + i, dim - i, aligned, scale[k]);
    }
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
        if ((k * blockDim.x + threadIdx.x) * 8 >= dim) continue;
#pragma unroll
        for (int e = 0; e < 8; e++) squares += kept[k][e] * kept[k][e];
    }
    squares = warp_sum(squares);
    if (lane_id() == 0) warps[threadIdx.x / 32] = squares;
    sync_block();
    float total = 0.0f;
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) total += warps[warp];
    const float factor = reciprocal_sqrt(total / (float)dim + eps);
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
        const u32 i = (k * blockDim.x + threadIdx.x) * 8;
        if (i >= dim) continue;
#pragma unroll
        for (int e = 0; e < 8; e++) kept[k][e] *= factor * scale[k][e];
        store_some<T>(out + start + i, dim - i, aligned, kept[k]);
    }
}

/// Rows of up to 256 numbers (heads): `lanes` threads each, a power of two up to 32.
template <typename T>
DEVICE void norm_short(Stored<T>* out, const Stored<T>* x, const float* weight, u32 rows, u32 dim, u32 lanes, float eps,
                       bool aligned) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 row = thread / lanes;
    const u32 i = (u32)(thread % lanes) * 8;
    const bool here = row < rows && i < dim;
    float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (here) load_some<T>(x + row * dim + i, dim - i, aligned, values);
    float squares = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; e++) squares += values[e] * values[e];
    for (u32 step = lanes / 2; step > 0; step /= 2) squares += shuffle_xor(squares, (int)step);
    if (!here) return;
    const float factor = reciprocal_sqrt(squares / (float)dim + eps);
    float scale[8];
    load_some<F32>(weight + i, dim - i, aligned, scale);
#pragma unroll
    for (int e = 0; e < 8; e++) values[e] *= factor * scale[e];
    store_some<T>(out + row * dim + i, dim - i, aligned, values);
}

// The fewer registers a thread has, the more blocks stand on a multiprocessor, and the more loads are under way.
#define DEFINE_LONG(T, suffix, RUNS, BLOCKS)                                                                                  \
    KERNEL(512, BLOCKS)                                                                                                       \
    rms_norm_##RUNS##_##suffix(Stored<T>* out, const Stored<T>* x, const float* weight, u32 dim, float eps, u32 aligned) {    \
        norm_long<T, RUNS>(out, x, weight, dim, eps, aligned);                                                                \
    }                                                                                                                         \
    EXPORT(rms_norm_##RUNS##_##suffix)

#define DEFINE(T, suffix)                                                                                                     \
    DEFINE_LONG(T, suffix, 1, 3)                                                                                              \
    DEFINE_LONG(T, suffix, 2, 2)                                                                                              \
    DEFINE_LONG(T, suffix, 4, 1)                                                                                              \
    KERNEL(256, 1)                                                                                                            \
    rms_norm_heads_##suffix(Stored<T>* out, const Stored<T>* x, const float* weight, u32 rows, u32 dim, u32 lanes,            \
                            float eps, u32 aligned) {                                                                         \
        norm_short<T>(out, x, weight, rows, dim, lanes, eps, aligned);                                                        \
    }                                                                                                                         \
    EXPORT(rms_norm_heads_##suffix)
FOR_EACH_TYPE(DEFINE)
