// libcublas.so.13 of an emulated machine: plain products of matrices, summed in f32, for what candle and tributary call.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "device.cuh"
#include "order.h"
#include "queue.h"

#define API extern "C" __attribute__((visibility("default")))

extern "C" int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes);

namespace {

const int SUCCESS = 0, INVALID_VALUE = 7, INTERNAL_ERROR = 14, NOT_SUPPORTED = 15;
const int ILLEGAL_ADDRESS = 700;  // the driver's
const int R_32F = 0, R_16F = 2, R_16BF = 14;
const int COMPUTE_32F = 68;

struct Handle {
    void* stream = nullptr;
    int pointer_mode = 0;
};

/// A column-major matrix of one of the three types.
struct Matrix {
    void* data;
    int type;
    int64_t leading;

    size_t at(int64_t row, int64_t column) const { return size_t(row + column * leading); }
    float get(int64_t row, int64_t column) const {
        size_t i = at(row, column);
        if (type == R_32F) return static_cast<float*>(data)[i];
        u16 bits = static_cast<u16*>(data)[i];
        return type == R_16F ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
    void set(int64_t row, int64_t column, float x) const {
        size_t i = at(row, column);
        if (type == R_32F) static_cast<float*>(data)[i] = x;
        else static_cast<u16*>(data)[i] = u16(type == R_16F ? f16_of(x) : bf16_of(x));
    }
    bool known() const { return type == R_32F || type == R_16F || type == R_16BF; }
    size_t bytes() const { return type == R_32F ? 4 : 2; }
};

/// op(x) `[rows, columns]` row by row in f32, or its transpose.
std::vector<float> unpacked(const Matrix& x, bool transposed, int rows, int columns, bool by_column) {
    std::vector<float> list(size_t(rows) * columns);
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < columns; c++) {
            float value = transposed ? x.get(c, r) : x.get(r, c);
            list[by_column ? size_t(c) * rows + r : size_t(r) * columns + c] = value;
        }
    }
    return list;
}

/// c `[m, n]` = alpha · op(a) `[m, k]` · op(b) `[k, n]` + beta · c. With beta = 0, c is not read.
void multiply(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const Matrix& a, const Matrix& b,
              float beta, const Matrix& c) {
    std::vector<float> left = unpacked(a, transpose_a, m, k, true);    // [k, m]
    std::vector<float> right = unpacked(b, transpose_b, k, n, true);   // [n, k]
    std::vector<float> sums(m);
    for (int column = 0; column < n; column++) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int i = 0; i < k; i++) {
            const float factor = right[size_t(column) * k + i];
            const float* values = &left[size_t(i) * m];
            for (int row = 0; row < m; row++) sums[row] += factor * values[row];
        }
        for (int row = 0; row < m; row++) {
            float before = beta == 0 ? 0 : beta * c.get(row, column);
            c.set(row, column, alpha * sums[row] + before);
        }
    }
}

struct Batch {
    long long a, b, c;
    int count;
};

int multiply_batch(void* handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha, Matrix a, Matrix b,
                   const void* beta, Matrix c, Batch batch, int compute) {
    if (compute != COMPUTE_32F || !a.known() || !b.known() || !c.known() || a.type != b.type) return NOT_SUPPORTED;
    if (static_cast<Handle*>(handle)->pointer_mode != 0) return NOT_SUPPORTED;
    bool fits = a.leading >= (transpose_a ? k : m) && b.leading >= (transpose_b ? n : k) && c.leading >= m;
    if (m < 0 || n < 0 || k < 0 || !fits) return INVALID_VALUE;
    void* stream = static_cast<Handle*>(handle)->stream;
    for (const void* touched : {a.data, b.data, c.data}) order_touch(stream, touched);
    order_work(stream);
    const float times = *static_cast<const float*>(alpha), more = *static_cast<const float*>(beta);
    auto work = [=] {
        if (stream_fault(stream)) return;
        for (int i = 0; i < batch.count; i++) {
            auto shifted = [&](Matrix x, long long stride) {
                x.data = static_cast<char*>(x.data) + size_t(stride) * i * x.bytes();
                return x;
            };
            multiply(transpose_a, transpose_b, m, n, k, times, shifted(a, batch.a), shifted(b, batch.b), more,
                     shifted(c, batch.c));
        }
    };
    using Work = decltype(work);
    stream_push(stream, [](void* given) {
        std::unique_ptr<Work> mine(static_cast<Work*>(given));
        (*mine)();
    }, new Work(work));
    return SUCCESS;
}

/// Products of one shape, of which a grouped call has `count` after one another.
struct Group {
    bool transpose_a, transpose_b;
    int m, n, k, lda, ldb, ldc, count;
    float alpha, beta;

    bool is_right() const {
        return m >= 0 && n >= 0 && k >= 0 && count >= 0 && lda >= std::max(1, transpose_a ? k : m) &&
               ldb >= std::max(1, transpose_b ? n : k) && ldc >= std::max(1, m);
    }
    /// Whether 16-bit numbers of this place may be read in the widest steps that k allows.
    bool takes(const void* place) const {
        const size_t row = size_t(k) * 2, at = reinterpret_cast<uintptr_t>(place);
        return (row % 16 || at % 16 == 0) && (row % 4 || at % 4 == 0);
    }
};

/// A grouped call, whose matrices' addresses are on the device and are read when its turn comes.
struct Grouped {
    std::vector<Group> groups;
    void* const* a;
    void* const* b;
    void* const* c;
    int type;

    void multiply_all() const {
        size_t i = 0;
        for (const Group& g : groups) {
            for (int one = 0; one < g.count; one++, i++) {
                if (type != R_32F && !(g.takes(a[i]) && g.takes(b[i]) && g.takes(c[i]))) {
                    fprintf(stderr, "emulated cuBLAS: a matrix of a grouped product is misaligned\n");
                    abort();
                }
                multiply(g.transpose_a, g.transpose_b, g.m, g.n, g.k, g.alpha, Matrix{a[i], type, g.lda},
                         Matrix{b[i], type, g.ldb}, g.beta, Matrix{c[i], type, g.ldc});
            }
        }
    }
};

}  // namespace

API int cublasCreate_v2(void** handle) {
    *handle = new Handle{};
    return SUCCESS;
}

API int cublasDestroy_v2(void* handle) {
    delete static_cast<Handle*>(handle);
    // What lies on a spoilt device cannot be freed.
    size_t free_bytes, total_bytes;
    return cuMemGetInfo_v2(&free_bytes, &total_bytes) == ILLEGAL_ADDRESS ? INTERNAL_ERROR : SUCCESS;
}

API int cublasGetVersion_v2(void*, int* version) {
    *version = 130000;
    return SUCCESS;
}

API int cublasSetStream_v2(void* handle, void* stream) {
    static_cast<Handle*>(handle)->stream = stream;
    return SUCCESS;
}

API int cublasSetPointerMode_v2(void* handle, int mode) {
    static_cast<Handle*>(handle)->pointer_mode = mode;
    return SUCCESS;
}

API int cublasGetPointerMode_v2(void* handle, int* mode) {
    *mode = static_cast<Handle*>(handle)->pointer_mode;
    return SUCCESS;
}

API int cublasSetMathMode(void*, int) { return SUCCESS; }
API int cublasSetWorkspace_v2(void*, void*, size_t) { return SUCCESS; }

API int cublasGemmEx(void* handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha, const void* a,
                     int a_type, int lda, const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc,
                     int compute, int) {
    return multiply_batch(handle, transpose_a, transpose_b, m, n, k, alpha, Matrix{const_cast<void*>(a), a_type, lda},
                          Matrix{const_cast<void*>(b), b_type, ldb}, beta, Matrix{c, c_type, ldc}, Batch{0, 0, 0, 1}, compute);
}

API int cublasGemmStridedBatchedEx(void* handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha,
                                   const void* a, int a_type, int lda, long long stride_a, const void* b, int b_type, int ldb,
                                   long long stride_b, const void* beta, void* c, int c_type, int ldc, long long stride_c,
                                   int count, int compute, int) {
    return multiply_batch(handle, transpose_a, transpose_b, m, n, k, alpha, Matrix{const_cast<void*>(a), a_type, lda},
                          Matrix{const_cast<void*>(b), b_type, ldb}, beta, Matrix{c, c_type, ldc},
                          Batch{stride_a, stride_b, stride_c, count}, compute);
}

API int cublasGemmGroupedBatchedEx(void* handle, const int* transpose_a, const int* transpose_b, const int* m, const int* n,
                                   const int* k, const void* alpha, void* const* a, int a_type, const int* lda, void* const* b,
                                   int b_type, const int* ldb, const void* beta, void* const* c, int c_type, const int* ldc,
                                   int count, const int* sizes, int compute) {
    // All of one type, unlike a single product's: the answer of 16-bit numbers has 16 bits too.
    bool known = Matrix{nullptr, a_type, 0}.known() && b_type == a_type && c_type == a_type && compute == COMPUTE_32F;
    if (!known || static_cast<Handle*>(handle)->pointer_mode != 0) return NOT_SUPPORTED;
    void* stream = static_cast<Handle*>(handle)->stream;
    if (count < 0) return INVALID_VALUE;
    Grouped work{{}, a, b, c, a_type};
    for (int i = 0; i < count; i++) {
        work.groups.push_back({transpose_a[i] != 0, transpose_b[i] != 0, m[i], n[i], k[i], lda[i], ldb[i], ldc[i], sizes[i],
                               static_cast<const float*>(alpha)[i], static_cast<const float*>(beta)[i]});
        if (!work.groups.back().is_right()) return INVALID_VALUE;
    }
    for (void* const* list : {a, b, c}) {
        if (!order_is_memory(list)) {
            fprintf(stderr, "emulated cuBLAS: a grouped product's list of matrices is not in a device's memory\n");
            abort();
        }
        order_touch(stream, list);
    }
    order_work(stream);
    struct Task {
        Grouped work;
        void* stream;
    };
    stream_push(stream, [](void* given) {
        std::unique_ptr<Task> mine(static_cast<Task*>(given));
        if (!stream_fault(mine->stream)) mine->work.multiply_all();
    }, new Task{std::move(work), stream});
    return SUCCESS;
}
