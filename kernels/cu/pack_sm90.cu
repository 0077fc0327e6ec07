// Lays keys and values out for attend_sm90: in the order of the sight, keys turned to their positions, values transposed, each
// tile of 128 keys one run of bytes that is already swizzled as the tensor cores read it, so that a single bulk copy brings it
// to shared memory. Unseen keys are left out.
//
// A tile of keys is D / 64 (rounded up) blocks of 128 rows of 64 dims; a tile of values two blocks of D rows of 64 keys.
#include "attention.cuh"
#include "wgmma.cuh"

static constexpr u32 KEYS = 128;
static constexpr u32 THREADS = 256;

struct PackArguments {
    const u32* key_source;  // [keys]: place to block and row
    const u32* key_rope;    // [keys]: place to position
    u8* packed_k;           // [kv_heads, key tiles, tile]
    u8* packed_v;
    Turn turn;
    u32 keys, kv_heads, key_tiles;
};

template <int D>
static constexpr u32 K_TILE_BYTES = (D + 63) / 64 * KEYS * TILE_ROW_BYTES;
template <int D>
static constexpr u32 V_TILE_BYTES = KEYS / 64 * D * TILE_ROW_BYTES;
/// Words of 32 bits of a row of values in shared memory; odd, so that columns fall on different banks.
template <int D>
static constexpr u32 ROW_WORDS = D / 2 + 1;

template <int D, typename T>
DEVICE void pack(const PackArguments& a, const Blocks& blocks) {
    u32* values = reinterpret_cast<u32*>(dynamic_shared());  // [KEYS][ROW_WORDS]
    const u32 tile = blockIdx.x, head = blockIdx.y, row_length = a.kv_heads * D;
    const u64 at_tile = (u64)head * a.key_tiles + tile;
    u8* k_out = a.packed_k + at_tile * K_TILE_BYTES<D>;
    for (u32 i = threadIdx.x; i < KEYS * (D / 8); i += THREADS) {
        const u32 row = i / (D / 8), piece = i % (D / 8), at = tile * KEYS + row;
        Bytes16 k{0, 0, 0, 0}, v{0, 0, 0, 0};
        if (at < a.keys) {
            const u32 source = a.key_source[at];
            k = load_turned<T>(row_of(blocks.k, source, row_length) + head * D, piece, a.key_rope[at], a.turn);
            v = load16(row_of(blocks.v, source, row_length) + head * D + 8 * piece);
        }
        store16(k_out + piece / 8 * KEYS * TILE_ROW_BYTES + swizzled(row, piece % 8), k);
        u32* to = values + row * ROW_WORDS<D> + 4 * piece;
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
    sync_block();
    u8* v_out = a.packed_v + at_tile * V_TILE_BYTES<D>;
    const u16* numbers = reinterpret_cast<const u16*>(values);
    for (u32 i = threadIdx.x; i < KEYS / 8 * D; i += THREADS) {
        const u32 piece = i % 8, dim = i / 8 % D, block = i / (8 * D);
        u32 x[8];
#pragma unroll
        for (u32 key = 0; key < 8; key++) x[key] = numbers[(64 * block + 8 * piece + key) * 2 * ROW_WORDS<D> + dim];
        const Bytes16 bytes{x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16};
        store16(v_out + block * D * TILE_ROW_BYTES + swizzled(dim, piece), bytes);
    }
}

#define PACK(D, T, type)                                                                              \
    KERNEL(THREADS, 2) pack_sm90_##type##_##D(ARGUMENT PackArguments a, ARGUMENT Blocks blocks) { \
        pack<D, T>(a, blocks);                                                                        \
    }                                                                                                 \
    EXPORT(pack_sm90_##type##_##D)

EACH_WIDE_HEAD(PACK)
