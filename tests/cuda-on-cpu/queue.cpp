// Queues of emulated streams: see queue.h. Part of the emulated libcuda.

#include "queue.h"

#include <cstring>
#include <thread>

#include "driver.h"

std::shared_ptr<Queue> Queue::start(Device* device) {
    auto queue = std::make_shared<Queue>(device);
    // It ends with its stream, or with the process.
    std::thread([queue] { queue->work(); }).detach();
    return queue;
}

uint64_t Queue::push(std::function<void()> work) {
    std::lock_guard<std::recursive_mutex> call(device->driver);
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return tasks.size() < LAUNCHES; });
    tasks.push_back(std::move(work));
    changed.notify_all();
    return ++last;
}

uint64_t Queue::given() {
    std::lock_guard<std::mutex> lock(mutex);
    return last;
}

bool Queue::has_passed(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex);
    return done >= number;
}

void Queue::wait(uint64_t number) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done >= number; });
}

void Queue::wait_for_running() {
    std::unique_lock<std::mutex> lock(mutex);
    if (!running) return;
    uint64_t number = done + 1;
    changed.wait(lock, [&] { return done >= number; });
}

void Queue::end(std::function<void()> last_work) {
    std::lock_guard<std::mutex> lock(mutex);
    farewell = std::move(last_work);
    ending = true;
    changed.notify_all();
}

void Queue::hold_for_host(std::vector<char> bytes, void* to) {
    std::lock_guard<std::mutex> lock(mutex);
    held.push_back({done + 1, std::move(bytes), to});
}

void Queue::hand_over(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex);
    while (!held.empty() && held.front().number <= number) {
        memcpy(held.front().to, held.front().bytes.data(), held.front().bytes.size());
        held.pop_front();
    }
}

void Queue::work() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
        changed.wait(lock, [&] { return !tasks.empty() || ending; });
        if (tasks.empty()) break;
        std::function<void()> task = std::move(tasks.front());
        running = true;
        lock.unlock();
        task();
        task = nullptr;
        lock.lock();
        tasks.pop_front();  // only now: what runs takes room too
        running = false;
        done++;
        changed.notify_all();
    }
    lock.unlock();
    if (farewell) farewell();
}

extern "C" void stream_push(void* stream, void (*work)(void*), void* data) {
    queue_of(stream).push([=] { work(data); });
}

extern "C" int stream_fault(void* stream) { return standing(device_of(stream)); }
