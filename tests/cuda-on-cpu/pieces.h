// A pool whose memory comes back in the pieces that it was taken in: only neighbours become one again. So there can be enough free
// memory and no piece that is large enough, which a pool that counts bytes never shows. EMULATED_POOL=pieces asks for it.
//
// Pieces are adjacent from address 0 on; the addresses belong to the pool alone. Only the end of it is ever given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

class Queue;

class Pieces {
   public:
    /// The smallest piece that fits, else more at the end, up to `room` bytes in all; false if neither is there. Work of `queue` may
    /// have what this queue has freed, though it has not come so far; others' such memory is waited for before the pool gives up.
    bool take(size_t bytes, const Queue* queue, size_t room, size_t* place);
    /// The piece is freed in the order of `queue`; what is freed later has a larger number.
    void leave(size_t place, const Queue* queue, uint64_t number);
    /// The queue has come to that number.
    void pass(const Queue* queue, uint64_t number);
    /// Gives back what is free at the end, but for `keep` bytes in all.
    void trim(size_t keep);

    size_t reserved_bytes() const { return all.empty() ? 0 : std::prev(all.end())->first + std::prev(all.end())->second.bytes; }

   private:
    enum State { TAKEN, LEAVING, FREE };
    struct Piece {
        size_t bytes;
        State state;
        const Queue* queue;  // of what is leaving
        uint64_t number;
    };
    bool usable(const Piece& piece, const Queue* queue) const;
    bool fit(size_t bytes, const Queue* queue, size_t* place);
    bool grow(size_t bytes, const Queue* queue, size_t room, size_t* place);
    void split(std::map<size_t, Piece>::iterator from, size_t bytes, size_t* place);
    void join_neighbours();

    std::map<size_t, Piece> all;  // by place, without gaps
};
