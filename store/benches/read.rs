//! Speed of reading and verifying stored chunks, compared with a plain reader of the same files.
//!
//! All readers use two threads and read a layer's keys or values at a time. They take turns in
//! every round, so that all see the same machine. The plain reader reuses one buffer a thread,
//! which stays in the core's cache, or reads into new memory that is kept, as chunks are. The third
//! of each kind also hashes the bytes. A table gives medians with their range. Argument: a folder
//! on the disk to measure (default: the system's folder for temporary files).

#![allow(clippy::unwrap_used)] // a measurement may panic, its helpers too

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tributary_protocol::KeySpace;
use tributary_store::{Folder, Identity, Numbers, Settings, Shape, Store, Writing};

/// As in the command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Chunks of 512 tokens of two models: that of 25 M parameters, one of 8 B.
const SHAPES: [Shape; 2] = [
    Shape { layers: 8, rows: 512, kv_heads: 2, head_dim: 64, numbers: Numbers::F32, with_places: false },
    Shape { layers: 32, rows: 512, kv_heads: 8, head_dim: 128, numbers: Numbers::Bf16, with_places: false },
];
/// Bytes of all files together, about.
const BYTES: u64 = 256 << 20;
const ROUNDS: usize = 15;
const THREADS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(120);

fn identity(number: u32) -> Identity {
    let (model, ids) = ([1; 32], vec![number; 512]);
    Identity { key: KeySpace::new(model, "f32").chunk(&[], &ids, &[]), model, prefix: vec![], extra: vec![], ids }
}

/// Files of chunks, and how they are read.
struct Files {
    store: Store,
    shape: Shape,
    paths: Vec<PathBuf>,
}

/// Reads a chunk, and gives the memory that holds it.
type Reader = fn(&Files, usize) -> Vec<Vec<u8>>;

impl Files {
    fn write(folder: &Path, shape: Shape) -> Self {
        let settings = Settings {
            folder: folder.to_owned(),
            is_shared: true,
            most_bytes: None,
            reserve_bytes: 0,
            secret: None,
            remote: None,
        };
        let store = Store::open(settings).unwrap();
        let count = BYTES.div_ceil(shape.bytes()) as u32;
        for number in 0..count {
            let append = move |layer: usize, bytes: &mut Vec<u8>| {
                bytes.resize(bytes.len() + 2 * shape.tensor_bytes(), (number as usize + layer) as u8);
                Ok(())
            };
            assert!(store.write(Writing { identity: identity(number), shape, layer: Box::new(append) }));
        }
        assert!(store.flush(PATIENCE), "the disk is too slow");
        let here = Folder::open(folder, true).unwrap();
        Self { store, shape, paths: (0..count).map(|number| here.path_of(&identity(number).key)).collect() }
    }

    /// Bytes that are read in a second, by as many threads as the store has.
    fn rate(&self, reader: Reader) -> f64 {
        let (next, begun) = (AtomicUsize::new(0), Instant::now());
        let work = || {
            let mut kept = Vec::new();
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= self.paths.len() {
                    return kept;
                }
                kept.push(reader(self, chunk));
            }
        };
        let seconds = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            let kept: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let seconds = begun.elapsed().as_secs_f64();
            black_box(kept);
            seconds
        });
        self.paths.len() as f64 * self.shape.bytes() as f64 / seconds
    }

    /// Parts of a file as a reader without knowledge of chunks reads them.
    fn parts(&self, chunk: usize, mut read: impl FnMut(&File, u64, usize)) {
        let (file, bytes) = (File::open(&self.paths[chunk]).unwrap(), self.shape.tensor_bytes());
        let header = file.metadata().unwrap().len() - self.shape.bytes();
        (0..2 * self.shape.layers).for_each(|part| read(&file, header + (part * bytes) as u64, bytes));
    }
}

fn again(files: &Files, chunk: usize) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; files.shape.tensor_bytes()];
    files.parts(chunk, |file, place, _| file.read_exact_at(&mut buffer, place).unwrap());
    vec![buffer]
}

fn again_hashed(files: &Files, chunk: usize) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; files.shape.tensor_bytes()];
    files.parts(chunk, |file, place, _| {
        file.read_exact_at(&mut buffer, place).unwrap();
        black_box(blake3::hash(&buffer));
    });
    vec![buffer]
}

fn new(files: &Files, chunk: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    files.parts(chunk, |file, place, bytes| {
        let mut buffer = vec![0; bytes];
        file.read_exact_at(&mut buffer, place).unwrap();
        all.push(buffer);
    });
    all
}

fn stored(files: &Files, chunk: usize) -> Vec<Vec<u8>> {
    let found = files.store.find(&identity(chunk as u32), &files.shape).unwrap();
    let bytes = files.shape.tensor_bytes();
    let layer = |layer: usize| {
        let (mut keys, mut values) = (vec![0; bytes], vec![0; bytes]);
        found.read_layer(layer, &mut keys, &mut values).unwrap();
        [keys, values]
    };
    (0..files.shape.layers).flat_map(layer).collect()
}

const READERS: [(&str, Reader); 4] = [
    ("plain, one buffer", again),
    ("plain, one buffer, hashed", again_hashed),
    ("plain, new memory", new),
    ("the store, verified", stored),
];

fn measure(files: &Files, from: &str, drops: bool) {
    let mut rates = vec![Vec::new(); READERS.len()];
    for _ in 0..ROUNDS {
        for ((_, reader), rates) in READERS.iter().zip(&mut rates) {
            if drops {
                files.store.drop_pages();
            }
            rates.push(files.rate(*reader) / 1e9);
        }
    }
    let mib = files.shape.bytes() as f64 / f64::from(1 << 20);
    println!("\n{} files of {mib:.0} MiB, {from}, {THREADS} threads", files.paths.len());
    println!("{:<28} {:>8}  {:>18}  {:>15}", "reader", "[GB/s]", "range", "x new memory");
    let median = |rates: &mut Vec<f64>| {
        rates.sort_unstable_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let medians: Vec<f64> = rates.iter_mut().map(median).collect();
    for (((name, _), rates), rate) in READERS.iter().zip(&rates).zip(&medians) {
        let range = format!("[{:.2} to {:.2}]", rates[0], rates[rates.len() - 1]);
        println!("{name:<28} {rate:>8.2}  {range:>18}  {:>15.2}", rate / medians[2]);
    }
}

fn main() {
    // Cargo's own arguments begin with dashes.
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let folder = folder.map_or_else(std::env::temp_dir, PathBuf::from);
    for shape in SHAPES {
        let own = tempfile::Builder::new().prefix("tributary-read-").tempdir_in(&folder).unwrap();
        let files = Files::write(own.path(), shape);
        measure(&files, "in the page cache", false);
        measure(&files, "dropped from it", true);
    }
}
