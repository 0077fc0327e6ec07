// An emulated NCCL: what comm::nccl calls, between threads and processes of one host, over sockets.
//
// Each communicator has a thread that runs its groups one after the other, as a GPU's stream would. A group stands for a
// closed gate (gate.h) on its stream until its messages have gone and come. What NCCL does not notice is not noticed here:
// a rank that has gone away or that sends another size than is expected leaves the others waiting, until ncclCommAbort.
//
// EMULATED_NCCL_VERSION: what ncclGetVersion answers (23007).

#include "gate.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

extern "C" int cuCtxGetDevice(int* device);
extern "C" int cuDeviceGetUuid_v2(void* uuid, int device);

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };

constexpr unsigned CONFIG_MAGIC = 0xcafebeef;
constexpr auto REST = std::chrono::milliseconds(1);

struct UniqueId {
    char internal[128];
};

// The head of ncclConfig_t.
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

enum class Kind : uint32_t { SEND, GATHER };

struct Head {
    Kind kind;
    uint32_t unused;
    uint64_t bytes;
};

struct Hello {
    uint32_t rank;
    unsigned char uuid[16];
};

struct Operation {
    Kind kind;
    const char* from;  // null: receives only
    char* to;          // null: sends only
    size_t bytes;
    int peer;
};

struct Group {
    std::vector<Operation> operations;
    void* gate;
};

// One message on its way, with its head.
struct Message {
    Head head;
    char* data;
    size_t passed = 0;
    bool done() const { return passed == sizeof(Head) + head.bytes; }
};

struct Peer {
    int socket = -1;
    std::deque<Message> out, in;
    Head came;           // the head of the message that comes
    bool stuck = false;  // it was not the expected one
};

struct Communicator {
    std::string name;
    int rank, world;
    bool blocking;
    unsigned char uuid[16];
    int listener = -1;
    std::vector<Peer> peers;
    std::thread thread;
    std::atomic<bool> aborted{false};

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Group> groups;
    bool busy = true, closing = false, connected = false;
    int error = SUCCESS;
    std::string why;
};

thread_local int depth = 0;
thread_local std::vector<std::pair<Communicator*, std::pair<void*, Operation>>> enqueued;
thread_local std::string last_error;

socklen_t address_of(const Communicator* c, int rank, sockaddr_un* address) {
    std::memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    // A name that begins with a zero is in no file system.
    int length = std::snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%s-%d", c->name.c_str(), rank);
    return offsetof(sockaddr_un, sun_path) + 1 + length;
}

bool fail(Communicator* c, int code, const std::string& why) {
    std::lock_guard<std::mutex> lock(c->mutex);
    c->error = code;
    c->why = why;
    c->changed.notify_all();
    return false;
}

bool whole(int socket, void* data, size_t bytes, bool out) {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
        ssize_t moved = out ? send(socket, at, bytes, MSG_NOSIGNAL) : recv(socket, at, bytes, 0);
        if (moved <= 0) return false;
        at += moved;
        bytes -= moved;
    }
    return true;
}

// Both sides of a new connection say who they are and which GPU they have.
bool greet(Communicator* c, int socket) {
    Hello mine{static_cast<uint32_t>(c->rank), {}}, theirs{};
    std::memcpy(mine.uuid, c->uuid, sizeof mine.uuid);
    if (!whole(socket, &mine, sizeof mine, true) || !whole(socket, &theirs, sizeof theirs, false))
        return fail(c, SYSTEM_ERROR, "a rank went away while it connected");
    c->peers[theirs.rank].socket = socket;
    const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (std::memcmp(mine.uuid, theirs.uuid, sizeof mine.uuid) == 0 && !(shared && std::string(shared) == "1"))
        return fail(c, INVALID_USAGE, "Duplicate GPU detected");
    return true;
}

// Connects to the ranks below, and is found by those above.
bool connect_all(Communicator* c) {
    for (int below = 0; below < c->rank; ++below) {
        sockaddr_un address;
        socklen_t length = address_of(c, below, &address);
        int s = socket(AF_UNIX, SOCK_STREAM, 0);
        while (connect(s, reinterpret_cast<sockaddr*>(&address), length) != 0) {
            if (c->aborted) return close(s), false;
            std::this_thread::sleep_for(REST);
        }
        if (!greet(c, s)) return false;
    }
    for (int above = c->rank + 1; above < c->world;) {
        if (c->aborted) return false;
        pollfd ready{c->listener, POLLIN, 0};
        if (poll(&ready, 1, 5) <= 0) continue;
        int s = accept(c->listener, nullptr, nullptr);
        if (s < 0) continue;
        if (!greet(c, s)) return false;
        ++above;
    }
    return true;
}

void push(Communicator* c, const Operation& o) {
    auto out = [&](int peer) { c->peers[peer].out.push_back({{o.kind, 0, o.bytes}, const_cast<char*>(o.from)}); };
    auto in = [&](int peer, char* to) { c->peers[peer].in.push_back({{o.kind, 0, o.bytes}, to}); };
    if (o.kind == Kind::GATHER) {
        for (int peer = 0; peer < c->world; ++peer) {
            char* to = o.to + peer * o.bytes;
            if (peer != c->rank) {
                out(peer);
                in(peer, to);
            } else if (to != o.from) {
                std::memcpy(to, o.from, o.bytes);
            }
        }
    } else if (o.from) {
        out(o.peer);
    } else {
        in(o.peer, o.to);
    }
}

// A rank's messages to itself.
void move_own(Peer& own) {
    while (!own.out.empty() && !own.in.empty() && own.out.front().head.bytes == own.in.front().head.bytes) {
        std::memcpy(own.in.front().data, own.out.front().data, own.in.front().head.bytes);
        own.out.pop_front();
        own.in.pop_front();
    }
}

ssize_t write_some(Peer& peer, Message& m) {
    bool head = m.passed < sizeof(Head);
    const char* at = head ? reinterpret_cast<char*>(&m.head) + m.passed : m.data + (m.passed - sizeof(Head));
    size_t rest = head ? sizeof(Head) - m.passed : m.head.bytes - (m.passed - sizeof(Head));
    return send(peer.socket, at, rest, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t read_some(Peer& peer, Message& m) {
    bool head = m.passed < sizeof(Head);
    char* at = head ? reinterpret_cast<char*>(&peer.came) + m.passed : m.data + (m.passed - sizeof(Head));
    size_t rest = head ? sizeof(Head) - m.passed : m.head.bytes - (m.passed - sizeof(Head));
    ssize_t moved = recv(peer.socket, at, rest, MSG_DONTWAIT);
    if (head && moved > 0 && m.passed + moved == sizeof(Head))
        peer.stuck = peer.came.bytes != m.head.bytes || peer.came.kind != m.head.kind;
    return moved;
}

// Moves what can be moved; whether anything is left.
bool move_some(Communicator* c) {
    bool left = false;
    std::vector<pollfd> waits;
    for (int rank = 0; rank < c->world; ++rank) {
        Peer& peer = c->peers[rank];
        if (rank == c->rank) {
            move_own(peer);
            left |= !peer.out.empty() || !peer.in.empty();
            continue;
        }
        while (!peer.out.empty()) {
            ssize_t moved = write_some(peer, peer.out.front());
            if (moved <= 0) break;
            peer.out.front().passed += moved;
            if (peer.out.front().done()) peer.out.pop_front();
        }
        while (!peer.in.empty() && !peer.stuck) {
            ssize_t moved = read_some(peer, peer.in.front());
            if (moved <= 0) break;
            peer.in.front().passed += moved;
            if (peer.in.front().done()) peer.in.pop_front();
        }
        short events = (peer.out.empty() ? 0 : POLLOUT) | (peer.in.empty() || peer.stuck ? 0 : POLLIN);
        left |= !peer.out.empty() || !peer.in.empty();
        if (events) waits.push_back({peer.socket, events, 0});
    }
    if (!left) return false;
    poll(waits.data(), waits.size(), 2);
    for (auto& ready : waits)
        if (ready.revents & (POLLERR | POLLHUP)) std::this_thread::sleep_for(REST);
    return true;
}

void run(Communicator* c) {
    bool connected = connect_all(c);
    std::unique_lock<std::mutex> lock(c->mutex);
    c->connected = connected;
    while (connected && !c->aborted) {
        c->busy = !c->groups.empty();
        c->changed.notify_all();
        if (c->groups.empty()) {
            if (c->closing) break;
            c->changed.wait_for(lock, std::chrono::milliseconds(5));
            continue;
        }
        Group group = c->groups.front();
        lock.unlock();
        for (const auto& operation : group.operations) push(c, operation);
        while (!c->aborted && move_some(c)) {
        }
        lock.lock();
        c->groups.pop_front();
        gate_open(group.gate);
    }
    for (auto& group : c->groups) gate_open(group.gate);
    c->groups.clear();
    c->busy = false;
    c->changed.notify_all();
}

int submit(Communicator* c, void* stream, std::vector<Operation> operations) {
    std::lock_guard<std::mutex> lock(c->mutex);
    if (c->aborted || !c->connected) return INVALID_USAGE;
    c->groups.push_back({std::move(operations), gate_close(stream)});
    c->changed.notify_all();
    return c->blocking ? SUCCESS : IN_PROGRESS;
}

int enqueue(void* comm, void* stream, Operation operation) {
    auto* c = static_cast<Communicator*>(comm);
    if (!c || operation.peer >= c->world) return last_error = "no such rank", INVALID_ARGUMENT;
    if (depth == 0) return submit(c, stream, {operation});
    enqueued.push_back({c, {stream, operation}});
    return SUCCESS;
}

void end(Communicator* c) {
    if (c->thread.joinable()) c->thread.join();
    for (auto& peer : c->peers)
        if (peer.socket >= 0) close(peer.socket);
    close(c->listener);
    delete c;
}

}  // namespace

API int ncclGetVersion(int* version) {
    const char* set = std::getenv("EMULATED_NCCL_VERSION");
    *version = set ? std::atoi(set) : 23007;
    return SUCCESS;
}

API const char* ncclGetErrorString(int code) {
    switch (code) {
        case SUCCESS: return "no error";
        case SYSTEM_ERROR: return "unhandled system error";
        case INVALID_ARGUMENT: return "invalid argument";
        case INVALID_USAGE: return "invalid usage";
        case IN_PROGRESS: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

API const char* ncclGetLastError(void* comm) {
    if (auto* c = static_cast<Communicator*>(comm)) {
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
    auto* c = new Communicator{};
    c->name = id.internal;
    c->rank = rank;
    c->world = world;
    c->blocking = config->blocking != 0;
    cuDeviceGetUuid_v2(c->uuid, device);
    c->peers.resize(world);
    c->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address;
    socklen_t length = address_of(c, rank, &address);
    if (bind(c->listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(c->listener, world) != 0) {
        close(c->listener);
        delete c;
        return last_error = "the rank is taken", INVALID_USAGE;
    }
    *comm = c;
    c->thread = std::thread(run, c);
    if (!c->blocking) return IN_PROGRESS;
    std::unique_lock<std::mutex> lock(c->mutex);
    c->changed.wait(lock, [&] { return c->connected || c->error; });
    return c->error;
}

API int ncclCommGetAsyncError(void* comm, int* state) {
    auto* c = static_cast<Communicator*>(comm);
    std::lock_guard<std::mutex> lock(c->mutex);
    // A group is launched once it is queued; only connecting and finalizing take their time.
    *state = c->error ? c->error : !c->connected || (c->closing && c->busy) ? IN_PROGRESS : SUCCESS;
    return SUCCESS;
}

API int ncclCommFinalize(void* comm) {
    auto* c = static_cast<Communicator*>(comm);
    std::lock_guard<std::mutex> lock(c->mutex);
    c->closing = true;
    c->busy = true;
    c->changed.notify_all();
    return c->blocking ? SUCCESS : IN_PROGRESS;
}

API int ncclCommDestroy(void* comm) {
    auto* c = static_cast<Communicator*>(comm);
    {
        std::lock_guard<std::mutex> lock(c->mutex);
        c->closing = true;
        c->changed.notify_all();
    }
    end(c);
    return SUCCESS;
}

API int ncclCommAbort(void* comm) {
    auto* c = static_cast<Communicator*>(comm);
    c->aborted = true;
    {
        std::lock_guard<std::mutex> lock(c->mutex);
        c->changed.notify_all();
    }
    end(c);
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
