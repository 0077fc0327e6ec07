//! The first messages: NCCL connects two ranks, and takes memory for it, when they first speak. Here every rank speaks to every
//! other before there is any request, in each way that calls have, so that no request pays for it and what NCCL takes is known.

use candle_core::{CudaDevice, DType, Device, Tensor};

use super::ffi;
use crate::{Communicator, Result, Start};

/// Values of a row of the first messages: as long as an all-gather of equal parts must be.
const VALUES: usize = 64;

/// What is free on a device of this thread's context before NCCL starts.
pub fn free_bytes(device: &CudaDevice) -> Result<u64> {
    device.cuda_stream().context().bind_to_thread().map_err(ffi::cuda)?;
    Ok(ffi::free_bytes().unwrap_or(0))
}

/// Every rank speaks to every other; the bytes that NCCL has taken since `free_before` bytes were free. What others take of the
/// same GPU meanwhile counts too.
///
/// # Errors
/// The communicator's, a lack of memory above all.
pub fn connect_all(comm: &mut dyn Communicator, device: &CudaDevice, free_before: u64) -> Result<u64> {
    let (rank, size) = (comm.rank(), comm.size());
    let on = Device::Cuda(device.clone());
    let rows = |count: usize| Tensor::zeros((count, VALUES), DType::F32, &on);
    let (one, several) = (rows(1)?, rows(rank + 1)?);
    let equal = vec![1; size];
    let unequal: Vec<usize> = (1..=size).collect();
    let to_all = vec![one.clone(); size];
    let ring = Start::Exchange { send: &one, to: (rank + 1) % size, from: (rank + size - 1) % size, rows: 1 };
    let starts = [
        ring,
        Start::AllGather { send: &one, rows: &equal },
        Start::AllGather { send: &several, rows: &unequal },
        Start::AllToAll { send: &to_all, rows: &equal },
    ];
    // One after the other: together they would be one group, which NCCL may connect in another way.
    for start in starts {
        for pending in comm.start_together(&[start])? {
            comm.wait(pending)?;
        }
    }
    comm.barrier()?;
    comm.reset_traffic();
    Ok(free_before.saturating_sub(free_bytes(device)?))
}
