// A rank of an emulated NCCL group, and what the calls (nccl.cpp) ask of it.
#pragma once

#include "order.h"
#include "queue.h"

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
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace emulated_nccl {

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };

constexpr unsigned CONFIG_MAGIC = 0xcafebeef;
constexpr auto REST = std::chrono::milliseconds(1);
/// How long the thread of a group takes to launch it.
constexpr auto LAUNCH = std::chrono::microseconds(50);

struct UniqueId {
    char internal[128];
};

// The head of ncclConfig_t.
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster, min_blocks, max_blocks;
};

enum class Kind : uint32_t { SEND, GATHER, BROADCAST };

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
    int peer;  // of a broadcast: its root
};

struct Group {
    std::vector<Operation> operations;
    bool done = false;
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
    unsigned long long buffers = 0;  // device memory
    int listener = -1;
    std::vector<Peer> peers;
    std::thread thread;
    std::atomic<bool> aborted{false};

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Group*> groups;  // those that their streams have come to
    std::thread launcher;       // of the last group, where calls do not wait
    bool launching = false;
    unsigned outstanding = 0;  // groups that have not ended
    unsigned group_count = 0, thread_count = 0;
    int priority = 0;  // of the stream of the last group
    int max_blocks = 0;  // as the configuration has it
    bool closing = false, connected = false, ended = false;
    int error = SUCCESS;
    std::string why;
};

/// What a program holds of a communicator. Work on streams may outlive it.
using Handle = std::shared_ptr<Communicator>;
inline Handle& handle_of(void* comm) { return *static_cast<Handle*>(comm); }

// The calling thread's open groups, what is in them, and what went wrong last.
extern thread_local int depth;
extern thread_local std::vector<std::pair<Handle, std::pair<void*, Operation>>> enqueued;
extern thread_local std::string last_error;

/// Notes what has gone wrong; false.
bool fail(Communicator* c, int code, const std::string& why);
/// The socket's name of a rank; its length.
socklen_t address_of(const Communicator* c, int rank, sockaddr_un* address);
/// A rank's thread: connects, then serves one group after the other.
void run(Communicator* c);
/// Launches a group of operations: puts it on the stream, whose thread hands it to the rank's and waits for it. Where calls do not
/// wait, a thread of the group's own does that a little later, as NCCL's does: until then the communicator answers that it is in
/// progress, and what the caller puts on the stream meanwhile comes before the group.
int submit(const Handle& c, void* stream, std::vector<Operation> operations);
/// Adds an operation to the calling thread's open group; without one it is a group of its own.
int enqueue(void* comm, void* stream, Operation operation);
/// Joins the rank's threads and frees everything.
void end(Handle* handle);

}  // namespace emulated_nccl
