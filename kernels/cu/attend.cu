// Attention of query rows to keys where they lie: blocks of keys are read in place, RoPE is applied to a tile of keys once it
// has arrived, products run on a warp's tensor cores (mma.sync, from sm_80 on). For devices before Hopper, and everywhere for
// few query rows (probe, decode), where the keys are read once and a packing pass would cost more than it brings.
//
// A block has 64 rows (a row is a query row and one of the heads that share a KV head) and walks over its item's key tiles of
// 64 keys in steps, two in flight. Items that share a query tile leave partial results, which attend_combine merges.
#include "query_rows.cuh"
#include "tile64.cuh"

static constexpr u32 ROWS = 64;

/// Keys of a step: a tile, or half of it for wide heads, so that all stages fit into the shared memory of every device (99 KiB).
template <int D>
static constexpr u32 STEP = D <= 128 ? KEYS : KEYS / 2;
template <int D>
static constexpr u32 STEPS_A_TILE = KEYS / STEP<D>;

/// Keys, values and positions of one stage.
struct Stage {
    u32 k, v, positions;
};

/// Where the keys of a step are listed: the lists, the step's first number in them, and how many they have.
struct Listed {
    const u32 *source, *rope;
    u32 first, count;
};

DEVICE Listed listed(const AttendArguments& a, u32 first) {
    if (first < a.split) return Listed{a.key_source, a.key_rope, first, a.split};
    return Listed{a.tail_source, a.tail_rope, first - a.split, a.keys - a.split};
}

/// Sets out for a step's keys and values, from place `first` on; keys beyond the last are zero.
template <int D>
DEVICE void fetch(const AttendArguments& a, const Blocks& blocks, const Rows<D, STEP<D>>& sources, u32 first, const Stage& to) {
    const u32 row_length = a.kv_heads * D;
    sources.each([&](u32 row, u32 piece, u32 source) {
        const bool valid = source != NO_ROW;
        const u64 offset = blockIdx.y * D + 8 * piece;
        const u32 from = valid ? source : 0;
        copy16_async_or_zero(to.k + place<D>(row, piece), row_of(blocks.k, from, row_length) + offset, valid);
        copy16_async_or_zero(to.v + place<D>(row, piece), row_of(blocks.v, from, row_length) + offset, valid);
    });
    if (a.key_turn.half > 0) {
        const Listed keys = listed(a, first);
        fetch_positions<STEP<D>>(keys.rope, keys.first, keys.count, to.positions);
    }
    copies_commit();
}

/// s [16 x STEP] = this warp's queries times the step's keys.
template <int D, typename T>
DEVICE void dot_products(float (&s)[STEP<D> / 2], const u32 (&q)[D / 16][4], u32 k_tile) {
#pragma unroll
    for (u32 j = 0; j < STEP<D> / 8; j += 2) {
        float d[2][4] = {};
        dot_products_of_16_keys<D, T>(d, q, k_tile, j);
#pragma unroll
        for (u32 i = 0; i < 8; i++) s[4 * j + i] = d[i / 4][i % 4];
    }
}

/// The same with the queries of this warp's rows, from `first_row` on, read from shared memory: those of wide heads would take
/// the registers of the results.
template <int D, typename T>
DEVICE void dot_products_of_shared(float (&s)[STEP<D> / 2], u32 q_tile, u32 first_row, u32 k_tile) {
    const u32 lane = lane_id();
    float d[STEP<D> / 8][4] = {};
#pragma unroll
    for (u32 k = 0; k < D / 16; k++) {
        u32 q[4];
        load_matrices(q, q_tile + place<D>(first_row + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (u32 j = 0; j < STEP<D> / 8; j += 2) {
            u32 b[4];
            load_matrices(b, k_tile + place<D>(8 * j + lane % 8 + 8 * (lane / 16), 2 * k + lane / 8 % 2));
            multiply_add<T>(d[j], q, b[0], b[1]);
            multiply_add<T>(d[j + 1], q, b[2], b[3]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < STEP<D> / 2; i++) s[i] = d[i / 4][i % 4];
}

/// o [16 x D] += the weights `s` times the step's values.
template <int D, typename T>
DEVICE void add_values(float (&o)[D / 8][4], const float (&s)[STEP<D> / 2], u32 v_tile) {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 k = 0; k < STEP<D> / 16; k++) {
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
    constexpr u32 STEP_BYTES = STEP<D> * ROW_BYTES<D>;
    u8* shared = dynamic_shared();  // queries, and of two steps keys, values and positions
    const u32 begin = shared_address(shared), stages = begin + ROWS * ROW_BYTES<D>;
    const auto stage = [&](u32 n) {
        return Stage{stages + STEP_BYTES * (n % 2), stages + STEP_BYTES * (2 + n % 2),
                     stages + STEP_BYTES * 4 + STEP<D> * 4 * (n % 2)};
    };
    const Item item = a.items[blockIdx.x];
    const QueryTile tile(a, item.tile, ROWS);
    const u32 lane = lane_id(), warp_row = threadIdx.x / 32 * 16;
    const u32 count = (item.end - item.begin) * STEPS_A_TILE<D>;
    // Step n + 1 is under way while step n is worked on; where step n + 2 comes from is being looked up.
    Rows<D, STEP<D>> sources;
    u32 now_at = 0, next = 0;
    const auto find = [&](u32 n) {
        const u32 tile = n < count ? key_tile(item, a.masked, item.begin + n / STEPS_A_TILE<D>) : 0;
        next = tile * KEYS + n % STEPS_A_TILE<D> * STEP<D>;
        const Listed keys = listed(a, next);
        sources.find(keys.source, keys.first, n < count ? keys.count : 0);
    };
    const auto at = [&](u32 row, u32 piece) { return shared + place<D>(row, piece); };
    find(0);
    if (count > 0) fetch<D>(a, blocks, sources, next, stage(0));
    load_queries<D, T>(a, tile, blockIdx.y, 0, [&](u32 row, u32 piece, const Bytes16& x) { store16(at(row, piece), x); });
    Sight sight[2];
    load_sight(a, tile, warp_row + lane / 4, sight);
    sync_block();
    constexpr bool IN_REGISTERS = D <= 128;
    u32 q[IN_REGISTERS ? D / 16 : 1][4];
    if constexpr (IN_REGISTERS) {
#pragma unroll
        for (u32 k = 0; k < D / 16; k++) load_matrices(q[k], begin + place<D>(warp_row + lane % 16, 2 * k + lane / 16));
    }
    float o[D / 8][4] = {};
    Running running = nothing_yet();
    now_at = next;
    find(1);
    for (u32 n = 0; n < count; n++) {
        const Stage now = stage(n);
        if (n + 1 < count) {
            fetch<D>(a, blocks, sources, next, stage(n + 1));
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        const u32 first_key = now_at;
        now_at = next;
        find(n + 2);
        sync_block();
        if (a.key_turn.half > 0) {
            const u32* positions = reinterpret_cast<const u32*>(shared + (now.positions - begin));
            turn_keys<D, T, STEP<D>>(a.key_turn, positions, shared + (now.k - begin));
            sync_block();
        }
        float s[STEP<D> / 2], shrink[2];
        if constexpr (IN_REGISTERS) {
            dot_products<D, T>(s, q, now.k);
        } else {
            dot_products_of_shared<D, T>(s, begin, warp_row, now.k);
        }
        if (item.begin + n / STEPS_A_TILE<D> < item.whole) hide(s, sight, first_key + 2 * (lane % 4));
        softmax_step(s, running, shrink, a.scale_log2);
#pragma unroll
        for (u32 j = 0; j < D / 8; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) o[j][i] *= shrink[i / 2];
        add_values<D, T>(o, s, now.v);
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
