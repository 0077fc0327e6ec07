//! Shared parts of the remote's tests: a stand-in for S3, a harmful proxy, chunks, short limits.

pub mod moto;
pub mod proxy;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tributary_protocol::{ChunkKey, KeySpace};
use tributary_store::{Identity, LayerBytes, Numbers, Remote, RemoteLimits, Shape, encode};

/// Secret that no text may show.
pub const SECRET: &str = "never-to-be-seen-4711";

/// A wait that ends by itself in every test that passes.
pub const LONG: Duration = Duration::from_secs(60);

pub const MOST_BYTES: u64 = 1 << 20;

/// Says that a test is skipped, and why, past the test harness.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Limits under which a test need not wait for long.
pub fn short() -> RemoteLimits {
    RemoteLimits {
        timeout: Duration::from_secs(10),
        pause: Duration::from_millis(20),
        first_rest: Duration::from_millis(300),
        longest_rest: Duration::from_secs(2),
        ..RemoteLimits::default()
    }
}

/// A store at an endpoint, with these credentials.
pub fn open_as(address: SocketAddr, url: &str, limits: RemoteLimits, id: &str, secret: &str) -> Remote {
    let settings = [
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", id.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value));
    Remote::open_with(url, limits, settings).expect("a store")
}

/// A store at an endpoint.
pub fn open(address: SocketAddr, url: &str, limits: RemoteLimits) -> Remote {
    open_as(address, url, limits, "tester", SECRET)
}

/// The key of the chunk of a number.
pub fn key(number: u32) -> ChunkKey {
    KeySpace::new([7; 32], "f32").chunk(&[1, 2], &[number], &[])
}

/// The chunk of a number: its identity, its shape, and its file.
pub fn chunk(number: u32) -> (Identity, Shape, Vec<u8>) {
    let shape = Shape { layers: 2, rows: 1, kv_heads: 2, head_dim: 8, numbers: Numbers::F32, with_places: false };
    let identity =
        Identity { key: key(number), model: [7; 32], prefix: vec![1, 2], extra: Vec::new(), ids: vec![number] };
    let numbers: Vec<u8> = (0..shape.tensor_bytes()).map(|index| (index + number as usize) as u8).collect();
    let layers = [LayerBytes { places: &[], keys: &numbers, values: &numbers }; 2];
    let bytes = encode(&identity, &shape, &layers, None);
    (identity, shape, bytes)
}

/// A listener of this machine, on a port that was free.
pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Waits for a condition that holds in every passing test.
pub fn becomes(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "{what}: still not");
        std::thread::sleep(Duration::from_millis(20));
    }
}
