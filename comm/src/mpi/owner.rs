//! The thread that owns MPI: sends the letters from the post, receives the others', and does nothing else.
//!
//! Every wait is a look that never blocks and a rest, so that news of a failure gets through while a long message stands.
//! Requests live in a scope that ends only when they have completed; a rank that is stopped keeps it open for ever, and
//! the process must then end by `exit`.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use mpi::Threading;
use mpi::environment::Universe;
use mpi::point_to_point::{Message, Status};
use mpi::request::scope;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _, Destination as _, Equivalence as _, Source as _};

use super::body::Room;
use super::letter::{HEAD_LIMIT_BYTES, Head, Kind, Letter};
use super::pace::Pace;
use super::post::Post;
use crate::group::call::Contribution;
use crate::process::{Facts, Peer, Settings};
use crate::wire::{self, PROTOCOL_VERSION};
use crate::{Error, Result};

/// The longest rest while something is on its way or waited for, and while nothing is.
const BUSY_REST: Duration = Duration::from_micros(50);
const IDLE_REST: Duration = Duration::from_millis(1);

/// Bytes in which a rank introduces itself.
const CARD_BYTES: usize = 512;

/// Finds the others, says what came of it, and carries letters until all ranks have said farewell.
pub fn run(settings: &Settings, ready: &SyncSender<Result<(Arc<Post>, Facts)>>) {
    fail::fail_point!("comm::mpi::start");
    let universe = match meet() {
        Ok((universe, facts)) => {
            let (world, post) = (universe.world(), Arc::new(Post::new(facts.rank, facts.size)));
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            // Each rank has a thread here besides those that compute.
            let crowded = facts.local_size * (settings.threads + 1) > cores;
            let owner = Owner {
                world,
                post: Arc::clone(&post),
                piece_bytes: settings.piece_bytes.clamp(1, i32::MAX as usize),
                crowded,
                arriving: RefCell::new((0..facts.size).map(|_| None).collect()),
                busy: RefCell::new(vec![false; facts.size]),
            };
            // Who started this thread may have given up waiting.
            let _ = ready.send(Ok((post, facts)));
            owner.serve();
            fail::fail_point!("comm::mpi::leave");
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

/// Initializes MPI and exchanges the ranks' cards.
fn meet() -> std::result::Result<(Universe, Facts), (Option<Universe>, Error)> {
    let refuse = |what: &str| Error::Start(what.to_owned());
    // Only this thread calls MPI, and it is the one that initializes it.
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
        return Err((None, refuse("MPI is initialized already")));
    };
    let world = universe.world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let local = world.split_shared(world.rank());
    let host = mpi::environment::processor_name().unwrap_or_default();
    let me = Peer::me(rank, host.trim_matches(['\0', ' ']).to_owned());
    let mine = match card(&me) {
        Ok(card) => card,
        Err(error) => return Err((Some(universe), error)),
    };
    let mut cards = vec![0u8; CARD_BYTES * size];
    world.all_gather_into(&mine[..], &mut cards[..]);
    let cards: Vec<_> = cards.chunks_exact(CARD_BYTES).enumerate().map(|(rank, card)| read(rank, card)).collect();
    let versions: Vec<u32> = cards.iter().map(|(version, _)| *version).collect();
    if versions.iter().any(|&version| version != PROTOCOL_VERSION) {
        return Err((Some(universe), Error::Version { versions }));
    }
    let ours = numbering();
    let visible = |peer: Peer, theirs: &str| Peer { visible: theirs == ours && peer.lives(), ..peer };
    let peers = cards.into_iter().map(|(_, (peer, theirs))| visible(peer, &theirs)).collect();
    let library = super::library_version().unwrap_or_default();
    let (local_rank, local_size) = local_place(&local, rank);
    drop(local);
    Ok((universe, Facts { rank, size, local_rank, local_size, library, peers }))
}

/// This rank's number among those that share memory with it, in the order of their ranks, and how many they are. Not all
/// libraries number the split in the order asked for.
fn local_place(local: &SimpleCommunicator, rank: usize) -> (usize, usize) {
    let mut ranks = vec![0u64; local.size() as usize];
    local.all_gather_into(&(rank as u64), &mut ranks[..]);
    (ranks.iter().filter(|&&other| other < rank as u64).count(), ranks.len())
}

/// How a rank introduces itself: text that every version can read.
fn card(me: &Peer) -> Result<Vec<u8>> {
    let text = format!("{}\n{}\n{}\n{}\n{}", version(), me.pid, me.started_ticks, numbering(), me.host);
    let mut card = text.into_bytes();
    if card.len() > CARD_BYTES {
        return Err(Error::Start(format!("the host's name is too long: {}", me.host)));
    }
    card.resize(CARD_BYTES, 0);
    Ok(card)
}

/// What this rank speaks; a test can make it another version's.
fn version() -> u32 {
    fail::fail_point!("comm::mpi::version", |_| PROTOCOL_VERSION + 1);
    PROTOCOL_VERSION
}

/// Protocol version, process, and where its number counts.
fn read(rank: usize, card: &[u8]) -> (u32, (Peer, String)) {
    let text = String::from_utf8_lossy(card);
    let mut lines = text.trim_end_matches('\0').split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let version = line().parse().unwrap_or(0);
    let (pid, started_ticks) = (line().parse().unwrap_or(0), line().parse().unwrap_or(0));
    let numbering = line().to_owned();
    let host = line().to_owned();
    (version, (Peer { rank, host, pid, started_ticks, visible: false }, numbering))
}

/// Where process numbers mean the same: one boot of one system, and one namespace of it, because containers count alike.
fn numbering() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

/// A call whose body is on its way.
struct Arriving {
    head: Head,
    room: Room,
    filled_bytes: usize,
}

struct Owner {
    world: SimpleCommunicator,
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
            self.deliver(&letters);
            self.deliver_urgent();
            if self.receive() || sent {
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

    fn deliver_urgent(&self) {
        let letters = self.post.urgent_letters();
        if !letters.is_empty() {
            self.deliver(&letters);
            self.post.urgent_has_left();
        }
    }

    /// Sends letters and comes back when they have left; receives meanwhile.
    fn deliver(&self, letters: &[Letter]) {
        let opened: Vec<_> = letters.iter().map(|letter| letter.body.open()).collect();
        let mut messages: Vec<(usize, Kind, &[u8])> = Vec::new();
        for (letter, opened) in letters.iter().zip(&opened) {
            let body = match opened.bytes() {
                Ok(body) => body,
                Err(error) => {
                    self.post.hub.kill(self.post.rank, error);
                    return;
                }
            };
            messages.push((letter.to, letter.kind, &letter.head));
            messages.extend(body.chunks(self.piece_bytes).map(|piece| (letter.to, Kind::Piece, piece)));
        }
        scope(|scope| {
            let mut requests = Vec::with_capacity(messages.len());
            for &(to, kind, bytes) in &messages {
                let to = self.world.process_at_rank(to as i32);
                requests.push(to.immediate_send_with_tag(scope, bytes, kind as i32));
            }
            let mut pace = Pace::for_transfer();
            loop {
                requests = requests.into_iter().filter_map(|request| request.test().err()).collect();
                if requests.is_empty() {
                    return;
                }
                if self.receive() {
                    pace.found();
                }
                self.deliver_urgent();
                self.rest(&mut pace);
            }
        });
    }

    /// Receives what has come, one message a rank; whether there was any.
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
                // News of it goes out with this rank's next call.
                self.post.hub.kill(self.post.rank, error);
            }
        }
        any
    }

    fn take(&self, from: usize, message: Message, status: &Status) -> Result<()> {
        let length = usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(usize::MAX);
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
                let head: Head = wire::decode(&bytes)?;
                let room = Room::for_call(&head.call, from, self.post.rank, head.body_bytes)?;
                self.arrived(from, Arriving { head, room, filled_bytes: 0 })
            }
            Some(Kind::Abort) => {
                let (cause, exit_code): (String, u8) = wire::decode(&bytes)?;
                self.post.hub.kill(from, Error::Aborted { rank: from, cause, exit_code });
                Ok(())
            }
            Some(Kind::Farewell) => {
                self.post.left(from);
                Ok(())
            }
            Some(Kind::Ask) => {
                let answer = Letter::answer(from, &self.post.hub.doing(self.post.rank))?;
                self.post.send_urgently(vec![answer]);
                Ok(())
            }
            Some(Kind::Answer) => {
                self.post.answered(from, wire::decode(&bytes)?);
                Ok(())
            }
            Some(Kind::Piece) | None => Err(Error::Frame(format!("a message of tag {}", status.tag()))),
        }
    }

    fn take_piece(&self, from: usize, message: Message, length: usize) -> Result<()> {
        fail::fail_point!("comm::mpi::piece");
        let arriving = self.arriving.borrow_mut()[from].take();
        let rest = |arriving: &Arriving| arriving.head.body_bytes as usize - arriving.filled_bytes;
        let Some(mut arriving) = arriving.filter(|arriving| length <= rest(arriving)) else {
            // Received all the same: a message that was matched must be.
            self.fill(message, &mut vec![0; length]);
            return Err(Error::Frame(format!("a piece of {length} bytes from rank {from} that no call has")));
        };
        let begin = arriving.filled_bytes;
        self.fill(message, &mut arriving.room.bytes_mut()[begin..begin + length]);
        arriving.filled_bytes += length;
        self.arrived(from, arriving)
    }

    /// Brings a call's part to the hub if it is complete.
    fn arrived(&self, from: usize, arriving: Arriving) -> Result<()> {
        if arriving.filled_bytes as u64 != arriving.head.body_bytes {
            self.arriving.borrow_mut()[from] = Some(arriving);
            return Ok(());
        }
        let Arriving { head: Head { sequence, call, .. }, room, .. } = arriving;
        let (rank, world) = (self.post.rank, self.post.world);
        let payload = room.into_payload(&call, from, rank, world)?;
        self.post.hub.bring(from, rank, sequence, Contribution { call, payload });
        Ok(())
    }

    /// Receives a message that has been matched.
    fn fill(&self, message: Message, room: &mut [u8]) {
        scope(|scope| {
            let mut request = message.immediate_matched_receive_into(scope, room);
            let mut pace = Pace::for_transfer();
            loop {
                request = match request.test() {
                    Ok(_) => return,
                    Err(request) => request,
                };
                self.deliver_urgent();
                self.rest(&mut pace);
            }
        });
    }

    fn rest(&self, pace: &mut Pace) {
        match pace.next(BUSY_REST) {
            Some(rest) => std::thread::sleep(rest),
            None => std::thread::yield_now(),
        }
    }
}
