// Movement of rows of bytes: picked by index, joined from many, copied from one stride to another.
// A row is a number of words of 1, 2, 4, 8 or 16 bytes, the widest that its length and addresses allow. Blocks along x share
// a row's words, blocks along y the rows. Rows of numbers are added to others in f32.
#include "elements.cuh"

static constexpr u32 MOST_PARTS = 32;

/// Tensors whose rows follow one another: part p holds the rows from first[p] to first[p + 1].
struct Parts {
    const void* rows[MOST_PARTS];
    u32 first[MOST_PARTS + 1];
    u32 count;
};

DEVICE u32 word_of_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

/// Row i of out is row indices[i] of `in`.
template <typename Word>
DEVICE void gather(Word* out, const Word* in, const u32* indices, u32 rows, u32 words) {
    const u32 word = word_of_thread();
    if (word >= words) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        out[(u64)row * words + word] = in[(u64)indices[row] * words + word];
    }
}

template <typename Word>
DEVICE void join(Word* out, const Parts& parts, u32 rows, u32 words) {
    const u32 word = word_of_thread();
    if (word >= words) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        u32 part = 0;
        while (parts.first[part + 1] <= row) part++;
        const Word* from = (const Word*)parts.rows[part] + (u64)(row - parts.first[part]) * words;
        out[(u64)row * words + word] = from[word];
    }
}

/// Rows of `words` words that begin `out_stride` and `in_stride` words apart.
template <typename Word>
DEVICE void copy(Word* out, const Word* in, u64 out_stride, u64 in_stride, u32 rows, u32 words) {
    const u32 word = word_of_thread();
    if (word >= words) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) out[row * out_stride + word] = in[row * in_stride + word];
}

#define DEFINE(Word, bytes)                                                                                                 \
    KERNEL(256, 1)                                                                                                          \
    gather_rows_##bytes(Word* out, const Word* in, const u32* indices, u32 rows, u32 words) {                               \
        gather<Word>(out, in, indices, rows, words);                                                                        \
    }                                                                                                                       \
    EXPORT(gather_rows_##bytes)                                                                                             \
    KERNEL(256, 1) join_rows_##bytes(Word* out, ARGUMENT Parts parts, u32 rows, u32 words) {                                \
        join<Word>(out, parts, rows, words);                                                                                \
    }                                                                                                                       \
    EXPORT(join_rows_##bytes)                                                                                               \
    KERNEL(256, 1)                                                                                                          \
    copy_rows_##bytes(Word* out, const Word* in, u64 out_stride, u64 in_stride, u32 rows, u32 words) {                      \
        copy<Word>(out, in, out_stride, in_stride, rows, words);                                                            \
    }                                                                                                                       \
    EXPORT(copy_rows_##bytes)
DEFINE(u8, 1)
DEFINE(u16, 2)
DEFINE(u32, 4)
DEFINE(u64, 8)
DEFINE(Bytes16, 16)

/// Adds to each row of `into` [rows, width] those of `pairs` that are its own, times their weights, one after the other. `list`
/// holds the numbers of each row's pairs, `each` of them a row, then their weights' bits. Eight numbers a thread.
template <typename T>
DEVICE void add_pairs(float* into, const Stored<T>* pairs, const u32* list, u32 rows, u32 each, u32 width, bool aligned) {
    const u32 runs = eighths(width);
    const u64 run = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 row = quotient(run, runs);
    if (row >= rows) return;
    const u32 i = (u32)(run - row * runs) * 8;
    const u32* numbers = list + row * each;
    const float* weights = (const float*)(numbers + (u64)rows * each);
    float sums[8];
    load_some<F32>(into + row * width + i, width - i, aligned, sums);
#pragma unroll 4
    for (u32 pair = 0; pair < each; pair++) {
        float values[8];
        load_some<T>(pairs + (u64)numbers[pair] * width + i, width - i, aligned, values);
        const float weight = weights[pair];
#pragma unroll
        for (int e = 0; e < 8; e++) sums[e] += weight * values[e];
    }
    store_some<F32>(into + row * width + i, width - i, aligned, sums);
}

#define DEFINE_PAIRS(T, suffix)                                                                                           \
    KERNEL(256, 1)                                                                                                        \
    add_pairs_##suffix(float* into, const Stored<T>* pairs, const u32* list, u32 rows, u32 each, u32 width, u32 aligned) { \
        add_pairs<T>(into, pairs, list, rows, each, width, aligned);                                                      \
    }                                                                                                                     \
    EXPORT(add_pairs_##suffix)
FOR_EACH_TYPE(DEFINE_PAIRS)
