//! Contents of the chunk cache's tiers for a prefill: the ranks' memory and their stores. Counts
//! come from the ranks' reports; no store is asked.

use std::collections::BTreeMap;

use tributary_engine::Prefilled;
use tributary_protocol::{StoreError, StoreOperation, StoreReport, Tier};

use super::labels::LOOKUPS;
use super::of;
use super::sheet::Sheet;

/// Weight of an earlier read in the rate when the next one comes.
const FADE: f64 = 0.95;

/// Numbers of lookups, in the order of [`LOOKUPS`].
type Lookups = [u64; LOOKUPS.len()];

/// Totals of a tier since the beginning.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TierTotals {
    /// Chunks that were there.
    pub hits: u64,
    /// Chunks that were looked for and not taken from there, damaged ones among them.
    pub misses: u64,
    /// Bytes in it by the last report; unknown for the remote tier.
    pub used_bytes: Option<u64>,
    /// Bytes that were read from there.
    pub read_bytes: u64,
    /// Bytes that were written there.
    pub written_bytes: u64,
    /// Errors by their reason; those that have not occurred are left out.
    pub errors: BTreeMap<&'static str, u64>,
    /// Bytes of the last reads, and their seconds.
    reading: (f64, f64),
}

impl TierTotals {
    /// Bytes of a chunk in a second of its being read, over the last reads; none before the first.
    pub fn read_bytes_per_s(&self) -> Option<f64> {
        let (bytes, seconds) = self.reading;
        (seconds > 0.0).then(|| bytes / seconds)
    }

    fn did(&mut self, operation: StoreOperation, bytes: u64, seconds: f64) {
        match operation {
            StoreOperation::Read => {
                self.read_bytes += bytes;
                self.reading = (FADE * self.reading.0 + bytes as f64, FADE * self.reading.1 + seconds);
            }
            StoreOperation::Write => self.written_bytes += bytes,
        }
    }
}

/// The ranks' reports of their stores.
fn told<'a>(prefilled: &Prefilled<'a>) -> impl Iterator<Item = &'a StoreReport> {
    prefilled.reports.iter().filter_map(|report| report.chunk_cache.store.as_ref())
}

fn errors(prefilled: &Prefilled<'_>, tier: Tier, error: StoreError) -> u64 {
    let all = told(prefilled).flat_map(|store| &store.errors);
    all.filter(|(at, what, _)| (*at, *what) == (tier, error)).map(|(_, _, count)| count).sum()
}

/// Lookups of a prefill's chunks. A chunk that is not in memory is looked up on disk, where there
/// is a store: the disk has as many lookups as memory has misses. A damaged prefix counts as a
/// chunk. Ranks do not report which chunks came from the remote tier; its hits are the number of
/// reads there in the meantime. The remote tier is asked only for chunks that it is known to have.
fn lookups(prefilled: &Prefilled<'_>) -> [(Tier, Lookups); 3] {
    let caches = || prefilled.reports.iter().map(|report| &report.chunk_cache);
    let loaded: u64 = caches().map(|cache| cache.from_store.loaded as u64).sum();
    let hits = caches().map(|cache| cache.hits as u64).sum::<u64>().saturating_sub(loaded);
    let misses = (prefilled.chunks as u64).saturating_sub(hits).max(loaded);
    let damaged = |tier| [StoreError::Corrupt, StoreError::Incompatible].map(|error| errors(prefilled, tier, error));
    let is_fetched = |(tier, operation, ..): &&(Tier, StoreOperation, u64, f64)| {
        (*tier, *operation) == (Tier::Remote, StoreOperation::Read)
    };
    let fetched = told(prefilled).flat_map(|store| &store.operations).filter(is_fetched).count() as u64;
    let remote_hits = fetched.min(loaded);
    let disk_hits = loaded - remote_hits;
    let [corrupt, incompatible] = damaged(Tier::Disk);
    let has_store = told(prefilled).next().is_some();
    let disk_misses = if has_store { misses.saturating_sub(disk_hits + corrupt + incompatible) } else { 0 };
    let [remote_corrupt, remote_incompatible] = damaged(Tier::Remote);
    let remote_misses = errors(prefilled, Tier::Remote, StoreError::Missing);
    [
        (Tier::Memory, [hits, misses, 0, 0]),
        (Tier::Disk, [disk_hits, disk_misses, corrupt, incompatible]),
        (Tier::Remote, [remote_hits, remote_misses, remote_corrupt, remote_incompatible]),
    ]
}

/// Chunks that were dropped to make room.
fn evicted(prefilled: &Prefilled<'_>) -> [(Tier, u64); 2] {
    let of_memory = prefilled.reports.iter().map(|report| report.chunk_cache.evicted.len() as u64).sum();
    [(Tier::Memory, of_memory), (Tier::Disk, told(prefilled).map(|store| store.evicted).sum())]
}

/// Records a prefill.
pub fn record(sheet: &Sheet, prefilled: &Prefilled<'_>) {
    for (tier, lookups) in lookups(prefilled) {
        for (result, count) in LOOKUPS.iter().zip(lookups) {
            sheet.count(&of::CHUNK_CACHE_LOOKUPS, &[tier.name(), result], count);
        }
    }
    for (tier, count) in evicted(prefilled) {
        sheet.count(&of::CHUNK_CACHE_EVICTIONS, &[tier.name()], count);
    }
    for report in prefilled.reports {
        let labels = [&*report.rank.to_string(), Tier::Memory.name()];
        sheet.set(&of::CHUNK_CACHE_USED, &labels, report.chunk_cache.used_bytes as f64);
    }
    for (rank, used_bytes) in prefilled.stores {
        sheet.set(&of::CHUNK_CACHE_USED, &[&rank.to_string(), Tier::Disk.name()], *used_bytes as f64);
    }
    for &(tier, operation, bytes, seconds) in told(prefilled).flat_map(|store| &store.operations) {
        let moved = match operation {
            StoreOperation::Read => &of::CHUNK_STORE_READ,
            StoreOperation::Write => &of::CHUNK_STORE_WRITTEN,
        };
        sheet.count(moved, &[tier.name()], bytes);
        sheet.observe(&of::CHUNK_STORE_OPERATION_DURATION, &[tier.name(), operation.name()], seconds);
    }
    for (tier, error, count) in told(prefilled).flat_map(|store| &store.errors) {
        sheet.count(&of::CHUNK_STORE_ERRORS, &[tier.name(), error.name()], *count);
    }
}

/// Adds a prefill to the totals of the tiers that are there.
pub fn add(totals: &mut BTreeMap<Tier, TierTotals>, prefilled: &Prefilled<'_>) {
    for &(tier, operation, bytes, seconds) in told(prefilled).flat_map(|store| &store.operations) {
        totals.entry(tier).or_default().did(operation, bytes, seconds);
    }
    for (tier, error, count) in told(prefilled).flat_map(|store| &store.errors) {
        *totals.entry(*tier).or_default().errors.entry(error.name()).or_default() += count;
    }
    let used: u64 = prefilled.reports.iter().map(|report| report.chunk_cache.used_bytes).sum();
    totals.entry(Tier::Memory).or_default().used_bytes = Some(used);
    if !prefilled.stores.is_empty() {
        let used = prefilled.stores.iter().map(|(_, bytes)| bytes).sum();
        totals.entry(Tier::Disk).or_default().used_bytes = Some(used);
    }
    for (tier, [hits, others @ ..]) in lookups(prefilled) {
        if let Some(total) = totals.get_mut(&tier) {
            total.hits += hits;
            total.misses += others.iter().sum::<u64>();
        }
    }
}
