// What each key receives from the query rows: probabilities recomputed from the rows' log-sum-exp, averaged over the heads, and
// reduced over the rows to one number a key, in one pass; or left as they are, one a row and key.
//
// A block has 64 keys. For each tile of 64 query rows it goes through the heads, two tiles of queries in flight, and adds up
// probabilities in registers; each KV head's keys are fetched once a tile of rows and turned on load. Queries come turned.
#include "tile64.cuh"

static constexpr u32 ROWS = 64;

/// How a row's attention to a key counts.
enum Reduce : u32 { NORM = 0, MASS = 1, WEIGHTED = 2, EACH_ROW = 3 };

struct ScoreArguments {
    const u16* q;          // [queries, heads, head_dim], turned
    const float* lse;      // [queries, heads]
    const float* weights;  // [queries], for WEIGHTED
    const u32* rows;       // [queries]: place to row of q
    const Sight* sight;    // [queries], by place
    const Sight* tile_sight;  // [tiles of rows]: the keys that any row of the tile may see
    const u32* key_source;    // [keys]: place to block and row
    const u32* key_rope;      // [keys]: place to position
    const u32* key_number;    // [keys]: place to the key's number among all
    float* out;               // one a key number, for EACH_ROW [queries, numbers]; unseen keys are left alone
    Turn key_turn;
    u32 queries, keys, kv_heads, group, reduce;
    float scale_log2;
    u32 numbers;  // of keys, unseen ones included
};

/// Sets out for a tile of 64 rows; `list` in shared memory has their numbers, `from` says where a row begins.
template <int D, typename From>
DEVICE void fetch_rows(const u32* list, u32 tile, From from) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < KEYS * (D / 8); i += THREADS) {
        const u32 row = i / (D / 8), piece = i % (D / 8), number = list[row];
        const u16* first = from(number != NO_ROW ? number : 0);
        copy16_async_or_zero(tile + place<D>(row, piece), first + 8 * piece, number != NO_ROW);
    }
}

/// Sets out for one head's queries of a tile of rows; rows beyond the last are zero.
template <int D>
DEVICE void fetch_queries(const ScoreArguments& a, const u32* rows, u32 head, u32 tile) {
    fetch_rows<D>(rows, tile, [&](u32 row) { return a.q + ((u64)row * a.kv_heads * a.group + head) * D; });
}

template <int D>
DEVICE void fetch_keys(const ScoreArguments& a, const Blocks& blocks, const u32* sources, u32 kv_head, u32 tile) {
    fetch_rows<D>(sources, tile, [&](u32 source) { return row_of(blocks.k, source, a.kv_heads * D) + kv_head * D; });
}

/// Adds this head's probabilities of 16 rows and 64 keys.
template <int D, typename T>
DEVICE void add_head(float (&p)[KEYS / 2], const ScoreArguments& a, u32 q_tile, u32 k_tile, const float (&lse_log2)[2],
                     const Sight (&sight)[2]) {
    const u32 lane = lane_id(), first = threadIdx.x / 32 * 16, column = blockIdx.x * KEYS + 2 * (lane % 4);
    u32 q[D / 16][4];
#pragma unroll
    for (u32 k = 0; k < D / 16; k++) load_matrices(q[k], q_tile + place<D>(first + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (u32 j = 0; j < KEYS / 8; j += 2) {
        float d[2][4] = {};
        dot_products_of_16_keys<D, T>(d, q, k_tile, j);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const int half = i / 2 % 2;
            const bool seen = sees(sight[half], column + 8 * (j + i / 4) + i % 2);
            const float weight = exp2_fast(d[i / 4][i % 4] * a.scale_log2 - lse_log2[half]);
            p[4 * j + i] += seen ? weight : 0.0f;
        }
    }
}

/// What the threads of a tile's rows add to a column, from all rows of the block to one number a key.
DEVICE void write(const ScoreArguments& a, float (&columns)[KEYS / 4], float* sums) {
    const u32 lane = lane_id(), warp = threadIdx.x / 32;
#pragma unroll
    for (u32 i = 0; i < KEYS / 4; i++) {
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) columns[i] += shuffle_xor(columns[i], lanes);
        if (lane < 4) sums[warp * KEYS + 8 * (i / 2) + 2 * lane + i % 2] = columns[i];
    }
    sync_block();
    const u32 at = blockIdx.x * KEYS + threadIdx.x;
    if (threadIdx.x >= KEYS || at >= a.keys) return;
    float sum = 0.0f;
    for (u32 w = 0; w < THREADS / 32; w++) sum += sums[w * KEYS + threadIdx.x];
    a.out[a.key_number[at]] = a.reduce == NORM ? sqrtf(sum) : sum;
}

template <int D, typename T>
DEVICE void scores(const ScoreArguments& a, const Blocks& blocks) {
    constexpr u32 TILE_BYTES = KEYS * ROW_BYTES<D>;
    u8* shared = dynamic_shared();  // keys, two tiles of queries, sums, positions, where rows come from
    const u32 k_tile = shared_address(shared), q_tiles = k_tile + TILE_BYTES;
    float* sums = reinterpret_cast<float*>(shared + 3 * TILE_BYTES);
    const u32 lane = lane_id(), heads = a.kv_heads * a.group;
    const u32 key_first = blockIdx.x * KEYS, key_end = key_first + KEYS;
    u32* positions = reinterpret_cast<u32*>(sums + THREADS / 32 * KEYS);
    u32 *sources = positions + KEYS, *rows = sources + KEYS;
    if (threadIdx.x < KEYS) {
        const u32 at = key_first + threadIdx.x;
        if (a.key_turn.half > 0) positions[threadIdx.x] = at < a.keys ? a.key_rope[at] : 0;
        sources[threadIdx.x] = at < a.keys ? a.key_source[at] : NO_ROW;
    }
    float columns[KEYS / 4] = {};
    for (u32 row_tile = 0; row_tile * ROWS < a.queries; row_tile++) {
        const Sight any = a.tile_sight[row_tile];
        const bool no_shared = key_first >= any.shared_end || key_end <= any.shared_begin;
        if (no_shared && (key_first >= any.end || key_end <= any.begin)) continue;
        const u32 own = threadIdx.x / 32 * 16 + lane / 4;  // this thread's rows: it and the eighth after it
        Sight sight[2];
        float p[KEYS / 2] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 at = row_tile * ROWS + own + 8 * half;
            sight[half] = at < a.queries ? a.sight[at] : Sight{0, 0, 0, 0};
        }
        if (threadIdx.x < ROWS) {
            const u32 at = row_tile * ROWS + threadIdx.x;
            rows[threadIdx.x] = at < a.queries ? a.rows[at] : NO_ROW;
        }
        sync_block();
        fetch_queries<D>(a, rows, 0, q_tiles);
        fetch_keys<D>(a, blocks, sources, 0, k_tile);
        copies_commit();
        for (u32 head = 0; head < heads; head++) {
            const bool new_keys = head % a.group == 0;
            copies_wait<0>();
            sync_block();
            if (new_keys && a.key_turn.half > 0) {
                turn_keys<D, T>(a.key_turn, positions, shared);
                sync_block();
            }
            if (head + 1 < heads) fetch_queries<D>(a, rows, head + 1, q_tiles + (head + 1) % 2 * TILE_BYTES);
            copies_commit();
            float lse_log2[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 row = rows[own + 8 * half];
                const float lse = a.lse[(u64)(row != NO_ROW ? row : 0) * heads + head];
                // A row that saw nothing gives nothing: exp2(x - inf) = 0.
                lse_log2[half] = lse == NEGATIVE_INFINITY ? -NEGATIVE_INFINITY : lse * LOG2_E;
            }
            add_head<D, T>(p, a, q_tiles + head % 2 * TILE_BYTES, k_tile, lse_log2, sight);
            if (head + 1 < heads && (head + 1) % a.group == 0) {
                sync_block();  // the old keys are not read any more
                fetch_keys<D>(a, blocks, sources, (head + 1) / a.group, k_tile);
                copies_commit();
            }
        }
        const float mean = 1.0f / (float)heads;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = rows[own + 8 * half];
            const float weight = a.reduce == WEIGHTED && row != NO_ROW ? a.weights[row] : 1.0f;
#pragma unroll
            for (u32 i = 0; i < KEYS / 4; i++) {
                const float x = p[i / 2 * 4 + 2 * half + i % 2] * mean;
                columns[i] += a.reduce == NORM ? x * x : x * weight;
                const u32 at = key_first + 8 * (i / 2) + 2 * (lane % 4) + i % 2;
                if (a.reduce == EACH_ROW && row != NO_ROW && at < a.keys) {
                    a.out[(u64)row * a.numbers + a.key_number[at]] = x;
                }
            }
        }
        sync_block();  // before the tiles are filled again
    }
    if (a.reduce != EACH_ROW) write(a, columns, sums);
}

#define SCORES(D, T, type)                                                                       \
    KERNEL(THREADS, D <= 128 ? 3 : 2) scores_##type##_##D(ARGUMENT ScoreArguments a, ARGUMENT Blocks blocks) { \
        scores<D, T>(a, blocks);                                                                 \
    }                                                                                            \
    EXPORT(scores_##type##_##D)

EACH_HEAD(SCORES)
