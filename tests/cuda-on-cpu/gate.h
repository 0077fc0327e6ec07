// Gates: work of another library on an emulated stream that is not done yet.
//
// Emulated streams run at once, in the thread that calls. NCCL's work cannot: it waits for other ranks. A closed gate
// stands for it. What comes on the stream behind a closed gate waits, in the calling thread, until it opens; an event that
// is recorded behind it is not ready before; a stream that waits for such an event has the gate too. So the host runs ahead
// as it does on a device, but for the first operation that needs what has not come.
//
// The driver calls what is in the second part. All functions may be called from any thread.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// For libraries: closes a new gate on a stream; gives it.
void* gate_close(void* stream);
// Opens a gate: its work is done. The gate must not be used any more.
void gate_open(void* gate);

// For the driver.
// Before work on a stream is done (launch, copy, set, free, synchronise): waits until its gates are open.
void gate_pass(void* stream);
// Before work that waits for all streams (a context's synchronise): waits until every gate is open.
void gate_pass_all(void);
// cuEventRecord: the event gets the stream's closed gates, in place of those it had.
void gate_record(void* event, void* stream);
// cuStreamWaitEvent: the stream gets the event's closed gates too.
void gate_follow(void* stream, void* event);
// cuEventQuery: whether the event's gates are open.
int gate_is_open(void* event);
// cuEventSynchronize: waits until the event's gates are open.
void gate_wait(void* event);
// cuEventElapsedTime: when the last of the event's gates opened, in seconds of a steady clock (std::chrono::steady_clock);
// 0 if it had none. The event's time is the later of this and its recording.
double gate_opened_s(void* event);
// cuStreamDestroy, cuEventDestroy: the address may come again.
void gate_forget_stream(void* stream);
void gate_forget_event(void* event);

#ifdef __cplusplus
}
#endif
