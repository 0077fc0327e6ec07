//! The tier beyond a host, against moto, a mock of S3 (`kit/moto.rs` says what that shows and what not), through a proxy that does harm; and
//! against a folder, and ports where nobody answers. Waits have bounds; no speed is asserted.

mod kit;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::moto::{self, Moto};
use kit::proxy::{Harm, Proxy};
use kit::{LONG, MOST_BYTES, SECRET, becomes, chunk, key, listener, open, open_as, short};
use tributary_store::{Bytes, ChunkFile, Operation, Reason, Remote, RemoteLimits};

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
fn a_request_that_fails_is_made_again() {
    let Some(moto) = Moto::start() else { return };
    let proxy = Proxy::start(moto.address);
    let remote = open(proxy.address, "s3://chunks/a", short());
    let (identity, shape, _) = chunk(1);
    let mut bytes = Vec::new();
    for harms in [[Harm::Fail, Harm::Fail], [Harm::Reset, Harm::Reset], [Harm::Cut, Harm::Cut], [Harm::Cut, Harm::Fail]]
    {
        proxy.harms(&harms);
        let before = remote.counters();
        bytes = puts(&remote, 1);
        proxy.requests();
        proxy.harms(&harms);
        assert_eq!(gets(&remote, 1).expect("the third attempt"), bytes, "{harms:?}");
        assert_eq!(proxy.requests(), 3, "{harms:?}");
        let [got, before] = [remote.counters(), before].map(|counters| *counters.of(Operation::Get));
        assert_eq!((got.count - before.count, got.again - before.again), (1, 2), "{harms:?}");
    }
    // Bytes that changed on the way are given out, and noticed by whoever reads them.
    proxy.harms(&[Harm::Damage]);
    let damaged = gets(&remote, 1).expect("bytes");
    assert_eq!(damaged.len(), bytes.len());
    let read = |bytes: Bytes| {
        let file = ChunkFile::of_bytes(bytes, &identity, &shape, None)?;
        let (mut keys, mut values) = (vec![0; shape.tensor_bytes()], vec![0; shape.tensor_bytes()]);
        (0..shape.layers).try_for_each(|layer| file.read_layer(layer, &mut keys, &mut values))
    };
    assert_eq!(read(damaged).expect_err("damaged").reason(), "corrupt");
    read(gets(&remote, 1).expect("bytes")).expect("a chunk");
    // What is too large is not read.
    proxy.harms(&[Harm::Huge(1 << 40)]);
    assert_eq!(gets(&remote, 1), Err(Reason::TooLarge));
    assert!(proxy.huge_bytes() < 64 << 20, "{} bytes were taken", proxy.huge_bytes());
    // More failures than attempts.
    proxy.harms(&[Harm::Fail; 3]);
    assert_eq!(gets(&remote, 1), Err(Reason::Server));
    proxy.harms(&[Harm::Reset; 3]);
    assert_eq!(gets(&remote, 1), Err(Reason::Unreachable));
}

#[test]
fn an_answer_that_takes_too_long_is_not_waited_for() {
    let Some(moto) = Moto::start() else { return };
    let proxy = Proxy::start(moto.address);
    let limits = RemoteLimits { timeout: Duration::from_millis(1500), attempts: 2, failures: 4, ..short() };
    let remote = open(proxy.address, "s3://chunks/a", limits);
    let bytes = puts(&remote, 1);
    proxy.requests();
    proxy.harms(&[Harm::Delay(LONG); 2]);
    let began = Instant::now();
    assert_eq!(gets(&remote, 1), Err(Reason::Timeout));
    let (took, longest) = (began.elapsed(), limits.longest());
    // A machine that is busy may look at its clock late.
    assert!(took >= 2 * limits.timeout && took < longest + Duration::from_secs(10), "{took:?}, limit {longest:?}");
    assert_eq!(proxy.requests(), 2);
    proxy.harms(&[Harm::Delay(LONG)]);
    assert_eq!(gets(&remote, 1).expect("the second attempt"), bytes);
    // Whoever asks may wait for less.
    proxy.harms(&[Harm::Delay(LONG)]);
    let fetch = remote.get(&key(1), MOST_BYTES);
    assert_eq!(fetch.wait(Duration::from_millis(100)), Err(Reason::Timeout));
    assert_eq!(remote.counters().of(Operation::Get).errors(Reason::Timeout), 2);
}

#[test]
fn a_store_that_is_down_is_a_miss_until_it_is_back() {
    let Some(moto) = Moto::start() else { return };
    // A port where nobody listens.
    let (taken, address) = listener();
    drop(taken);
    let limits = RemoteLimits { first_rest: Duration::from_secs(3), longest_rest: Duration::from_secs(6), ..short() };
    let remote = open(address, "s3://chunks/a", limits);
    assert_eq!(gets(&remote, 1), Err(Reason::Unreachable), "three attempts");
    assert!(!remote.is_down());
    assert_eq!(gets(&remote, 1), Err(Reason::Unreachable), "the fifth failure ends them");
    assert!(remote.is_down());
    let asked = remote.counters().of(Operation::Get).count;
    for _ in 0..100 {
        assert_eq!(gets(&remote, 1), Err(Reason::Down));
    }
    assert_eq!(remote.put(&key(1), Bytes::from_static(b"text")), Err(Reason::Down));
    assert_eq!(remote.list(1, LONG), Err(Reason::Down));
    let counters = remote.counters();
    assert_eq!((counters.of(Operation::Get).count, counters.downs), (asked, 1), "nobody asked");
    assert_eq!(Operation::ALL.map(|operation| counters.of(operation).errors(Reason::Down)), [100, 1, 1]);
    // One request tries it behind its rest, finds it down, and it rests again.
    becomes("its rest is over", || !remote.is_down());
    assert_eq!(gets(&remote, 1), Err(Reason::Unreachable));
    assert_eq!(gets(&remote, 1), Err(Reason::Down));
    assert_eq!(remote.counters().of(Operation::Get).count, asked + 1);
    let proxy = Proxy::start_on(std::net::TcpListener::bind(address).expect("the same port"), moto.address);
    becomes("its rest is over", || !remote.is_down());
    assert_eq!(gets(&remote, 1), Err(Reason::Missing), "an answer: it is back");
    let bytes = puts(&remote, 1);
    assert_eq!(gets(&remote, 1).expect("a chunk"), bytes);
    assert!(proxy.requests() == 3 && remote.counters().downs == 1);
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

#[test]
fn a_full_queue_is_told_at_once() {
    // Connections are taken, and nobody answers.
    let (_silent, address) = listener();
    let limits = RemoteLimits { waiting_bytes: 1000, waiting_requests: 2, timeout: LONG, ..short() };
    let remote = open(address, "s3://chunks/a", limits);
    let began = Instant::now();
    let of = |bytes: usize| Bytes::from(vec![0; bytes]);
    assert_eq!(remote.put(&key(1), of(1001)), Err(Reason::TooLarge));
    remote.put(&key(1), of(600)).expect("queued");
    assert_eq!(remote.put(&key(2), of(600)), Err(Reason::Full));
    remote.put(&key(3), of(400)).expect("queued");
    assert!(!remote.flush(Duration::from_millis(50)) && remote.waiting_bytes() == 1000);
    let fetches = [1, 2].map(|number| remote.get(&key(number), MOST_BYTES));
    assert_eq!(gets(&remote, 3), Err(Reason::Full));
    let counters = remote.counters();
    let of = |operation, reason| counters.of(operation).errors(reason);
    assert_eq!((of(Operation::Put, Reason::Full), of(Operation::Put, Reason::TooLarge)), (1, 1));
    assert_eq!((of(Operation::Get, Reason::Full), of(Operation::Get, Reason::Down)), (1, 0));
    // Whoever drops a fetch gives its place free.
    let [first, second] = fetches;
    drop(first);
    let third =
        || (remote.get(&key(3), MOST_BYTES).wait(Duration::from_millis(10)) == Err(Reason::Timeout)).then_some(());
    becomes("a place is free", || third().is_some());
    // Whoever waits when the store is closed is told.
    drop(remote);
    assert_eq!(second.wait(LONG), Err(Reason::Down));
    assert!(began.elapsed() < LONG, "nobody waited for the store");
}

#[test]
fn a_store_that_never_answers_is_not_waited_for_by_everybody() {
    // Connections are taken, and nobody answers; those who ask have less patience than the store's own limit.
    let (_silent, address) = listener();
    let limits = RemoteLimits { timeout: LONG, failures: 3, first_rest: Duration::from_secs(1), ..short() };
    let remote = open(address, "s3://chunks/a", limits);
    let waits = || remote.get(&key(1), MOST_BYTES).wait(Duration::from_millis(200));
    for _ in 0..2 {
        assert_eq!(waits(), Err(Reason::Timeout));
    }
    // A fetch that is dropped before its time says nothing of the store.
    (0..10).for_each(|_| drop(remote.get(&key(1), MOST_BYTES)));
    assert!(!remote.is_down());
    // Each wait in vain is a failure, and each trial behind a rest too.
    for _ in 0..2 {
        becomes("it is down", || waits() == Err(Reason::Down));
        becomes("its rest is over", || waits() == Err(Reason::Timeout));
    }
    becomes("it is down", || waits() == Err(Reason::Down));
    assert_eq!(remote.counters().downs, 1, "it was down all the time");
}

/// A certificate for this machine that nobody knows, and one whom `SSL_CERT_FILE` makes known, in a process of its own.
#[test]
fn tls_believes_whom_the_machine_believes() {
    let settings = |address: &str| {
        let endpoint = format!("https://localhost:{}", address.rsplit(':').next().expect("a port"));
        let settings = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", "tester"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ];
        settings.map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    if let Ok(address) = std::env::var("TRIBUTARY_TEST_TLS") {
        let remote = Remote::open_with("s3://chunks/a", short(), settings(&address)).expect("a store");
        assert_eq!(gets(&remote, 1), Err(Reason::NoBucket), "an answer");
        return;
    }
    let Some(moto) = moto::folder() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let [certificate, private] =
        ["certificate.pem", "key.pem"].map(|name| folder.path().join(name).display().to_string());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kit/certificate.py");
    let made = std::process::Command::new(moto.join("bin/python")).args([script, &certificate, &private]).status();
    assert!(made.expect("python starts").success());
    let moto = Moto::start_with(&moto, &["-c", &certificate, "-k", &private]);
    let address = moto.address.to_string();
    let unknown = Remote::open_with("s3://chunks/a", short(), settings(&address)).expect("a store");
    assert_eq!(gets(&unknown, 1), Err(Reason::Unreachable));
    let mut known = std::process::Command::new(std::env::current_exe().expect("this program"));
    known.args(["--exact", "tls_believes_whom_the_machine_believes", "--nocapture"]);
    known.env("TRIBUTARY_TEST_TLS", &address).env("SSL_CERT_FILE", &certificate);
    let output = known.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
