// What of shared memory is seen by whom: see proxies.h.

#include "block.h"

namespace emulate {

constexpr u32 NONE = 0xffffffffu;       // no writer yet
constexpr u32 UNDER_WAY = 0xffffffffu;  // a count that no thread ever reaches

static void join(u32* into, const u32* from, size_t width) {
    for (size_t i = 0; i < width; i++) into[i] = std::max(into[i], from[i]);
}

unsigned Proxies::running() { return self->number; }

void Proxies::begin(unsigned count, size_t shared_bytes) {
    threads = count;
    copiers.clear();
    views.assign(threads * width(), 0);
    for (unsigned thread = 0; thread < threads; thread++) view(thread)[thread] = 1;
    marks.assign((shared_bytes + 15) / 16, Mark{0, NONE});
    gatherings.clear();
    least.assign((threads + 127) / 128, View(width()));
    stale.assign(least.size(), true);
}

unsigned Proxies::copier(u32 barrier) {
    auto found = std::find(copiers.begin(), copiers.end(), barrier);
    if (found == copiers.end()) {
        if (copiers.size() == COPIERS) fail("bulk copy: more mbarriers count copies than this emulation keeps account of");
        landed[copiers.size()] = 0;
        found = copiers.insert(copiers.end(), barrier);
    }
    return threads + (unsigned)(found - copiers.begin());
}

void Proxies::mark(u32 address, size_t bytes, Mark with) {
    for (size_t i = address / 16; i <= (address + bytes - 1) / 16; i++) marks[i] = with;
}

void Proxies::store(u32 address, size_t bytes) { mark(address, bytes, {view(running())[running()], running()}); }

void Proxies::load(u32 address, size_t bytes) const {
    for (size_t i = address / 16; i <= (address + bytes - 1) / 16; i++)
        if (is_copy(marks[i]) && marks[i].count > view(running())[marks[i].writer])
            fail("a load of what a bulk copy brings: this thread has not waited for the copy's mbarrier");
}

void Proxies::fence() {
    u32* mine = view(running());
    join(mine + writers(), mine, writers());
    mine[running()]++;
    learned();
}

Proxies::Gathering& Proxies::gathering(u32 barrier) {
    Gathering& found = gatherings[barrier];
    if (found.coming.empty()) found = {View(width()), View(width())};
    return found;
}

void Proxies::arrive(u32 barrier) {
    u32* mine = view(running());
    join(gathering(barrier).coming.data(), mine, width());
    mine[running()]++;
}

void Proxies::complete(u32 barrier) {
    Gathering& all = gathering(barrier);
    std::swap(all.passed, all.coming);
    std::fill(all.coming.begin(), all.coming.end(), 0);
}

void Proxies::leave(u32 barrier) {
    join(view(running()), gathering(barrier).passed.data(), width());
    learned();
}

void Proxies::meet(unsigned first, unsigned count) {
    View all(width());
    for (unsigned thread = first; thread < first + count; thread++) join(all.data(), view(thread), width());
    for (unsigned thread = first; thread < first + count; thread++) {
        std::copy(all.begin(), all.end(), view(thread));
        view(thread)[thread]++;
    }
    learned();
}

void Proxies::set_out(u32 address, size_t bytes) { mark(address, bytes, {UNDER_WAY, running()}); }

void Proxies::set_out_bulk(u32 address, size_t bytes, u32 barrier) {
    const u32* fenced = view(running()) + writers();
    for (size_t i = address / 16; i < (address + bytes) / 16; i++) {
        const Mark& before = marks[i];
        if (before.writer < threads && before.count > fenced[before.writer])
            fail("bulk copy: it overwrites what a thread stored, and no shared_fence() stands between the two");
    }
    mark(address, bytes, {UNDER_WAY, copier(barrier)});
}

void Proxies::land_bulk(u32 address, size_t bytes, u32 barrier) {
    unsigned writer = copier(barrier);
    u32 count = ++landed[writer - threads];
    mark(address, bytes, {count, writer});
    gathering(barrier).coming[writer] = count;
}

void Proxies::operand(unsigned warpgroup, u32 address) {
    View& known = least[warpgroup];
    if (stale[warpgroup]) {
        known.assign(view(128 * warpgroup), view(128 * warpgroup) + width());
        for (unsigned thread = 128 * warpgroup + 1; thread < 128 * (warpgroup + 1); thread++)
            for (size_t i = 0; i < width(); i++) known[i] = std::min(known[i], view(thread)[i]);
        stale[warpgroup] = false;
    }
    const Mark& last = marks[address / 16];
    if (last.writer == NONE) return;
    if (is_copy(last)) {
        if (last.count > known[last.writer])
            fail("wgmma: a bulk copy brings the operand, and not every thread of the warpgroup has waited for its mbarrier");
        return;
    }
    if (last.count <= known[writers() + last.writer]) return;
    std::string message = "wgmma: thread " + std::to_string(last.writer) + " stored the operand, and ";
    message += last.count > known[last.writer] ? "no barrier stands between its store and all threads of the warpgroup"
                                               : "shared_fence() is missing between its store and the barrier";
    fail(message.c_str());
}

// ---- calls that -fsanitize=thread makes ----

/// The accessed place, if it is the running block's shared memory and the block is watched.
static Proxies* watched(const volatile void* place, size_t bytes, u32& address) {
    if (!block || !block->kernel->watched || !self) return nullptr;
    size_t at = (size_t)(static_cast<const volatile u8*>(place) - block->shared);
    if (at >= block->shared_bytes || bytes > block->shared_bytes - at) return nullptr;
    address = (u32)at;
    return &block->proxies;
}

static void loads(const volatile void* place, size_t bytes) {
    u32 address;
    if (Proxies* proxies = watched(place, bytes, address)) proxies->load(address, bytes);
}

static void stores(const volatile void* place, size_t bytes) {
    u32 address;
    if (Proxies* proxies = watched(place, bytes, address)) proxies->store(address, bytes);
}

}  // namespace emulate

#define CALLED extern "C" __attribute__((visibility("hidden"))) void
#define ACCESS(bytes)                                                            \
    CALLED __tsan_read##bytes(void* at) { emulate::loads(at, bytes); }           \
    CALLED __tsan_write##bytes(void* at) { emulate::stores(at, bytes); }         \
    CALLED __tsan_unaligned_read##bytes(void* at) { emulate::loads(at, bytes); } \
    CALLED __tsan_unaligned_write##bytes(void* at) { emulate::stores(at, bytes); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
CALLED __tsan_read_range(void* at, size_t bytes) { emulate::loads(at, bytes); }
CALLED __tsan_write_range(void* at, size_t bytes) { emulate::stores(at, bytes); }
CALLED __tsan_init() {}
CALLED __tsan_func_entry(void*) {}
CALLED __tsan_func_exit() {}
/// Counters in global memory, which queues of other streams may count too.
extern "C" __attribute__((visibility("hidden"))) u32 __tsan_atomic32_fetch_add(volatile u32* to, u32 x, int) {
    return __atomic_fetch_add(to, x, __ATOMIC_RELAXED);
}
