//! The chunk store under the command: warm after a restart, alone and under MPI, and requests are
//! served under any failure of its folder. Built with the features `mpi` and `failpoints`.

mod kit;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use kit::job::launchers;
use kit::mounts::{in_own_mounts, quoted};
use kit::{demo, json, request, tributary};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// A folder for a store, and its name.
fn folder() -> (tempfile::TempDir, String) {
    let outer = tempfile::tempdir().expect("a folder");
    let path = outer.path().join("store").display().to_string();
    (outer, path)
}

/// The arguments of a request that keeps its chunks in a store.
fn arguments(store: &str, more: &[&str]) -> Vec<String> {
    let (model, request) = (demo(), request("hop2-0"));
    let own =
        ["prefill", "--model", &model, "--request", &request, "--method", "infoflow", "--json", "--max-tokens", "8"];
    let stored = ["--chunk-store", store, "--chunk-store-reserve", "1"];
    own.iter().chain(&stored).chain(more).map(|&word| word.to_owned()).collect()
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(words).stdin(Stdio::null());
    command
}

/// The report of a run that succeeds.
fn report(mut command: Command) -> Value {
    let output = command.output().expect("it runs");
    of(&output)
}

fn of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a report")
}

fn state(report: &Value) -> (&str, u64) {
    let cache = &report["chunk_cache"];
    (cache["state"].as_str().expect("a state"), cache["store"]["loaded"].as_u64().expect("a number"))
}

fn chunks(report: &Value) -> u64 {
    report["chunks"]["count"].as_u64().expect("a number")
}

/// Number of stored chunks, which must all be intact.
fn sound(store: &str) -> usize {
    let verified = json(&["store", "verify", store, "--json"]);
    assert_eq!(verified["useless"], serde_json::json!([]), "{store}");
    verified["chunks"].as_array().expect("chunks").len()
}

fn files(store: &str) -> Vec<PathBuf> {
    let within = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder)
            .map_or_else(|_| Vec::new(), |entries| entries.flatten().map(|entry| entry.path()).collect())
    };
    within(Path::new(store)).iter().filter(|path| path.is_dir()).flat_map(|path| within(path)).collect()
}

#[test]
fn the_first_request_after_a_start_is_warm_on_threads_and_under_every_launcher() {
    for world in [1, 2, 4] {
        let (_outer, store) = folder();
        let size = world.to_string();
        let threads = arguments(&store, &["--world-size", &size]);
        let cold = report(command(&threads));
        assert_eq!(state(&cold), ("cold", 0));
        let warm = report(command(&threads));
        assert_eq!(state(&warm), ("warm", chunks(&cold)), "world {world}");
        assert_eq!(warm["token_ids"], cold["token_ids"]);
        let prefixes = sound(&store) as u64 - chunks(&cold);
        assert_eq!(prefixes, world, "a prefix a rank");
        if world == 1 {
            continue;
        }
        // Ranks that are processes of one host read the same folder: one of them lists its
        // contents.
        for (name, mut launcher) in launchers(world as usize) {
            let found = of(&launcher
                .arg(env!("CARGO_BIN_EXE_tributary"))
                .args(arguments(&store, &[]))
                .output()
                .expect("it runs"));
            assert_eq!(state(&found), ("warm", chunks(&cold)), "{name}");
            assert_eq!(found["token_ids"], cold["token_ids"], "{name}");
        }
        let (_outer, store) = folder();
        for (wanted, (name, mut launcher)) in [("cold", launchers(world as usize)), ("warm", launchers(world as usize))]
            .map(|(wanted, mut all)| (wanted, all.remove(0)))
        {
            let found = of(&launcher
                .arg(env!("CARGO_BIN_EXE_tributary"))
                .args(arguments(&store, &[]))
                .output()
                .expect("it runs"));
            assert_eq!(state(&found).0, wanted, "{name}");
        }
        assert_eq!(sound(&store) as u64, chunks(&cold) + world, "every chunk is written once");
    }
}

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_process_that_is_killed_while_it_writes_leaves_nothing_half_written() {
    let (_outer, pristine) = folder();
    let cold = report(command(&arguments(&pristine, &[])));
    for step in ["begin", "created", "half", "written", "synced", "renamed", "end"] {
        let (_outer, store) = folder();
        let mut killed = command(&arguments(&store, &[]));
        killed.env("FAILPOINTS", format!("store::write::{step}=1*off->sleep(600000)")).stdout(Stdio::null());
        let mut killed = killed.spawn().expect("it starts");
        let whole = || files(&store).iter().filter(|file| file.extension().is_some_and(|e| e == "safetensors")).count();
        // The first chunk is there; the second stops at this step.
        until(step, || whole() >= 1 && (step == "begin" || files(&store).len() >= 2));
        std::thread::sleep(Duration::from_millis(50));
        killed.kill().expect("killed");
        killed.wait().expect("gone");
        let there = sound(&store);
        let again = report(command(&arguments(&store, &[])));
        assert_eq!(again["token_ids"], cold["token_ids"], "killed at {step}");
        assert!(there >= 1 && (there as u64) < chunks(&cold), "killed at {step}: {there} chunks");
        assert_eq!(state(&report(command(&arguments(&store, &[])))), ("warm", chunks(&cold)), "killed at {step}");
        sound(&store);
    }
}

#[test]
fn restarts_with_kills_change_no_answer() {
    let (_outer, store) = folder();
    let cold = report(command(&arguments(&store, &["--world-size", "2"])));
    fs::remove_dir_all(&store).expect("an empty store again");
    for round in 0..12u64 {
        let mut child =
            command(&arguments(&store, &["--world-size", "2"])).stdout(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(40 + 23 * round));
        // It may have ended already.
        let _ = child.kill();
        child.wait().expect("gone");
        // One that is killed early has not made the folder.
        if Path::new(&store).is_dir() {
            sound(&store);
        }
    }
    let warm = report(command(&arguments(&store, &["--world-size", "2"])));
    assert_eq!(warm["token_ids"], cold["token_ids"]);
}

#[test]
fn a_store_that_is_too_slow_is_not_waited_for() {
    let (_outer, store) = folder();
    let cold = report(command(&arguments(&store, &[])));
    for failpoint in ["store::read=sleep(20000)", "store::open=sleep(20000)"] {
        let mut slow = command(&arguments(&store, &[]));
        let found = report({
            slow.env("FAILPOINTS", failpoint);
            slow
        });
        assert_eq!(found["token_ids"], cold["token_ids"], "{failpoint}");
        assert_eq!(state(&found).1, 0, "{failpoint}");
    }
}

#[test]
fn a_full_disk_and_one_that_takes_no_writes_fail_no_request() {
    let (_outer, store) = folder();
    let cold = report(command(&arguments(&store, &[])));
    let (outer, small) = folder();
    let mount = outer.path().display();
    let line = format!("mount -t tmpfs -o size=400k none '{mount}'; {}", quoted(&arguments(&small, &[])));
    let Some(output) = in_own_mounts(&line) else { return };
    assert_eq!(of(&output)["token_ids"], cold["token_ids"], "a full disk");
    let twice = format!(
        "{line} >/dev/null; {}; '{}' store verify '{small}' >&2",
        quoted(&arguments(&small, &[])),
        env!("CARGO_BIN_EXE_tributary")
    );
    let output = in_own_mounts(&twice).expect("as before");
    assert_eq!(of(&output)["token_ids"], cold["token_ids"], "what found room is of use");
    let read_only = format!(
        "mount --bind '{store}' '{store}'; mount -o remount,ro,bind '{store}'; {}",
        quoted(&arguments(&store, &[]))
    );
    let output = in_own_mounts(&read_only).expect("as before");
    assert_eq!(state(&of(&output)), ("warm", chunks(&cold)), "what cannot be written can be read");
}

#[test]
fn two_jobs_write_and_prune_one_folder_and_disturb_nobody() {
    let (_outer, store) = folder();
    let names = ["hop2-0", "vt2-0", "hop2-1", "vt3-1"];
    let requests =
        names.map(|name| fs::read_to_string(request(name)).expect("a request").replace('\n', " ")).join("\n");
    let (_own, file) = folder();
    fs::write(&file, requests).expect("written");
    let model = demo();
    let job = |chunk_store: Option<&str>| {
        let mut words = vec!["prefill", "--model", &model, "--requests", &file, "--json", "--max-tokens", "4"];
        // The chunks of two requests do not fit.
        let stored = ["--chunk-store-size", "2MiB", "--chunk-store-reserve", "1", "--chunk-cache", "off"];
        words.extend(chunk_store.into_iter().flat_map(|store| ["--chunk-store", store].into_iter().chain(stored)));
        let output = tributary(&words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).expect("text");
        lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["token_ids"].clone())
            .collect::<Vec<_>>()
    };
    let wanted = job(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(job(Some(&store)), wanted)));
        }
        for _ in 0..20 {
            if Path::new(&store).is_dir() {
                json(&["store", "prune", &store, "--size", "1MiB", "--json"]);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    sound(&store);
}

#[test]
fn others_write_only_where_that_is_meant_and_forged_chunks_are_misses() {
    use std::os::unix::fs::PermissionsExt;
    let (outer, store) = folder();
    let secret = outer.path().join("secret");
    fs::write(&secret, "a secret of tests\n").expect("written");
    let secret = secret.display().to_string();
    let keyed = arguments(&store, &["--chunk-store-key-file", &secret]);
    let cold = report(command(&keyed));
    assert_eq!(state(&report(command(&keyed))), ("warm", chunks(&cold)));
    let without = report(command(&arguments(&store, &[])));
    assert_eq!((state(&without), &without["token_ids"]), (("cold", 0), &cold["token_ids"]), "other keys");
    // Chunks that a writer without the secret has put in place of others.
    let theirs = |file: &PathBuf| fs::read(file).expect("its bytes");
    let (mine, other): (Vec<_>, Vec<_>) = files(&store).into_iter().partition(|file| {
        let verified = json(&["store", "ls", &store, "--chunk-store-key-file", &secret, "--json"]);
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        verified["chunks"].as_array().expect("chunks").iter().any(|listed| listed["chunk"]["key"] == *name)
    });
    let forged = theirs(other.first().expect("a chunk without the secret"));
    mine.iter().for_each(|file| fs::write(file, &forged).expect("forged"));
    let found = report(command(&keyed));
    assert_eq!((state(&found).1, &found["token_ids"]), (0, &cold["token_ids"]), "forged chunks are computed");
    fs::set_permissions(&store, fs::Permissions::from_mode(0o777)).expect("open to all");
    let refused = command(&keyed).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--chunk-store-shared"));
    report(command(&arguments(&store, &["--chunk-store-shared"])));
}

#[test]
fn documents_are_stored_ahead_of_use_and_nothing_is_done_twice() {
    let (outer, store) = folder();
    let request: Value =
        serde_json::from_str(&fs::read_to_string(request("hop2-0")).expect("a request")).expect("JSON");
    let corpus = outer.path().join("corpus.jsonl");
    let documents = request["documents"].as_array().expect("documents");
    let text: String = documents.iter().map(|document| format!("{document}\n")).collect();
    fs::write(&corpus, text).expect("written");
    let (model, corpus) = (demo(), corpus.display().to_string());
    let words = ["store", "warm", "--model", &model, "--documents", &corpus, "--chunk-store", &store, "--json"];
    let first = json(&words);
    assert_eq!((&first["chunks"], &first["chunks_there"]), (&first["documents"], &0.into()));
    let again = json(&words);
    assert_eq!((&again["chunks_there"], &again["computed_rows"]), (&first["chunks"], &0.into()));
    let found = report(command(&arguments(&store, &[])));
    assert_eq!(state(&found), ("warm", chunks(&found)), "the first request that asks about them");
    let total = json(&["store", "stat", &store, "--json"]);
    assert_eq!(total["models"][0]["chunks"], first["chunks"]);
    let nowhere = tributary(&words[..6]);
    assert_eq!(nowhere.status.code(), Some(64), "{}", String::from_utf8_lossy(&nowhere.stderr));
}
