// Rotary position embedding of x [rows, heads, head_dim]: pairs of a head's first 2 * half dimensions turn by the angle of the
// row's position, the others pass. cos and sin are tables [positions, half].
#include "elements.cuh"

struct Shape {
    u32 rows, heads, head_dim, half;
};

/// A unit of work: eight pairs (or four, interleaved) or eight numbers that pass; `first` and `second` are places in a head.
struct Unit {
    u64 row, start;  // start: where the head begins
    u32 index;
};

/// Which row, head and unit this thread has, of `units` a head; false if none.
DEVICE bool unit_of_thread(const Shape& shape, u32 units, Unit* unit) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 head = thread / units;
    unit->index = (u32)(thread - head * units);
    unit->row = head / shape.heads;
    unit->start = head * shape.head_dim;
    return unit->row < shape.rows;
}

/// Pairs i and i + half, or 2i and 2i + 1; `half` and `head_dim` are multiples of 8 and the addresses of 16 bytes.
template <typename T>
DEVICE void turn_eights(Stored<T>* out, const Stored<T>* x, const u32* positions, const float* cos, const float* sin,
                        const Shape& shape, bool interleaved) {
    const u32 turning = interleaved ? shape.half / 4 : shape.half / 8;
    Unit unit;
    if (!unit_of_thread(shape, turning + (shape.head_dim - 2 * shape.half) / 8, &unit)) return;
    float a[8], b[8], c[8], s[8];
    if (unit.index >= turning) {
        const u64 place = unit.start + 2 * shape.half + 8 * (unit.index - turning);
        Element<T>::load8(x + place, a);
        Element<T>::store8(out + place, a);
        return;
    }
    const u64 angles = (u64)positions[unit.row] * shape.half;
    if (interleaved) {
        const u64 place = unit.start + 8 * unit.index;
        Element<T>::load8(x + place, a);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float cosine = cos[angles + 4 * unit.index + e], sine = sin[angles + 4 * unit.index + e];
            b[2 * e] = a[2 * e] * cosine - a[2 * e + 1] * sine;
            b[2 * e + 1] = a[2 * e + 1] * cosine + a[2 * e] * sine;
        }
        Element<T>::store8(out + place, b);
        return;
    }
    const u64 place = unit.start + 8 * unit.index;
    Element<T>::load8(x + place, a);
    Element<T>::load8(x + place + shape.half, b);
    Element<F32>::load8(cos + angles + 8 * unit.index, c);
    Element<F32>::load8(sin + angles + 8 * unit.index, s);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float left = a[e], right = b[e];
        a[e] = left * c[e] - right * s[e];
        b[e] = right * c[e] + left * s[e];
    }
    Element<T>::store8(out + place, a);
    Element<T>::store8(out + place + shape.half, b);
}

/// The same for any shape, a pair or a passing number a thread.
template <typename T>
DEVICE void turn_pairs(Stored<T>* out, const Stored<T>* x, const u32* positions, const float* cos, const float* sin,
                       const Shape& shape, bool interleaved) {
    Unit unit;
    if (!unit_of_thread(shape, shape.head_dim - shape.half, &unit)) return;
    if (unit.index >= shape.half) {
        const u64 place = unit.start + shape.half + unit.index;
        Element<T>::store(out + place, Element<T>::load(x + place));
        return;
    }
    const u64 angle = (u64)positions[unit.row] * shape.half + unit.index;
    const u64 first = unit.start + (interleaved ? 2 * unit.index : unit.index);
    const u64 second = first + (interleaved ? 1 : shape.half);
    const float left = Element<T>::load(x + first), right = Element<T>::load(x + second);
    Element<T>::store(out + first, left * cos[angle] - right * sin[angle]);
    Element<T>::store(out + second, right * cos[angle] + left * sin[angle]);
}

#define DEFINE(T, suffix)                                                                                                      \
    KERNEL(256, 1)                                                                                                             \
    rope_##suffix(Stored<T>* out, const Stored<T>* x, const u32* positions, const float* cos, const float* sin, u32 rows,      \
                  u32 heads, u32 head_dim, u32 half, u32 interleaved) {                                                        \
        turn_eights<T>(out, x, positions, cos, sin, Shape{rows, heads, head_dim, half}, interleaved);                          \
    }                                                                                                                          \
    EXPORT(rope_##suffix)                                                                                                      \
    KERNEL(256, 1)                                                                                                             \
    rope_pairs_##suffix(Stored<T>* out, const Stored<T>* x, const u32* positions, const float* cos, const float* sin,          \
                        u32 rows, u32 heads, u32 head_dim, u32 half, u32 interleaved) {                                        \
        turn_pairs<T>(out, x, positions, cos, sin, Shape{rows, heads, head_dim, half}, interleaved);                           \
    }                                                                                                                          \
    EXPORT(rope_pairs_##suffix)
FOR_EACH_TYPE(DEFINE)
