// Products of a warpgroup on Hopper's tensor cores: 64 rows of A times N columns of B, 16 deep, accumulated in f32.
//
// A lies in shared memory or in registers, B in shared memory, both with the depth contiguous, in rows of 128 bytes (64
// numbers), groups of eight rows one after the other, 16-byte pieces swizzled: piece p of row r stands at p ^ (r % 8).
// Registers of A and D are those of eight mma.m16n8k16 side by side: warp w of the group has rows 16 w to 16 w + 15.
#pragma once

#include "device.cuh"

/// Bytes of a row of a swizzled tile: 64 numbers of 16 bits.
static constexpr u32 TILE_ROW_BYTES = 128;

/// What tells a product where an operand begins; the address of row 0, a multiple of 1024, plus 32 bytes for every 16 columns.
DEVICE u64 tile_descriptor(u32 shared) {
    const u64 group_bytes = 8 * TILE_ROW_BYTES;
    return (u64)(shared >> 4 & 0x3fff) | (u64)1 << 16 | (group_bytes >> 4) << 32 | (u64)1 << 62;
}

/// Where 16-byte piece `piece` (0 to 7) of row `row` stands within a swizzled tile.
DEVICE u32 swizzled(u32 row, u32 piece) { return row * TILE_ROW_BYTES + ((piece ^ (row & 7)) << 4); }

#if !defined(EMULATED) && defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define OUT4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT16(d, i) OUT4(d, i), OUT4(d, i + 4), OUT4(d, i + 8), OUT4(d, i + 12)
#define OUT32(d, i) OUT16(d, i), OUT16(d, i + 16)
#define OUT48(d) OUT32(d, 0), OUT16(d, 32)
#define OUT64(d) OUT32(d, 0), OUT32(d, 32)
#define D32                                                                                                              \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30," \
    "%31"
#define D48 D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define D64 D48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// The operands after the accumulators: A and B descriptors and the switch, or four registers, a descriptor and the switch.
#define PRODUCT_SHARED(n, type, registers, outs, i0, i1, i2)                                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" i2 ", 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, %" i0 ", %" i1        \
                 ", p, 1, 1, 0, 0;\n}"                                                                                   \
                 : outs                                                                                                  \
                 : "l"(a), "l"(b), "r"((int)accumulate))
#define PRODUCT_REGISTERS(n, type, registers, outs, i0, i1, i2, i3, i4, i5)                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" i5 ", 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, {%" i0 ",%" i1 ",%" i2 \
                 ",%" i3 "}, %" i4 ", p, 1, 1, 0;\n}"                                                                    \
                 : outs                                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate))

/// d [64 x N] (+)= a [64 x 16] b [N x 16] transposed, both in shared memory.
template <int N, typename T>
DEVICE void group_multiply(float (&d)[N / 2], u64 a, u64 b, bool accumulate) {
    static_assert(N == 128, "the number of keys in a tile");
    if constexpr (T::is_bf16) {
        PRODUCT_SHARED("128", "bf16", D64, OUT64(d), "64", "65", "66");
    } else {
        PRODUCT_SHARED("128", "f16", D64, OUT64(d), "64", "65", "66");
    }
}

/// The same with a in registers, which must not change before the product has been waited for.
template <int N, typename T>
DEVICE void group_multiply(float (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {
    static_assert(N == 64 || N == 96 || N == 128, "a head's dimension");
    if constexpr (N == 64 && T::is_bf16) {
        PRODUCT_REGISTERS("64", "bf16", D32, OUT32(d, 0), "32", "33", "34", "35", "36", "37");
    } else if constexpr (N == 64) {
        PRODUCT_REGISTERS("64", "f16", D32, OUT32(d, 0), "32", "33", "34", "35", "36", "37");
    } else if constexpr (N == 96 && T::is_bf16) {
        PRODUCT_REGISTERS("96", "bf16", D48, OUT48(d), "48", "49", "50", "51", "52", "53");
    } else if constexpr (N == 96) {
        PRODUCT_REGISTERS("96", "f16", D48, OUT48(d), "48", "49", "50", "51", "52", "53");
    } else if constexpr (T::is_bf16) {
        PRODUCT_REGISTERS("128", "bf16", D64, OUT64(d), "64", "65", "66", "67", "68", "69");
    } else {
        PRODUCT_REGISTERS("128", "f16", D64, OUT64(d), "64", "65", "66", "67", "68", "69");
    }
}

#endif
