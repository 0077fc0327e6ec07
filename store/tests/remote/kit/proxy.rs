//! A proxy that harms the next requests, one after the other by a list, and forwards later ones.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::listener;

/// Harm to a request.
#[derive(Debug, Clone, Copy)]
pub enum Harm {
    /// It waits before it is handed on.
    Delay(Duration),
    /// Its connection is reset.
    Reset,
    /// Its answer ends in the middle.
    Cut,
    /// It is answered with 500.
    Fail,
    /// The last byte of its answer is another.
    Damage,
    /// Its answer would have this number of bytes, which are sent as long as the client reads.
    Huge(u64),
}

/// A proxy on its own port. It lives as long as the test's process.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    behind: SocketAddr,
    harms: Mutex<VecDeque<Harm>>,
    requests: AtomicUsize,
    huge_bytes: AtomicU64,
}

impl Proxy {
    pub fn start(behind: SocketAddr) -> Self {
        Self::start_on(listener().0, behind)
    }

    pub fn start_on(listener: TcpListener, behind: SocketAddr) -> Self {
        let address = listener.local_addr().expect("an address");
        let (harms, requests, huge_bytes) = (Mutex::default(), AtomicUsize::new(0), AtomicU64::new(0));
        let state = Arc::new(State { behind, harms, requests, huge_bytes });
        let of_thread = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&of_thread);
                // A client that leaves ends its own connection alone.
                std::thread::spawn(move || state.serve(client));
            }
        });
        Self { address, state }
    }

    /// Sets the harms to the next requests. The rest of the last such list is dropped.
    pub fn harms(&self, harms: &[Harm]) {
        *self.state.harms.lock().expect("no panic") = harms.iter().copied().collect();
    }

    /// Requests that came by, since this was asked last.
    pub fn requests(&self) -> usize {
        self.state.requests.swap(0, Ordering::SeqCst)
    }

    /// Bytes of huge answers that the client, or the system, has taken.
    pub fn huge_bytes(&self) -> u64 {
        self.state.huge_bytes.load(Ordering::SeqCst)
    }
}

impl State {
    fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        // A connection that is opened for a later request, or for none, takes no harm.
        if client.peek(&mut [0])? == 0 {
            return Ok(());
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        let harm = self.harms.lock().expect("no panic").pop_front();
        if matches!(harm, Some(Harm::Reset)) {
            // To close it before its bytes were read resets it.
            return Ok(());
        }
        let request = whole_request(&mut client)?;
        match harm {
            Some(Harm::Delay(delay)) => std::thread::sleep(delay),
            Some(Harm::Fail) => {
                let head = "HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                return client.write_all(head.as_bytes());
            }
            Some(Harm::Huge(bytes)) => return self.huge(&mut client, bytes),
            _ => {}
        }
        let mut behind = TcpStream::connect(self.behind)?;
        behind.write_all(&request)?;
        // It closes its connections after each answer.
        let mut answer = Vec::new();
        behind.read_to_end(&mut answer)?;
        match harm {
            Some(Harm::Damage) => *answer.last_mut().expect("an answer") ^= 1,
            Some(Harm::Cut) => answer.truncate(answer.len() - 10),
            _ => {}
        }
        client.write_all(&answer)?;
        client.shutdown(Shutdown::Write)
    }

    fn huge(&self, client: &mut TcpStream, bytes: u64) -> std::io::Result<()> {
        let head = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nLast-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n";
        client.write_all(format!("{head}Content-Length: {bytes}\r\n\r\n").as_bytes())?;
        let part = [0; 64 << 10];
        for _ in 0..bytes / part.len() as u64 {
            client.write_all(&part)?;
            self.huge_bytes.fetch_add(part.len() as u64, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Reads a request, its body too, that asks for its connection to be closed or would let it.
fn whole_request(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (mut request, mut part) = (Vec::new(), [0; 64 << 10]);
    let mut whole = None;
    while whole.is_none_or(|whole| request.len() < whole) {
        let bytes = client.read(&mut part)?;
        if bytes == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        request.extend(&part[..bytes]);
        let end = request.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end.filter(|_| whole.is_none()) {
            let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
            whole = Some(end + 4 + length.unwrap_or(0));
        }
    }
    Ok(request)
}
