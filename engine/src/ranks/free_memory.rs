//! Free memory of the ranks: rank 0 collects it, so that a plan fits where there is least.

use tributary_comm::Communicator;
use tributary_planner::FreeMemory;

fn to_bytes(memory: FreeMemory) -> Vec<u8> {
    [memory.available_bytes.unwrap_or(u64::MAX), memory.ranks as u64].iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// Absent where the rank reports none.
fn from_bytes(bytes: &[u8]) -> Option<FreeMemory> {
    assert!(bytes.is_empty() || bytes.len() == 16, "a rank's free memory in {} bytes, not 16", bytes.len());
    let (available, ranks) = (bytes.get(..8)?.try_into().ok()?, bytes.get(8..16)?.try_into().ok()?);
    let available = u64::from_le_bytes(available);
    let available_bytes = (available != u64::MAX).then_some(available);
    Some(FreeMemory { available_bytes, ranks: usize::try_from(u64::from_le_bytes(ranks)).ok()? })
}

/// Sends rank 0 this rank's free memory; of ranks that share memory one sends it, the others none.
/// Rank 0 gets the least and its rank, its own if none is less. Every rank calls it.
///
/// # Errors
/// Returns an error if the group fails.
pub fn narrowest(
    comm: &mut dyn Communicator,
    own: Option<FreeMemory>,
) -> tributary_comm::Result<Option<(usize, FreeMemory)>> {
    let all = comm.gather_bytes(0, own.map(to_bytes).unwrap_or_default())?;
    let memories = all.iter().enumerate().filter_map(|(rank, bytes)| Some((rank, from_bytes(bytes)?)));
    // The first of equals.
    Ok(memories.min_by_key(|(_, memory)| memory.each_bytes()))
}

#[cfg(test)]
mod tests {
    use tributary_comm::local::seats;

    use super::*;

    fn found(memories: &[Option<FreeMemory>]) -> Option<(usize, FreeMemory)> {
        let told: Vec<_> = std::thread::scope(|scope| {
            let rank = |(seat, &memory): (tributary_comm::local::Seat, &Option<FreeMemory>)| {
                scope.spawn(move || narrowest(&mut seat.take(), memory).expect("a sound group"))
            };
            let ranks: Vec<_> = seats(memories.len()).into_iter().zip(memories).map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        told[0]
    }

    #[test]
    fn the_rank_with_least_is_known_to_rank_0() {
        let memory = |bytes: u64, ranks| Some(FreeMemory { available_bytes: Some(bytes), ranks });
        assert_eq!(found(&[memory(100, 1), memory(60, 1), memory(80, 1)]), Some((1, memory(60, 1).unwrap())));
        assert_eq!(found(&[memory(100, 1), memory(100, 1)]), Some((0, memory(100, 1).unwrap())));
        assert_eq!(found(&[memory(100, 2), None, memory(90, 1)]), Some((0, memory(100, 2).unwrap())), "50 each");
        assert_eq!(found(&[memory(100, 1), None, memory(150, 2), None]), Some((2, memory(150, 2).unwrap())), "75 each");
        let unknown = FreeMemory { available_bytes: None, ranks: 1 };
        assert_eq!(found(&[Some(unknown), memory(7, 1)]), Some((1, memory(7, 1).unwrap())));
        assert_eq!(found(&[Some(unknown), Some(unknown)]), Some((0, unknown)));
    }
}
