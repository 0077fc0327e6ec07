// Memory of the host behind memory of the emulated devices. What is small is filled with POISON at once. What is large takes pages of
// the host only where something is written: until then it shows the same few pages of POISON, or zeros. So a card of 80 GB can be
// emulated (EMULATED_GPU_BYTES) as long as little of it is written.
#pragma once

#include <cstddef>

/// A NaN in every float format, a large index in every integer.
constexpr int POISON = 0xFF;

/// Memory at a multiple of 256; null if there is none.
char* backing_take(size_t bytes);
void backing_give(char* start);
/// Fills with zeros where that gives pages back to the host; says whether it did.
bool backing_cleared(char* at, size_t bytes);
