// Attention of query rows to keys where they lie: blocks of keys are read in place, RoPE is applied to a tile of keys once it
// has arrived, products run on a warp's tensor cores (mma.sync, from sm_80 on). For devices before Hopper, and everywhere for
// few query rows (probe, decode), where the keys are read once and a packing pass would cost more than it brings.
//
// A block has 64 rows (a row is a query row and one of the heads that share a KV head) and walks over its item's key tiles of
// 64 keys, two in flight. Items that share a query tile leave partial results, which attend_combine merges.
#include "query_rows.cuh"
#include "tile64.cuh"

static constexpr u32 ROWS = 64;

/// Sets out for a tile of keys and values; keys beyond the last are zero.
template <int D>
DEVICE void fetch(const AttendArguments& a, const Blocks& blocks, u32 key_tile, u32 k_tile, u32 v_tile) {
    const u32 row_length = a.kv_heads * D;
    for (u32 i = threadIdx.x; i < KEYS * (D / 8); i += THREADS) {
        const u32 row = i / (D / 8), piece = i % (D / 8), at = key_tile * KEYS + row;
        const bool valid = at < a.keys;
        const u32 source = a.key_source[valid ? at : 0];
        const u64 offset = blockIdx.y * D + 8 * piece;
        copy16_async_or_zero(k_tile + place<D>(row, piece), row_of(blocks.k, source, row_length) + offset, valid);
        copy16_async_or_zero(v_tile + place<D>(row, piece), row_of(blocks.v, source, row_length) + offset, valid);
    }
    copies_commit();
}

/// s [16 x 64] = this warp's queries times the tile's keys.
template <int D, typename T>
DEVICE void dot_products(float (&s)[KEYS / 2], const u32 (&q)[D / 16][4], u32 k_tile) {
#pragma unroll
    for (u32 j = 0; j < KEYS / 8; j += 2) {
        float d[2][4] = {};
        dot_products_of_16_keys<D, T>(d, q, k_tile, j);
#pragma unroll
        for (u32 i = 0; i < 8; i++) s[4 * j + i] = d[i / 4][i % 4];
    }
}

/// o [16 x D] += the weights `s` times the tile's values.
template <int D, typename T>
DEVICE void add_values(float (&o)[D / 8][4], const float (&s)[KEYS / 2], u32 v_tile) {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 k = 0; k < KEYS / 16; k++) {
        u32 p[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) p[i] = T::narrow2(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
#pragma unroll
        for (u32 j = 0; j < D / 8; j += 2) {
            u32 b[4];
            load_matrices_transposed(b, v_tile + place<D>(16 * k + lane % 16, j + lane / 16));
            multiply_add<T>(o[j], p, b[0], b[1]);
            multiply_add<T>(o[j + 1], p, b[2], b[3]);
        }
    }
}

template <int D, typename T>
DEVICE void attend(const AttendArguments& a, const Blocks& blocks) {
    constexpr u32 TILE_BYTES = KEYS * ROW_BYTES<D>;
    u8* shared = dynamic_shared();  // queries, then two tiles of keys, then two of values
    u8* k_tiles = shared + TILE_BYTES;
    const u32 k_address = shared_address(k_tiles), v_address = k_address + 2 * TILE_BYTES;
    const Item item = a.items[blockIdx.x];
    const QueryTile tile(a, item.tile, ROWS);
    const u32 lane = lane_id(), warp_row = threadIdx.x / 32 * 16, count = item.list_end - item.list_begin;
    const auto at = [&](u32 row, u32 piece) { return shared + place<D>(row, piece); };
    if (count > 0) fetch<D>(a, blocks, a.tiles[item.list_begin] & ~MASKED, k_address, v_address);
    load_queries<D, T>(a, tile, blockIdx.y, 0, [&](u32 row, u32 piece, const Bytes16& x) { store16(at(row, piece), x); });
    Sight sight[2];
    load_sight(a, tile, warp_row + lane / 4, sight);
    sync_block();
    u32 q[D / 16][4];
#pragma unroll
    for (u32 k = 0; k < D / 16; k++)
        load_matrices(q[k], shared_address(shared) + place<D>(warp_row + lane % 16, 2 * k + lane / 16));
    float o[D / 8][4] = {};
    Running running = nothing_yet();
    for (u32 n = 0; n < count; n++) {
        const u32 stage = n % 2 * TILE_BYTES, entry = a.tiles[item.list_begin + n], key_tile = entry & ~MASKED;
        if (n + 1 < count) {
            const u32 next = (n + 1) % 2 * TILE_BYTES;
            fetch<D>(a, blocks, a.tiles[item.list_begin + n + 1] & ~MASKED, k_address + next, v_address + next);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        sync_block();
        if (a.key_turn.half > 0) {
            turn_keys<D, T>(a.key_turn, a.key_rope, key_tile * KEYS, a.keys, k_tiles + stage);
            sync_block();
        }
        float s[KEYS / 2], shrink[2];
        dot_products<D, T>(s, q, k_address + stage);
        if (entry & MASKED) hide(s, sight, key_tile * KEYS + 2 * (lane % 4));
        softmax_step(s, running, shrink, a.scale_log2);
#pragma unroll
        for (u32 j = 0; j < D / 8; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) o[j][i] *= shrink[i / 2];
        add_values<D, T>(o, s, v_address + stage);
        sync_block();  // before the stage is filled again
    }
    const auto result = [&](u32 j, u32 i) { return o[j][i]; };
    if (item.slot == NO_SLOT) {
        write_rows<D, T>(a, tile, blockIdx.y, warp_row, running, result, at);
    } else {
        write_part<D>(a, item.slot, blockIdx.y, ROWS, warp_row, running, result);
    }
}

#define ATTEND(D, T, type)                                                                        \
    KERNEL(THREADS, 2) attend_##type##_##D(ARGUMENT AttendArguments a, ARGUMENT Blocks blocks) { \
        attend<D, T>(a, blocks);                                                                  \
    }                                                                                             \
    EXPORT(attend_##type##_##D)

EACH_HEAD(ATTEND)
