//! Operations of a store since the last report, and its speed of reading.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tributary_protocol::{ChunkKey, StoreError, StoreOperation, StoreReport, Tier};

/// Maximum number of operations kept for the next report. Further ones are not listed.
const MOST_REMEMBERED: usize = 100_000;

/// The most keys that one report has of each kind: it must fit into a message. The others come with
/// the next.
const MOST_TOLD: usize = 50_000;

/// Reading for longer than this is remembered at half its weight.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Shortest time of reading from which a rate follows.
const TELLING: Duration = Duration::from_micros(200);

/// Counts for the next report.
#[derive(Debug, Default)]
pub struct Tally {
    report: StoreReport,
    errors: BTreeMap<(Tier, StoreError), u64>,
    /// Speed of reading the folder.
    pub reading: Reading,
}

impl Tally {
    /// An operation has succeeded.
    pub fn did(&mut self, tier: Tier, operation: StoreOperation, bytes: u64, took: Duration) {
        if self.report.operations.len() < MOST_REMEMBERED {
            self.report.operations.push((tier, operation, bytes, took.as_secs_f64()));
        }
    }

    /// An operation has failed.
    pub fn failed(&mut self, tier: Tier, error: StoreError) {
        *self.errors.entry((tier, error)).or_default() += 1;
    }

    /// Chunks have come.
    pub fn stored(&mut self, keys: impl IntoIterator<Item = ChunkKey>) {
        self.report.stored.extend(keys);
    }

    /// Chunks have gone.
    pub fn gone(&mut self, keys: impl IntoIterator<Item = ChunkKey>) {
        self.report.gone.extend(keys);
    }

    /// A chunk has been removed to make room; whether it is in no other tier.
    pub fn evicted(&mut self, key: ChunkKey, is_gone: bool) {
        self.report.evicted += 1;
        self.report.gone.extend(is_gone.then_some(key));
    }

    /// Takes the report of operations since the last one.
    pub fn take(&mut self, used_bytes: u64) -> StoreReport {
        let errors = std::mem::take(&mut self.errors);
        let errors = errors.into_iter().map(|((tier, error), count)| (tier, error, count)).collect();
        let mut report = std::mem::take(&mut self.report);
        let later = |keys: &mut Vec<ChunkKey>| keys.split_off(keys.len().min(MOST_TOLD));
        (self.report.stored, self.report.gone) = (later(&mut report.stored), later(&mut report.gone));
        StoreReport { errors, used_bytes, ..report }
    }
}

/// Time during which at least one thread was reading, and the bytes read.
#[derive(Debug, Default)]
pub struct Reading {
    at_once: usize,
    since: Option<Instant>,
    bytes: f64,
    seconds: f64,
}

impl Reading {
    /// A read begins.
    pub fn begin(&mut self, now: Instant) {
        if self.at_once == 0 {
            self.since = Some(now);
        }
        self.at_once += 1;
    }

    /// Notes the end of a read of `bytes` bytes.
    pub fn end(&mut self, now: Instant, bytes: u64) {
        self.at_once = self.at_once.saturating_sub(1);
        self.bytes += bytes as f64;
        if let Some(since) = self.since {
            self.seconds += now.saturating_duration_since(since).as_secs_f64();
            self.since = (self.at_once > 0).then_some(now);
        }
        if self.seconds > REMEMBERED.as_secs_f64() {
            (self.bytes, self.seconds) = (self.bytes / 2.0, self.seconds / 2.0);
        }
    }

    /// Bytes that are read in a second; nothing where too little was read to tell.
    pub fn bytes_per_s(&self) -> Option<f64> {
        (self.bytes > 0.0 && self.seconds > TELLING.as_secs_f64()).then(|| self.bytes / self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_time_once_however_many_read() {
        let (mut reading, start) = (Reading::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(reading.bytes_per_s(), None);
        reading.begin(at(0));
        reading.begin(at(10));
        reading.end(at(100), 1000);
        reading.end(at(200), 1000);
        let rate = |reading: &Reading| reading.bytes_per_s().map(f64::round);
        assert_eq!(rate(&reading), Some(10_000.0));
        reading.begin(at(5000));
        reading.end(at(5200), 0);
        assert_eq!(rate(&reading), Some(5000.0), "a pause is no reading");
        reading.begin(at(10_000));
        reading.end(at(12_000), 1000);
        reading.begin(at(20_000));
        reading.end(at(21_000), 100_000);
        assert!(reading.bytes_per_s().is_some_and(|rate| rate > 40_000.0), "what was long ago weighs less");
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let mut tally = Tally::default();
        tally.failed(Tier::Disk, StoreError::Corrupt);
        tally.failed(Tier::Disk, StoreError::Corrupt);
        tally.did(Tier::Disk, StoreOperation::Write, 7, Duration::from_secs(1));
        let report = tally.take(9);
        assert_eq!(report.errors, [(Tier::Disk, StoreError::Corrupt, 2)]);
        assert_eq!(report.operations, [(Tier::Disk, StoreOperation::Write, 7, 1.0)]);
        assert_eq!(tally.take(9), StoreReport { used_bytes: 9, ..StoreReport::default() });
        let key = |id: usize| tributary_protocol::KeySpace::new([0; 32], "f32").chunk(&[], &[id as u32], &[]);
        tally.stored((0..MOST_TOLD + 3).map(key));
        let told: Vec<usize> = (0..3).map(|_| tally.take(9).stored.len()).collect();
        assert_eq!(told, [MOST_TOLD, 3, 0], "a report fits into a message");
    }
}
