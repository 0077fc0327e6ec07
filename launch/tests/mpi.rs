//! Ranks as processes under a real mpirun: the communicator's promises, the same answers as threads
//! give, and starts that cannot work. Built with the features `mpi` and `failpoints`.
//!
//! `OPENMPI5` names a folder with another MPI, Open MPI 5, for the tests that run with both.

mod kit;

use std::path::Path;
use std::process::{Command, Output};

use kit::adapter::packet;
use kit::http::{post, send};
use kit::job::{Fault, Job, LONG_MS, launchers, launches, mpirun};
use kit::server::{Server, body, streamed};
use kit::{demo, dump, request, tributary};

fn run(mut launcher: Command, arguments: &[&str]) -> Output {
    launcher.arg(env!("CARGO_BIN_EXE_tributary")).args(arguments).output().expect("the launcher starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_backend_keeps_the_communicators_promises() {
    for world in 1..=4 {
        for (name, launcher) in launchers(world) {
            let output = run(launcher, &["doctor", "--sizes", "1MiB", "--json"]);
            assert!(output.status.success(), "{name}, {world} ranks: {}", text(&output.stderr));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(report["world"], world, "{name}");
            assert_eq!(report["checks"], "passed", "{name}: {report}");
            let local: Vec<_> =
                report["ranks"].as_array().expect("ranks").iter().map(|r| r["local_rank"].clone()).collect();
            assert_eq!(local, (0..world).map(serde_json::Value::from).collect::<Vec<_>>(), "{name}");
        }
    }
}

#[test]
fn long_messages_go_in_pieces() {
    // A limit of 1000 bytes replaces MPI's limit of 2 GiB.
    for (name, launcher) in launchers(3) {
        let arguments = ["doctor", "--sizes", "1MiB", "--json", "--max-message-bytes", "1000"];
        let output = run(launcher, &arguments);
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["checks"], "passed", "{name}: {report}");
        assert_eq!(report["all_gathers"][0]["wrong_values"], 0, "{name}: {report}");
    }
}

#[test]
fn processes_answer_as_threads_do() {
    let (model, request) = (demo(), request("hop2-0"));
    let packet = packet(Path::new(&model), 0.5);
    let adapter = packet.path().display().to_string();
    let ways: [&[&str]; 11] = [
        &["--method", "kv-packet", "--adapter", &adapter],
        &["--method", "trace", "--adapter", &adapter],
        &["--method", "cacheclip", "--aux-model", &model],
        &["--method", "spec-prefill-like:span=4", "--aux-model", &model],
        &["--method", "ring", "--evict", "speckv", "--keep", "40", "--draft-model", &model],
        &["--method", "infoflow"],
        &["--method", "infoflow:exchange=pass-q:reorder"],
        &["--method", "infoflow:exchange=selected"],
        &["--method", "relay"],
        &["--method", "ring"],
        &["--method", "all-gather"],
    ];
    let folder = tempfile::tempdir().expect("a folder");
    for (index, world) in ["1", "2", "3", "4"].into_iter().enumerate() {
        // Every way in two worlds: 1 and 3, or 2 and 4.
        for (number, way) in ways.iter().enumerate().filter(|(number, _)| (number + index) % 2 == 0) {
            let prefill = |dump: &str| -> Vec<String> {
                let base =
                    ["prefill", "--model", &model, "--request", &request, "--max-tokens", "6", "--world-size", world];
                let all = [&base[..], *way, &["--dump", dump][..]].concat();
                all.into_iter().map(str::to_owned).collect()
            };
            let place = |name: &str| folder.path().join(format!("{name}-{world}-{number}"));
            let (threads, processes) = (place("threads"), place("processes"));
            let arguments = prefill(&threads.display().to_string());
            let output = tributary(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(output.status.success(), "{way:?}: {}", text(&output.stderr));
            let arguments = prefill(&processes.display().to_string());
            let launcher = mpirun(world.parse().expect("a number"));
            let output = run(launcher, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(output.status.success(), "{way:?}: {}", text(&output.stderr));
            let error = dump::same(&processes, &threads);
            println!("world {world}, {way:?}: largest relative difference of a logit {error:.1e}");
            assert!(error < 1e-4, "world {world}, {way:?}: {error:e}");
        }
    }
}

/// Pixels and features go from process to process.
#[test]
fn processes_read_pictures_as_threads_do() {
    let of = |name: &str| kit::root().join(name).display().to_string();
    let (model, folder) = (of("tests/golden/qwen3vl-tiny"), tempfile::tempdir().expect("a folder"));
    let [a, b, c] = ["a", "b", "c"].map(|name| of(&format!("tests/golden/vlm/{name}.png")));
    for (number, method) in ["ring", "infoflow:exchange=pass-q", "infoflow:exchange=replicate"].into_iter().enumerate()
    {
        for (world, tiles) in [("2", "1"), ("3", "2")] {
            let place = |name: &str| folder.path().join(format!("{name}-{world}-{number}"));
            let dumps = ["threads", "processes"].map(place);
            let arguments = dumps.each_ref().map(|dump| {
                let request = ["prefill", "--model", &model, "--documents", &a, &b, &c, "--query", "which is red?"];
                let how =
                    ["--method", method, "--world-size", world, "--image-tiles", tiles, "--max-tokens", "4", "--dump"];
                let place = dump.display().to_string();
                let all = [&request[..], &how, &[&place]].concat();
                all.into_iter().map(str::to_owned).collect::<Vec<_>>()
            });
            let strings = |list: &[String]| list.to_vec();
            let (threads, processes) = (strings(&arguments[0]), strings(&arguments[1]));
            let output = tributary(&threads.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(output.status.success(), "{method}: {}", text(&output.stderr));
            let launcher = mpirun(world.parse().expect("a number"));
            let output = run(launcher, &processes.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(output.status.success(), "{method}: {}", text(&output.stderr));
            let error = dump::same(&dumps[1], &dumps[0]);
            assert!(error < 1e-4, "world {world}, {method}: {error:e}");
        }
    }
}

/// Every rank reads the file after its command; `launch`'s own settings of ranks take precedence.
#[test]
fn ranks_read_the_same_file_of_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cluster.toml").display().to_string();
    let options = format!(
        "model = \"{}\"\nworld-size = 9\nbackend = \"local\"\n[prefill]\nmethod = \"ring\"\nrequest = \"{}\"\njson = true\n",
        demo(),
        request("hop2-0")
    );
    std::fs::write(&path, options).expect("written");
    for (name, mut launcher) in launches(2) {
        let output = launcher.args(["--", "prefill", "--config", &path]).output().expect("the launcher starts");
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&report["method"], &report["settings"]["world"]), (&"ring".into(), &2.into()), "{name}");
        assert!(report["settings"]["backend"].as_str().is_some_and(|backend| backend != "local"), "{name}: {report:#}");
    }
}

#[test]
fn a_service_on_processes_answers_as_on_threads() {
    let names = ["hop2-0", "vt2-0", "hop2-0"];
    let threads = Server::start(&["--world-size", "2"]);
    let expected = names.map(|name| threads.answer(&body(name, 12)));
    let long = threads.answer(&body("hop2-0", 600));
    threads.ends_well();
    for (name, launcher) in launchers(2) {
        let server = Server::start_with(launcher, &[]);
        assert!(server.greeting.ends_with(" with 2 ranks"), "{name}: {}", server.greeting);
        assert_eq!(names.map(|name| server.answer(&body(name, 12))), expected, "{name}");
        std::thread::scope(|scope| {
            for (request, expected) in names.iter().zip(&expected) {
                let server = &server;
                scope.spawn(move || assert_eq!(streamed(server.stream(&body(request, 12))).0, *expected, "{name}"));
            }
        });
        drop(server.stream(&body("hop2-0", 3000)));
        server.becomes("tributary_requests_running", 0.0);
        let mut stream = server.stream(&body("hop2-0", 600));
        stream.event().expect("an event");
        server.terminate();
        assert_eq!(streamed(stream).0, long, "{name}: it answers what it has begun");
        let ended = server.end();
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.errors);
    }
}

#[test]
fn several_requests_and_methods_run_on_the_same_processes() {
    let (model, one, two) = (demo(), request("hop2-0"), request("vt2-0"));
    let arguments = [
        "compare",
        "--model",
        &model,
        "--request",
        &one,
        &two,
        "--repeat",
        "2",
        "--max-tokens",
        "2",
        "--json",
        "--methods",
        "full",
        "ring",
        "infoflow",
    ];
    let output = run(mpirun(3), &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for request in report["requests"].as_array().expect("requests") {
        let ring = &request["methods"][1];
        assert_eq!(ring["top1_agrees"], true);
        assert!(ring["max_logit_difference"].as_f64().expect("a number") < 1e-3, "{ring}");
    }
}

#[test]
fn starts_that_cannot_work_are_refused_in_one_line() {
    let (model, request) = (demo(), request("hop2-0"));
    let prefill = ["prefill", "--model", &model, "--request", &request];
    let with = |more: &[&str]| [&prefill[..], more].concat().iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let alone = |arguments: Vec<String>, variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(arguments).envs(variables.iter().copied()).output().expect("the command starts")
    };
    let under = |world: usize, arguments: Vec<String>| {
        run(mpirun(world), &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    // Another MPI's launcher: every process would be rank 0 of 1.
    let foreign = [("PMI_RANK", "0"), ("PMI_SIZE", "4")];
    let cases = [
        (under(2, with(&["--world-size", "3"])), 78, "--world-size 3, but mpirun (Open MPI) started 2 ranks"),
        (under(2, with(&["--backend", "local"])), 64, "--backend local under mpirun (Open MPI)"),
        (under(2, with(&["--ratio", "7"])), 64, "ratio"),
        (
            under(4, ["prefill", "--model", "/no/model", "--request", &request].map(str::to_owned).to_vec()),
            64,
            "/no/model",
        ),
        (under(2, with(&["--no-such-option"])), 64, "--no-such-option"),
        (alone(with(&["--backend", "mpi"]), &[]), 64, "no launcher has started this process"),
        (alone(with(&[]), &foreign), 78, "the launcher is not of the MPI that this program runs with"),
    ];
    for (output, code, cause) in cases {
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{cause}: {errors}");
        let ours: Vec<&str> = errors.lines().filter(|line| line.starts_with("tributary: ")).collect();
        assert!(ours.len() == 1 && ours[0].contains(cause), "{cause}: {errors}");
        assert!(output.stdout.is_empty(), "{cause}: {}", text(&output.stdout));
    }
}

#[test]
fn a_message_that_cannot_leave_does_not_abort_the_process() {
    // Rank 1's owner of MPI is held in the middle of a long message: rank 0's requests stay open,
    // and rank 1 gives no sign of life.
    let fault = Fault { rank: 1, failpoint: &format!("comm::mpi::piece=3*off->sleep({LONG_MS})") };
    let arguments = ["doctor", "--skip-checks", "--sizes", "256MiB", "--heartbeat-timeout", "2"];
    let ended = Job::start(2, Some(fault), &arguments).end();
    assert_eq!(ended.code, 75, "{:#?}", ended.errors);
    let all = ended.errors.join("\n");
    assert!(!all.contains("panicked") && !all.contains("signal 6"), "{all}");
    assert!(ended.cause().contains(") has been silent for 2s; rank 1 said last that it "), "{all}");
}

/// Rank 0 writes the metrics of all ranks, whose processes it hears.
fn metrics_of_all_ranks(arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("job.prom").display().to_string();
    let output = run(launchers(2).remove(0).1, &[arguments, &["--metrics-file", &path]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(&path).expect("the file");
    let of = |name: &str| -> f64 {
        let value =
            written.lines().find_map(|line| line.strip_prefix("tributary_")?.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in:\n{written}")).parse().expect("a number")
    };
    assert_eq!(of("requests_total{method=\"relay\",outcome=\"answered\"}"), 3.0);
    assert_eq!((of("rank_up{rank=\"0\"}"), of("rank_up{rank=\"1\"}")), (1.0, 1.0));
    let age_s = of("heartbeat_age_seconds{rank=\"1\"}");
    assert!(age_s > 0.0 && age_s < 10.0, "{age_s} s");
    let resident = |rank: usize| of(&format!("device_memory_used_bytes{{rank=\"{rank}\",pool=\"process\"}}"));
    assert!(resident(0) > 1e6 && resident(1) > 1e6 && resident(0) != resident(1), "each process tells its own");
}

#[test]
fn processes_keep_chunks_as_threads_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("requests.jsonl").display().to_string();
    let line = |name: &str| {
        let request: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(request(name)).expect("a request")).expect("JSON");
        format!("{request}\n")
    };
    std::fs::write(&path, [line("hop2-0"), line("vt2-0"), line("hop2-0")].concat()).expect("written");
    let demo = demo();
    let arguments = ["prefill", "--model", &demo, "--requests", &path, "--json", "--method", "relay"];
    let reports = |output: Output| -> Vec<serde_json::Value> {
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    metrics_of_all_ranks(&arguments);
    for world in [2, 4] {
        let mut alone = arguments.to_vec();
        let size = world.to_string();
        alone.extend(["--world-size", &size]);
        let threads = reports(tributary(&alone));
        for (name, launcher) in launchers(world) {
            let found = reports(run(launcher, &arguments));
            assert_eq!(found.len(), 3, "{name}");
            for (found, threads) in found.iter().zip(&threads) {
                for key in ["token_ids", "chunks", "chunk_cache", "order"] {
                    assert_eq!(found[key], threads[key], "{name}, world {world}: {key}");
                }
            }
            assert_eq!(found[2]["chunk_cache"]["state"], "warm", "{name}");
            // Side by side they answer the same, in the order of the file.
            let together =
                reports(run(launchers(world).remove(0).1, &[&arguments[..], &["--concurrency", "3"]].concat()));
            let tokens = |reports: &[serde_json::Value]| -> Vec<serde_json::Value> {
                reports.iter().map(|report| report["token_ids"].clone()).collect()
            };
            assert_eq!(tokens(&together), tokens(&found), "{name}, world {world}");
        }
    }
}

#[test]
fn a_study_runs_under_launch_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, out) = (demo(), folder.path().join("study").display().to_string());
    let study = ["bench", "--model", &model, "--lengths", "128", "--chunk-tokens", "64", "--query-tokens", "8"];
    let runs = ["--methods", "ring,none", "--warmups", "0", "--repeats", "2", "--out", &out];
    let report = || -> serde_json::Value {
        let text = std::fs::read_to_string(folder.path().join("study/report.json")).expect("a report");
        serde_json::from_str(&text).expect("JSON")
    };
    let started = |more: &[&str]| Job::launch("", &["-n", "2"], &[&study[..], &runs, more].concat()).end();
    let first = started(&[]);
    assert_eq!(first.code, 0, "{:#?}", first.errors);
    assert!(first.stdout.contains("written to"), "{}", first.stdout);
    let measured = report();
    assert_eq!(measured["design"]["worlds"], serde_json::json!([2]));
    assert!(measured["provenance"]["backend"].as_str().is_some_and(|name| name.starts_with("mpi")), "{measured:#}");
    let again = started(&[]);
    assert_eq!(again.code, 64, "a study that is there is not overwritten: {:#?}", again.errors);
    assert!(again.errors.iter().any(|line| line.contains("--resume")), "{:#?}", again.errors);
    let on = started(&["--resume"]);
    assert_eq!(on.code, 0, "{:#?}", on.errors);
    assert_eq!(report()["points"], measured["points"], "nothing was left to measure");
}

#[test]
fn processes_learn_what_threads_learn() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, outs) = (demo(), ["threads", "processes"].map(|name| folder.path().join(name)));
    let shown = outs.each_ref().map(|out| out.display().to_string());
    let base = ["train", "kv-packet", "--model", &model, "--suite", "hops", "--tasks", "single", "--samples", "3"];
    let base = [&base[..], &["--batch", "3", "--epochs", "2", "--head", "2", "--tail", "1", "--out"]].concat();
    let output = tributary(&[&base[..], &[&shown[0], "--world-size", "2"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let ended = Job::launch("", &["-n", "2"], &[&base[..], &[&shown[1]]].concat()).end();
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    let [threads, processes] = outs.map(|out| std::fs::read(out.join("adapter.safetensors")).expect("an adapter"));
    assert_eq!(threads, processes, "the same sums, in the same order");
}

#[test]
fn an_evaluation_on_processes_answers_as_on_threads_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = demo();
    let base = [
        "quality",
        "--suite",
        "hops",
        "--model",
        &model,
        "--tasks",
        "hop2,vt3",
        "--samples",
        "3",
        "--methods",
        "relay",
        "--out",
    ];
    let (threads, processes) = (folder.path().join("threads"), folder.path().join("processes"));
    let shown = [&threads, &processes].map(|out| out.display().to_string());
    let output = tributary(&[&base[..], &[&shown[0], "--world-size", "2"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let started = |more: &[&str]| Job::launch("", &["-n", "2"], &[&base[..], &[&shown[1]], more].concat()).end();
    let ended = started(&[]);
    assert_eq!(ended.code, 0, "{:#?}", ended.errors);
    let answers = |folder: &std::path::Path| {
        let text = std::fs::read_to_string(folder.join("answers.jsonl")).expect("answers");
        let line = |line: &str| -> Vec<serde_json::Value> {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            ["task", "sample", "method", "answer", "score", "selected_rows", "selected"]
                .map(|key| line[key].clone())
                .to_vec()
        };
        text.lines().map(line).collect::<Vec<_>>()
    };
    assert_eq!(answers(&threads), answers(&processes));
    let nats = |folder: &std::path::Path| -> Vec<f64> {
        let text = std::fs::read_to_string(folder.join("answers.jsonl")).expect("answers");
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["kl_nats"].as_f64();
        text.lines().filter_map(line).collect()
    };
    let (here, there) = (nats(&threads), nats(&processes));
    assert_eq!((here.len(), there.len()), (6, 6), "of each of relay's answers");
    assert!(here.iter().zip(&there).all(|(a, b)| (a - b).abs() < 1e-4), "{here:?} {there:?}");
    let again = started(&["--resume"]);
    assert_eq!(again.code, 0, "{:#?}", again.errors);
    assert!(again.stdout.contains("12 answers to 6 requests; 12 of them were there before"), "{}", again.stdout);
    let refused = started(&["--resume", "--seed", "9"]);
    assert_eq!((refused.code, answers(&processes).len()), (64, 12), "{:#?}", refused.errors);
}

/// Keys and values of every layer of a prompt.
fn handed_over(server: &Server, method: &str) -> Vec<u8> {
    let mut request = body("hop2-0", 4);
    request["tributary"] = serde_json::json!({"method": method});
    let prefill = post(&server.address, "/v1/prefill", &request);
    assert_eq!(prefill.status, 202, "{method}: {}", prefill.body);
    let prefill = prefill.json();
    let id = prefill["id"].as_str().expect("an id");
    let layer = |layer: u64| {
        let line = format!("GET /v1/kv/{id}/{layer}");
        let (status, mut bytes) = send(&server.address, &line, None).expect("it answers").bytes();
        let hash = bytes.split_off(bytes.len() - 32);
        assert_eq!((status, blake3::hash(&bytes).as_bytes()[..] == hash[..]), (200, true), "{method}, layer {layer}");
        bytes
    };
    (0..prefill["layers"].as_u64().expect("layers")).flat_map(layer).collect()
}

/// Rows of several processes are handed over as those of threads are.
#[test]
fn keys_and_values_of_several_processes_are_handed_over() {
    for world in [2, 3] {
        let threads = Server::start(&["--world-size", &world.to_string()]);
        let server = Server::start_with(mpirun(world), &[]);
        for method in ["full", "ring", "star", "infoflow:exchange=pass-q", "relay:exchange=replicate", "none"] {
            let (found, wanted) = (handed_over(&server, method), handed_over(&threads, method));
            assert!(found == wanted, "{method}, {world} processes: other bytes than of threads");
        }
        threads.ends_well();
        server.terminate();
        assert_eq!(server.end().code, Some(0));
    }
}
