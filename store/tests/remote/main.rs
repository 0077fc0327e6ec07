//! The tier beyond a host, against moto, a mock of S3 (`kit/moto.rs` states its limits), through a
//! harmful proxy; and against a folder, and ports without an answer. Waits have bounds; no speed is
//! asserted.

mod faults;
mod kit;
mod patience;
mod tls;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::moto::Moto;
use kit::proxy::{Harm, Proxy};
use kit::{LONG, MOST_BYTES, SECRET, chunk, key, open, open_as, short};
use tributary_store::{Bytes, ChunkFile, Operation, Reason, Remote};

fn puts(remote: &Remote, number: u32) -> Vec<u8> {
    let (_, _, bytes) = chunk(number);
    remote.put(&key(number), Bytes::from(bytes.clone())).expect("queued");
    assert!(remote.flush(LONG), "sent");
    bytes
}

fn gets(remote: &Remote, number: u32) -> Result<Bytes, Reason> {
    remote.get(&key(number), MOST_BYTES).wait(LONG)
}

/// Puts, gets and lists chunks in a store that is empty.
fn keeps_gives_and_lists(remote: &Remote) {
    assert_eq!(remote.list(10, LONG).expect("a list"), []);
    let written: Vec<Vec<u8>> = (0..3).map(|number| puts(remote, number)).collect();
    for (number, written) in (0..).zip(&written) {
        assert_eq!(gets(remote, number).expect("a chunk"), written);
    }
    assert_eq!(gets(remote, 3), Err(Reason::Missing));
    let listed = remote.list(10, LONG).expect("a list");
    let keys: BTreeSet<_> = listed.iter().map(|entry| entry.key).collect();
    assert_eq!(keys, (0..3).map(key).collect());
    assert!(listed.iter().all(|entry| entry.bytes == written[0].len() as u64), "{listed:?}");
    assert!(listed.iter().all(|entry| entry.used.elapsed().is_ok_and(|age| age < LONG)), "{listed:?}");
    assert_eq!(remote.list(2, LONG).expect("a list").len(), 2);
    // One that is there is replaced.
    puts(remote, 0);
    let bytes = 3 * written[0].len() as u64;
    let counters = remote.counters();
    assert_eq!((counters.read_bytes, counters.written_bytes), (bytes, bytes / 3 * 4));
    let counts = Operation::ALL.map(|operation| counters.of(operation).count);
    assert_eq!(counts, [4, 4, 3], "{counters:?}");
    assert_eq!(counters.of(Operation::Get).errors(Reason::Missing), 1);
    assert!(Operation::ALL.iter().all(|operation| counters.of(*operation).seconds > 0.0));
    let most = written[0].len() as u64;
    assert_eq!(remote.get(&key(0), most).wait(LONG).expect("it fits").len() as u64, most);
    assert_eq!(remote.get(&key(0), most - 1).wait(LONG), Err(Reason::TooLarge));
}

#[test]
fn a_bucket_keeps_gives_and_lists_chunks() {
    let Some(moto) = Moto::start() else { return };
    let remote = open(moto.address, "s3://chunks/a/b", short());
    keeps_gives_and_lists(&remote);
    // Objects of others, and prefixes beside this one, are none of its chunks.
    let somebody = "Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x\r\n";
    for name in ["other.txt".to_owned(), format!("00/{}.safetensors", key(0))] {
        assert_eq!(moto.asks("PUT", &format!("/chunks/a/b/{name}"), somebody, "text"), 200);
    }
    let [other, whole] = ["s3://chunks/a/bb", "s3://chunks"].map(|url| open(moto.address, url, short()));
    puts(&other, 7);
    puts(&whole, 8);
    assert_eq!(remote.list(10, LONG).expect("a list").len(), 3);
    assert_eq!(whole.list(10, LONG).expect("a list").len(), 1);
    assert_eq!(gets(&other, 0), Err(Reason::Missing));
    let name = key(7).to_string();
    assert_eq!(moto.asks("GET", &format!("/chunks/a/bb/{}/{name}.safetensors", &name[..2]), somebody, ""), 200);
}

#[test]
fn a_list_has_more_parts_than_one() {
    let Some(moto) = Moto::start() else { return };
    let proxy = Proxy::start(moto.address);
    let remote = open(proxy.address, "s3://chunks/many", short());
    for number in 0..1010 {
        remote.put(&key(number), Bytes::from_static(b"small")).expect("queued");
    }
    assert!(remote.flush(2 * LONG), "{:?}", remote.counters());
    proxy.requests();
    let keys = |most: usize| -> BTreeSet<_> {
        remote.list(most, LONG).expect("a list").iter().map(|entry| entry.key).collect()
    };
    assert_eq!(keys(5000), (0..1010).map(key).collect());
    assert_eq!(proxy.requests(), 2, "a thousand each");
    assert_eq!((keys(1000).len(), proxy.requests()), (1000, 1));
    // The second part breaks, and is asked for again; the first is not.
    let before = remote.counters().of(Operation::List).again;
    proxy.harms(&[Harm::Delay(Duration::ZERO), Harm::Fail]);
    assert_eq!(keys(5000).len(), 1010);
    assert_eq!((remote.counters().of(Operation::List).again - before, proxy.requests()), (1, 3));
}

/// Everything that is logged in this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn credentials_are_used_and_never_shown() {
    let Some(moto) = Moto::start() else { return };
    let log = Log::default();
    let of_writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE);
    subscriber.with_writer(move || of_writer.clone()).init();
    let (id, secret) = moto.with_users();
    let allowed = open_as(moto.address, "s3://chunks/a", short(), &id, &secret);
    keeps_gives_and_lists(&allowed);
    let denied = open_as(moto.address, "s3://chunks/a", short(), &id, SECRET);
    assert_eq!(gets(&denied, 0), Err(Reason::Denied));
    assert_eq!(denied.list(10, LONG), Err(Reason::Denied));
    denied.put(&key(9), Bytes::from_static(b"text")).expect("queued");
    assert!(!denied.flush(LONG), "lost");
    let elsewhere = open_as(moto.address, "s3://nowhere/a", short(), &id, &secret);
    assert_eq!(gets(&elsewhere, 0), Err(Reason::NoBucket));
    assert_eq!(elsewhere.list(10, LONG), Err(Reason::NoBucket));
    let of = |operation, reason| denied.counters().of(operation).errors(reason);
    assert_eq!(Operation::ALL.map(|operation| of(operation, Reason::Denied)), [1, 1, 1]);
    assert!(!denied.is_down(), "it answers");
    let fetch = denied.get(&key(0), MOST_BYTES);
    let shown = format!("{denied:?} {fetch:?} {:?}", denied.counters());
    let logged = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("text");
    assert!(logged.contains("connect"), "the library's log was listened to: {logged}");
    assert!([shown, logged].iter().all(|text| !text.contains(SECRET) && !text.contains(&secret)));
}

#[test]
fn a_folder_is_a_store_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}/share", folder.path().display());
    let remote = Remote::open(&url, short()).expect("a store");
    keeps_gives_and_lists(&remote);
    let (name, share) = (key(1).to_string(), folder.path().join("share"));
    let file = share.join(&name[..2]).join(name + ".safetensors");
    let (identity, shape, _) = chunk(1);
    ChunkFile::open(&file, &identity, &shape, None).expect("a file as every folder has it");
    std::fs::remove_dir_all(&share).expect("removed");
    std::fs::write(&share, "no folder").expect("written");
    assert_eq!(gets(&remote, 1), Err(Reason::Server));
    Remote::open(&url, short()).expect_err("no folder");
}
