// What some threads of a block bring and others take, two pieces under way: barriers in shared memory say what is there, and where
// there is room.
#pragma once

#include "device.cuh"

static constexpr u32 STAGES = 2;

/// The barriers of one kind of pieces, numbered from 0 on without an end: for each stage one says that the piece is there, and one
/// that it has been read.
struct Ring {
    u32 barriers;

    DEVICE u32 full(u32 n) const { return barriers + 8 * (n % STAGES); }
    DEVICE u32 empty(u32 n) const { return barriers + 8 * (STAGES + n % STAGES); }
    /// Waits for number n to be there.
    DEVICE void wait(u32 n) const { mbarrier_wait(full(n), n / STAGES % 2); }
    /// Waits until there is room for number n.
    DEVICE void wait_for_room(u32 n) const { mbarrier_wait(empty(n), n / STAGES % 2 ^ 1); }
    /// One arrival a warp: it no longer reads number n.
    DEVICE void release(u32 n) const { mbarrier_arrive_if(empty(n), lane_id() == 0); }
    /// Every stage is empty; the given numbers of arrivals fill one, and empty one.
    DEVICE void begin(u32 fill, u32 clear) const {
        for (u32 stage = 0; stage < STAGES; stage++) {
            mbarrier_init(full(stage), fill);
            mbarrier_init(empty(stage), clear);
        }
    }
};
