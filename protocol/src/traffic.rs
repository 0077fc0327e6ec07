//! Counters of traffic between ranks: calls, payload bytes, and seconds that a rank waited.

use std::collections::BTreeMap;
use std::time::Duration;

/// Kinds of collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Collective {
    /// Send a tensor to one rank and receive another from one rank.
    Exchange,
    /// Every rank's tensor to every rank.
    AllGather,
    /// A separate tensor to every rank.
    AllToAll,
    /// One rank's bytes to every rank.
    BroadcastBytes,
    /// Every rank's bytes to one rank.
    GatherBytes,
    /// No payload; ends after every rank has arrived.
    Barrier,
}

impl Collective {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Collective::Exchange,
        Collective::AllGather,
        Collective::AllToAll,
        Collective::BroadcastBytes,
        Collective::GatherBytes,
        Collective::Barrier,
    ];

    /// Name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Collective::Exchange => "exchange",
            Collective::AllGather => "all-gather",
            Collective::AllToAll => "all-to-all",
            Collective::BroadcastBytes => "broadcast-bytes",
            Collective::GatherBytes => "gather-bytes",
            Collective::Barrier => "barrier",
        }
    }

    /// Whether it carries control messages rather than tensors. Byte counts that are compared with
    /// predictions exclude control messages.
    pub fn is_control(self) -> bool {
        matches!(self, Collective::BroadcastBytes | Collective::GatherBytes | Collective::Barrier)
    }
}

/// Traffic of one kind of collective through one rank. A rank's own contribution to itself is not
/// counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TrafficEntry {
    /// Number of calls.
    pub calls: u64,
    /// Payload bytes to other ranks.
    pub sent_bytes: u64,
    /// Payload bytes from other ranks.
    pub received_bytes: u64,
    /// Seconds that this rank waited in the call or in its wait: the exposed part of the
    /// communication.
    pub waited_s: f64,
}

/// Counters per kind of collective.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    /// One entry a kind that was used.
    pub entries: BTreeMap<Collective, TrafficEntry>,
}

impl Traffic {
    /// Counts one call and its payload.
    pub fn count(&mut self, kind: Collective, sent_bytes: u64, received_bytes: u64) {
        let entry = self.entries.entry(kind).or_default();
        entry.calls += 1;
        entry.sent_bytes += sent_bytes;
        entry.received_bytes += received_bytes;
    }

    /// Counts time spent waiting.
    pub fn waited(&mut self, kind: Collective, time: Duration) {
        self.entries.entry(kind).or_default().waited_s += time.as_secs_f64();
    }

    /// Sum of several counters.
    pub fn sum(parts: &[Traffic]) -> Traffic {
        let mut sum = Traffic::default();
        parts.iter().for_each(|part| sum.add(part));
        sum
    }

    /// Adds the counts of other counters.
    pub fn add(&mut self, more: &Traffic) {
        for (kind, part) in &more.entries {
            let entry = self.entries.entry(*kind).or_default();
            entry.calls += part.calls;
            entry.sent_bytes += part.sent_bytes;
            entry.received_bytes += part.received_bytes;
            entry.waited_s += part.waited_s;
        }
    }

    /// One of `parts` shares of the traffic that several sequences caused together. Bytes are
    /// divided so that all shares give the whole.
    /// Calls and waiting count in full in each share, because each sequence took part in all of
    /// them.
    pub fn share(&self, index: usize, parts: usize) -> Traffic {
        assert!(index < parts, "share {index} of {parts}");
        let (index, parts) = (index as u64, parts as u64);
        let share = |bytes: u64| bytes / parts + u64::from(index < bytes % parts);
        let mut shared = self.clone();
        for entry in shared.entries.values_mut() {
            (entry.sent_bytes, entry.received_bytes) = (share(entry.sent_bytes), share(entry.received_bytes));
        }
        shared
    }

    /// Payload bytes that tensor collectives brought from other ranks.
    pub fn tensor_bytes_received(&self) -> u64 {
        self.entries.iter().filter(|(kind, _)| !kind.is_control()).map(|(_, entry)| entry.received_bytes).sum()
    }

    /// Seconds that this rank waited, in every kind of call.
    pub fn waited_s(&self) -> f64 {
        // `sum` of nothing would be −0.
        self.entries.values().fold(0.0, |sum, entry| sum + entry.waited_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_give_the_whole() {
        let mut whole = Traffic::default();
        whole.count(Collective::AllGather, 11, 7);
        whole.count(Collective::Barrier, 0, 2);
        let shares: Vec<Traffic> = (0..3).map(|index| whole.share(index, 3)).collect();
        let received: Vec<u64> =
            shares.iter().map(|share| share.entries[&Collective::AllGather].received_bytes).collect();
        assert_eq!(received, [3, 2, 2]);
        for (kind, entry) in &Traffic::sum(&shares).entries {
            let of_whole = whole.entries[kind];
            assert_eq!((entry.sent_bytes, entry.received_bytes), (of_whole.sent_bytes, of_whole.received_bytes));
        }
        assert!(shares.iter().all(|share| share.entries[&Collective::AllGather].calls == 1));
        assert_eq!(whole.share(0, 1), whole);
    }
}
