//! Rates of chunks from a store: temporary files in its folder are written, read and verified as
//! for ranks, from the system's page cache and from the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use tributary_charts::statistics::median;
use tributary_planner::forecast::StoreRates;
use tributary_protocol::KeySpace;
use tributary_store::{Identity, Numbers, Settings, Shape, Steps, Store, Writing};

use crate::error::{Error, Result};

/// Files that are read: 128 MiB, in layers as long as those of a chunk of 512 rows of eight heads.
const FILES: u32 = 16;
const SHAPE: Shape =
    Shape { layers: 4, rows: 512, kv_heads: 4, head_dim: 128, numbers: Numbers::F32, with_places: false };

/// Counted runs.
pub const RUNS: usize = 7;

/// Longest time of writing and reading.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures the rates of the store in this folder. Its files there are removed.
///
/// # Errors
/// Returns an error if an operation of the operating system fails, if the disk has no room, or if
/// writing takes too long.
pub fn measure(folder: &Path) -> Result<StoreRates> {
    let own = folder.join(format!("calibration-{}", std::process::id()));
    let measured = measured(&own);
    // A failure here changes no rate.
    let _ = std::fs::remove_dir_all(&own);
    measured
}

fn measured(folder: &Path) -> Result<StoreRates> {
    let settings = Settings {
        folder: folder.to_owned(),
        is_shared: true,
        most_bytes: None,
        reserve_bytes: 0,
        secret: None,
        remote: None,
    };
    let failed = |what: &str| Error::usage(format!("--chunk-store {}: {what}", folder.display()));
    let store = Arc::new(Store::open(settings).map_err(|error| failed(&error.to_string()))?);
    for number in 0..FILES {
        let append = move |layer: usize, bytes: &mut Vec<u8>| {
            bytes.resize(bytes.len() + 2 * SHAPE.tensor_bytes(), (number as usize + layer) as u8);
            Ok(())
        };
        store.write(Writing { identity: identity(number), shape: SHAPE, layer: Box::new(append) });
        store.flush(PATIENCE);
    }
    if store.keys().len() < FILES as usize {
        return Err(failed("its disk does not take 128 MiB, which the calibration reads"));
    }
    let rate = |drops: bool| -> Result<f64> {
        let mut seconds = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            if drops {
                store.drop_pages();
            }
            seconds.push(read(&store).ok_or_else(|| failed("reading 128 MiB does not come to an end"))?);
        }
        Ok((u64::from(FILES) * SHAPE.bytes()) as f64 / median(&seconds))
    };
    Ok(StoreRates { cached_bytes_per_s: rate(false)?, bytes_per_s: rate(true)? })
}

fn identity(number: u32) -> Identity {
    let (model, ids) = ([0; 32], vec![number]);
    Identity { key: KeySpace::new(model, "f32").chunk(&[], &ids, &[]), model, prefix: vec![], extra: vec![], ids }
}

/// Files that are read one by one; each signals its end.
struct Files {
    store: Arc<Store>,
    begun: AtomicUsize,
    done: Sender<bool>,
}

impl Steps for Files {
    fn step(&self) -> bool {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        if number >= FILES as usize {
            return false;
        }
        let read = |()| {
            let chunk = self.store.find(&identity(number as u32), &SHAPE)?;
            (0..SHAPE.layers).try_for_each(|layer| {
                // As the tensors of a request: memory that is new.
                let (mut keys, mut values) = (vec![0; SHAPE.tensor_bytes()], vec![0; SHAPE.tensor_bytes()]);
                chunk.read_layer(layer, &mut keys, &mut values)
            })
        };
        // The receiver may be gone.
        let _ = self.done.send(read(()).is_ok());
        true
    }
}

/// Seconds of reading all files by the store's own threads; nothing if that fails.
fn read(store: &Arc<Store>) -> Option<f64> {
    let (done, told) = channel();
    let begun = Instant::now();
    store.read(Arc::new(Files { store: Arc::clone(store), begun: AtomicUsize::new(0), done }));
    let all_read = (0..FILES).all(|_| told.recv_timeout(PATIENCE) == Ok(true));
    all_read.then(|| begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_rates_and_nothing_stays_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let rates = measure(folder.path()).expect("measured");
        assert!(rates.cached_bytes_per_s > 0.0 && rates.bytes_per_s > 0.0, "{rates:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
        let file = folder.path().join("file");
        std::fs::write(&file, b"").expect("written");
        assert!(measure(&file).is_err(), "no folder");
    }
}
