//! `--config`: options from a file, their precedence, refusals, and `--print-config`, which writes
//! such a file.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::kit::{demo, request, root, tributary};
use serde_json::Value;
use tempfile::TempDir;

/// A file of options in a separate folder.
fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cluster.toml");
    std::fs::write(&path, text).expect("written");
    (folder, path)
}

/// Runs a command in the repository's root with a file of options and environment variables.
fn run(text: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let (_folder, path) = file(text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command
        .args(arguments)
        .arg("--config")
        .arg(path)
        .current_dir(root())
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.envs(environment.iter().copied()).output().expect("the command starts")
}

/// Output of `--print-config` for an option: its line after the name.
fn printed(output: &Output, option: &str) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = text.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix(" = "));
    found.unwrap_or_else(|| panic!("no {option} in {text}")).to_owned()
}

#[test]
fn a_request_takes_its_options_from_a_file() {
    let text = "model = \"examples/models/demo\"\nworld-size = 2\nmax-tokens = 3\n[prefill]\nmethod = \"ring\"\nrequest = \
                \"examples/models/demo/requests/hop2-0.json\"\njson = true\n[serve]\nmax-running = 7\n";
    let output = run(text, &["prefill"], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["method"], &report["settings"]["world"]), (&"ring".into(), &2.into()));
    assert_eq!(report["tokens"]["generated"].as_u64().map(|count| count <= 3), Some(true));
    let output = run(text, &["prefill", "--world", "1", "--method=full"], &[]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&report["method"], &report["settings"]["world"]),
        (&"full".into(), &1.into()),
        "typed, by another name too"
    );
}

#[test]
fn commands_of_a_command_have_tables_of_their_own() {
    let text = "seed = 3\n[train.kv-packet]\nmodel = \"examples/models/demo\"\nhead = 4\n[train.auxiliary]\nheads = 2\n[load]\nseed = 5\n";
    let shown = run(text, &["train", "kv-packet", "--suite", "hops", "--out", "x", "--print-config"], &[]);
    let text_of = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text_of.starts_with("[train.kv-packet]\n"), "{text_of}");
    assert!(printed(&shown, "head").starts_with("4 # ") && printed(&shown, "seed").starts_with("3 # "), "{text_of}");
    assert!(printed(&run(text, &["load", "--print-config"], &[]), "seed").starts_with("5 # "));
    for (text, says) in [
        (
            "[train]\nhead = 4\n",
            "no command with options is called `head`; the nearest is `train.kv-packet, train.lookahead",
        ),
        ("[train.packet]\nhead = 4\n", "no command with options is called `packet`"),
        ("[train.kv-packet]\nhaed = 4\n", "`train kv-packet` has no option `haed`; the nearest is `head`"),
        ("[store.warm]\ndocument = \"a\"\n", "`store warm` has no option `document`; the nearest is `documents`"),
    ] {
        let output = run(text, &["load"], &[]);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), line.lines().count()), (Some(64), 1), "{line}");
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn a_store_is_found_by_the_file_of_the_service_that_fills_it() {
    let store = tempfile::tempdir().expect("a folder");
    let text = format!("chunk-store = {:?}\n[store.stat]\njson = true\n[methods]\njson = true\n", store.path());
    let output = run(&text, &["store", "stat"], &[]);
    let stat: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(stat["free_bytes"].as_u64() > Some(0), "{stat}");
    let output = run(&text, &["store", "ls", "/nowhere"], &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() != Some(0) && errors.contains("/nowhere"), "a typed folder comes first: {errors}");
    let missing = tributary(&["store", "ls"]);
    assert_eq!(missing.status.code(), Some(64), "{}", String::from_utf8_lossy(&missing.stderr));
    let output = run(&text, &["methods", "relay"], &[]);
    let methods: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(methods["methods"][0]["name"], "relay");
}

#[test]
fn lists_come_from_a_file() {
    let text = "model = \"examples/models/demo\"\n[compare]\nmethods = [\"full\", \"ring\"]\nrequest = [\"examples/models/demo/requests/hop2-0.json\"]\n\
                repeat = 1\nwarmup = 0\nmax-tokens = 1\njson = true\n";
    let output = run(text, &["compare"], &[]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let methods = report["requests"][0]["methods"].as_array().expect("a list");
    assert_eq!(methods.iter().map(|method| &method["method"]).collect::<Vec<_>>(), ["full", "ring"]);
}

#[test]
fn the_command_line_stands_before_the_environment_before_the_file() {
    let text = "log = \"error\"\nthreads = 3\nworld-size = 2\n[serve]\nmodel = \"m\"\nthreads = 4\n";
    let ask = |arguments: &[&str], environment: &[(&str, &str)]| {
        run(text, &[&["serve", "--print-config"], arguments].concat(), environment)
    };
    let output = ask(&[], &[]);
    assert!(
        printed(&output, "log").starts_with("\"error\" # ")
            && printed(&output, "log").ends_with("cluster.toml, line 1")
    );
    assert!(
        printed(&output, "threads").starts_with("4 # ") && printed(&output, "threads").ends_with(", line 6"),
        "its table"
    );
    assert!(printed(&output, "world-size").ends_with(", line 3"), "the top");
    assert_eq!(printed(&output, "max-running"), "64 # default");
    let output = ask(&["--threads", "5"], &[("TRIBUTARY_LOG", "info")]);
    assert_eq!(printed(&output, "threads"), "5 # command line");
    assert_eq!(printed(&output, "log"), "\"info\" # environment");
    let output = ask(&["--log", "debug"], &[("TRIBUTARY_LOG", "info")]);
    assert_eq!(printed(&output, "log"), "\"debug\" # command line");
    let output = run("[serve]\nthreads = 1\n", &["serve", "--print-config"], &[]);
    assert!(printed(&output, "threads").ends_with(", line 2"), "the default's own value");
    let output = run(text, &["doctor", "--print-config"], &[]);
    assert!(printed(&output, "threads").starts_with("3 # "), "not of another command's table");
}

/// The printed file is read again, and then gives the same apart from the sources of values.
#[test]
fn what_is_printed_is_read_again() {
    let typed: [&[&str]; 12] = [
        &["prefill", "--model", "m", "--synthetic", "16x512", "--ratio", "0.25", "--reorder"],
        &["serve", "--model", "a \"b\" \\c", "--listen", "127.0.0.1:0"],
        &["compare", "--model", "m", "--methods", "full", "infoflow:exchange=pass-q", "--query", "12"],
        &["bench", "--lengths", "4k,8192", "--calibrate"],
        &["plan", "--model", "qwen3-14b", "--profile", "h100x4", "--hit-rate", "0,0.5"],
        &["doctor", "--sizes", "4,8KiB", "--min-busbw", "0.5"],
        &["launch", "--hosts", "a:2,b:2", "--mpirun-arg=--x", "-n", "4", "--", "doctor"],
        &["load", "--rate", "1,2", "--corpus", "9", "--fresh"],
        &["store", "warm", "--model", "m", "--documents", "texts", "--chunk-store", "chunks"],
        &["train", "kv-packet", "--model", "m", "--suite", "hops", "--out", "packet", "--head", "4"],
        &["methods", "--json"],
        &["store", "prune", "--chunk-store", "chunks", "--size", "1GiB", "--dry-run"],
    ];
    let plain = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        text.lines().map(|line| line.split(" # ").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    for arguments in typed {
        let names = if ["store", "train"].contains(&arguments[0]) { 2 } else { 1 };
        let (before, after) = arguments.split_at(names);
        let first = tributary(&[before, &["--print-config"], after].concat());
        let (_folder, path) = file(&String::from_utf8_lossy(&first.stdout));
        let path = path.display().to_string();
        let tail: &[&str] = if before == ["launch"] { &["--", "doctor"] } else { &[] };
        let second = tributary(&[before, &["--config", &path, "--print-config"], tail].concat());
        assert_eq!(plain(&first), plain(&second), "{arguments:?}");
        assert!(plain(&first).len() > 2, "{arguments:?}");
    }
}

#[test]
fn what_cannot_be_is_refused_in_one_line_that_names_file_and_line() {
    let table: [(&str, &str, &[&str]); 15] = [
        ("wold-size = 4\n", "serve", &["line 1", "no command has an option `wold-size`", "`world-size`"]),
        ("chunk_cache = \"off\"\n", "serve", &["line 1", "`chunk-cache`"]),
        ("threads = 1\n[serve]\n\nmax-runing = 3\n", "serve", &["line 4", "`serve` has no option", "`max-running`"]),
        ("[plan]\nthreads = 3\n", "serve", &["line 2", "`plan` has no option `threads`"]),
        ("[serv]\nthreads = 3\n", "plan", &["line 1", "`serv`", "`serve`"]),
        ("reorder = 1\n", "serve", &["line 1", "`reorder` is a switch: true or false, not a number"]),
        ("threads = true\n", "serve", &["line 1", "`threads` takes a text or a number, not true or false"]),
        ("threads = [1]\n", "serve", &["line 1", "`threads` takes a text or a number, not such a list"]),
        ("[compare]\nmethods = []\n", "serve", &["line 2", "an empty list"]),
        ("\nthreads = 1\nthreads = 2\n", "serve", &["line 3", "duplicate key"]),
        ("threads = \n", "serve", &["line 1"]),
        ("world = 1\nworld-size = 1\n", "serve", &["line 2", "world-size and world are one option"]),
        ("\nthreads = \"many\"\nmodel = \"m\"\n", "serve", &["line 2", "invalid value 'many' for '--threads"]),
        ("model = \"m\"\nconfig = \"other\"\n", "serve", &["line 2", "no command has an option `config`"]),
        ("[serve]\nmodel = \"m\"\n[serve.more]\nx = 1\n", "serve", &["`serve` has no option `more`"]),
    ];
    for (text, command, says) in table {
        let output = run(text, &[command], &[]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(64), 1), "{text}: {errors}");
        for part in says {
            assert!(errors.contains(part), "{text}: `{part}` is not in: {errors}");
        }
        assert!(errors.contains("cluster.toml") && output.stdout.is_empty(), "{text}: {errors}");
    }
    let output = tributary(&["serve", "--config", "/nowhere/cluster.toml"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.lines().count()), (Some(64), 1), "{errors}");
    assert!(errors.contains("/nowhere/cluster.toml"), "{errors}");
}

#[test]
fn options_that_exclude_each_other_name_the_file_too() {
    let output = run("[prefill]\nmodel = \"m\"\nrequest = \"r.json\"\n", &["prefill", "--synthetic", "2x8"], &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.lines().count()), (Some(64), 1), "{errors}");
    assert!(errors.contains("cluster.toml, line 3") && errors.contains("cannot be used with"), "{errors}");
    let output = run("threads = 2\n", &["serve"], &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(64) && errors.contains("--model <DIR>"), "what is missing still is: {errors}");
}

/// Paths are relative to the current directory, as on the command line, for any place of the file.
#[test]
fn paths_are_relative_to_the_current_directory() {
    let (folder, path) = file("[prefill]\nmodel = \"model\"\nsynthetic = \"2x8+4\"\nmax-tokens = 1\njson = true\n");
    let elsewhere = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(demo(), elsewhere.path().join("model")).expect("a link");
    let at = |place: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(["prefill", "--config"]).arg(&path).current_dir(place);
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).output().expect("the command starts").status.code()
    };
    assert_eq!(at(elsewhere.path()), Some(0));
    assert_ne!(at(folder.path()), Some(0), "no model beside the file");
}

/// Before ranks are started their file is looked into: its threads decide about cores, and an
/// impossible value is refused once.
#[test]
fn launch_looks_into_the_file_of_its_ranks() {
    let mpirun = tempfile::tempdir().expect("a folder");
    let program = mpirun.path().join("mpirun");
    std::fs::write(&program, "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n").expect("written");
    let mut mode = std::fs::metadata(&program).expect("a file").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    std::fs::set_permissions(&program, mode).expect("set");
    let program = program.display().to_string();
    let launch = |text: &str| {
        let (_folder, path) = file(text);
        let (path, request) = (path.display().to_string(), request("hop2-0"));
        tributary(&[
            "launch",
            "-n",
            "2",
            "--mpirun",
            &program,
            "--dry-run",
            "--",
            "prefill",
            "--config",
            &path,
            "--request",
            &request,
        ])
    };
    let output = launch("model = \"m\"\nthreads = 2\nworld-size = 9\n");
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        line.contains("prefill --backend mpi --world-size 2 ") && line.trim_end().ends_with("--threads 2"),
        "{line}"
    );
    let output = launch("model = \"m\"\nwold-size = 9\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(64) && errors.contains("line 2") && errors.lines().count() == 1, "{errors}");
}
