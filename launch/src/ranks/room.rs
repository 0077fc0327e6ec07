//! How much memory the ranks have: told to rank 0, so that a plan fits where there is least.

use tributary_comm::Communicator;
use tributary_coordinator::Machine;

/// Memory and the ranks that share it: a host's, or a GPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What is free for weights and requests; unknown where absent.
    pub available_bytes: Option<u64>,
    /// Ranks that share it, each with weights of its own.
    pub ranks: usize,
}

impl Room {
    /// That of a process which sees this machine.
    pub fn of(machine: &Machine) -> Self {
        Self { available_bytes: machine.available_bytes, ranks: machine.ranks_here }
    }

    /// What is left when each of its ranks has taken so many bytes.
    pub fn without(self, bytes: u64) -> Self {
        let taken = bytes.saturating_mul(self.ranks as u64);
        Self { available_bytes: self.available_bytes.map(|available| available.saturating_sub(taken)), ..self }
    }

    /// The machine with this memory, a rank's, in place of its own.
    pub fn of_rank(self, rank: usize, machine: &Machine) -> Machine {
        let Room { available_bytes, ranks } = self;
        Machine { available_bytes, ranks_here: ranks, weight_copies: ranks, of_rank: Some(rank), ..*machine }
    }

    /// Bytes of each of its ranks; all there can be where that is not known.
    fn each_bytes(self) -> u64 {
        self.available_bytes.map_or(u64::MAX, |bytes| bytes / self.ranks.max(1) as u64)
    }

    fn to_bytes(self) -> Vec<u8> {
        [self.available_bytes.unwrap_or(u64::MAX), self.ranks as u64].iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (available, ranks) = (bytes.get(..8)?.try_into().ok()?, bytes.get(8..16)?.try_into().ok()?);
        let available = u64::from_le_bytes(available);
        let available_bytes = (available != u64::MAX).then_some(available);
        Some(Self { available_bytes, ranks: usize::try_from(u64::from_le_bytes(ranks)).ok()? })
    }
}

/// Tells rank 0 this rank's room; one of those that share it does, the others tell none. Rank 0 gets the narrowest and its
/// rank, its own if none is narrower. Every rank calls it.
///
/// # Errors
/// A failure of the group.
pub fn narrowest(comm: &mut dyn Communicator, own: Option<Room>) -> tributary_comm::Result<Option<(usize, Room)>> {
    let all = comm.gather_bytes(0, own.map(Room::to_bytes).unwrap_or_default())?;
    let rooms = all.iter().enumerate().filter_map(|(rank, bytes)| Some((rank, Room::from_bytes(bytes)?)));
    // The first of equals.
    Ok(rooms.min_by_key(|(_, room)| room.each_bytes()))
}

#[cfg(test)]
mod tests {
    use tributary_comm::local::seats;

    use super::*;

    fn found(rooms: &[Option<Room>]) -> Option<(usize, Room)> {
        let told: Vec<_> = std::thread::scope(|scope| {
            let rank = |(seat, &room): (tributary_comm::local::Seat, &Option<Room>)| {
                scope.spawn(move || narrowest(&mut seat.take(), room).expect("a sound group"))
            };
            let ranks: Vec<_> = seats(rooms.len()).into_iter().zip(rooms).map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        told[0]
    }

    #[test]
    fn the_rank_with_least_is_known_to_rank_0() {
        let room = |bytes: u64, ranks| Some(Room { available_bytes: Some(bytes), ranks });
        assert_eq!(found(&[room(100, 1), room(60, 1), room(80, 1)]), Some((1, room(60, 1).unwrap())));
        assert_eq!(found(&[room(100, 1), room(100, 1)]), Some((0, room(100, 1).unwrap())));
        assert_eq!(found(&[room(100, 2), None, room(90, 1)]), Some((0, room(100, 2).unwrap())), "50 each");
        assert_eq!(found(&[room(100, 1), None, room(150, 2), None]), Some((2, room(150, 2).unwrap())), "75 each");
        let unknown = Room { available_bytes: None, ranks: 1 };
        assert_eq!(found(&[Some(unknown), room(7, 1)]), Some((1, room(7, 1).unwrap())));
        assert_eq!(found(&[Some(unknown), Some(unknown)]), Some((0, unknown)));
    }

    #[test]
    fn a_machine_takes_the_room_of_a_rank() {
        let own = Machine {
            flops_per_s: 1.0,
            link_bytes_per_s: 1.0,
            memory: tributary_coordinator::MemoryOf::Host,
            available_bytes: Some(100),
            ranks_here: 2,
            weight_copies: 2,
            of_rank: None,
        };
        let there = Room { available_bytes: Some(50), ranks: 4 }.of_rank(3, &own);
        assert_eq!(
            there,
            Machine { available_bytes: Some(50), ranks_here: 4, weight_copies: 4, of_rank: Some(3), ..own }
        );
        assert_eq!(Room::of(&there), Room { available_bytes: Some(50), ranks: 4 });
    }
}
