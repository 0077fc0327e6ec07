// A pool of pieces: see pieces.h. Part of the emulated libcuda.

#include "pieces.h"

#include <algorithm>

#include "driver.h"

bool Pieces::usable(const Piece& piece, const Queue* queue) const {
    return piece.state == FREE || (piece.state == LEAVING && piece.queue == queue);
}

/// Takes the first `bytes` of a piece.
void Pieces::split(std::map<size_t, Piece>::iterator from, size_t bytes, size_t* place) {
    *place = from->first;
    Piece rest = from->second;
    from->second = {bytes, TAKEN, nullptr, 0};
    rest.bytes -= bytes;
    if (rest.bytes) all[*place + bytes] = rest;
}

bool Pieces::fit(size_t bytes, const Queue* queue, size_t* place) {
    auto best = all.end();
    for (auto piece = all.begin(); piece != all.end(); ++piece) {
        if (!usable(piece->second, queue) || piece->second.bytes < bytes) continue;
        if (best == all.end() || piece->second.bytes < best->second.bytes) best = piece;
    }
    if (best == all.end()) return false;
    split(best, bytes, place);
    return true;
}

bool Pieces::grow(size_t bytes, const Queue* queue, size_t room, size_t* place) {
    auto last = all.empty() ? all.end() : std::prev(all.end());
    bool extends = last != all.end() && usable(last->second, queue);
    size_t begin = extends ? last->first : reserved_bytes();
    if (begin + bytes > room) return false;
    if (extends) all.erase(last);
    all[begin] = {bytes, TAKEN, nullptr, 0};
    *place = begin;
    return true;
}

bool Pieces::take(size_t bytes, const Queue* queue, size_t room, size_t* place) {
    if (fit(bytes, queue, place) || grow(bytes, queue, room, place)) return true;
    for (auto& [at, piece] : all)
        if (piece.state == LEAVING) piece.state = FREE;
    join_neighbours();
    return fit(bytes, queue, place) || grow(bytes, queue, room, place);
}

void Pieces::leave(size_t place, const Queue* queue, uint64_t number) {
    Piece& piece = all.at(place);
    piece.state = LEAVING;
    piece.queue = queue;
    piece.number = number;
    join_neighbours();
}

void Pieces::pass(const Queue* queue, uint64_t number) {
    for (auto& [at, piece] : all)
        if (piece.state == LEAVING && piece.queue == queue && piece.number <= number) piece.state = FREE;
    join_neighbours();
}

void Pieces::trim(size_t keep) {
    if (all.empty() || std::prev(all.end())->second.state != FREE) return;
    auto last = std::prev(all.end());
    size_t end = std::max(last->first, std::min(keep, reserved_bytes()));
    last->second.bytes = end - last->first;
    if (!last->second.bytes) all.erase(last);
}

void Pieces::join_neighbours() {
    for (auto piece = all.begin(); piece != all.end();) {
        auto next = std::next(piece);
        bool both = next != all.end() && piece->second.state != TAKEN && piece->second.state == next->second.state;
        if (!both || (piece->second.state == LEAVING && piece->second.queue != next->second.queue)) {
            piece = next;
            continue;
        }
        piece->second.bytes += next->second.bytes;
        piece->second.number = std::max(piece->second.number, next->second.number);
        all.erase(next);
    }
}

// ---- of a device ----

bool piece_taken(Device* device, size_t bytes, Queue* queue, size_t* place) {
    if (!device->pieces) return true;
    size_t room = device->total_bytes - device->direct_bytes;
    if (queue) return device->pieces->take(bytes, queue, room, place);
    device->pieces->trim(0);
    return device->pieces->reserved_bytes() + bytes <= room;
}

void piece_left(Device* device, Allocation& allocation, Queue* queue) {
    if (!device->pieces) return;
    allocation.freed_number = ++device->freed_pieces;
    device->pieces->leave(allocation.place, queue, allocation.freed_number);
}

void piece_passed(Device* device, const Allocation& allocation, Queue* queue) {
    if (!device->pieces) return;
    device->pieces->pass(queue, allocation.freed_number);
    pieces_trimmed(device, device->pool_release_threshold_bytes);
}

void pieces_trimmed(Device* device, size_t keep_bytes) {
    if (!device->pieces) return;
    device->pieces->trim(keep_bytes);
    pieces_counted(device);
}

void pieces_counted(Device* device) {
    if (!device->pieces) return;
    device->pool_reserved_bytes = device->pieces->reserved_bytes();
    device->pool_reserved_high_bytes = std::max(device->pool_reserved_high_bytes, device->pool_reserved_bytes);
}
