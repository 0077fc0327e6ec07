// The scheduler behind emulate.h: fibers, barriers, and what is asynchronous on a GPU.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#include "emulate.h"

#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulate {

constexpr size_t STACK_BYTES = 256 << 10;
/// Turns of all threads without anybody getting ahead, after which they wait for ever.
constexpr unsigned PATIENCE = 2000;

// ---- fibers ----

#if defined(__x86_64__)
// Saves what a called function must keep, and the stack; goes on where the other one was saved.
extern "C" void emulate_switch(void** save, void* load);
asm(".text\n"
    ".globl emulate_switch\n"
    ".hidden emulate_switch\n"
    ".type emulate_switch, @function\n"
    "emulate_switch:\n"
    "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
    "ret\n"
    ".size emulate_switch, .-emulate_switch\n");
#endif

struct Copy {
    u32 shared;
    const void* global;
    bool valid;
};

struct Thread {
    Dim index;
    unsigned number;
    bool done;
    const char* waits_for;
    std::vector<Copy> copies;                  // not committed
    std::deque<std::vector<Copy>> committed;  // groups
#if defined(__x86_64__)
    void* stack_pointer;
#else
    ucontext_t context;
#endif
};

struct Bulk {
    u32 shared;
    const void* global;
    u32 bytes, barrier;
};

struct Warpgroup {
    std::vector<Product> open;
    std::deque<std::vector<Product>> committed;
};

/// What is shared by the threads of the block that runs on this thread of the system.
struct Block {
    const EmulatedKernel* kernel = nullptr;
    void** params = nullptr;
    Dim index{}, dim{}, grid{};
    std::vector<u8> memory;
    u8* shared = nullptr;
    size_t shared_bytes = 0;
    std::vector<Thread> threads;
    std::vector<Meeting> warps, groups;
    Meeting barriers[16];
    std::deque<Bulk> bulks;
    std::vector<Warpgroup> products;
    bool advanced = false;
    u8* stacks = nullptr;
    size_t stack_count = 0;
#if defined(__x86_64__)
    void* scheduler = nullptr;
#else
    ucontext_t scheduler;
#endif
};

thread_local Thread* self = nullptr;
static thread_local Block* block = nullptr;

Dim& thread_index() { return self->index; }
Dim& block_index() { return block->index; }
Dim& block_dim() { return block->dim; }
Dim& grid_dim() { return block->grid; }
u8* shared_base() { return block->shared; }

u8* shared_at(u32 address, unsigned bytes) {
    if ((size_t)address + bytes > block->shared_bytes) fail("an address beyond the block's shared memory");
    return block->shared + address;
}

void fail(const char* what) {
    fprintf(stderr, "emulated CUDA: %s: block (%u, %u, %u)", block->kernel->name, block->index.x, block->index.y, block->index.z);
    if (self) fprintf(stderr, ", thread %u", self->number);
    fprintf(stderr, ": %s\n", what);
    fflush(stderr);
    abort();
}

static void to_scheduler() {
    Thread* me = self;
#if defined(__x86_64__)
    emulate_switch(&me->stack_pointer, block->scheduler);
#else
    swapcontext(&me->context, &block->scheduler);
#endif
}

static void run_thread() {
    block->kernel->invoke(block->params);
    self->done = true;
    progress();
    to_scheduler();
    fail("a thread that had ended went on");
}

void yield(const char* what) {
    self->waits_for = what;
    to_scheduler();
    self->waits_for = nullptr;
}

void progress() { block->advanced = true; }

static void start_thread(Thread& thread, u8* stack) {
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(stack + STACK_BYTES);
    *--top = nullptr;  // where run_thread would return to; keeps the stack aligned as after a call
    *--top = reinterpret_cast<void*>(&run_thread);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    thread.stack_pointer = top;
#else
    getcontext(&thread.context);
    thread.context.uc_stack = {stack, 0, STACK_BYTES};
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, run_thread, 0);
#endif
}

static void resume(Thread& thread) {
    self = &thread;
#if defined(__x86_64__)
    emulate_switch(&block->scheduler, thread.stack_pointer);
#else
    swapcontext(&block->scheduler, &thread.context);
#endif
    self = nullptr;
}

// ---- meetings ----

static void meet(Meeting& meeting, unsigned place, unsigned count, const char* what, void* part, void (*act)(void**)) {
    if (meeting.arrived > 0 && strcmp(meeting.what, what)) {
        std::string message = std::string(what) + " while others are at " + meeting.what;
        fail(message.c_str());
    }
    meeting.what = what;
    meeting.parts[place] = part;
    unsigned long long generation = meeting.generation;
    if (++meeting.arrived == count) {
        meeting.arrived = 0;
        meeting.generation++;
        act(meeting.parts);
        progress();
        return;
    }
    while (meeting.generation == generation) yield(what);
}

void meet_warp(const char* what, void* part, void (*act)(void**)) {
    meet(block->warps[self->number / 32], self->number % 32, 32, what, part, act);
}

void meet_warpgroup(const char* what, void* part, void (*act)(void**)) {
    meet(block->groups[self->number / 128], self->number % 128, 128, what, part, act);
}

void barrier(u32 id, u32 threads, bool wait) {
    if (id > 15) fail("barriers are numbered 0 to 15");
    Meeting& meeting = block->barriers[id];
    unsigned long long generation = meeting.generation;
    if (++meeting.arrived == threads) {
        meeting.arrived = 0;
        meeting.generation++;
        progress();
        return;
    }
    if (meeting.arrived > threads) fail("more threads at a barrier than it counts");
    while (wait && meeting.generation == generation) yield("a barrier");
}

// ---- copies ----

static void poison(u32 shared, unsigned bytes) { memset(shared_at(shared, bytes), 0xff, bytes); }

void copy_async(u32 shared, const void* global, bool valid) {
    if (shared % 16 || reinterpret_cast<uintptr_t>(global) % 16) fail("cp.async: an address is not a multiple of 16");
    poison(shared, 16);
    self->copies.push_back({shared, global, valid});
}

void copies_commit() {
    self->committed.push_back(std::move(self->copies));
    self->copies.clear();
}

void copies_wait(unsigned left) {
    while (self->committed.size() > left) {
        for (const Copy& copy : self->committed.front()) {
            u8* to = shared_at(copy.shared, 16);
            if (copy.valid) memcpy(to, copy.global, 16);
            else memset(to, 0, 16);
        }
        self->committed.pop_front();
    }
}

struct Mbarrier {
    int32_t bytes;
    u16 pending;
    u16 expected_and_phase;  // phase in the highest bit
};
static_assert(sizeof(Mbarrier) == 8, "as large as the hardware's");

static Mbarrier& mbarrier_at(u32 address) {
    if (address % 8) fail("mbarrier: address not a multiple of 8");
    return *reinterpret_cast<Mbarrier*>(shared_at(address, 8));
}

static void complete(Mbarrier& barrier) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    barrier.expected_and_phase ^= 0x8000;
    barrier.pending = barrier.expected_and_phase & 0x7fff;
    progress();
}

void mbarrier_init(u32 address, u32 arrivals) { mbarrier_at(address) = {0, (u16)arrivals, (u16)arrivals}; }

void mbarrier_arrive(u32 address, u32 expected_bytes) {
    Mbarrier& barrier = mbarrier_at(address);
    if (barrier.pending == 0) fail("mbarrier: more arrivals than it counts");
    barrier.bytes += (int32_t)expected_bytes;
    barrier.pending--;
    complete(barrier);
}

void mbarrier_wait(u32 address, u32 parity) {
    while ((mbarrier_at(address).expected_and_phase >> 15) == parity) yield("an mbarrier");
}

void copy_bulk(u32 shared, const void* global, u32 bytes, u32 barrier) {
    if (shared % 16 || bytes % 16 || bytes == 0 || reinterpret_cast<uintptr_t>(global) % 16)
        fail("bulk copy: not a multiple of 16");
    poison(shared, bytes);
    block->bulks.push_back({shared, global, bytes, barrier});
}

/// The copy engine does one copy a turn.
static void copy_engine() {
    if (block->bulks.empty()) return;
    Bulk bulk = block->bulks.front();
    block->bulks.pop_front();
    memcpy(shared_at(bulk.shared, bulk.bytes), bulk.global, bulk.bytes);
    Mbarrier& barrier = mbarrier_at(bulk.barrier);
    barrier.bytes -= (int32_t)bulk.bytes;
    complete(barrier);
    progress();
}

// ---- products of a warpgroup ----

static Warpgroup& warpgroup() { return block->products[self->number / 128]; }

void product(const Product& product) { warpgroup().open.push_back(product); }

/// Row `row`, column `column` of an operand in shared memory whose rows are 128 bytes, in groups of eight, swizzled.
static float operand(u64 descriptor, int row, int column, float (*widen)(u16)) {
    if (descriptor >> 62 != 1) fail("wgmma: only the 128-byte swizzle is emulated");
    u32 group_bytes = (u32)(descriptor >> 32 & 0x3fff) << 4;
    u32 address = ((u32)(descriptor & 0x3fff) << 4) + (u32)(row / 8) * group_bytes + (u32)(row % 8) * 128 + (u32)column * 2;
    address ^= (address >> 7 & 7) << 4;
    u16 bits;
    memcpy(&bits, shared_at(address, 2), 2);
    return widen(bits);
}

static void compute(const Product& p) {
    static thread_local float a[64][16], b[128][16];
    for (int thread = 0; p.a_in_registers && thread < 128; thread++) {
        if (memcmp(p.a[thread], p.a_at[thread], 16)) fail("wgmma: an operand in registers changed before the wait");
        int g = thread / 32 * 16 + thread % 32 / 4, t = 2 * (thread % 4);
        for (int r = 0; r < 4; r++)
            for (int half = 0; half < 2; half++)
                a[g + 8 * (r % 2)][t + half + 8 * (r / 2)] = p.widen((u16)(p.a[thread][r] >> (16 * half)));
    }
    for (int k = 0; k < 16; k++) {
        for (int m = 0; !p.a_in_registers && m < 64; m++) a[m][k] = operand(p.a_descriptor, m, k, p.widen);
        for (int n = 0; n < p.n; n++) b[n][k] = operand(p.b_descriptor, n, k, p.widen);
    }
    for (int thread = 0; thread < 128; thread++) {
        int g = thread / 32 * 16 + thread % 32 / 4, t = 2 * (thread % 4);
        for (int i = 0; i < p.n / 2; i++) {
            int row = g + 8 * (i / 2 % 2), column = i / 4 * 8 + t + i % 2;
            float sum = p.accumulate ? p.d[thread][i] : 0.0f;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[column][k];
            p.d[thread][i] = sum;
        }
    }
}

void warpgroup_commit() {
    meet_warpgroup("wgmma.commit_group", nullptr, [](void**) {
        warpgroup().committed.push_back(std::move(warpgroup().open));
        warpgroup().open.clear();
    });
}

void warpgroup_wait(unsigned left) {
    meet_warpgroup("wgmma.wait_group", &left, [](void** parts) {
        unsigned left = *static_cast<unsigned*>(parts[0]);
        Warpgroup& group = warpgroup();
        while (group.committed.size() > left) {
            for (const Product& product : group.committed.front()) compute(product);
            group.committed.pop_front();
        }
    });
}

// ---- grids ----

static void report_and_fail() {
    std::map<std::string, std::vector<unsigned>> waiting;
    for (const Thread& thread : block->threads)
        if (!thread.done) waiting[thread.waits_for ? thread.waits_for : "nothing"].push_back(thread.number);
    for (const auto& [what, numbers] : waiting)
        fprintf(stderr, "emulated CUDA: %zu threads wait for %s, first %u, last %u\n", numbers.size(), what.c_str(), numbers.front(),
                numbers.back());
    fail("nobody gets ahead");
}

static void run_block() {
    size_t count = (size_t)block->dim.x * block->dim.y * block->dim.z;
    std::fill(block->memory.begin(), block->memory.end(), 0xff);
    block->threads.assign(count, Thread{});
    block->warps.assign((count + 31) / 32, Meeting{});
    block->groups.assign((count + 127) / 128, Meeting{});
    block->products.assign((count + 127) / 128, Warpgroup{});
    for (Meeting& barrier : block->barriers) barrier = Meeting{};
    for (size_t i = 0; i < count; i++) {
        Thread& thread = block->threads[i];
        thread.number = (unsigned)i;
        thread.index = {(unsigned)(i % block->dim.x), (unsigned)(i / block->dim.x % block->dim.y),
                        (unsigned)(i / block->dim.x / block->dim.y)};
        start_thread(thread, block->stacks + i * STACK_BYTES);
    }
    unsigned idle = 0;
    for (size_t left = count; left > 0;) {
        block->advanced = false;
        for (Thread& thread : block->threads) {
            if (thread.done) continue;
            resume(thread);
            if (thread.done) left--;
        }
        copy_engine();
        idle = block->advanced ? 0 : idle + 1;
        if (idle > PATIENCE) report_and_fail();
    }
    if (!block->bulks.empty()) fail("ended with a bulk copy under way");
    for (const Warpgroup& group : block->products)
        if (!group.open.empty() || !group.committed.empty()) fail("ended with a product that nobody waited for");
    for (const Thread& thread : block->threads) {
        bool left = !thread.copies.empty();
        for (const auto& group : thread.committed) left |= !group.empty();
        if (left) fail("ended with an asynchronous copy that nobody waited for");
    }
}

static std::map<std::string, EmulatedKernel>& kernels() {
    static std::map<std::string, EmulatedKernel> all;
    return all;
}

Registration::Registration(const char* name, void (*invoke)(void**)) { kernels()[name] = {name, invoke}; }

}  // namespace emulate

extern "C" const EmulatedKernel* emulated_kernel(const char* name) {
    auto found = emulate::kernels().find(name);
    return found == emulate::kernels().end() ? nullptr : &found->second;
}

extern "C" void emulate_launch(const EmulatedKernel* kernel, void** params, const unsigned grid[3], const unsigned dim[3],
                               unsigned shared_bytes) {
    using namespace emulate;
    static thread_local Block mine;
    block = &mine;
    mine.kernel = kernel;
    mine.params = params;
    mine.dim = {dim[0], dim[1], dim[2]};
    mine.grid = {grid[0], grid[1], grid[2]};
    size_t count = (size_t)dim[0] * dim[1] * dim[2];
    if (count == 0 || count > 1024 || (size_t)grid[0] * grid[1] * grid[2] == 0) fail("an impossible launch");
    mine.memory.resize(shared_bytes + 1024);
    uintptr_t base = reinterpret_cast<uintptr_t>(mine.memory.data());
    mine.shared = mine.memory.data() + ((base + 1023) / 1024 * 1024 - base);
    mine.shared_bytes = shared_bytes;
    if (mine.stack_count < count) {
        if (mine.stacks) munmap(mine.stacks, mine.stack_count * STACK_BYTES);
        void* stacks = mmap(nullptr, count * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stacks == MAP_FAILED) fail("no memory for stacks");
        mine.stacks = static_cast<u8*>(stacks);
        mine.stack_count = count;
    }
    for (mine.index.z = 0; mine.index.z < grid[2]; mine.index.z++)
        for (mine.index.y = 0; mine.index.y < grid[1]; mine.index.y++)
            for (mine.index.x = 0; mine.index.x < grid[0]; mine.index.x++) run_block();
}
