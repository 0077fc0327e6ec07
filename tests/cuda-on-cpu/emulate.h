// Runs the kernels of kernels/cu on the CPU, for tests without a GPU: a CUDA thread is a fiber, the threads of a block take
// turns on one thread of the system, and two blocks do so. Slow, but every index, mask, barrier and fragment is real.
//
// Made to catch mistakes: shared memory begins as NaN; asynchronous copies and warpgroup products happen as late as the kernel's
// waits allow, and a copy's destination is NaN until then; threads that should meet at an instruction and do not, or that wait
// for ever, end the program with their names; stores that tensor cores or copy engine may not see do so too (proxies.h).
//
// Environment variables: EMULATED_BLOCKS, how many blocks of a grid run at a time (2); EMULATED_NOISE, units in the last place by which
// approximate instructions are off (0); EMULATED_WITHOUT, an instruction that does nothing (shared_fence or mbarrier_fence), as if the
// kernel lacked it; EMULATED_SHARED_BASE, below.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

/// A kernel as the emulated driver finds it.
struct EmulatedKernel {
    const char* name;
    void (*invoke)(void** params);
    /// Bytes of each parameter, and their number.
    const unsigned* param_bytes;
    unsigned param_count;
    /// Its accesses to shared memory are seen: see proxies.h.
    bool watched;
    /// It has static shared memory.
    bool one_block_at_a_time;
};
/// The kernel of this name; null if there is none.
extern "C" const EmulatedKernel* emulated_kernel(const char* name);
/// Runs a grid; returns when it has ended.
extern "C" void emulate_launch(const EmulatedKernel* kernel, void** params, const unsigned grid[3], const unsigned block[3],
                               unsigned shared_bytes);

namespace emulate {

struct Dim {
    unsigned x, y, z;
};

/// Where `count` threads meet; the last one acts for all.
struct Meeting {
    unsigned long long generation = 0;
    unsigned arrived = 0;
    const char* what = nullptr;
    void* parts[128];
};

struct Thread;

/// The running thread.
extern thread_local Thread* self __attribute__((tls_model("initial-exec")));

Dim& thread_index();
Dim& block_index();
Dim& block_dim();
Dim& grid_dim();

u8* shared_base();
/// Where a kernel's dynamic shared memory begins: 0, or EMULATED_SHARED_BASE, which a kernel may refuse.
u32 shared_begin();
/// Memory at an address within the block's shared memory.
u8* shared_at(u32 address, unsigned bytes);

[[noreturn]] void fail(const char* what);
/// Lets the other threads of the block run.
void yield(const char* what);
/// Tells the scheduler that somebody got ahead.
void progress();

void sync_warp();
/// All `count` threads of the warp (32) or warpgroup (128) come; `act` gets their parts in thread order.
void meet_warp(const char* what, void* part, void (*act)(void** parts));
void meet_warpgroup(const char* what, void* part, void (*act)(void** parts));

void barrier(u32 id, u32 threads, bool wait);
void copy_async(u32 shared, const void* global, bool valid);
void copies_commit();
void copies_wait(unsigned left);
void mbarrier_init(u32 address, u32 arrivals);
void mbarrier_fence();
void shared_fence();
void mbarrier_arrive(u32 address, u32 expected_bytes);
void mbarrier_wait(u32 address, u32 parity);
void copy_bulk(u32 shared, const void* global, u32 bytes, u32 barrier);

/// One product of a warpgroup, waiting to be done.
struct Product {
    float* d[128];
    u32 a[128][4];  // a copy where A comes from registers: changing them before the wait is caught by `a_at`
    const u32* a_at[128];
    bool a_in_registers;
    u64 a_descriptor, b_descriptor;
    int n;
    bool accumulate;
    float (*widen)(u16);
};
void product(const Product& product);
void warpgroup_commit();
void warpgroup_wait(unsigned left);

/// What EMULATED_NOISE says.
extern const u32 noise;
/// The result of an approximate instruction, off by what the argument's bits decide.
float noisy(float result, float argument);
/// A result of an instruction that has none below the smallest normal number (ftz).
inline float approximate(float result, float argument) {
    if (fabsf(result) < 1.17549435e-38f) return copysignf(0.0f, result);
    return noise ? noisy(result, argument) : result;
}

struct Registration {
    Registration(const EmulatedKernel& kernel);
};

template <typename F, F function>
struct Invoke;
template <typename... Args, void (*function)(Args...)>
struct Invoke<void (*)(Args...), function> {
    static constexpr unsigned count = sizeof...(Args);
    static constexpr unsigned bytes[count + 1] = {sizeof(std::remove_reference_t<Args>)..., 0};
    static void call(void** params) { spread(params, std::index_sequence_for<Args...>{}); }
    template <size_t... I>
    static void spread(void** params, std::index_sequence<I...>) {
        function(*static_cast<std::remove_const_t<std::remove_reference_t<Args>>*>(params[I])...);
    }
};

}  // namespace emulate

#ifndef WATCHED
#define WATCHED false
#endif
#ifndef STATIC_SHARED
#define STATIC_SHARED false
#endif
#define DEVICE inline
#define KERNEL(threads, blocks) extern "C" void
#define ARGUMENT const
#define EXPORT(name) \
    static emulate::Registration registration_##name({#name, &emulate::Invoke<decltype(&name), &name>::call, \
                                                      emulate::Invoke<decltype(&name), &name>::bytes,        \
                                                      emulate::Invoke<decltype(&name), &name>::count, WATCHED, STATIC_SHARED});

#define threadIdx (emulate::thread_index())
#define blockIdx (emulate::block_index())
#define blockDim (emulate::block_dim())
#define gridDim (emulate::grid_dim())
/// Shared by the threads of a block, which all run on one thread of the system.
#define __shared__ static thread_local

DEVICE u8* dynamic_shared() { return emulate::shared_base() + emulate::shared_begin(); }
DEVICE u32 shared_address(const void* pointer) { return (u32)(static_cast<const u8*>(pointer) - emulate::shared_base()); }

// ---- numbers ----

DEVICE float float_of_bits(u32 bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
DEVICE u32 bits_of_float(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}
DEVICE float bf16_to_f32(u16 x) { return float_of_bits((u32)x << 16); }
DEVICE u32 bf16_of(float x) {
    u32 bits = bits_of_float(x);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
DEVICE u32 f32x2_to_bf16x2(float low, float high) { return bf16_of(low) | bf16_of(high) << 16; }
DEVICE float f16_to_f32(u16 x) {
    u32 sign = (u32)(x & 0x8000) << 16, exponent = (x >> 10) & 31, mantissa = x & 0x3ff;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent > 0) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float small = (float)mantissa * (1.0f / 16777216.0f);
    return sign ? -small : small;
}
DEVICE u32 f16_of(float x) {
    u32 bits = bits_of_float(x), sign = (bits >> 16) & 0x8000;
    float magnitude = fabsf(x);
    if (x != x) return 0x7fff;
    if (magnitude >= 65520.0f) return sign | 0x7c00;
    if (magnitude < 6.103515625e-05f) return sign | (u32)rintf(magnitude * 16777216.0f);
    u32 rounded = bits_of_float(magnitude) - (112u << 23);
    return sign | ((rounded + 0xfff + ((rounded >> 13) & 1)) >> 13);
}
DEVICE u32 f32x2_to_f16x2(float low, float high) { return f16_of(low) | f16_of(high) << 16; }
/// 2^0 is exact: the instruction's description says so, and the running softmax rests on it.
DEVICE float exp2_fast(float x) { return fabsf(x) < 1.17549435e-38f ? 1.0f : emulate::approximate(exp2f(x), x); }
DEVICE float reciprocal_fast(float x) { return emulate::approximate(1.0f / x, x); }
DEVICE float reciprocal_sqrt(float x) { return emulate::approximate(1.0f / sqrtf(x), x); }

DEVICE void must(bool holds, const char* what) {
    if (!holds) emulate::fail(what);
}

template <int N>
DEVICE void hold(float (&)[N]) {}
template <int N, int M>
DEVICE void hold(u32 (&)[N][M]) {}
DEVICE void done_before_waits(float x, u32) {
    if (x < 0.0f) emulate::fail("done_before_waits: a negative number");
}
DEVICE u32 uniform(u32 x) { return x; }

// ---- threads that meet ----

DEVICE void sync_block() { emulate::barrier(0, blockDim.x * blockDim.y * blockDim.z, true); }
DEVICE void sync_warp() { emulate::sync_warp(); }
struct Shuffle {
    u32 value, result;
    int lanes;
};
DEVICE u32 shuffle_xor(u32 x, int lanes) {
    Shuffle mine{x, 0, lanes};
    emulate::meet_warp("shuffle_xor", &mine, [](void** parts) {
        for (int lane = 0; lane < 32; lane++) {
            Shuffle* part = static_cast<Shuffle*>(parts[lane]);
            part->result = static_cast<Shuffle*>(parts[lane ^ part->lanes])->value;
        }
    });
    return mine.result;
}
DEVICE float shuffle_xor(float x, int lanes) { return float_of_bits(shuffle_xor(bits_of_float(x), lanes)); }
DEVICE void barrier_sync(u32 id, u32 threads) { emulate::barrier(id, threads, true); }
DEVICE void barrier_arrive(u32 id, u32 threads) { emulate::barrier(id, threads, false); }

DEVICE u32 add_atomic(u32* to, u32 x) { return __atomic_fetch_add(to, x, __ATOMIC_RELAXED); }

// ---- copies ----

DEVICE void copy16_async_or_zero(u32 shared, const void* global, bool valid) { emulate::copy_async(shared, global, valid); }
DEVICE void copies_commit() { emulate::copies_commit(); }
template <int Left>
DEVICE void copies_wait() {
    emulate::copies_wait(Left);
}
DEVICE void mbarrier_init(u32 barrier, u32 arrivals) { emulate::mbarrier_init(barrier, arrivals); }
DEVICE void mbarrier_fence() { emulate::mbarrier_fence(); }
DEVICE void mbarrier_arrive_if(u32 barrier, bool comes) {
    if (comes) emulate::mbarrier_arrive(barrier, 0);
}
DEVICE void mbarrier_arrive_expect(u32 barrier, u32 bytes) { emulate::mbarrier_arrive(barrier, bytes); }
DEVICE void mbarrier_wait(u32 barrier, u32 parity) { emulate::mbarrier_wait(barrier, parity); }
DEVICE void copy_bulk(u32 shared, const void* global, u32 bytes, u32 barrier) {
    emulate::copy_bulk(shared, global, bytes, barrier);
}
DEVICE void shared_fence() { emulate::shared_fence(); }

// ---- tensor cores of a warp ----

struct Matrices {
    u32* r;
    u32 address;
};
template <bool Transposed>
inline void load_matrices_of(void** parts) {
    for (int matrix = 0; matrix < 4; matrix++) {
        u16 m[8][8];
        for (int row = 0; row < 8; row++) {
            u32 address = static_cast<Matrices*>(parts[8 * matrix + row])->address;
            if (address % 16) emulate::fail("ldmatrix: address not a multiple of 16");
            memcpy(m[row], emulate::shared_at(address, 16), 16);
        }
        for (int lane = 0; lane < 32; lane++) {
            int g = lane / 4, t = 2 * (lane % 4);
            u32 low = Transposed ? m[t][g] : m[g][t], high = Transposed ? m[t + 1][g] : m[g][t + 1];
            static_cast<Matrices*>(parts[lane])->r[matrix] = low | high << 16;
        }
    }
}
DEVICE void load_matrices(u32 (&r)[4], u32 shared) {
    Matrices mine{r, shared};
    emulate::meet_warp("ldmatrix", &mine, load_matrices_of<false>);
}
DEVICE void load_matrices_transposed(u32 (&r)[4], u32 shared) {
    Matrices mine{r, shared};
    emulate::meet_warp("ldmatrix.trans", &mine, load_matrices_of<true>);
}

struct WarpProduct {
    float* d;
    const u32* a;
    u32 b0, b1;
};
template <typename T>
inline void multiply_in_warp(void** parts) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const WarpProduct* part = static_cast<WarpProduct*>(parts[lane]);
        int g = lane / 4, t = 2 * (lane % 4);
        for (int half = 0; half < 2; half++) {
            for (int r = 0; r < 4; r++)
                a[g + 8 * (r % 2)][t + half + 8 * (r / 2)] = T::widen((u16)(part->a[r] >> (16 * half)));
            b[t + half][g] = T::widen((u16)(part->b0 >> (16 * half)));
            b[t + half + 8][g] = T::widen((u16)(part->b1 >> (16 * half)));
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        float* d = static_cast<WarpProduct*>(parts[lane])->d;
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            for (int k = 0; k < 16; k++) d[i] += a[row][k] * b[k][column];
        }
    }
}
/// d [16 x 8] += a [16 x 16] b [16 x 8].
template <typename T>
DEVICE void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    WarpProduct mine{d, a, b0, b1};
    emulate::meet_warp("mma", &mine, multiply_in_warp<T>);
}

// ---- tensor cores of a warpgroup ----

DEVICE void warpgroup_begin() {}
DEVICE void warpgroup_commit() { emulate::warpgroup_commit(); }
template <int Left>
DEVICE void warpgroup_wait() {
    emulate::warpgroup_wait(Left);
}
template <int Registers>
DEVICE void registers_give() {}
template <int Registers>
DEVICE void registers_take() {}

struct GroupPart {
    float* d;
    const u32* a;
    u64 a_descriptor, b_descriptor;
    bool accumulate;
};
template <int N, typename T>
inline void multiply_in_group(void** parts) {
    emulate::Product product;
    const GroupPart* first = static_cast<GroupPart*>(parts[0]);
    for (int thread = 0; thread < 128; thread++) {
        const GroupPart* part = static_cast<GroupPart*>(parts[thread]);
        if (part->b_descriptor != first->b_descriptor || part->accumulate != first->accumulate)
            emulate::fail("wgmma: the threads of a warpgroup differ");
        product.d[thread] = part->d;
        product.a_at[thread] = part->a;
        if (part->a) memcpy(product.a[thread], part->a, 16);
    }
    product.a_in_registers = first->a != nullptr;
    product.a_descriptor = first->a_descriptor;
    product.b_descriptor = first->b_descriptor;
    product.n = N;
    product.accumulate = first->accumulate;
    product.widen = T::widen;
    emulate::product(product);
}
template <int N, typename T>
DEVICE void group_multiply(float (&d)[N / 2], u64 a, u64 b, bool accumulate) {
    GroupPart mine{d, nullptr, a, b, accumulate};
    emulate::meet_warpgroup("wgmma", &mine, multiply_in_group<N, T>);
}
template <int N, typename T>
DEVICE void group_multiply(float (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {
    GroupPart mine{d, a, 0, b, accumulate};
    emulate::meet_warpgroup("wgmma", &mine, multiply_in_group<N, T>);
}
