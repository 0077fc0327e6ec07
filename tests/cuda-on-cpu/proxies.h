// Who has written a block's shared memory, and who may read it: kept for kernels that copy engine and tensor cores work for.
//
// A GPU writes and reads shared memory in two ways, its proxies. Threads use the generic one for loads, stores and cp.async. Bulk
// copies and products of a warpgroup use the asynchronous one. Between the two a barrier is not enough:
// * what a thread stored is seen by a product, or gives way to a bulk copy, only after a shared_fence() of that thread, or of one that
//   met it at a barrier since;
// * what a bulk copy brought is seen only by a thread that has waited for its mbarrier, or met one that has.
// An emulated store is there at once and would hide a missing fence. So every thread keeps a count of what it knows of each other
// thread's stores, and of those that it knows to be fenced (vector clocks); barriers of every kind pass both on. Every 16 bytes of
// shared memory remember the last writer and its count. A breach ends the launch.
//
// Stores are seen because kernels that use these engines are compiled with -fsanitize=thread, which makes a call of every access;
// what is called stands in proxies.cpp.
#pragma once

#include <unordered_map>
#include <vector>

namespace emulate {

class Proxies {
   public:
    void begin(unsigned threads, size_t shared_bytes);

    // What the running thread does.
    void store(u32 address, size_t bytes);
    void load(u32 address, size_t bytes) const;
    void fence();
    /// It comes to a barrier, or it goes on after one.
    void arrive(u32 barrier);
    void leave(u32 barrier);
    /// The last arrival: who leaves from now on knows what those knew who came.
    void complete(u32 barrier);
    /// These threads have met, the running one among them.
    void meet(unsigned first, unsigned count);

    /// A copy starts; its bytes must not be read until it has landed.
    void set_out(u32 address, size_t bytes);
    void set_out_bulk(u32 address, size_t bytes, u32 barrier);
    void land_bulk(u32 address, size_t bytes, u32 barrier);
    /// 16 bytes of an operand of a product that the warpgroup starts.
    void operand(unsigned warpgroup, u32 address);

   private:
    /// Mbarriers of a block that count copies, at most.
    static constexpr unsigned COPIERS = 8;

    struct Mark {
        u32 count, writer;
    };
    /// Of every thread, and of the copies that an mbarrier counts (they land in any order, but for what their mbarriers say): how much
    /// one knows of, then the number of fenced ones.
    typedef std::vector<u32> View;
    struct Gathering {
        View coming, passed;
    };

    u32* view(unsigned thread) { return &views[thread * width()]; }
    const u32* view(unsigned thread) const { return &views[thread * width()]; }
    size_t width() const { return 2 * writers(); }
    unsigned writers() const { return threads + COPIERS; }
    bool is_copy(const Mark& mark) const { return mark.writer >= threads && mark.writer < writers(); }
    /// As what writer copies of an mbarrier count.
    unsigned copier(u32 barrier);
    void mark(u32 address, size_t bytes, Mark with);
    Gathering& gathering(u32 barrier);
    void learned() { stale[running() / 128] = true; }
    static unsigned running();

    unsigned threads = 0;
    std::vector<u32> copiers;  // their mbarriers
    u32 landed[COPIERS];
    View views;
    std::vector<Mark> marks;
    std::unordered_map<u32, Gathering> gatherings;
    std::vector<View> least;  // what all threads of a warpgroup know
    std::vector<bool> stale;
};

/// Barriers by their number, and after those mbarriers by their address.
constexpr u32 FIRST_MBARRIER = 16;

}  // namespace emulate
