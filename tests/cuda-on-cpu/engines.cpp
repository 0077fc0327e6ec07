// What a GPU does beside its threads, as late as their waits allow: asynchronous copies, barriers in shared memory, and products of a
// warpgroup.

#include "block.h"

#include <algorithm>

namespace emulate {

// ---- copies ----

static void poison(u32 shared, unsigned bytes) { memset(shared_at(shared, bytes), 0xff, bytes); }

void copy_async(u32 shared, const void* global, bool valid) {
    if (shared % 16 || reinterpret_cast<uintptr_t>(global) % 16) fail("cp.async: an address is not a multiple of 16");
    // Which of two would land last is the hardware's choice.
    auto there = [shared](const Copy& copy) { return copy.shared == shared; };
    bool busy = std::any_of(self->copies.begin(), self->copies.end(), there);
    for (const auto& group : self->committed) busy |= std::any_of(group.begin(), group.end(), there);
    if (busy) fail("cp.async: another copy is under way to the same place");
    poison(shared, 16);
    if (Proxies* known = proxies()) known->set_out(shared, 16);
    self->copies.push_back({shared, global, valid});
}

void copies_commit() {
    self->committed.push_back(std::move(self->copies));
    self->copies.clear();
}

void copies_wait(unsigned left) {
    while (self->committed.size() > left) {
        for (const Copy& copy : self->committed.front()) {
            u8* to = shared_at(copy.shared, 16);
            if (copy.valid) memcpy(to, copy.global, 16);
            else memset(to, 0, 16);
            if (Proxies* known = proxies()) known->store(copy.shared, 16);
        }
        self->committed.pop_front();
    }
}

struct Mbarrier {
    int32_t bytes;
    u16 pending;
    u16 expected_and_phase;  // phase in the highest bit
};
static_assert(sizeof(Mbarrier) == 8, "as large as the hardware's");

static Mbarrier& mbarrier_at(u32 address) {
    if (address % 8) fail("mbarrier: address not a multiple of 8");
    return *reinterpret_cast<Mbarrier*>(shared_at(address, 8));
}

static void complete(Mbarrier& barrier, u32 address) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    if (Proxies* known = proxies()) known->complete(FIRST_MBARRIER + address);
    barrier.expected_and_phase ^= 0x8000;
    barrier.pending = barrier.expected_and_phase & 0x7fff;
    progress();
}

void mbarrier_init(u32 address, u32 arrivals) {
    mbarrier_at(address) = {0, (u16)arrivals, (u16)arrivals};
    block->unfenced.push_back({address, self->number});
}

/// Whether EMULATED_WITHOUT names this instruction.
static bool left_out(const char* instruction) {
    static const char* name = getenv("EMULATED_WITHOUT");
    return name && !strcmp(name, instruction);
}

void mbarrier_fence() {
    if (left_out("mbarrier_fence")) return;
    auto& all = block->unfenced;
    auto own = [](const std::pair<u32, unsigned>& barrier) { return barrier.second == self->number; };
    all.erase(std::remove_if(all.begin(), all.end(), own), all.end());
}

void shared_fence() {
    Proxies* known = proxies();
    if (known && !left_out("shared_fence")) known->fence();
}

void mbarrier_arrive(u32 address, u32 expected_bytes) {
    Mbarrier& barrier = mbarrier_at(address);
    if (barrier.pending == 0) fail("mbarrier: more arrivals than it counts");
    if (Proxies* known = proxies()) known->arrive(FIRST_MBARRIER + address);
    barrier.bytes += (int32_t)expected_bytes;
    barrier.pending--;
    complete(barrier, address);
}

void mbarrier_wait(u32 address, u32 parity) {
    while ((mbarrier_at(address).expected_and_phase >> 15) == parity) yield("an mbarrier");
    if (Proxies* known = proxies()) known->leave(FIRST_MBARRIER + address);
}

void copy_bulk(u32 shared, const void* global, u32 bytes, u32 barrier) {
    if (shared % 16 || bytes % 16 || bytes == 0 || reinterpret_cast<uintptr_t>(global) % 16)
        fail("bulk copy: not a multiple of 16");
    for (const auto& [address, thread] : block->unfenced)
        if (address == barrier) fail("bulk copy: its mbarrier was initialised, but mbarrier_fence() is missing");
    if (Proxies* known = proxies()) known->set_out_bulk(shared, bytes, FIRST_MBARRIER + barrier);
    poison(shared, bytes);
    block->bulks.push_back({shared, global, bytes, barrier});
}

void copy_engine() {
    if (block->bulks.empty()) return;
    Bulk bulk = block->bulks.front();
    block->bulks.pop_front();
    memcpy(shared_at(bulk.shared, bulk.bytes), bulk.global, bulk.bytes);
    if (Proxies* known = proxies()) known->land_bulk(bulk.shared, bulk.bytes, FIRST_MBARRIER + bulk.barrier);
    Mbarrier& barrier = mbarrier_at(bulk.barrier);
    barrier.bytes -= (int32_t)bulk.bytes;
    complete(barrier, bulk.barrier);
    progress();
}

// ---- products of a warpgroup ----

static Warpgroup& warpgroup() { return block->products[self->number / 128]; }

/// Where eight numbers of row `row` begin, from column 8 `piece` on, of an operand in shared memory whose rows are 128 bytes, in
/// groups of eight, swizzled.
static u32 operand_place(u64 descriptor, int row, u32 piece) {
    if (descriptor >> 62 != 1) fail("wgmma: only the 128-byte swizzle is emulated");
    u32 group_bytes = (u32)(descriptor >> 32 & 0x3fff) << 4;
    u32 first = ((u32)(descriptor & 0x3fff) << 4) + (u32)(row / 8) * group_bytes + (u32)(row % 8) * 128;
    u32 address = first + 16 * piece;
    return address ^ (address >> 7 & 7) << 4;
}

void product(const Product& product) {
    warpgroup().open.push_back(product);
    Proxies* known = proxies();
    if (!known) return;
    for (u32 piece = 0; piece < 2; piece++) {
        for (int row = 0; !product.a_in_registers && row < 64; row++)
            known->operand(self->number / 128, operand_place(product.a_descriptor, row, piece));
        for (int row = 0; row < product.n; row++)
            known->operand(self->number / 128, operand_place(product.b_descriptor, row, piece));
    }
}

/// Columns 0 to 15 of a row of an operand.
static void operand_row(u64 descriptor, int row, float (*widen)(u16), float (&x)[16]) {
    for (u32 piece = 0; piece < 2; piece++) {
        u16 bits[8];
        memcpy(bits, shared_at(operand_place(descriptor, row, piece), 16), 16);
        for (int i = 0; i < 8; i++) x[8 * piece + i] = widen(bits[i]);
    }
}

static void compute(const Product& p) {
    static thread_local float a[64][16], row[16], b[16][128], d[64][128];
    auto place = [](int thread, int i) {
        int row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + 2 * (thread % 4) + i % 2;
        return &d[row][column];
    };
    for (int thread = 0; p.a_in_registers && thread < 128; thread++) {
        if (memcmp(p.a[thread], p.a_at[thread], 16)) fail("wgmma: an operand in registers changed before the wait");
        int g = thread / 32 * 16 + thread % 32 / 4, t = 2 * (thread % 4);
        for (int r = 0; r < 4; r++)
            for (int half = 0; half < 2; half++)
                a[g + 8 * (r % 2)][t + half + 8 * (r / 2)] = p.widen((u16)(p.a[thread][r] >> (16 * half)));
    }
    for (int m = 0; !p.a_in_registers && m < 64; m++) operand_row(p.a_descriptor, m, p.widen, a[m]);
    for (int n = 0; n < p.n; n++) {
        operand_row(p.b_descriptor, n, p.widen, row);
        for (int k = 0; k < 16; k++) b[k][n] = row[k];
    }
    for (int thread = 0; thread < 128; thread++)
        for (int i = 0; i < p.n / 2; i++) *place(thread, i) = p.accumulate ? p.d[thread][i] : 0.0f;
    for (int m = 0; m < 64; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < p.n; n++) d[m][n] += a[m][k] * b[k][n];
    for (int thread = 0; thread < 128; thread++)
        for (int i = 0; i < p.n / 2; i++) p.d[thread][i] = *place(thread, i);
}

void warpgroup_commit() {
    meet_warpgroup("wgmma.commit_group", nullptr, [](void**) {
        warpgroup().committed.push_back(std::move(warpgroup().open));
        warpgroup().open.clear();
    });
}

void warpgroup_wait(unsigned left) {
    meet_warpgroup("wgmma.wait_group", &left, [](void** parts) {
        unsigned left = *static_cast<unsigned*>(parts[0]);
        Warpgroup& group = warpgroup();
        while (group.committed.size() > left) {
            for (const Product& product : group.committed.front()) compute(product);
            group.committed.pop_front();
        }
    });
}

}  // namespace emulate
