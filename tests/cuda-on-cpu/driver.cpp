// libcuda.so.1 of an emulated machine: devices, contexts and errors. Streams and events are in streams.cpp,
// memory in memory.cpp, kernels in launch.cpp.
//
// The machine is described by environment variables: EMULATED_GPUS (how many, 2), EMULATED_GPU_BYTES (memory of each, 1 GiB; it may be
// more than the host has: backing.h), EMULATED_POOL (pieces: the memory pool fragments, see pieces.h), EMULATED_CAPABILITY (9.0), EMULATED_DRIVER_VERSION (13000), and CUDA_VISIBLE_DEVICES as usual. Each claims to have 132 processors.
// As soon as there is a file of the name EMULATED_FAULT_FILE, the next kernel accesses an illegal address.
// Functions that are not here are weak stand-ins which say their name and abort.
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

size_t number_from(const char* variable, size_t otherwise) {
    const char* text = getenv(variable);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

/// The devices this process sees, made once and never destroyed: threads may still free memory when the process ends.
std::vector<std::unique_ptr<Device>>& devices() {
    static auto& all = *new auto([] {
        std::vector<std::unique_ptr<Device>> list;
        size_t count = number_from("EMULATED_GPUS", 2), bytes = number_from("EMULATED_GPU_BYTES", size_t(1) << 30);
        auto add = [&](size_t physical) {
            auto device = std::make_unique<Device>();
            device->ordinal = int(list.size());
            device->physical = int(physical);
            device->total_bytes = bytes;
            const char* pool = getenv("EMULATED_POOL");
            if (pool && !strcmp(pool, "pieces")) device->pieces = std::make_unique<Pieces>();
            list.push_back(std::move(device));
        };
        const char* visible = getenv("CUDA_VISIBLE_DEVICES");
        if (!visible) {
            for (size_t i = 0; i < count; i++) add(i);
            return list;
        }
        // As the real driver does: the list ends at the first entry that names no device.
        while (*visible) {
            char* end;
            size_t physical = strtoull(visible, &end, 10);
            if (end == visible || physical >= count) break;
            add(physical);
            visible = *end == ',' ? end + 1 : end;
        }
        return list;
    }());
    return all;
}

std::atomic<bool> initialized{false};
thread_local Device* current = nullptr;

/// EMULATED_CAPABILITY, as 8.0; 9.0 where it is not said.
std::pair<int, int> capability() {
    int major = 9, minor = 0;
    const char* text = getenv("EMULATED_CAPABILITY");
    if (text && sscanf(text, "%d.%d", &major, &minor) < 1) major = 9;
    return {major, minor};
}

int attribute_of(const Device& device, int attribute) {
    switch (attribute) {
        case 1: return 1024;             // threads per block
        case 2: case 3: return 1024;     // block, x and y
        case 4: return 64;               // block, z
        case 5: return 2147483647;       // grid, x
        case 6: case 7: return 65535;    // grid, y and z
        case 8: return 49152;            // shared memory per block
        case 10: return 32;              // lanes of a warp
        case 12: case 82: return 65536;  // registers per block, per processor
        case 13: return 1980000;         // clock, kHz
        case 16: return 132;             // processors
        case 33: return device.physical + 1;  // bus id
        case 39: return 2048;            // threads per processor
        case 41: return 1;               // unified addressing
        case 75: return capability().first;
        case 76: return capability().second;
        case 78: return 1;               // stream priorities
        case 81: return 233472;          // shared memory per processor
        case 97: return 232448;          // shared memory per block, asked for
        case 111: return 1024;           // shared memory reserved per block
        case 115: return 1;              // memory pools
        default: return 0;
    }
}

const char* name_of(int result, const char** words) {
    static const struct { int code; const char *name, *words; } list[] = {
        {SUCCESS, "CUDA_SUCCESS", "no error"},
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
        {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
        {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
        {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
        {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
        {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
        {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    };
    for (auto& entry : list) {
        if (entry.code == result) {
            *words = entry.words;
            return entry.name;
        }
    }
    return nullptr;
}

}  // namespace

Device* current_device() { return current; }

Device* device_at(int ordinal) {
    return ordinal >= 0 && size_t(ordinal) < devices().size() ? devices()[ordinal].get() : nullptr;
}

// ---- start, devices ----

API int cuInit(unsigned) {
    if (devices().empty()) return NO_DEVICE;
    initialized = true;
    return SUCCESS;
}

API int cuDriverGetVersion(int* version) {
    *version = int(number_from("EMULATED_DRIVER_VERSION", 13000));
    return SUCCESS;
}

/// NVIDIA's own libraries ask for what is not documented, and do without it.
API int cuGetExportTable(const void** table, const void*) {
    *table = nullptr;
    return NOT_FOUND;
}

API int cuDeviceGetCount(int* count) {
    if (!initialized) return NOT_INITIALIZED;
    *count = int(devices().size());
    return SUCCESS;
}

API int cuDeviceGet(int* device, int ordinal) {
    if (!initialized) return NOT_INITIALIZED;
    if (!device_at(ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

API int cuDeviceGetName(char* name, int length, int device) {
    if (!device_at(device)) return INVALID_DEVICE;
    snprintf(name, size_t(length), "emulated GPU %d", device_at(device)->physical);
    return SUCCESS;
}

API int cuDeviceGetUuid_v2(char* uuid, int device) {
    if (!device_at(device)) return INVALID_DEVICE;
    memset(uuid, 0xE0, 16);
    uuid[15] = char(device_at(device)->physical);
    return SUCCESS;
}

API int cuDeviceGetUuid(char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

API int cuDeviceGetPCIBusId(char* text, int length, int device) {
    if (!device_at(device)) return INVALID_DEVICE;
    snprintf(text, size_t(length), "0000:%02X:00.0", device_at(device)->physical + 1);
    return SUCCESS;
}

API int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    if (!device_at(device)) return INVALID_DEVICE;
    *bytes = device_at(device)->total_bytes;
    return SUCCESS;
}

API int cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (!device_at(device)) return INVALID_DEVICE;
    *value = attribute_of(*device_at(device), attribute);
    return SUCCESS;
}

API int cuDeviceCanAccessPeer(int* can, int, int) {
    *can = 1;
    return SUCCESS;
}

// ---- contexts: each device has the primary one ----

API int cuDevicePrimaryCtxRetain(void** context, int device) {
    if (!device_at(device)) return INVALID_DEVICE;
    *context = device_at(device);
    return SUCCESS;
}

API int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

API int cuCtxSetCurrent(void* context) {
    current = static_cast<Device*>(context);
    return SUCCESS;
}

API int cuCtxGetCurrent(void** context) {
    *context = current;
    return SUCCESS;
}

API int cuCtxGetDevice(int* device) {
    if (!current) return INVALID_CONTEXT;
    *device = current->ordinal;
    return SUCCESS;
}

API int cuCtxSynchronize() {
    if (!current) return INVALID_CONTEXT;
    wait_for_device(current);
    order_host_passed_all();
    return standing(current);
}

API int cuCtxSetFlags(unsigned) { return SUCCESS; }

API int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = MOST_URGENT;
    return SUCCESS;
}

// ---- errors ----

API int cuGetErrorName(int result, const char** name) {
    const char* words;
    *name = name_of(result, &words);
    return *name ? SUCCESS : INVALID_VALUE;
}

API int cuGetErrorString(int result, const char** words) {
    *words = nullptr;
    return name_of(result, words) ? SUCCESS : INVALID_VALUE;
}
