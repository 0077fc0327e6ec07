// Tiles of 64 rows in shared memory for the products of a warp: where a row's pieces stand, and keys that are turned once they have
// arrived. Used by attend and scores.
#pragma once

#include "attention.cuh"

/// Rows of a tile of keys.
static constexpr u32 KEYS = 64;
static constexpr u32 THREADS = 128;

/// Bytes of a row of a tile: whole multiples of 128, so that eight rows of a 16-byte column fall on all banks.
template <int D>
static constexpr u32 ROW_BYTES = D <= 64 ? 128 : 256;

/// Where piece `piece` of row `row` stands in a tile.
template <int D>
DEVICE u32 place(u32 row, u32 piece) {
    return row * ROW_BYTES<D> + ((piece ^ (row & 7)) << 4);
}

/// Turns a tile of keys, of which the first is key number `first` of `count`, in place.
template <int D, typename T>
DEVICE void turn_keys(const Turn& turn, const u32* key_rope, u32 first, u32 count, u8* tile) {
    const u32 pieces = turn.interleaved ? turn.half / 4 : turn.half / 8;  // of one row, each with its other half
    for (u32 i = threadIdx.x; i < KEYS * pieces; i += THREADS) {
        const u32 row = i / pieces, piece = i % pieces, at = first + row;
        if (at >= count) continue;
        const u32 position = key_rope[at];
        u8* low = tile + place<D>(row, piece);
        if (turn.interleaved) {
            store16(low, turned_pairs<T>(load16(low), 8 * piece, position, turn));
            continue;
        }
        u8* high = tile + place<D>(row, piece + turn.half / 8);
        Bytes16 x = load16(low), y = load16(high);
        turn_both<T>(x, y, 8 * piece, position, turn);
        store16(low, x);
        store16(high, y);
    }
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
