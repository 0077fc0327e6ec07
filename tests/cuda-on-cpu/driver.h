// What the parts of the emulated driver share: result codes, devices, contexts, streams and events.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gate.h"
#include "order.h"

/// CUresult: the codes of cuda.h that can come out of here.
enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801,
};

typedef unsigned long long DevicePointer;

/// An allocation: what lies between its guards belongs to the program.
struct Allocation {
    size_t bytes;
    bool from_pool;
};

/// One emulated GPU, which is its own primary context and its own memory pool.
struct Device {
    // What a failed kernel has left behind: CUDA answers every later call with it, as long as the process lives.
    std::atomic<int> fault{0};
    int ordinal;   // as this process counts
    int physical;  // as the machine counts: differs under CUDA_VISIBLE_DEVICES
    size_t total_bytes;
    std::mutex lock;  // of all below
    std::map<DevicePointer, Allocation> allocations;
    size_t direct_bytes = 0;
    size_t pool_used_bytes = 0, pool_used_high_bytes = 0;
    size_t pool_reserved_bytes = 0, pool_reserved_high_bytes = 0;
    uint64_t pool_release_threshold_bytes = 0;
};

/// A stream runs at once, in the thread that enqueues; but see gate.h.
struct Stream {
    Device* device;
};

struct Event {
    Device* device;
    bool timed;
    std::mutex lock;
    bool recorded = false;
    double seconds = 0;
};

/// The device whose context is current in this thread, or null.
Device* current_device();
/// What a call to the current device answers, if a kernel has spoilt it: INVALID_CONTEXT without one, else SUCCESS.
inline int standing(const Device* device) { return device ? device->fault.load() : INVALID_CONTEXT; }
Device* device_at(int ordinal);
/// The device of a stream; null and the handles 1 and 2 mean streams of the current device.
Device* device_of(void* stream);
/// Whether all these bytes lie in one allocation of one device.
bool inside_allocation(DevicePointer pointer, size_t bytes);

#define API extern "C" __attribute__((visibility("default")))
