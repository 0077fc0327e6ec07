// The rows of a query tile on their way in and out. A warp's lanes are to wait for memory as seldom as possible: what a thread
// needs of all its rows is loaded at once, row numbers before anything else.
#pragma once

#include "attention.cuh"

/// Which query row and which head of the group a row of a tile is.
struct QueryTile {
    u32 first, per_tile, queries, group, inverse;

    /// Tile number `tile` of `tile_rows` rows (at most 128).
    DEVICE QueryTile(const AttendArguments& a, u32 tile, u32 tile_rows) {
        per_tile = tile_rows / a.group, first = tile * per_tile;
        queries = a.queries, group = a.group;
        inverse = (65535 + group) / group;  // rows are few: a product with it, shifted, is the quotient
    }
    DEVICE u32 query(u32 row) const { return row * inverse >> 16; }
    DEVICE u32 head(u32 row) const { return row - query(row) * group; }
    /// The row's place in the order of the queries; 0 where it has none.
    DEVICE u32 place(u32 row) const { return valid(row) ? first + query(row) : 0; }
    DEVICE bool valid(u32 row) const { return query(row) < per_tile && first + query(row) < queries; }
};

/// Some of 64 rows of a tile from row `first_row` on, of which 128 threads take a piece each in turn.
template <int D>
struct Pieces {
    static constexpr u32 COUNT = D <= 128 ? D / 16 : 8;  // of a thread at a time: all, or as many as there are registers for
    u32 row[COUNT], piece[COUNT], position[COUNT];

    /// Finds the positions of the rows that come as number `turn` of these, which nothing needs yet.
    DEVICE Pieces(const AttendArguments& a, const QueryTile& tile, u32 first_row, u32 turn = 0) {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) {
            const u32 i = threadIdx.x % 128 + 128 * (k + COUNT * turn);
            row[k] = first_row + i / (D / 8), piece[k] = i % (D / 8);
            position[k] = a.rope[tile.place(row[k])];
        }
    }
};

/// Where the head of a tile's row begins.
template <int D>
DEVICE const u16* query(const AttendArguments& a, const QueryTile& tile, u32 kv_head, u32 row, u32 number) {
    return a.q + (((u64)number * a.kv_heads + kv_head) * a.group + tile.head(row)) * D;
}

/// 64 rows from row `first_row` on, turned, by 128 threads: `store` gets row, piece and bytes. Rows that are none repeat
/// another: their results are not read.
template <int D, typename T, typename Store>
DEVICE void load_queries(const AttendArguments& a, const QueryTile& tile, u32 kv_head, u32 first_row, Store store) {
    constexpr u32 COUNT = Pieces<D>::COUNT;
#pragma unroll 1
    for (u32 turn = 0; turn < D / 16 / COUNT; turn++) {
        const Pieces<D> pieces(a, tile, first_row, turn);
        const u16* head[COUNT];
        Bytes16 x[COUNT];
#pragma unroll
        for (u32 k = 0; k < COUNT; k++)
            head[k] = query<D>(a, tile, kv_head, pieces.row[k], a.rows[tile.place(pieces.row[k])]);
        const auto load = [&](u32 k, u32 dim) { return load16(head[k] + dim); };
        load_all_turned<T>(x, load, pieces.piece, pieces.position, a.turn);
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) store(pieces.row[k], pieces.piece[k], x[k]);
    }
}

/// What the two rows of this thread see: `first_row` and the eighth after it.
DEVICE void load_sight(const AttendArguments& a, const QueryTile& tile, u32 first_row, Sight (&sight)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 row = first_row + 8 * half;
        sight[half] = tile.valid(row) ? a.sight[tile.place(row)] : Sight{0, 0, 0, 0};
    }
}

/// A warp's 16 rows from `first_row` on as a partial result.
template <int D, typename Result>
DEVICE void write_part(const AttendArguments& a, u32 slot, u32 kv_head, u32 tile_rows, u32 first_row, Running& running,
                       Result result) {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float lse;
        const float factor = softmax_end(running, half, lse);
        const u64 part = ((u64)slot * a.kv_heads + kv_head) * tile_rows + first_row + lane / 4 + 8 * half;
        if (lane % 4 == 0) a.part_lse[part] = lse;
        u64* to = reinterpret_cast<u64*>(a.part_out + part * D + 2 * (lane % 4));
#pragma unroll
        for (u32 j = 0; j < D / 8; j++) {
            const float x = result(j, 2 * half) * factor, y = result(j, 2 * half + 1) * factor;
            to[4 * j] = bits_of_float(x) | (u64)bits_of_float(y) << 32;
        }
    }
}

/// A warp's 16 rows from `first_row` on to their place, through shared memory of its own so that rows are written whole.
/// `result` gives number i (as in mma.m16n8k16) of column block j, `place` where a row's piece stands in shared memory.
template <int D, typename T, typename Result, typename Place>
DEVICE void write_rows(const AttendArguments& a, const QueryTile& tile, u32 kv_head, u32 first_row, Running& running,
                       Result result, Place place) {
    constexpr u32 COUNT = D / 16;
    const u32 lane = lane_id();
    u32 number[COUNT], own[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) own[half] = a.rows[tile.place(first_row + lane / 4 + 8 * half)];
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) number[k] = a.rows[tile.place(first_row + (lane + 32 * k) / (D / 8))];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 row = first_row + lane / 4 + 8 * half;
        float lse;
        const float factor = softmax_end(running, half, lse);
#pragma unroll
        for (u32 j = 0; j < D / 8; j++) {
            const float x = result(j, 2 * half) * factor, y = result(j, 2 * half + 1) * factor;
            *reinterpret_cast<u32*>(place(row, j) + 4 * (lane % 4)) = T::narrow2(x, y);
        }
        if (tile.valid(row) && lane % 4 == 0)
            a.lse[((u64)own[half] * a.kv_heads + kv_head) * a.group + tile.head(row)] = lse;
    }
    sync_warp();
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) {
        const u32 row = first_row + (lane + 32 * k) / (D / 8), piece = (lane + 32 * k) % (D / 8);
        const u64 to = (((u64)number[k] * a.kv_heads + kv_head) * a.group + tile.head(row)) * D + 8 * piece;
        if (tile.valid(row)) store16(a.out + to, load16(place(row, piece)));
    }
}
