// The exact merge of partial attentions over disjoint keys: out [rows, head_dim], lse [rows] (a row is a query and a head).
// lse = max + ln(sum of exp(lse_p - max)); out = sum of exp(lse_p - lse) out_p. A part with lse = -inf saw no key and is not
// read; where all have, the row is 0 and its lse -inf.
#include "elements.cuh"

static constexpr u32 MOST_PARTS = 16;

struct Parts {
    const void* out[MOST_PARTS];
    const float* lse[MOST_PARTS];
    u32 count;
};

template <typename T>
DEVICE void merge(Stored<T>* out, float* lse, const Parts& parts, u32 rows, u32 head_dim, bool aligned) {
    const u32 runs = eighths(head_dim);
    const u64 run = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 row = run / runs;
    if (row >= rows) return;
    const u32 i = (u32)(run - row * runs) * 8;
    float top = NEGATIVE_INFINITY;
    // A NaN is no maximum; it comes through by its part's weight, which is NaN too.
    for (u32 p = 0; p < parts.count; p++) top = fmaxf(top, parts.lse[p][row]);
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    float total = 0.0f;
    for (u32 p = 0; p < parts.count; p++) {
        const float own = parts.lse[p][row];
        if (own == NEGATIVE_INFINITY) continue;  // not even a NaN comes through from a side that saw nothing
        const float weight = exp2_fast((own - top) * LOG2_E);
        total += weight;
        float values[8];
        load_some<T>((const Stored<T>*)parts.out[p] + row * head_dim + i, head_dim - i, aligned, values);
#pragma unroll
        for (int e = 0; e < 8; e++) sums[e] += weight * values[e];
    }
    const float share = total == 0.0f ? 0.0f : 1.0f / total;
#pragma unroll
    for (int e = 0; e < 8; e++) sums[e] *= share;
    store_some<T>(out + row * head_dim + i, head_dim - i, aligned, sums);
    if (i == 0) lse[row] = total == 0.0f ? NEGATIVE_INFINITY : top + logf(total);
}

#define DEFINE(T, suffix)                                                                                              \
    KERNEL(256, 1)                                                                                                     \
    merge_##suffix(Stored<T>* out, float* lse, ARGUMENT Parts parts, u32 rows, u32 head_dim, u32 aligned) {            \
        merge<T>(out, lse, parts, rows, head_dim, aligned);                                                            \
    }                                                                                                                  \
    EXPORT(merge_##suffix)
FOR_EACH_TYPE(DEFINE)
