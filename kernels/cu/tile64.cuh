// Tiles of 64 rows in shared memory for the products of a warp: where a row's pieces stand, and keys that are turned once they have
// arrived. Used by attend and scores.
#pragma once

#include "attention.cuh"

/// Rows of a tile of keys.
static constexpr u32 KEYS = 64;
static constexpr u32 THREADS = 128;

/// Bytes of a row of a tile: whole multiples of 128, so that eight rows of a 16-byte column fall on all banks.
template <int D>
static constexpr u32 ROW_BYTES = D <= 64 ? 128 : D <= 128 ? 256 : 512;

/// Where piece `piece` of row `row` stands in a tile.
template <int D>
DEVICE u32 place(u32 row, u32 piece) {
    return row * ROW_BYTES<D> + ((piece ^ (row & 7)) << 4);
}

/// No row: zeros in its stead.
static constexpr u32 NO_ROW = 0xffffffffu;

/// Where N rows of a tile come from, those that this thread fetches pieces of. Found once, and early: addresses need them.
template <int D, u32 N>
struct Rows {
    static constexpr u32 COUNT = N * (D / 8) / THREADS;  // of a thread
    u32 of[COUNT];

    /// Row i of the tile is number first + i of `list`, which has `count`.
    DEVICE void find(const u32* list, u32 first, u32 count) {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) {
            const u32 at = first + (threadIdx.x + THREADS * k) / (D / 8);
            of[k] = at < count ? list[at] : NO_ROW;
        }
    }
    /// Calls `fetch` with row and piece within the tile, and where the row comes from.
    template <typename Fetch>
    DEVICE void each(Fetch fetch) const {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) {
            const u32 i = threadIdx.x + THREADS * k;
            fetch(i / (D / 8), i % (D / 8), of[k]);
        }
    }
};

/// Turns N rows of a tile of keys in place to `positions`, which are in shared memory too. Two pieces of a thread at a time, so
/// that their parts of the tables are under way together.
template <int D, typename T, u32 N = KEYS>
DEVICE void turn_keys(const Turn& turn, const u32* positions, u8* tile) {
    const u32 pieces = turn.interleaved ? turn.half / 4 : turn.half / 8;  // of one row, each with its other half
    const u32 inverse = (65535 + pieces) / pieces, all = N * pieces;  // i * inverse >> 16 is i / pieces for all i here
    for (u32 i = threadIdx.x; i < all; i += 2 * THREADS) {
        u8 *low[2], *high[2];
        Bytes16 x[2], y[2];
        u32 first[2], position[2];
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            const u32 at = i + k * THREADS < all ? i + k * THREADS : i;  // the same twice does no harm
            const u32 row = at * inverse >> 16, piece = at - row * pieces;
            low[k] = tile + place<D>(row, piece);
            high[k] = turn.interleaved ? low[k] : tile + place<D>(row, piece + turn.half / 8);
            first[k] = 8 * piece, position[k] = positions[row];
            x[k] = load16(low[k]), y[k] = load16(high[k]);
        }
        if (turn.interleaved) {
#pragma unroll
            for (u32 k = 0; k < 2; k++) x[k] = y[k] = turned_pairs<T>(x[k], first[k], position[k], turn);
        } else {
#pragma unroll
            for (u32 k = 0; k < 2; k++) turn_both<T>(x[k], y[k], first[k], position[k], turn);
        }
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
            store16(low[k], x[k]);
            store16(high[k], y[k]);
        }
    }
}

/// Sets out for the positions of N keys, the first of which is number `first` (a multiple of N) of `count`.
template <u32 N>
DEVICE void fetch_positions(const u32* key_rope, u32 first, u32 count, u32 to) {
    const u32 at = first + 4 * threadIdx.x;
    if (threadIdx.x < N / 4) copy16_async_or_zero(to + 16 * threadIdx.x, key_rope + (at < count ? at : 0), at < count);
}

/// The products of 16 rows `q` with keys 8 j to 8 j + 15 of a tile: two blocks of 16 x 8.
template <int D, typename T>
DEVICE void dot_products_of_16_keys(float (&d)[2][4], const u32 (&q)[D / 16][4], u32 k_tile, u32 j) {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 k = 0; k < D / 16; k++) {
        u32 b[4];
        load_matrices(b, k_tile + place<D>(8 * j + lane % 8 + 8 * (lane / 16), 2 * k + lane / 8 % 2));
        multiply_add<T>(d[0], q[k], b[0], b[1]);
        multiply_add<T>(d[1], q[k], b[2], b[3]);
    }
}
