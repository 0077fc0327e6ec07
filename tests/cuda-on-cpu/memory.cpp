// Memory of the emulated devices: host memory, counted against the device's size. Fresh memory is filled with NaN, and guards
// around each allocation are checked when it is freed, so that reading what was never written and writing past an end show.
#include "driver.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const size_t GUARD_BYTES = 256;  // before and behind; keeps the alignment that CUDA promises
const int POISON = 0xFF;         // a NaN in every float format, a large index in every integer
const int GUARD = 0xA5;

size_t used_bytes(const Device& device) { return device.direct_bytes + device.pool_reserved_bytes; }

int allocate(Device* device, DevicePointer* pointer, size_t bytes, bool from_pool, void* stream) {
    if (int fault = standing(device)) return fault;
    if (bytes == 0) return INVALID_VALUE;  // as cuMemAlloc; nothing of ours may count on more
    std::lock_guard<std::mutex> guard(device->lock);
    size_t direct = device->direct_bytes + (from_pool ? 0 : bytes);
    size_t pool = device->pool_used_bytes + (from_pool ? bytes : 0);
    // A pool gives back what it holds in reserve before an allocation fails.
    if (direct + pool > device->total_bytes) return OUT_OF_MEMORY;
    char* start = static_cast<char*>(aligned_alloc(256, (bytes + 255) / 256 * 256 + 2 * GUARD_BYTES));
    if (!start) return OUT_OF_MEMORY;
    memset(start, GUARD, GUARD_BYTES);
    memset(start + GUARD_BYTES, POISON, bytes);
    memset(start + GUARD_BYTES + bytes, GUARD, GUARD_BYTES);
    *pointer = DevicePointer(start + GUARD_BYTES);
    device->allocations[*pointer] = {bytes, from_pool};
    order_allocate(stream, start + GUARD_BYTES, bytes);
    device->direct_bytes = direct;
    device->pool_used_bytes = pool;
    device->pool_used_high_bytes = std::max(device->pool_used_high_bytes, pool);
    size_t room = device->total_bytes - direct;
    device->pool_reserved_bytes = std::min(std::max(device->pool_reserved_bytes, pool), room);
    device->pool_reserved_high_bytes = std::max(device->pool_reserved_high_bytes, device->pool_reserved_bytes);
    return SUCCESS;
}

void check_guards(DevicePointer pointer, size_t bytes) {
    const auto* start = reinterpret_cast<const unsigned char*>(pointer);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        bool before = start[i - GUARD_BYTES] == GUARD, behind = start[bytes + i] == GUARD;
        if (before && behind) continue;
        fprintf(stderr, "emulated CUDA: a kernel or copy wrote %s an allocation of %zu bytes\n",
                before ? "behind" : "before", bytes);
        abort();
    }
}

/// Frees on whatever device it lies: a free may come from a thread with another current context.
int release(DevicePointer pointer, void* stream) {
    for (int ordinal = 0; Device* device = device_at(ordinal); ordinal++) {
        std::lock_guard<std::mutex> guard(device->lock);
        auto found = device->allocations.find(pointer);
        if (found == device->allocations.end()) continue;
        Allocation allocation = found->second;
        order_free(stream, reinterpret_cast<void*>(pointer));
        device->allocations.erase(found);
        check_guards(pointer, allocation.bytes);
        if (allocation.from_pool) {
            device->pool_used_bytes -= allocation.bytes;
            // The real pool trims when a stream is synchronised; here at once.
            size_t keep = std::max<size_t>(device->pool_used_bytes, device->pool_release_threshold_bytes);
            device->pool_reserved_bytes = std::min(device->pool_reserved_bytes, keep);
        } else {
            device->direct_bytes -= allocation.bytes;
        }
        free(reinterpret_cast<char*>(pointer) - GUARD_BYTES);
        return standing(device);
    }
    return INVALID_VALUE;
}

}  // namespace

bool inside_allocation(DevicePointer pointer, size_t bytes) {
    for (int ordinal = 0; Device* device = device_at(ordinal); ordinal++) {
        std::lock_guard<std::mutex> guard(device->lock);
        auto next = device->allocations.upper_bound(pointer);
        if (next == device->allocations.begin()) continue;
        auto& [start, allocation] = *std::prev(next);
        if (pointer + bytes <= start + allocation.bytes) return true;
    }
    return false;
}

API int cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) { return allocate(current_device(), pointer, bytes, false, nullptr); }

API int cuMemAllocAsync(DevicePointer* pointer, size_t bytes, void* stream) {
    return allocate(device_of(stream), pointer, bytes, true, stream);
}

API int cuMemAllocFromPoolAsync(DevicePointer* pointer, size_t bytes, void* pool, void* stream) {
    return allocate(static_cast<Device*>(pool), pointer, bytes, true, stream);
}

API int cuMemFree_v2(DevicePointer pointer) {
    gate_pass_all();  // it waits for the device
    order_host_passed_all();
    return release(pointer, nullptr);
}

API int cuMemFreeAsync(DevicePointer pointer, void* stream) {
    gate_pass(stream);
    return release(pointer, stream);
}

API int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    Device* device = current_device();
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
    return SUCCESS;
}

// ---- host memory that a real driver would pin ----

API int cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
    *pointer = malloc(std::max<size_t>(bytes, 1));
    return *pointer ? SUCCESS : OUT_OF_MEMORY;
}

API int cuMemAllocHost_v2(void** pointer, size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }

API int cuMemFreeHost(void* pointer) {
    free(pointer);
    return SUCCESS;
}

// ---- copies ----

namespace {

int copy(void* to, const void* from, size_t bytes, bool to_device, bool from_device, void* stream) {
    gate_pass(stream);
    if (int fault = standing(device_of(stream))) return fault;
    for (const void* touched : {(const void*)to, from}) order_touch(stream, touched);
    order_work(stream);
    if (to_device && !inside_allocation(DevicePointer(to), bytes)) return INVALID_VALUE;
    if (from_device && !inside_allocation(DevicePointer(from), bytes)) return INVALID_VALUE;
    memmove(to, from, bytes);
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
    return copy(at(to), at(from), bytes, false, false, stream);
}

API int cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
    return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
}

API int cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
    return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
}

API int cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t bytes) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr);
}

API int cuMemsetD8Async(DevicePointer to, unsigned char value, size_t count, void* stream) {
    gate_pass(stream);
    if (int fault = standing(device_of(stream))) return fault;
    order_touch(stream, at(to));
    order_work(stream);
    if (!inside_allocation(to, count)) return INVALID_VALUE;
    memset(at(to), value, count);
    return SUCCESS;
}

API int cuMemsetD8_v2(DevicePointer to, unsigned char value, size_t count) {
    return cuMemsetD8Async(to, value, count, nullptr);
}

API int cuMemsetD32Async(DevicePointer to, unsigned value, size_t count, void* stream) {
    gate_pass(stream);
    if (int fault = standing(device_of(stream))) return fault;
    order_touch(stream, at(to));
    order_work(stream);
    if (!inside_allocation(to, 4 * count)) return INVALID_VALUE;
    std::fill_n(static_cast<unsigned*>(at(to)), count, value);
    return SUCCESS;
}
