// What the kernels need of a GPU: types, conversions, and the instructions that C++ has no word for. Inline PTX stands here
// and nowhere else.
//
// No CUDA header is included, so that the same kernels compile with nvcc, with NVRTC, and (with EMULATED) as C++ for the CPU,
// where tests run them without a GPU; what stands in for the hardware is tests/cuda-on-cpu/emulate.h.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

/// A vector of 16 bytes: the widest access of a thread.
struct alignas(16) Bytes16 {
    u32 x, y, z, w;
};

#ifdef EMULATED
#include "emulate.h"
#else

#define DEVICE __device__ __forceinline__
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
/// A kernel's arguments of more than a few words stay where the launch put them.
#define ARGUMENT const __grid_constant__
/// Names a kernel to the emulated driver.
#define EXPORT(name)

/// The block's dynamic shared memory, aligned for swizzled tiles.
DEVICE u8* dynamic_shared() {
    extern __shared__ __align__(1024) u8 shared_bytes[];
    return shared_bytes;
}

/// The 32-bit address of shared memory.
DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// ---- numbers ----

DEVICE float bf16_to_f32(u16 x) { return __uint_as_float((u32)x << 16); }
DEVICE u32 f32x2_to_bf16x2(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEVICE float f16_to_f32(u16 x) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
    return r;
}
DEVICE u32 f32x2_to_f16x2(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
/// 2^x, relative error about 2e-7; 0 for -inf.
DEVICE float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
/// 1 / x, off by one unit in the last place at most; 0 for infinity.
DEVICE float reciprocal_fast(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEVICE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 bits_of_float(float x) { return __float_as_uint(x); }
DEVICE float reciprocal_sqrt(float x) { return rsqrtf(x); }

/// Ends the launch with an error unless it holds.
DEVICE void must(bool holds, const char*) {
    if (!holds) __trap();
}

/// Keeps the compiler from moving uses of these registers across this place.
template <int N>
DEVICE void hold(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}

template <int N, int M>
DEVICE void hold(u32 (&x)[N][M]) {
#pragma unroll
    for (int i = 0; i < N * M; i++) asm volatile("" : "+r"(x[i / M][i % M])::"memory");
}
/// What x comes from is done before any wait that follows. The assembler moves waits above arithmetic, which `hold` cannot keep
/// it from; a store it must keep in its place. There is none: x must not be negative.
DEVICE void done_before_waits(float x, u32 shared) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.u32 [%1], %1;\n}" ::"f"(x), "r"(shared)
                 : "memory");
}
/// The same number on every lane of the warp, and the compiler knows it.
DEVICE u32 uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }

// ---- threads that meet ----

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEVICE u32 shuffle_xor(u32 x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
/// Waits until `threads` threads have come to barrier `id` (1 to 15) by this or by barrier_arrive.
DEVICE void barrier_sync(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
/// Comes to barrier `id` and goes on.
DEVICE void barrier_arrive(u32 id, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Adds to a number in global memory; gives what was there.
DEVICE u32 add_atomic(u32* to, u32 x) {
    u32 before;
    asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(x) : "memory");
    return before;
}

// ---- asynchronous copies of 16 bytes (sm_80) ----

/// Zeros where `valid` is false.
DEVICE void copy16_async_or_zero(u32 shared, const void* global, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `Left` committed groups of this thread are under way.
template <int Left>
DEVICE void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

// ---- tensor cores of a warp (sm_80) ----

/// Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 (&r)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}
/// The same, each matrix transposed.
DEVICE void load_matrices_transposed(u32 (&r)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

// ---- barriers in shared memory and bulk copies (sm_90) ----

DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the copy engine.
DEVICE void mbarrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// Comes to the barrier where `comes`; without a branch, which would end what the compiler may overlap.
DEVICE void mbarrier_arrive_if(u32 barrier, bool comes) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(barrier),
                 "r"((u32)comes)
                 : "memory");
}
DEVICE void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Waits until the phase of this parity has ended.
DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
/// One contiguous run of bytes (a multiple of 16) from global to shared memory; `barrier` counts them as they come.
DEVICE void copy_bulk(u32 shared, const void* global, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}
/// What this thread stored in shared memory becomes visible to tensor cores and copy engine.
DEVICE void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- tensor cores of a warpgroup (sm_90a) ----

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
DEVICE void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Left>
DEVICE void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}
template <int Registers>
DEVICE void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
DEVICE void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
#endif

#endif  // EMULATED

// ---- element types ----

/// bf16 as its 16 bits.
struct Bf16 {
    static DEVICE float widen(u16 x) { return bf16_to_f32(x); }
    static DEVICE u32 narrow2(float low, float high) { return f32x2_to_bf16x2(low, high); }
    static constexpr bool is_bf16 = true;
};

/// f16 as its 16 bits.
struct F16 {
    static DEVICE float widen(u16 x) { return f16_to_f32(x); }
    static DEVICE u32 narrow2(float low, float high) { return f32x2_to_f16x2(low, high); }
    static constexpr bool is_bf16 = false;
};

template <typename T>
DEVICE u16 narrow(float x) {
    return (u16)T::narrow2(x, 0.0f);
}

/// The eight 16-bit numbers of 16 bytes, as f32.
template <typename T>
DEVICE void widen8(const Bytes16& bytes, float (&x)[8]) {
    const u32 words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = T::widen((u16)words[i]);
        x[2 * i + 1] = T::widen((u16)(words[i] >> 16));
    }
}

template <typename T>
DEVICE Bytes16 narrow8(const float (&x)[8]) {
    return Bytes16{T::narrow2(x[0], x[1]), T::narrow2(x[2], x[3]), T::narrow2(x[4], x[5]), T::narrow2(x[6], x[7])};
}

DEVICE u32 lane_id() { return threadIdx.x % 32; }

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
    return x;
}

static constexpr float LOG2_E = 1.4426950408889634f;
static constexpr float LN_2 = 0.6931471805599453f;
#define NEGATIVE_INFINITY float_of_bits(0xff800000u)

#ifndef EMULATED

/// d [16 x 8] += a [16 x 16] b [16 x 8], one warp.
template <typename T>
DEVICE void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (T::is_bf16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

#endif
