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

#include "order.h"
#include "pieces.h"
#include "queue.h"

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
    bool freed = false;  // its stream has not come so far
    // In a pool of pieces: its place, and its number among those that were freed.
    size_t place = 0;
    uint64_t freed_number = 0;
};

/// One emulated GPU, which is its own primary context and its own memory pool.
struct Device {
    // Failure of a kernel: CUDA answers every later call with it, as long as the process lives.
    std::atomic<int> fault{0};
    int ordinal;   // as this process counts
    int physical;  // as the machine counts: differs under CUDA_VISIBLE_DEVICES
    size_t total_bytes;
    std::recursive_mutex driver;  // the driver's own: see queue.h
    std::mutex lock;              // of all below
    std::map<DevicePointer, Allocation> allocations;
    std::vector<std::weak_ptr<Queue>> queues;
    std::shared_ptr<Queue> default_queue;  // of the default streams
    size_t direct_bytes = 0;
    // Bytes in tensors count until the stream that frees them has come so far. Before that, only this stream may have them.
    size_t pool_used_bytes = 0, pool_used_high_bytes = 0;
    std::map<Queue*, size_t> pool_leaving_bytes;
    size_t pool_reserved_bytes = 0, pool_reserved_high_bytes = 0;
    uint64_t pool_release_threshold_bytes = 0;
    std::unique_ptr<Pieces> pieces;  // null: the pool counts bytes only
    uint64_t freed_pieces = 0;
};

/// The priority of the most urgent streams.
constexpr int MOST_URGENT = -5;

/// A stream's queue has a thread of its own.
struct Stream {
    std::shared_ptr<Queue> queue;
    int priority = 0;  // the smaller, the more urgent; it changes nothing here
};

/// A place in a queue: after the work of that number.
struct Place {
    std::shared_ptr<Queue> queue;
    uint64_t number = 0;
    std::shared_ptr<std::atomic<double>> seconds;

    bool passed() const { return !queue || queue->has_passed(number); }
};

struct Event {
    Device* device;
    bool timed;
    std::mutex lock;
    Place place;  // where it was recorded last
};

/// The device whose context is current in this thread, or null.
Device* current_device();
/// What a call to the current device answers, if a kernel has spoilt it: INVALID_CONTEXT without one, else SUCCESS.
inline int standing(const Device* device) { return device ? device->fault.load() : INVALID_CONTEXT; }
Device* device_at(int ordinal);
/// The device of a stream; null and the handles 1 and 2 mean streams of the current device.
Device* device_of(void* stream);
/// The queue of a stream.
Queue& queue_of(void* stream);
/// All queues of a device.
std::vector<std::shared_ptr<Queue>> queues_of(Device* device);
/// Waits until a device has done everything that it has been given.
void wait_for_device(Device* device);
/// Waits until no kernel runs on a device, with any work queued after the running ones: the driver does so to load code.
void wait_for_running_kernels(Device* device);
// For a pool of pieces; without one nothing happens, and there is always a piece. The device is locked.
/// Takes a piece, or (without a queue) asks whether the pool leaves room for memory outside of it.
bool piece_taken(Device* device, size_t bytes, Queue* queue, size_t* place);
/// The host has freed a piece in a queue's order; the queue has come so far; the pool gives back what is free at its end.
void piece_left(Device* device, Allocation& allocation, Queue* queue);
void piece_passed(Device* device, const Allocation& allocation, Queue* queue);
void pieces_trimmed(Device* device, size_t keep_bytes);
/// The pool's numbers are those of its pieces.
void pieces_counted(Device* device);
/// Whether all these bytes lie in one allocation of one device.
bool inside_allocation(DevicePointer pointer, size_t bytes);
/// Whether they lie in memory of the host that devices see.
bool inside_pinned(DevicePointer pointer, size_t bytes);

#define API extern "C" __attribute__((visibility("default")))
