// Order of work between streams: see order.h. Part of the emulated libcuda.

#include "order.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace {

/// Part of each stream's work that something comes after.
using Clock = std::map<void*, uint64_t>;

struct Memory {
    size_t bytes;
    void* stream;            // whose order it was given out in
    Clock writers, readers;  // other libraries' last work on it

    bool used() const { return !writers.empty() || !readers.empty(); }
};

// Never destroyed: threads may still run when the process ends.
struct State {
    std::mutex mutex;
    std::map<void*, Clock> streams;  // a stream's own entry is its count
    std::map<void*, Clock> events;
    Clock host;
    std::map<uintptr_t, Memory> memories;
    size_t used = 0;  // memories with users: without any there is nothing to check
};

State& state() {
    static State* the = new State;
    return *the;
}

void merge(Clock& into, const Clock& from) {
    for (auto [stream, count] : from) into[stream] = std::max(into[stream], count);
}

/// The stream's clock, the host's waits included.
Clock& clock_of(State& s, void* stream) {
    Clock& clock = s.streams[stream];
    merge(clock, s.host);
    return clock;
}

/// The memory in which an address lies; the end if there is none.
std::map<uintptr_t, Memory>::iterator memory_of(State& s, const void* address) {
    auto at = reinterpret_cast<uintptr_t>(address);
    auto next = s.memories.upper_bound(at);
    if (next == s.memories.begin()) return s.memories.end();
    auto found = std::prev(next);
    return at < found->first + found->second.bytes ? found : s.memories.end();
}

[[noreturn]] void breach(const char* what, size_t bytes) {
    fprintf(stderr, "emulated CUDA: %s (%zu bytes)\n", what, bytes);
    abort();
}

/// Whether a stream comes after all work of these.
void check_behind(State& s, void* stream, const Clock& users, size_t bytes, const char* what) {
    Clock& clock = clock_of(s, stream);
    for (auto [user, count] : users)
        if (user != stream && clock[user] < count) breach(what, bytes);
}

}  // namespace

extern "C" {

void order_use(void* stream, const void* memory, int writes) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    Clock& clock = clock_of(s, stream);
    uint64_t now = ++clock[stream];
    auto found = memory_of(s, memory);
    if (found == s.memories.end()) breach("another library is given memory that was never allocated, or that is free again", 0);
    Memory& used = found->second;
    if (used.stream != stream && clock[used.stream] < clock_of(s, used.stream)[used.stream])
        breach("another library works on memory whose own stream may not have come so far: no event orders the two", used.bytes);
    check_behind(s, stream, used.writers, used.bytes, "two libraries work on the same memory");
    if (!used.used()) s.used++;
    (writes ? used.writers : used.readers)[stream] = now;
}

void order_touch(void* stream, const void* address) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    if (s.used == 0) return;
    auto found = memory_of(s, address);
    if (found == s.memories.end()) return;
    const Memory& touched = found->second;
    check_behind(s, stream, touched.writers, touched.bytes, "work touches memory that another library may still write: no event orders the two");
}

int order_is_memory(const void* address) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    return memory_of(s, address) != s.memories.end();
}

void order_allocate(void* stream, const void* memory, size_t bytes) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.memories[reinterpret_cast<uintptr_t>(memory)] = {bytes, stream, {}, {}};
}

void order_free(void* stream, const void* memory) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto found = s.memories.find(reinterpret_cast<uintptr_t>(memory));
    if (found == s.memories.end()) return;
    const Memory& freed = found->second;
    for (const Clock* users : {&freed.writers, &freed.readers})
        check_behind(s, stream, *users, freed.bytes, "memory is freed on which another library may still be at work: no event orders the two");
    if (freed.used()) s.used--;
    s.memories.erase(found);
}

void order_work(void* stream) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.streams[stream][stream]++;
}

void order_record(void* event, void* stream) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.events[event] = clock_of(s, stream);
}

void order_follow(void* stream, void* event) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto found = s.events.find(event);
    if (found != s.events.end()) merge(s.streams[stream], found->second);
}

void order_host_passed_stream(void* stream) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    merge(s.host, s.streams[stream]);
}

void order_host_passed_event(void* event) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto found = s.events.find(event);
    if (found != s.events.end()) merge(s.host, found->second);
}

void order_host_passed_all(void) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    for (auto& [stream, clock] : s.streams) merge(s.host, clock);
}

void order_forget_stream(void* stream) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    // Its work is done: that is waited for before a stream goes.
    for (auto& [other, clock] : s.streams) clock.erase(stream);
    for (auto& [event, clock] : s.events) clock.erase(stream);
    for (auto& [address, memory] : s.memories) {
        bool erased = memory.writers.erase(stream) + memory.readers.erase(stream) > 0;
        if (erased && !memory.used()) s.used--;
    }
    s.host.erase(stream);
    s.streams.erase(stream);
}

void order_forget_event(void* event) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.events.erase(event);
}

}  // extern "C"
