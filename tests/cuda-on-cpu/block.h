// A block of threads as the scheduler (emulate.cpp) and the engines (engines.cpp) know it.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#include "emulate.h"
#include "proxies.h"

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
    /// Of mbarriers that copies may not know yet: address, and the thread that initialised it.
    std::vector<std::pair<u32, unsigned>> unfenced;
    Proxies proxies;
    size_t left = 0;  // threads that have not ended; none: no block is here
    bool advanced = false;
    u8* stacks = nullptr;
    size_t stack_count = 0;
#if defined(__x86_64__)
    void* scheduler = nullptr;
#else
    ucontext_t scheduler;
#endif

    ~Block();
};

/// The block that runs on this thread of the system.
extern thread_local Block* block __attribute__((tls_model("initial-exec")));

/// What is written in the running block's shared memory, if its kernel is watched.
inline Proxies* proxies() { return block->kernel->watched ? &block->proxies : nullptr; }

/// The copy engine does one copy a turn.
void copy_engine();

}  // namespace emulate
