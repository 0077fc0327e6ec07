// Attention of many query rows on Hopper: keys and values come packed (pack_sm90), a thread of its own sets out for tile after
// tile with the bulk copy engine, and two warpgroups of 64 rows each multiply on the tensor cores (wgmma).
//
// The order of work is that of FlashAttention-3 (Shah et al. 2024, sections 3.1 and 3.2): within a warpgroup the products of
// the next tile of keys run while the softmax of this one is computed, and the two warpgroups take turns, so that the softmax
// of one hides under the products of the other.
//
// A block stays on its multiprocessor and takes item after item: the fetching thread is at the next item's tiles, and the other
// warps of its group at its queries, while the warpgroups write the last one's results.
#include "query_rows.cuh"
#include "ring.cuh"
#include "wgmma.cuh"

static constexpr u32 ROWS = 128;  // of a query tile; 64 a warpgroup
static constexpr u32 KEYS = 128;
static constexpr u32 THREADS = 384;  // a warpgroup that fetches, two that compute
static constexpr u32 FETCHERS = 96;  // threads that fetch queries
static constexpr u32 BLOCK_BYTES = KEYS * TILE_ROW_BYTES;  // 128 rows of 64 numbers
/// Named barriers: one for each computing warpgroup alone, one for each one's turn at the tensor cores.
static constexpr u32 ALONE = 1, TURN = 3;

/// What a block is to do next, told to the computing warpgroups by the fetching thread.
struct Task {
    u32 kv_head;  // NO_TASK: nothing, nor ever again
    Item item;
};
static constexpr u32 NO_TASK = 0xffffffffu;

template <int D>
struct Tiles {
    static constexpr u32 q_bytes = (D + 63) / 64 * BLOCK_BYTES;
    static constexpr u32 k_bytes = (D + 63) / 64 * BLOCK_BYTES;
    static constexpr u32 v_bytes = KEYS / 64 * D * TILE_ROW_BYTES;
    static constexpr u32 k_at = STAGES * q_bytes;
    static constexpr u32 v_at = k_at + STAGES * k_bytes;
    static constexpr u32 barriers_at = v_at + STAGES * v_bytes;
    static constexpr u32 tasks_at = barriers_at + 4 * 16 * STAGES;
};

/// The block's shared memory.
struct Shared {
    u8* bytes;
    u32 base;
    Ring q, k, v, tasks;
};

template <int D>
DEVICE Shared layout() {
    u8* bytes = dynamic_shared();
    const u32 base = shared_address(bytes), barriers = base + Tiles<D>::barriers_at;
    const auto ring = [=](u32 n) { return Ring{barriers + 16 * STAGES * n}; };
    return Shared{bytes, base, ring(0), ring(1), ring(2), ring(3)};
}

/// The block's next task, for every thread of a warp.
template <int D>
DEVICE Task next_task(const Shared& shared, u32 round) {
    shared.tasks.wait(round);
    const Task task = reinterpret_cast<const Task*>(shared.bytes + Tiles<D>::tasks_at)[round % STAGES];
    sync_warp();
    shared.tasks.release(round);
    return task;
}

/// Where a piece of a row of item number `round`'s queries stands.
template <int D>
DEVICE u32 query_place(u32 round, u32 row, u32 piece) {
    return round % STAGES * Tiles<D>::q_bytes + piece / 8 * BLOCK_BYTES + swizzled(row, piece % 8);
}

/// One thread fetches the tiles of item after item, as far ahead as there is room. The first item is taken as the others are: a
/// block that starts late, where another kernel has its multiprocessor, holds none back.
template <int D>
DEVICE void fetch_all(const AttendArguments& a, const Shared& shared) {
    using Tile = Tiles<D>;
    Task* tasks = reinterpret_cast<Task*>(shared.bytes + Tile::tasks_at);
    const u32 all = a.item_count * a.kv_heads;
    u32 tiles = 0;
    for (u32 work = add_atomic(a.taken, 1), round = 0;; round++) {
        u32 kv_head = work < all ? work / a.item_count : 0;
        const Item item = a.items[work < all ? work - kv_head * a.item_count : 0];
        if (work >= all) kv_head = NO_TASK;
        shared.tasks.wait_for_room(round);
        tasks[round % STAGES] = Task{kv_head, item};
        mbarrier_arrive_if(shared.tasks.full(round), true);
        if (kv_head == NO_TASK) return;
        work = add_atomic(a.taken, 1);  // comes while the tiles are fetched
#pragma unroll 1
        for (u32 n = item.begin; n < item.end; n++, tiles++) {
            const u64 tile = (u64)kv_head * a.key_tiles + key_tile(item, a.masked, n);
            const u32 stage = tiles % STAGES;
            shared.k.wait_for_room(tiles);
            mbarrier_arrive_expect(shared.k.full(tiles), Tile::k_bytes);
            copy_bulk(shared.base + Tile::k_at + stage * Tile::k_bytes, a.packed_k + tile * Tile::k_bytes, Tile::k_bytes,
                      shared.k.full(tiles));
            shared.v.wait_for_room(tiles);
            mbarrier_arrive_expect(shared.v.full(tiles), Tile::v_bytes);
            copy_bulk(shared.base + Tile::v_at + stage * Tile::v_bytes, a.packed_v + tile * Tile::v_bytes, Tile::v_bytes,
                      shared.v.full(tiles));
        }
    }
}

/// Three warps fetch the queries of item after item, one item ahead, as they lie.
template <int D>
DEVICE void fetch_queries(const AttendArguments& a, const Shared& shared) {
    for (u32 round = 0;; round++) {
        const Task task = next_task<D>(shared, round);
        if (task.kv_head == NO_TASK) return;
        const QueryTile tile(a, task.item.tile, ROWS);
        shared.q.wait_for_room(round);
#pragma unroll 2
        for (u32 i = threadIdx.x - 32; i < ROWS * (D / 8); i += FETCHERS) {
            const u32 row = i / (D / 8), piece = i % (D / 8), number = a.rows[tile.place(row)];
            const u16* from = query<D>(a, tile, task.kv_head, row, number) + 8 * piece;
            copy16_async_or_zero(shared.base + query_place<D>(round, row, piece), from, true);
        }
        copies_commit();
        copies_wait<0>();
        sync_warp();
        mbarrier_arrive_if(shared.q.full(round), lane_id() == 0);
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

/// The products of tile n of keys, the values of the tile before, and the softmax of tile n under the latter.
template <int D, typename T, bool Masked>
DEVICE void next_tile(const Shared& shared, u32 n, u32 group, u32 q, const Sight (&sight)[2], u32 first_key, float scale_log2,
                      float (&o)[D / 2], float (&s)[KEYS / 2], u32 (&p)[KEYS / 16][4], Running& running) {
    using Tile = Tiles<D>;
    float shrink[2];
    shared.k.wait(n);
    shared.v.wait(n - 1);
    barrier_sync(TURN + group, 256);
    hold(o);
    hold(p);
    warpgroup_begin();
    start_dot_products<D, T>(s, q, shared.base + Tile::k_at + n % STAGES * Tile::k_bytes);
    start_values<D, T>(o, p, shared.base + Tile::v_at + (n - 1) % STAGES * Tile::v_bytes);
    barrier_arrive(TURN + (group ^ 1), 256);
    warpgroup_wait<1>();
    hold(s);
    shared.k.release(n);
    if constexpr (Masked) hide(s, sight, first_key);
    softmax_step(s, running, shrink, scale_log2);
    // The softmax is to run while the values are multiplied: it must not sink below the wait.
    hold(s);
    hold(shrink);
    hold(running.max);
    done_before_waits(fminf(running.sum[0], running.sum[1]), shared.base);
    warpgroup_wait<0>();
    hold(o);
    shared.v.release(n - 1);
    narrow_weights<T>(p, s);
#pragma unroll
    for (u32 i = 0; i < D / 2; i++) o[i] *= shrink[i / 2 % 2];
}

/// Attention of a warpgroup's 64 rows of an item, at `q`, to its tiles of keys, the first of which is number `n` of the block.
template <int D, typename T>
DEVICE void attend_item(const AttendArguments& a, const Shared& shared, const Item& item, u32 n, u32 group, u32 q,
                        const Sight (&sight)[2], float (&o)[D / 2], Running& running) {
    using Tile = Tiles<D>;
    const u32 column = 2 * (threadIdx.x % 4), end = n + item.end - item.begin;
    const u32 whole = n + item.whole - item.begin;
    const u32* masked = a.masked + item.begin - n;
    float s[KEYS / 2], shrink[2];
    u32 p[KEYS / 16][4];
    shared.k.wait(n);
    warpgroup_begin();
    start_dot_products<D, T>(s, q, shared.base + Tile::k_at + n % STAGES * Tile::k_bytes);
    warpgroup_wait<0>();
    hold(s);
    shared.k.release(n);
    if (n < whole) hide(s, sight, masked[n] * KEYS + column);
    softmax_step(s, running, shrink, a.scale_log2);
    narrow_weights<T>(p, s);
    // A loop for each kind, without a branch inside: products under way stop at the end of a block of code.
    for (n++; n < whole; n++) {
        const u32 first_key = masked[n] * KEYS + column;
        next_tile<D, T, true>(shared, n, group, q, sight, first_key, a.scale_log2, o, s, p, running);
    }
    for (; n < end; n++) next_tile<D, T, false>(shared, n, group, q, sight, 0, a.scale_log2, o, s, p, running);
    shared.v.wait(end - 1);
    hold(o);
    hold(p);
    warpgroup_begin();
    start_values<D, T>(o, p, shared.base + Tile::v_at + (end - 1) % STAGES * Tile::v_bytes);
    warpgroup_wait<0>();
    hold(o);
    shared.v.release(end - 1);
}

/// Turns a warpgroup's 64 queries where they lie.
template <int D, typename T>
DEVICE void turn_queries(const AttendArguments& a, const Shared& shared, const QueryTile& tile, u32 group, u32 round) {
    const Pieces<D> pieces(a, tile, 64 * group);
    const auto at = [&](u32 k, u32 piece) { return shared.bytes + query_place<D>(round, pieces.row[k], piece); };
    Bytes16 x[Pieces<D>::COUNT];
    shared.q.wait(round);
    load_all_turned<T>(x, [&](u32 k, u32 dim) { return load16(at(k, dim / 8)); }, pieces.piece, pieces.position, a.turn);
    barrier_sync(ALONE + group, 128);  // everybody has read
#pragma unroll
    for (u32 k = 0; k < Pieces<D>::COUNT; k++) store16(at(k, pieces.piece[k]), x[k]);
    shared_fence();
    barrier_sync(ALONE + group, 128);
}

/// What one of the two computing warpgroups does.
template <int D, typename T>
DEVICE void compute(const AttendArguments& a, const Shared& shared, u32 group) {
    const u32 warp_row = 64 * group + threadIdx.x % 128 / 32 * 16;
    if (group == 1) barrier_arrive(TURN, 256);  // the first group has the first turn
    u32 tiles = 0;
    for (u32 round = 0;; round++) {
        const Task task = next_task<D>(shared, round);
        if (task.kv_head == NO_TASK) return;
        const Item& item = task.item;
        const QueryTile tile(a, item.tile, ROWS);
        const u32 count = uniform(item.end - item.begin);
        const auto at = [&](u32 row, u32 piece) { return shared.bytes + query_place<D>(round, row, piece); };
        Sight sight[2];
        load_sight(a, tile, warp_row + lane_id() / 4, sight);
        turn_queries<D, T>(a, shared, tile, group, round);
        float o[D / 2] = {};
        Running running = nothing_yet();
        const u32 q = uniform(shared.base + round % STAGES * Tiles<D>::q_bytes + group * 64 * TILE_ROW_BYTES);
        if (count > 0) attend_item<D, T>(a, shared, item, tiles, group, q, sight, o, running);
        tiles += count;
        const auto result = [&](u32 j, u32 i) { return o[4 * j + i]; };
        if (item.slot != NO_SLOT) {
            write_part<D>(a, item.slot, task.kv_head, ROWS, warp_row, running, result);
        } else {
            barrier_sync(ALONE + group, 128);  // the queries are not read any more
            write_rows<D, T>(a, tile, task.kv_head, warp_row, running, result, at);
        }
        sync_warp();
        shared.q.release(round);
    }
}

template <int D, typename T>
DEVICE void attend(const AttendArguments& a) {
    const Shared shared = layout<D>();
    if (threadIdx.x == 0) {
        // What swizzles a tile's rows are bits of the address, for the tensor cores; for stores they are the row's own number.
        must(shared.base % 1024 == 0, "shared memory does not begin at a multiple of 1024");
        // One thread fetches tiles and tells tasks; eight warps compute, three fetch queries.
        shared.q.begin(3, 8);
        shared.k.begin(1, 8);
        shared.v.begin(1, 8);
        shared.tasks.begin(1, 11);
        mbarrier_fence();
    }
    sync_block();
    const u32 role = uniform(threadIdx.x / 128);
    if (role == 0) {
        registers_give<40>();
        if (threadIdx.x == 0) fetch_all<D>(a, shared);
        if (threadIdx.x >= 32) fetch_queries<D>(a, shared);
    } else {
        registers_take<232>();
        compute<D, T>(a, shared, role - 1);
    }
}

#define ATTEND(D, T, type)                                                                      \
    KERNEL(THREADS, 1) attend_sm90_##type##_##D(ARGUMENT AttendArguments a) { attend<D, T>(a); } \
    EXPORT(attend_sm90_##type##_##D)

EACH_WIDE_HEAD(ATTEND)
