// Numbers as they are stored (bf16, f16, f32), read and written as f32, eight at a time where their place allows.
#pragma once
#include "device.cuh"

/// f32, beside Bf16 and F16.
struct F32 {};

template <typename T>
struct Element {
    typedef u16 Stored;
    static DEVICE float load(const u16* at) { return T::widen(*at); }
    static DEVICE void store(u16* at, float x) { *at = narrow<T>(x); }
    static DEVICE void load8(const u16* at, float (&x)[8]) { widen8<T>(*(const Bytes16*)at, x); }
    static DEVICE void store8(u16* at, const float (&x)[8]) { *(Bytes16*)at = narrow8<T>(x); }
};

template <>
struct Element<F32> {
    typedef float Stored;
    static DEVICE float load(const float* at) { return *at; }
    static DEVICE void store(float* at, float x) { *at = x; }
    static DEVICE void load8(const float* at, float (&x)[8]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Bytes16 four = ((const Bytes16*)at)[i];
            x[4 * i] = float_of_bits(four.x);
            x[4 * i + 1] = float_of_bits(four.y);
            x[4 * i + 2] = float_of_bits(four.z);
            x[4 * i + 3] = float_of_bits(four.w);
        }
    }
    static DEVICE void store8(float* at, const float (&x)[8]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            ((Bytes16*)at)[i] = Bytes16{bits_of_float(x[4 * i]), bits_of_float(x[4 * i + 1]), bits_of_float(x[4 * i + 2]),
                                        bits_of_float(x[4 * i + 3])};
        }
    }
};

template <typename T>
using Stored = typename Element<T>::Stored;

/// The `count` (1 and more) numbers at `at`, at most eight, zeros after them. `aligned` says that the address is a multiple
/// of 16 bytes.
template <typename T>
DEVICE void load_some(const Stored<T>* at, u32 count, bool aligned, float (&x)[8]) {
    if (aligned && count >= 8) {
        Element<T>::load8(at, x);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] = i < count ? Element<T>::load(at + i) : 0.0f;
}

/// The same of two places: where both are aligned, both loads are under way before either is used.
template <typename T>
DEVICE void load_both(const Stored<T>* a, const Stored<T>* b, u32 count, bool aligned, float (&x)[8], float (&y)[8]) {
    if (aligned && count >= 8) {
        Element<T>::load8(a, x);
        Element<T>::load8(b, y);
        return;
    }
    load_some<T>(a, count, false, x);
    load_some<T>(b, count, false, y);
}

/// Writes the first `count` of eight numbers, at most all.
template <typename T>
DEVICE void store_some(Stored<T>* at, u32 count, bool aligned, const float (&x)[8]) {
    if (aligned && count >= 8) {
        Element<T>::store8(at, x);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        if (i < count) Element<T>::store(at + i, x[i]);
    }
}

/// a / b: in 32 bits where that holds, which a GPU divides much faster.
DEVICE u64 quotient(u64 a, u32 b) { return a >> 32 ? a / b : (u64)((u32)a / b); }

/// Number of runs of eight in a row of `dim` numbers, the last one perhaps shorter.
DEVICE u32 eighths(u32 dim) { return (dim + 7) / 8; }

/// Instances of a kernel for the three types: DEFINE(Type, suffix).
#define FOR_EACH_TYPE(DEFINE) DEFINE(Bf16, bf16) DEFINE(F16, f16) DEFINE(F32, f32)
