// Movement of rows of bytes: picked by index, joined from many, copied from one stride to another.
// A row is a number of words of 1, 2, 4, 8 or 16 bytes, the widest that its length and addresses allow. Blocks along x share
// a row's words, blocks along y the rows.
#include "device.cuh"

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

/// Adds row i of `rows`, times its weight, to row places[i] of `into`. Places differ; `places` holds them, then the weights'
/// bits.
KERNEL(256, 1) add_rows(float* into, const float* rows, const u32* places, u32 count, u32 width) {
    const u32 column = word_of_thread();
    if (column >= width) return;
    const float* weights = (const float*)(places + count);
    for (u32 row = blockIdx.y; row < count; row += gridDim.y) {
        into[(u64)places[row] * width + column] += weights[row] * rows[(u64)row * width + column];
    }
}
EXPORT(add_rows)
