// What the attention kernels share: their arguments, the sight of a query row, the rotation of keys and queries on load, and
// the running softmax.
//
// The host (kernels/src/cuda/sight.rs) puts keys in an order in which every query row sees at most two runs of them: keys of
// the shared segment between two places, and keys of its own segment between two others. Query rows are put in the same order,
// `group` heads of a row side by side, so that a tile of query rows has a narrow staircase. The tiles of keys that any row of a tile of
// query rows sees have numbers: first those that not all rows see whole, which are listed, then the others, which are two runs.
#pragma once

#include "device.cuh"

/// Blocks of keys that one launch can reach.
static constexpr u32 MAX_BLOCKS = 240;
/// A key's place: block in the high bits, row within it in the low ones.
static constexpr u32 ROW_BITS = 22;
/// An item that is the only one of its query tile has no slot for a partial result.
static constexpr u32 NO_SLOT = 0xffffffffu;

/// Where blocks of keys and values begin, each [rows, kv_heads, head_dim] of 16-bit numbers.
struct Blocks {
    const u16* k[MAX_BLOCKS];
    const u16* v[MAX_BLOCKS];
};

/// The rotary embedding. half = 0: none.
struct Turn {
    const float* cosine;  // [positions, half]
    const float* sine;
    u32 half;  // dims half..2 half turn with dims 0..half, or neighbours with each other
    u32 interleaved;
};

/// The keys that a query row sees: places from shared_begin to shared_end, and those from begin to end.
struct Sight {
    u32 shared_begin, shared_end, begin, end;
};

/// Work of one block and one KV head: a tile of query rows and some of its tiles of keys, by number from `begin` to `end`. Those before
/// `whole` are listed, and not all rows see them whole; from there to `jump` numbers and tiles are `first` apart, then `second`.
struct Item {
    u32 tile, begin, whole, end, slot, jump, first, second;
};

/// The tile of keys of a number.
DEVICE u32 key_tile(const Item& item, const u32* masked, u32 number) {
    return number < item.whole ? masked[number] : number + (number < item.jump ? item.first : item.second);
}

struct AttendArguments {
    const u16* q;        // [queries, heads, head_dim], before RoPE if turn.half > 0
    const u32* rows;     // [queries]: place to row of q
    const u32* rope;     // [queries]: place to position
    const Sight* sight;  // [queries], by place
    const u32* masked;   // the key tiles that are listed
    const Item* items;
    const u32* key_source;  // [keys]: place to block and row; the first `split`, a multiple of a tile, or all
    const u32* key_rope;    // the same: place to position
    const u32* tail_source;  // of the keys after those
    const u32* tail_rope;
    const u8* packed_k;     // [kv_heads, key tiles, tile]: of pack_sm90, for attend_sm90 only
    const u8* packed_v;
    u16* out;         // [queries, heads, head_dim]
    float* lse;       // [queries, heads]
    float* part_out;  // [slots, kv_heads, tile rows, head_dim]
    float* part_lse;  // [slots, kv_heads, tile rows]
    u32* taken;       // 0: how many items blocks have taken, for attend_sm90 only
    Turn turn;        // of the queries
    Turn key_turn;    // of keys that are turned on load
    u32 queries, keys, kv_heads, group, key_tiles;
    float scale_log2;  // softmax scale / ln 2
    u32 item_count, split;
};

DEVICE const u16* row_of(const u16* const (&blocks)[MAX_BLOCKS], u32 source, u32 row_length) {
    return blocks[source >> ROW_BITS] + (u64)(source & ((1u << ROW_BITS) - 1)) * row_length;
}

/// Without branches: a run's begin is never beyond its end.
DEVICE bool sees(const Sight& sight, u32 key) {
    return (key - sight.shared_begin < sight.shared_end - sight.shared_begin) | (key - sight.begin < sight.end - sight.begin);
}

DEVICE Bytes16 load16(const void* from) { return *static_cast<const Bytes16*>(from); }
DEVICE void store16(void* to, const Bytes16& bytes) { *static_cast<Bytes16*>(to) = bytes; }

/// Count numbers of a table from a multiple of four on.
template <int Count>
DEVICE void load_table(const float* table, float (&x)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
        const Bytes16 bytes = load16(table + i);
        x[i] = float_of_bits(bytes.x), x[i + 1] = float_of_bits(bytes.y);
        x[i + 2] = float_of_bits(bytes.z), x[i + 3] = float_of_bits(bytes.w);
    }
}

/// Turns eight numbers from dim `first` (below `half`) on, and those `half` dims after them, to `position`.
template <typename T>
DEVICE void turn_both(Bytes16& low, Bytes16& high, u32 first, u32 position, const Turn& turn) {
    float x[8], y[8], c[8], s[8], r[8], q[8];
    widen8<T>(low, x);
    widen8<T>(high, y);
    const u64 at = (u64)position * turn.half + first;
    load_table(turn.cosine + at, c);
    load_table(turn.sine + at, s);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        r[i] = x[i] * c[i] - y[i] * s[i];
        q[i] = y[i] * c[i] + x[i] * s[i];
    }
    low = narrow8<T>(r);
    high = narrow8<T>(q);
}

/// Eight numbers of a head, from dim `first` on, turned to `position`; `other` are those `half` dims away.
template <typename T>
DEVICE Bytes16 turned(const Bytes16& bytes, const Bytes16& other, u32 first, u32 position, const Turn& turn) {
    const bool is_low = first < turn.half;
    Bytes16 low = is_low ? bytes : other, high = is_low ? other : bytes;
    turn_both<T>(low, high, is_low ? first : first - turn.half, position, turn);
    return is_low ? low : high;
}

/// The same where neighbours turn with each other.
template <typename T>
DEVICE Bytes16 turned_pairs(const Bytes16& bytes, u32 first, u32 position, const Turn& turn) {
    float x[8], r[8], c[4], s[4];
    widen8<T>(bytes, x);
    const u64 at = (u64)position * turn.half + first / 2;
    load_table(turn.cosine + at, c);
    load_table(turn.sine + at, s);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        r[2 * i] = x[2 * i] * c[i] - x[2 * i + 1] * s[i];
        r[2 * i + 1] = x[2 * i + 1] * c[i] + x[2 * i] * s[i];
    }
    return narrow8<T>(r);
}

/// Piece `piece` (eight dims) of the head at `head`, turned to `position`.
template <typename T>
DEVICE Bytes16 load_turned(const u16* head, u32 piece, u32 position, const Turn& turn) {
    const u32 first = 8 * piece;
    Bytes16 bytes = load16(head + first);
    if (first >= 2 * turn.half) return bytes;
    if (turn.interleaved) return turned_pairs<T>(bytes, first, position, turn);
    const u32 other = first < turn.half ? first + turn.half : first - turn.half;
    return turned<T>(bytes, load16(head + other), first, position, turn);
}

/// The same for several pieces at once, so that their loads are under way together. `load` gives eight numbers of piece i's
/// head from a dim on.
template <typename T, int Count, typename Load>
DEVICE void load_all_turned(Bytes16 (&x)[Count], Load load, const u32 (&piece)[Count], const u32 (&position)[Count],
                            const Turn& turn) {
#pragma unroll
    for (int i = 0; i < Count; i++) x[i] = load(i, 8 * piece[i]);
    if (turn.half == 0) return;
    // What does not turn goes along with dim 0 and is left as it was: no branch stands between the loads.
    if (turn.interleaved) {
#pragma unroll
        for (int i = 0; i < Count; i++) {
            const bool turns = 8 * piece[i] < 2 * turn.half;
            const Bytes16 result = turned_pairs<T>(x[i], turns ? 8 * piece[i] : 0, position[i], turn);
            if (turns) x[i] = result;
        }
        return;
    }
    Bytes16 other[Count];
#pragma unroll
    for (int i = 0; i < Count; i++) {
        const u32 first = 8 * piece[i] < 2 * turn.half ? 8 * piece[i] : 0;
        other[i] = load(i, first < turn.half ? first + turn.half : first - turn.half);
    }
#pragma unroll
    for (int i = 0; i < Count; i++) {
        const bool turns = 8 * piece[i] < 2 * turn.half;
        const Bytes16 result = turned<T>(x[i], other[i], turns ? 8 * piece[i] : 0, position[i], turn);
        if (turns) x[i] = result;
    }
}

/// The softmax of two rows of a tile, as far as keys have come. A thread holds the numbers of its columns; the four threads
/// of a row share its maximum.
///
/// The maximum is kept as the scaled and rounded number that weights are relative to. Where it does not change, earlier results are
/// multiplied by 2^0; were it scaled anew for every tile, the compiler could leave out the rounding of one of two products (a fused
/// multiply-add), and all earlier weights would drift by the difference, tile by tile.
struct Running {
    float max[2];  // of the dot products in powers of two; -inf: nothing seen
    float sum[2];  // of this thread's columns
};

DEVICE Running nothing_yet() { return Running{{NEGATIVE_INFINITY, NEGATIVE_INFINITY}, {0.0f, 0.0f}}; }

/// Turns dot products into weights in place; `shrink` is what earlier results of the two rows must be multiplied by. Register
/// i of `s` belongs to row (i / 2) % 2.
template <int N>
DEVICE void softmax_step(float (&s)[N], Running& running, float (&shrink)[2], float scale_log2) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float largest = NEGATIVE_INFINITY;
#pragma unroll
        for (int i = 0; i < N; i += 4) largest = fmaxf(largest, fmaxf(s[i + 2 * row], s[i + 2 * row + 1]));
        largest = fmaxf(largest, shuffle_xor(largest, 1));
        largest = fmaxf(largest, shuffle_xor(largest, 2));
        const float before = running.max[row];
        running.max[row] = fmaxf(before, largest * scale_log2);
        // A row that has seen nothing has weights exp(-inf - 0) = 0.
        const float origin = running.max[row] == NEGATIVE_INFINITY ? 0.0f : running.max[row];
        shrink[row] = exp2_fast(before - origin);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i += 4) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float weight = exp2_fast(s[i + 2 * row + e] * scale_log2 - origin);
                s[i + 2 * row + e] = weight;
                sum += weight;
            }
        }
        running.sum[row] = running.sum[row] * shrink[row] + sum;
    }
}

/// Ends the softmax of row `row`: what its output must be multiplied by; `lse` in natural units. A row that saw a NaN has NaN for
/// both: only a sum of 0 says that it saw nothing.
DEVICE float softmax_end(const Running& running, int row, float& lse) {
    float sum = running.sum[row];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    lse = sum == 0.0f ? NEGATIVE_INFINITY : (running.max[row] + log2f(sum)) * LN_2;
    return sum == 0.0f ? 0.0f : 1.0f / sum;
}

/// Hides the dot products of keys that the two rows do not see. `first` is the place of this thread's first column; its
/// columns are first, first + 1, first + 8, first + 9, ..
template <int N>
DEVICE void hide(float (&s)[N], const Sight (&sight)[2], u32 first) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const u32 key = first + 8 * (i / 4) + i % 2;
        if (!sees(sight[i / 2 % 2], key)) s[i] = NEGATIVE_INFINITY;
    }
}

/// A kernel for every size of head and every type that tensor cores of a warpgroup are used for.
#define EACH_WIDE_HEAD(KERNEL_OF) \
    KERNEL_OF(64, Bf16, bf16)     \
    KERNEL_OF(96, Bf16, bf16)     \
    KERNEL_OF(128, Bf16, bf16)    \
    KERNEL_OF(64, F16, f16)       \
    KERNEL_OF(96, F16, f16)       \
    KERNEL_OF(128, F16, f16)

/// The same with heads that are smaller or larger.
#define EACH_HEAD(KERNEL_OF)   \
    KERNEL_OF(32, Bf16, bf16)  \
    KERNEL_OF(32, F16, f16)    \
    KERNEL_OF(256, Bf16, bf16) \
    KERNEL_OF(256, F16, f16)   \
    EACH_WIDE_HEAD(KERNEL_OF)
