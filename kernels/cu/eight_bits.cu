// Keys and values in 8 bits: heads of `dim` numbers in E4M3, each with a byte of scale after them, the exponent of an f32. The
// same bits as those of kernels/src/cpu/eight_bits.rs.
#include "elements.cuh"

/// The byte of scale of a head whose largest magnitude has these bits.
DEVICE u32 scale_of(u32 largest) {
    const u32 exponent = largest >> 23, less = (largest & 0x007fffff) > 0x00600000 ? 7 : 8;
    return exponent == 0xff ? 0xff : exponent > less ? exponent - less : 0;
}

/// A number within 448 in E4M3, to the nearest, halves to even.
DEVICE u32 to_e4m3(float x) {
    const u32 bits = bits_of_float(x), magnitude = bits & 0x7fffffff;
    const u32 small = bits_of_float(float_of_bits(magnitude) * 512.0f + 8388608.0f) & 0xff;
    const u32 normal = ((magnitude + 0x0007ffff + (magnitude >> 20 & 1)) >> 20) - ((127 - 7) << 3);
    return (bits >> 24 & 0x80) | (magnitude < 0x3c800000 ? small : normal & 0xff);
}

/// A number in E4M3.
DEVICE float from_e4m3(u32 code) {
    const u32 magnitude = code & 0x7f, sign = (code & 0x80) << 24;
    const float small = (float)magnitude * 0.001953125f;  // 2^-9
    return float_of_bits(sign | (magnitude < 8 ? bits_of_float(small) : (magnitude << 20) + ((127 - 7) << 23)));
}

/// One warp a head.
template <typename T>
DEVICE void pack(u8* out, const Stored<T>* x, u32 heads, u32 dim) {
    const u64 head = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (head >= heads) return;  // a whole warp
    x += head * dim;
    out += head * (dim + 1);
    u32 largest = 0;
    for (u32 i = lane_id(); i < dim; i += 32) {
        const u32 magnitude = bits_of_float(Element<T>::load(x + i)) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    for (u32 apart = 16; apart > 0; apart /= 2) {
        const u32 other = shuffle_xor(largest, (int)apart);
        largest = other > largest ? other : largest;
    }
    const u32 scale = scale_of(largest), half = (254 - scale) / 2;
    // The reciprocal of the scale, in two factors.
    const float a = float_of_bits((half + 63) << 23), b = float_of_bits((254 - scale - half + 64) << 23);
    for (u32 i = lane_id(); i < dim; i += 32) {
        // The number 1 times an infinite scale is infinite.
        out[i] = (u8)(scale == 0 ? 0 : scale == 0xff ? to_e4m3(1.0f) : to_e4m3(Element<T>::load(x + i) * a * b));
    }
    if (lane_id() == 0) out[dim] = (u8)scale;
}

/// One number a thread.
template <typename T>
DEVICE void unpack(Stored<T>* out, const u8* packed, u32 heads, u32 dim) {
    const u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x, head = number / dim;
    if (head >= heads) return;
    const u8* from = packed + head * (dim + 1);
    const float scale = float_of_bits((u32)from[dim] << 23);
    Element<T>::store(out + number, from_e4m3(from[number - head * dim]) * scale);
}

#define DEFINE(T, suffix)                                                                                              \
    KERNEL(256, 1)                                                                                                     \
    to_eight_bits_##suffix(u8* out, const Stored<T>* x, u32 heads, u32 dim) { pack<T>(out, x, heads, dim); }           \
    EXPORT(to_eight_bits_##suffix)                                                                                     \
    KERNEL(256, 1)                                                                                                     \
    from_eight_bits_##suffix(Stored<T>* out, const u8* packed, u32 heads, u32 dim) { unpack<T>(out, packed, heads, dim); } \
    EXPORT(from_eight_bits_##suffix)
FOR_EACH_TYPE(DEFINE)
