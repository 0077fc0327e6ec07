//! Requests to which harm is done, and a store that is down and comes back.

use std::time::{Duration, Instant};

use tributary_store::{Bytes, ChunkFile, Operation, Reason, RemoteLimits};

use crate::kit::moto::Moto;
use crate::kit::proxy::{Harm, Proxy};
use crate::kit::{LONG, MOST_BYTES, becomes, chunk, key, listener, open, short};
use crate::{gets, puts};

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
    // Bytes that changed on the way are given out; the reader of the chunk detects them.
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
    // A chunk that is too large is not read.
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
    // A caller may wait for less.
    proxy.harms(&[Harm::Delay(LONG)]);
    let fetch = remote.get(&key(1), MOST_BYTES);
    assert_eq!(fetch.wait(Duration::from_millis(100)), Err(Reason::Timeout));
    assert_eq!(remote.counters().of(Operation::Get).errors(Reason::Timeout), 2);
}

#[test]
fn a_store_that_is_down_is_a_miss_until_it_is_back() {
    let Some(moto) = Moto::start() else { return };
    // A port without a listener.
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
    assert_eq!((counters.of(Operation::Get).count, counters.downs), (asked, 1), "the store got no request");
    assert_eq!(Operation::ALL.map(|operation| counters.of(operation).errors(Reason::Down)), [100, 1, 1]);
    // One request tries it after its rest, finds it down, and it rests again.
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
