//! The sight of a pass on the device: worked out and sent there once, and used again in every layer, as long as queries and
//! keys stand at the same positions.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaDevice, Device, Tensor};

use super::call::Input;
use super::inputs::input;
use super::sight::{KeyOrder, LaunchWork, QueryOrder, Tiling};
use crate::error::Result;
use crate::{Keys, Positions};

/// How many are kept for each rank. A request uses a handful at a time.
const KEPT: usize = 12;

thread_local! {
    static CACHE: RefCell<VecDeque<(Key, Rc<Prepared>)>> = const { RefCell::new(VecDeque::new()) };
}

/// The call that a sight was made for. It holds the positions, so that no others can take their place in memory.
struct Key {
    device: DeviceId,
    queries: Positions,
    keys: Vec<Positions>,
    tiling: Tiling,
}

impl Key {
    fn is_for(&self, device: &CudaDevice, queries: &Positions, keys: &[Keys], tiling: Tiling) -> bool {
        self.device == device.id()
            && self.tiling == tiling
            && self.queries.is_same(queries)
            && self.keys.len() == keys.len()
            && self.keys.iter().zip(keys).all(|(ours, theirs)| ours.is_same(&theirs.at))
    }
}

/// Lists on the device, one after the other in one piece of memory.
pub(super) struct Prepared {
    lists: Tensor,
    /// First number of each list.
    begins: [usize; LISTS],
    /// Number of keys that anybody may see.
    pub keys: usize,
    /// Number of items.
    pub items: usize,
    /// Number of query tiles in several parts.
    pub splits: usize,
    /// Number of partial results.
    pub slots: usize,
}

const LISTS: usize = 10;

/// Where the lists are.
pub(super) struct Addresses {
    pub rows: u64,
    pub rope: u64,
    pub sight: u64,
    pub tiles: u64,
    pub items: u64,
    pub splits: u64,
    pub key_source: u64,
    pub key_rope: u64,
    pub key_number: u64,
    pub tile_sight: u64,
}

impl Prepared {
    fn new(device: &CudaDevice, at: &Positions, keys: &[Keys], tiling: Tiling) -> Result<Self> {
        let blocks: Vec<&Positions> = keys.iter().map(|block| &block.at).collect();
        let keys = KeyOrder::new(&blocks);
        let queries = QueryOrder::new(at, &keys);
        let work = LaunchWork::new(&queries, tiling);
        let lists: [&[u32]; LISTS] = [
            &queries.rows,
            &queries.rope,
            queries.sight.as_flattened(),
            &work.tiles,
            work.items.as_flattened(),
            work.splits.as_flattened(),
            &keys.source,
            &keys.rope,
            &keys.number,
            &queries.hulls(tiling.queries()).concat(),
        ];
        let mut begins = [0; LISTS];
        let mut all = Vec::with_capacity(lists.iter().map(|list| list.len() + 4).sum());
        for (begin, list) in begins.iter_mut().zip(lists) {
            *begin = all.len();
            all.extend_from_slice(list);
            all.resize(all.len().next_multiple_of(4) + 4, 0); // 16 bytes of their own for an empty list too
        }
        Ok(Self {
            lists: super::memory::upload(&all, &Device::Cuda(device.clone()))?,
            begins,
            keys: keys.len(),
            items: work.items.len(),
            splits: work.splits.len(),
            slots: work.slots,
        })
    }

    /// The lists, held for a launch.
    ///
    /// # Errors
    /// None: they are on the device.
    pub fn input(&self) -> Result<Input<'_>> {
        input(&self.lists)
    }

    /// Where each list is, if they begin at this address.
    pub fn addresses(&self, begin: u64) -> Addresses {
        let [rows, rope, sight, tiles, items, splits, key_source, key_rope, key_number, tile_sight] =
            self.begins.map(|first| begin + (first * size_of::<u32>()) as u64);
        Addresses { rows, rope, sight, tiles, items, splits, key_source, key_rope, key_number, tile_sight }
    }
}

/// The sight of these queries and keys: the one that this thread has, or a new one.
///
/// # Errors
/// The driver's.
pub(super) fn prepared(device: &CudaDevice, at: &Positions, keys: &[Keys], tiling: Tiling) -> Result<Rc<Prepared>> {
    let found = CACHE.with_borrow_mut(|cache| {
        let index = cache.iter().position(|(key, _)| key.is_for(device, at, keys, tiling))?;
        let entry = cache.remove(index)?;
        let ready = entry.1.clone();
        cache.push_front(entry);
        Some(ready)
    });
    if let Some(ready) = found {
        return Ok(ready);
    }
    let ready = Rc::new(Prepared::new(device, at, keys, tiling)?);
    let positions = keys.iter().map(|block| block.at.clone()).collect();
    let key = Key { device: device.id(), queries: at.clone(), keys: positions, tiling };
    CACHE.with_borrow_mut(|cache| {
        cache.truncate(KEPT - 1);
        cache.push_front((key, ready.clone()));
    });
    Ok(ready)
}
