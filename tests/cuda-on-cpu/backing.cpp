// Memory of the host behind memory of the emulated devices: see backing.h.

#include "backing.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

/// A mapping of POISON, again and again the same; the kernel allows 65530 mappings in all, enough for 1 TB.
const size_t PIECE_BYTES = 16 << 20;
const size_t LARGE_BYTES = 2 * PIECE_BYTES;

struct Mapped {
    std::mutex lock;
    std::map<uintptr_t, size_t> bytes;
};

Mapped& mapped() {
    static auto& all = *new Mapped;  // threads may outlive main
    return all;
}

/// A file of PIECE_BYTES of POISON that no folder has; below 0 if the host gives none.
int poison_file() {
    static const int file = [] {
        int made = memfd_create("poison", MFD_CLOEXEC);
        if (made < 0 || ftruncate(made, PIECE_BYTES)) return -1;
        void* all = mmap(nullptr, PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
        if (all == MAP_FAILED) return -1;
        memset(all, POISON, PIECE_BYTES);
        munmap(all, PIECE_BYTES);
        return made;
    }();
    return file;
}

size_t page_bytes() { return size_t(sysconf(_SC_PAGESIZE)); }

}  // namespace

char* backing_take(size_t bytes) {
    if (bytes < LARGE_BYTES) {
        auto* start = static_cast<char*>(aligned_alloc(256, (bytes + 255) / 256 * 256));
        if (start) memset(start, POISON, bytes);
        return start;
    }
    size_t all = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
    if (poison_file() < 0) return nullptr;
    void* start = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    for (size_t at = 0; at < all; at += PIECE_BYTES) {
        void* place = static_cast<char*>(start) + at;
        int how = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
        if (mmap(place, std::min(PIECE_BYTES, all - at), PROT_READ | PROT_WRITE, how, poison_file(), 0) == MAP_FAILED) {
            munmap(start, all);
            return nullptr;
        }
    }
    std::lock_guard<std::mutex> guard(mapped().lock);
    mapped().bytes[uintptr_t(start)] = all;
    return static_cast<char*>(start);
}

void backing_give(char* start) {
    std::unique_lock<std::mutex> guard(mapped().lock);
    auto found = mapped().bytes.find(uintptr_t(start));
    if (found == mapped().bytes.end()) {
        guard.unlock();
        return free(start);
    }
    size_t bytes = found->second;
    mapped().bytes.erase(found);
    munmap(start, bytes);
}

bool backing_cleared(char* at, size_t bytes) {
    if (bytes < LARGE_BYTES) return false;
    std::lock_guard<std::mutex> guard(mapped().lock);
    auto next = mapped().bytes.upper_bound(uintptr_t(at));
    if (next == mapped().bytes.begin() || uintptr_t(at) >= std::prev(next)->first + std::prev(next)->second) return false;
    // Whole pages between two rests.
    size_t page = page_bytes(), before = (page - uintptr_t(at) % page) % page, pages = (bytes - before) / page * page;
    int how = MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE;
    if (mmap(at + before, pages, PROT_READ | PROT_WRITE, how, -1, 0) == MAP_FAILED) return false;
    memset(at, 0, before);
    memset(at + before + pages, 0, bytes - before - pages);
    return true;
}
