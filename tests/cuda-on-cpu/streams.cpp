// Streams and events of the emulated driver. Work runs in the thread of its stream's queue (queue.h); an event is a place in a queue.
#include "driver.h"

#include <algorithm>
#include <chrono>

namespace {

double now_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::shared_ptr<Queue> new_queue(Device* device) {
    auto queue = Queue::start(device);
    std::lock_guard<std::mutex> guard(device->lock);
    auto& all = device->queues;
    all.erase(std::remove_if(all.begin(), all.end(), [](auto& weak) { return weak.expired(); }), all.end());
    all.push_back(queue);
    return queue;
}

bool is_default(void* stream) { return stream == nullptr || stream == (void*)1 || stream == (void*)2; }

std::shared_ptr<Queue> shared_queue_of(void* stream) {
    if (!is_default(stream)) return static_cast<Stream*>(stream)->queue;
    Device* device = current_device();
    {
        std::lock_guard<std::mutex> guard(device->lock);
        if (device->default_queue) return device->default_queue;
    }
    auto made = new_queue(device);
    std::lock_guard<std::mutex> guard(device->lock);
    if (!device->default_queue) device->default_queue = made;
    return device->default_queue;
}

Place place_of(Event* event) {
    std::lock_guard<std::mutex> guard(event->lock);
    return event->place;
}

}  // namespace

Device* device_of(void* stream) {
    return is_default(stream) ? current_device() : static_cast<Stream*>(stream)->queue->device;
}

Queue& queue_of(void* stream) { return *shared_queue_of(stream); }

std::vector<std::shared_ptr<Queue>> queues_of(Device* device) {
    std::lock_guard<std::mutex> guard(device->lock);
    std::vector<std::shared_ptr<Queue>> all;
    for (auto& weak : device->queues)
        if (auto queue = weak.lock()) all.push_back(queue);
    return all;
}

void wait_for_device(Device* device) {
    for (auto& queue : queues_of(device)) {
        uint64_t number = queue->given();
        queue->wait(number);
        queue->hand_over(number);
    }
}

void wait_for_running_kernels(Device* device) {
    for (auto& queue : queues_of(device)) queue->wait_for_running();
}

API int cuStreamCreate(void** stream, unsigned) {
    if (int fault = standing(current_device())) return fault;
    *stream = new Stream{new_queue(current_device())};
    return SUCCESS;
}

API int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
    if (int refused = cuStreamCreate(stream, flags)) return refused;
    static_cast<Stream*>(*stream)->priority = std::clamp(priority, MOST_URGENT, 0);
    return SUCCESS;
}

API int cuStreamGetPriority(void* stream, int* priority) {
    *priority = is_default(stream) ? 0 : static_cast<Stream*>(stream)->priority;
    return SUCCESS;
}

/// It answers at once; the stream goes when its work is done.
API int cuStreamDestroy_v2(void* stream) {
    auto* gone = static_cast<Stream*>(stream);
    gone->queue->end([gone] {
        order_forget_stream(gone);
        delete gone;
    });
    return SUCCESS;
}

API int cuStreamSynchronize(void* stream) {
    Queue& queue = queue_of(stream);
    uint64_t number = queue.given();
    queue.wait(number);
    queue.hand_over(number);
    order_host_passed_stream(stream);
    return standing(device_of(stream));
}

API int cuStreamGetCtx(void* stream, void** context) {
    *context = device_of(stream);
    return SUCCESS;
}

API int cuStreamIsCapturing(void*, int* status) {
    *status = 0;
    return SUCCESS;
}

API int cuStreamBeginCapture_v2(void*, int) { return NOT_SUPPORTED; }

API int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    Place place = place_of(static_cast<Event*>(event));
    order_follow(stream, event);
    Queue& queue = queue_of(stream);
    if (place.queue && place.queue.get() != &queue) queue.push([place] { place.queue->wait(place.number); });
    return standing(device_of(stream));
}

API int cuLaunchHostFunc(void* stream, void (*work)(void*), void* data) {
    stream_push(stream, work, data);
    return SUCCESS;
}

/// Memory of the host that the device sees: cuMemHostAlloc's.
API int cuStreamWriteValue32_v2(void* stream, DevicePointer to, unsigned value, unsigned) {
    if (int fault = standing(device_of(stream))) return fault;
    if (to % 4 || !(inside_allocation(to, 4) || inside_pinned(to, 4))) return INVALID_VALUE;
    order_work(stream);
    Device* device = device_of(stream);
    queue_of(stream).push([=] {
        if (standing(device)) return;
        __atomic_store_n(reinterpret_cast<unsigned*>(to), value, __ATOMIC_SEQ_CST);
    });
    return SUCCESS;
}

API int cuEventCreate(void** event, unsigned flags) {
    if (int fault = standing(current_device())) return fault;
    auto* made = new Event{};
    made->device = current_device();
    made->timed = !(flags & 2);  // CU_EVENT_DISABLE_TIMING
    *event = made;
    return SUCCESS;
}

API int cuEventDestroy_v2(void* event) {
    std::lock_guard<std::recursive_mutex> call(static_cast<Event*>(event)->device->driver);
    order_forget_event(event);
    delete static_cast<Event*>(event);
    return SUCCESS;
}

API int cuEventRecord(void* event, void* stream) {
    auto* e = static_cast<Event*>(event);
    if (e->device != device_of(stream)) return INVALID_HANDLE;
    auto queue = shared_queue_of(stream);
    auto seconds = std::make_shared<std::atomic<double>>(0.0);
    uint64_t number = queue->push([seconds] { *seconds = now_seconds(); });
    {
        std::lock_guard<std::mutex> guard(e->lock);
        e->place = {queue, number, seconds};
    }
    order_record(event, stream);
    return standing(e->device);
}

API int cuEventQuery(void* event) {
    auto* e = static_cast<Event*>(event);
    std::lock_guard<std::recursive_mutex> call(e->device->driver);
    if (int fault = standing(e->device)) return fault;
    Place place = place_of(e);
    if (!place.passed()) return NOT_READY;
    if (place.queue) place.queue->hand_over(place.number);
    order_host_passed_event(event);
    return SUCCESS;
}

API int cuEventSynchronize(void* event) {
    Place place = place_of(static_cast<Event*>(event));
    if (place.queue) {
        place.queue->wait(place.number);
        place.queue->hand_over(place.number);
    }
    order_host_passed_event(event);
    return standing(static_cast<Event*>(event)->device);
}

API int cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
    double seconds[2];
    void* events[2] = {start, end};
    for (int i = 0; i < 2; i++) {
        auto* e = static_cast<Event*>(events[i]);
        std::lock_guard<std::recursive_mutex> call(e->device->driver);
        Place place = place_of(e);
        if (!place.queue || !e->timed) return INVALID_HANDLE;
        if (!place.passed()) return NOT_READY;
        seconds[i] = *place.seconds;
    }
    *milliseconds = float((seconds[1] - seconds[0]) * 1e3);
    return SUCCESS;
}

API int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
