// Attention of many query rows on Hopper: keys and values come packed (pack_sm90), a thread of its own sets out for tile after
// tile with the bulk copy engine, and two warpgroups of 64 rows each multiply on the tensor cores (wgmma).
//
// The order of work is that of FlashAttention-3 (Shah et al. 2024, sections 3.1 and 3.2): within a warpgroup the products of
// the next tile of keys run while the softmax of this one is computed, and the two warpgroups take turns, so that the softmax
// of one hides under the products of the other.
#include "attention.cuh"
#include "wgmma.cuh"

static constexpr u32 ROWS = 128;  // of a query tile; 64 a warpgroup
static constexpr u32 KEYS = 128;
static constexpr u32 STAGES = 2;
static constexpr u32 THREADS = 384;  // a warpgroup that fetches, two that compute
static constexpr u32 BLOCK_BYTES = KEYS * TILE_ROW_BYTES;  // 128 rows of 64 numbers
/// Named barriers: one for each computing warpgroup alone, one for each one's turn at the tensor cores.
static constexpr u32 ALONE = 1, TURN = 3;

template <int D>
struct Tiles {
    static constexpr u32 q_bytes = (D + 63) / 64 * BLOCK_BYTES;
    static constexpr u32 k_bytes = (D + 63) / 64 * BLOCK_BYTES;
    static constexpr u32 v_bytes = KEYS / 64 * D * TILE_ROW_BYTES;
    static constexpr u32 k_at = q_bytes;
    static constexpr u32 v_at = k_at + STAGES * k_bytes;
    static constexpr u32 barriers_at = v_at + STAGES * v_bytes;
};

/// Barriers of one stage of keys or values.
DEVICE u32 full(u32 barriers, u32 stage) { return barriers + 8 * stage; }
DEVICE u32 empty(u32 barriers, u32 stage) { return barriers + 8 * (STAGES + stage); }

/// One thread fetches the item's tiles, as far ahead as there is room.
template <int D>
DEVICE void fetch_all(const AttendArguments& a, const Item& item, u32 shared, u32 k_barriers, u32 v_barriers) {
    using Tile = Tiles<D>;
    const u64 head_tiles = (u64)blockIdx.y * a.key_tiles;
    for (u32 n = 0; n < item.list_end - item.list_begin; n++) {
        const u64 tile = head_tiles + (a.tiles[item.list_begin + n] & ~MASKED);
        const u32 stage = n % STAGES, parity = n / STAGES % 2 ^ 1;
        mbarrier_wait(empty(k_barriers, stage), parity);
        mbarrier_arrive_expect(full(k_barriers, stage), Tile::k_bytes);
        copy_bulk(shared + Tile::k_at + stage * Tile::k_bytes, a.packed_k + tile * Tile::k_bytes, Tile::k_bytes,
                  full(k_barriers, stage));
        mbarrier_wait(empty(v_barriers, stage), parity);
        mbarrier_arrive_expect(full(v_barriers, stage), Tile::v_bytes);
        copy_bulk(shared + Tile::v_at + stage * Tile::v_bytes, a.packed_v + tile * Tile::v_bytes, Tile::v_bytes,
                  full(v_barriers, stage));
    }
}

/// The warpgroup's 64 query rows, turned, to shared memory; rows beyond the last are zero.
template <int D, typename T>
DEVICE void load_queries(const AttendArguments& a, const Item& item, u32 group, u8* q_tile) {
    const u32 rows_per_tile = ROWS / a.group, head = blockIdx.y * a.group;
    for (u32 i = threadIdx.x % 128; i < 64 * (D / 8); i += 128) {
        const u32 row = 64 * group + i / (D / 8), piece = i % (D / 8);
        const u32 at = item.tile * rows_per_tile + row / a.group;
        Bytes16 bytes{0, 0, 0, 0};
        if (row / a.group < rows_per_tile && at < a.queries) {
            const u64 first = ((u64)a.rows[at] * a.kv_heads * a.group + head + row % a.group) * D;
            bytes = load_turned<T>(a.q + first, piece, a.rope[at], a.turn);
        }
        store16(q_tile + piece / 8 * BLOCK_BYTES + swizzled(row, piece % 8), bytes);
    }
}

/// s [64 x 128] = the warpgroup's queries times a tile's keys; under way when it returns.
template <int D, typename T>
DEVICE void start_dot_products(float (&s)[KEYS / 2], u32 q, u32 k) {
    const u64 at_q = tile_descriptor(q), at_k = tile_descriptor(k);
#pragma unroll
    for (u32 step = 0; step < D / 16; step++) {
        const u32 offset = (step / 4 * BLOCK_BYTES + step % 4 * 32) >> 4;  // as descriptors count
        group_multiply<KEYS, T>(s, at_q + offset, at_k + offset, step > 0);
    }
    warpgroup_commit();
}

/// o [64 x D] += weights times a tile's values; under way when it returns.
template <int D, typename T>
DEVICE void start_values(float (&o)[D / 2], const u32 (&p)[KEYS / 16][4], u32 v) {
    const u64 at_v = tile_descriptor(v);
#pragma unroll
    for (u32 step = 0; step < KEYS / 16; step++) {
        const u32 offset = (step / 4 * D * TILE_ROW_BYTES + step % 4 * 32) >> 4;
        group_multiply<D, T>(o, p[step], at_v + offset, true);
    }
    warpgroup_commit();
}

template <typename T>
DEVICE void narrow_weights(u32 (&p)[KEYS / 16][4], const float (&s)[KEYS / 2]) {
#pragma unroll
    for (u32 i = 0; i < KEYS / 4; i++) p[i / 4][i % 4] = T::narrow2(s[2 * i], s[2 * i + 1]);
}

/// One arrival a warp: its products no longer read the stage.
DEVICE void release(u32 barrier) {
    mbarrier_arrive_if(barrier, lane_id() == 0);
}

/// The warpgroup's rows to their place: the output through shared memory (that of its queries), so that rows are written
/// whole; or a partial result.
template <int D, typename T>
DEVICE void write(const AttendArguments& a, const Item& item, u32 group, float (&o)[D / 2], const Running& running, u8* tile) {
    const u32 thread = threadIdx.x % 128, lane = lane_id(), rows_per_tile = ROWS / a.group;
    const u32 first = 64 * group + thread / 32 * 16 + lane / 4;
    float lse[2], factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) factor[half] = softmax_end(running, half, a.scale_log2, lse[half]);
    barrier_sync(ALONE + group, 128);  // nobody reads the queries any more
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = first + 8 * half, at = item.tile * rows_per_tile + row / a.group;
        const bool valid = row / a.group < rows_per_tile && at < a.queries;
        const u64 part = ((u64)item.slot * a.kv_heads + blockIdx.y) * ROWS + row;
        if (item.slot != NO_SLOT && lane % 4 == 0) a.part_lse[part] = lse[half];
        if (item.slot == NO_SLOT && valid && lane % 4 == 0)
            a.lse[((u64)a.rows[at] * a.kv_heads + blockIdx.y) * a.group + row % a.group] = lse[half];
#pragma unroll
        for (u32 j = 0; j < D / 8; j++) {
            const float x = o[4 * j + 2 * half] * factor[half], y = o[4 * j + 2 * half + 1] * factor[half];
            if (item.slot == NO_SLOT) {
                u8* to = tile + j / 8 * BLOCK_BYTES + swizzled(row, j % 8) + 4 * (lane % 4);
                *reinterpret_cast<u32*>(to) = T::narrow2(x, y);
            } else {
                float* to = a.part_out + part * D + 8 * j + 2 * (lane % 4);
                to[0] = x;
                to[1] = y;
            }
        }
    }
    if (item.slot != NO_SLOT) return;
    barrier_sync(ALONE + group, 128);
    for (u32 i = thread; i < 64 * (D / 8); i += 128) {
        const u32 row = 64 * group + i / (D / 8), piece = i % (D / 8), at = item.tile * rows_per_tile + row / a.group;
        if (row / a.group >= rows_per_tile || at >= a.queries) continue;
        const u64 to = (((u64)a.rows[at] * a.kv_heads + blockIdx.y) * a.group + row % a.group) * D + 8 * piece;
        store16(a.out + to, load16(tile + piece / 8 * BLOCK_BYTES + swizzled(row, piece % 8)));
    }
}

/// The products of tile n of keys, the values of the tile before, and the softmax of tile n under the latter.
template <int D, typename T, bool Masked>
DEVICE void next_tile(const AttendArguments& a, u32 n, u32 group, u32 base, u32 k_barriers, u32 v_barriers,
                      const Sight (&sight)[2], u32 first_key, float (&o)[D / 2], float (&s)[KEYS / 2],
                      u32 (&p)[KEYS / 16][4], Running& running) {
    using Tile = Tiles<D>;
    const u32 stage = n % STAGES, before = (n - 1) % STAGES;
    float shrink[2];
    mbarrier_wait(full(k_barriers, stage), n / STAGES % 2);
    mbarrier_wait(full(v_barriers, before), (n - 1) / STAGES % 2);
    barrier_sync(TURN + group, 256);
    hold(o);
    hold(p);
    warpgroup_begin();
    start_dot_products<D, T>(s, base + group * 64 * TILE_ROW_BYTES, base + Tile::k_at + stage * Tile::k_bytes);
    start_values<D, T>(o, p, base + Tile::v_at + before * Tile::v_bytes);
    barrier_arrive(TURN + (group ^ 1), 256);
    warpgroup_wait<1>();
    hold(s);
    release(empty(k_barriers, stage));
    if constexpr (Masked) hide(s, sight, first_key);
    softmax_step(s, running, shrink, a.scale_log2);
    // The softmax is to run while the values are multiplied: it must not sink below the wait.
    hold(s);
    hold(shrink);
    hold(running.max);
    hold(running.sum);
    warpgroup_wait<0>();
    hold(o);
    release(empty(v_barriers, before));
    narrow_weights<T>(p, s);
#pragma unroll
    for (u32 i = 0; i < D / 2; i++) o[i] *= shrink[i / 2 % 2];
}

/// What one of the two computing warpgroups does.
template <int D, typename T>
DEVICE void compute(const AttendArguments& a, const Item& item, u32 group, u8* shared, u32 k_barriers, u32 v_barriers) {
    using Tile = Tiles<D>;
    const u32 base = shared_address(shared), count = item.list_end - item.list_begin;
    const u32 rows_per_tile = ROWS / a.group, column = 2 * (threadIdx.x % 4);
    const u32 q = base + group * 64 * TILE_ROW_BYTES;
    load_queries<D, T>(a, item, group, shared);
    shared_fence();
    barrier_sync(ALONE + group, 128);
    Sight sight[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = (64 * group + threadIdx.x % 128 / 32 * 16 + lane_id() / 4 + 8 * half) / a.group;
        const u32 at = item.tile * rows_per_tile + row;
        sight[half] = row < rows_per_tile && at < a.queries ? a.sight[at] : Sight{0, 0, 0};
    }
    float o[D / 2] = {}, s[KEYS / 2], shrink[2];
    u32 p[KEYS / 16][4];
    Running running = nothing_yet();
    if (group == 1) barrier_arrive(TURN, 256);  // the first group has the first turn
    if (count > 0) {
        mbarrier_wait(full(k_barriers, 0), 0);
        warpgroup_begin();
        start_dot_products<D, T>(s, q, base + Tile::k_at);
        warpgroup_wait<0>();
        hold(s);
        release(empty(k_barriers, 0));
        const u32 entry = a.tiles[item.list_begin];
        if (entry & MASKED) hide(s, sight, (entry & ~MASKED) * KEYS + column);
        softmax_step(s, running, shrink, a.scale_log2);
        narrow_weights<T>(p, s);
    }
    for (u32 n = 1; n < count; n++) {
        const u32 entry = a.tiles[item.list_begin + n];
        const u32 first = (entry & ~MASKED) * KEYS + column;
        // Two copies without a branch inside: products under way stop at the end of a block of code.
        if (entry & MASKED) {
            next_tile<D, T, true>(a, n, group, base, k_barriers, v_barriers, sight, first, o, s, p, running);
        } else {
            next_tile<D, T, false>(a, n, group, base, k_barriers, v_barriers, sight, first, o, s, p, running);
        }
    }
    if (count > 0) {
        const u32 last = (count - 1) % STAGES;
        mbarrier_wait(full(v_barriers, last), (count - 1) / STAGES % 2);
        hold(o);
        hold(p);
        warpgroup_begin();
        start_values<D, T>(o, p, base + Tile::v_at + last * Tile::v_bytes);
        warpgroup_wait<0>();
        hold(o);
    }
    write<D, T>(a, item, group, o, running, shared);
}

template <int D, typename T>
DEVICE void attend(const AttendArguments& a) {
    u8* shared = dynamic_shared();
    const u32 k_barriers = shared_address(shared) + Tiles<D>::barriers_at, v_barriers = k_barriers + 16 * STAGES;
    const Item item = a.items[blockIdx.x];
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; stage++) {
            mbarrier_init(full(k_barriers, stage), 1);
            mbarrier_init(full(v_barriers, stage), 1);
            mbarrier_init(empty(k_barriers, stage), 8);  // warps that compute
            mbarrier_init(empty(v_barriers, stage), 8);
        }
        mbarrier_fence();
    }
    sync_block();
    const u32 role = uniform(threadIdx.x / 128);
    if (role == 0) {
        registers_give<24>();
        if (threadIdx.x == 0) fetch_all<D>(a, item, shared_address(shared), k_barriers, v_barriers);
    } else {
        registers_take<240>();
        compute<D, T>(a, item, role - 1, shared, k_barriers, v_barriers);
    }
}

#define ATTEND(D, T, type)                                                                      \
    KERNEL(THREADS, 1) attend_sm90_##type##_##D(ARGUMENT AttendArguments a) { attend<D, T>(a); } \
    EXPORT(attend_sm90_##type##_##D)

EACH_WIDE_HEAD(ATTEND)
