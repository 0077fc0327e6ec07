// Gates of emulated streams: see gate.h. Part of the emulated libcuda.

#include "gate.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace {

struct Gate {
    bool open = false;
    double opened_s = 0;
};

using Gates = std::vector<std::shared_ptr<Gate>>;

// Never destroyed: threads may still wait when the process ends.
struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<void*, Gates> streams;
    std::map<void*, Gates> events;
    Gates closed;
};

State& state() {
    static State* the = new State;
    return *the;
}

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool all_open(const Gates& gates) {
    for (const auto& gate : gates)
        if (!gate->open) return false;
    return true;
}

void drop_open(Gates& gates) {
    Gates closed;
    for (auto& gate : gates)
        if (!gate->open) closed.push_back(gate);
    gates.swap(closed);
}

// Waits for the gates that `owner` has now; later ones are not waited for.
void wait_for(std::unique_lock<std::mutex>& lock, const Gates& gates) {
    Gates now = gates;
    state().changed.wait(lock, [&] { return all_open(now); });
}

}  // namespace

extern "C" {

void* gate_close(void* stream) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto gate = std::make_shared<Gate>();
    s.streams[stream].push_back(gate);
    s.closed.push_back(gate);
    return gate.get();
}

void gate_open(void* gate) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    for (auto& closed : s.closed) {
        if (closed.get() != gate) continue;
        closed->opened_s = now_s();
        closed->open = true;
    }
    drop_open(s.closed);
    s.changed.notify_all();
}

void gate_pass(void* stream) {
    State& s = state();
    std::unique_lock<std::mutex> lock(s.mutex);
    auto found = s.streams.find(stream);
    if (found == s.streams.end()) return;
    wait_for(lock, found->second);
    found = s.streams.find(stream);
    if (found != s.streams.end()) drop_open(found->second);
}

void gate_pass_all(void) {
    State& s = state();
    std::unique_lock<std::mutex> lock(s.mutex);
    wait_for(lock, s.closed);
}

void gate_record(void* event, void* stream) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto found = s.streams.find(stream);
    Gates gates;
    if (found != s.streams.end()) {
        drop_open(found->second);
        gates = found->second;
    }
    s.events[event] = gates;
}

void gate_follow(void* stream, void* event) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto found = s.events.find(event);
    if (found == s.events.end()) return;
    for (auto& gate : found->second)
        if (!gate->open) s.streams[stream].push_back(gate);
}

int gate_is_open(void* event) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto found = s.events.find(event);
    return found == s.events.end() || all_open(found->second);
}

void gate_wait(void* event) {
    State& s = state();
    std::unique_lock<std::mutex> lock(s.mutex);
    auto found = s.events.find(event);
    if (found != s.events.end()) wait_for(lock, found->second);
}

double gate_opened_s(void* event) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    double last = 0;
    auto found = s.events.find(event);
    if (found == s.events.end()) return last;
    for (auto& gate : found->second)
        if (gate->opened_s > last) last = gate->opened_s;
    return last;
}

void gate_forget_stream(void* stream) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.streams.erase(stream);
}

void gate_forget_event(void* event) {
    State& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.events.erase(event);
}

}  // extern "C"
