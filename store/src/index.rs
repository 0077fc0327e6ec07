//! Index of a folder of chunks, as this process knows it: its chunks, their bytes, and the order of
//! their last use. The folder itself is the truth; changes by other processes appear when it is
//! [read anew](Index::replace).

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tributary_protocol::ChunkKey;

use crate::folder::Entry;

/// The chunks of a folder.
#[derive(Debug, Default)]
pub struct Index {
    entries: HashMap<ChunkKey, Entry>,
    used_bytes: u64,
}

impl Index {
    /// Whether a chunk is there.
    pub fn has(&self, key: &ChunkKey) -> bool {
        self.entries.contains_key(key)
    }

    /// The chunks that are there, in no order.
    pub fn keys(&self) -> Vec<ChunkKey> {
        self.entries.keys().copied().collect()
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// A chunk is there now.
    pub fn insert(&mut self, entry: Entry) {
        self.remove(&entry.key);
        self.used_bytes += entry.bytes;
        self.entries.insert(entry.key, entry);
    }

    /// A chunk is gone; whether it was there.
    pub fn remove(&mut self, key: &ChunkKey) -> bool {
        let removed = self.entries.remove(key);
        if let Some(entry) = &removed {
            assert!(entry.bytes <= self.used_bytes, "{} bytes of {}", entry.bytes, self.used_bytes);
            self.used_bytes -= entry.bytes;
        }
        removed.is_some()
    }

    /// A chunk is being used now.
    pub fn touch(&mut self, key: &ChunkKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.used = SystemTime::now();
        }
    }

    /// A chunk is being used now; whether that is worth a note, because it was last used so long
    /// ago.
    pub fn touch_after(&mut self, key: &ChunkKey, longest: Duration) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let is_old = entry.used.elapsed().is_ok_and(|age| age >= longest);
        if is_old {
            entry.used = SystemTime::now();
        }
        is_old
    }

    /// The chunks that must go so that this many bytes come free: the least recently used first,
    /// ties the lower key.
    pub fn oldest(&self, free_bytes: u64) -> Vec<ChunkKey> {
        if free_bytes == 0 {
            return Vec::new();
        }
        let mut all: Vec<&Entry> = self.entries.values().collect();
        all.sort_unstable_by_key(|entry| (entry.used, entry.key));
        let mut freed = 0;
        let goes = |entry: &&&Entry| {
            let is_needed = freed < free_bytes;
            freed += entry.bytes;
            is_needed
        };
        all.iter().take_while(goes).map(|entry| entry.key).collect()
    }

    /// Takes the current contents of the folder; the chunks that have come and gone.
    pub fn replace(&mut self, entries: Vec<Entry>) -> (Vec<ChunkKey>, Vec<ChunkKey>) {
        let before = std::mem::take(&mut self.entries);
        self.used_bytes = entries.iter().map(|entry| entry.bytes).sum();
        self.entries = entries.into_iter().map(|entry| (entry.key, entry)).collect();
        let come = self.entries.keys().filter(|key| !before.contains_key(key)).copied().collect();
        let gone = before.keys().filter(|key| !self.entries.contains_key(key)).copied().collect();
        (come, gone)
    }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::KeySpace;

    use super::*;

    fn entry(number: u32, bytes: u64, age_s: u64) -> Entry {
        let key = KeySpace::new([0; 32], "f32").chunk(&[], &[number], &[]);
        Entry { key, bytes, used: SystemTime::now() - Duration::from_secs(age_s) }
    }

    #[test]
    fn the_least_recently_used_go_first_and_no_more_than_must() {
        let mut index = Index::default();
        let entries = [entry(1, 10, 30), entry(2, 20, 20), entry(3, 30, 10)];
        entries.into_iter().for_each(|entry| index.insert(entry));
        let [a, b, c] = entries.map(|entry| entry.key);
        assert_eq!(index.used_bytes(), 60);
        assert_eq!(index.oldest(0), []);
        assert_eq!(index.oldest(10), [a]);
        assert_eq!(index.oldest(11), [a, b]);
        assert_eq!(index.oldest(1000), [a, b, c], "all there is");
        index.touch(&a);
        assert_eq!(index.oldest(10), [b]);
        let minute = Duration::from_secs(60);
        assert!(!index.touch_after(&c, minute) && !index.touch_after(&a, minute));
        assert!(index.remove(&b) && !index.remove(&b));
        assert_eq!((index.used_bytes(), index.has(&b)), (40, false));
        index.insert(Entry { bytes: 5, ..entries[2] });
        assert_eq!(index.used_bytes(), 15, "a file that was replaced counts once");
    }

    #[test]
    fn what_others_did_is_learnt_from_the_folder() {
        let mut index = Index::default();
        let [a, b, c] = [entry(1, 10, 30), entry(2, 20, 20), entry(3, 30, 10)];
        [a, b].into_iter().for_each(|entry| index.insert(entry));
        assert_eq!(index.replace(vec![b, c]), (vec![c.key], vec![a.key]));
        assert_eq!((index.used_bytes(), index.keys().len()), (50, 2));
    }
}
