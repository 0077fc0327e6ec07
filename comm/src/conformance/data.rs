//! Tensors whose every value says where it comes from and where it goes, made alike on all ranks.

use candle_core::{DType, Device, Tensor};
use tributary_protocol::SplitMix64;

use crate::download::download;
use crate::{Communicator, Traffic};

/// Names the tensor that rank `source` sends to rank `target` in one step.
#[derive(Clone, Copy)]
pub(super) struct Tag {
    pub(super) step: u64,
    pub(super) source: usize,
    pub(super) target: usize,
}

/// Whole numbers from 0 to 255: every dtype holds them exactly.
fn values(tag: Tag, count: usize) -> Vec<u32> {
    let seed = tag.step << 20 | (tag.source as u64) << 10 | tag.target as u64;
    let mut random = SplitMix64::new(seed);
    (0..count).map(|_| random.below(256) as u32).collect()
}

/// The tensor of a tag: `rows` rows of `row_dims`, made on the CPU.
pub(super) fn tensor(
    tag: Tag,
    rows: usize,
    row_dims: &[usize],
    dtype: DType,
    device: &Device,
) -> candle_core::Result<Tensor> {
    // One row at least: CUDA has no memory of no bytes.
    let mut dims = vec![rows.max(1)];
    dims.extend(row_dims);
    let count = dims.iter().product();
    let made = Tensor::from_vec(values(tag, count), dims, &Device::Cpu)?.to_dtype(dtype)?;
    made.to_device(device)?.narrow(0, 0, rows)
}

/// Says how a tensor differs from its tag's.
pub(super) fn expect(found: &Tensor, tag: Tag, rows: usize, row_dims: &[usize], dtype: DType) -> Result<(), String> {
    let Tag { step, source, target } = tag;
    let at = format!("step {step}, from rank {source} to rank {target}");
    let mut dims = vec![rows];
    dims.extend(row_dims);
    if found.dims() != dims || found.dtype() != dtype {
        let (shape, kind) = (found.dims(), found.dtype());
        return Err(format!("{at}: {kind:?} {shape:?}, not {dtype:?} {dims:?}"));
    }
    let mut here = found.clone();
    let whole = download([&mut here]).and_then(|()| here.to_dtype(DType::U32));
    let flat = whole.and_then(|whole| whole.flatten_all()?.to_vec1::<u32>());
    let flat = flat.map_err(|error| format!("{at}: {error}"))?;
    let wanted = values(tag, flat.len());
    match flat.iter().zip(&wanted).position(|(found, wanted)| found != wanted) {
        Some(index) => Err(format!("{at}: value {index} is {}, not {}", flat[index], wanted[index])),
        None => Ok(()),
    }
}

/// Bytes of a tag.
pub(super) fn bytes(tag: Tag, count: usize) -> Vec<u8> {
    values(tag, count).into_iter().map(|value| value as u8).collect()
}

/// The counts that the communicator's counters must equal.
#[derive(Default)]
pub(super) struct Ledger {
    wanted: Traffic,
}

impl Ledger {
    pub(super) fn count(&mut self, kind: crate::Collective, sent_bytes: usize, received_bytes: usize) {
        self.wanted.count(kind, sent_bytes as u64, received_bytes as u64);
    }

    /// Says where the communicator's counters differ, waiting times aside.
    pub(super) fn compare(&self, comm: &mut dyn Communicator) -> Result<(), String> {
        let mut found = comm.traffic();
        for (kind, entry) in &mut found.entries {
            if !(entry.waited_s.is_finite() && entry.waited_s >= 0.0) {
                return Err(format!("{}: waited {} s", kind.name(), entry.waited_s));
            }
            entry.waited_s = 0.0;
        }
        if found == self.wanted {
            return Ok(());
        }
        Err(format!("counters of rank {}: {found:?}, not {:?}", comm.rank(), self.wanted))
    }
}
