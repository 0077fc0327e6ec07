// Modules and kernels of the emulated driver. A module holds nothing: a kernel is found by its name among those compiled into
// this library (EXPORT in kernels/cu). A name that is not there belongs to somebody else, candle perhaps: NOT_FOUND.
//
// Code is loaded as late as CUDA_MODULE_LOADING=LAZY may: a kernel when it is first asked for, and every load waits for what runs
// on the device, a group of NCCL too.
//
// EMULATED_LAUNCH_LOG: a file to which every launch adds a line, with the kernel's name and its grid.
#include "driver.h"
#include "device.cuh"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Function {
    const EmulatedKernel* kernel = nullptr;
    std::atomic<unsigned> shared_limit_bytes{49152};
};

const unsigned SHARED_LIMIT_BYTES = 232448;

/// Every parameter that is an address, or a block with addresses, touches what it points to.
void touch_all(const EmulatedKernel* kernel, void** params, void* stream) {
    for (unsigned i = 0; i < kernel->param_count; i++) {
        for (unsigned at = 0; at + sizeof(void*) <= kernel->param_bytes[i]; at += sizeof(void*)) {
            const void* word;
            memcpy(&word, static_cast<const char*>(params[i]) + at, sizeof word);
            order_touch(stream, word);
        }
    }
    order_work(stream);
}

/// A line of EMULATED_LAUNCH_LOG.
void log_launch(const EmulatedKernel* kernel, const unsigned (&grid)[3]) {
    static const char* path = getenv("EMULATED_LAUNCH_LOG");
    FILE* file = path ? fopen(path, "a") : nullptr;
    if (!file) return;
    fprintf(file, "%s %u %u %u\n", kernel->name, grid[0], grid[1], grid[2]);
    fclose(file);
}

/// A launch's arguments: the driver copies them before it answers.
class Arguments {
   public:
    Arguments(const EmulatedKernel* kernel, void** params) {
        for (unsigned i = 0; i < kernel->param_count; i++) {
            // As wide as the widest alignment.
            values.emplace_back((kernel->param_bytes[i] + 15) / 16);
            memcpy(values.back().data(), params[i], kernel->param_bytes[i]);
        }
    }
    std::vector<void*> pointers() {
        std::vector<void*> all;
        for (auto& value : values) all.push_back(value.data());
        return all;
    }

   private:
    struct alignas(16) Piece {
        char bytes[16];
    };
    std::vector<std::vector<Piece>> values;
};

}  // namespace

API int cuModuleLoadData(void** module, const void*) {
    if (!current_device()) return INVALID_CONTEXT;
    std::lock_guard<std::recursive_mutex> call(current_device()->driver);
    wait_for_running_kernels(current_device());
    *module = current_device();
    return SUCCESS;
}

API int cuModuleUnload(void*) { return SUCCESS; }

API int cuModuleGetFunction(void** function, void*, const char* name) {
    const EmulatedKernel* kernel = emulated_kernel(name);
    if (!kernel) {
        fprintf(stderr, "emulated CUDA: there is no kernel %s\n", name);
        return NOT_FOUND;
    }
    Device* device = current_device();
    if (!device) return INVALID_CONTEXT;
    static auto& lock = *new std::mutex;
    static auto& functions = *new std::map<std::pair<Device*, const EmulatedKernel*>, Function>;
    bool loaded;
    {
        std::lock_guard<std::mutex> guard(lock);
        Function& made = functions[{device, kernel}];
        loaded = made.kernel;
        made.kernel = kernel;
        *function = &made;
    }
    if (!loaded) {
        std::lock_guard<std::recursive_mutex> call(device->driver);
        wait_for_running_kernels(device);
    }
    return SUCCESS;
}

API int cuFuncSetAttribute(void* function, int attribute, int value) {
    if (attribute == 8) {  // dynamic shared memory, bytes
        if (value < 0 || unsigned(value) > SHARED_LIMIT_BYTES) return INVALID_VALUE;
        static_cast<Function*>(function)->shared_limit_bytes = unsigned(value);
    }
    return SUCCESS;
}

API int cuFuncGetAttribute(int* value, int attribute, void* function) {
    switch (attribute) {
        case 0: *value = 1024; break;  // threads per block
        case 8: *value = int(static_cast<Function*>(function)->shared_limit_bytes.load()); break;
        default: *value = 0;
    }
    return SUCCESS;
}

API int cuFuncLoad(void*) { return SUCCESS; }

API int cuFuncSetCacheConfig(void*, int) { return SUCCESS; }

API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, size_t shared_bytes) {
    size_t by_shared = 233472 / (shared_bytes + 1024);
    size_t by_threads = threads > 0 ? 2048 / size_t(threads) : 0;
    *blocks = int(by_shared < by_threads ? by_shared : by_threads);
    return SUCCESS;
}

API int cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared_bytes, void* stream, void** params, void** extra) {
    auto* function = static_cast<Function*>(handle);
    const unsigned grid[3] = {grid_x, grid_y, grid_z};
    // The limits of the hardware.
    size_t threads = size_t(block_x) * block_y * block_z;
    bool fits = grid_x >= 1 && grid_y >= 1 && grid_z >= 1 && grid_x <= 2147483647u && grid_y <= 65535 && grid_z <= 65535;
    if (!fits || threads < 1 || threads > 1024 || block_z > 64 || extra) return INVALID_VALUE;
    if (shared_bytes > function->shared_limit_bytes) return INVALID_VALUE;
    if (int fault = standing(device_of(stream))) return fault;
    Device* device = device_of(stream);
    static const char* fault_file = getenv("EMULATED_FAULT_FILE");
    if (fault_file && access(fault_file, F_OK) == 0) {
        // The launch itself is well: later calls tell.
        queue_of(stream).push([device] { device->fault = ILLEGAL_ADDRESS; });
        return SUCCESS;
    }
    touch_all(function->kernel, params, stream);
    log_launch(function->kernel, grid);
    queue_of(stream).push([kernel = function->kernel, device, arguments = Arguments(function->kernel, params),
                           blocks = std::array{grid_x, grid_y, grid_z}, threads = std::array{block_x, block_y, block_z},
                           shared_bytes]() mutable {
        if (standing(device)) return;
        emulate_launch(kernel, arguments.pointers().data(), blocks.data(), threads.data(), shared_bytes);
    });
    return SUCCESS;
}

/// CUlaunchConfig.
struct LaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    void* attributes;
    unsigned attribute_count;
};

API int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** params, void** extra) {
    if (config->attribute_count) return NOT_SUPPORTED;
    auto& [grid, block, shared_bytes, stream, attributes, count] = *config;
    return cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, stream, params,
                          extra);
}
