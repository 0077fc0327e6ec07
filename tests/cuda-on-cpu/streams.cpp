// Streams and events of the emulated driver. Work runs when it is enqueued, in the thread that enqueues it; only what stands
// behind a gate (gate.h) ends later.
#include "driver.h"

#include <algorithm>
#include <chrono>

namespace {

double now_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Device* device_of(void* stream) {
    if (stream == nullptr || stream == (void*)1 || stream == (void*)2) return current_device();
    return static_cast<Stream*>(stream)->device;
}

API int cuStreamCreate(void** stream, unsigned) {
    if (int fault = standing(current_device())) return fault;
    *stream = new Stream{current_device()};
    return SUCCESS;
}

API int cuStreamCreateWithPriority(void** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }

API int cuStreamDestroy_v2(void* stream) {
    gate_pass(stream);
    gate_forget_stream(stream);
    order_forget_stream(stream);
    delete static_cast<Stream*>(stream);
    return SUCCESS;
}

API int cuStreamSynchronize(void* stream) {
    gate_pass(stream);
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
    gate_follow(stream, event);
    order_follow(stream, event);
    return standing(device_of(stream));
}

API int cuLaunchHostFunc(void* stream, void (*work)(void*), void* data) {
    gate_pass(stream);
    work(data);
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
    gate_forget_event(event);
    order_forget_event(event);
    delete static_cast<Event*>(event);
    return SUCCESS;
}

API int cuEventRecord(void* event, void* stream) {
    auto* e = static_cast<Event*>(event);
    if (e->device != device_of(stream)) return INVALID_HANDLE;
    {
        std::lock_guard<std::mutex> guard(e->lock);
        e->recorded = true;
        e->seconds = now_seconds();
    }
    gate_record(event, stream);
    order_record(event, stream);
    return standing(e->device);
}

API int cuEventQuery(void* event) {
    if (int fault = standing(static_cast<Event*>(event)->device)) return fault;
    if (!gate_is_open(event)) return NOT_READY;
    order_host_passed_event(event);
    return SUCCESS;
}

API int cuEventSynchronize(void* event) {
    gate_wait(event);
    order_host_passed_event(event);
    return standing(static_cast<Event*>(event)->device);
}

API int cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
    double seconds[2];
    void* events[2] = {start, end};
    for (int i = 0; i < 2; i++) {
        auto* e = static_cast<Event*>(events[i]);
        std::lock_guard<std::mutex> guard(e->lock);
        if (!e->recorded || !e->timed) return INVALID_HANDLE;
        if (!gate_is_open(e)) return NOT_READY;
        seconds[i] = std::max(e->seconds, gate_opened_s(e));
    }
    *milliseconds = float((seconds[1] - seconds[0]) * 1e3);
    return SUCCESS;
}

API int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
