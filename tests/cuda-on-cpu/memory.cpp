// Memory of the emulated devices: host memory, counted against the device's size. Fresh memory is filled with NaN, and guards
// around each allocation are checked when it is freed, so that reading what was never written and writing past an end show.
#include "driver.h"
#include "backing.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {

const size_t GUARD_BYTES = 256;  // before and after; keeps the alignment that CUDA promises
const int GUARD = 0xA5;

size_t used_bytes(const Device& device) { return device.direct_bytes + device.pool_reserved_bytes; }

/// What freed memory the pool may not give to work of this stream: other streams' that they have not come to.
size_t leaving_elsewhere_bytes(const Device& device, const Queue* queue) {
    size_t sum = 0;
    for (auto& [other, bytes] : device.pool_leaving_bytes)
        if (other != queue) sum += bytes;
    return sum;
}

/// What an allocation takes: a pool gives out multiples of 512 bytes.
size_t taken(const Allocation& allocation) {
    return allocation.from_pool ? (allocation.bytes + 511) / 512 * 512 : allocation.bytes;
}

/// `queue`: in whose order memory of the pool is given out; null for the others.
int allocate(Device* device, DevicePointer* pointer, size_t bytes, Queue* queue, void* stream) {
    std::lock_guard<std::recursive_mutex> call(device->driver);
    if (int fault = standing(device)) return fault;
    if (bytes == 0) return INVALID_VALUE;  // as cuMemAlloc; nothing of ours may count on more
    std::lock_guard<std::mutex> guard(device->lock);
    size_t leaving = 0;
    for (auto& entry : device->pool_leaving_bytes) leaving += entry.second;
    const Allocation allocation{bytes, queue != nullptr};
    size_t direct = device->direct_bytes + (queue ? 0 : bytes);
    size_t used = device->pool_used_bytes + (queue ? taken(allocation) : 0);
    // A pool gives back what it holds in reserve, and waits for what is on its way back, before an allocation fails.
    if (direct + used - leaving > device->total_bytes) return OUT_OF_MEMORY;
    size_t place = 0;
    if (!piece_taken(device, taken(allocation), queue, &place)) return OUT_OF_MEMORY;
    char* start = backing_take(bytes + 2 * GUARD_BYTES);
    if (!start) return OUT_OF_MEMORY;
    memset(start, GUARD, GUARD_BYTES);
    memset(start + GUARD_BYTES + bytes, GUARD, GUARD_BYTES);
    *pointer = DevicePointer(start + GUARD_BYTES);
    device->allocations[*pointer] = {bytes, queue != nullptr, false, place};
    order_allocate(stream, start + GUARD_BYTES, bytes);
    device->direct_bytes = direct;
    if (queue) {
        // What this stream has freed before is its own at once, in its order.
        size_t& own = device->pool_leaving_bytes[queue];
        size_t again = std::min(own, taken(allocation));
        own -= again;
        used -= again;
    }
    device->pool_used_bytes = used;
    device->pool_used_high_bytes = std::max(device->pool_used_high_bytes, used);
    size_t room = device->total_bytes - direct;
    device->pool_reserved_bytes = std::min(std::max(device->pool_reserved_bytes, used), room);
    device->pool_reserved_high_bytes = std::max(device->pool_reserved_high_bytes, device->pool_reserved_bytes);
    pieces_counted(device);
    return SUCCESS;
}

/// The host frees memory of the pool, in the order of a queue.
void leave_pool(Device* device, Allocation& allocation, Queue* queue) {
    std::lock_guard<std::mutex> guard(device->lock);
    device->pool_leaving_bytes[queue] += taken(allocation);
    piece_left(device, allocation, queue);
}

void check_guards(DevicePointer pointer, size_t bytes) {
    const auto* start = reinterpret_cast<const unsigned char*>(pointer);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        bool before = start[i - GUARD_BYTES] == GUARD, behind = start[bytes + i] == GUARD;
        if (before && behind) continue;
        fprintf(stderr, "emulated CUDA: a kernel or copy wrote %s an allocation of %zu bytes\n",
                before ? "after" : "before", bytes);
        abort();
    }
}

/// The device on which an allocation lies, which is marked as freed: a free may come from a thread with another current context.
Device* mark_freed(DevicePointer pointer, Allocation* allocation) {
    for (int ordinal = 0; Device* device = device_at(ordinal); ordinal++) {
        std::lock_guard<std::mutex> guard(device->lock);
        auto found = device->allocations.find(pointer);
        if (found == device->allocations.end() || found->second.freed) continue;
        found->second.freed = true;
        *allocation = found->second;
        return device;
    }
    return nullptr;
}

/// Nothing on the device uses it any more.
void give_back(Device* device, DevicePointer pointer, const Allocation& allocation, Queue* queue) {
    {
        std::lock_guard<std::mutex> guard(device->lock);
        device->allocations.erase(pointer);
        if (allocation.from_pool) {
            size_t& leaving = device->pool_leaving_bytes[queue];
            size_t back = std::min(leaving, taken(allocation));
            leaving -= back;
            device->pool_used_bytes -= back;
            // The real pool trims when a stream is synchronised; here at once.
            size_t keep = std::max<size_t>(device->pool_used_bytes, device->pool_release_threshold_bytes);
            device->pool_reserved_bytes = std::min(device->pool_reserved_bytes, keep);
            piece_passed(device, allocation, queue);
        } else {
            device->direct_bytes -= allocation.bytes;
        }
    }
    check_guards(pointer, allocation.bytes);
    backing_give(reinterpret_cast<char*>(pointer) - GUARD_BYTES);
}

}  // namespace

bool inside_allocation(DevicePointer pointer, size_t bytes) {
    for (int ordinal = 0; Device* device = device_at(ordinal); ordinal++) {
        std::lock_guard<std::mutex> guard(device->lock);
        auto next = device->allocations.upper_bound(pointer);
        if (next == device->allocations.begin()) continue;
        auto& [start, allocation] = *std::prev(next);
        if (!allocation.freed && pointer + bytes <= start + allocation.bytes) return true;
    }
    return false;
}

API int cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) { return allocate(current_device(), pointer, bytes, nullptr, nullptr); }

API int cuMemAllocAsync(DevicePointer* pointer, size_t bytes, void* stream) {
    return allocate(device_of(stream), pointer, bytes, &queue_of(stream), stream);
}

API int cuMemAllocFromPoolAsync(DevicePointer* pointer, size_t bytes, void* pool, void* stream) {
    return allocate(static_cast<Device*>(pool), pointer, bytes, &queue_of(stream), stream);
}

/// It waits for the device.
API int cuMemFree_v2(DevicePointer pointer) {
    Allocation allocation;
    Device* device = mark_freed(pointer, &allocation);
    if (!device) return INVALID_VALUE;
    wait_for_device(device);
    order_host_passed_all();
    order_free(nullptr, reinterpret_cast<void*>(pointer));
    if (allocation.from_pool) leave_pool(device, allocation, nullptr);
    give_back(device, pointer, allocation, nullptr);
    return standing(device);
}

/// The memory is free when the stream has come so far.
API int cuMemFreeAsync(DevicePointer pointer, void* stream) {
    Allocation allocation;
    Device* device = mark_freed(pointer, &allocation);
    if (!device) return INVALID_VALUE;
    // A poisoned device does no work any more, from any caller.
    if (!standing(device)) order_free(stream, reinterpret_cast<void*>(pointer));
    Queue* queue = &queue_of(stream);
    if (allocation.from_pool) leave_pool(device, allocation, queue);
    queue->push([=] { give_back(device, pointer, allocation, queue); });
    return standing(device);
}

API int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    Device* device = current_device();
    if (!device) return INVALID_CONTEXT;
    std::lock_guard<std::recursive_mutex> call(device->driver);
    if (int fault = standing(device)) return fault;
    std::lock_guard<std::mutex> guard(device->lock);
    *total_bytes = device->total_bytes;
    *free_bytes = device->total_bytes - used_bytes(*device);
    return SUCCESS;
}

// ---- the device's pool: its handle is the device itself ----

API int cuDeviceGetDefaultMemPool(void** pool, int device) {
    *pool = device_at(device);
    return *pool ? SUCCESS : INVALID_DEVICE;
}

API int cuDeviceGetMemPool(void** pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }

API int cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
    auto* device = static_cast<Device*>(pool);
    std::lock_guard<std::mutex> guard(device->lock);
    uint64_t number = 0;
    memcpy(&number, value, attribute < 4 ? 4 : 8);
    switch (attribute) {
        case 1: case 2: case 3: return SUCCESS;  // how freed memory is used again
        case 4: device->pool_release_threshold_bytes = number; return SUCCESS;
        case 6: device->pool_reserved_high_bytes = device->pool_reserved_bytes; return number ? INVALID_VALUE : SUCCESS;
        case 8: device->pool_used_high_bytes = device->pool_used_bytes; return number ? INVALID_VALUE : SUCCESS;
        default: return INVALID_VALUE;
    }
}

API int cuMemPoolGetAttribute(void* pool, int attribute, void* value) {
    auto* device = static_cast<Device*>(pool);
    std::lock_guard<std::mutex> guard(device->lock);
    uint64_t number;
    switch (attribute) {
        case 4: number = device->pool_release_threshold_bytes; break;
        case 5: number = device->pool_reserved_bytes; break;
        case 6: number = device->pool_reserved_high_bytes; break;
        case 7: number = device->pool_used_bytes; break;
        case 8: number = device->pool_used_high_bytes; break;
        default: return INVALID_VALUE;
    }
    memcpy(value, &number, sizeof number);
    return SUCCESS;
}

API int cuMemPoolTrimTo(void* pool, size_t keep_bytes) {
    auto* device = static_cast<Device*>(pool);
    std::lock_guard<std::mutex> guard(device->lock);
    size_t keep = std::max(device->pool_used_bytes, keep_bytes);
    device->pool_reserved_bytes = std::min(device->pool_reserved_bytes, keep);
    pieces_trimmed(device, keep_bytes);
    return SUCCESS;
}

// ---- host memory that a real driver would pin ----

namespace {

struct Pinned {
    std::mutex lock;
    std::map<DevicePointer, size_t> blocks;
};

Pinned& pinned() {
    static auto& all = *new Pinned;  // threads may outlive main
    return all;
}

}  // namespace

bool inside_pinned(DevicePointer pointer, size_t bytes) {
    std::lock_guard<std::mutex> guard(pinned().lock);
    auto next = pinned().blocks.upper_bound(pointer);
    if (next == pinned().blocks.begin()) return false;
    auto [start, length] = *std::prev(next);
    return pointer + bytes <= start + length;
}

API int cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
    *pointer = malloc(std::max<size_t>(bytes, 1));
    if (!*pointer) return OUT_OF_MEMORY;
    std::lock_guard<std::mutex> guard(pinned().lock);
    pinned().blocks[DevicePointer(*pointer)] = bytes;
    return SUCCESS;
}

API int cuMemAllocHost_v2(void** pointer, size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }

API int cuMemHostGetDevicePointer_v2(DevicePointer* pointer, void* host, unsigned) {
    if (!inside_pinned(DevicePointer(host), 1)) return INVALID_VALUE;
    *pointer = DevicePointer(host);
    return SUCCESS;
}

/// It waits for the devices: one may still write there.
API int cuMemFreeHost(void* pointer) {
    for (int ordinal = 0; Device* device = device_at(ordinal); ordinal++) wait_for_device(device);
    {
        std::lock_guard<std::mutex> guard(pinned().lock);
        pinned().blocks.erase(DevicePointer(pointer));
    }
    free(pointer);
    return SUCCESS;
}

// ---- copies ----

namespace {

/// What the host gives is read at once. What the host gets is there when it has waited for it; until then it finds NaN.
int copy(void* to, const void* from, size_t bytes, bool to_device, bool from_device, void* stream) {
    Device* device = device_of(stream);
    if (int fault = standing(device)) return fault;
    for (const void* touched : {(const void*)to, from}) order_touch(stream, touched);
    order_work(stream);
    if (to_device && !inside_allocation(DevicePointer(to), bytes)) return INVALID_VALUE;
    if (from_device && !inside_allocation(DevicePointer(from), bytes)) return INVALID_VALUE;
    Queue* queue = &queue_of(stream);
    if (!from_device) {
        const char* start = static_cast<const char*>(from);
        auto bytes_now = std::make_shared<std::vector<char>>(start, start + bytes);
        queue->push([=] {
            if (!standing(device)) memcpy(to, bytes_now->data(), bytes);
        });
    } else if (!to_device) {
        memset(to, POISON, bytes);
        queue->push([=] {
            const char* start = static_cast<const char*>(from);
            if (!standing(device)) queue->hold_for_host({start, start + bytes}, to);
        });
    } else {
        queue->push([=] {
            if (!standing(device)) memmove(to, from, bytes);
        });
    }
    return SUCCESS;
}

void* at(DevicePointer pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

API int cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, void* stream) {
    return copy(at(to), from, bytes, true, false, stream);
}

API int cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, void* stream) {
    return copy(to, at(from), bytes, false, true, stream);
}

API int cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, void* stream) {
    return copy(at(to), at(from), bytes, true, true, stream);
}

API int cuMemcpyPeerAsync(DevicePointer to, void*, DevicePointer from, void*, size_t bytes, void* stream) {
    return copy(at(to), at(from), bytes, true, true, stream);
}

API int cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t bytes, void* stream) {
    return copy(at(to), at(from), bytes, inside_allocation(to, bytes), inside_allocation(from, bytes), stream);
}

API int cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
    return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
}

API int cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
    if (int refused = cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr)) return refused;
    Queue& queue = queue_of(nullptr);
    uint64_t number = queue.given();
    queue.wait(number);
    queue.hand_over(number);
    return SUCCESS;
}

API int cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t bytes) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr);
}

namespace {

template <typename T>
int fill(DevicePointer to, T value, size_t count, void* stream) {
    Device* device = device_of(stream);
    if (int fault = standing(device)) return fault;
    order_touch(stream, at(to));
    order_work(stream);
    if (!inside_allocation(to, count * sizeof(T))) return INVALID_VALUE;
    queue_of(stream).push([=] {
        if (standing(device) || (!value && backing_cleared(static_cast<char*>(at(to)), count * sizeof(T)))) return;
        std::fill_n(static_cast<T*>(at(to)), count, value);
    });
    return SUCCESS;
}

}  // namespace

API int cuMemsetD8Async(DevicePointer to, unsigned char value, size_t count, void* stream) {
    return fill(to, value, count, stream);
}

API int cuMemsetD8_v2(DevicePointer to, unsigned char value, size_t count) {
    return cuMemsetD8Async(to, value, count, nullptr);
}

API int cuMemsetD32Async(DevicePointer to, unsigned value, size_t count, void* stream) {
    return fill(to, value, count, stream);
}
