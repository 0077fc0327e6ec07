//! Inventory of the chunks in the ranks' stores when a group starts, so that its first request
//! finds them. Ranks with the same folder are recognised by its name; one of them lists its chunks,
//! in pages that fit into messages.

use tributary_comm::{Communicator, Result};
use tributary_planner::StoreInventory;
use tributary_protocol::{ChunkKey, decode, encode};
use tributary_store::Store;

/// Keys in one message: 4 MiB.
const PAGE: usize = 1 << 17;

/// A rank's description of its store: the name that all its readers share, and its number of
/// chunks. None without a store.
type Introduction = Option<(String, u64)>;

/// The stores of all ranks, on rank 0; nothing elsewhere. Every rank calls it.
///
/// # Errors
/// Returns an error if the group fails.
pub fn inventory(comm: &mut dyn Communicator, store: Option<&Store>) -> Result<Vec<StoreInventory>> {
    let keys = store.map(Store::keys).unwrap_or_default();
    let own: Introduction = store.map(|store| (store.name(), keys.len() as u64));
    let introduced = comm.gather_bytes(0, encode(&own)?)?;
    let introduced = introduced.iter().map(|bytes| Ok(decode(bytes)?)).collect::<Result<Vec<Introduction>>>()?;
    let mut stores = by_name(&introduced);
    let speakers: Vec<usize> = stores.iter().map(|(ranks, _)| ranks[0]).collect();
    let most = stores.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let told = (comm.rank() == 0).then(|| encode(&(&speakers, most))).transpose()?;
    let (speakers, most): (Vec<usize>, u64) = decode(&comm.broadcast_bytes(0, told)?)?;
    let speaks = speakers.contains(&comm.rank());
    let mut inventory: Vec<StoreInventory> =
        stores.drain(..).map(|(ranks, _)| StoreInventory { ranks, chunks: Vec::new() }).collect();
    for page in 0..(most as usize).div_ceil(PAGE) {
        let of_page = keys.chunks(PAGE).nth(page).filter(|_| speaks).unwrap_or_default();
        let gathered = comm.gather_bytes(0, encode(&of_page)?)?;
        for (store, speaker) in inventory.iter_mut().zip(&speakers) {
            store.chunks.extend(decode::<Vec<ChunkKey>>(&gathered[*speaker])?);
        }
    }
    Ok(inventory)
}

/// The ranks that read each store, ascending, and how many chunks the first of them says it holds.
fn by_name(introduced: &[Introduction]) -> Vec<(Vec<usize>, u64)> {
    let mut stores: Vec<(&str, Vec<usize>, u64)> = Vec::new();
    for (rank, own) in introduced.iter().enumerate() {
        let Some((name, count)) = own else { continue };
        match stores.iter_mut().find(|(other, ..)| other == name) {
            Some((_, ranks, _)) => ranks.push(rank),
            None => stores.push((name, vec![rank], *count)),
        }
    }
    stores.into_iter().map(|(_, ranks, count)| (ranks, count)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use tributary_comm::local::seats;
    use tributary_protocol::KeySpace;
    use tributary_store::{Identity, Numbers, Settings, Shape, Writing};

    use super::*;

    fn store(folder: &Path, chunks: &[u32]) -> Store {
        let folder = folder.to_owned();
        let settings =
            Settings { folder, is_shared: false, most_bytes: None, reserve_bytes: 0, secret: None, remote: None };
        let store = Store::open(settings).expect("opened");
        for &number in chunks {
            let identity =
                Identity { key: key(number), model: [0; 32], prefix: vec![], extra: vec![], ids: vec![number] };
            let shape =
                Shape { layers: 1, rows: 1, kv_heads: 1, head_dim: 1, numbers: Numbers::F32, with_places: false };
            let append = |_: usize, bytes: &mut Vec<u8>| {
                bytes.extend([0; 8]);
                Ok(())
            };
            store.write(Writing { identity, shape, layer: Box::new(append) });
        }
        assert!(store.flush(Duration::from_secs(10)));
        store
    }

    fn key(number: u32) -> ChunkKey {
        KeySpace::new([0; 32], "f32").chunk(&[], &[number], &[])
    }

    #[test]
    fn every_store_is_told_of_once() {
        let (a, b) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let stores = [Some(store(a.path(), &[1, 2])), Some(store(b.path(), &[3])), None, Some(store(a.path(), &[]))];
        let told: Vec<Vec<StoreInventory>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = seats(4)
                .into_iter()
                .zip(&stores)
                .map(|(seat, store)| scope.spawn(move || inventory(&mut seat.take(), store.as_ref()).expect("told")))
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        let mut found = told[0].clone();
        found.iter_mut().for_each(|store| store.chunks.sort());
        let mut both = vec![key(1), key(2)];
        both.sort();
        assert_eq!(
            found,
            [
                StoreInventory { ranks: vec![0, 3], chunks: both },
                StoreInventory { ranks: vec![1], chunks: vec![key(3)] },
            ]
        );
        assert!(told[1..].iter().all(|told| told.iter().all(|store| store.chunks.is_empty())), "rank 0 alone knows");
    }
}
