// Streams of the emulated driver: each is a queue with a thread of its own that works it off, first in, first out. The host runs
// ahead of it, as it does of a device.
//
// What a call to the driver costs others is emulated too. A queue holds LAUNCHES entries; a thread that adds one more waits for room
// while it holds the driver's lock of that device, and every other call to the driver for that device waits for it: a thread
// that watches must not ask the driver then.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

struct Device;

/// Entries that a stream takes before the thread that adds the next one has to wait.
constexpr size_t LAUNCHES = 1024;

class Queue {
   public:
    explicit Queue(Device* device) : device(device) {}

    Device* const device;

    /// Gives work to the queue; its number, from 1 on. Waits for room.
    uint64_t push(std::function<void()> work);
    /// The number of the last work that was given.
    uint64_t given();
    /// Whether the work of this number, and all before it, is done.
    bool has_passed(uint64_t number);
    /// Waits until it is.
    void wait(uint64_t number);
    /// Waits until what runs now, if anything does, has ended.
    void wait_for_running();
    /// The queue's thread ends once everything is done, and calls this last.
    void end(std::function<void()> last);

    /// A copy to the host whose bytes have been read: they are handed over when the host has waited for it, not before.
    void hold_for_host(std::vector<char> bytes, void* to);
    /// The host has waited for the work of this number: it gets what was held for it up to there.
    void hand_over(uint64_t number);

    /// A queue whose thread runs.
    static std::shared_ptr<Queue> start(Device* device);

   private:
    struct Held {
        uint64_t number;
        std::vector<char> bytes;
        void* to;
    };

    void work();

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    std::deque<Held> held;
    uint64_t last = 0, done = 0;
    bool running = false, ending = false;
    std::function<void()> farewell;
};

// For other libraries of the emulated machine.
extern "C" {
/// Gives work to a stream, after everything that it has been given before.
void stream_push(void* stream, void (*work)(void*), void* data);
/// Result of a call to the stream's device: 0, or the failure of a kernel.
int stream_fault(void* stream);
}
