//! Tiles of a kernel's work, told as they are done: whoever waits for a long call knows that it gets on.
//!
//! A thread says whom its kernels tell ([`telling`]); what they share out among the threads of their pool tells the same. Kernels know
//! neither who listens nor why.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// Called once for every tile that is done, from any thread of the pool. It must be quick.
pub type OnTile = Arc<dyn Fn() + Send + Sync>;

thread_local! {
    static TOLD: RefCell<Option<OnTile>> = const { RefCell::new(None) };
}

/// While this is held, kernels that its thread calls tell of their tiles; then whoever was told before is told again.
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

/// Whom this thread's kernels tell.
pub(crate) fn told() -> Option<OnTile> {
    TOLD.with_borrow(Clone::clone)
}

/// A tile is done.
pub(crate) fn done() {
    TOLD.with_borrow(|told| {
        if let Some(on_tile) = told {
            on_tile();
        }
    });
}

/// Runs a part of a call on another thread, which tells whom the caller's thread does.
pub(crate) fn as_told<T>(told: Option<&OnTile>, work: impl FnOnce() -> T) -> T {
    let _telling = told.map(|on_tile| telling(Arc::clone(on_tile)));
    work()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use candle_core::{Device, Tensor};

    use super::*;
    use crate::{Kernels, Keys, Positions, Reduce, linear};

    fn counted(work: impl FnOnce()) -> usize {
        let count = Arc::new(AtomicUsize::new(0));
        let on_tile = Arc::clone(&count);
        let telling = telling(Arc::new(move || {
            on_tile.fetch_add(1, Ordering::Relaxed);
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
    fn every_long_kernel_tells_of_its_tiles_on_every_thread() {
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| {
                let (q, k, v) = (rows(700, 4), rows(700, 2), rows(700, 2));
                let at = Positions::run(0, 700);
                let keys = [Keys { k, v, at: at.clone() }];
                let mut partial = None;
                let attend =
                    counted(|| partial = Some(Kernels::Auto.attend(&q, &at, &keys, None, 0.25).expect("attention")));
                let partial = partial.expect("attention");
                let scores = counted(|| {
                    let by = Reduce::Mass;
                    Kernels::Auto.column_scores(&q, &at, &keys, None, 0.25, &partial.lse, by).expect("scores");
                });
                let (x, weight) = (rows(1 << 14, 4).reshape((1 << 14, 64)), rows(64, 4).reshape((64, 64)));
                let product = counted(|| {
                    linear(&x.expect("x"), &weight.expect("weight"), None).expect("a product");
                });
                assert!(attend > 10 && scores > 10 && product >= 1, "{threads}: {attend}, {scores}, {product}");
            });
        }
        assert!(told().is_none(), "nobody is told any more");
    }
}
