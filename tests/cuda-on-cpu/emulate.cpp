// The scheduler behind emulate.h: fibers, meetings, and the blocks of a grid, two at a time.

#include "block.h"

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

thread_local Thread* self = nullptr;
thread_local Block* block = nullptr;

Dim& thread_index() { return self->index; }
Dim& block_index() { return block->index; }
Dim& block_dim() { return block->dim; }
Dim& grid_dim() { return block->grid; }
u8* shared_base() { return block->shared; }

u32 shared_begin() {
    static const char* text = getenv("EMULATED_SHARED_BASE");
    static const u32 begin = text ? (u32)strtoul(text, nullptr, 10) : 0;
    return begin;
}

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

static u32 noise_wanted() {
    const char* text = getenv("EMULATED_NOISE");
    return text ? (u32)strtoul(text, nullptr, 10) : 0;
}

const u32 noise = noise_wanted();

float noisy(float result, float argument) {
    u32 bits, drawn;
    memcpy(&bits, &result, 4);
    memcpy(&drawn, &argument, 4);
    if ((bits & 0x7f800000) == 0x7f800000) return result;  // infinity, NaN
    // Mixed, so that neighbours have nothing in common.
    drawn = (drawn ^ drawn >> 16) * 0x85ebca6bu;
    drawn = (drawn ^ drawn >> 13) * 0xc2b2ae35u;
    drawn ^= drawn >> 16;
    u32 far = drawn % (2 * noise);
    bits += far < noise ? far - noise : far - noise + 1;  // never 0
    memcpy(&result, &bits, 4);
    return result;
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

void sync_warp() {
    meet_warp("sync_warp", nullptr, [](void**) {
        if (Proxies* known = proxies()) known->meet(self->number / 32 * 32, 32);
    });
}

void barrier(u32 id, u32 threads, bool wait) {
    if (id > 15) fail("barriers are numbered 0 to 15");
    Meeting& meeting = block->barriers[id];
    Proxies* known = proxies();
    if (known) known->arrive(id);
    unsigned long long generation = meeting.generation;
    if (++meeting.arrived == threads) {
        meeting.arrived = 0;
        meeting.generation++;
        if (known) known->complete(id);
        progress();
    }
    if (meeting.arrived > threads) fail("more threads at a barrier than it counts");
    while (wait && meeting.generation == generation) yield("a barrier");
    if (wait && known) known->leave(id);
}

// ---- grids ----

static void report(const Block* block) {
    std::map<std::string, std::vector<unsigned>> waiting;
    for (const Thread& thread : block->threads)
        if (!thread.done) waiting[thread.waits_for ? thread.waits_for : "nothing"].push_back(thread.number);
    for (const auto& [what, numbers] : waiting)
        fprintf(stderr, "emulated CUDA: %zu threads wait for %s, first %u, last %u\n", numbers.size(), what.c_str(), numbers.front(),
                numbers.back());
}

[[noreturn]] static void report_and_fail(std::deque<Block>& places) {
    for (Block& place : places) {
        if (place.left == 0) continue;
        block = &place;
        report(block);
    }
    fail("no thread makes progress");
}

/// Blocks of a grid that run at a time. They take turns: in each, every thread gets as far as its next wait. Blocks of a kernel with
/// static shared memory follow one another, because there is one such memory only.
static unsigned blocks_at_a_time(const EmulatedKernel* kernel) {
    static const char* text = getenv("EMULATED_BLOCKS");
    static const unsigned wanted = text ? (unsigned)strtoul(text, nullptr, 10) : 2;
    return kernel->one_block_at_a_time ? 1 : std::max(wanted, 1u);
}

static void start_block(u64 number) {
    block->index = {(unsigned)(number % block->grid.x), (unsigned)(number / block->grid.x % block->grid.y),
                    (unsigned)(number / block->grid.x / block->grid.y)};
    size_t count = (size_t)block->dim.x * block->dim.y * block->dim.z;
    std::fill(block->memory.begin(), block->memory.end(), 0xff);
    block->threads.assign(count, Thread{});
    block->warps.assign((count + 31) / 32, Meeting{});
    block->groups.assign((count + 127) / 128, Meeting{});
    block->products.assign((count + 127) / 128, Warpgroup{});
    for (Meeting& barrier : block->barriers) barrier = Meeting{};
    block->unfenced.clear();
    if (Proxies* known = proxies()) known->begin((unsigned)count, block->shared_bytes);
    for (size_t i = 0; i < count; i++) {
        Thread& thread = block->threads[i];
        thread.number = (unsigned)i;
        thread.index = {(unsigned)(i % block->dim.x), (unsigned)(i / block->dim.x % block->dim.y),
                        (unsigned)(i / block->dim.x / block->dim.y)};
        start_thread(thread, block->stacks + i * STACK_BYTES);
    }
    block->left = count;
}

/// Every thread of the block goes on to its next wait.
static void take_turn() {
    block->advanced = false;
    for (Thread& thread : block->threads) {
        if (thread.done) continue;
        resume(thread);
        if (thread.done) block->left--;
    }
    copy_engine();
}

static void end_block() {
    if (!block->bulks.empty()) fail("ended with a bulk copy under way");
    for (const Warpgroup& group : block->products)
        if (!group.open.empty() || !group.committed.empty()) fail("ended with a product that was not waited for");
    for (const Thread& thread : block->threads) {
        bool left = !thread.copies.empty();
        for (const auto& group : thread.committed) left |= !group.empty();
        if (left) fail("ended with an asynchronous copy that was not waited for");
    }
}

Block::~Block() {
    if (stacks) munmap(stacks, stack_count * STACK_BYTES);
}

static void prepare(Block& place, const EmulatedKernel* kernel, void** params, const unsigned grid[3], const unsigned dim[3],
                    unsigned shared_bytes) {
    block = &place;
    place.kernel = kernel;
    place.params = params;
    place.dim = {dim[0], dim[1], dim[2]};
    place.grid = {grid[0], grid[1], grid[2]};
    size_t count = (size_t)dim[0] * dim[1] * dim[2];
    if (count == 0 || count > 1024) fail("an impossible launch");
    place.memory.resize(shared_bytes + 1024);
    uintptr_t base = reinterpret_cast<uintptr_t>(place.memory.data());
    place.shared = place.memory.data() + ((base + 1023) / 1024 * 1024 - base);
    place.shared_bytes = shared_bytes;
    if (place.stack_count >= count) return;
    if (place.stacks) munmap(place.stacks, place.stack_count * STACK_BYTES);
    void* stacks = mmap(nullptr, count * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for stacks");
    place.stacks = static_cast<u8*>(stacks);
    place.stack_count = count;
}

static std::map<std::string, EmulatedKernel>& kernels() {
    static auto& all = *new std::map<std::string, EmulatedKernel>;  // threads may outlive main
    return all;
}

Registration::Registration(const EmulatedKernel& kernel) { kernels()[kernel.name] = kernel; }

}  // namespace emulate

extern "C" const EmulatedKernel* emulated_kernel(const char* name) {
    auto found = emulate::kernels().find(name);
    return found == emulate::kernels().end() ? nullptr : &found->second;
}

extern "C" void emulate_launch(const EmulatedKernel* kernel, void** params, const unsigned grid[3], const unsigned dim[3],
                               unsigned shared_bytes) {
    using namespace emulate;
    static thread_local std::deque<Block> places;
    const u64 blocks = (u64)grid[0] * grid[1] * grid[2];
    const size_t at_a_time = std::max<u64>(1, std::min<u64>(blocks, blocks_at_a_time(kernel)));
    if (places.size() < at_a_time) places.resize(at_a_time);
    for (size_t i = 0; i < at_a_time; i++) prepare(places[i], kernel, params, grid, dim, shared_bytes + shared_begin());
    if (blocks == 0) fail("an impossible launch");
    unsigned idle = 0;
    for (u64 next = 0, ended = 0; ended < blocks;) {
        bool advanced = false;
        for (size_t i = 0; i < at_a_time; i++) {
            Block& place = places[i];
            block = &place;
            if (place.left == 0 && next < blocks) start_block(next++);
            if (place.left == 0) continue;
            take_turn();
            advanced |= place.advanced;
            if (place.left > 0) continue;
            end_block();
            ended++;
        }
        idle = advanced ? 0 : idle + 1;
        if (idle > PATIENCE) report_and_fail(places);
    }
}
