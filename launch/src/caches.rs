//! What chunk caches take where several groups of threads have theirs side by side, and what names the chunks in them.

use std::collections::BTreeMap;

use tributary_protocol::KeySpace;

use crate::args::ModelArgs;
use crate::model::ModelFolder;
use crate::session::Way;

/// What names the chunks of a model. Where none are kept they need no name, and the weights are not read for one.
pub fn key_space(folder: &ModelFolder, model: &ModelArgs, keeps: bool) -> anyhow::Result<KeySpace> {
    let hash = if keeps { folder.hash().get()? } else { [0; 32] };
    Ok(KeySpace::new(hash, format!("{:?}", model.dtype())))
}

/// Bytes that chunk caches take, seen by each of a way's ranks: its own, and those that ranks of other groups keep in the same
/// memory, which count for the first rank there. `caches` has a number for each rank of a group, by ranks and threads a
/// rank; `memory_of` numbers the memory of a rank of a group of so many.
pub fn beside(
    way: &Way,
    caches: &BTreeMap<(usize, usize), Vec<u64>>,
    memory_of: impl Fn(usize, usize) -> usize,
) -> Vec<u64> {
    let own = (way.settings.world, way.threads);
    let mut bytes = vec![0; own.0];
    for (group, kept) in caches {
        for (rank, kept_bytes) in kept.iter().enumerate() {
            let memory = memory_of(group.0, rank);
            let first_there = (0..own.0).find(|&own_rank| memory_of(own.0, own_rank) == memory);
            let sees = if *group == own { Some(rank) } else { first_there };
            if let Some(rank) = sees {
                bytes[rank] += kept_bytes;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use tributary_coordinator::Settings;

    use super::*;

    fn way(world: usize) -> Way {
        Way { settings: Settings { world, ..Settings::default() }, threads: 1 }
    }

    #[test]
    fn other_groups_count_where_they_share_memory() {
        let caches = BTreeMap::from([((1, 1), vec![100]), ((2, 1), vec![10, 20]), ((4, 1), vec![1, 2, 3, 4])]);
        let one_memory = |_, _| 0;
        assert_eq!(beside(&way(1), &caches, one_memory), [140]);
        assert_eq!(beside(&way(2), &caches, one_memory), [120, 20]);
        assert_eq!(beside(&way(3), &caches, one_memory), [140, 0, 0], "a group that keeps nothing");
        let gpu_each = |_, rank| rank;
        assert_eq!(beside(&way(1), &caches, gpu_each), [111]);
        assert_eq!(beside(&way(4), &caches, gpu_each), [111, 22, 3, 4]);
        let two_gpus = |_, rank| rank % 2;
        assert_eq!(
            beside(&way(1), &caches, two_gpus),
            [100 + 10 + 1 + 3],
            "what lies on the other GPU takes nothing here"
        );
        assert_eq!(beside(&way(4), &caches, two_gpus), [111, 22, 3, 4]);
    }
}
