// Uniform random numbers from ChaCha with 8 rounds (Bernstein 2008): the words that the host's generator gives for the same key,
// in the same order, and the same floats from them. A thread makes one block of 16 words from its number.
//
// Out: spread * (word * 2^-31 - 1), rounded once to f32 and once to the type. Everything before the product with the spread is
// exact, so a fused multiply-add gives the same bits.

#include "device.cuh"

struct Key {
    u32 words[8];
};

DEVICE u32 rotated(u32 x, int bits) { return (x << bits) | (x >> (32 - bits)); }

DEVICE void quarter_round(u32& a, u32& b, u32& c, u32& d) {
    a += b;
    d = rotated(d ^ a, 16);
    c += d;
    b = rotated(b ^ c, 12);
    a += b;
    d = rotated(d ^ a, 8);
    c += d;
    b = rotated(b ^ c, 7);
}

/// Block `number` of the stream of a key.
DEVICE void chacha8(const Key& key, u64 number, u32 (&out)[16]) {
    const u32 begin[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, key.words[0], key.words[1],
                           key.words[2], key.words[3], key.words[4], key.words[5], key.words[6], key.words[7],
                           (u32)number, (u32)(number >> 32), 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++) out[i] = begin[i];
#pragma unroll
    for (int round = 0; round < 8; round += 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) quarter_round(out[i], out[4 + i], out[8 + i], out[12 + i]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            quarter_round(out[i], out[4 + (i + 1) % 4], out[8 + (i + 2) % 4], out[12 + (i + 3) % 4]);
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) out[i] += begin[i];
}

/// f32 as it is.
struct F32 {
    typedef float Stored;
    static DEVICE float stored(float x) { return x; }
};

/// A 16-bit type.
template <typename T>
struct Short {
    typedef u16 Stored;
    static DEVICE u16 stored(float x) { return narrow<T>(x); }
};

template <typename T>
DEVICE void fill(typename T::Stored* out, u64 count, float spread, const Key& key) {
    const u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 first = 16 * block;
    if (first >= count) return;
    u32 words[16];
    chacha8(key, block, words);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (first + i < count) out[first + i] = T::stored(spread * ((float)words[i] * (1.0f / 2147483648.0f) - 1.0f));
    }
}

KERNEL(256, 1) fill_bf16(u16* out, u64 count, float spread, ARGUMENT Key key) { fill<Short<Bf16>>(out, count, spread, key); }
EXPORT(fill_bf16)

KERNEL(256, 1) fill_f16(u16* out, u64 count, float spread, ARGUMENT Key key) { fill<Short<F16>>(out, count, spread, key); }
EXPORT(fill_f16)

KERNEL(256, 1) fill_f32(float* out, u64 count, float spread, ARGUMENT Key key) { fill<F32>(out, count, spread, key); }
EXPORT(fill_f32)
