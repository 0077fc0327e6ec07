//! The thread that owns MPI: sends the letters from the post, receives the others', and does
//! nothing else.
//!
//! Every wait alternates a look that never blocks with a rest. Urgent letters (the group's end,
//! signs of life) have a communicator of their own, which every wait looks at: a long message does
//! not delay them. Requests live in a scope that ends only when they have completed. A stopped rank
//! keeps it open for ever, and the process must then end by `exit`.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use mpi::point_to_point::{Message, Status};
use mpi::request::scope;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, Destination as _, Equivalence as _, Source as _};
use tributary_protocol::{Word, decode_frame};

use super::body::ReceiveBuffer;
use super::letter::{HEAD_LIMIT_BYTES, Head, Kind, Letter};
use super::meet::meet;
use super::pace::Pace;
use super::post::Post;
use crate::group::call::Contribution;
use crate::group::liveness::Activity;
use crate::process::{ProcessGroup, ProcessSettings};
use crate::{Error, Result};

/// The longest rest while something is on its way or waited for, and while nothing is.
const BUSY_REST: Duration = Duration::from_micros(50);
const IDLE_REST: Duration = Duration::from_millis(1);

/// Finds the others, reports the outcome, and carries letters until all ranks have said farewell.
pub fn run(settings: &ProcessSettings, ready: &SyncSender<Result<(Arc<Post>, ProcessGroup)>>) {
    fail::fail_point!("comm::mpi::start");
    let universe = match meet(settings.holding) {
        Ok((universe, group)) => {
            let (world, post) =
                (universe.world(), Arc::new(Post::new(group.rank, group.size, settings.heartbeat_timeout)));
            let urgent = world.duplicate();
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            // Each rank has a thread here besides those that compute.
            let crowded = group.local_size * (settings.threads + 1) > cores;
            let owner = Owner {
                world,
                urgent,
                post: Arc::clone(&post),
                piece_bytes: settings.piece_bytes.clamp(1, i32::MAX as usize),
                crowded,
                arriving: RefCell::new((0..group.size).map(|_| None).collect()),
                busy: RefCell::new(vec![false; group.size]),
            };
            // The thread that started this one may have given up waiting.
            let _ = ready.send(Ok((post, group)));
            owner.serve();
            fail::fail_point!("comm::mpi::leave");
            if owner.post.ends_at_once() {
                // MPI is left in order; nothing else of this process is waited for.
                drop((owner, universe));
                std::process::exit(0);
            }
            universe
        }
        Err((universe, error)) => {
            let _ = ready.send(Err(error));
            // The process ends: the others are not waited for, as finalizing would.
            std::mem::forget(universe);
            return;
        }
    };
    drop(universe);
}

/// A call whose body is on its way.
struct Arriving {
    head: Head,
    buffer: ReceiveBuffer,
    filled_bytes: usize,
}

struct Owner {
    world: SimpleCommunicator,
    /// For urgent letters.
    urgent: SimpleCommunicator,
    post: Arc<Post>,
    piece_bytes: usize,
    crowded: bool,
    /// One a rank.
    arriving: RefCell<Vec<Option<Arriving>>>,
    /// Ranks from which a message is just being received: the next one must wait.
    busy: RefCell<Vec<bool>>,
}

impl Owner {
    fn serve(&self) {
        let mut pace = Pace::for_news(self.crowded);
        loop {
            let letters = self.post.letters();
            let sent = !letters.is_empty();
            self.deliver(&letters, true);
            let news = self.urgent_news();
            if self.receive() || news || sent {
                pace.found();
                continue;
            }
            if self.post.is_over() {
                return;
            }
            let longest = if self.post.is_waited_for() { BUSY_REST } else { IDLE_REST };
            match pace.next(longest) {
                Some(rest) => self.post.rest(rest),
                None => std::thread::yield_now(),
            }
        }
    }

    /// Gives a sign of life when it is time, sends and receives the urgent letters; whether there
    /// were any.
    fn urgent_news(&self) -> bool {
        self.post.beat();
        let letters = self.post.urgent_letters();
        if !letters.is_empty() {
            self.deliver(&letters, false);
            self.post.urgent_have_left(letters.len());
        }
        let mut any = !letters.is_empty();
        while let Some((message, status)) = self.urgent.any_process().immediate_matched_probe() {
            any = true;
            if let Err(error) = self.take_urgent(message, &status) {
                self.post.found(error);
            }
        }
        any
    }

    /// Short letters come whole: receiving one does not block.
    fn take_urgent(&self, message: Message, status: &Status) -> Result<()> {
        let from = status.source_rank() as usize;
        let mut bytes = vec![0u8; length_bytes(status)];
        message.matched_receive_into(&mut bytes[..]);
        match Kind::from_tag(status.tag()) {
            Some(Kind::Abort) => {
                let (cause, exit_code): (String, u8) = decode_frame(&bytes)?;
                if exit_code == 0 {
                    self.post.leave_at_once(from, &cause);
                    return Ok(());
                }
                self.post.hub.kill(from, Error::Aborted { rank: from, cause, exit_code });
            }
            Some(Kind::Beat) => {
                let activity: Activity = decode_frame(&bytes)?;
                self.post.heartbeats.heard(from, activity);
            }
            Some(Kind::Point) => self.post.comes_to(from, decode_frame(&bytes)?),
            Some(Kind::Word) => {
                let (number, word): (u64, Word) = decode_frame(&bytes)?;
                self.post.hub.hear(number, word);
            }
            _ => return Err(Error::Frame(format!("an urgent message of tag {}", status.tag()))),
        }
        Ok(())
    }

    /// Sends letters and returns when they have left. Meanwhile it takes urgent news, and receives
    /// other letters if `receives` is set. A sender of a long letter must set it, or two ranks that
    /// send to each other would wait for ever.
    fn deliver(&self, letters: &[Letter], receives: bool) {
        let opened: Vec<_> = letters.iter().map(|letter| letter.body.open()).collect();
        let mut messages: Vec<(usize, Kind, &[u8])> = Vec::new();
        for (letter, opened) in letters.iter().zip(&opened) {
            let body = match opened.bytes() {
                Ok(body) => body,
                Err(error) => {
                    self.post.found(error);
                    return;
                }
            };
            messages.push((letter.to, letter.kind, &letter.head));
            messages.extend(body.chunks(self.piece_bytes).map(|piece| (letter.to, Kind::Piece, piece)));
        }
        scope(|scope| {
            let mut requests = Vec::with_capacity(messages.len());
            for &(to, kind, bytes) in &messages {
                let way = if kind.is_urgent() { &self.urgent } else { &self.world };
                let to = way.process_at_rank(to as i32);
                requests.push(to.immediate_send_with_tag(scope, bytes, kind as i32));
            }
            let mut pace = Pace::for_transfer();
            loop {
                requests = requests.into_iter().filter_map(|request| request.test().err()).collect();
                if requests.is_empty() {
                    return;
                }
                if receives && self.receive() {
                    pace.found();
                }
                self.urgent_news();
                rest(&mut pace);
            }
        });
    }

    /// Receives arrived messages, one a rank; whether there was any.
    fn receive(&self) -> bool {
        let mut any = false;
        for from in (0..self.post.world).filter(|&from| from != self.post.rank) {
            if self.busy.borrow()[from] {
                continue;
            }
            let Some((message, status)) = self.world.process_at_rank(from as i32).immediate_matched_probe() else {
                continue;
            };
            any = true;
            self.busy.borrow_mut()[from] = true;
            let outcome = self.take(from, message, &status);
            self.busy.borrow_mut()[from] = false;
            if let Err(error) = outcome {
                self.post.found(error);
            }
        }
        any
    }

    fn take(&self, from: usize, message: Message, status: &Status) -> Result<()> {
        let length = length_bytes(status);
        let kind = Kind::from_tag(status.tag());
        if kind == Some(Kind::Piece) {
            return self.take_piece(from, message, length);
        }
        if length > HEAD_LIMIT_BYTES {
            return Err(Error::Frame(format!("a head of {length} bytes from rank {from}")));
        }
        let mut bytes = vec![0u8; length];
        self.fill(message, &mut bytes);
        match kind {
            Some(Kind::Call) => {
                let head: Head = decode_frame(&bytes)?;
                if !head.call.is_of(self.post.world) {
                    let (call, world) = (&head.call, self.post.world);
                    return Err(Error::Frame(format!("{call} from rank {from}, among {world} ranks")));
                }
                let buffer = ReceiveBuffer::for_call(&head.call, from, self.post.rank, head.body_bytes)?;
                self.arrived(from, Arriving { head, buffer, filled_bytes: 0 })
            }
            Some(Kind::Farewell) => {
                self.post.left(from);
                Ok(())
            }
            _ => Err(Error::Frame(format!("a message of tag {}", status.tag()))),
        }
    }

    fn take_piece(&self, from: usize, message: Message, length: usize) -> Result<()> {
        fail::fail_point!("comm::mpi::piece");
        let arriving = self.arriving.borrow_mut()[from].take();
        let rest = |arriving: &Arriving| arriving.head.body_bytes as usize - arriving.filled_bytes;
        let Some(mut arriving) = arriving.filter(|arriving| length <= rest(arriving)) else {
            // Received anyway: a matched message must be.
            self.fill(message, &mut vec![0; length]);
            return Err(Error::Frame(format!("a piece of {length} bytes from rank {from} that no call has")));
        };
        let begin = arriving.filled_bytes;
        self.fill(message, &mut arriving.buffer.bytes_mut()[begin..begin + length]);
        arriving.filled_bytes += length;
        self.arrived(from, arriving)
    }

    /// Brings a call's part to the hub if it is complete.
    fn arrived(&self, from: usize, arriving: Arriving) -> Result<()> {
        if arriving.filled_bytes as u64 != arriving.head.body_bytes {
            self.arriving.borrow_mut()[from] = Some(arriving);
            return Ok(());
        }
        let Arriving { head: Head { sequence, call, body_checksum, .. }, buffer, .. } = arriving;
        buffer.is_undamaged(body_checksum, from)?;
        let (rank, world) = (self.post.rank, self.post.world);
        let payload = buffer.into_payload(&call, from, rank, world)?;
        self.post.hub.bring(from, rank, sequence, Contribution { call, payload });
        self.post.hub.alive(rank)
    }

    /// Receives a message that has been matched.
    fn fill(&self, message: Message, buffer: &mut [u8]) {
        scope(|scope| {
            let mut request = message.immediate_matched_receive_into(scope, buffer);
            let mut pace = Pace::for_transfer();
            loop {
                request = match request.test() {
                    Ok(_) => return,
                    Err(request) => request,
                };
                self.urgent_news();
                rest(&mut pace);
            }
        });
    }
}

/// Length of a message that has been matched.
fn length_bytes(status: &Status) -> usize {
    usize::try_from(status.count(u8::equivalent_datatype())).expect("a message has a whole number of bytes")
}

fn rest(pace: &mut Pace) {
    match pace.next(BUSY_REST) {
        Some(rest) => std::thread::sleep(rest),
        None => std::thread::yield_now(),
    }
}
