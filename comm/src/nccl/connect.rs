//! The first messages: NCCL connects two ranks, and allocates memory for it, at their first
//! message. Here every rank sends to every other before the first request, in each way that calls
//! have. No request then pays for connecting, and NCCL's memory is known.

use candle_core::{CudaDevice, DType, Device, Tensor};

use crate::{Communicator, Result, Start};

/// Values of a row of the first messages: as long as an all-gather of equal parts must be.
const VALUES: usize = 64;

/// Rows of the large ones, 1 MiB: NCCL takes other ways, with buffers of their own, for large
/// messages than for small ones.
const MANY_ROWS: usize = 4096;

/// Every rank speaks to every other.
///
/// # Errors
/// Returns an error if the communicator fails, most often for lack of memory.
pub fn connect_all(comm: &mut dyn Communicator, device: &CudaDevice) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let on = Device::Cuda(device.clone());
    let rows = |count: usize| Tensor::zeros((count, VALUES), DType::F32, &on);
    let (one, several, many) = (rows(1)?, rows(rank + 1)?, rows(MANY_ROWS)?);
    let (equal, large) = (vec![1; size], vec![MANY_ROWS; size]);
    let unequal: Vec<usize> = (1..=size).collect();
    let to_all = vec![one.clone(); size];
    let ring = Start::Exchange { send: &one, to: (rank + 1) % size, from: (rank + size - 1) % size, rows: 1 };
    let starts = [
        ring,
        Start::AllGather { send: &one, rows: &equal },
        Start::AllGather { send: &several, rows: &unequal },
        Start::AllGather { send: &many, rows: &large },
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
    Ok(())
}
