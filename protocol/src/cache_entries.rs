//! Which chunks a cache of limited size keeps: the least recently used go first. Pure: ranks keep
//! tensors by it, and a simulation of them keeps nothing.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use crate::ChunkKey;

/// The entries of a cache, with a value each.
#[derive(Debug, Clone)]
pub struct CacheEntries<T> {
    capacity_bytes: u64,
    /// Number of the current request.
    request: u64,
    used_bytes: u64,
    /// Bytes of entries that the current request uses.
    in_use_bytes: u64,
    entries: HashMap<ChunkKey, Entry<T>>,
    /// Entries by the order in which they go.
    by_age: BTreeSet<Age>,
}

/// Place of an entry in the order in which entries go: the number of the last request that used it,
/// the rows of the prompt before it, its name.
type Age = (u64, Reverse<usize>, ChunkKey);

#[derive(Debug, Clone)]
struct Entry<T> {
    value: T,
    bytes: u64,
    used: u64,
    before: usize,
}

impl<T> CacheEntries<T> {
    /// An empty cache of at most `capacity_bytes` bytes.
    pub fn new(capacity_bytes: u64) -> Self {
        let (entries, by_age) = (HashMap::new(), BTreeSet::new());
        Self { capacity_bytes, request: 0, used_bytes: 0, in_use_bytes: 0, entries, by_age }
    }

    /// Begins a new request: entries that it uses or adds stay until its end.
    pub fn begin(&mut self) {
        self.request += 1;
        self.in_use_bytes = 0;
    }

    /// Whether an entry is there.
    pub fn has(&self, key: &ChunkKey) -> bool {
        self.entries.contains_key(key)
    }

    /// An entry's value, if it is there; the current request uses it from now on.
    pub fn used(&mut self, key: &ChunkKey) -> Option<&T> {
        let entry = self.entries.get_mut(key)?;
        if entry.used < self.request {
            self.by_age.remove(&(entry.used, Reverse(entry.before), *key));
            entry.used = self.request;
            self.by_age.insert((entry.used, Reverse(entry.before), *key));
            self.in_use_bytes += entry.bytes;
        }
        Some(&entry.value)
    }

    /// Removes the least recently used entries until `bytes` bytes fit, and returns their names; of
    /// entries used last by the same request, those after most rows of the prompt go first. Absent,
    /// and nothing is removed, if there is no room beside the entries of the current request.
    pub fn make_room(&mut self, bytes: u64) -> Option<Vec<ChunkKey>> {
        if self.in_use_bytes.saturating_add(bytes) > self.capacity_bytes {
            return None;
        }
        let mut gone = Vec::new();
        while self.used_bytes + bytes > self.capacity_bytes {
            let (used, _, key) = self.by_age.pop_first().expect("what is not in use makes up the rest");
            assert!(used < self.request, "an entry in use goes");
            let entry = self.entries.remove(&key).expect("every age has its entry");
            self.used_bytes -= entry.bytes;
            gone.push(key);
        }
        Some(gone)
    }

    /// Adds an entry of `bytes` bytes, for which [`make_room`](Self::make_room) has found room,
    /// after `before` rows of a prompt without which it is of no use; 0 for a chunk.
    pub fn add(&mut self, key: ChunkKey, (bytes, before): (u64, usize), value: T) {
        assert!(!self.has(&key), "an entry is added once");
        self.entries.insert(key, Entry { value, bytes, used: self.request, before });
        self.by_age.insert((self.request, Reverse(before), key));
        self.used_bytes += bytes;
        self.in_use_bytes += bytes;
        assert!(self.used_bytes <= self.capacity_bytes, "{} of {} bytes", self.used_bytes, self.capacity_bytes);
    }

    /// Bytes of all entries.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeySpace;

    fn keys() -> [ChunkKey; 4] {
        [1, 2, 3, 4].map(|id| KeySpace::new([0; 32], "f32").chunk(&[], &[id], &[]))
    }

    #[test]
    fn the_least_recently_used_goes_first_and_what_a_request_uses_stays() {
        let [a, b, c, d] = keys();
        let mut cache = CacheEntries::new(48);
        for key in [a, b, c] {
            cache.begin();
            assert_eq!(cache.make_room(16), Some(vec![]));
            cache.add(key, (16, 0), ());
        }
        cache.begin();
        assert!(cache.used(&a).is_some() && cache.used(&d).is_none());
        assert_eq!(cache.make_room(16), Some(vec![b]));
        cache.add(d, (16, 0), ());
        assert_eq!(cache.make_room(17), None, "two of three are in use");
        assert!(cache.has(&c) && cache.used_bytes() == 48);
        assert_eq!(cache.make_room(16), Some(vec![c]));
    }

    #[test]
    fn of_one_prompt_the_last_piece_goes_first() {
        let [a, b, c, _] = keys();
        let mut cache = CacheEntries::new(30);
        cache.begin();
        for (key, before) in [(a, 0), (b, 64), (c, 128)] {
            assert!(cache.make_room(10).is_some());
            cache.add(key, (10, before), ());
        }
        cache.begin();
        assert_eq!(cache.make_room(20), Some(vec![c, b]));
    }
}
