// Merges the partial results of items that share a tile of query rows: by log-sum-exp, as merge does, so exactly.
//
// A block has one row of a tile (a query row and a head); threads share its dims.
#include "attention.cuh"

/// A query tile in several parts: slots first to first + count - 1.
struct Split {
    u32 tile, first, count;
};

struct CombineArguments {
    const float* part_out;  // [slots, kv_heads, tile rows, head_dim]
    const float* part_lse;  // [slots, kv_heads, tile rows]
    const Split* splits;
    const u32* rows;  // [queries]: place to row
    u16* out;         // [queries, heads, head_dim]
    float* lse;       // [queries, heads]
    u32 queries, kv_heads, group, tile_rows, head_dim;
};

template <typename T>
DEVICE void combine(const CombineArguments& a) {
    const Split split = a.splits[blockIdx.x];
    const u32 row = blockIdx.y, kv_head = blockIdx.z, rows_per_tile = a.tile_rows / a.group;
    const u32 at = split.tile * rows_per_tile + row / a.group;
    if (row / a.group >= rows_per_tile || at >= a.queries) return;
    const u64 stride = (u64)a.kv_heads * a.tile_rows;
    const u64 part = ((u64)split.first * a.kv_heads + kv_head) * a.tile_rows + row;
    // A NaN is no maximum; it comes through by its part's weight, which is NaN too.
    float largest = NEGATIVE_INFINITY;
    for (u32 i = 0; i < split.count; i++) largest = fmaxf(largest, a.part_lse[part + i * stride]);
    const u64 head = ((u64)a.rows[at] * a.kv_heads + kv_head) * a.group + row % a.group;
    // A part that saw nothing is not read. Where none saw anything, the total and all sums are 0.
    const auto saw = [&](u32 i) { return a.part_lse[part + i * stride] != NEGATIVE_INFINITY; };
    const auto weight = [&](u32 i) { return exp2_fast((a.part_lse[part + i * stride] - largest) * LOG2_E); };
    float total = 0.0f;
    for (u32 i = 0; i < split.count; i++) total += saw(i) ? weight(i) : 0.0f;
    const float share = total == 0.0f ? 0.0f : 1.0f / total;
    for (u32 d = threadIdx.x; d < a.head_dim; d += blockDim.x) {
        float sum = 0.0f;
        for (u32 i = 0; i < split.count; i++)
            if (saw(i)) sum += weight(i) * a.part_out[(part + i * stride) * a.head_dim + d];
        a.out[head * a.head_dim + d] = narrow<T>(sum * share);
    }
    if (threadIdx.x == 0) a.lse[head] = total == 0.0f ? NEGATIVE_INFINITY : largest + log2f(total) * LN_2;
}

KERNEL(128, 1) attend_combine_bf16(ARGUMENT CombineArguments a) { combine<Bf16>(a); }
EXPORT(attend_combine_bf16)
KERNEL(128, 1) attend_combine_f16(ARGUMENT CombineArguments a) { combine<F16>(a); }
EXPORT(attend_combine_f16)
