//! The claims of [`Communicator`], checked on a living group: every backend runs this one function
//! on each of its ranks.
//!
//! Contents are checked, not only shapes, and counters to the byte. Deadlines, aborts and
//! mismatches need a failing rank and are tested per backend.

mod control;
mod data;
mod outcome;
mod points;
mod tensors;
mod together;

use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use tributary_protocol::{Phase, SplitMix64};

use self::control::{control, gather};
use self::data::Ledger;
use self::outcome::{Check, said};
use self::tensors::{Form, all_gather, all_to_all, out_of_order, ring};
use self::together::together;
use crate::{Collective, Communicator, Traffic};

/// Forms of a row that are sent: 1-D to 3-D tensors.
const ROW_DIMS: [&[usize]; 3] = [&[], &[5], &[2, 3]];

/// Rows of a few hundred bytes: backends may send those of equal ranks in another way than small
/// ones.
const LONG_ROW: &[usize] = &[4, 32];

/// Dtypes that are sent.
const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::U32, DType::U8];

/// Rounds of random calls.
const RANDOM_ROUNDS: u64 = 100;

/// Steps that one check takes at most: numbers its tags.
const STEPS_A_CHECK: u64 = 1000;

/// Runs every check with tensors on the CPU. To be called on every rank of a group that has done
/// nothing else; it resets the counters.
///
/// # Errors
/// Returns the first claim that does not hold, in words.
pub fn check(comm: &mut dyn Communicator) -> std::result::Result<(), String> {
    check_on(comm, &Device::Cpu)
}

/// As [`check`], with tensors on this rank's device.
///
/// # Errors
/// Returns the first claim that does not hold, in words.
pub fn check_on(comm: &mut dyn Communicator, device: &Device) -> std::result::Result<(), String> {
    if comm.rank() >= comm.size() {
        return Err(format!("rank {} of {}", comm.rank(), comm.size()));
    }
    comm.set_deadline(Phase::Idle, Duration::from_secs(60));
    comm.reset_traffic();
    let mut ledger = Ledger::default();
    let mut step = 0;
    for row_dims in ROW_DIMS {
        for dtype in DTYPES {
            let form = Form { row_dims, dtype, device };
            for table in tables(comm.size()) {
                all_gather(comm, &mut ledger, step, form, &table)?;
                all_to_all(comm, &mut ledger, step + 1, form, &table)?;
                ring(comm, &mut ledger, step + 2, form, &table)?;
                out_of_order(comm, &mut ledger, step + 3, form, &table)?;
                together(comm, &mut ledger, step + 5, form, &table)?;
                step += 5 + together::STEPS;
                ledger.compare(comm)?;
            }
        }
    }
    let form = Form { row_dims: LONG_ROW, dtype: DType::BF16, device };
    for table in tables(comm.size()) {
        all_gather(comm, &mut ledger, step, form, &table)?;
        out_of_order(comm, &mut ledger, step + 1, form, &table)?;
        together(comm, &mut ledger, step + 3, form, &table)?;
        step += 3 + together::STEPS;
    }
    ledger.compare(comm)?;
    control(comm, &mut ledger, STEPS_A_CHECK)?;
    ledger.compare(comm)?;
    random_rounds(comm, &mut ledger, 2 * STEPS_A_CHECK, device)?;
    ledger.compare(comm)?;
    laps(comm, device)?;
    points::points(comm, device)?;
    Ledger::default().compare(comm)
}

/// Numbers of rows per rank: even, uneven, with empty ranks, all empty.
fn tables(world: usize) -> Vec<Vec<usize>> {
    let uneven = (0..world).map(|rank| 1 + 3 * rank).collect();
    let gaps = (0..world).map(|rank| if rank % 2 == 0 { 0 } else { 4 }).collect();
    let only_first = (0..world).map(|rank| if rank == 0 { 7 } else { 0 }).collect();
    vec![vec![3; world], uneven, gaps, only_first, vec![0; world]]
}

/// Calls, forms and sizes drawn from a seed that all ranks share.
fn random_rounds(comm: &mut dyn Communicator, ledger: &mut Ledger, first_step: u64, device: &Device) -> Check {
    let mut random = SplitMix64::new(0x7419);
    for round in 0..RANDOM_ROUNDS {
        let step = first_step + together::STEPS * round;
        let form = Form { row_dims: ROW_DIMS[random.below(3)], dtype: DTYPES[random.below(3)], device };
        let rows: Vec<usize> = (0..comm.size()).map(|_| random.below(20)).collect();
        match random.below(6) {
            0 => all_gather(comm, ledger, step, form, &rows)?,
            1 => all_to_all(comm, ledger, step, form, &rows)?,
            2 => ring(comm, ledger, step, form, &rows)?,
            3 => out_of_order(comm, ledger, step, form, &rows)?,
            4 => together(comm, ledger, step, form, &rows)?,
            _ => {
                let root = random.below(comm.size());
                gather(comm, ledger, step, root, random.below(500))?;
            }
        }
    }
    Ok(())
}

/// A call counts in the lap in which it is waited for. Resets the counters.
fn laps(comm: &mut dyn Communicator, device: &Device) -> Check {
    comm.reset_traffic();
    let mine = said(Tensor::zeros((2, 4), DType::F32, device).map_err(crate::Error::from))?;
    let pending = said(comm.start_all_gather_v(&mine, &vec![2; comm.size()]))?;
    let numbers = [comm.start_lap(), comm.start_lap()];
    said(comm.wait(pending))?;
    let last = comm.start_lap();
    said(comm.barrier())?;
    let calls = |lap: &Traffic| lap.entries.iter().map(|(kind, entry)| (*kind, entry.calls)).collect::<Vec<_>>();
    let found: Vec<_> = comm.laps().iter().map(calls).collect();
    let wanted = [vec![], vec![], vec![(Collective::AllGather, 1)], vec![(Collective::Barrier, 1)]];
    if (numbers, last) == ([1, 2], 3) && found == wanted {
        return Ok(());
    }
    Err(format!("laps {numbers:?} and {last}: {found:?}, not {wanted:?}"))
}
