//! How much memory the ranks have: told to rank 0, so that a plan fits where there is least.

use tributary_comm::Communicator;
use tributary_coordinator::Room;

fn to_bytes(room: Room) -> Vec<u8> {
    [room.available_bytes.unwrap_or(u64::MAX), room.ranks as u64].iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn from_bytes(bytes: &[u8]) -> Option<Room> {
    let (available, ranks) = (bytes.get(..8)?.try_into().ok()?, bytes.get(8..16)?.try_into().ok()?);
    let available = u64::from_le_bytes(available);
    let available_bytes = (available != u64::MAX).then_some(available);
    Some(Room { available_bytes, ranks: usize::try_from(u64::from_le_bytes(ranks)).ok()? })
}

/// Tells rank 0 this rank's room; one of those that share it does, the others tell none. Rank 0 gets the narrowest and its
/// rank, its own if none is narrower. Every rank calls it.
///
/// # Errors
/// A failure of the group.
pub fn narrowest(comm: &mut dyn Communicator, own: Option<Room>) -> tributary_comm::Result<Option<(usize, Room)>> {
    let all = comm.gather_bytes(0, own.map(to_bytes).unwrap_or_default())?;
    let rooms = all.iter().enumerate().filter_map(|(rank, bytes)| Some((rank, from_bytes(bytes)?)));
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
}
