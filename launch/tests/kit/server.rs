//! A service that runs beside a test, gets a signal to end, and is examined after its end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};

use super::http::{self, Response, Stream};
use super::job::{Fault, signal};

/// The longest that a test waits for a start or an end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The option that says how often a service tests itself; without it services of tests do not.
pub const SELF_TEST: &str = "--self-test-interval";

/// A running service. It is killed when a test leaves it.
pub struct Server {
    child: Child,
    /// Process that gets the signal to end: the child itself, or the descendant with the socket.
    leader: u32,
    /// Folder of the ranks' process numbers, if they are processes.
    pids: Option<tempfile::TempDir>,
    /// Address on which it listens.
    pub address: String,
    /// The line that it said so with.
    pub greeting: String,
}

/// A service that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: Option<i32>,
    /// Its standard error.
    pub errors: String,
}

impl Server {
    /// Starts a service of the demo model with more options.
    pub fn start(options: &[&str]) -> Self {
        Self::start_with_fault("", options)
    }

    /// The same with failpoints.
    pub fn start_with_fault(failpoints: &str, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.env("FAILPOINTS", failpoints);
        Self::start_as(command, options)
    }

    /// The same, as a process that has been prepared.
    pub fn start_as(mut command: Command, options: &[&str]) -> Self {
        command.args(arguments(options));
        let mut server = Self::run(command);
        server.leader = server.child.id();
        server
    }

    /// The same with a log that goes somewhere else.
    pub fn start_logging(level: &str, log: std::fs::File, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(arguments(options)).env("TRIBUTARY_LOG", level);
        let mut server = Self::run_with(command, Stdio::from(log));
        server.leader = server.child.id();
        server
    }

    /// Process that gets the signal to end.
    pub fn leader(&self) -> u32 {
        self.leader
    }

    /// Waits for its end; its exit code.
    pub fn code(mut self) -> Option<i32> {
        self.wait()
    }

    /// Starts it on processes: after a launcher's own arguments.
    pub fn start_with(mut launcher: Command, options: &[&str]) -> Self {
        let (folder, around) = noting_pids();
        launcher.args(around).arg(env!("CARGO_BIN_EXE_tributary")).args(arguments(options));
        let mut server = Self::run(launcher);
        server.pids = Some(folder);
        server.leader = server.pid(0);
        server
    }

    /// Starts it by `tributary launch` with its own options, and signals that.
    pub fn launch(mut launch: Command, options: &[&str]) -> Self {
        let (folder, around) = noting_pids();
        // mpirun's own arguments come right before the command: the last of them can wrap it.
        around.iter().for_each(|argument| _ = launch.args(["--mpirun-arg", argument]));
        launch.arg("--").args(arguments(options));
        let mut server = Self::run(launch);
        server.pids = Some(folder);
        server.leader = server.child.id();
        server
    }

    /// Starts it by `tributary launch` on `world` ranks, with a failpoint on one of them.
    pub fn launch_with_fault(world: usize, fault: &Fault<'_>, options: &[&str]) -> Self {
        Self::launch_as(&["-n", &world.to_string()], fault, options)
    }

    /// Starts it by `tributary launch` on two ranks, with `restarts` restarts after failures.
    pub fn launch_with_restarts(restarts: usize, options: &[&str]) -> Self {
        let nothing = Fault { rank: 0, failpoint: "" };
        Self::launch_as(&["-n", "2", "--restarts", &restarts.to_string()], &nothing, options)
    }

    fn launch_as(own: &[&str], fault: &Fault<'_>, options: &[&str]) -> Self {
        let mut launch = Command::new(env!("CARGO_BIN_EXE_tributary"));
        launch.arg("launch").args(own);
        launch.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        launch.env("OMPI_MCA_mpi_yield_when_idle", "1");
        let (folder, [shell, command, note, name]) = noting_pids();
        let Fault { rank, failpoint } = fault;
        let fails = format!("[ $OMPI_COMM_WORLD_RANK = {rank} ] && export FAILPOINTS='{failpoint}'; {note}");
        for argument in [shell, command, fails, name] {
            launch.args(["--mpirun-arg", &argument]);
        }
        launch.arg("--").args(arguments(options));
        let mut server = Self::run(launch);
        server.pids = Some(folder);
        server.leader = server.child.id();
        server
    }

    /// The process of a rank.
    pub fn pid(&self, rank: usize) -> u32 {
        self.noted_pid(rank).expect("it wrote its number")
    }

    /// The same, unless it is being written right now.
    pub fn noted_pid(&self, rank: usize) -> Option<u32> {
        let folder = self.pids.as_ref().expect("ranks are processes").path();
        std::fs::read_to_string(folder.join(rank.to_string())).ok()?.trim().parse().ok()
    }

    fn run(command: Command) -> Self {
        Self::run_with(command, Stdio::piped())
    }

    fn run_with(mut command: Command, stderr: Stdio) -> Self {
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("it starts");
        let mut greeting = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut greeting).expect("text");
        let address = greeting.split("http://").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
        let Some(address) = address else {
            let mut errors = String::new();
            let _ = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut errors));
            panic!("it says `{greeting}` and not where it listens: {errors}");
        };
        let server = Self { child, leader: 0, pids: None, address, greeting: greeting.trim_end().to_owned() };
        server.becomes_ready();
        server
    }

    /// Asks for a page.
    pub fn get(&self, path: &str) -> Response {
        http::get(&self.address, path)
    }

    /// Posts a chat completion request.
    pub fn chat(&self, body: &Value) -> Response {
        http::post(&self.address, "/v1/chat/completions", body)
    }

    /// The answer's text, which there must be.
    pub fn answer(&self, body: &Value) -> String {
        let response = self.chat(body);
        assert_eq!(response.status, 200, "{}", response.body);
        let json = response.json();
        json["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
    }

    /// Posts a chat completion request whose answer streams.
    pub fn stream(&self, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = true.into();
        let stream = http::send(&self.address, "POST /v1/chat/completions", Some(&body.to_string()));
        let stream = stream.expect("the service answers");
        assert_eq!(stream.status, 200);
        stream
    }

    /// The value of a metric with exactly these labels, in the order in which they are written.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    }

    /// Waits until a metric has a value.
    pub fn becomes(&self, name: &str, value: f64) {
        let began = Instant::now();
        while self.metric(name) != value {
            assert!(began.elapsed() < PATIENCE, "{name} is {} and not {value}", self.metric(name));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it takes requests.
    fn becomes_ready(&self) {
        let began = Instant::now();
        while http::send(&self.address, "GET /ready", None).is_none_or(|response| response.status != 200) {
            // One that ends at once is for the test to look at.
            if began.elapsed() > Duration::from_secs(10) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends it the signal to end.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Sends a signal to its leader.
    pub fn signal(&self, number: rustix::process::Signal) {
        signal(self.leader, number);
    }

    /// Sends a signal to the process that was started.
    pub fn signal_launcher(&self, number: rustix::process::Signal) {
        signal(self.child.id(), number);
    }

    /// Waits until it takes no more requests.
    pub fn refuses(&self) {
        let began = Instant::now();
        while http::send(&self.address, "GET /ready", None).is_some_and(|response| response.status != 503) {
            assert!(began.elapsed() < PATIENCE, "it goes on taking requests");
        }
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        let code = self.wait();
        let mut errors = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
        Ended { code, errors }
    }

    fn wait(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            match self.child.try_wait().expect("it is our child") {
                Some(status) => return status.code(),
                None => assert!(began.elapsed() < PATIENCE, "no end after {PATIENCE:?}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it, which it must do without output on standard error.
    pub fn ends_well(self) {
        self.terminate();
        let Ended { code, errors } = self.end();
        assert_eq!((code, errors.as_str()), (Some(0), ""));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A shell a rank that writes the number of its process into a folder, and becomes the program that
/// follows.
fn noting_pids() -> (tempfile::TempDir, [String; 4]) {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!("echo $$ >{}/$OMPI_COMM_WORLD_RANK; exec \"$@\"", folder.path().display());
    (folder, ["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()])
}

fn arguments(options: &[&str]) -> Vec<String> {
    let demo = super::demo();
    let mut base = vec!["serve"];
    if !options.contains(&"--model") {
        base.extend(["--model", &demo]);
    }
    if !options.contains(&"--listen") {
        base.extend(["--listen", "127.0.0.1:0"]);
    }
    // Its tokens and bytes would be counted with those of a test, and failpoints met by it.
    if !options.contains(&SELF_TEST) {
        base.extend([SELF_TEST, "0"]);
    }
    base.iter().chain(options).map(|&text| text.to_owned()).collect()
}

/// One of the demo's requests as a client sends it.
pub fn body(name: &str, max_tokens: usize) -> Value {
    let text = std::fs::read_to_string(super::request(name)).expect("a request");
    let request: Value = serde_json::from_str(&text).expect("JSON");
    json!({
        "model": "demo",
        "messages": [{"role": "user", "content": request["query"]}],
        "documents": request["documents"],
        "max_tokens": max_tokens,
    })
}

/// A golden picture as a `data:` URL.
#[allow(dead_code)] // not every test file has pictures
pub fn picture_url(name: &str) -> String {
    let bytes = std::fs::read(super::root().join("tests/golden/vlm").join(name)).expect("a picture");
    format!("data:image/png;base64,{}", BASE64_STANDARD.encode(bytes))
}

/// The text of a stream's events, and the events.
pub fn streamed(stream: Stream) -> (String, Vec<Value>) {
    let mut events = stream.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{events:?}");
    let parse = |event: String| serde_json::from_str(&event).expect("JSON");
    let events: Vec<Value> = events.into_iter().map(parse).collect();
    let text = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    (text, events)
}
