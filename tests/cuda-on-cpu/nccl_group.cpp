// How a rank of the emulated NCCL finds the others and moves messages: sockets, and the thread that serves them.

#include "nccl_group.h"

extern "C" int cuMemFree_v2(unsigned long long pointer);
extern "C" int cuStreamGetPriority(void* stream, int* priority);

namespace emulated_nccl {

thread_local int depth = 0;
thread_local std::vector<std::pair<Handle, std::pair<void*, Operation>>> enqueued;
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
    } else if (o.kind == Kind::BROADCAST) {
        if (o.peer != c->rank) return in(o.peer, o.to);
        for (int peer = 0; peer < c->world; ++peer)
            if (peer != c->rank) out(peer);
        if (o.to != o.from) std::memcpy(o.to, o.from, o.bytes);
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
    bool connected = !c->error && connect_all(c);
    std::unique_lock<std::mutex> lock(c->mutex);
    c->connected = connected;
    c->changed.notify_all();
    while (connected && !c->aborted) {
        if (c->groups.empty()) {
            if (c->closing && c->outstanding == 0) break;
            c->changed.wait_for(lock, std::chrono::milliseconds(5));
            continue;
        }
        Group* group = c->groups.front();
        lock.unlock();
        for (const auto& operation : group->operations) push(c, operation);
        while (!c->aborted && move_some(c)) {
        }
        lock.lock();
        c->groups.pop_front();
        group->done = true;
        c->changed.notify_all();
    }
    c->ended = true;
    c->changed.notify_all();
}

namespace {

/// On the stream's thread: the group's kernel, which runs until its messages have gone and come.
void kernel(const Handle& c, void* stream, Group& group) {
    std::unique_lock<std::mutex> lock(c->mutex);
    // A spoilt device runs nothing any more.
    if (!c->aborted && !c->ended && !stream_fault(stream)) {
        c->groups.push_back(&group);
        c->changed.notify_all();
        c->changed.wait(lock, [&] { return group.done || c->ended; });
    }
    --c->outstanding;
    c->changed.notify_all();
}

/// A line of EMULATED_NCCL_LOG.
void log(const std::string& line) {
    const char* path = std::getenv("EMULATED_NCCL_LOG");
    FILE* file = path ? std::fopen(path, "a") : nullptr;
    if (!file) return;
    std::fputs((line + "\n").c_str(), file);  // in one piece: other ranks write too
    std::fclose(file);
}

std::string told(const Operation& o) {
    std::string bytes = std::to_string(o.bytes), peer = std::to_string(o.peer);
    if (o.kind == Kind::GATHER) return "gather " + bytes;
    if (o.kind == Kind::BROADCAST) return "broadcast " + bytes + " from " + peer;
    return o.from ? "send " + bytes + " to " + peer : "receive " + bytes + " from " + peer;
}

std::string told(const Communicator& c, const std::vector<Operation>& operations) {
    std::string line = "rank " + std::to_string(c.rank) + " group " + std::to_string(c.group_count) + ":";
    for (const auto& o : operations) line += (&o == &operations[0] ? " " : ", ") + told(o);
    return line;
}

/// Puts a group on its stream.
void launch(const Handle& c, void* stream, std::vector<Operation> operations) {
    auto* work = new std::function<void()>([c, stream, group = std::make_shared<Group>(Group{std::move(operations)})] {
        kernel(c, stream, *group);
    });
    stream_push(stream, [](void* given) {
        std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(given));
        (*mine)();
    }, work);
}

}  // namespace

int submit(const Handle& c, void* stream, std::vector<Operation> operations) {
    std::unique_lock<std::mutex> lock(c->mutex);
    if (c->aborted || !c->connected) return last_error = "the communicator is not connected", INVALID_USAGE;
    if (c->launching) return last_error = "a call while the last one is in progress", INVALID_USAGE;
    for (const auto& operation : operations) {
        bool takes = operation.kind != Kind::BROADCAST || operation.peer == c->rank;
        if (operation.from && takes) order_use(stream, operation.from, 0);
        // The root of a broadcast in place is not written to.
        if (operation.to && operation.to != operation.from) order_use(stream, operation.to, 1);
    }
    ++c->outstanding;
    ++c->group_count;
    cuStreamGetPriority(stream, &c->priority);
    log(told(*c, operations));
    if (c->blocking) {
        lock.unlock();
        launch(c, stream, std::move(operations));
        return SUCCESS;
    }
    if (c->launcher.joinable()) c->launcher.join();
    c->launching = true;
    ++c->thread_count;
    c->launcher = std::thread([c, stream, operations = std::move(operations)]() mutable {
        std::this_thread::sleep_for(LAUNCH);
        launch(c, stream, std::move(operations));
        std::lock_guard<std::mutex> lock(c->mutex);
        c->launching = false;
        c->changed.notify_all();
    });
    return IN_PROGRESS;
}

int enqueue(void* comm, void* stream, Operation operation) {
    if (!comm || operation.peer >= handle_of(comm)->world) return last_error = "no such rank", INVALID_ARGUMENT;
    if (depth == 0) return submit(handle_of(comm), stream, {operation});
    enqueued.push_back({handle_of(comm), {stream, operation}});
    return SUCCESS;
}

void end(Handle* handle) {
    Handle c = *handle;
    if (c->thread.joinable()) c->thread.join();
    if (c->launcher.joinable()) c->launcher.join();
    log("rank " + std::to_string(c->rank) + " ended: " + std::to_string(c->group_count) + " groups, " +
        std::to_string(c->thread_count) + " threads, priority " + std::to_string(c->priority) + ", at most " +
        std::to_string(c->max_blocks) + " blocks");
    for (auto& peer : c->peers)
        if (peer.socket >= 0) close(peer.socket);
    close(c->listener);
    if (c->buffers) cuMemFree_v2(c->buffers);
    delete handle;
}

}  // namespace emulated_nccl
