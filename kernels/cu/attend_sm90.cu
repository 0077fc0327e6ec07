// Attention of many query rows on Hopper: keys and values come packed (pack_sm90), a thread of its own sets out for tile after
// tile with the bulk copy engine, and two warpgroups of 64 rows each multiply on the tensor cores (wgmma).
//
// The order of work is that of FlashAttention-3 (Shah et al. 2024, sections 3.1 and 3.2): within a warpgroup the products of
// the next tile of keys run while the softmax of this one is computed, and the two warpgroups take turns, so that the softmax
// of one hides under the products of the other.
//
// A block stays on its multiprocessor and takes item after item: the fetching thread is at the next item's tiles while the
// warpgroups write the last one's results.
#include "query_rows.cuh"
#include "wgmma.cuh"

static constexpr u32 ROWS = 128;  // of a query tile; 64 a warpgroup
static constexpr u32 KEYS = 128;
static constexpr u32 STAGES = 2;
static constexpr u32 THREADS = 384;  // a warpgroup that fetches, two that compute
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
    static constexpr u32 k_at = q_bytes;
    static constexpr u32 v_at = k_at + STAGES * k_bytes;
    static constexpr u32 barriers_at = v_at + STAGES * v_bytes;
    static constexpr u32 tasks_at = barriers_at + 3 * 16 * STAGES;
};

/// Barriers of the stages of keys, values or tasks: what is there, and what has been read.
struct Ring {
    u32 barriers;

    DEVICE u32 full(u32 n) const { return barriers + 8 * (n % STAGES); }
    DEVICE u32 empty(u32 n) const { return barriers + 8 * (STAGES + n % STAGES); }
    /// Waits for number n to be there.
    DEVICE void wait(u32 n) const { mbarrier_wait(full(n), n / STAGES % 2); }
    /// Waits until there is room for number n.
    DEVICE void wait_for_room(u32 n) const { mbarrier_wait(empty(n), n / STAGES % 2 ^ 1); }
    /// One arrival a warp: it no longer reads number n.
    DEVICE void release(u32 n) const { mbarrier_arrive_if(empty(n), lane_id() == 0); }
    /// Every stage is empty.
    DEVICE void begin() const {
        for (u32 stage = 0; stage < STAGES; stage++) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), 8);  // warps that compute
        }
    }
};

/// The block's shared memory.
struct Shared {
    u8* bytes;
    u32 base;
    Ring k, v, tasks;
};

template <int D>
DEVICE Shared layout() {
    u8* bytes = dynamic_shared();
    const u32 base = shared_address(bytes), barriers = base + Tiles<D>::barriers_at;
    return Shared{bytes, base, Ring{barriers}, Ring{barriers + 16 * STAGES}, Ring{barriers + 32 * STAGES}};
}

/// One thread fetches the tiles of item after item, as far ahead as there is room.
template <int D>
DEVICE void fetch_all(const AttendArguments& a, const Shared& shared) {
    using Tile = Tiles<D>;
    Task* tasks = reinterpret_cast<Task*>(shared.bytes + Tile::tasks_at);
    const u32 all = a.item_count * a.kv_heads;
    u32 tiles = 0;
    for (u32 work = blockIdx.x, round = 0;; round++) {
        u32 kv_head = work < all ? work / a.item_count : 0;
        const Item item = a.items[work < all ? work - kv_head * a.item_count : 0];
        if (work >= all) kv_head = NO_TASK;
        shared.tasks.wait_for_room(round);
        tasks[round % STAGES] = Task{kv_head, item};
        mbarrier_arrive_if(shared.tasks.full(round), true);
        if (kv_head == NO_TASK) return;
        work = gridDim.x + add_atomic(a.taken, 1);  // comes while the tiles are fetched
#pragma unroll 1
        for (u32 n = item.list_begin; n < item.list_end; n++, tiles++) {
            const u64 tile = (u64)kv_head * a.key_tiles + (a.tiles[n] & ~MASKED);
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
DEVICE void next_tile(const Shared& shared, u32 n, u32 group, const Sight (&sight)[2], u32 first_key, float scale_log2,
                      float (&o)[D / 2], float (&s)[KEYS / 2], u32 (&p)[KEYS / 16][4], Running& running) {
    using Tile = Tiles<D>;
    float shrink[2];
    shared.k.wait(n);
    shared.v.wait(n - 1);
    barrier_sync(TURN + group, 256);
    hold(o);
    hold(p);
    warpgroup_begin();
    start_dot_products<D, T>(s, shared.base + group * 64 * TILE_ROW_BYTES,
                             shared.base + Tile::k_at + n % STAGES * Tile::k_bytes);
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

/// Attention of a warpgroup's 64 rows of an item to its tiles of keys, the first of which is number `n` of the block.
template <int D, typename T>
DEVICE void attend_item(const AttendArguments& a, const Shared& shared, const Item& item, u32 n, u32 group,
                        const Sight (&sight)[2], float (&o)[D / 2], Running& running) {
    using Tile = Tiles<D>;
    const u32 column = 2 * (threadIdx.x % 4), end = n + item.list_end - item.list_begin;
    const u32 whole = n + item.whole_begin - item.list_begin;
    const u32* tiles = a.tiles + item.list_begin - n;
    float s[KEYS / 2], shrink[2];
    u32 p[KEYS / 16][4];
    shared.k.wait(n);
    warpgroup_begin();
    start_dot_products<D, T>(s, shared.base + group * 64 * TILE_ROW_BYTES,
                             shared.base + Tile::k_at + n % STAGES * Tile::k_bytes);
    warpgroup_wait<0>();
    hold(s);
    shared.k.release(n);
    if (n < whole) hide(s, sight, (tiles[n] & ~MASKED) * KEYS + column);
    softmax_step(s, running, shrink, a.scale_log2);
    narrow_weights<T>(p, s);
    // A loop for each kind, without a branch inside: products under way stop at the end of a block of code.
    for (n++; n < whole; n++) {
        const u32 first_key = (tiles[n] & ~MASKED) * KEYS + column;
        next_tile<D, T, true>(shared, n, group, sight, first_key, a.scale_log2, o, s, p, running);
    }
    for (; n < end; n++) next_tile<D, T, false>(shared, n, group, sight, 0, a.scale_log2, o, s, p, running);
    shared.v.wait(end - 1);
    hold(o);
    hold(p);
    warpgroup_begin();
    start_values<D, T>(o, p, shared.base + Tile::v_at + (end - 1) % STAGES * Tile::v_bytes);
    warpgroup_wait<0>();
    hold(o);
    shared.v.release(end - 1);
}

/// What one of the two computing warpgroups does.
template <int D, typename T>
DEVICE void compute(const AttendArguments& a, const Shared& shared, u32 group) {
    const Task* tasks = reinterpret_cast<const Task*>(shared.bytes + Tiles<D>::tasks_at);
    const u32 warp_row = 64 * group + threadIdx.x % 128 / 32 * 16;
    const auto at = [&](u32 row, u32 piece) { return shared.bytes + piece / 8 * BLOCK_BYTES + swizzled(row, piece % 8); };
    if (group == 1) barrier_arrive(TURN, 256);  // the first group has the first turn
    u32 tiles = 0;
    for (u32 round = 0;; round++) {
        shared.tasks.wait(round);
        const Task task = tasks[round % STAGES];
        sync_warp();
        shared.tasks.release(round);
        if (task.kv_head == NO_TASK) return;
        const Item& item = task.item;
        const QueryTile tile(a, item.tile, ROWS);
        const u32 count = uniform(item.list_end - item.list_begin);
        Sight sight[2];
        load_sight(a, tile, warp_row + lane_id() / 4, sight);
        barrier_sync(ALONE + group, 128);  // the last item's results have left the place of the queries
        load_queries<D, T>(a, tile, task.kv_head, 64 * group,
                           [&](u32 row, u32 piece, const Bytes16& x) { store16(at(row, piece), x); });
        shared_fence();
        barrier_sync(ALONE + group, 128);
        float o[D / 2] = {};
        Running running = nothing_yet();
        if (count > 0) attend_item<D, T>(a, shared, item, tiles, group, sight, o, running);
        tiles += count;
        const auto result = [&](u32 j, u32 i) { return o[4 * j + i]; };
        if (item.slot != NO_SLOT) {
            write_part<D>(a, item.slot, task.kv_head, ROWS, warp_row, running, result);
            continue;
        }
        barrier_sync(ALONE + group, 128);  // nobody reads the queries any more
        write_rows<D, T>(a, tile, task.kv_head, warp_row, running, result, at);
    }
}

template <int D, typename T>
DEVICE void attend(const AttendArguments& a) {
    const Shared shared = layout<D>();
    if (threadIdx.x == 0) {
        shared.k.begin();
        shared.v.begin();
        shared.tasks.begin();
        mbarrier_fence();
    }
    sync_block();
    const u32 role = uniform(threadIdx.x / 128);
    if (role == 0) {
        registers_give<40>();
        if (threadIdx.x == 0) fetch_all<D>(a, shared);
    } else {
        registers_take<232>();
        compute<D, T>(a, shared, role - 1);
    }
}

#define ATTEND(D, T, type)                                                                      \
    KERNEL(THREADS, 1) attend_sm90_##type##_##D(ARGUMENT AttendArguments a) { attend<D, T>(a); } \
    EXPORT(attend_sm90_##type##_##D)

EACH_WIDE_HEAD(ATTEND)
