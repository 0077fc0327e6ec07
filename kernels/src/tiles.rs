//! Tiles of a kernel's work, reported as they are done: a listener knows that a long call makes
//! progress, and can end it early.
//!
//! A thread sets the listener of its kernels ([`telling`]); their work on other threads of their
//! pool has the same one. Kernels do not depend on the listener's purpose. When the listener wants
//! no more, a long call leaves out the remaining tiles: its result then has the right shape and
//! arbitrary numbers.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// Called once for every tile that is done, from any thread of the pool. Says whether the call's
/// result is still wanted. It must be quick.
pub type OnTile = Arc<dyn Fn() -> bool + Send + Sync>;

thread_local! {
    static TOLD: RefCell<Option<OnTile>> = const { RefCell::new(None) };
}

/// While this is held, kernels that its thread calls report their tiles to the listener; after it,
/// to the previous listener.
pub struct Telling {
    before: Option<OnTile>,
    stays: PhantomData<*const ()>,
}

/// From now on the kernels that this thread calls tell `on_tile` of every tile that is done.
#[must_use = "kernels tell only while it is held"]
pub fn telling(on_tile: OnTile) -> Telling {
    Telling { before: TOLD.replace(Some(on_tile)), stays: PhantomData }
}

impl Drop for Telling {
    fn drop(&mut self) {
        TOLD.set(self.before.take());
    }
}

/// Listener of this thread's kernels.
pub(crate) fn told() -> Option<OnTile> {
    TOLD.with_borrow(Clone::clone)
}

/// A tile is done. Whether the others are wanted.
pub(crate) fn done() -> bool {
    TOLD.with_borrow(|told| told.as_ref().is_none_or(|on_tile| on_tile()))
}

/// Runs a part of a call on another thread, with the listener of the caller's thread.
pub(crate) fn as_told<T>(told: Option<&OnTile>, work: impl FnOnce() -> T) -> T {
    let _telling = told.map(|on_tile| telling(Arc::clone(on_tile)));
    work()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::{Kernels, Keys, Positions, Query, Reduce, linear};

    fn counted(work: impl FnOnce()) -> usize {
        let count = Arc::new(AtomicUsize::new(0));
        let on_tile = Arc::clone(&count);
        let telling = telling(Arc::new(move || {
            on_tile.fetch_add(1, Ordering::Relaxed);
            true
        }));
        work();
        drop(telling);
        count.load(Ordering::Relaxed)
    }

    /// `[rows, heads, 16]`.
    fn rows(rows: usize, heads: usize) -> Tensor {
        Tensor::rand(-1f32, 1.0, (rows, heads, 16), &Device::Cpu).expect("rows")
    }

    #[test]
    fn a_call_whose_result_nobody_wants_leaves_out_its_tiles() {
        let (q, k, v) = (rows(4096, 4), rows(4096, 2), rows(4096, 2));
        let at = Positions::run(0, 4096);
        let keys = [Keys { k, v, at: at.clone() }];
        let (x, weight) = (Tensor::zeros((1 << 14, 1024), candle_core::DType::F32, &Device::Cpu), rows(1024, 64));
        let (x, weight) = (x.expect("x"), weight.reshape((1024, 1024)).expect("weight"));
        let query = Query { q: &q, at: &at, keys: &keys, rope: None, scale: 0.25, dtype: DType::F32 };
        let whole = Kernels::Auto.attend(&query).expect("attention");
        let count = |wanted: bool| {
            let count = Arc::new(AtomicUsize::new(0));
            let on_tile = Arc::clone(&count);
            let telling = telling(Arc::new(move || {
                on_tile.fetch_add(1, Ordering::Relaxed);
                wanted
            }));
            let mut counts = Vec::new();
            let mut counted = |work: &dyn Fn()| {
                work();
                counts.push(count.swap(0, Ordering::Relaxed));
            };
            counted(&|| {
                let partial = Kernels::Auto.attend(&query).expect("attention");
                assert_eq!(partial.out.dims(), [4096, 4, 16]);
            });
            counted(&|| {
                let by = Reduce::Mass;
                let scores = Kernels::Auto.column_scores(&query, &whole.lse, by).expect("scores");
                assert_eq!(scores.dims(), [4096]);
            });
            counted(&|| assert_eq!(linear(&x, &weight, None).expect("a product").dims(), [1 << 14, 1024]));
            drop(telling);
            counts
        };
        // Each thread asks after its tile, and once more after the task of that tile.
        let most = 2 * rayon::current_num_threads();
        for (all, left) in count(true).into_iter().zip(count(false)) {
            assert!((1..=most).contains(&left) && all > left, "{left} of {all} tiles, at most {most}");
        }
    }

    #[test]
    fn every_long_kernel_tells_of_its_tiles_on_every_thread() {
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| {
                let (q, k, v) = (rows(700, 4), rows(700, 2), rows(700, 2));
                let at = Positions::run(0, 700);
                let keys = [Keys { k, v, at: at.clone() }];
                let query = Query { q: &q, at: &at, keys: &keys, rope: None, scale: 0.25, dtype: DType::F32 };
                let mut partial = None;
                let attend = counted(|| partial = Some(Kernels::Auto.attend(&query).expect("attention")));
                let partial = partial.expect("attention");
                let scores = counted(|| {
                    let by = Reduce::Mass;
                    Kernels::Auto.column_scores(&query, &partial.lse, by).expect("scores");
                });
                let (x, weight) = (rows(1 << 14, 4).reshape((1 << 14, 64)), rows(64, 4).reshape((64, 64)));
                let product = counted(|| {
                    linear(&x.expect("x"), &weight.expect("weight"), None).expect("a product");
                });
                assert!(attend > 10 && scores > 10 && product >= 1, "{threads}: {attend}, {scores}, {product}");
            });
        }
        assert!(told().is_none(), "there is no listener any more");
    }
}
