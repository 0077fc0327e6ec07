//! Clients that flood, dribble, leave halfway, stay idle, or send invalid requests. The service
//! answers the others rightly meanwhile, and has released all resources afterwards.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::crowd::{Got, Right};
use crate::kit::held::Held;
use crate::kit::server::Server;

const RUNNING: &str = "tributary_requests_running";
const WAITING: &str = "tributary_requests_waiting";
const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

fn held(server: &Server) -> Held {
    Held::by(server.leader()).expect("it lives")
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(&server.address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
    stream
}

/// The status of the answer; 0 where the connection ends without one.
fn status(mut stream: &TcpStream) -> u16 {
    let mut start = [0; 12];
    match stream.read_exact(&mut start) {
        Ok(()) => std::str::from_utf8(&start[9..]).expect("a status").parse().expect("a number"),
        Err(_) => 0,
    }
}

/// All resources are released, and eight clients are answered rightly.
fn goes_on(server: &Server, right: &Right, what: &str) {
    server.becomes(RUNNING, 0.0);
    server.becomes(WAITING, 0.0);
    let clients = right.asked(&server.address, 8).end();
    assert_eq!(clients.count(|got| got == Got::Whole), 8, "{what}: {clients:?}");
}

#[test]
fn a_flood_of_clients() {
    let server = Server::start(&["--world-size", "2", "--max-waiting", "16", "--max-running", "4"]);
    let right = Right::of(&server);
    let clients = right.asked(&server.address, 400).end();
    println!("400 clients at once: {}", clients.row());
    assert_eq!(clients.count(|got| got == Got::Cut), 0, "{clients:?}");
    let busy = clients.count(|got| got == Got::Error(429));
    assert_eq!(clients.count(|got| got == Got::Whole) + busy, 400, "an answer, or 429: {clients:?}");
    assert!(busy > 0, "the queue was never full");
    goes_on(&server, &right, "a flood");
    server.ends_well();
}

#[test]
fn bodies_that_dribble_and_clients_that_hang_up_halfway() {
    let server = Server::start(&["--world-size", "2", "--header-timeout", "2", "--max-running", "2"]);
    let right = Right::of(&server);
    let slow: Vec<_> = (0..100).map(|_| connect(&server)).collect();
    for mut stream in &slow {
        write!(stream, "{HEAD}content-length: 1000\r\n\r\n{{").expect("written");
    }
    // A client that closes its side has left, though it could still read.
    let request = crate::kit::server::body("hop2-0", 3000).to_string();
    let halves: Vec<_> = (0..20).map(|_| connect(&server)).collect();
    for mut stream in &halves {
        write!(stream, "{HEAD}content-length: {}\r\n\r\n{request}", request.len()).expect("written");
        stream.shutdown(Shutdown::Write).expect("half closed");
    }
    let began = Instant::now();
    goes_on(&server, &right, "slow bodies");
    println!(
        "100 slow bodies, 20 half-closed sockets: the others answered after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    for stream in &slow {
        assert_eq!(status(stream), 408, "a body that does not come");
    }
    for stream in &halves {
        assert_eq!(status(stream), 0, "there is no client to answer");
    }
    server.ends_well();
}

#[test]
fn ten_thousand_connections_that_do_nothing() {
    let server = Server::start(&["--world-size", "2", "--max-connections", "11000"]);
    let right = Right::of(&server);
    let before = held(&server);
    let mut idle = Vec::new();
    // As many as this process may open, where that is fewer: the service's own side of each counts
    // too.
    while idle.len() < 10_000 {
        match TcpStream::connect(&server.address) {
            Ok(stream) => idle.push(stream),
            Err(error) if idle.len() > 900 => {
                crate::kit::skipped(&format!("connections beyond {}: {error}", idle.len()));
                break;
            }
            Err(error) => panic!("connection {}: {error}", idle.len()),
        }
    }
    let began = Instant::now();
    goes_on(&server, &right, "idle connections");
    let after = held(&server);
    let each = after.resident_bytes.saturating_sub(before.resident_bytes) / idle.len() as u64;
    println!(
        "{} idle connections: {each} bytes each; eight clients answered in {:.2} s",
        idle.len(),
        began.elapsed().as_secs_f64()
    );
    assert!(each < 64 << 10, "{each} bytes a connection");
    drop(idle);
    let began = Instant::now();
    while held(&server).files > before.files + 8 {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}, before {before:?}", held(&server));
        std::thread::sleep(Duration::from_millis(50));
    }
    server.ends_well();
}

#[test]
fn bodies_that_are_no_request() {
    let server = Server::start(&["--world-size", "2"]);
    let right = Right::of(&server);
    let before = held(&server);
    // One GiB that is announced is not read; one that is not announced is read as far as a body may
    // go.
    let mut announced = connect(&server);
    write!(announced, "{HEAD}content-length: {}\r\n\r\n", 1 << 30).expect("written");
    assert_eq!(status(&announced), 413);
    let unannounced = connect(&server);
    let mut writer = unannounced.try_clone().expect("a second hand");
    let sent = std::thread::spawn(move || {
        let block = vec![b' '; 1 << 20];
        write!(writer, "{HEAD}transfer-encoding: chunked\r\n\r\n").expect("written");
        let send = |mut writer: &TcpStream| {
            writer
                .write_all(b"100000\r\n")
                .and_then(|()| writer.write_all(&block))
                .and_then(|()| writer.write_all(b"\r\n"))
        };
        (0..1024).take_while(|_| send(&writer).is_ok()).count()
    });
    // The answer may be lost with the connection: the client was still sending.
    let found = status(&unannounced);
    assert!(found == 413 || found == 0, "{found}");
    let sent = sent.join().expect("it does not panic");
    assert!(sent < 200, "{sent} MiB of a body were taken");
    let after = held(&server);
    println!(
        "a body of 1 GiB: {sent} MiB sent, {} MiB more resident afterwards",
        after.resident_bytes.saturating_sub(before.resident_bytes) >> 20
    );

    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep = format!("{{\"messages\": {deep}}}").into_bytes();
    let unknown = format!("{{\"x\": {}1{}}}", "{\"a\":".repeat(10_000), "}".repeat(10_000)).into_bytes();
    let no_text = b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}".to_vec();
    let half = b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}".to_vec();
    let zeros = vec![0; 1000];
    for (what, bytes) in [
        ("deep", deep),
        ("deep and unknown", unknown),
        ("no UTF-8", no_text),
        ("half a character", half),
        ("zeros", zeros),
    ] {
        let mut stream = connect(&server);
        write!(stream, "{HEAD}content-length: {}\r\n\r\n", bytes.len()).expect("written");
        stream.write_all(&bytes).expect("written");
        assert_eq!(status(&stream), 400, "{what}");
    }
    goes_on(&server, &right, "bodies that are no request");
    server.ends_well();
}

#[test]
fn a_text_that_takes_for_ever_to_read_keeps_no_service_from_ending() {
    let server =
        Server::start_with_fault("engine::prepare=sleep(600000)", &["--world-size", "2", "--drain-timeout", "1"]);
    let request = crate::kit::server::body("hop2-0", 4).to_string();
    let mut stream = connect(&server);
    write!(stream, "{HEAD}content-length: {}\r\n\r\n{request}", request.len()).expect("written");
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    server.terminate();
    assert_eq!(status(&stream), 503, "it is cut when the time to drain is over");
    let ended = server.end();
    assert_eq!((ended.code, ended.errors.as_str()), (Some(0), ""));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_place_that_comes_free_is_given_to_whoever_waits() {
    let server = Server::start(&["--world-size", "2", "--max-connections", "1", "--idle-timeout", "600"]);
    // The only connection is busy when another one comes, and stays open when it is not any more.
    let busy = connect(&server);
    let request = crate::kit::server::body("hop2-0", 2000).to_string();
    write!(&busy, "{HEAD}content-length: {}\r\n\r\n{request}", request.len()).expect("written");
    std::thread::sleep(Duration::from_millis(100));
    let waits = connect(&server);
    write!(&waits, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("written");
    assert_eq!(status(&busy), 200, "the first is answered");
    assert_eq!(status(&waits), 200, "and then the other");
    drop((busy, waits));
    server.ends_well();
}

#[test]
fn long_bodies_that_dribble_hold_up_no_other() {
    let server = Server::start(&["--world-size", "2"]);
    let right = Right::of(&server);
    let slow: Vec<_> = (0..20).map(|_| connect(&server)).collect();
    for mut stream in &slow {
        write!(stream, "{HEAD}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n").expect("written");
    }
    let mut large = crate::kit::server::body("hop2-0", 2).to_string();
    large += &" ".repeat(3 << 20);
    let mut stream = connect(&server);
    write!(stream, "{HEAD}content-length: {}\r\n\r\n{large}", large.len()).expect("written");
    assert_eq!(status(&stream), 200);
    drop(slow);
    goes_on(&server, &right, "dribbling bodies");
    server.ends_well();
}
