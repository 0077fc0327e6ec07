// Order of work between streams: what a device may do in any order because no event says otherwise is a mistake here, though
// the emulated streams run at once and would hide it.
//
// Every stream counts its work, and knows the part of each other stream's work that it comes after: by events that it has waited
// for, and by the host's waits, after which all later work comes. Two rules are checked:
// * work of another library (NCCL) on memory must come after everything that the stream of that memory has been given so far;
// * an access to memory that such work writes, or a free of memory that it reads or writes, must come after it. (Whether a
//   kernel of ours writes what such work reads is not known here.)
// A breach ends the process. What the host has seen to be done counts for all that any thread does later, so a breach is found
// only while it has not been looked at.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Work of another library on a stream that writes this memory, or reads it.
void order_use(void* stream, const void* memory, int writes);
// Work on a stream that touches the allocation in which this address lies, if it lies in one.
void order_touch(void* stream, const void* address);
// Whether an address lies in memory that a device has given out.
int order_is_memory(const void* address);

// For the driver.
// Memory was given out in the order of a stream, or comes back; the address may come again.
void order_allocate(void* stream, const void* memory, size_t bytes);
void order_free(void* stream, const void* memory);
// Work was given to a stream.
void order_work(void* stream);
void order_record(void* event, void* stream);
void order_follow(void* stream, void* event);
// The host has seen that a stream's work, an event, or everything is done.
void order_host_passed_stream(void* stream);
void order_host_passed_event(void* event);
void order_host_passed_all(void);
void order_forget_stream(void* stream);
void order_forget_event(void* event);

#ifdef __cplusplus
}
#endif
