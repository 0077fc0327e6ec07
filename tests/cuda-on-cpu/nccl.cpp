// An emulated NCCL: what comm::nccl calls, between threads and processes of one host, over sockets.
//
// A group is launched by a thread of its own, a little after the call: until then the communicator answers that it is in progress.
// On its stream it is one piece of work, which ends when its messages have gone and come; a thread a communicator moves them. What
// NCCL does not notice is not noticed here: a rank that has gone away or that sends another size than is expected leaves the others
// waiting, until ncclCommAbort.
//
// EMULATED_NCCL_LOG: a file to which every rank adds a line a group, with its operations and their bytes, and one when it ends, with
//   how many groups and threads there were, the priority of their stream, and how many blocks the configuration allows a kernel.
// EMULATED_NCCL_FAIL_FILE: as soon as there is a file of this name, every communicator has lost a connection.
// EMULATED_NCCL_VERSION: what ncclGetVersion answers (23007).
// EMULATED_NCCL_BYTES: device memory that a rank's communicator takes for its buffers (0).
// EMULATED_NVLS=refused: multicast in the switches cannot be had, and NCCL does not start unless NCCL_NVLS_ENABLE=0.

#include "nccl_group.h"

extern "C" int cuCtxGetDevice(int* device);
extern "C" int cuDeviceGetUuid_v2(void* uuid, int device);
extern "C" int cuMemAlloc_v2(unsigned long long* pointer, size_t bytes);

#define API extern "C" __attribute__((visibility("default")))

using namespace emulated_nccl;

API int ncclGetVersion(int* version) {
    const char* set = std::getenv("EMULATED_NCCL_VERSION");
    *version = set ? std::atoi(set) : 23007;
    return SUCCESS;
}

API const char* ncclGetErrorString(int code) {
    switch (code) {
        case SUCCESS: return "no error";
        case UNHANDLED_CUDA_ERROR: return "unhandled cuda error";
        case SYSTEM_ERROR: return "unhandled system error";
        case INVALID_ARGUMENT: return "invalid argument";
        case INVALID_USAGE: return "invalid usage";
        case IN_PROGRESS: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

API const char* ncclGetLastError(void* comm) {
    if (comm) {
        Handle c = handle_of(comm);
        std::lock_guard<std::mutex> lock(c->mutex);
        if (!c->why.empty()) last_error = c->why;
    }
    return last_error.c_str();
}

API int ncclGetUniqueId(UniqueId* id) {
    std::random_device draw;
    std::memset(id, 0, sizeof *id);
    std::snprintf(id->internal, sizeof id->internal, "nccl-%d-%08x%08x", getpid(), draw(), draw());
    return SUCCESS;
}

API int ncclCommInitRankConfig(void** comm, int world, UniqueId id, int rank, Config* config) {
    *comm = nullptr;
    if (config->magic != CONFIG_MAGIC || config->size < sizeof(Config))
        return last_error = "the configuration was not initialized", INVALID_ARGUMENT;
    if (rank < 0 || rank >= world) return last_error = "rank outside the group", INVALID_ARGUMENT;
    int device = 0;
    if (cuCtxGetDevice(&device) != 0) return last_error = "the thread has no context", INVALID_USAGE;
    Handle c = std::make_shared<Communicator>();
    c->name = id.internal;
    c->rank = rank;
    c->world = world;
    c->blocking = config->blocking != 0;
    c->max_blocks = config->max_blocks;
    cuDeviceGetUuid_v2(c->uuid, device);
    c->peers.resize(world);
    c->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address;
    socklen_t length = address_of(c.get(), rank, &address);
    if (bind(c->listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(c->listener, world) != 0) {
        close(c->listener);
        return last_error = "the rank is taken", INVALID_USAGE;
    }
    const char* buffers = std::getenv("EMULATED_NCCL_BYTES");
    size_t bytes = buffers ? std::strtoull(buffers, nullptr, 10) : 0;
    // The real one allocates while it connects: the caller hears of it later.
    if (bytes > 0 && cuMemAlloc_v2(&c->buffers, bytes) != 0)
        fail(c.get(), UNHANDLED_CUDA_ERROR, "Failed to CUDA calloc " + std::to_string(bytes) + " bytes");
    const char *nvls = std::getenv("EMULATED_NVLS"), *enabled = std::getenv("NCCL_NVLS_ENABLE");
    if (nvls && !(enabled && std::strcmp(enabled, "0") == 0))
        fail(c.get(), UNHANDLED_CUDA_ERROR, "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401");
    *comm = new Handle(c);
    c->thread = std::thread(run, c.get());
    if (!c->blocking) return IN_PROGRESS;
    std::unique_lock<std::mutex> lock(c->mutex);
    c->changed.wait(lock, [&] { return c->connected || c->error; });
    return c->error;
}

API int ncclCommGetAsyncError(void* comm, int* state) {
    Handle c = handle_of(comm);
    const char* fail_file = std::getenv("EMULATED_NCCL_FAIL_FILE");
    if (fail_file && access(fail_file, F_OK) == 0) fail(c.get(), SYSTEM_ERROR, "Call to recv failed: Connection reset by peer");
    std::lock_guard<std::mutex> lock(c->mutex);
    bool underway = !c->connected || c->launching || (c->closing && !c->ended);
    *state = c->error ? c->error : underway ? IN_PROGRESS : SUCCESS;
    return SUCCESS;
}

API int ncclCommFinalize(void* comm) {
    Handle c = handle_of(comm);
    std::lock_guard<std::mutex> lock(c->mutex);
    c->closing = true;
    c->changed.notify_all();
    return c->blocking ? SUCCESS : IN_PROGRESS;
}

API int ncclCommDestroy(void* comm) {
    {
        Handle c = handle_of(comm);
        std::lock_guard<std::mutex> lock(c->mutex);
        c->closing = true;
        c->changed.notify_all();
    }
    end(&handle_of(comm));
    return SUCCESS;
}

API int ncclCommAbort(void* comm) {
    {
        Handle c = handle_of(comm);
        c->aborted = true;
        std::lock_guard<std::mutex> lock(c->mutex);
        c->changed.notify_all();
    }
    end(&handle_of(comm));
    return SUCCESS;
}

API int ncclGroupStart() {
    ++depth;
    return SUCCESS;
}

API int ncclGroupEnd() {
    if (depth == 0) return last_error = "no group was started", INVALID_USAGE;
    if (--depth > 0 || enqueued.empty()) return SUCCESS;
    auto all = std::move(enqueued);
    enqueued.clear();
    std::vector<Operation> operations;
    for (auto& [c, what] : all) {
        if (c != all[0].first || what.first != all[0].second.first)
            return last_error = "a group of one communicator and stream is all that is emulated", INVALID_USAGE;
        operations.push_back(what.second);
    }
    return submit(all[0].first, all[0].second.first, std::move(operations));
}

// Everything that comm::nccl sends is bytes.
constexpr int UINT8 = 1;

API int ncclSend(const void* from, size_t bytes, int type, int peer, void* comm, void* stream) {
    if (type != UINT8) return last_error = "only bytes are emulated", INVALID_ARGUMENT;
    return enqueue(comm, stream, {Kind::SEND, static_cast<const char*>(from), nullptr, bytes, peer});
}

API int ncclRecv(void* to, size_t bytes, int type, int peer, void* comm, void* stream) {
    if (type != UINT8) return last_error = "only bytes are emulated", INVALID_ARGUMENT;
    return enqueue(comm, stream, {Kind::SEND, nullptr, static_cast<char*>(to), bytes, peer});
}

API int ncclAllGather(const void* from, void* to, size_t bytes, int type, void* comm, void* stream) {
    if (type != UINT8) return last_error = "only bytes are emulated", INVALID_ARGUMENT;
    return enqueue(comm, stream, {Kind::GATHER, static_cast<const char*>(from), static_cast<char*>(to), bytes, 0});
}

API int ncclBroadcast(const void* from, void* to, size_t bytes, int type, int root, void* comm, void* stream) {
    if (type != UINT8) return last_error = "only bytes are emulated", INVALID_ARGUMENT;
    if (root < 0) return last_error = "no such rank", INVALID_ARGUMENT;
    return enqueue(comm, stream, {Kind::BROADCAST, static_cast<const char*>(from), static_cast<char*>(to), bytes, root});
}
