//! The sight of a pass on the device: computed and sent there once, and used again in every layer,
//! as long as queries and keys have the same positions.
//!
//! While a sequence is decoded its context stays and its answer grows: the order of the context's
//! keys is kept apart, and a token sends the data of its own row and the answer's rows, for any
//! length of the context.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaDevice, Device, Tensor};

use super::call::Input;
use super::inputs::input;
use super::sight::{KeyOrder, LaunchWork, MAX_BLOCKS, QueryOrder, ROW_BITS, Tiling};
use crate::error::Result;
use crate::positions::Identity;
use crate::{Keys, Positions, Rule};

/// Maximum number of kept ones for each rank. They are dropped earlier, once their positions are
/// dropped.
const KEPT: usize = 256;

/// Rows that may follow keys whose order is kept: beyond, all are put in order anew.
const FOLLOWING: usize = 4096;

thread_local! {
    static PREPARED: RefCell<VecDeque<(Key, Rc<Prepared>)>> = const { RefCell::new(VecDeque::new()) };
    static PLACES: RefCell<VecDeque<(Vec<Identity>, Rc<Places>)>> = const { RefCell::new(VecDeque::new()) };
}

/// The call that a sight was made for.
struct Key {
    device: DeviceId,
    queries: Identity,
    keys: Vec<Identity>,
    tiling: Tiling,
    may_follow: bool,
}

impl Key {
    fn is_for(&self, device: &CudaDevice, queries: &Positions, keys: &[Keys], how: (Tiling, bool)) -> bool {
        self.device == device.id()
            && (self.tiling, self.may_follow) == how
            && self.queries.is_of(queries)
            && are_same(&self.keys, keys)
    }
}

/// Whether these are the positions of these blocks.
fn are_same(positions: &[Identity], keys: &[Keys]) -> bool {
    positions.len() == keys.len() && positions.iter().zip(keys).all(|(ours, theirs)| ours.is_of(&theirs.at))
}

fn identities(keys: &[Keys]) -> Vec<Identity> {
    keys.iter().map(|block| block.at.identity()).collect()
}

/// Lists on the device, one after the other in one block of memory.
struct Lists<const N: usize> {
    all: Tensor,
    /// First number of each list.
    begins: [usize; N],
}

impl<const N: usize> Lists<N> {
    fn new(device: &CudaDevice, lists: [&[u32]; N]) -> Result<Self> {
        let mut begins = [0; N];
        let mut all = Vec::with_capacity(lists.iter().map(|list| list.len() + 8).sum());
        for (begin, list) in begins.iter_mut().zip(lists) {
            *begin = all.len();
            all.extend_from_slice(list);
            all.resize(all.len().next_multiple_of(4) + 4, 0); // 16 bytes of their own for an empty list too
        }
        Ok(Self { all: super::memory::upload(&all, &Device::Cuda(device.clone()))?, begins })
    }

    /// Address of each list, if they begin at this address.
    fn addresses(&self, begin: u64) -> [u64; N] {
        self.begins.map(|first| begin + (first * size_of::<u32>()) as u64)
    }
}

/// Keys in the kernels' order, on the host and on the device: each place's key, with its address,
/// its position, and its number.
struct Places {
    device: DeviceId,
    order: KeyOrder,
    lists: Lists<3>,
}

impl Places {
    /// Those of these blocks: kept ones, or new ones. `keeps` says whether new ones are kept.
    fn of(device: &CudaDevice, keys: &[Keys], keeps: bool) -> Result<Rc<Self>> {
        if let Some(places) = Self::kept(device, keys) {
            return Ok(places);
        }
        let blocks: Vec<&Positions> = keys.iter().map(|block| &block.at).collect();
        let order = KeyOrder::new(&blocks);
        let lists = Lists::new(device, [&order.source, &order.rope, &order.number])?;
        let places = Rc::new(Self { device: device.id(), order, lists });
        if keeps {
            PLACES.with_borrow_mut(|kept| kept.push_front((identities(keys), places.clone())));
        }
        Ok(places)
    }

    fn kept(device: &CudaDevice, keys: &[Keys]) -> Option<Rc<Self>> {
        PLACES.with_borrow(|kept| {
            let is_it = |(positions, places): &&(Vec<Identity>, Rc<Self>)| {
                places.device == device.id() && are_same(positions, keys)
            };
            kept.iter().find(is_it).map(|(_, places)| places.clone())
        })
    }
}

/// The sight of a pass, and the work that follows from it.
pub(super) struct Prepared {
    lists: Lists<9>,
    places: Rc<Places>,
    /// Whether every row sees two runs of keys at most, as the kernels need it.
    pub are_runs: bool,
    /// Places whose lists are with `places`: all, or those before the rows that follow.
    pub split: usize,
    /// Number of keys that any row may see.
    pub keys: usize,
    /// Number of items.
    pub items: usize,
    /// Number of query tiles in several parts.
    pub splits: usize,
    /// Number of partial results.
    pub slots: usize,
}

/// Addresses of the lists.
pub(super) struct Addresses {
    pub rows: u64,
    pub rope: u64,
    pub sight: u64,
    pub masked: u64,
    pub items: u64,
    pub splits: u64,
    pub tile_sight: u64,
    pub key_source: u64,
    pub key_rope: u64,
    pub key_number: u64,
    pub tail_source: u64,
    pub tail_rope: u64,
}

/// Keys of a decoded row: the context's places, and the rows after them.
struct Behind {
    places: Rc<Places>,
    source: Vec<u32>,
    rope: Vec<u32>,
    /// The places that are not listed anew, as whole tiles of the context's.
    split: usize,
    queries: QueryOrder,
    are_runs: bool,
}

impl Behind {
    /// `None` where the last blocks do not follow the others, or are many.
    fn new(device: &CudaDevice, at: &Positions, keys: &[Keys], tiling: Tiling) -> Result<Option<Self>> {
        if at.len() != 1 || at.rule() != Rule::Causal || !(2..=MAX_BLOCKS).contains(&keys.len()) {
            return Ok(None);
        }
        // The context is the known keys, or all but the last block.
        let known = (1..keys.len()).rev().find(|&count| Places::kept(device, &keys[..count]).is_some());
        let rows_from = |count: usize| keys[count..].iter().map(|block| block.at.len()).sum::<usize>();
        let count = known.filter(|&count| rows_from(count) <= FOLLOWING).unwrap_or(keys.len() - 1);
        let is_full = known.is_none() && PLACES.with_borrow(|kept| kept.len() >= KEPT);
        if is_full || rows_from(count) > FOLLOWING {
            return Ok(None);
        }
        let places = Places::of(device, &keys[..count], true)?;
        let last: Vec<&Positions> = keys[count..].iter().map(|block| &block.at).collect();
        let rows = Positions::concat(&last);
        let Some(followed) = places.order.followed_by(&rows) else { return Ok(None) };
        let queries = QueryOrder::seeing(at, |query| followed.sight(query));
        let are_runs = followed.are_runs_for(at);
        let split = places.order.len() / tiling.keys * tiling.keys;
        let row = |(index, block): (usize, &&Positions)| {
            let first = ((count + index) as u32) << ROW_BITS;
            (0..block.len() as u32).map(move |row| first | row).collect::<Vec<_>>()
        };
        let source =
            places.order.source[split..].iter().copied().chain(last.iter().enumerate().flat_map(row)).collect();
        let rope = [&places.order.rope[split..], rows.rope()].concat();
        Ok(Some(Self { source, rope, split, queries, are_runs, places }))
    }
}

impl Prepared {
    fn new(device: &CudaDevice, at: &Positions, keys: &[Keys], (tiling, may_follow): (Tiling, bool)) -> Result<Self> {
        let behind = if may_follow { Behind::new(device, at, keys, tiling)? } else { None };
        let Behind { places, source, rope, split, queries, are_runs } = match behind {
            Some(behind) => behind,
            None => {
                let places = Places::of(device, keys, false)?;
                let (split, queries) = (places.order.len(), QueryOrder::new(at, &places.order));
                let are_runs = places.order.are_runs_for(at);
                Behind { places, source: Vec::new(), rope: Vec::new(), split, queries, are_runs }
            }
        };
        let work = LaunchWork::new(&queries, tiling);
        let lists = Lists::new(
            device,
            [
                &queries.rows,
                &queries.rope,
                queries.sight.as_flattened(),
                &work.masked,
                work.items.as_flattened(),
                work.splits.as_flattened(),
                queries.hulls(tiling.queries()).as_flattened(),
                &source,
                &rope,
            ],
        )?;
        let (keys, items, splits, slots) = (split + source.len(), work.items.len(), work.splits.len(), work.slots);
        Ok(Self { lists, places, are_runs, split, keys, items, splits, slots })
    }

    /// Its own lists and those of the keys' places, held for a launch.
    ///
    /// # Errors
    /// Never fails: they are on the device.
    pub fn inputs(&self) -> Result<[Input<'_>; 2]> {
        Ok([input(&self.lists.all)?, input(&self.places.lists.all)?])
    }

    /// Address of each list, if its own and those of the places begin at these addresses.
    pub fn addresses(&self, own: u64, places: u64) -> Addresses {
        let [rows, rope, sight, masked, items, splits, tile_sight, tail_source, tail_rope] = self.lists.addresses(own);
        let [key_source, key_rope, key_number] = self.places.lists.addresses(places);
        Addresses {
            rows,
            rope,
            sight,
            masked,
            items,
            splits,
            tile_sight,
            key_source,
            key_rope,
            key_number,
            tail_source,
            tail_rope,
        }
    }
}

/// The sight of these queries and keys: the one that this thread has, or a new one. `may_follow`
/// says that the kernel reads places in two pieces: then a decoded row does not change the order of
/// its context.
///
/// # Errors
/// Returns an error if the CUDA driver fails.
pub(super) fn prepared(
    device: &CudaDevice,
    at: &Positions,
    keys: &[Keys],
    tiling: Tiling,
    may_follow: bool,
) -> Result<Rc<Prepared>> {
    let how = (tiling, may_follow);
    let found = PREPARED.with_borrow_mut(|cache| {
        let index = cache.iter().position(|(key, _)| key.is_for(device, at, keys, how))?;
        let entry = cache.remove(index)?;
        let ready = entry.1.clone();
        cache.push_front(entry);
        Some(ready)
    });
    if let Some(ready) = found {
        return Ok(ready);
    }
    // Entries with dropped positions cannot be found again.
    let are_there = |positions: &[Identity]| positions.iter().all(Identity::is_there);
    PREPARED.with_borrow_mut(|cache| cache.retain(|(key, _)| key.queries.is_there() && are_there(&key.keys)));
    PLACES.with_borrow_mut(|kept| kept.retain(|(positions, _)| are_there(positions)));
    let ready = Rc::new(Prepared::new(device, at, keys, how)?);
    let key = Key { device: device.id(), queries: at.identity(), keys: identities(keys), tiling, may_follow };
    PREPARED.with_borrow_mut(|cache| {
        cache.truncate(KEPT - 1);
        cache.push_front((key, ready.clone()));
    });
    Ok(ready)
}
