//! The first moments of a group over MPI: initialization, and the cards by which ranks introduce
//! themselves.

use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::scope;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _, Destination as _, Source as _};
use tributary_protocol::PROTOCOL_VERSION;

use crate::process::{Peer, ProcessGroup};
use crate::{Error, Result};

/// Bytes in which a rank introduces itself.
const CARD_BYTES: usize = 512;

/// Name and version of the MPI library that this program runs with.
///
/// # Errors
/// Returns an error if the library does not report its version.
pub fn library_version() -> Result<String> {
    let version = mpi::environment::library_version().map_err(|error| Error::Start(error.to_string()))?;
    Ok(version.trim_matches(['\0', ' ', '\n']).lines().next().unwrap_or_default().to_owned())
}

/// Initializes MPI and exchanges the ranks' cards; `holding` as in
/// [`ProcessSettings`](crate::process::ProcessSettings).
pub fn meet(holding: fn(usize) -> u64) -> std::result::Result<(Universe, ProcessGroup), (Option<Universe>, Error)> {
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
    let visible = |peer: Peer| Peer { visible: peer.system == me.system && peer.lives(), ..peer };
    let peers = cards.into_iter().map(|(_, peer)| visible(peer)).collect();
    let library = library_version().unwrap_or_default();
    greet(&world, rank, size);
    let (local_rank, local_size) = local_place(&local, rank);
    let sharing = sharing(&local, holding(local_rank));
    drop(local);
    Ok((universe, ProcessGroup { rank, size, local_rank, local_size, sharing, library, peers }))
}

/// Connects every pair of ranks: the lower one says hello, the higher one answers. Libraries
/// connect two processes when the first message goes between them, and complain at length where one
/// of them has ended by then; or where both begin at the same time, and one of the two connections
/// is given up.
fn greet(world: &SimpleCommunicator, rank: usize, size: usize) {
    let process = |other: usize| world.process_at_rank(other as i32);
    let hello = [0u8];
    scope(|scope| {
        let sent: Vec<_> = (rank + 1..size).map(|higher| process(higher).immediate_send(scope, &hello[..])).collect();
        for lower in 0..rank {
            process(lower).receive_into(&mut [0u8][..]);
            process(lower).send(&hello[..]);
        }
        for higher in rank + 1..size {
            process(higher).receive_into(&mut [0u8][..]);
        }
        for request in sent {
            request.wait();
        }
    });
}

/// This rank's number among those that share memory with it, in the order of their ranks, and how
/// many they are. Not all libraries number the split in the order asked for.
fn local_place(local: &SimpleCommunicator, rank: usize) -> (usize, usize) {
    let mut ranks = vec![0u64; local.size() as usize];
    local.all_gather_into(&(rank as u64), &mut ranks[..]);
    (ranks.iter().filter(|&&other| other < rank as u64).count(), ranks.len())
}

/// Number of ranks that share memory with this one and hold the same thing; 1 where this rank holds
/// nothing.
fn sharing(local: &SimpleCommunicator, holding: u64) -> usize {
    let mut all = vec![0u64; local.size() as usize];
    local.all_gather_into(&holding, &mut all[..]);
    if holding == 0 { 1 } else { all.iter().filter(|&&other| other == holding).count() }
}

/// The card by which a rank introduces itself: text that every version can read.
fn card(me: &Peer) -> Result<Vec<u8>> {
    let text = format!("{}\n{}\n{}\n{}\n{}", version(), me.pid, me.started_ticks, me.system, me.host);
    let mut card = text.into_bytes();
    if card.len() > CARD_BYTES {
        return Err(Error::Start(format!("the host's name is too long: {}", me.host)));
    }
    card.resize(CARD_BYTES, 0);
    Ok(card)
}

/// The version of the protocol that this rank speaks; a test can make it another.
fn version() -> u32 {
    fail::fail_point!("comm::mpi::version", |_| PROTOCOL_VERSION + 1);
    PROTOCOL_VERSION
}

/// The protocol version and the process that a card names.
fn read(rank: usize, card: &[u8]) -> (u32, Peer) {
    let text = String::from_utf8_lossy(card);
    let mut lines = text.trim_end_matches('\0').split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let version = line().parse().unwrap_or(0);
    let (pid, started_ticks) = (line().parse().unwrap_or(0), line().parse().unwrap_or(0));
    let (system, host) = (line().to_owned(), line().to_owned());
    (version, Peer { rank, host, system, pid, started_ticks, visible: false })
}
