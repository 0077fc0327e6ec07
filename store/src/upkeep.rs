//! Upkeep of a folder of chunks, also while servers use it: list its chunks, verify them, remove
//! some.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tributary_system::size::rounded;

use crate::chunk_file::{Description, NOT_SEALED};
use crate::damage::Damage;
use crate::folder::{Entry, Folder};
use crate::seal::Secret;

/// A chunk in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Description from its file.
    pub chunk: Description,
    /// Seconds since it was used last.
    pub unused_s: u64,
}

/// A file that is of no use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Useless {
    /// Key of the file.
    pub key: String,
    /// Word for the reason, such as `corrupt`, `incompatible` or `unreadable`.
    pub reason: String,
    /// Why, in a few words.
    pub cause: String,
}

/// All chunks of a folder, those used last first, and the files whose headers are of no use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// The chunks.
    pub chunks: Vec<Listed>,
    /// Files of no use.
    pub useless: Vec<Useless>,
}

/// The chunks of one model and type of numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// The hash of the model's config and weights.
    pub model: String,
    /// Type of numbers.
    pub dtype: String,
    /// Chunks, without prefixes.
    pub chunks: usize,
    /// Prefixes, one a rank.
    pub prefixes: usize,
    /// Tokens of the chunks.
    pub tokens: usize,
    /// Bytes of all their files.
    pub bytes: u64,
}

impl Listing {
    /// A table of the chunks, with its head.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let head = ["key", "model", "dtype", "tokens", "layers", "bytes", "unused"];
        let row = |Listed { chunk, unused_s }: &Listed| {
            let tokens = if chunk.tokens == 0 { format!("prefix {}", chunk.rows) } else { chunk.tokens.to_string() };
            let (dtype, layers) = (chunk.dtype.clone(), chunk.layers.to_string());
            vec![
                short(&chunk.key),
                short(&chunk.model),
                dtype,
                tokens,
                layers,
                rounded(chunk.bytes),
                format!("{unused_s} s"),
            ]
        };
        std::iter::once(head.map(str::to_owned).to_vec()).chain(self.chunks.iter().map(row)).collect()
    }

    /// A table of the totals by model and type of numbers, with its head.
    pub fn total_rows(&self) -> Vec<Vec<String>> {
        let head = ["model", "dtype", "chunks", "prefixes", "tokens", "bytes"];
        let row = |of: Total| {
            let [chunks, prefixes, tokens] = [of.chunks, of.prefixes, of.tokens].map(|number| number.to_string());
            vec![short(&of.model), of.dtype, chunks, prefixes, tokens, rounded(of.bytes)]
        };
        std::iter::once(head.map(str::to_owned).to_vec()).chain(self.totals().into_iter().map(row)).collect()
    }

    /// A line for each file of no use.
    pub fn useless_lines(&self) -> String {
        self.useless.iter().map(|useless| format!("{}: {}\n", short(&useless.key), useless.cause)).collect()
    }

    /// Totals by model and type of numbers, in the order of their names.
    pub fn totals(&self) -> Vec<Total> {
        let mut totals: BTreeMap<(&str, &str), Total> = BTreeMap::new();
        for Listed { chunk, .. } in &self.chunks {
            let total = totals.entry((&chunk.model, &chunk.dtype)).or_insert_with(|| Total {
                model: chunk.model.clone(),
                dtype: chunk.dtype.clone(),
                ..Total::default()
            });
            let is_prefix = chunk.tokens == 0;
            total.chunks += usize::from(!is_prefix);
            total.prefixes += usize::from(is_prefix);
            total.tokens += chunk.tokens;
            total.bytes += chunk.bytes;
        }
        totals.into_values().collect()
    }
}

/// Beginning of a hash, for a table.
fn short(hash: &str) -> String {
    hash.chars().take(16).collect()
}

/// Chunks that were removed, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Chunks.
    pub chunks: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// Files that had been moved aside as damaged.
    pub damaged: usize,
    /// Chunks that stay.
    pub left: usize,
    /// Bytes of their files.
    pub left_bytes: u64,
}

/// Chunks to remove.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// The least recently used chunks, until no more than this many bytes are left.
    pub most_bytes: Option<u64>,
    /// Chunks that have not been used for so long.
    pub unused_for: Option<Duration>,
    /// Whether chunks that were moved aside as damaged are removed.
    pub damaged: bool,
    /// Whether the removal is only reported, not done.
    pub dry_run: bool,
}

/// Lists the chunks of a folder by their headers.
///
/// # Errors
/// Returns an error if the folder cannot be listed.
pub fn list(folder: &Folder, secret: Option<&Secret>) -> io::Result<Listing> {
    look(folder, &mut |_| {}, |entry| Description::read(&folder.path_of(&entry.key), secret))
}

/// Reads every chunk of a folder. With `aside` damaged ones are moved aside, but not those that
/// another secret may have sealed. `tell` gets the number of bytes read.
///
/// # Errors
/// Returns an error if the folder cannot be listed.
pub fn verify(folder: &Folder, secret: Option<&Secret>, aside: bool, tell: &mut dyn FnMut(u64)) -> io::Result<Listing> {
    look(folder, tell, |entry| {
        let verified = Description::verify(&folder.path_of(&entry.key), &entry.key, secret);
        if let Err(damage) = &verified
            && aside
            && is_damaged(damage)
        {
            // It is reported as damaged, whether it can be moved or not.
            let _ = folder.move_aside(&entry.key);
        }
        verified
    })
}

/// Whether a file is of no use to any reader. One that is sealed with another secret, or is of
/// another version, may be of use to others.
fn is_damaged(damage: &Damage) -> bool {
    match damage {
        Damage::Corrupt(what) => what != NOT_SEALED,
        Damage::Incompatible(what) => *what == "chunk",
        Damage::Missing | Damage::Unreadable(_) => false,
    }
}

fn look(
    folder: &Folder,
    tell: &mut dyn FnMut(u64),
    read: impl Fn(&Entry) -> Result<Description, Damage>,
) -> io::Result<Listing> {
    let (mut entries, mut listing, mut bytes) = (folder.entries()?, Listing::default(), 0);
    entries.sort_unstable_by_key(|entry| (std::cmp::Reverse(entry.used), entry.key));
    for entry in entries {
        match read(&entry) {
            Ok(chunk) => listing.chunks.push(Listed { chunk, unused_s: unused(&entry).as_secs() }),
            // Another process has removed it meanwhile.
            Err(Damage::Missing) => {}
            Err(damage) => listing.useless.push(Useless {
                key: entry.key.to_string(),
                reason: damage.reason().to_owned(),
                cause: damage.to_string(),
            }),
        }
        bytes += entry.bytes;
        tell(bytes);
    }
    Ok(listing)
}

fn unused(entry: &Entry) -> Duration {
    SystemTime::now().duration_since(entry.used).unwrap_or_default()
}

/// Removes chunks.
///
/// # Errors
/// Returns an error if an operation of the operating system fails.
pub fn prune(folder: &Folder, wish: &Wish) -> io::Result<Pruned> {
    let mut entries = folder.entries()?;
    entries.sort_unstable_by_key(|entry| (entry.used, entry.key));
    let mut left_bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let mut pruned = Pruned { left: entries.len(), ..Pruned::default() };
    for entry in &entries {
        let is_old = wish.unused_for.is_some_and(|longest| unused(entry) >= longest);
        if !is_old && wish.most_bytes.is_none_or(|most| left_bytes <= most) {
            continue;
        }
        if !wish.dry_run {
            folder.remove(&entry.key)?;
        }
        left_bytes -= entry.bytes;
        (pruned.chunks, pruned.bytes, pruned.left) = (pruned.chunks + 1, pruned.bytes + entry.bytes, pruned.left - 1);
    }
    if wish.damaged {
        pruned.damaged = folder.remove_damaged(wish.dry_run)?;
    }
    Ok(Pruned { left_bytes, ..pruned })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tributary_protocol::{ChunkKey, KeySpace};

    use super::*;
    use crate::chunk_file::{LayerBytes, encode};
    use crate::identity::{Identity, Numbers, Shape};

    const SHAPE: Shape =
        Shape { layers: 2, rows: 3, kv_heads: 1, head_dim: 4, numbers: Numbers::Bf16, with_places: false };

    /// A folder with chunks of these numbers, the first used longest ago; their keys and the bytes
    /// of each.
    fn filled(numbers: &[u32], secret: Option<&Secret>) -> (tempfile::TempDir, Folder, Vec<ChunkKey>, u64) {
        let outer = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&outer.path().join("store"), false).expect("opened");
        let (keys, values) = (vec![1; SHAPE.tensor_bytes()], vec![2; SHAPE.tensor_bytes()]);
        let layers = [LayerBytes { places: &[], keys: &keys, values: &values }; 2];
        let mut found = Vec::new();
        let mut bytes = 0;
        for (place, &number) in numbers.iter().enumerate() {
            let (model, prefix, ids) = ([7; 32], vec![1], vec![number; 3]);
            let key = KeySpace::new(model, "bf16").chunk(&prefix, &ids, &[]);
            let identity = Identity { key, model, prefix, extra: Vec::new(), ids };
            let file = encode(&identity, &SHAPE, &layers, secret);
            assert_eq!(file, encode(&identity, &SHAPE, &layers, secret), "the same bytes wherever it is written");
            folder.write(&key, &file).expect("written");
            let used = SystemTime::now() - Duration::from_secs(100 * (numbers.len() - place) as u64);
            fs::File::open(folder.path_of(&key)).and_then(|file| file.set_modified(used)).expect("made old");
            (bytes, found) = (file.len() as u64, found.into_iter().chain([key]).collect());
        }
        (outer, folder, found, bytes)
    }

    #[test]
    fn what_is_there_is_listed_and_damage_is_found() {
        let secret = Secret::new(b"a secret");
        let (_outer, folder, keys, bytes) = filled(&[1, 2, 3], Some(&secret));
        let listing = list(&folder, Some(&secret)).expect("a listing");
        let listed: Vec<&str> = listing.chunks.iter().map(|listed| &*listed.chunk.key).collect();
        assert_eq!(listed, [keys[2], keys[1], keys[0]].map(|key| key.to_string()), "those used last first");
        let chunk = &listing.chunks[0].chunk;
        assert_eq!((chunk.tokens, chunk.rows, chunk.layers, chunk.bytes), (3, 3, 2, bytes));
        assert_eq!((&*chunk.dtype, chunk.kv_heads, chunk.head_dim), ("BF16", 1, 4));
        assert!((100..200).contains(&listing.chunks[0].unused_s), "{listing:?}");
        assert_eq!(list(&folder, None).expect("a listing").useless.len(), 3, "without the secret nothing is believed");
        let path = folder.path_of(&keys[1]);
        let mut file = fs::read(&path).expect("its bytes");
        *file.last_mut().expect("bytes") ^= 1;
        fs::write(&path, file).expect("damaged");
        fs::copy(folder.path_of(&keys[2]), folder.path_of(&keys[0])).expect("swapped");
        let stays = verify(&folder, None, true, &mut |_| {}).expect("read");
        assert_eq!((stays.useless.len(), folder.entries().expect("entries").len()), (3, 3), "another secret may fit");
        let mut told = 0;
        let verified = verify(&folder, Some(&secret), true, &mut |bytes| told = bytes).expect("read");
        assert_eq!((verified.chunks.len(), told), (1, 3 * bytes));
        let mut reasons: Vec<&str> = verified.useless.iter().map(|useless| &*useless.reason).collect();
        reasons.sort_unstable();
        assert_eq!(reasons, ["corrupt", "incompatible"]);
        assert_eq!(folder.entries().expect("entries").len(), 1, "they are moved aside");
        let wish = Wish { damaged: true, ..Wish::default() };
        assert_eq!(prune(&folder, &wish).expect("pruned").damaged, 2);
        assert_eq!(prune(&folder, &wish).expect("pruned").damaged, 0);
    }

    #[test]
    fn the_least_recently_used_are_pruned_and_nothing_in_a_dry_run() {
        let (_outer, folder, keys, bytes) = filled(&[1, 2, 3, 4], None);
        let wish = Wish { most_bytes: Some(3 * bytes), dry_run: true, ..Wish::default() };
        let would = prune(&folder, &wish).expect("told");
        assert_eq!((would.chunks, would.bytes, would.left, would.left_bytes), (1, bytes, 3, 3 * bytes));
        assert_eq!(folder.entries().expect("entries").len(), 4);
        assert_eq!(prune(&folder, &Wish { dry_run: false, ..wish }).expect("pruned"), would);
        assert!(!folder.path_of(&keys[0]).exists());
        let old = Wish { unused_for: Some(Duration::from_secs(250)), ..Wish::default() };
        assert_eq!(prune(&folder, &old).expect("pruned").chunks, 1);
        assert_eq!(prune(&folder, &Wish::default()).expect("nothing").chunks, 0);
        assert!(folder.path_of(&keys[3]).exists());
    }
}
