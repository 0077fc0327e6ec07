//! `serve --chunk-store`: chunks of the store are counted by tier, in `/metrics` and in
//! `/v1/status`, also after a restart and for documents ahead of use.

use serde_json::{Value, json};

use crate::kit::http;
use crate::kit::server::{Server, body};

/// Hits, misses, corrupt and incompatible chunks of a tier.
fn lookups(server: &Server, tier: &str) -> [f64; 4] {
    let of = |result: &str| format!("tributary_chunk_cache_lookups_total{{tier=\"{tier}\",result=\"{result}\"}}");
    ["hit", "miss", "corrupt", "incompatible"].map(|result| server.metric(&of(result)))
}

/// The tier of this name, as the status has it.
fn tier(status: &Value, name: &str) -> Value {
    let tiers = status["chunk_cache"]["tiers"].as_array().expect("tiers");
    tiers.iter().find(|tier| tier["tier"] == name).unwrap_or_else(|| panic!("no {name} in {status}")).clone()
}

#[test]
fn chunks_come_from_the_disk_tier_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("chunks").display().to_string();
    let start = || Server::start(&["--world-size", "2", "--chunk-store", &store]);
    let request = body("hop2-0", 3);
    let chunks = request["documents"].as_array().expect("documents").len() as f64;

    let server = start();
    let cold = server.answer(&request);
    assert_eq!(lookups(&server, "memory"), [0.0, chunks, 0.0, 0.0]);
    assert_eq!(lookups(&server, "disk"), [0.0, chunks, 0.0, 0.0], "what is not in memory is looked for on disk");
    server.ends_well();

    let server = start();
    assert_eq!(server.answer(&request), cold);
    assert_eq!(lookups(&server, "memory"), [0.0, chunks, 0.0, 0.0]);
    assert_eq!(lookups(&server, "disk"), [chunks, 0.0, 0.0, 0.0]);
    assert_eq!(lookups(&server, "remote"), [0.0; 4]);
    let of = |name: &str| server.metric(&format!("tributary_{name}"));
    let read_bytes = of("chunk_store_read_bytes_total{tier=\"disk\"}");
    let used_bytes = of("chunk_cache_used_bytes{rank=\"0\",tier=\"disk\"}");
    assert!(read_bytes > 0.0 && used_bytes >= read_bytes, "{read_bytes} of {used_bytes} bytes were read");
    assert_eq!(of("chunk_cache_used_bytes{rank=\"1\",tier=\"disk\"}"), 0.0, "both ranks share one store");
    let reads = "chunk_store_operation_duration_seconds_count{tier=\"disk\",operation=\"read\"}";
    assert!(of(reads) >= chunks, "{} reads", of(reads));
    // The second time memory has them.
    server.answer(&request);
    assert_eq!(lookups(&server, "memory"), [chunks, chunks, 0.0, 0.0]);
    assert_eq!(lookups(&server, "disk"), [chunks, 0.0, 0.0, 0.0]);

    let status = server.get("/v1/status").json();
    let disk = tier(&status, "disk");
    assert_eq!((disk["hits"].as_f64(), disk["misses"].as_f64()), (Some(chunks), Some(0.0)));
    assert_eq!((disk["used_bytes"].as_f64(), disk["read_bytes"].as_f64()), (Some(used_bytes), Some(read_bytes)));
    assert!(disk["read_bytes_per_second"].as_f64() > Some(0.0), "{disk}");
    assert_eq!(disk["errors"], json!({}));
    assert_eq!(tier(&status, "memory")["hits"].as_f64(), Some(chunks));
    assert_eq!(status["chunk_cache"]["hits"].as_f64(), Some(2.0 * chunks), "of both tiers");
    assert_eq!(status["chunk_cache"]["misses"], 0);
    assert_eq!(status["chunk_cache"]["tiers"].as_array().map(Vec::len), Some(2), "nothing lies beyond the disk");
    server.ends_well();
}

#[test]
fn a_damaged_chunk_is_counted_and_computed() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("chunks");
    let path = store.display().to_string();
    let start = || Server::start(&["--world-size", "2", "--chunk-store", &path]);
    let request = body("hop2-0", 3);
    let chunks = request["documents"].as_array().expect("documents").len() as f64;
    // Documents ahead of use are counted too.
    let server = start();
    let ahead = http::post(&server.address, "/v1/chunks", &json!({"documents": request["documents"]}));
    assert_eq!(ahead.status, 200, "{}", ahead.body);
    assert_eq!(lookups(&server, "disk"), [0.0, chunks, 0.0, 0.0]);
    server.ends_well();

    let largest = walk(&store).into_iter().max_by_key(|(_, bytes)| *bytes).expect("files").0;
    let mut bytes = std::fs::read(&largest).expect("read");
    *bytes.last_mut().expect("bytes") ^= 1;
    std::fs::write(&largest, bytes).expect("written");
    let server = start();
    server.answer(&request);
    assert_eq!(lookups(&server, "disk"), [chunks - 1.0, 0.0, 1.0, 0.0]);
    assert_eq!(server.metric("tributary_chunk_store_errors_total{tier=\"disk\",reason=\"corrupt\"}"), 1.0);
    let disk = tier(&server.get("/v1/status").json(), "disk");
    assert_eq!((&disk["errors"], disk["misses"].as_u64()), (&json!({"corrupt": 1}), Some(1)));
    server.terminate();
    assert_eq!(server.end().code, Some(0));
}

/// The files below a folder, with their lengths.
fn walk(folder: &std::path::Path) -> Vec<(std::path::PathBuf, u64)> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let below = entries.flat_map(|entry| match entry.metadata().expect("there") {
        about if about.is_dir() => walk(&entry.path()),
        about => vec![(entry.path(), about.len())],
    });
    below.collect()
}
