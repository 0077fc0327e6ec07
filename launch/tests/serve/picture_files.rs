//! Hostile picture files over HTTP: each is refused in one line or answered, and the service stays
//! as it was. `FUZZ_SECONDS` makes the damage longer and drawn (`make fuzz-api`).

use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use tributary_protocol::SplitMix64;

use crate::kit::server::Server;
use crate::kit::{root, vision};

/// Bytes that the service may take beyond those of a quiet one: the decoded pictures that it bounds
/// (512 MiB), and bodies.
const MOST_BYTES: u64 = 640 << 20;

/// A file of each kind, of about 1 KiB.
const FILES: [(&str, &str); 3] =
    [("image/png", "a.png"), ("image/jpeg", "formats/grey.jpg"), ("image/webp", "formats/lossy.webp")];

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(root().join("tests/golden/vlm").join(name)).expect("a picture")
}

fn serving() -> Server {
    let (model, _) = vision();
    Server::start(&["--model", &model, "--served-model-name", "demo", "--max-body-size", "64MiB"])
}

/// Most bytes that a process had in memory so far.
fn peak_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.leader())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Numbers of files that were sent, refused and read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    tried: usize,
    refused: usize,
    read: usize,
}

impl Counts {
    /// Sends pictures as documents: an answer, or status 400 and one line, which it returns.
    fn send(&mut self, server: &Server, kind: &str, files: &[&[u8]]) -> Option<String> {
        let url = |file: &&[u8]| json!({"image": format!("data:{kind};base64,{}", BASE64_STANDARD.encode(file))});
        let documents: Vec<Value> = files.iter().map(url).collect();
        let reply = server.chat(&json!({
            "model": "demo",
            "messages": [{"role": "user", "content": "which is red?"}],
            "documents": documents,
            "max_tokens": 1,
            "tributary": {"method": "none"},
        }));
        self.tried += 1;
        if reply.status == 200 {
            self.read += 1;
            return None;
        }
        let told = reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(reply.status, 400, "{told}");
        assert!(!told.is_empty() && !told.contains('\n') && told.len() < 500, "{told}");
        self.refused += 1;
        Some(told)
    }
}

/// Sends a file that must be refused with these words.
fn refused(counts: &mut Counts, server: &Server, (kind, file): (&str, &[u8]), wanted: &str) {
    let told = counts.send(server, kind, &[file]);
    assert!(told.as_ref().is_some_and(|told| told.contains(wanted)), "{wanted}: {told:?}");
}

/// The checksum of a PNG file's chunk.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |state: u32, _| if state & 1 == 1 { 0xedb8_8320 ^ (state >> 1) } else { state >> 1 };
    !bytes.iter().fold(!0u32, |state, &byte| (0..8).fold(state ^ u32::from(byte), step))
}

/// A PNG file whose header states another size, with the right checksum.
fn png_of(width: u32, height: u32) -> Vec<u8> {
    let mut file = golden("d.png");
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = checksum(&file[12..29]);
    file[29..33].copy_from_slice(&sum.to_be_bytes());
    file
}

/// Each byte with a flipped bit, the next one a byte; then drawn damage as long as asked for.
fn damage(counts: &mut Counts, server: &Server, (kind, file): (&str, &[u8]), drawn_for: Option<Duration>) {
    for place in 0..file.len() {
        let mut damaged = file.to_vec();
        damaged[place] ^= 1 << (place % 8);
        counts.send(server, kind, &[&damaged]);
    }
    let (began, mut random) = (Instant::now(), SplitMix64::new(file.len() as u64));
    while drawn_for.is_some_and(|drawn_for| began.elapsed() < drawn_for) {
        let mut damaged = file.to_vec();
        for _ in 0..=random.below(4) {
            let place = random.below(damaged.len());
            match random.below(4) {
                0 => damaged[place] ^= 1 << random.below(8),
                1 => damaged[place] = random.below(256) as u8,
                2 => damaged.truncate(place.max(1)),
                _ => damaged.insert(place, random.below(256) as u8),
            }
        }
        counts.send(server, kind, &[&damaged]);
    }
}

#[test]
fn fuzzed_pictures_are_refused_in_one_line_and_memory_stays_bounded() {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse::<u64>().ok());
    let drawn_for = seconds.map(|seconds| Duration::from_secs(seconds) / FILES.len() as u32);
    let server = serving();
    let mut quiet = Counts::default();
    for (kind, name) in FILES {
        assert_eq!(quiet.send(&server, kind, &[&golden(name)]), None, "{name}");
    }
    let before = peak_bytes(&server);
    let mut all = 0;
    for (kind, name) in FILES {
        let (file, mut counts) = (golden(name), Counts::default());
        damage(&mut counts, &server, (kind, &file), drawn_for);
        println!("{name}: {counts:?}");
        assert!(counts.refused > 0 && counts.tried >= file.len(), "{name}: {counts:?}");
        all += counts.tried;
    }
    let after = peak_bytes(&server);
    println!("{all} damaged files: peak memory {} MiB, {} MiB before", after >> 20, before >> 20);
    assert!(after - before < MOST_BYTES, "{after} bytes, {before} before");
    assert_eq!(quiet.send(&server, "image/png", &[&golden("a.png")]), None, "it answers as before");
    server.ends_well();
}

#[test]
fn files_that_lie_and_files_that_are_no_pictures_are_refused_in_one_line() {
    let server = serving();
    let mut counts = Counts::default();
    assert_eq!(counts.send(&server, "image/png", &[&golden("d.png")]), None);
    let before = peak_bytes(&server);
    for (width, height, wanted) in [
        (50_000, 50_000, "50000 x 50000 pixels, a side has 1 to 32768"),
        (32_768, 32_768, "32768 x 32768 = 1073741824 pixels, at most 67108864"),
        (8193, 8192, "at most 67108864"),
        (0, 5, "0 x 5"),
        (8192, 8192, "document 1: "),
        (201, 1, "one side is more than 200 times the other"),
    ] {
        refused(&mut counts, &server, ("image/png", &png_of(width, height)), wanted);
    }
    let others: [(&[u8], &str); 9] = [
        (b"GIF89a\x01\x00\x01\x00", "GIF is not read"),
        (b"BM\x46\x00\x00\x00", "BMP is not read"),
        (b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>", "SVG is not read"),
        (b"%PDF-1.7", "PDF is not read"),
        (b"\x00\x00\x00\x1cftypavif\x00", "AVIF is not read"),
        (b"\x7fELF\x02\x01\x01\x00", "no PNG, JPEG or WebP"),
        (b"PK\x03\x04\x14\x00", "no PNG, JPEG or WebP"),
        (b"{\"model\": \"demo\"}", "no PNG, JPEG or WebP"),
        (b"", "0 bytes"),
    ];
    for (file, wanted) in others {
        for kind in ["image/png", "image/jpeg", "image/webp"] {
            refused(&mut counts, &server, (kind, file), wanted);
        }
    }
    for (kind, name) in FILES {
        let file = golden(name);
        for end in (1..file.len() - 12).step_by(file.len() / 24) {
            refused(&mut counts, &server, (kind, &file[..end]), "document 1: ");
        }
        let other = FILES.iter().find(|(other, _)| *other != kind).expect("another kind").0;
        refused(&mut counts, &server, (other, &file), "declared as");
    }
    let most = peak_bytes(&server);
    println!("{counts:?}: peak memory {} MiB, {} MiB before", most >> 20, before >> 20);
    assert_eq!((counts.read, counts.refused), (1, counts.tried - 1));
    // Nothing of them was decoded.
    assert!(most - before < 64 << 20, "{most} bytes, {before} before");
    server.ends_well();
}

/// A PNG file of one colour is small, whatever its size: zeros that deflate has squeezed.
fn bomb(width: u32, height: u32) -> Vec<u8> {
    let draw = || 0;
    tributary_pictures::noise(width, height, &tributary_pictures::Limits::default(), draw).expect("a file")
}

#[test]
fn a_picture_at_the_limit_takes_bounded_memory_and_256_are_a_request() {
    let server = serving();
    let mut counts = Counts::default();
    let small = golden("d.png");
    assert_eq!(counts.send(&server, "image/png", &[&small]), None);
    let before = peak_bytes(&server);
    let bomb = bomb(8192, 8192);
    assert!(bomb.len() < 1 << 20, "{} bytes", bomb.len());
    assert_eq!(counts.send(&server, "image/png", &[&bomb]), None, "64 Mi pixels are read");
    let after = peak_bytes(&server);
    println!(
        "a file of {} KiB with 64 Mi pixels: peak memory {} MiB, {} MiB before",
        bomb.len() >> 10,
        after >> 20,
        before >> 20
    );
    assert!(after - before < MOST_BYTES, "{after} bytes, {before} before");
    let many = vec![&small[..]; 257];
    assert_eq!(counts.send(&server, "image/png", &many[..256]), None);
    let told = counts.send(&server, "image/png", &many).expect("refused");
    assert!(told.contains("257 pictures; a request has at most 256"), "{told}");
    server.ends_well();
}

#[test]
fn a_lower_limit_of_pixels_is_the_services_own() {
    let (model, _) = vision();
    let own = ["--served-model-name", "demo", "--max-image-pixels", "100000"];
    let server = Server::start(&[&["--model", &model], &own[..]].concat());
    let mut counts = Counts::default();
    assert_eq!(counts.send(&server, "image/png", &[&golden("d.png")]), None);
    let wanted = "document 1: the picture has 640 x 480 = 307200 pixels, at most 100000 are read";
    refused(&mut counts, &server, ("image/png", &golden("c.png")), wanted);
    server.ends_well();
}
