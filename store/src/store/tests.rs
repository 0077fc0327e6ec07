//! A store writes after its callers have gone on, makes room, and survives failures of its folder.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tributary_protocol::KeySpace;

use super::*;
use crate::identity::Numbers;

const SHAPE: Shape = Shape { layers: 2, rows: 4, kv_heads: 1, head_dim: 8, numbers: Numbers::F32, with_places: false };
const PATIENCE: Duration = Duration::from_secs(10);

fn settings(folder: &Path) -> Settings {
    Settings {
        folder: folder.to_owned(),
        is_shared: false,
        most_bytes: None,
        reserve_bytes: 0,
        secret: None,
        remote: None,
    }
}

fn identity(number: u32) -> Identity {
    let (model, prefix, ids) = ([7; 32], vec![1], vec![number; 4]);
    Identity { key: KeySpace::new(model, "f32").chunk(&prefix, &ids, &[]), model, prefix, extra: Vec::new(), ids }
}

fn layer(number: u32, layer: usize) -> (Vec<u8>, Vec<u8>) {
    let bytes = |which: u8| vec![number as u8 + 10 * layer as u8 + which; SHAPE.tensor_bytes()];
    (bytes(0), bytes(1))
}

fn writing(number: u32) -> Writing {
    let append = move |index: usize, bytes: &mut Vec<u8>| {
        let (keys, values) = layer(number, index);
        bytes.extend(keys.into_iter().chain(values));
        Ok(())
    };
    Writing { identity: identity(number), shape: SHAPE, layer: Box::new(append) }
}

fn read(store: &Store, number: u32) -> Result<(), Damage> {
    let chunk = store.find(&identity(number), &SHAPE)?;
    for index in 0..SHAPE.layers {
        let (mut keys, mut values) = (vec![0; SHAPE.tensor_bytes()], vec![0; SHAPE.tensor_bytes()]);
        chunk.read_layer(index, &mut keys, &mut values)?;
        assert_eq!((keys, values), layer(number, index), "layer {index} of chunk {number}");
    }
    Ok(())
}

#[test]
fn what_is_written_is_there_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let store = Store::open(settings(&path)).expect("opened");
    let name = store.name();
    for number in 1..4 {
        assert!(store.write(writing(number)));
    }
    assert!(store.flush(PATIENCE));
    assert!(!store.write(writing(2)), "it is there");
    let report = store.report();
    assert_eq!((report.stored.len(), report.operations.len(), report.errors.len()), (3, 3, 0));
    assert_eq!(report.used_bytes, report.operations.iter().map(|(_, _, bytes, _)| bytes).sum::<u64>());
    drop(store);
    let store = Store::open(settings(&path)).expect("opened again");
    assert_eq!((store.name(), store.keys().len(), store.used_bytes()), (name, 3, report.used_bytes));
    for number in 1..4 {
        read(&store, number).expect("as it was written");
    }
    assert!(matches!(read(&store, 9), Err(Damage::Missing)));
    // Chunks of another process are there for this one too.
    let other = Store::open(settings(&path)).expect("opened as a second store on it");
    assert!(!store.has(&identity(9).key));
    assert!(other.write(writing(9)) && other.flush(PATIENCE));
    read(&store, 9).expect("as it was written");
    assert!(store.has(&identity(9).key) && store.report().stored.contains(&identity(9).key));
}

#[test]
fn what_was_used_least_recently_makes_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let one = encode_bytes();
    let limited = Settings { most_bytes: Some(3 * one + 10), ..settings(folder.path()) };
    let store = Store::open(limited.clone()).expect("opened");
    for number in 1..4 {
        store.write(writing(number));
        assert!(store.flush(PATIENCE));
    }
    read(&store, 1).expect("there");
    assert!(store.flush(PATIENCE));
    drop(store);
    // The order of use outlives the process.
    let store = Store::open(limited).expect("opened");
    store.write(writing(4));
    assert!(store.flush(PATIENCE));
    let there: Vec<u32> = (1..5).filter(|&number| store.has(&identity(number).key)).collect();
    assert_eq!(there, [1, 3, 4]);
    let report = store.report();
    assert_eq!((report.evicted, report.gone), (1, vec![identity(2).key]));
    let small = Store::open(Settings { most_bytes: Some(10), ..settings(folder.path()) }).expect("opened");
    small.write(writing(8));
    assert!(small.flush(PATIENCE) && !small.has(&identity(8).key));
    assert_eq!(small.report().errors, [(Tier::Disk, StoreError::Full, 1)]);
}

#[test]
fn free_space_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(settings(folder.path())).expect("opened");
    store.write(writing(1));
    assert!(store.flush(PATIENCE));
    let greedy = Settings { reserve_bytes: u64::MAX, ..settings(folder.path()) };
    let store = Store::open(greedy).expect("opened");
    store.write(writing(2));
    assert!(store.flush(PATIENCE));
    assert_eq!(store.report().errors, [(Tier::Disk, StoreError::Full, 1)]);
    assert_eq!(store.keys().len(), 1, "nothing is removed where that would not suffice");
}

fn encode_bytes() -> u64 {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(settings(folder.path())).expect("opened");
    store.write(writing(1));
    assert!(store.flush(PATIENCE));
    store.used_bytes()
}

#[test]
fn a_damaged_chunk_is_forgotten_and_written_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(settings(folder.path())).expect("opened");
    store.write(writing(1));
    assert!(store.flush(PATIENCE));
    let path = store.shared.folder.path_of(&identity(1).key);
    let mut bytes = fs::read(&path).expect("its file");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(&path, bytes).expect("damaged");
    assert!(matches!(read(&store, 1), Err(Damage::Corrupt(_))), "found in its last layer");
    assert!(!store.has(&identity(1).key) && !path.exists());
    let report = store.report();
    assert_eq!(report.errors, [(Tier::Disk, StoreError::Corrupt, 1)]);
    assert_eq!(report.gone, [identity(1).key]);
    assert!(store.write(writing(1)) && store.flush(PATIENCE));
    read(&store, 1).expect("as it was written");
}

#[test]
fn a_folder_that_vanishes_costs_nothing_but_its_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let store = Store::open(settings(&path)).expect("opened");
    store.write(writing(1));
    assert!(store.flush(PATIENCE));
    fs::remove_dir_all(&path).expect("removed");
    assert!(matches!(read(&store, 1), Err(Damage::Missing)));
    store.write(writing(2));
    assert!(store.flush(PATIENCE));
    read(&store, 2).expect("the folder was made again");
}

#[test]
fn a_disk_that_fails_is_left_alone_for_a_while() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(settings(folder.path())).expect("opened");
    // A file where a folder has to be: root may write anywhere else.
    let first = identity(1).key.to_string();
    fs::write(folder.path().join(&first[..2]), b"in the way").expect("written");
    store.write(writing(1));
    store.write(writing(2));
    assert!(store.flush(PATIENCE));
    let errors = store.report().errors;
    assert_eq!(errors, [(Tier::Disk, StoreError::Unreadable, 1), (Tier::Disk, StoreError::Down, 1)]);
}

/// Reads one chunk after the other.
struct Reads(Arc<Store>, Mutex<Vec<u32>>, AtomicUsize);

impl Steps for Reads {
    fn step(&self) -> bool {
        let next = self.1.lock().expect("no thread has panicked").pop();
        if let Some(number) = next {
            read(&self.0, number).expect("as it was written");
            self.2.fetch_add(1, Ordering::SeqCst);
        }
        next.is_some()
    }
}

#[test]
fn its_threads_read_and_its_rate_is_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Arc::new(Store::open(settings(folder.path())).expect("opened"));
    assert_eq!(store.expected_s(&identity(1).key, 1000), None);
    (0..20).for_each(|number| assert!(store.write(writing(number))));
    assert!(store.flush(PATIENCE));
    let reads = Arc::new(Reads(Arc::clone(&store), Mutex::new((0..20).collect()), AtomicUsize::new(0)));
    store.read(Arc::clone(&reads) as Arc<dyn Steps>);
    let until = Instant::now() + PATIENCE;
    while reads.2.load(Ordering::SeqCst) < 20 {
        assert!(Instant::now() < until, "read in time");
        std::thread::sleep(Duration::from_millis(1));
    }
    while store.expected_s(&identity(1).key, 1000).is_none() {
        assert!(Instant::now() < until, "a rate in time");
        read(&store, 1).expect("as it was written");
    }
}

#[test]
fn what_another_host_has_sent_comes_from_beyond_and_stays() {
    let (a, b) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let far = tempfile::tempdir().expect("a folder");
    let open = |folder: &Path| {
        let remote = Some(format!("file://{}", far.path().display()));
        Store::open(Settings { remote, ..settings(folder) }).expect("opened")
    };
    let store = open(a.path());
    (1..4).for_each(|number| assert!(store.write(writing(number))));
    assert!(store.flush(PATIENCE));
    let store = open(b.path());
    assert_eq!(store.keys().len(), 3);
    let key = identity(1).key;
    assert!(store.has(&key) && !store.has_here(&key));
    store.ask(&key, &SHAPE);
    read(&store, 1).expect("as it was written");
    let chunk = store.find(&identity(2), &SHAPE).expect("as it was written");
    chunk.has_been_read(SHAPE.layers, Duration::ZERO);
    assert!(store.flush(PATIENCE));
    assert!(!store.has_here(&key) && store.has_here(&identity(2).key), "what was read whole is put into the folder");
    // A damaged one is a miss, and the next write replaces it.
    let there = crate::folder::Folder::open(far.path(), false).expect("the folder");
    let mut bytes = fs::read(there.path_of(&identity(3).key)).expect("its file");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(there.path_of(&identity(3).key), bytes).expect("damaged");
    assert!(matches!(read(&store, 3), Err(Damage::Corrupt(_))) && !store.has(&identity(3).key));
    assert!(store.write(writing(3)) && store.flush(PATIENCE));
    let report = store.report();
    assert_eq!(report.errors, [(Tier::Remote, StoreError::Corrupt, 1)]);
    let of = |tier, operation| report.operations.iter().filter(|told| (told.0, told.1) == (tier, operation)).count();
    assert_eq!((of(Tier::Remote, StoreOperation::Read), of(Tier::Remote, StoreOperation::Write)), (3, 1));
    read(&open(a.path()), 3).expect("as it was written");
}

#[test]
fn nothing_is_written_while_a_rank_is_before_its_first_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(settings(folder.path())).expect("opened");
    let computing = store.computing();
    assert!(store.write(writing(1)));
    assert!(!store.flush(Duration::from_millis(300)) && store.keys().is_empty(), "the rank computes");
    drop(computing);
    assert!(store.flush(PATIENCE) && store.has(&identity(1).key));
    // A rank that computes for long does not keep chunks from being stored.
    let _computing = store.computing();
    assert!(store.write(writing(2)) && store.flush(PATIENCE) && store.has(&identity(2).key));
}
