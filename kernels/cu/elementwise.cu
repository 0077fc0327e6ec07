// One number from one or two: the gated activation, sums, a bias for every row, factors, and changes of type. Eight numbers a thread.
#include "elements.cuh"

struct SiluMul {
    DEVICE float of(float gate, float up) const { return gate * reciprocal_fast(1.0f + exp2_fast(-LOG2_E * gate)) * up; }
};

/// GELU's tanh form: (1 + tanh(y)) / 2 is 1 / (1 + e^(-2y)), and y is sqrt(2/pi) (gate + 0.044715 gate^3).
struct GeluMul {
    DEVICE float of(float gate, float up) const {
        const float power = exp2_fast(-LOG2_E * 1.5957691216057308f * gate * (1.0f + 0.044715f * gate * gate));
        return gate * reciprocal_fast(1.0f + power) * up;
    }
};

/// The comparisons with a NaN are false, so that it comes through.
struct ClampedSiluMul {
    float limit;
    DEVICE float of(float gate, float up) const {
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up;
        up = up < -limit ? -limit : up;
        return gate * reciprocal_fast(1.0f + exp2_fast(-LOG2_E * 1.702f * gate)) * (up + 1.0f);
    }
};

struct Sum {
    DEVICE float of(float a, float b) const { return a + b; }
};

/// out [rows, dim] from a and b, whose rows begin `a_stride` and `b_stride` numbers apart.
template <typename T, typename Operation>
DEVICE void two(Stored<T>* out, const Stored<T>* a, const Stored<T>* b, u32 rows, u32 dim, u64 a_stride, u64 b_stride,
                bool aligned, const Operation& operation) {
    const u32 runs = eighths(dim);
    const u64 run = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 row = quotient(run, runs);
    if (row >= rows) return;
    const u32 i = (u32)(run - row * runs) * 8;
    float x[8], y[8];
    load_both<T>(a + row * a_stride + i, b + row * b_stride + i, dim - i, aligned, x, y);
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = operation.of(x[e], y[e]);
    store_some<T>(out + row * dim + i, dim - i, aligned, x);
}

/// out [rows, dim] = bias [dim], or x + bias where x is given. With `list` [rows] there are more biases, and row i has that of
/// number list[i].
template <typename T>
DEVICE void bias_rows(Stored<T>* out, const Stored<T>* x, const float* bias, u32 rows, u32 dim, bool aligned, const u32* list) {
    const u32 runs = eighths(dim);
    const u64 run = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 row = quotient(run, runs);
    if (row >= rows) return;
    const u32 i = (u32)(run - row * runs) * 8;
    if (list) bias += (u64)list[row] * dim;
    float values[8], more[8];
    load_some<F32>(bias + i, dim - i, aligned, values);
    if (x) {
        load_some<T>(x + row * dim + i, dim - i, aligned, more);
#pragma unroll
        for (int e = 0; e < 8; e++) values[e] += more[e];
    }
    store_some<T>(out + row * dim + i, dim - i, aligned, values);
}

/// out [rows, dim] = factor * x, and times factors [rows] where they are given.
template <typename T>
DEVICE void scale(Stored<T>* out, const Stored<T>* x, const float* factors, u32 rows, u32 dim, float factor, bool aligned) {
    const u32 runs = eighths(dim);
    const u64 run = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 row = quotient(run, runs);
    if (row >= rows) return;
    const u32 i = (u32)(run - row * runs) * 8;
    if (factors) factor *= factors[row];
    float values[8];
    load_some<T>(x + row * dim + i, dim - i, aligned, values);
#pragma unroll
    for (int e = 0; e < 8; e++) values[e] *= factor;
    store_some<T>(out + row * dim + i, dim - i, aligned, values);
}

template <typename From, typename To>
DEVICE void cast(Stored<To>* out, const Stored<From>* x, u64 count, bool aligned) {
    const u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= count) return;
    const u32 here = count - i < 8 ? (u32)(count - i) : 8;
    float values[8];
    load_some<From>(x + i, here, aligned, values);
    store_some<To>(out + i, here, aligned, values);
}

#define DEFINE_TWO(T, suffix)                                                                                              \
    KERNEL(256, 1)                                                                                                         \
    silu_mul_##suffix(Stored<T>* out, const Stored<T>* a, const Stored<T>* b, u32 rows, u32 dim, u64 a_stride,             \
                      u64 b_stride, u32 aligned) {                                                                         \
        two<T>(out, a, b, rows, dim, a_stride, b_stride, aligned, SiluMul{});                                              \
    }                                                                                                                      \
    EXPORT(silu_mul_##suffix)                                                                                              \
    KERNEL(256, 1)                                                                                                         \
    gelu_mul_##suffix(Stored<T>* out, const Stored<T>* a, const Stored<T>* b, u32 rows, u32 dim, u64 a_stride,             \
                      u64 b_stride, u32 aligned) {                                                                         \
        two<T>(out, a, b, rows, dim, a_stride, b_stride, aligned, GeluMul{});                                              \
    }                                                                                                                      \
    EXPORT(gelu_mul_##suffix)                                                                                              \
    KERNEL(256, 1)                                                                                                         \
    clamped_silu_mul_##suffix(Stored<T>* out, const Stored<T>* a, const Stored<T>* b, u32 rows, u32 dim, u64 a_stride,     \
                              u64 b_stride, u32 aligned, float limit) {                                                    \
        two<T>(out, a, b, rows, dim, a_stride, b_stride, aligned, ClampedSiluMul{limit});                                  \
    }                                                                                                                      \
    EXPORT(clamped_silu_mul_##suffix)                                                                                      \
    KERNEL(256, 1)                                                                                                         \
    add_##suffix(Stored<T>* out, const Stored<T>* a, const Stored<T>* b, u32 rows, u32 dim, u64 a_stride, u64 b_stride,    \
                 u32 aligned) {                                                                                            \
        two<T>(out, a, b, rows, dim, a_stride, b_stride, aligned, Sum{});                                                  \
    }                                                                                                                      \
    EXPORT(add_##suffix)                                                                                                   \
    KERNEL(256, 1)                                                                                                         \
    bias_rows_##suffix(Stored<T>* out, const Stored<T>* x, const float* bias, u32 rows, u32 dim, u32 aligned,              \
                       const u32* list) {                                                                                  \
        bias_rows<T>(out, x, bias, rows, dim, aligned, list);                                                              \
    }                                                                                                                      \
    EXPORT(bias_rows_##suffix)                                                                                             \
    KERNEL(256, 1)                                                                                                         \
    scale_##suffix(Stored<T>* out, const Stored<T>* x, const float* factors, u32 rows, u32 dim, float factor,              \
                   u32 aligned) {                                                                                          \
        scale<T>(out, x, factors, rows, dim, factor, aligned);                                                             \
    }                                                                                                                      \
    EXPORT(scale_##suffix)
FOR_EACH_TYPE(DEFINE_TWO)

#define DEFINE_CAST(From, from, To, to)                                                                       \
    KERNEL(256, 1) cast_##from##_##to(Stored<To>* out, const Stored<From>* x, u64 count, u32 aligned) { \
        cast<From, To>(out, x, count, aligned);                                                               \
    }                                                                                                         \
    EXPORT(cast_##from##_##to)
DEFINE_CAST(Bf16, bf16, F32, f32)
DEFINE_CAST(F16, f16, F32, f32)
DEFINE_CAST(F32, f32, Bf16, bf16)
DEFINE_CAST(F32, f32, F16, f16)
DEFINE_CAST(Bf16, bf16, F16, f16)
DEFINE_CAST(F16, f16, Bf16, bf16)
