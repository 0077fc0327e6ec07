// Packed matrices, in blocks as kernels/src/packing.rs has them: unpacked to numbers, or multiplied with few rows as they are. The
// numbers are those of kernels/src/cpu/blocks.rs. Eight numbers are unpacked at a time: they have one scale and one offset.
#include "elements.cuh"

/// Two bytes at a multiple of two.
DEVICE u16 load_u16(const u8* at) { return *(const u16*)at; }

/// Eight bytes, of which the first is at a multiple of `Step` bytes.
template <u32 Step>
DEVICE void load_bytes(const u8* at, u32 (&x)[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; i += Step) {
        u32 word = at[i];
        if constexpr (Step == 2) word = load_u16(at + i);
        if constexpr (Step == 4) word = *(const u32*)(at + i);
#pragma unroll
        for (u32 j = 0; j < Step; j++) x[i + j] = word >> (8 * j) & 0xff;
    }
}

DEVICE u32 load_u32(const u8* at) { return at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24; }
/// An f16 at a multiple of two bytes.
DEVICE float load_half(const u8* at) { return f16_to_f32(load_u16(at)); }
DEVICE float load_float(const u8* at) { return float_of_bits(load_u32(at)); }
DEVICE float of_signed(u32 byte) { return (float)(int)(signed char)byte; }

DEVICE void affine(const u32 (&codes)[8], float scale, float offset, float (&x)[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] = (float)codes[i] * scale + offset;
}

/// The numbers of codes times a scale.
template <float (*Of)(u32)>
DEVICE void scaled(const u32 (&codes)[8], float scale, float (&x)[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] = Of(codes[i]) * scale;
}

/// Codes of four bits, from number `first` of 32 on: the low halves of 16 bytes come before the high ones.
template <u32 Step>
DEVICE void nibbles(const u8* bytes, u32 first, u32 (&codes)[8]) {
    load_bytes<Step>(bytes + first % 16, codes);
#pragma unroll
    for (u32 i = 0; i < 8; i++) codes[i] = codes[i] >> (first & 16 ? 4 : 0) & 15;
}

/// Puts bit `bit` of each of eight bytes before its code of `width` bits.
template <u32 Step>
DEVICE void join_bits(const u8* bytes, u32 bit, u32 width, u32 (&codes)[8]) {
    u32 more[8];
    load_bytes<Step>(bytes, more);
#pragma unroll
    for (u32 i = 0; i < 8; i++) codes[i] |= (more[i] >> bit & 1) << width;
}

/// Blocks of 32 codes of four or five bits with a scale, and with an offset where it is not some number of scales.
template <u32 Bytes, u32 Step, bool Fifth, bool Offset>
struct Simple {
    static constexpr u32 BYTES = Bytes, NUMBERS = 32;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        constexpr u32 BITS = Offset ? 4 : 2;
        u32 codes[8];
        nibbles<Step>(block + BITS + (Fifth ? 4 : 0), first, codes);
        if constexpr (Fifth) {
            const u32 fifth = load_u32(block + BITS) >> first;
#pragma unroll
            for (u32 i = 0; i < 8; i++) codes[i] |= (fifth >> i & 1) << 4;
        }
        const float scale = load_half(block);
        affine(codes, scale, Offset ? load_half(block + 2) : (Fifth ? -16.0f : -8.0f) * scale, x);
    }
};
typedef Simple<18, 2, false, false> Q4_0;
typedef Simple<20, 4, false, true> Q4_1;
typedef Simple<22, 2, true, false> Q5_0;
typedef Simple<24, 4, true, true> Q5_1;

struct Int4 {
    static constexpr u32 BYTES = 21, NUMBERS = 32;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        u32 codes[8];
        nibbles<1>(block + 5, first, codes);
        const float scale = load_float(block);
        affine(codes, scale, -scale * (float)block[4], x);
    }
};

/// 128 codes of four bits, in runs of 32.
struct Int4G128 {
    static constexpr u32 BYTES = 72, NUMBERS = 128;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        u32 codes[8];
        nibbles<4>(block + 8 + 16 * (first / 32), first % 32, codes);
        affine(codes, load_float(block), load_float(block + 4), x);
    }
};

/// Blocks of codes of eight bits with a sign, after a scale of two or four bytes.
template <u32 Scale, u32 Numbers>
struct EightBits {
    static constexpr u32 BYTES = Scale + Numbers, NUMBERS = Numbers;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        u32 codes[8];
        load_bytes<Scale>(block + Scale + first, codes);
        scaled<of_signed>(codes, Scale == 2 ? load_half(block) : load_float(block), x);
    }
};
typedef EightBits<2, 32> Q8_0;
typedef EightBits<4, 32> Int8;
typedef EightBits<4, 128> Int8G128;

/// The number of a code of E4M3, divided by 256: in f16, with the same bits, the exponent's bias is 15 in place of 7.
DEVICE float of_e4m3(u32 code) { return f16_to_f32((u16)((code & 0x80) << 8 | (code & 0x7f) << 7)); }

template <u32 Numbers>
struct E4m3 {
    static constexpr u32 BYTES = 4 + Numbers, NUMBERS = Numbers;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        u32 codes[8];
        load_bytes<4>(block + 4 + first, codes);
        scaled<of_e4m3>(codes, load_float(block) * 256.0f, x);
    }
};
typedef E4m3<32> Fp8;
typedef E4m3<128> Fp8G128;

/// Two bits of number `first` of 256 and of the seven after it: 128 numbers lie in 32 bytes, 32 at each of four places.
template <u32 Step>
DEVICE void crumbs(const u8* bytes, u32 first, u32 (&codes)[8]) {
    load_bytes<Step>(bytes + 32 * (first / 128) + first % 32, codes);
#pragma unroll
    for (u32 i = 0; i < 8; i++) codes[i] = codes[i] >> (2 * (first % 128 / 32)) & 3;
}

struct Q2K {
    static constexpr u32 BYTES = 84, NUMBERS = 256;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        u32 codes[8];
        crumbs<4>(block + 16, first, codes);
        const u32 both = block[first / 16];
        affine(codes, load_half(block + 80) * (float)(both & 15), -load_half(block + 82) * (float)(both >> 4), x);
    }
};

struct Q3K {
    static constexpr u32 BYTES = 110, NUMBERS = 256;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        u32 codes[8];
        crumbs<2>(block + 32, first, codes);
        join_bits<2>(block + first % 32, first / 32, 2, codes);
        const u32 run = first / 16;
        const u32 low = block[96 + run % 8] >> (4 * (run / 8)) & 15, high = block[104 + run % 4] >> (2 * (run / 4)) & 3;
        const float scale = load_half(block + 108) * ((float)(low | high << 4) - 32.0f);
        affine(codes, scale, -4.0f * scale, x);
    }
};

/// Blocks of 256 codes of four or five bits: scale and offset of each of eight runs are six bits, in twelve bytes.
template <u32 Bytes, bool Fifth>
struct EightRuns {
    static constexpr u32 BYTES = Bytes, NUMBERS = 256;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        const u32 run = first / 32, of_four = run % 4;
        u32 codes[8];
        load_bytes<4>(block + (Fifth ? 48 : 16) + 32 * (run / 2) + first % 32, codes);
#pragma unroll
        for (u32 i = 0; i < 8; i++) codes[i] = codes[i] >> (4 * (run % 2)) & 15;
        if constexpr (Fifth) join_bits<4>(block + 16 + first % 32, run, 4, codes);
        const u32 one = block[4 + of_four], other = block[8 + of_four], both = block[12 + of_four];
        const u32 scale = run < 4 ? one & 63 : (both & 15) | one >> 6 << 4;
        const u32 least = run < 4 ? other & 63 : both >> 4 | other >> 6 << 4;
        affine(codes, load_half(block) * (float)scale, -load_half(block + 2) * (float)least, x);
    }
};
typedef EightRuns<144, false> Q4K;
typedef EightRuns<176, true> Q5K;

struct Q6K {
    static constexpr u32 BYTES = 210, NUMBERS = 256;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        const u32 part = first / 128, place = first % 128 / 32;
        u32 codes[8], high[8];
        load_bytes<2>(block + 64 * part + 32 * (place % 2) + first % 32, codes);
        load_bytes<2>(block + 128 + 32 * part + first % 32, high);
#pragma unroll
        for (u32 i = 0; i < 8; i++) codes[i] = (codes[i] >> (4 * (place / 2)) & 15) | (high[i] >> (2 * place) & 3) << 4;
        const float scale = load_half(block + 208) * of_signed(block[192 + first / 16]);
        affine(codes, scale, -32.0f * scale, x);
    }
};

/// The number of a code of four bits that are not evenly apart: bytes of two words.
DEVICE float uneven(u32 code) {
    const u64 low = 0xf6eaddcfbfad9881ull, high = 0x7159453526190d01ull;
    return of_signed((u32)((code & 8 ? high : low) >> (8 * (code & 7))) & 0xff);
}

struct Iq4Nl {
    static constexpr u32 BYTES = 18, NUMBERS = 32;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        u32 codes[8];
        nibbles<2>(block + 2, first, codes);
        scaled<uneven>(codes, load_half(block), x);
    }
};

struct Iq4Xs {
    static constexpr u32 BYTES = 136, NUMBERS = 256;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        const u32 run = first / 32;
        u32 codes[8];
        nibbles<4>(block + 8 + 16 * run, first % 32, codes);
        const u32 low = block[4 + run / 2] >> (4 * (run % 2)) & 15, high = load_u16(block + 2) >> (2 * run) & 3;
        scaled<uneven>(codes, load_half(block) * ((float)(low | high << 4) - 32.0f), x);
    }
};

/// The number of a code of E2M1: sign, two bits of exponent with bias 1, one of mantissa.
DEVICE float of_e2m1(u32 code) {
    const u32 magnitude = code & 7;
    const u32 bits = magnitude < 2 ? magnitude * 0x3f000000 : (magnitude / 2 + 126) << 23 | (magnitude & 1) << 22;
    return float_of_bits((code & 8) << 28 | bits);
}

struct Mxfp4 {
    static constexpr u32 BYTES = 17, NUMBERS = 32;
    static DEVICE void eight(const u8* block, u32 first, float (&x)[8]) {
        u32 codes[8];
        nibbles<1>(block + 1, first, codes);
        // 2 to the power of the byte less 127: below the smallest normal number for 0, no number for 255.
        const u32 power = block[0];
        const float scale = float_of_bits(power == 0 ? 0x00400000 : power == 255 ? 0x7fc00000 : power << 23);
        scaled<of_e2m1>(codes, scale, x);
    }
};

/// A case for each packing, with its number in kernels/src/packing.rs.
#define FOR_EACH_PACKING(CASE)                                                                                      \
    CASE(0, Q4_0) CASE(1, Q4_1) CASE(2, Q5_0) CASE(3, Q5_1) CASE(4, Q8_0) CASE(5, Q2K) CASE(6, Q3K) CASE(7, Q4K)    \
    CASE(8, Q5K) CASE(9, Q6K) CASE(10, Iq4Nl) CASE(11, Iq4Xs) CASE(12, Mxfp4) CASE(13, Fp8) CASE(14, Int8) CASE(15, Int4)    \
    CASE(16, Fp8G128) CASE(17, Int8G128) CASE(18, Int4G128)

template <typename P, typename T>
DEVICE void unpack(Stored<T>* out, const u8* blocks, u64 eighth) {
    float x[8];
    P::eight(blocks + eighth / (P::NUMBERS / 8) * P::BYTES, (u32)(eighth % (P::NUMBERS / 8)) * 8, x);
    Element<T>::store8(out + 8 * eighth, x);
}

/// Eight numbers a thread, of the matrix `one`, or of one for each y where their addresses are in `many`.
template <typename T>
DEVICE void unpack_any(Stored<T>* out, const u8* one, const u64* many, u64 eighths, u32 packing) {
    const u64 eighth = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (eighth >= eighths) return;
    const u8* blocks = many ? (const u8*)many[blockIdx.y] : one;
    out += 8 * eighths * blockIdx.y;
#define CASE(number, P) \
    case number: unpack<P, T>(out, blocks, eighth); break;
    switch (packing) { FOR_EACH_PACKING(CASE) }
#undef CASE
}

/// Rows and matrix of a product, and where it goes: numbers from a row to the next, whether the answer is f32, and whether it is
/// added to what is there.
struct Few {
    u32 rows, inputs, outputs, x_stride, out_stride, wide, adds, packing;
};

/// The products of up to `Rows` rows with one row of a matrix, this lane's share.
template <typename P, typename T, u32 Rows>
DEVICE void dots(const Stored<T>* x, const u8* row, u32 rows, const Few& few, float (&sums)[Rows]) {
    for (u32 i = 8 * lane_id(); i < few.inputs; i += 256) {
        float w[8];
        P::eight(row + i / P::NUMBERS * P::BYTES, i % P::NUMBERS, w);
#pragma unroll
        for (u32 r = 0; r < Rows; r++) {
            if (r >= rows) break;
            float y[8];
            Element<T>::load8(x + (u64)r * few.x_stride + i, y);
#pragma unroll
            for (u32 j = 0; j < 8; j++) sums[r] += w[j] * y[j];
        }
    }
}

/// A warp for each row of the matrix, and for each `Rows` rows of `x` along y.
template <typename T, u32 Rows>
DEVICE void dots_any(void* out, const Stored<T>* x, const u8* blocks, const Few& few) {
    const u32 output = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, first = blockIdx.y * Rows;
    if (output >= few.outputs) return;  // a whole warp
    const u32 rows = few.rows - first;
    x += (u64)first * few.x_stride;
    float sums[Rows];
#pragma unroll
    for (u32 r = 0; r < Rows; r++) sums[r] = 0.0f;
#define CASE(number, P)                                                                                             \
    case number: dots<P, T, Rows>(x, blocks + (u64)output * (few.inputs / P::NUMBERS) * P::BYTES, rows, few, sums); \
        break;
    switch (few.packing) { FOR_EACH_PACKING(CASE) }
#undef CASE
#pragma unroll
    for (u32 r = 0; r < Rows; r++) {
        for (int apart = 16; apart > 0; apart /= 2) sums[r] += shuffle_xor(sums[r], apart);
        if (lane_id() != 0 || r >= rows) continue;
        const u64 at = (u64)(first + r) * few.out_stride + output;
        if (few.wide) {
            float* to = (float*)out + at;
            *to = sums[r] + (few.adds ? *to : 0.0f);
        } else {
            Stored<T>* to = (Stored<T>*)out + at;
            Element<T>::store(to, sums[r] + (few.adds ? Element<T>::load(to) : 0.0f));
        }
    }
}

#define DEFINE(T, suffix)                                                                                              \
    KERNEL(256, 1)                                                                                                     \
    unpack_##suffix(Stored<T>* out, const u8* one, const u64* many, u64 eighths, u32 packing) {                        \
        unpack_any<T>(out, one, many, eighths, packing);                                                               \
    }                                                                                                                  \
    EXPORT(unpack_##suffix)
FOR_EACH_TYPE(DEFINE)

#define DEFINE_DOTS(T, suffix, rows)                                                                                   \
    KERNEL(256, 1)                                                                                                     \
    packed_dots_##rows##_##suffix(void* out, const Stored<T>* x, const u8* blocks, ARGUMENT Few few) {                     \
        dots_any<T, rows>(out, x, blocks, few);                                                                        \
    }                                                                                                                  \
    EXPORT(packed_dots_##rows##_##suffix)
DEFINE_DOTS(Bf16, bf16, 1)
DEFINE_DOTS(Bf16, bf16, 4)
DEFINE_DOTS(F16, f16, 1)
DEFINE_DOTS(F16, f16, 4)
